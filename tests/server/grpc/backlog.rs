//! Clients that do not read their responses.

use std::time::Duration;

use http::StatusCode;
use paternoster_executor::{BacklogLimits, PoolOptions};
use tokio_stream::StreamExt;
use tonic::Request;

use crate::grpc::support::{
    Server, eventually,
    models::Models,
    raw::{RawBody, RawConnection, frame, post},
    request, row, soon,
};

const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const MODEL_STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

async fn server(backlog: BacklogLimits) -> Server {
    let options = PoolOptions { backlog, ..PoolOptions::default() };
    Server::start_on(&options, Models::all(), |_| {}).await
}

async fn serves_others(server: &Server) {
    let mut client = server.client().await;
    for value in 0..50_u8 {
        let answer = soon(client.model_infer(request("identity", "", &[f32::from(value)]))).await;
        assert_eq!(row(&answer.expect("others are served").into_inner()), [f32::from(value)]);
    }
}

/// Closes all connections, and checks that no request and no response is left.
async fn leaves_nothing(server: Server) {
    let Server { grpc, pool, .. } = server;
    grpc.shutdown(Duration::ZERO, Duration::ZERO).await;
    eventually("no request is left", || pool.in_flight() == 0).await;
    eventually("no reply waits", || pool.stats().snapshot().waiting_response_bytes == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_a_client_does_not_take_are_bounded() {
    let limits = BacklogLimits { stream_bytes: 64 << 10, ..BacklogLimits::default() };
    let server = server(limits).await;
    let mut peer = RawConnection::with_window(server.address(), 1).await;
    let requests: Vec<u8> =
        (0..64).flat_map(|number: u32| frame(&request("repeat", &number.to_string(), &[65_536.0; 16]))).collect();
    let call = post(MODEL_STREAM_INFER, RawBody::silent_after(requests));
    let _response = soon(peer.call(call)).await.expect("a response");
    // Requests after those that fill the backlog do not begin. How many there are depends on the machine.
    let all_pause = || {
        let read = server.pool.stats().snapshot();
        read.responses_paused > 0
            && read.tasks_running == 0
            && read.waiting_response_bytes >= limits.stream_bytes as u64
    };
    eventually("the backlog is full, and nothing runs", all_pause).await;
    serves_others(&server).await;
    eventually("nothing more is made", all_pause).await;
    assert!(server.pool.in_flight() > 0, "no request has ended");
    let waiting = server.pool.stats().snapshot().waiting_response_bytes;
    assert!(waiting < 128 << 10, "{waiting} bytes wait");
    let kept = server.pool.buffers().in_use_bytes();
    assert!(kept < 128 << 10, "{kept} bytes of batches are kept");
    leaves_nothing(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_gets_every_answer_however_often_its_requests_pause() {
    let server = server(BacklogLimits { stream_bytes: 1, ..BacklogLimits::default() }).await;
    let mut client = server.client().await;
    let requests: Vec<_> = ["a", "b", "c"].map(|id| request("repeat", id, &[300.0])).into();
    let mut answers =
        soon(client.model_stream_infer(Request::new(tokio_stream::iter(requests)))).await.expect("open").into_inner();
    let mut next = [("a", 0_u16), ("b", 0), ("c", 0)];
    while let Some(answer) = soon(answers.next()).await {
        let response = answer.expect("no status").infer_response.expect("no error");
        let own = next.iter_mut().find(|(id, _)| *id == response.id).expect("an id of ours");
        assert_eq!(row(&response), [300.0 + f32::from(own.1)], "answers of '{}' come in order", own.0);
        own.1 += 1;
    }
    assert_eq!(next.map(|(_, answers)| answers), [300; 3]);
    assert!(server.pool.stats().snapshot().responses_paused > 0, "they did pause");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_connection_that_leaves_replies_unread_are_not_read() {
    const ROW: [f32; 2000] = [1.0; 2000];
    let limits = BacklogLimits { stream_bytes: 16 << 10, connection_bytes: 64 << 10, ..BacklogLimits::default() };
    let server = server(limits).await;
    let identity = server.repository.resolve("identity", "").expect("loaded");
    let answered = || identity.servable().stats().snapshot().inference_stats.success.count;
    let waiting = || server.pool.stats().snapshot().waiting_response_bytes;
    let call = || post(MODEL_INFER, RawBody::message(&request("identity", "", &ROW)));

    let mut peer = RawConnection::with_window(server.address(), 0).await;
    let mut unread = Vec::new();
    while waiting() < 64 << 10 {
        let response = soon(peer.call(call())).await.expect("a response");
        assert_eq!(response.status(), StatusCode::OK);
        unread.push(response);
    }
    assert_eq!(unread.len(), 9, "so many replies of 8 kB are more than 64 KiB");
    let _more: Vec<_> = (0..20).map(|_| tokio::spawn(peer.sender.send_request(call()))).collect();
    serves_others(&server).await;
    assert_eq!(answered(), 9 + 50, "none of the further calls has run");
    assert!(waiting() < 80 << 10, "{} bytes wait", waiting());

    drop(unread);
    eventually("calls go on once there is room", || answered() > 9 + 50).await;
    leaves_nothing(server).await;
}
