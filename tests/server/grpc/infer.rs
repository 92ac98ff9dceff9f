//! ModelInfer.

use paternoster_frontend::grpc::CompressionLevel;
use prost::Message;
use tokio::sync::mpsc;
use tonic::{Code, codec::CompressionEncoding};

use crate::grpc::support::{
    Client, Server, eventually,
    models::Models,
    raw::{RawBody, RawConnection, ending, grpc_status, post},
    request, row, soon,
};

const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_with_its_id_and_its_rows() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let response = soon(client.model_infer(request("identity", "abc-1", &[1.0, 2.5]))).await.expect("OK").into_inner();
    assert_eq!((response.model_name.as_str(), response.model_version.as_str()), ("identity", "1"));
    assert_eq!(response.id, "abc-1");
    assert_eq!(row(&response), [1.0, 2.5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_get_their_own_rows() {
    let server = Server::start(|_| {}).await;
    let client = server.client().await;
    let calls: Vec<_> = (0..200)
        .map(|number| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let response = client.model_infer(request("identity", "", &[number as f32])).await.expect("OK");
                (number, row(response.get_ref()))
            })
        })
        .collect();
    for call in calls {
        let (number, values) = soon(call).await.expect("no panic");
        assert_eq!(values, [number as f32], "request {number} has its own answer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_send_different_shapes_do_not_wait_for_the_queue_delay() {
    let server = Server::start_with(Models::all().with_patient(), |_| {}).await;
    let (answers, mut answered) = mpsc::unbounded_channel();
    let closed_loop = |values: &'static [f32]| {
        let (client, answers) = (server.client(), answers.clone());
        async move {
            let mut client = client.await;
            while let Ok(response) = client.model_infer(request("patient", "", values)).await {
                assert_eq!(row(response.get_ref()), values, "an answer of its own shape");
                // The test may have ended.
                let _ = answers.send(values.len());
            }
        }
    };
    let both = async { tokio::join!(closed_loop(&[1.0]), closed_loop(&[2.0, 3.0])) };
    let enough = async {
        let mut counts = [0, 0];
        while counts.iter().any(|&count| count < 20) {
            counts[answered.recv().await.expect("both go on") - 1] += 1;
        }
    };
    soon(async {
        tokio::select! { _ = both => panic!("a client was refused"), () = enough => {} }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_of_many_frames_comes_and_goes_whole() {
    let server = Server::start(|_| {}).await;
    let values: Vec<f32> = (0..3_000_000).map(|index| index as f32).collect();
    let response = soon(server.client().await.model_infer(request("identity", "", &values))).await.expect("OK");
    assert!(row(response.get_ref()) == values, "12 MB are the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_request_is_said_with_its_id() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let mut short = request("identity", "my-id", &[1.0, 2.0]);
    short.inputs[0].shape = vec![1, 3];
    let status = soon(client.model_infer(short)).await.expect_err("two values, three declared");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("[request id: my-id]"), "{}", status.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn models_that_are_not_there_are_not_found() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let status = soon(client.model_infer(request("nope", "", &[1.0]))).await.expect_err("no such model");
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().contains("nope"), "{}", status.message());
    let version = |version: &str| {
        let mut request = request("identity", "", &[1.0]);
        request.model_version = version.to_owned();
        request
    };
    assert_eq!(soon(client.model_infer(version("9"))).await.expect_err("no such version").code(), Code::NotFound);
    assert_eq!(soon(client.model_infer(version("abc"))).await.expect_err("no number").code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decoupled_model_needs_a_stream() {
    let server = Server::start(|_| {}).await;
    let status = soon(server.client().await.model_infer(request("repeat", "", &[1.0]))).await.expect_err("decoupled");
    assert_eq!(status.code(), Code::Unimplemented);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_passes_ends_the_request_and_counts_as_failed() {
    let server = Server::start(|_| {}).await;
    let version = server.repository.resolve("gated", "").expect("loaded");
    let failed = || version.servable().stats().snapshot().inference_stats.fail.count;
    // A request is not counted if its deadline passes before the pool has it, as may happen on a busy machine.
    for deadline_ms in (0..8).map(|doubled| 50 << doubled) {
        // tonic's client would end the call by its own clock; this client only sends the deadline to the server.
        let mut connection = RawConnection::open(server.address()).await;
        let mut call = post(MODEL_INFER, RawBody::message(&request("gated", "", &[1.0])));
        call.headers_mut().insert("grpc-timeout", format!("{deadline_ms}m").parse().expect("ASCII"));
        let ending = ending(soon(connection.call(call)).await.expect("a response")).await;
        assert_eq!(ending.status.as_deref(), Some("4"), "DEADLINE_EXCEEDED");
        assert_eq!(
            ending.message.as_deref(),
            Some("Deadline Exceeded"),
            "as gRPC says it, its header readable as it is"
        );
        if failed() > 0 {
            break;
        }
    }
    assert_eq!(failed(), 1);
    server.gate.let_pass(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_call_whose_message_never_comes() {
    let server = Server::start(|_| {}).await;
    let mut connection = RawConnection::open(server.address()).await;
    let mut call = post(MODEL_INFER, RawBody::silent_after(vec![0, 0, 0]));
    call.headers_mut().insert("grpc-timeout", "20m".parse().expect("ASCII"));
    let response = soon(connection.call(call)).await.expect("a response");
    assert_eq!(grpc_status(&response), Some("4"), "DEADLINE_EXCEEDED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_deadline_is_an_error() {
    let server = Server::start(|_| {}).await;
    let mut connection = RawConnection::open(server.address()).await;
    let mut call = post(MODEL_INFER, RawBody::whole(vec![0; 5]));
    call.headers_mut().insert("grpc-timeout", "soon".parse().expect("ASCII"));
    let response = soon(connection.call(call)).await.expect("a response");
    assert_eq!(grpc_status(&response), Some("13"), "INTERNAL");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gives_up_cancels_its_request() {
    let mut server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let call = tokio::spawn(async move { client.model_infer(request("gated", "", &[1.0])).await });
    server.gate.await_run().await;
    call.abort();
    let version = server.repository.resolve("gated", "").expect("loaded");
    eventually("the request fails", || version.servable().stats().snapshot().inference_stats.fail.count == 1).await;
    server.gate.let_pass(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_requests_are_read_and_replies_stay_plain() {
    let server = Server::start(|_| {}).await;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut client = server.client().await.send_compressed(encoding).accept_compressed(encoding);
        let response = soon(client.model_infer(request("identity", "", &[1.0; 1000]))).await.expect("OK");
        assert_eq!(row(response.get_ref()), [1.0; 1000], "{encoding:?}");
        assert!(response.metadata().get("grpc-encoding").is_none(), "{encoding:?}: the flag does not ask for it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_are_compressed_where_the_flag_asks_and_the_client_accepts() {
    let server = Server::start(|config| config.compression = CompressionLevel::Low).await;
    let mut plain = server.client().await;
    let mut packed = server.client().await.accept_compressed(CompressionEncoding::Gzip);
    let response = soon(packed.model_infer(request("identity", "", &[1.0; 1000]))).await.expect("OK");
    assert_eq!(response.metadata().get("grpc-encoding").expect("compressed"), "gzip");
    assert_eq!(row(response.get_ref()), [1.0; 1000]);
    let response = soon(plain.model_infer(request("identity", "", &[1.0; 1000]))).await.expect("OK");
    assert!(response.metadata().get("grpc-encoding").is_none(), "this client does not accept it");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_compression_is_unimplemented() {
    let server = Server::start(|_| {}).await;
    let mut connection = RawConnection::open(server.address()).await;
    let mut call = post(MODEL_INFER, RawBody::whole(vec![0; 5]));
    call.headers_mut().insert("grpc-encoding", "zstd".parse().expect("ASCII"));
    let response = soon(connection.call(call)).await.expect("a response");
    assert_eq!(grpc_status(&response), Some("12"), "UNIMPLEMENTED");
    assert_eq!(response.headers()["grpc-accept-encoding"], "identity,deflate,gzip");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_message_are_an_internal_error() {
    let server = Server::start(|_| {}).await;
    let mut connection = RawConnection::open(server.address()).await;
    let response = soon(connection.call(post(MODEL_INFER, RawBody::whole(vec![0, 0, 0, 0, 1, 0xff])))).await;
    assert_eq!(grpc_status(&response.expect("a response")), Some("13"), "INTERNAL");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_over_their_limits_are_refused() {
    let server = Server::start(|config| {
        config.messages.max_receive_bytes = 3000;
        config.messages.max_send_bytes = 2000;
    })
    .await;
    let mut client = Client::new(server.channel().await);
    let large = request("identity", "", &[0.0; 1000]);
    let status = soon(client.model_infer(large.clone())).await.expect_err("4 kB");
    assert_eq!(status.code(), Code::ResourceExhausted);
    let size = large.encoded_len().to_string();
    assert!(status.message().contains(&size), "'{}' names {size} bytes", status.message());
    let status =
        soon(client.model_infer(request("identity", "", &[0.0; 500]))).await.expect_err("its reply is too long");
    assert_eq!(status.code(), Code::ResourceExhausted);
    soon(client.model_infer(request("identity", "", &[0.0; 400]))).await.expect("both fit");
}
