//! ModelStreamInfer.

use paternoster_wire::pb::{
    InferParameter, ModelInferRequest, ModelStreamInferResponse, ServerLiveRequest, infer_parameter::ParameterChoice,
};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tonic::{Code, Request, Status, Streaming};

use crate::grpc::support::{
    Client, Server, eventually,
    raw::{Ending, RawBody, RawConnection, ending, frame, post},
    request, row, soon,
};

/// An open stream from the client's side.
struct Stream {
    requests: mpsc::UnboundedSender<ModelInferRequest>,
    answers: Streaming<ModelStreamInferResponse>,
}

impl Stream {
    async fn open(client: &mut Client) -> Self {
        Self::open_with(client, |_| {}).await
    }

    async fn open_with(
        client: &mut Client,
        change: impl FnOnce(&mut Request<UnboundedReceiverStream<ModelInferRequest>>),
    ) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let mut call = Request::new(UnboundedReceiverStream::new(receiver));
        change(&mut call);
        let answers = soon(client.model_stream_infer(call)).await.expect("an open stream").into_inner();
        Self { requests, answers }
    }

    fn send(&self, request: ModelInferRequest) {
        self.requests.send(request).expect("the stream is open");
    }

    async fn next(&mut self) -> Option<Result<ModelStreamInferResponse, Status>> {
        soon(self.answers.next()).await
    }

    /// Returns the next response, which must be a success: its id, its values and whether it is the last.
    async fn success(&mut self) -> (String, Vec<f32>, bool) {
        let answer = self.next().await.expect("an answer").expect("no status");
        assert_eq!(answer.error_message, "", "no error in-band");
        let last = final_mark(&answer).expect("every success says whether it is the last");
        let response = answer.infer_response.expect("a response");
        let values = if response.outputs.is_empty() { Vec::new() } else { row(&response) };
        (response.id, values, last)
    }

    /// Half-closes the stream and collects the remaining responses.
    async fn finish(mut self) -> Vec<Result<ModelStreamInferResponse, Status>> {
        drop(self.requests);
        let mut rest = Vec::new();
        while let Some(answer) = soon(self.answers.next()).await {
            rest.push(answer);
        }
        rest
    }
}

fn final_mark(answer: &ModelStreamInferResponse) -> Option<bool> {
    match answer.infer_response.as_ref()?.parameters.get("triton_final_response")?.parameter_choice {
        Some(ParameterChoice::BoolParam(last)) => Some(last),
        _ => None,
    }
}

