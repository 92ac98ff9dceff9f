//! The routes over real connections, with models that need no directory.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use paternoster_observe::{ExecutionTimings, PoolStats, RequestTimings, budget::Budgets, timeline::Picture};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{fixture::Fixture, *};

mod bodies;
mod control;
mod generate;
mod infer;
mod restricted;
mod tls;
mod web;

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A server and its fixture.
struct Started {
    server: HttpServer,
    fixture: Fixture,
}

impl Started {
    fn address(&self) -> SocketAddr {
        address(&self.server)
    }
}

fn address(server: &HttpServer) -> SocketAddr {
    server.endpoint().socket().expect("it listens on a port")
}

async fn start() -> Started {
    start_with(Budgets::default(), HttpConfig::default(), Timeline::off()).await
}

async fn start_with(budgets: Budgets, config: HttpConfig, timeline: Timeline) -> Started {
    let fixture = Fixture::start(budgets).await;
    let server = HttpServer::start(ANY_PORT, fixture.services.clone(), config, Arc::new(timeline)).await;
    Started { server: server.expect("a free port"), fixture }
}

/// Sends one request on its own connection. Returns status, headers and body of the response.
async fn call(address: SocketAddr, method: &str, path: &str) -> (u16, String, String) {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let answer = exchange(address, request.as_bytes()).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
    (status, head.to_owned(), body.to_owned())
}

async fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    stream.write_all(request).await.expect("the server reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("the server answers and closes");
    String::from_utf8(answer).expect("text")
}

async fn json_of(address: SocketAddr, path: &str) -> (u16, Value) {
    let (status, head, body) = call(address, "GET", path).await;
    assert!(head.contains("content-type: application/json"), "{path} answers JSON: {head}");
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}")))
}

#[tokio::test]
async fn a_connection_too_many_is_told_so_and_its_place_is_free_again_later() {
    let places = Budget::of(1);
    let budgets = Budgets { http_connections: Arc::clone(&places), ..Budgets::default() };
    let server = start_with(budgets, HttpConfig::default(), Timeline::off()).await;
    let mut first = TcpStream::connect(server.address()).await.expect("the server listens");
    first.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("the server reads");
    first.read_exact(&mut [0; 15]).await.expect("the server answers");
    // The rejection does not depend on a request: there is no room to read one.
    let refused = exchange(server.address(), b"").await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert_eq!((places.used(), places.refused()), (1, 1));
    drop(first);
    while places.used() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(call(server.address(), "GET", "/v2/health/live").await.0, 200);
}

#[tokio::test]
async fn probes_answer_with_a_status_and_little_else() {
    let server = start().await;
    let cases = [
        ("/v2/health/live", 200, "{\"live\":true}"),
        ("/v2/health/ready", 200, "{\"ready\":true}"),
        ("/v2/models/ident/ready", 200, ""),
        ("/v2/models/ident/versions/1/ready", 200, ""),
        ("/v2/models/ident/versions/9/ready", 400, ""),
        ("/v2/models/nope/ready", 400, ""),
    ];
    for (path, expected, text) in cases {
        let (status, _, body) = call(server.address(), "GET", path).await;
        assert_eq!((status, body.as_str()), (expected, text), "{path}");
    }
    let (status, answer) = json_of(server.address(), "/v2/models/ident/versions/abc/ready").await;
    assert_eq!(status, 400);
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("abc")), "{answer}");
}

#[tokio::test]
async fn a_server_that_is_not_ready_is_alive() {
    let server = start().await;
    server.fixture.services.readiness.begin_drain();
    let (status, _, body) = call(server.address(), "GET", "/v2/health/ready").await;
    assert_eq!((status, body.as_str()), (400, ""));
    assert_eq!(call(server.address(), "GET", "/v2/health/live").await.0, 200);
}

