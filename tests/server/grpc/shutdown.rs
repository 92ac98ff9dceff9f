//! Shutdown of the server.

use std::time::Duration;

use paternoster_wire::pb::{ModelInferRequest, ServerLiveRequest, ServerReadyRequest};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tonic::Code;

use crate::grpc::support::{Server, eventually, request, soon};

const A_MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn readiness_goes_off_first_and_the_server_goes_on_serving() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let Server { grpc, readiness, .. } = server;
    let ending = tokio::spawn(grpc.shutdown(A_MINUTE, A_MINUTE));
    eventually("readiness is off", || !readiness.ready()).await;
    assert!(!soon(client.server_ready(ServerReadyRequest {})).await.expect("OK").get_ref().ready);
    soon(client.model_infer(request("identity", "", &[1.0]))).await.expect("still served");
    ending.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_finishes_and_new_connections_are_refused() {
    let mut server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let address = server.address();
    let call = tokio::spawn(async move { client.model_infer(request("gated", "", &[1.0])).await });
    server.gate.await_run().await;
    let Server { grpc, gate, .. } = server;
    let ending = tokio::spawn(grpc.shutdown(Duration::ZERO, A_MINUTE));
    let refused = async { while tokio::net::TcpStream::connect(address).await.is_ok() {} };
    soon(refused).await;
    gate.let_pass(1);
    soon(call).await.expect("no panic").expect("the request in flight is answered");
    assert!(soon(ending).await.expect("no panic"), "everything finished in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_stream_ends_and_a_busy_one_answers_first() {
    let mut server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let mut open = async || {
        let (requests, receiver) = mpsc::unbounded_channel::<ModelInferRequest>();
        let call = client.model_stream_infer(UnboundedReceiverStream::new(receiver));
        (requests, soon(call).await.expect("an open stream").into_inner())
    };
    let (_idle_requests, mut idle) = open().await;
    let (busy_requests, mut busy) = open().await;
    busy_requests.send(request("gated", "last", &[1.0])).expect("open");
    server.gate.await_run().await;
    let Server { grpc, gate, .. } = server;
    let ending = tokio::spawn(grpc.shutdown(Duration::ZERO, A_MINUTE));
    let status = soon(idle.next()).await.expect("a status").expect_err("the idle stream ends");
    assert_eq!(status.code(), Code::Unavailable);
    gate.let_pass(1);
    let answer = soon(busy.next()).await.expect("an answer").expect("no status");
    assert_eq!(answer.infer_response.expect("a response").id, "last");
    let status = soon(busy.next()).await.expect("a status").expect_err("then the busy one ends");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(soon(ending).await.expect("no panic"), "everything finished in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_outlasts_the_exit_timeout_is_cut() {
    let mut server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let call = tokio::spawn(async move { client.model_infer(request("gated", "", &[1.0])).await });
    server.gate.await_run().await;
    let Server { grpc, gate, repository, .. } = server;
    let finished = soon(grpc.shutdown(Duration::ZERO, Duration::from_millis(20))).await;
    assert!(!finished, "the gate stays shut");
    soon(call).await.expect("no panic").expect_err("cut off");
    let version = repository.resolve("gated", "").expect("loaded");
    eventually("the request is cancelled", || version.servable().stats().snapshot().inference_stats.fail.count == 1)
        .await;
    gate.let_pass(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_say_nothing_do_not_hold_the_server_up() {
    let server = Server::start(|config| config.connection.handshake_timeout = A_MINUTE).await;
    let _silent = tokio::net::TcpStream::connect(server.address()).await.expect("a connection");
    // Connections are accepted in order, so the silent one has been accepted by the time this one is.
    soon(server.client().await.server_live(ServerLiveRequest {})).await.expect("OK");
    assert!(soon(server.grpc.shutdown(Duration::ZERO, A_MINUTE)).await, "everything finished in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_server_is_gone() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    soon(client.server_live(ServerLiveRequest {})).await.expect("OK");
    let address = server.address();
    drop(server.grpc);
    // Separate tasks close the port and the connections, in any order.
    soon(async { while tokio::net::TcpStream::connect(address).await.is_ok() {} }).await;
    soon(async { while client.server_live(ServerLiveRequest {}).await.is_ok() {} }).await;
}
