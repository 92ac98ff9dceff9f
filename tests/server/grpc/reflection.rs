//! Server reflection.

use std::time::Duration;

use tokio_stream::StreamExt;
use tonic_reflection::pb::{v1, v1alpha};

use crate::grpc::support::{Server, soon};

#[tokio::test(flavor = "multi_thread")]
async fn version_1_lists_and_describes_every_service() {
    use v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };

    let server = Server::start(|_| {}).await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let questions = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("inference.GRPCInferenceService".to_owned())),
        ask(MessageRequest::FileContainingSymbol("inference.ModelConfig".to_owned())),
        ask(MessageRequest::FileContainingSymbol("grpc.health.v1.Health".to_owned())),
    ];
    let call = client.server_reflection_info(tokio_stream::iter(questions));
    let mut answers = soon(call).await.expect("OK").into_inner();
    let listed = soon(answers.next()).await.expect("an answer").expect("no status").message_response;
    let Some(MessageResponse::ListServicesResponse(services)) = listed else { panic!("a list: {listed:?}") };
    let names: Vec<_> = services.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["inference.GRPCInferenceService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"] {
        assert!(names.contains(&name), "{name} is listed among {names:?}");
    }
    for _ in 0..3 {
        let answer = soon(answers.next()).await.expect("an answer").expect("no status").message_response;
        assert!(matches!(answer, Some(MessageResponse::FileDescriptorResponse(_))), "a descriptor: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn version_1_alpha_answers_too() {
    use v1alpha::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };

    let server = Server::start(|_| {}).await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let list = MessageRequest::ListServices(String::new());
    let question = ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let call = client.server_reflection_info(tokio_stream::once(question));
    let mut answers = soon(call).await.expect("OK").into_inner();
    let answer = soon(answers.next()).await.expect("an answer").expect("no status").message_response;
    assert!(matches!(answer, Some(MessageResponse::ListServicesResponse(_))), "a list: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_reflection_stream_does_not_hold_the_server_up() {
    use v1::server_reflection_client::ServerReflectionClient;

    let server = Server::start(|_| {}).await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let call = client.server_reflection_info(tokio_stream::pending());
    let mut answers = soon(call).await.expect("OK").into_inner();
    assert!(soon(server.grpc.shutdown(Duration::ZERO, Duration::from_secs(60))).await, "everything ends in time");
    assert!(soon(answers.next()).await.is_none(), "the stream ended in order");
}