#[tokio::test]
async fn metadata_and_configuration_are_tritons() {
    let server = start().await;
    let (status, answer) = json_of(server.address(), "/v2").await;
    assert_eq!(status, 200);
    assert_eq!(
        answer,
        json!({
            "name": "paternoster",
            "version": env!("CARGO_PKG_VERSION"),
            "extensions": answer["extensions"],
        })
    );

    let metadata = json!({
        "name": "ident",
        "versions": ["1", "3"],
        "platform": "onnxruntime_onnx",
        "inputs": [{ "name": "INPUT0", "datatype": "FP32", "shape": [-1, 16] }],
        "outputs": [{ "name": "OUTPUT0", "datatype": "FP32", "shape": [-1, 16] }],
    });
    for path in ["/v2/models/ident", "/v2/models/ident/versions/3"] {
        assert_eq!(json_of(server.address(), path).await, (200, metadata.clone()), "{path}");
    }
    for path in ["/v2/models/ident/config", "/v2/models/ident/versions/1/config"] {
        let (status, answer) = json_of(server.address(), path).await;
        assert_eq!(status, 200, "{path}");
        assert_eq!((&answer["name"], &answer["max_batch_size"]), (&json!("ident"), &json!(4)), "{path}");
    }
    for path in ["/v2/models/nope", "/v2/models/nope/config", "/v2/models/ident/versions/9"] {
        let (status, answer) = json_of(server.address(), path).await;
        assert_eq!(status, 404, "{path}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains("is not found")), "{path}: {answer}");
    }
}

#[tokio::test]
async fn statistics_are_of_all_versions_of_one_or_of_one_version() {
    let server = start().await;
    let loaded = loaded_versions(&server.fixture.services.repository);
    let of_ident: Vec<_> = loaded.into_iter().filter(|loaded| loaded.name == "ident").collect();
    let stats = Arc::clone(&of_ident[1].stats);
    let compute = ExecutionTimings { compute_infer_ns: 7, ..ExecutionTimings::default() };
    stats.execution(4, &compute);
    stats.success(4, &RequestTimings { total_ns: 9, queue_ns: 0, compute });

    let versions = |answer: &Value| -> Vec<String> {
        let stats = answer["model_stats"].as_array().expect("a list");
        stats.iter().map(|entry| entry["version"].as_str().expect("a string").to_owned()).collect()
    };
    for (path, expected) in [
        ("/v2/models/stats", &["1", "1", "1", "1", "3"][..]),
        ("/v2/models/ident/stats", &["1", "3"]),
        ("/v2/models/ident/versions/3/stats", &["3"]),
    ] {
        let (status, answer) = json_of(server.address(), path).await;
        let mut found = versions(&answer);
        found.sort_unstable();
        assert_eq!((status, found), (200, expected.iter().map(|&v| v.to_owned()).collect()), "{path}");
    }

    let (_, answer) = json_of(server.address(), "/v2/models/ident/versions/3/stats").await;
    let entry = &answer["model_stats"][0];
    assert_eq!(entry["inference_count"], 4);
    assert_eq!(entry["inference_stats"]["success"], json!({ "count": 1, "ns": 9 }));
    assert_eq!(entry["batch_stats"][0]["compute_infer"], json!({ "count": 1, "ns": 7 }));
    assert_eq!((&entry["memory_usage"], &entry["response_stats"]), (&json!([]), &json!({})));

    let (status, answer) = json_of(server.address(), "/v2/models/nope/stats").await;
    assert_eq!((status, &answer["error"]), (400, &json!("requested model 'nope' is not available")));
    let (status, answer) = json_of(server.address(), "/v2/models/ident/versions/9/stats").await;
    let expected = json!("requested model version is not available for model 'ident', got version 9");
    assert_eq!((status, &answer["error"]), (400, &expected));
}

#[tokio::test]
async fn what_no_route_answers_is_a_json_error() {
    let server = start().await;
    let cases = [
        ("GET", "/nothing", 404),
        ("POST", "/", 422),
        ("DELETE", "/", 405),
        ("POST", "/embed_sparse", 404),
        ("GET", "/embed", 405),
        ("GET", "/metrics", 404),
        ("GET", "/v2/models/ident/infer", 405),
        ("POST", "/v2/health/live", 405),
        ("DELETE", "/v2/models/ident/ready", 405),
        ("POST", "/v2/models/ident", 405),
        ("GET", "/v2/models/%FF/config", 400),
    ];
    for (method, path, expected) in cases {
        let (status, _, body) = call(server.address(), method, path).await;
        assert_eq!(status, expected, "{method} {path}");
        let error: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert!(error["error"].is_string(), "{method} {path} answers {body}");
    }
}

#[tokio::test]
async fn a_name_in_the_path_is_percent_decoded() {
    let server = start().await;
    assert_eq!(call(server.address(), "GET", "/v2/models/%69dent/ready").await.0, 200);
}

#[tokio::test]
async fn metrics_are_served_on_their_one_path_with_tritons_content_type() {
    let fixture = Fixture::start(Budgets::default()).await;
    let repository = Arc::clone(&fixture.services.repository);
    let metrics =
        Metrics::new(move || loaded_versions(&repository), Arc::new(PoolStats::default()), Budgets::default())
            .expect("names are unique");
    let server = HttpServer::start_metrics(ANY_PORT, Arc::new(metrics), Budget::of(100)).await.expect("a free port");

    let (status, head, body) = call(address(&server), "GET", "/metrics").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; charset=utf-8"), "{head}");
    assert!(body.contains("nv_inference_count{model=\"ident\",version=\"3\"} 0"), "{body}");
    assert_eq!(call(address(&server), "GET", "/v2/health/live").await.0, 404);
    assert_eq!(call(address(&server), "POST", "/metrics").await.0, 405);
    let of_a_site = b"GET /metrics HTTP/1.1\r\nhost: site.example\r\nconnection: close\r\n\r\n";
    let answer = exchange(address(&server), of_a_site).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[tokio::test]
async fn a_page_of_metrics_that_takes_long_delays_no_request() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = parking_lot::Mutex::new(released);
    let slow = move || {
        released.lock().recv().expect("it is released");
        Vec::new()
    };
    let metrics = Metrics::new(slow, Arc::new(PoolStats::default()), Budgets::default()).expect("names are unique");
    let pages = HttpServer::start_metrics(ANY_PORT, Arc::new(metrics), Budget::of(100)).await.expect("a free port");
    let server = start().await;
    let page = tokio::spawn({
        let address = address(&pages);
        async move { call(address, "GET", "/metrics").await.0 }
    });
    // The test's only I/O thread would wait for the page.
    for _ in 0..50 {
        assert_eq!(call(server.address(), "GET", "/v2/health/live").await.0, 200);
    }
    assert!(!page.is_finished());
    release.send(()).expect("it waits");
    assert_eq!(page.await.expect("no panic"), 200);
}

#[tokio::test]
async fn a_timeline_that_is_recorded_can_be_fetched_while_it_goes_on() {
    let timeline = Timeline::on(10);
    timeline.arrived(1_000, 1, 0, 1);
    timeline.arrived(3_000, 2, 0, 1);
    let expected = timeline.recording().expect("it is on").picture();
    let server = start_with(Budgets::default(), HttpConfig::default(), timeline).await;
    // More often than can be answered concurrently.
    for _ in 0..10 {
        let (status, head, body) = call(server.address(), "GET", "/v2/timeline").await;
        assert_eq!(status, 200);
        assert!(head.contains("content-type: application/json"), "{head}");
        assert_eq!(Picture::read_chrome(body.as_bytes()).expect("our own"), expected);
    }
}

#[tokio::test]
async fn a_timeline_that_is_not_recorded_is_asked_for_by_a_flag() {
    let server = start().await;
    let (status, answer) = json_of(server.address(), "/v2/timeline").await;
    let expected = json!("no timeline is recorded: start the server with --timeline-file");
    assert_eq!((status, &answer["error"]), (404, &expected));
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let server = start().await;
    let mut stream = TcpStream::connect(server.address()).await.expect("the server listens");
    stream.write_all(b"GET /v2 HTTP/1.1\r\n").await.expect("the server reads");
    let field = format!("x: {}\r\n", "y".repeat(1000));
    // The server may close the connection while the test is still writing; then the write fails.
    for _ in 0..100 {
        if stream.write_all(field.as_bytes()).await.is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer).await;
    let refused = answer.starts_with(b"HTTP/1.1 431");
    assert!(refused || read.is_err(), "answered {:?}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_head_may_have_64_kib_in_100_fields() {
    let server = start().await;
    let ask = async |head: &str| {
        let mut stream = TcpStream::connect(server.address()).await.expect("the server listens");
        let mut answer = Vec::new();
        let sent = stream.write_all(head.as_bytes()).await;
        // A server that refuses need not read everything, which may reset the connection.
        let read = stream.read_to_end(&mut answer).await;
        match (sent.and(read.map(drop)), answer.get(9..12)) {
            (_, Some(status)) => String::from_utf8_lossy(status).into_owned(),
            (Err(_), None) => "431".to_owned(),
            (Ok(()), None) => panic!("no answer"),
        }
    };
    let of_bytes = |bytes: usize| {
        let head = "GET /v2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: \r\n\r\n";
        head.replace("x: ", &format!("x: {}", "y".repeat(bytes - head.len())))
    };
    assert_eq!(ask(&of_bytes(64 << 10)).await, "200");
    assert_eq!(ask(&of_bytes((64 << 10) + 1)).await, "431");
    let of_fields = |fields: usize| {
        let more: String = (2..fields).map(|field| format!("x-{field}: y\r\n")).collect();
        format!("GET /v2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n")
    };
    assert_eq!(ask(&of_fields(100)).await, "200");
    assert_eq!(ask(&of_fields(101)).await, "431");
}

#[tokio::test]
async fn a_request_without_exactly_one_host_is_refused() {
    let server = start().await;
    for hosts in ["", "host: localhost\r\nhost: localhost\r\n"] {
        let request = format!("GET /v2 HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        let answer = send(server.address(), request.as_bytes()).await;
        assert_eq!(answer.status, 400, "{hosts}");
        assert!(answer.error().contains("Host header, expected one"), "{}", answer.error());
    }
}

#[tokio::test]
async fn shutdown_closes_the_port_and_idle_connections() {
    let server = start().await;
    let address = server.address();
    let mut idle = TcpStream::connect(address).await.expect("the server listens");
    idle.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("the server reads");
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200");

    assert!(server.server.shutdown(Duration::from_secs(30)).await, "an idle connection does not hold the server");
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.expect("the server closed the connection");
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn a_unix_socket_serves_as_a_port_does() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("http.sock");
    let fixture = Fixture::start(Budgets::default()).await;
    let timeline = Arc::new(Timeline::off());
    let endpoint = Endpoint::Unix(path.clone());
    let server = HttpServer::start(endpoint.clone(), fixture.services.clone(), HttpConfig::default(), timeline).await;
    let server = server.expect("a free path");
    assert_eq!(server.endpoint(), &endpoint);
    let mut stream = tokio::net::UnixStream::connect(&path).await.expect("the server listens");
    // A browser does not reach it, so any host may be named.
    let request = b"GET /v2/health/live HTTP/1.1\r\nhost: any.name\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the server answers");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(server.shutdown(Duration::from_secs(30)).await);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let server = start().await;
    let metrics = Metrics::new(Vec::new, Arc::new(PoolStats::default()), Budgets::default()).expect("names are unique");
    let error = HttpServer::start_metrics(server.address(), Arc::new(metrics), Budget::of(100))
        .await
        .expect_err("the port is taken");
    let expected = format!("cannot listen on {}: ", server.address());
    assert!(error.to_string().starts_with(&expected), "{error}");
}

/// A complete answer.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("{} is no error", self.json())).to_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Posts a body on its own connection.
async fn post(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n{lines}\r\n",
        body.len()
    );
    send(address, &[head.as_bytes(), body].concat()).await
}

/// Sends bytes and returns the response, after which the server closes the connection.
async fn send(address: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    // A server that rejects early need not read everything.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("the server answers and closes");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer has a head");
    let head = String::from_utf8(answer[..end].to_vec()).expect("text");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
    Answer { status, head, body: answer[end + 4..].to_vec() }
}
