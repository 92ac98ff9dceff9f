//! grpc.health.v1.Health.

use std::time::Duration;

use bytes::Bytes;
use paternoster_executor::{InferRequest, PoolOptions};
use paternoster_model::{Dims, InputTensor};
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::grpc::support::{Server, models::Models, soon};

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_and_its_service_are_serving_when_ready() {
    let server = Server::start(|_| {}).await;
    let mut client = HealthClient::new(server.channel().await);
    for service in ["", "inference.GRPCInferenceService"] {
        let response = soon(client.check(of(service))).await.expect("OK");
        assert_eq!(response.get_ref().status(), ServingStatus::Serving, "'{service}'");
    }
    let status = soon(client.check(of("nope"))).await.expect_err("unknown");
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_model_keeps_the_server_from_serving() {
    let server = Server::start_with(Models::all().with_broken(), |_| {}).await;
    let mut client = HealthClient::new(server.channel().await);
    let response = soon(client.check(of(""))).await.expect("OK");
    assert_eq!(response.get_ref().status(), ServingStatus::NotServing);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_whose_task_hangs_is_not_ready_until_it_comes_back() {
    let task_time_limit = Duration::from_millis(100);
    let stop_grace = Duration::from_secs(3600);
    let options = PoolOptions { task_time_limit, stop_grace, ..PoolOptions::default() };
    let server = Server::start_on(&options, Models::all(), |_| {}).await;
    let mut client = HealthClient::new(server.channel().await);
    let mut updates = soon(client.watch(of(""))).await.expect("OK").into_inner();
    let first = soon(updates.next()).await.expect("an update").expect("no status");
    assert_eq!(first.status(), ServingStatus::Serving);
    let gated = server.repository.resolve("gated", "").expect("it is loaded");
    let input = InputTensor { shape: Dims::from_slice(&[1, 1]), data: Bytes::from_static(&[0; 4]) };
    let inputs = vec![Some(input)];
    let request = InferRequest::new(1, inputs);
    let late = gated.servable().submit(request);
    let second = soon(updates.next()).await.expect("an update").expect("no status");
    assert_eq!(second.status(), ServingStatus::NotServing);
    assert_eq!(server.repository.is_ready("gated", ""), Ok(false));
    assert_eq!(server.repository.is_ready("identity", ""), Ok(true));
    let index = server.repository.index(false).await;
    let entry = index.iter().find(|entry| entry.name == "gated").expect("it is in the index");
    assert_eq!((entry.state, entry.reason.as_str()), ("UNAVAILABLE", "a task has not ended within 100ms"));
    server.gate.let_pass(1);
    soon(late).await.expect("its late result is its answer");
    let third = soon(updates.next()).await.expect("an update").expect("no status");
    assert_eq!(third.status(), ServingStatus::Serving);
    assert_eq!(server.repository.is_ready("gated", ""), Ok(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_see_readiness_change_and_the_server_go() {
    let server = Server::start(|_| {}).await;
    let mut client = HealthClient::new(server.channel().await);
    let mut updates = soon(client.watch(of(""))).await.expect("OK").into_inner();
    let mut unknown = soon(client.watch(of("nope"))).await.expect("OK").into_inner();
    let first = soon(updates.next()).await.expect("an update").expect("no status");
    assert_eq!(first.status(), ServingStatus::Serving);
    let first = soon(unknown.next()).await.expect("an update").expect("no status");
    assert_eq!(first.status(), ServingStatus::ServiceUnknown, "Watch answers where Check refuses");
    server.readiness.begin_drain();
    let second = soon(updates.next()).await.expect("an update").expect("no status");
    assert_eq!(second.status(), ServingStatus::NotServing);
    let finished = soon(server.grpc.shutdown(Duration::ZERO, Duration::from_secs(60))).await;
    assert!(finished, "open watches do not hold the server up");
    let status = soon(updates.next()).await.expect("a status").expect_err("the server is gone");
    assert_eq!(status.code(), Code::Unavailable);
}
