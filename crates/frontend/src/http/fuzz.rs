//! The fuzz target for HTTP: for any input, the server sends complete responses and none that reports an internal
//! error.

use std::sync::{Arc, LazyLock};

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header::CONTENT_TYPE};
use paternoster_observe::{budget::Budgets, timeline::Timeline};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::Runtime,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{HttpConfig, fixture::Fixture, listener, routes};

/// Capacity of the connection each way, enough for all responses. If a peer does not read, hyper sends its response to
/// a malformed request before the rest of the previous response, which only harms that peer.
const PIPE_BYTES: usize = 1 << 20;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime"));

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| RUNTIME.block_on(Fixture::start(Budgets::default())));

static ROUTES: LazyLock<Router> = LazyLock::new(|| {
    let services = Arc::new(FIXTURE.services.clone());
    let _within = RUNTIME.enter();
    routes::api(services, HttpConfig::default(), Arc::new(Timeline::off())).expect("sound descriptors")
});

/// The fuzz target: the bytes as sent by a peer over a connection; and the first line as method and target of a
/// request, with the rest as its body.
pub fn http(bytes: &[u8]) {
    LazyLock::force(&ROUTES);
    RUNTIME.block_on(async {
        check_answers(&exchange(bytes).await);
        if let Some(request) = request(bytes) {
            let answer = ROUTES.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
            let (head, body) = answer.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.expect("the body is in memory");
            check_answer(head.status, &head.headers, &body);
        }
    });
}

fn request(bytes: &[u8]) -> Option<Request<axum::body::Body>> {
    let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
    let mut words = lines.next()?.splitn(2, |byte| *byte == b' ');
    let builder = Request::builder().method(words.next()?).uri(words.next()?);
    builder.body(Bytes::copy_from_slice(lines.next().unwrap_or_default()).into()).ok()
}

/// Returns the server's responses on a connection that receives `sent` and then ends.
async fn exchange(sent: &[u8]) -> Vec<u8> {
    let (client, server) = tokio::io::duplex(PIPE_BYTES);
    let (mut from_server, mut to_server) = tokio::io::split(client);
    let mut answers = Vec::new();
    let send = async {
        // The server may close before it has read everything.
        let _ = to_server.write_all(sent).await;
        let _ = to_server.shutdown().await;
    };
    let serve = listener::serve(server, ROUTES.clone(), listener::Peer::default(), CancellationToken::new());
    let (received, (), ()) = tokio::join!(from_server.read_to_end(&mut answers), send, serve);
    received.expect("a pipe does not fail");
    answers
}

/// Checks that the bytes are complete responses.
fn check_answers(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer has a head");
        let head = str::from_utf8(&bytes[..end]).expect("the server writes text");
        bytes = &bytes[end + 4..];
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        assert!(matches!(words.next(), Some("HTTP/1.0" | "HTTP/1.1")), "{head}");
        let status = StatusCode::from_bytes(words.next().unwrap_or_default().as_bytes()).expect("a status");
        let mut headers = HeaderMap::new();
        for line in lines {
            let (name, value) = line.split_once(": ").expect("a header field");
            let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, value.parse().expect("a value"));
        }
        let length = headers
            .get("content-length")
            .map_or(0, |value| value.to_str().ok().and_then(|value| value.parse().ok()).expect("a length"));
        // Responses to HEAD have a length but no body.
        if bytes.is_empty() || bytes.starts_with(b"HTTP/1.") {
            continue;
        }
        let body;
        (body, bytes) = bytes.split_at_checked(length).expect("as many bytes as announced");
        check_answer(status, &headers, body);
    }
}

fn check_answer(status: StatusCode, headers: &HeaderMap, body: &[u8]) {
    assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR);
    if headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json") && !body.is_empty() {
        let value: serde_json::Value = serde_json::from_slice(body).expect("an answer that says JSON is JSON");
        let is_error = !status.is_success();
        assert_eq!(value.get("error").is_some_and(serde_json::Value::is_string), is_error, "{status}: {value}");
    }
}
