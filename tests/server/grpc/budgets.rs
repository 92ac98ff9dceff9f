//! The budgets of all clients together, and the errors of requests that exceed them.

use paternoster_observe::budget::{Budget, Budgets};
use paternoster_wire::pb::{InferTensorContents, ModelInferRequest, model_infer_request::InferInputTensor};
use tonic::Code;

use crate::grpc::support::{
    Server, eventually,
    raw::{RawBody, RawConnection, ending, framed, grpc_status, post},
    request, row, soon,
};

const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Returns a request with this many numbers, in raw form.
fn large(model: &str, numbers: usize) -> ModelInferRequest {
    request(model, "", &vec![1.0; numbers])
}

/// Returns a request with this many numbers in typed contents, which take time to decode.
fn typed(model: &str, numbers: usize) -> ModelInferRequest {
    let contents = InferTensorContents { fp32_contents: vec![2.0; numbers], ..InferTensorContents::default() };
    let input = InferInputTensor {
        name: "INPUT0".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1, numbers as i64],
        contents: Some(contents),
        ..InferInputTensor::default()
    };
    ModelInferRequest { model_name: model.to_owned(), inputs: vec![input], ..ModelInferRequest::default() }
}

fn bytes(capacity: usize) -> Budgets {
    Budgets { bytes: Budget::of_bytes(capacity), ..Budgets::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_messages_hold_what_came_of_them() {
    let server = Server::start(|_| {}).await;
    let used = || server.budgets.bytes.used();
    let mut peer = RawConnection::open(server.address()).await;
    let declared = [&[0], &(1_u32 << 28).to_be_bytes()[..]].concat();
    let silent = tokio::spawn(peer.sender.send_request(post(MODEL_INFER, RawBody::silent_after(declared.clone()))));
    let half = [&declared[..], &[0x7a; 100_000]].concat();
    let half = tokio::spawn(peer.sender.send_request(post(MODEL_INFER, RawBody::silent_after(half))));
    eventually("what came is counted, and what was declared is not", || used() == 100_000).await;
    silent.abort();
    half.abort();
    eventually("calls that end hold nothing", || used() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_takes_all_it_may_leaves_room_for_others() {
    let server = Server::start_within(bytes(8 << 20), |_| {}).await;
    let mut greedy = RawConnection::open(server.address()).await;
    let half = [&[0], &(1_u32 << 20).to_be_bytes()[..], &[0x7a; 1_000_000]].concat();
    let calls: Vec<_> = (0..2)
        .map(|_| tokio::spawn(greedy.sender.send_request(post(MODEL_INFER, RawBody::silent_after(half.clone())))))
        .collect();
    eventually("its share is taken", || server.budgets.bytes.used() == 2_000_000).await;
    let response = soon(greedy.call(post(MODEL_INFER, RawBody::message(&large("identity", 100_000))))).await;
    assert_eq!(grpc_status(&response.expect("a response")), Some("8"), "it has no room for a third");
    let mut other = server.client().await;
    soon(other.model_infer(large("identity", 100_000))).await.expect("others have");
    assert_eq!(server.budgets.bytes.refused(), 1);
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_can_never_fit_is_refused_by_its_declared_length() {
    let server = Server::start_within(bytes(8 << 20), |_| {}).await;
    let mut peer = RawConnection::open(server.address()).await;
    let declared = [&[0], &(3_u32 << 20).to_be_bytes()[..]].concat();
    let response = soon(peer.call(post(MODEL_INFER, RawBody::silent_after(declared)))).await.expect("a response");
    let text = response.headers().get("grpc-message").expect("a reason").to_str().expect("ASCII");
    assert_eq!(grpc_status(&response), Some("8"), "{text}");
    assert!(text.contains("max-pending-bytes"), "the flag is named: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_decoding_builds_counts() {
    let server = Server::start_within(bytes(8 << 20), |_| {}).await;
    let mut peer = RawConnection::open(server.address()).await;
    // 200 KiB that grow tenfold when decoded: empty strings of typed contents.
    let strings = length_prefixed(0x2a, &length_prefixed(0x2a, &[0x42, 0].repeat(100 << 10)));
    let response = soon(peer.call(post(MODEL_INFER, RawBody::whole(framed(&strings))))).await.expect("a response");
    assert_eq!(grpc_status(&response), Some("8"));
    assert_eq!(server.budgets.bytes.used(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_counts_until_nothing_uses_it() {
    let mut server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let call = tokio::spawn(async move { client.model_infer(large("gated", 1 << 20)).await });
    server.gate.await_run().await;
    let payload_bytes = 4 << 20;
    assert!(server.budgets.bytes.used() >= payload_bytes, "{} bytes held", server.budgets.bytes.used());
    assert_eq!(server.budgets.requests.used(), 1);
    call.abort();
    eventually("the request is over", || server.budgets.requests.used() == 0).await;
    assert!(server.budgets.bytes.used() >= payload_bytes, "its task still runs on the payload");
    server.gate.let_pass(1);
    eventually("the task ends", || server.budgets.bytes.used() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_limit_of_pending_requests_clients_are_told_to_come_back() {
    let mut server = Server::start_within(Budgets { requests: Budget::of(1), ..Budgets::default() }, |_| {}).await;
    let mut first = server.client().await;
    let first = tokio::spawn(async move { first.model_infer(request("gated", "", &[1.0])).await });
    server.gate.await_run().await;
    let mut client = server.client().await;
    let status = soon(client.model_infer(request("identity", "", &[1.0]))).await.expect_err("one is pending");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("1 pending request"), "{}", status.message());
    let requests = tokio_stream::iter([request("identity", "", &[1.0])]);
    let mut answers = soon(client.model_stream_infer(requests)).await.expect("a stream").into_inner();
    let answer = soon(answers.message()).await.expect("the stream lives").expect("an answer");
    assert!(answer.error_message.contains("1 pending request"), "{}", answer.error_message);
    assert_eq!(server.budgets.requests.refused(), 2);
    server.gate.let_pass(1);
    soon(first).await.expect("no panic").expect("the first is answered");
    eventually("it is over", || server.budgets.requests.used() == 0).await;
    soon(client.model_infer(request("identity", "", &[1.0]))).await.expect("there is room again");
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_that_carry_no_data_take_no_large_message() {
    let server = Server::start(|_| {}).await;
    let mut peer = RawConnection::open(server.address()).await;
    for path in [
        "/inference.GRPCInferenceService/LogSettings",
        "/inference.GRPCInferenceService/TraceSetting",
        "/inference.GRPCInferenceService/RepositoryModelUnload",
        "/inference.GRPCInferenceService/ModelReady",
        "/grpc.health.v1.Health/Check",
    ] {
        let message = length_prefixed(0x7a, &[0; 64 << 10]);
        let response = soon(peer.call(post(path, RawBody::whole(framed(&message))))).await.expect("a response");
        assert_ne!(ending(response).await.status.as_deref(), Some("0"), "{path}");
    }
    let parameters = [0x1a, 0].repeat(5000);
    let load = post("/inference.GRPCInferenceService/RepositoryModelLoad", RawBody::whole(framed(&parameters)));
    let response = soon(peer.call(load)).await.expect("a response");
    assert_eq!(ending(response).await.status.as_deref(), Some("3"), "too many parameters");
}

/// Runs a test on a runtime whose only blocking thread is occupied until the test releases it.
fn with_held_workers(test: impl AsyncFnOnce(Server, std::sync::mpsc::Sender<()>)) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .expect("threads");
    runtime.block_on(async {
        let server = Server::start(|_| {}).await;
        let (release, released) = std::sync::mpsc::channel::<()>();
        let held = tokio::task::spawn_blocking(move || released.recv());
        test(server, release).await;
        soon(held).await.expect("no panic").expect("the test has released it");
    });
}

#[test]
fn a_large_message_is_decoded_apart_while_its_connection_goes_on() {
    with_held_workers(async |server, release| {
        let mut client = server.client().await;
        let mut slow = client.clone();
        let slow = tokio::spawn(async move { slow.model_infer(typed("identity", 1 << 20)).await });
        eventually("the message is there", || server.budgets.bytes.used() > 4 << 20).await;
        for _ in 0..10 {
            soon(client.model_infer(request("identity", "", &[1.0]))).await.expect("small ones go on");
        }
        assert!(!slow.is_finished(), "the large one waits for its worker");
        release.send(()).expect("it waits");
        let response = soon(slow).await.expect("no panic").expect("it is answered").into_inner();
        assert_eq!(row(&response), vec![2.0; 1 << 20]);
    });
}

#[test]
fn a_large_message_is_decompressed_apart_while_its_connection_goes_on() {
    with_held_workers(async |mut server, release| {
        let mut client = server.client().await;
        let mut slow = client.clone().send_compressed(tonic::codec::CompressionEncoding::Gzip);
        let slow = tokio::spawn(async move { slow.model_infer(large("gated", 200_000)).await });
        eventually("a part is decompressed", || server.budgets.bytes.used() > 256 << 10).await;
        soon(client.model_infer(request("identity", "", &[1.0]))).await.expect("small ones go on");
        eventually("the large one is not decompressed yet", || server.pool.in_flight() == 0).await;
        release.send(()).expect("it waits");
        server.gate.await_run().await;
        server.gate.let_pass(1);
        let response = soon(slow).await.expect("no panic").expect("it is answered").into_inner();
        assert_eq!(row(&response).len(), 200_000);
    });
}

#[test]
fn requests_of_a_stream_keep_their_order_behind_a_large_one() {
    with_held_workers(async |server, release| {
        let mut client = server.client().await;
        let small = |id: &str| request("identity", id, &[1.0]);
        let large = ModelInferRequest { id: "large".to_owned(), ..typed("identity", 1 << 20) };
        let requests = tokio_stream::iter([small("first"), large, small("last")]);
        let mut answers = soon(client.model_stream_infer(requests)).await.expect("a stream").into_inner();
        let mut next = async || {
            let answer = soon(answers.message()).await.expect("the stream lives").expect("an answer");
            answer.infer_response.expect("an answer without error").id
        };
        assert_eq!(next().await, "first");
        release.send(()).expect("it waits");
        assert_eq!(next().await, "large");
        assert_eq!(next().await, "last");
        assert!(soon(answers.message()).await.expect("the stream ends well").is_none());
    });
}

/// Encodes a field of bytes: its tag, its length and its contents.
fn length_prefixed(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut field = vec![tag];
    prost::encode_length_delimiter(value.len(), &mut field).expect("memory");
    field.extend_from_slice(value);
    field
}
