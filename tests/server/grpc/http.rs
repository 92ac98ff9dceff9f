//! The HTTP protocol next to gRPC: the same models, budgets and counters.

use std::{net::Shutdown, time::Duration};

use paternoster_executor::{BacklogLimits, PoolOptions};
use paternoster_observe::StatsSnapshot;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::grpc::support::{Server, eventually, models::Models, request, row, soon};

/// Returns the bytes of a request of one row.
fn posted(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn infer(model: &str) -> String {
    let input = r#"{"name":"INPUT0","shape":[1,2],"datatype":"FP32","data":[1,2.5]}"#;
    posted(&format!("/v2/models/{model}/infer"), &format!("{{\"inputs\":[{input}]}}"))
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.http_address()).await.expect("the server listens")
}

async fn send(server: &Server, request: &str) -> TcpStream {
    let mut stream = connect(server).await;
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    stream
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.expect("text");
    answer
}

fn counts(server: &Server, model: &str) -> StatsSnapshot {
    server.repository.resolve(model, "").expect("loaded").servable().stats().snapshot()
}

fn holds_nothing(server: &Server) -> bool {
    let budgets = &server.budgets;
    budgets.requests.used() == 0 && budgets.bytes.used() == 0 && server.pool.in_flight() == 0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_gives_the_same_over_both_and_counts_both() {
    let server = Server::start(|_| {}).await;
    let over_http = answer(&mut send(&server, &infer("identity")).await).await;
    assert!(over_http.ends_with("\"shape\":[1,2],\"data\":[1.0,2.5]}]}"), "{over_http}");
    let mut client = server.client().await;
    let over_grpc = soon(client.model_infer(request("identity", "", &[1.0, 2.5]))).await.expect("OK");
    assert_eq!(row(over_grpc.get_ref()), [1.0, 2.5]);
    assert_eq!(counts(&server, "identity").inference_stats.success.count, 2);
    eventually("nothing is held", || holds_nothing(&server)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_cancels_the_request_that_runs() {
    let mut server = Server::start(|_| {}).await;
    for leaves_half in [false, true] {
        let failed = counts(&server, "gated").inference_stats.fail.count;
        let stream = send(&server, &infer("gated")).await;
        server.gate.await_run().await;
        let stream = stream.into_std().expect("a socket");
        stream.shutdown(if leaves_half { Shutdown::Write } else { Shutdown::Both }).expect("it is open");
        let is_counted = || counts(&server, "gated").inference_stats.fail.count == failed + 1;
        eventually("the request is cancelled", is_counted).await;
        eventually("its place is free", || server.budgets.requests.used() == 0).await;
        server.gate.let_pass(1);
        // Otherwise the next request's run, on the other lane, could pass the gate in place of this one.
        eventually("the run ends", || server.pool.stats().snapshot().tasks_running == 0).await;
    }
    eventually("nothing is held", || holds_nothing(&server)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_takes_its_request_out_of_the_queue() {
    let server = Server::start_with(Models::all().with_patient(), |_| {}).await;
    let stream = send(&server, &infer("patient")).await;
    eventually("the request waits", || server.pool.in_flight() == 1).await;
    drop(stream);
    eventually("it leaves", || holds_nothing(&server)).await;
    let counts = counts(&server, "patient");
    assert_eq!((counts.inference_stats.fail.count, counts.execution_count), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_a_client_does_not_take_are_bounded_and_its_leaving_ends_them() {
    let limits = BacklogLimits { stream_bytes: 16 << 10, ..BacklogLimits::default() };
    let options = PoolOptions { backlog: limits, ..PoolOptions::default() };
    let server = Server::start_on(&options, Models::all(), |_| {}).await;
    let row = vec!["65536"; 64].join(",");
    let body = format!("{{\"INPUT0\":[{row}]}}");
    let mut stream = send(&server, &posted("/v2/models/repeat/generate_stream", &body)).await;
    let mut first = [0; 12];
    soon(stream.read_exact(&mut first)).await.expect("an answer begins");
    assert_eq!(&first, b"HTTP/1.1 200");
    let pauses = || {
        let read = server.pool.stats().snapshot();
        read.responses_paused > 0
            && read.tasks_running == 0
            && read.waiting_response_bytes >= limits.stream_bytes as u64
    };
    eventually("the model pauses", pauses).await;
    assert_eq!(server.pool.in_flight(), 1, "it has not ended");
    // In addition to what the buffers of the system and the connection hold.
    let waiting = server.pool.stats().snapshot().waiting_response_bytes;
    assert!(waiting < 1 << 20, "{waiting} bytes wait");
    drop(stream);
    eventually("the request ends with its client", || holds_nothing(&server)).await;
    eventually("no reply waits", || server.pool.stats().snapshot().waiting_response_bytes == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_lets_a_request_in_flight_end() {
    let mut server = Server::start(|_| {}).await;
    let mut stream = send(&server, &infer("gated")).await;
    server.gate.await_run().await;
    let ended = tokio::spawn(server.http.shutdown(Duration::from_secs(30)));
    server.gate.let_pass(1);
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200"));
    assert!(soon(ended).await.expect("no panic"), "nothing was cut off");
}
