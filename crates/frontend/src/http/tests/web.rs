//! The web page, and access to it.

use super::*;

async fn with(config: HttpConfig) -> Started {
    start_with(Budgets::default(), config, Timeline::off()).await
}

#[tokio::test]
async fn the_page_comes_with_a_policy_that_lets_it_do_little() {
    let server = start().await;
    let (status, head, body) = call(server.address(), "GET", "/").await;
    assert_eq!(status, 200);
    assert!(body.starts_with("<!DOCTYPE html>"), "{body}");
    for header in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; style-src 'sha256-",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    let (status, overview) = json_of(server.address(), "/v2/overview").await;
    assert_eq!((status, &overview["server"]["name"]), (200, &json!("paternoster")));
    let (_, head, _) = call(server.address(), "GET", "/v2/overview").await;
    assert!(!head.contains("access-control"), "no other site may read it: {head}");
}

#[tokio::test]
async fn no_answer_is_for_pages_of_other_sites() {
    let server = start().await;
    let ask = async |method: &str, path: &str| {
        let origin = "origin: http://elsewhere\r\naccess-control-request-method: POST";
        let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{origin}\r\nconnection: close\r\n\r\n");
        exchange(server.address(), request.as_bytes()).await.to_lowercase()
    };
    for (path, ..) in routes::table().into_iter().chain(routes::web()) {
        let path = path.replace("{model}", "ident").replace("{version}", "1");
        for method in ["GET", "POST", "OPTIONS"] {
            let answer = ask(method, &path).await;
            assert!(!answer.contains("access-control-"), "{method} {path}: {answer}");
            let is_preflight = method == "OPTIONS";
            assert!(!is_preflight || answer.starts_with("http/1.1 405 "), "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_page_whose_own_name_leads_to_this_machine_reads_nothing() {
    let server = start().await;
    for (path, ..) in routes::table().into_iter().chain(routes::web()) {
        let path = path.replace("{model}", "ident").replace("{version}", "1");
        let ask = async |host: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
            exchange(server.address(), request.as_bytes()).await
        };
        let answer = ask(&format!("site.example:{}", server.address().port())).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{path}: {answer}");
        assert!(answer.contains("the host 'site.example' is not this machine"), "{path}: {answer}");
        let answer = ask(&server.address().to_string()).await;
        assert!(!answer.starts_with("HTTP/1.1 403 "), "{path}: {answer}");
    }
}

#[tokio::test]
async fn without_the_page_neither_it_nor_its_figures_are_there() {
    let server = with(HttpConfig { allow_web: false, ..HttpConfig::default() }).await;
    // Texts may be sent to the page's path.
    assert_eq!(call(server.address(), "GET", "/").await.0, 405);
    assert_eq!(call(server.address(), "GET", "/v2/overview").await.0, 404);
    assert_eq!(call(server.address(), "GET", "/v2/models/stats").await.0, 200);
}

#[tokio::test]
async fn the_page_is_restricted_with_the_statistics() {
    let restriction = RestrictedProtocol::of_http("statistics:key=secret").expect("a well-formed flag");
    let server = with(HttpConfig { restricted: vec![restriction], ..HttpConfig::default() }).await;
    for path in ["/", "/v2/overview", "/v2/models/stats"] {
        assert_eq!(call(server.address(), "GET", path).await.0, 403, "{path}");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nkey: secret\r\nconnection: close\r\n\r\n");
        let answer = exchange(server.address(), request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    }
}