fn with_empty_final(mut request: ModelInferRequest) -> ModelInferRequest {
    let on = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    request.parameters.insert("triton_enable_empty_final_response".to_owned(), on);
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_ordinary_models_come_in_the_order_of_their_requests() {
    let mut server = Server::start(|_| {}).await;
    let mut stream = Stream::open(&mut server.client().await).await;
    stream.send(request("gated", "first", &[1.0]));
    server.gate.await_run().await;
    stream.send(request("identity", "second", &[2.0]));
    let identity = server.repository.resolve("identity", "").expect("loaded");
    eventually("the second request is done", || {
        identity.servable().stats().snapshot().inference_stats.success.count == 1
    })
    .await;
    server.gate.let_pass(1);
    assert_eq!(stream.success().await, ("first".to_owned(), vec![1.0], true));
    assert_eq!(stream.success().await, ("second".to_owned(), vec![2.0], true));
    assert!(stream.finish().await.is_empty(), "nothing else, and the status is OK");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_stream_run_concurrently() {
    let mut server = Server::start(|_| {}).await;
    let mut stream = Stream::open(&mut server.client().await).await;
    stream.send(request("gated", "a", &[1.0]));
    stream.send(request("gated", "b", &[2.0]));
    server.gate.await_run().await;
    server.gate.await_run().await;
    server.gate.let_pass(2);
    assert_eq!(stream.success().await.0, "a");
    assert_eq!(stream.success().await.0, "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_comes_in_band_in_its_turn_and_the_stream_goes_on() {
    let server = Server::start(|_| {}).await;
    let mut stream = Stream::open(&mut server.client().await).await;
    stream.send(request("identity", "1", &[1.0]));
    stream.send(request("nope", "2", &[1.0]));
    stream.send(request("identity", "3", &[3.0]));
    assert_eq!(stream.success().await.0, "1");
    let refusal = stream.next().await.expect("an answer").expect("no status");
    assert!(refusal.error_message.contains("nope"), "'{}' names the model", refusal.error_message);
    assert_eq!(final_mark(&refusal), None, "no mark on a request that was refused");
    let response = refusal.infer_response.expect("it carries the id");
    assert_eq!((response.id.as_str(), response.model_name.as_str()), ("2", ""));
    assert_eq!(stream.success().await, ("3".to_owned(), vec![3.0], true));
    assert!(stream.finish().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_triton_grpc_error_a_failure_ends_the_stream_as_its_status() {
    let server = Server::start(|_| {}).await;
    let mut stream = errors_as_status(&server).await;
    stream.send(request("identity", "1", &[1.0]));
    assert_eq!(stream.success().await.0, "1");
    stream.send(request("repeat", "2", &[-1.0]));
    let status = stream.next().await.expect("a status").expect_err("the failure");
    assert_eq!((status.code(), status.message()), (Code::Internal, "negative count"));
    assert!(stream.next().await.is_none(), "nothing follows");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_triton_grpc_error_a_refusal_is_an_answer_and_the_stream_goes_on() {
    let server = Server::start(|_| {}).await;
    let mut stream = errors_as_status(&server).await;
    let without_inputs =
        ModelInferRequest { inputs: Vec::new(), raw_input_contents: Vec::new(), ..request("identity", "", &[1.0]) };
    for (refused, fact) in [(request("nope", "", &[1.0]), "nope"), (without_inputs, "INPUT0")] {
        stream.send(ModelInferRequest { id: "bad".to_owned(), ..refused });
        let refusal = stream.next().await.expect("an answer").expect("no status");
        assert!(refusal.error_message.contains(fact), "'{}' names {fact}", refusal.error_message);
        assert_eq!(refusal.infer_response.expect("it carries the id").id, "bad");
    }
    stream.send(request("identity", "good", &[3.0]));
    assert_eq!(stream.success().await, ("good".to_owned(), vec![3.0], true));
    assert!(stream.finish().await.is_empty(), "the status is OK");
}

/// Opens a stream that ends at the first error (`triton_grpc_error`).
async fn errors_as_status(server: &Server) -> Stream {
    Stream::open_with(&mut server.client().await, |call| {
        call.metadata_mut().insert("triton_grpc_error", "true".parse().expect("ASCII"));
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decoupled_request_has_as_many_answers_as_it_asks_for_and_none_is_last() {
    let server = Server::start(|_| {}).await;
    let mut stream = Stream::open(&mut server.client().await).await;
    stream.send(request("repeat", "d", &[3.0]));
    for step in 0..3 {
        assert_eq!(stream.success().await, ("d".to_owned(), vec![3.0 + step as f32], false));
    }
    stream.send(request("repeat", "none", &[0.0]));
    assert!(stream.finish().await.is_empty(), "no answer, and no final one that nobody asked for");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_final_answer_comes_on_request() {
    let server = Server::start(|_| {}).await;
    let mut stream = Stream::open(&mut server.client().await).await;
    stream.send(with_empty_final(request("repeat", "d", &[1.0])));
    assert_eq!(stream.success().await, ("d".to_owned(), vec![1.0], false));
    assert_eq!(stream.success().await, ("d".to_owned(), vec![], true));
    stream.send(with_empty_final(request("identity", "i", &[1.0])));
    assert_eq!(stream.success().await, ("i".to_owned(), vec![1.0], true), "an ordinary answer is its own last");
    assert!(stream.finish().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decoupled_request_that_fails_says_so_with_its_model_and_is_over() {
    let server = Server::start(|_| {}).await;
    let mut stream = Stream::open(&mut server.client().await).await;
    stream.send(with_empty_final(request("repeat", "d", &[-1.0])));
    let failure = stream.next().await.expect("an answer").expect("no status");
    assert!(failure.error_message.contains("negative count"), "{}", failure.error_message);
    assert_eq!(final_mark(&failure), Some(true));
    let response = failure.infer_response.expect("it carries the id");
    assert_eq!((response.id.as_str(), response.model_name.as_str()), ("d", "repeat"));
    assert!(stream.finish().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn decoupled_answers_pass_an_ordinary_one_that_is_not_ready() {
    let mut server = Server::start(|_| {}).await;
    let mut stream = Stream::open(&mut server.client().await).await;
    stream.send(request("gated", "slow", &[1.0]));
    server.gate.await_run().await;
    stream.send(request("repeat", "fast", &[2.0]));
    assert_eq!(stream.success().await.0, "fast");
    assert_eq!(stream.success().await.0, "fast");
    server.gate.let_pass(1);
    assert_eq!(stream.success().await.0, "slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_answers_of_many_kinds_all_arrive() {
    let server = Server::start(|_| {}).await;
    let stream = Stream::open(&mut server.client().await).await;
    for number in 0..400 {
        let model = if number % 4 == 0 { "repeat" } else { "identity" };
        stream.send(request(model, &number.to_string(), &[(number % 8) as f32]));
    }
    let answers = stream.finish().await;
    let ids: Vec<String> =
        answers.into_iter().map(|answer| answer.expect("no status").infer_response.expect("no error").id).collect();
    let ordinary: Vec<u32> = ids.iter().map(|id| id.parse::<u32>().expect("ours")).filter(|id| id % 4 != 0).collect();
    assert!(ordinary.is_sorted(), "ordinary answers keep their order");
    assert_eq!(ordinary.len(), 300);
    assert_eq!(ids.len() - ordinary.len(), 50 * 4, "every other decoupled request asks for four answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_close_ends_the_stream_after_the_last_answer() {
    let mut server = Server::start(|_| {}).await;
    let stream = Stream::open(&mut server.client().await).await;
    stream.send(request("gated", "last", &[1.0]));
    server.gate.await_run().await;
    let finished = tokio::spawn(stream.finish());
    server.gate.let_pass(1);
    assert_eq!(soon(finished).await.expect("no panic").len(), 1);
    let empty = Stream::open(&mut server.client().await).await;
    assert!(empty.finish().await.is_empty(), "a stream without requests ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cancels_all_its_requests() {
    let mut server = Server::start(|_| {}).await;
    let stream = Stream::open(&mut server.client().await).await;
    for _ in 0..5 {
        stream.send(request("gated", "", &[1.0]));
    }
    eventually("all are in flight", || server.pool.in_flight() == 5).await;
    drop(stream);
    server.gate.await_run().await;
    let version = server.repository.resolve("gated", "").expect("loaded");
    eventually("all fail", || version.servable().stats().snapshot().inference_stats.fail.count == 5).await;
    server.gate.let_pass(5);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_a_stream_ends_it() {
    let server = Server::start(|_| {}).await;
    let mut stream = Stream::open_with(&mut server.client().await, |call| {
        call.metadata_mut().insert("grpc-timeout", "50m".parse().expect("ASCII"));
    })
    .await;
    let status = stream.next().await.expect("a status").expect_err("the deadline");
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_passes_with_requests_pending_is_the_status_of_the_stream() {
    let server = Server::start(|_| {}).await;
    // tonic's client would end the call by its own clock; this client only sends the deadline to the server.
    let mut connection = RawConnection::open(server.address()).await;
    let message = frame(&request("gated", "", &[1.0]));
    let bodies = (0..40).map(|number| match number % 2 {
        0 => RawBody::whole(message.clone()),
        _ => RawBody::silent_after(message.clone()),
    });
    let mut answers = Vec::new();
    for body in bodies {
        let mut call = post("/inference.GRPCInferenceService/ModelStreamInfer", body);
        call.headers_mut().insert("grpc-timeout", "50m".parse().expect("ASCII"));
        soon(connection.sender.ready()).await.expect("a connection");
        answers.push(connection.sender.send_request(call));
    }
    for answer in answers {
        let expected = Ending { bytes: 0, status: Some("4".to_owned()), message: Some("Deadline Exceeded".to_owned()) };
        assert_eq!(ending(soon(answer).await.expect("a response")).await, expected, "no answer in the stream");
    }
    server.gate.let_pass(40);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_requests_are_in_flight_than_the_bound_says() {
    let server = Server::start(|config| config.connection.stream_in_flight = 3).await;
    let mut client = server.client().await;
    let stream = Stream::open(&mut client).await;
    for number in 0..10 {
        stream.send(request("gated", &number.to_string(), &[1.0]));
    }
    eventually("as many are in flight as may be", || server.pool.in_flight() == 3).await;
    for _ in 0..20 {
        // All requests of the stream were sent before this call, so the server has had a chance to read them.
        soon(client.server_live(ServerLiveRequest {})).await.expect("OK");
        assert_eq!(server.pool.in_flight(), 3, "no more are read while none is answered");
    }
    server.gate.let_pass(10);
    assert_eq!(stream.finish().await.len(), 10, "all have their turn");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_is_not_read_from() {
    let server = Server::start(|config| config.connection.stream_in_flight = 8).await;
    let stream = Stream::open(&mut server.client().await).await;
    let identity = server.repository.resolve("identity", "").expect("loaded");
    let answered = || identity.servable().stats().snapshot().inference_stats.success.count;
    // 24 MB in total, of which the client's windows accept 2 MiB.
    for _ in 0..60 {
        stream.send(request("identity", "", &[1.0; 100_000]));
    }
    eventually("some are answered", || answered() > 0).await;
    let mut other = server.client().await;
    for _ in 0..50 {
        soon(other.model_infer(request("identity", "", &[1.0]))).await.expect("other clients are served");
    }
    assert!(answered() < 50 + 60, "the server went on without the client");
    assert_eq!(stream.finish().await.len(), 60, "all are answered once the client reads");
}
