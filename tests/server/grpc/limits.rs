//! Restricted groups of methods, and the number, age and idleness of connections.

use std::time::Duration;

use paternoster_frontend::RestrictedProtocol;
use paternoster_observe::budget::{Budget, Budgets};
use paternoster_wire::pb::{ModelMetadataRequest, ServerLiveRequest};
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{ServerReflectionRequest, server_reflection_client::ServerReflectionClient};

use crate::grpc::support::{
    Server, eventually,
    raw::{RawBody, RawConnection, grpc_status, post},
    request, soon,
};

/// Within this time a client on a busy machine sends its call, or answers a ping.
const SENT: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_restricted_group_asks_for_its_header() {
    let server = Server::start(|config| {
        config.restricted = vec![RestrictedProtocol::of_grpc("inference,health:key=secret").expect("a restriction")];
    })
    .await;
    let mut client = server.client().await;
    let status = soon(client.model_infer(request("identity", "", &[1.0]))).await.expect_err("no header");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("triton-grpc-protocol-key"), "{}", status.message());
    let with = |value: &str| {
        let mut call = Request::new(request("identity", "", &[1.0]));
        call.metadata_mut().insert("triton-grpc-protocol-key", value.parse().expect("ASCII"));
        call
    };
    soon(client.model_infer(with("guess"))).await.expect_err("a wrong value");
    soon(client.model_infer(with("secret"))).await.expect("the right value");
    soon(client.server_live(ServerLiveRequest {})).await.expect_err("it is of the group health");
    let mut health = HealthClient::new(server.channel().await);
    soon(health.check(HealthCheckRequest::default())).await.expect_err("as is the health service");
    let metadata = ModelMetadataRequest { name: "identity".to_owned(), version: String::new() };
    soon(client.model_metadata(metadata)).await.expect("other groups are open");
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_is_restricted_with_the_metadata() {
    let server = Server::start(|config| {
        config.restricted = vec![RestrictedProtocol::of_grpc("metadata:key=secret").expect("a restriction")];
    })
    .await;
    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let ask = || tokio_stream::once(ServerReflectionRequest::default());
    let status = soon(reflection.server_reflection_info(ask())).await.expect_err("no header");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("triton-grpc-protocol-key"), "{}", status.message());
    let mut call = Request::new(ask());
    call.metadata_mut().insert("triton-grpc-protocol-key", "secret".parse().expect("ASCII"));
    soon(reflection.server_reflection_info(call)).await.expect("the right value");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_connection_is_told_to_go() {
    let server = Server::start(|config| config.connection.max_age = Some(Duration::from_millis(50))).await;
    let connection = RawConnection::open(server.address()).await;
    soon(connection.task).await.expect("no panic").expect("the connection ends in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_on_an_old_connection_may_end() {
    let mut server = Server::start(|config| config.connection.max_age = Some(SENT)).await;
    let mut connection = RawConnection::open(server.address()).await;
    let call = post("/inference.GRPCInferenceService/ModelInfer", RawBody::message(&request("gated", "", &[1.0])));
    let answer = connection.sender.send_request(call);
    server.gate.await_run().await;
    let answer = tokio::spawn(answer);
    // New calls fail once the client has received GOAWAY.
    while soon(connection.call(post("/grpc.health.v1.Health/Check", RawBody::whole(vec![0; 5])))).await.is_ok() {}
    server.gate.let_pass(1);
    let response = soon(answer).await.expect("no panic").expect("a response");
    assert_eq!(grpc_status(&response), None, "no error in the headers: a message follows");
    drop(response);
    drop(connection.sender);
    soon(connection.task).await.expect("no panic").expect("the connection ends in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_its_grace_an_old_connection_is_cut() {
    let mut server = Server::start(|config| {
        config.connection.max_age = Some(SENT);
        config.connection.max_age_grace = Some(Duration::from_millis(50));
    })
    .await;
    let mut connection = RawConnection::open(server.address()).await;
    let call = post("/inference.GRPCInferenceService/ModelInfer", RawBody::message(&request("gated", "", &[1.0])));
    soon(connection.call(call)).await.expect_err("the gate stays shut");
    server.gate.await_run().await;
    server.gate.let_pass(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_answers_no_ping_is_let_go() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let server = Server::start(|config| {
        config.connection.keepalive_time = Some(Duration::from_millis(20));
        config.connection.keepalive_timeout = SENT;
    })
    .await;
    let mut stream = tokio::net::TcpStream::connect(server.address()).await.expect("a connection");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("preface and settings");
    let mut received = Vec::new();
    // The server closes the connection, with a FIN or a reset.
    let _ = soon(stream.read_to_end(&mut received)).await;
    let mut patient = server.client().await;
    soon(patient.server_live(ServerLiveRequest {})).await.expect("clients that answer stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_too_many_is_told_to_go_away() {
    use tokio::io::AsyncReadExt;

    let budgets = Budgets { grpc_connections: Budget::of(1), ..Budgets::default() };
    let server = Server::start_within(budgets, |_| {}).await;
    let places = &server.budgets.grpc_connections;
    let mut first = server.client().await;
    soon(first.server_live(ServerLiveRequest {})).await.expect("there is a place for one");
    let mut second = tokio::net::TcpStream::connect(server.address()).await.expect("a connection");
    let mut words = Vec::new();
    soon(second.read_to_end(&mut words)).await.expect("it is closed in order");
    assert!(words.ends_with(b"too many connections"), "{words:?}");
    assert_eq!((places.used(), places.refused()), (1, 1));

    // A client of HTTP/2 handles it.
    let connection = RawConnection::open(server.address()).await;
    soon(connection.task).await.expect("no panic").expect_err("it receives GOAWAY");
    soon(first.server_live(ServerLiveRequest {})).await.expect("the first stays");
    drop(first);
    eventually("its place is free", || places.used() == 0).await;
    soon(server.client().await.server_live(ServerLiveRequest {})).await.expect("there is a place again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_calls_is_told_to_go() {
    let server = Server::start(|config| config.connection.max_idle = Some(Duration::from_millis(20))).await;
    let connection = RawConnection::open(server.address()).await;
    soon(connection.task).await.expect("no panic").expect("the connection ends in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_a_call_stays_however_long_it_takes() {
    let mut server = Server::start(|config| config.connection.max_idle = Some(SENT)).await;
    let mut busy = RawConnection::open(server.address()).await;
    let call = post("/inference.GRPCInferenceService/ModelInfer", RawBody::message(&request("gated", "", &[1.0])));
    let call = tokio::spawn(busy.sender.send_request(call));
    server.gate.await_run().await;
    // Waits until a connection that was opened later and has no call has been closed.
    let idle = RawConnection::open(server.address()).await;
    soon(idle.task).await.expect("no panic").expect("the connection ends in order");
    assert!(!call.is_finished() && !busy.task.is_finished());
    server.gate.let_pass(1);
    let response = soon(call).await.expect("no panic").expect("a response");
    assert_eq!(grpc_status(&response), None, "no error in the headers: a message follows");
    drop(response);
    soon(busy.task).await.expect("no panic").expect("then it ends in order, too");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_client_that_does_not_answer_is_cut_off() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let server = Server::start(|config| {
        config.connection.max_idle = Some(Duration::from_millis(20));
        config.connection.keepalive_timeout = Duration::from_millis(20);
    })
    .await;
    let mut stream = tokio::net::TcpStream::connect(server.address()).await.expect("a connection");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("preface and settings");
    // This client never answers the ping that follows GOAWAY. The server closes the connection, with a FIN or a reset.
    let _ = soon(stream.read_to_end(&mut Vec::new())).await;
    eventually("it holds no place", || server.budgets.grpc_connections.used() == 0).await;
}
