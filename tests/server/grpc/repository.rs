//! RepositoryIndex, RepositoryModelLoad, RepositoryModelUnload.

use std::collections::HashMap;

use paternoster_wire::pb::{
    ModelRepositoryParameter, RepositoryIndexRequest, RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
    model_repository_parameter::ParameterChoice,
};
use tonic::Code;

use crate::grpc::support::{Server, models::Models, request, soon};

fn load(name: &str) -> RepositoryModelLoadRequest {
    RepositoryModelLoadRequest { model_name: name.to_owned(), ..RepositoryModelLoadRequest::default() }
}

fn unload(name: &str) -> RepositoryModelUnloadRequest {
    RepositoryModelUnloadRequest { model_name: name.to_owned(), ..RepositoryModelUnloadRequest::default() }
}

fn parameter(key: &str, choice: ParameterChoice) -> HashMap<String, ModelRepositoryParameter> {
    [(key.to_owned(), ModelRepositoryParameter { parameter_choice: Some(choice) })].into()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_lists_models_with_version_and_state() {
    let server = Server::start_with(Models::all().with_broken(), |_| {}).await;
    let mut client = server.client().await;
    let ready = RepositoryIndexRequest { ready: true, ..RepositoryIndexRequest::default() };
    let models = soon(client.repository_index(ready)).await.expect("OK").into_inner().models;
    assert_eq!(models.len(), 3, "the broken model is not ready: {models:?}");
    assert!(models.iter().all(|model| model.state == "READY" && model.version == "1"), "{models:?}");
    let all = soon(client.repository_index(RepositoryIndexRequest::default())).await.expect("OK").into_inner();
    assert!(all.models.iter().any(|model| model.name == "broken" && model.state != "READY"), "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_by_name_is_unimplemented() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let named = RepositoryIndexRequest { repository_name: "models".to_owned(), ready: false };
    assert_eq!(soon(client.repository_index(named)).await.expect_err("refused").code(), Code::Unimplemented);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_come_and_go_in_explicit_mode() {
    let server = Server::start_with(Models::all().explicit(), |_| {}).await;
    let mut client = server.client().await;
    let infer = || request("identity", "", &[1.0]);
    soon(client.model_infer(infer())).await.expect_err("nothing is loaded yet");
    soon(client.repository_model_load(load("identity"))).await.expect("loaded");
    soon(client.model_infer(infer())).await.expect("OK");
    soon(client.repository_model_unload(unload("identity"))).await.expect("unloaded");
    assert_eq!(soon(client.model_infer(infer())).await.expect_err("gone").code(), Code::NotFound);
    soon(client.repository_model_unload(unload("identity"))).await.expect("once more is no error");
    soon(client.repository_model_unload(unload("nope"))).await.expect("nor is an unknown model");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_in_use_is_answered_by_the_version_it_began_on() {
    let mut server = Server::start_with(Models::all().explicit(), |_| {}).await;
    let mut client = server.client().await;
    soon(client.repository_model_load(load("gated"))).await.expect("loaded");
    let mut other = client.clone();
    let call = tokio::spawn(async move { other.model_infer(request("gated", "inflight", &[1.0])).await });
    server.gate.await_run().await;
    soon(client.repository_model_unload(unload("gated"))).await.expect("answers before the request ends");
    server.gate.let_pass(1);
    let response = soon(call).await.expect("no panic").expect("OK");
    assert_eq!(response.get_ref().id, "inflight");
}

#[tokio::test(flavor = "multi_thread")]
async fn loads_that_cannot_be_are_refused_by_kind() {
    let server = Server::start_with(Models::all().with_broken().explicit(), |_| {}).await;
    let mut client = server.client().await;
    let mut code = async |request| soon(client.repository_model_load(request)).await.expect_err("refused").code();
    assert_eq!(code(load("nope")).await, Code::Internal, "an unknown model");
    assert_eq!(code(load("broken")).await, Code::InvalidArgument, "a model that fails to load");
    let not_json = parameter("config", ParameterChoice::StringParam("not json".to_owned()));
    let request = RepositoryModelLoadRequest { parameters: not_json, ..load("identity") };
    assert_eq!(code(request).await, Code::Internal, "an override that is no configuration");
    for (key, choice) in [
        ("config", ParameterChoice::BoolParam(true)),
        ("file:1/model.onnx", ParameterChoice::StringParam(String::new())),
        ("colour", ParameterChoice::StringParam("red".to_owned())),
    ] {
        let request = RepositoryModelLoadRequest { parameters: parameter(key, choice), ..load("identity") };
        assert_eq!(code(request).await, Code::InvalidArgument, "parameter '{key}'");
    }
    let request = RepositoryModelLoadRequest { repository_name: "models".to_owned(), ..load("identity") };
    assert_eq!(code(request).await, Code::Unimplemented, "a repository by name");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parameter_of_unload_is_a_boolean() {
    let server = Server::start_with(Models::all().explicit(), |_| {}).await;
    let mut client = server.client().await;
    let with = |choice| RepositoryModelUnloadRequest {
        parameters: parameter("unload_dependents", choice),
        ..unload("identity")
    };
    soon(client.repository_model_unload(with(ParameterChoice::BoolParam(true)))).await.expect("OK");
    let status = soon(client.repository_model_unload(with(ParameterChoice::Int64Param(1)))).await;
    assert_eq!(status.expect_err("a number").code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_explicit_mode_loading_and_unloading_are_unavailable() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let status = soon(client.repository_model_load(load("identity"))).await.expect_err("refused");
    assert_eq!(status.code(), Code::Unavailable);
    let status = soon(client.repository_model_unload(unload("identity"))).await.expect_err("refused");
    assert_eq!(status.code(), Code::Unavailable);
}
