//! Routes that require a header.

use super::*;

async fn restricted(flags: &[&str]) -> Started {
    let flags = flags.iter().map(|flag| RestrictedProtocol::of_http(flag).expect("a well-formed flag"));
    let config = HttpConfig { restricted: flags.collect(), ..HttpConfig::default() };
    start_with(Budgets::default(), config, Timeline::off()).await
}

#[tokio::test]
async fn only_requests_with_the_header_of_their_group_pass() {
    let server = restricted(&["model-repository,logging:admin-key=secret", "inference:user=me"]).await;
    for (path, header, value) in [
        ("/v2/repository/index", "admin-key", "secret"),
        ("/v2/logging", "Admin-Key", "secret"),
        ("/v2/models/ident/infer", "user", "me"),
        ("/v2/models/ident/generate", "user", "me"),
    ] {
        let without = post(server.address(), path, &[], b"{}").await;
        assert_eq!(without.status, 403, "{path}");
        let expected = format!("This API is restricted, expecting header '{}'", header.to_lowercase());
        assert_eq!(without.error(), expected, "{path}");
        assert_eq!(post(server.address(), path, &[(header, "guess")], b"{}").await.status, 403, "{path}");
        assert_ne!(post(server.address(), path, &[(header, value)], b"{}").await.status, 403, "{path}");
    }
    for open in ["/v2/health/ready", "/v2", "/v2/models/stats", "/v2/trace/setting"] {
        assert_eq!(call(server.address(), "GET", open).await.0, 200, "{open}");
    }
}

#[tokio::test]
async fn a_group_that_is_restricted_twice_keeps_the_port_closed() {
    let fixture = Fixture::start(Budgets::default()).await;
    let flags = ["trace:a=1", "health,trace:b=1"].map(|flag| RestrictedProtocol::of_http(flag).expect("well formed"));
    let config = HttpConfig { restricted: flags.to_vec(), ..HttpConfig::default() };
    let timeline = Arc::new(Timeline::off());
    let error = HttpServer::start(ANY_PORT, fixture.services.clone(), config, timeline).await.expect_err("twice");
    assert_eq!(error.to_string(), "group 'trace' is restricted twice");
}
