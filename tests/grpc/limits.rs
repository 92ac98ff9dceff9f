//! Restricted groups of methods, and the age of connections.

use std::time::Duration;

use paternoster::wire::pb::{ModelMetadataRequest, ServerLiveRequest};
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::support::{
    Server,
    raw::{RawBody, RawConnection, grpc_status, post},
    request, soon,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_restricted_group_asks_for_its_header() {
    let server = Server::start(|config| {
        config.restricted = vec!["inference,health:key=secret".parse().expect("a restriction")];
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
async fn an_old_connection_is_told_to_go() {
    let server = Server::start(|config| config.connection.max_age = Some(Duration::from_millis(50))).await;
    let connection = RawConnection::open(server.address()).await;
    soon(connection.task).await.expect("no panic").expect("the connection ends in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_on_an_old_connection_may_end() {
    let mut server = Server::start(|config| config.connection.max_age = Some(Duration::from_millis(50))).await;
    let mut connection = RawConnection::open(server.address()).await;
    let call = post("/inference.GRPCInferenceService/ModelInfer", RawBody::message(&request("gated", "", &[1.0])));
    let answer = connection.sender.send_request(call);
    server.gate.await_run().await;
    let answer = tokio::spawn(answer);
    // New calls fail once the client knows that it should go.
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
        config.connection.max_age = Some(Duration::from_millis(50));
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
        config.connection.keepalive_timeout = Duration::from_millis(20);
    })
    .await;
    let mut stream = tokio::net::TcpStream::connect(server.address()).await.expect("a connection");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("preface and settings");
    let mut received = Vec::new();
    // The server closes; whether by a last packet or a reset does not matter.
    let _ = soon(stream.read_to_end(&mut received)).await;
    let mut patient = server.client().await;
    soon(patient.server_live(ServerLiveRequest {})).await.expect("clients that answer stay");
}
