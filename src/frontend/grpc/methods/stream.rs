//! ModelStreamInfer: many requests and their answers over one call.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::Incoming;
use prost::Message;
use tokio::{sync::mpsc, task::JoinSet, time::Sleep};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

use super::{Services, unresolved::unresolved};
use crate::{
    executor::{InferError, Response, ResponseStream, Ticket},
    frontend::grpc::{
        dispatch::Call,
        framing::{Deadline, MessageReader, Writer, closing_status},
    },
    repository::ModelVersion,
    wire::{ReplyPlan, RequestError, decode, encode, pb, stream},
};

/// Answers of decoupled requests that may wait for the client before their models do.
const DECOUPLED_ANSWERS: usize = 8;

/// What one stream may have in flight: requests that are read but not yet answered.
#[derive(Clone, Copy, Debug)]
pub(in crate::frontend::grpc) struct StreamBounds {
    /// Most requests.
    pub(in crate::frontend::grpc) requests: usize,
    /// Bytes of them from which on no further one is read.
    pub(in crate::frontend::grpc) bytes: usize,
}

/// The answers of one ModelStreamInfer call.
///
/// It is driven by the client's reading: while the client takes no answers, no request is read, so a client that never
/// reads holds at most what the bounds allow. Requests run concurrently. Answers of ordinary models leave in the order
/// of their requests; those of decoupled models as they come.
///
/// ```text
/// Open => (HalfClosed | Closing | Ended)   the client half-closed | the server closes | an error that ends the stream
/// HalfClosed => Ended                      after the last answer: OK
/// Closing => Ended                         after the last answer: UNAVAILABLE
/// ```
pub(in crate::frontend::grpc) struct InferStream {
    services: Arc<Services>,
    reader: MessageReader<Incoming>,
    writer: Writer,
    deadline: Deadline,
    bounds: StreamBounds,
    /// Whether an error ends the stream as its status, instead of being an answer (`triton_grpc_error`).
    errors_end_stream: bool,
    phase: Phase,
    /// Requests of ordinary models, and refused ones, in the order of arrival.
    turns: VecDeque<Turn>,
    /// Requests of decoupled models; each task gives back the bytes of its request.
    decoupled: JoinSet<usize>,
    answers: mpsc::Receiver<Answer>,
    answer: mpsc::Sender<Answer>,
    /// Whether an ordinary answer left last; the other kind is looked at first then.
    ordinary_last: bool,
    in_flight_bytes: usize,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    expiry: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    HalfClosed,
    Closing,
    Ended,
}

/// A place in the order of answers.
enum Turn {
    Running(Box<Running>),
    Refused(RequestError),
}

struct Running {
    ticket: Ticket,
    version: Arc<ModelVersion>,
    reply: ReplyPlan,
    bytes: usize,
}

enum Answer {
    Reply(pb::ModelStreamInferResponse),
    Refused(RequestError),
    Failed(Arc<ModelVersion>, RequestError),
}

