//! Peers that are malicious or broken.

use std::{fs, time::Duration};

use paternoster_wire::pb::ServerLiveRequest;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::grpc::support::{
    Server, eventually,
    raw::{RawBody, RawConnection, framed, grpc_status, post},
    request, soon,
};

const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const MODEL_STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Returns the size of the process's address space in bytes.
fn address_space() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

async fn serves(server: &Server) {
    let mut client = server.client().await;
    soon(client.model_infer(request("identity", "", &[1.0]))).await.expect("others are served");
}

#[tokio::test(flavor = "multi_thread")]
async fn declared_lengths_cost_nothing() {
    let server = Server::start(|_| {}).await;
    serves(&server).await;
    let before = address_space();
    let prefix = [&[0], &i32::MAX.to_be_bytes()[..], b"x"].concat();
    let mut peers = Vec::new();
    for number in 0..64 {
        let mut peer = RawConnection::open(server.address()).await;
        let path = if number % 2 == 0 { MODEL_INFER } else { MODEL_STREAM_INFER };
        let call = peer.sender.send_request(post(path, RawBody::silent_after(prefix.clone())));
        peers.push((tokio::spawn(call), peer));
    }
    serves(&server).await;
    for (_, peer) in &mut peers {
        // The server has read the half message by the time it answers the request that follows it.
        soon(peer.call(post("/", RawBody::whole(vec![0; 5])))).await.expect("a response");
    }
    let grown = address_space().saturating_sub(before);
    assert!(grown < 4 << 30, "64 peers that declare 2 GiB each made the server reserve {} MiB", grown >> 20);
    serves(&server).await;
    drop(peers);
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_say_nothing_or_something_else_are_let_go() {
    let server = Server::start(|config| config.connection.handshake_timeout = Duration::from_millis(20)).await;
    for opening in [&b""[..], b"PRI * HT", b"GET / HTTP/1.1\r\nhost: server\r\n\r\n"] {
        let mut stream = TcpStream::connect(server.address()).await.expect("a connection");
        stream.write_all(opening).await.expect("sent");
        let mut answer = Vec::new();
        // The server closes the connection, with a FIN or a reset.
        let _ = soon(stream.read_to_end(&mut answer)).await;
        assert!(answer.is_empty(), "nothing is said to a peer that does not speak HTTP/2");
    }
    serves(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_calls_hold_nobody_up() {
    let server = Server::start(|_| {}).await;
    let mut peer = RawConnection::open(server.address()).await;
    let calls: Vec<_> = (0..500)
        .map(|_| tokio::spawn(peer.sender.send_request(post(MODEL_INFER, RawBody::silent_after(vec![0])))))
        .collect();
    serves(&server).await;
    drop(peer);
    for call in calls {
        call.abort();
    }
    serves(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_cancellations_leaves_nothing_behind() {
    let server = Server::start(|_| {}).await;
    for _ in 0..20 {
        let mut peer = RawConnection::open(server.address()).await;
        for _ in 0..200 {
            let call = post(MODEL_INFER, RawBody::message(&request("identity", "", &[1.0])));
            if peer.sender.ready().await.is_err() {
                break;
            }
            let call = tokio::spawn(peer.sender.send_request(call));
            tokio::task::yield_now().await;
            call.abort();
        }
    }
    eventually("no request is left", || server.pool.in_flight() == 0).await;
    serves(&server).await;
}

/// Returns an HTTP/2 frame.
fn h2_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the frames of one call: headers and a whole message.
fn h2_call(stream: u32, message: &[u8]) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", MODEL_INFER),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        // A literal field that is not indexed, with a name of its own.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("a short text"));
            block.extend(text.as_bytes());
        }
    }
    [h2_frame(1, 4, stream, &block), h2_frame(0, 1, stream, &framed(message))].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_cancelled_as_they_are_sent_cost_others_on_the_connection_nothing() {
    let server = Server::start(|_| {}).await;
    let mut stream = TcpStream::connect(server.address()).await.expect("a connection");
    let message = |model: &str| prost::Message::encode_to_vec(&request(model, "", &[1.0]));
    let opening = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), h2_frame(4, 0, 0, &[])].concat();
    let mut sent = [opening, h2_call(1, &message("gated"))].concat();
    stream.write_all(&sent).await.expect("sent");
    eventually("the other request runs", || server.pool.in_flight() == 1).await;
    sent.clear();
    for number in 1..=500 {
        sent.extend(h2_call(2 * number + 1, &message("identity")));
        sent.extend(h2_frame(3, 0, 2 * number + 1, &8_u32.to_be_bytes()));
    }
    stream.write_all(&sent).await.expect("sent");
    eventually("all others are gone", || server.pool.in_flight() <= 1).await;
    server.gate.let_pass(1);
    loop {
        let mut head = [0; 9];
        soon(stream.read_exact(&mut head)).await.expect("the connection is open");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags, of) = (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        let mut payload = vec![0; length];
        soon(stream.read_exact(&mut payload)).await.expect("the connection is open");
        assert_ne!(kind, 7, "GOAWAY: {}", String::from_utf8_lossy(&payload));
        if (kind, of) == (0, 1) {
            assert!(!payload.is_empty(), "the answer");
        }
        if (kind, of, flags & 1) == (1, 1, 1) {
            break;
        }
    }
    serves(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_after_the_preface_ends_the_connection_alone() {
    let server = Server::start(|_| {}).await;
    for seed in 0..32_u8 {
        let mut stream = TcpStream::connect(server.address()).await.expect("a connection");
        let garbage: Vec<u8> =
            (0..2000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect();
        let opening = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &garbage[..]].concat();
        // The server may close while this is still being written.
        let _ = stream.write_all(&opening).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = soon(stream.read_to_end(&mut answer)).await;
    }
    serves(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_headers_are_refused() {
    let server = Server::start(|_| {}).await;
    let mut peer = RawConnection::open(server.address()).await;
    let mut call = post(MODEL_INFER, RawBody::whole(vec![0; 5]));
    call.headers_mut().insert("x-long", "a".repeat(64 << 10).parse().expect("ASCII"));
    if let Ok(response) = soon(peer.call(call)).await {
        assert_eq!(response.status(), http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    let mut client = server.client().await;
    soon(client.server_live(ServerLiveRequest {})).await.expect("others are served");
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_entries_are_counted_before_anything_is_built() {
    let server = Server::start(|_| {}).await;
    let mut peer = RawConnection::open(server.address()).await;
    // Two bytes for each entry, which would become hundreds in the parsed message.
    for (field, tag) in [("parameters", 0x22), ("inputs", 0x2a), ("outputs", 0x32), ("raw_input_contents", 0x3a)] {
        let message = [tag, 0].repeat(1 << 20);
        let response = soon(peer.call(post(MODEL_INFER, RawBody::whole(framed(&message))))).await.expect("a response");
        let text = response.headers().get("grpc-message").expect("a reason").to_str().expect("ASCII");
        assert_eq!(grpc_status(&response), Some("3"), "{field}: {text}");
        assert!(text.contains(field) && text.contains("4096"), "the field and its limit are named: {text}");
    }
    serves(&server).await;
}