impl InferStream {
    /// The stream of a call that has just begun.
    pub(in crate::frontend::grpc) fn new(
        services: Arc<Services>,
        call: Call,
        bounds: StreamBounds,
        errors_end_stream: bool,
        closing: CancellationToken,
    ) -> Self {
        let Call { reader, writer, deadline } = call;
        let (answer, answers) = mpsc::channel(DECOUPLED_ANSWERS);
        Self {
            services,
            reader,
            writer,
            deadline,
            bounds,
            errors_end_stream,
            phase: Phase::Open,
            turns: VecDeque::new(),
            decoupled: JoinSet::new(),
            answers,
            answer,
            ordinary_last: false,
            in_flight_bytes: 0,
            closing: Box::pin(closing.cancelled_owned()),
            expiry: deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline.into()))),
        }
    }

    /// Reads and starts requests as far as the bounds go.
    fn poll_requests(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        while self.phase == Phase::Open && self.has_room() {
            match self.reader.poll_next(context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(None) => self.phase = Phase::HalfClosed,
                Poll::Ready(Some(message)) => self.start(message?)?,
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.turns.len() + self.decoupled.len() < self.bounds.requests && self.in_flight_bytes < self.bounds.bytes
    }

    fn start(&mut self, message: Bytes) -> Result<(), Status> {
        let bytes = message.len();
        let request = pb::ModelInferRequest::decode(message)
            .map_err(|error| Status::internal(format!("cannot parse the message: {error}")))?;
        match self.admit(request) {
            Err(error) => self.turns.push_back(Turn::Refused(error)),
            Ok((version, decoded)) if version.spec().decoupled => {
                let responses = version.handle().submit_stream(decoded.request);
                self.in_flight_bytes += bytes;
                let answer = self.answer.clone();
                self.decoupled.spawn(async move {
                    forward(&version, responses, &decoded.reply, &answer).await;
                    bytes
                });
            }
            Ok((version, decoded)) => {
                let ticket = version.handle().submit(decoded.request);
                self.in_flight_bytes += bytes;
                self.turns.push_back(Turn::Running(Box::new(Running { ticket, version, reply: decoded.reply, bytes })));
            }
        }
        Ok(())
    }

    fn admit(&self, request: pb::ModelInferRequest) -> Result<(Arc<ModelVersion>, decode::Decoded), RequestError> {
        let version = match self.services.repository.resolve(&request.model_name, &request.model_version) {
            Ok(version) => version,
            Err(error) => return Err(unresolved(&error).with_id(request.id)),
        };
        let mut decoded = decode::decode(request, version.spec(), &self.services.shared_memory)?;
        decoded.request.deadline = self.deadline;
        Ok((version, decoded))
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        if self.ordinary_last {
            if let Poll::Ready(answer) = self.poll_decoupled(context) {
                return Poll::Ready(answer);
            }
            return self.poll_ordinary(context);
        }
        if let Poll::Ready(answer) = self.poll_ordinary(context) {
            return Poll::Ready(answer);
        }
        self.poll_decoupled(context)
    }

    /// The answer whose turn it is. The tickets behind it need no polling: requests run by themselves.
    fn poll_ordinary(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        let Some(turn) = self.turns.front_mut() else { return Poll::Pending };
        let result = match turn {
            Turn::Refused(_) => None,
            Turn::Running(running) => Some(ready!(Pin::new(&mut running.ticket).poll(context))),
        };
        self.ordinary_last = true;
        match (self.turns.pop_front(), result) {
            (Some(Turn::Running(running)), Some(result)) => {
                self.in_flight_bytes -= running.bytes;
                Poll::Ready(conclude(&running.version, &running.reply, result, true))
            }
            (Some(Turn::Refused(error)), _) => Poll::Ready(Answer::Refused(error)),
            _ => Poll::Pending,
        }
    }

    fn poll_decoupled(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        match self.answers.poll_recv(context) {
            Poll::Ready(Some(answer)) => {
                self.ordinary_last = false;
                Poll::Ready(answer)
            }
            _ => Poll::Pending,
        }
    }

    /// Lets go of decoupled requests that have given all their answers.
    fn poll_finished(&mut self, context: &mut Context<'_>) -> Result<bool, Status> {
        let mut any = false;
        while let Poll::Ready(Some(finished)) = self.decoupled.poll_join_next(context) {
            match finished {
                Ok(bytes) => self.in_flight_bytes -= bytes,
                Err(error) => return Err(Status::internal(format!("a streaming request failed: {error}"))),
            }
            any = true;
        }
        Ok(any)
    }

    fn encode(&self, answer: Answer) -> Result<Bytes, Status> {
        let reply = match answer {
            Answer::Reply(reply) => reply,
            Answer::Refused(error) | Answer::Failed(_, error) if self.errors_end_stream => return Err(error.into()),
            Answer::Refused(error) => stream::refusal(error),
            Answer::Failed(version, error) => stream::failure(version.spec(), error),
        };
        self.writer.encode(&reply)
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        if let Some(expiry) = &mut self.expiry
            && expiry.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(Status::deadline_exceeded("the stream's deadline passed")));
        }
        if self.phase == Phase::Open && self.closing.as_mut().poll(context).is_ready() {
            self.phase = Phase::Closing;
        }
        loop {
            self.poll_requests(context)?;
            if let Poll::Ready(answer) = self.poll_answer(context) {
                return Poll::Ready(self.encode(answer).map(Some));
            }
            if self.poll_finished(context)? {
                // There is room again, or nothing is left; an answer may have come in between.
                continue;
            }
            if !(self.turns.is_empty() && self.decoupled.is_empty() && self.answers.is_empty()) {
                return Poll::Pending;
            }
            return match self.phase {
                Phase::Open => Poll::Pending,
                Phase::HalfClosed | Phase::Ended => Poll::Ready(Ok(None)),
                Phase::Closing => Poll::Ready(Err(closing_status())),
            };
        }
    }
}

impl Stream for InferStream {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.phase == Phase::Ended {
            return Poll::Ready(None);
        }
        let frame = ready!(self.poll_frame(context));
        if !matches!(frame, Ok(Some(_))) {
            self.phase = Phase::Ended;
            self.turns.clear();
            self.decoupled.abort_all();
        }
        Poll::Ready(frame.transpose())
    }
}

/// Passes the answers of a decoupled request on; waits where the client does not take them.
async fn forward(
    version: &Arc<ModelVersion>,
    mut responses: ResponseStream,
    reply: &ReplyPlan,
    answer: &mpsc::Sender<Answer>,
) {
    while let Some(result) = responses.next().await {
        let failed = result.is_err();
        let concluded = conclude(version, reply, result, false);
        if answer.send(concluded).await.is_err() || failed {
            return;
        }
    }
    if reply.enable_empty_final_response {
        // An error means that the stream has ended.
        let _ = answer.send(Answer::Reply(stream::empty_final(version.spec(), reply))).await;
    }
}

fn conclude(
    version: &Arc<ModelVersion>,
    reply: &ReplyPlan,
    result: Result<Response, InferError>,
    last: bool,
) -> Answer {
    let encoded = result
        .map_err(|error| RequestError::from_infer(&error, &reply.id))
        .and_then(|response| encode::encode(version.spec(), reply, response));
    match encoded {
        Ok(response) => Answer::Reply(stream::success(response, last)),
        Err(error) => Answer::Failed(Arc::clone(version), error),
    }
}
