//! ModelStreamInfer: many requests and their responses over one call.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::{StreamExt, stream::SelectAll};
use paternoster_executor::Backlog;
use paternoster_observe::trace::{Parent, RequestTrace, Transport};
use paternoster_pipeline::PendingResponse;
use paternoster_repository::{Caller, ModelVersion};
use paternoster_wire::{Kind, RequestError, ResponsePlan, pb, stream};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Request, Response, Status, Streaming};
use tracing::Span;

use super::{
    intake::{Deferred, Intake, take_in},
    responses::{Decoupled, DecoupledEvent, DecoupledState, StreamedResponse, conclude},
};
use crate::{
    Services,
    clients::{Client, ClientPlace},
    grpc::{
        call::{Call, Deadline, closing_status, expired},
        codec::{Encoded, Handover, Reply, Undecoded},
        messages::Writer,
    },
    intake::{Admitted, Held, Workers},
    span,
    trace::{Received, begin},
    unsent::counted,
};

/// Limits on the requests of one stream that are read but not yet answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamBounds {
    /// Maximum number of requests.
    pub(crate) requests: usize,
    /// No further request is read once these have this many bytes.
    pub(crate) bytes: usize,
}

/// The responses of one ModelStreamInfer call.
///
/// The stream advances only as the client reads: while the client takes no responses, no request is read, so a client
/// that never reads holds at most what the limits allow. Requests run concurrently. Responses of ordinary models leave
/// in the order of their requests; those of decoupled models leave as they come. Responses that the client has not
/// taken stay in the executor's backlog and are encoded one by one as they leave.
///
/// ```text
/// Open => (HalfClosed | Closing | Ended)   the client half-closed | the server closes | a failure that ends the stream
/// HalfClosed => Ended                      after the last answer: OK
/// Closing => Ended                         after the last answer: UNAVAILABLE
/// ```
pub(crate) struct InferStream {
    services: Arc<Services>,
    workers: Arc<Workers>,
    requests: Streaming<Undecoded<pb::ModelInferRequest>>,
    handover: Arc<Handover>,
    writer: Writer,
    deadline: Deadline,
    bounds: StreamBounds,
    /// Whether the failure of an admitted request ends the stream with its status instead of being sent as a response
    /// (`triton_grpc_error`). As in Triton, a rejected request is answered within the stream in both cases.
    errors_end_stream: bool,
    phase: Phase,
    /// Requests of ordinary models, and rejected ones, in arrival order.
    turns: VecDeque<Turn>,
    /// Requests of decoupled models.
    decoupled: SelectAll<Decoupled>,
    /// Responses of the stream that have not been taken.
    backlog: Arc<Backlog>,
    /// Responses of its connection that have not been sent.
    of_connection: Arc<Backlog>,
    /// Waits until the connection may have further responses, if it may not.
    room: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Whether the last response was of an ordinary model. The other kind is polled first then.
    ordinary_last: bool,
    in_flight_bytes: usize,
    /// A large request that workers decode, or one whose model is being loaded. No request is read after it until it is
    /// decoded, so that requests keep their order.
    decoding: Option<(Deferred, Read)>,
    /// Its client, if clients have limits.
    client: Option<Client>,
    /// Waits for a place of the client.
    waiting: Option<Waiting>,
    /// Whether the next request has waited for its place.
    has_waited: bool,
    /// The place of the next request. Given back while none begins to arrive.
    place: Option<ClientPlace>,
    /// What may decide which versions answer.
    caller: Caller,
    /// The client's span that all requests belong to.
    parent: Option<Parent>,
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

/// Waits for a place of a client.
type Waiting = Pin<Box<dyn Future<Output = Option<ClientPlace>> + Send>>;

/// A request that has been read.
struct Read {
    bytes: usize,
    /// Start of its trace.
    received: Option<Received>,
    span: Span,
    client: Option<ClientPlace>,
}

/// A place in the order of responses.
enum Turn {
    Running(Box<Running>),
    Refused(RequestError),
}

struct Running {
    response: PendingResponse,
    version: Arc<ModelVersion>,
    reply: ResponsePlan,
    bytes: usize,
    trace: Option<Arc<RequestTrace>>,
    span: Span,
    _held: (Held, Option<ClientPlace>),
}

impl InferStream {
    /// Begins to answer a call.
    ///
    /// # Errors
    /// As [`Call::of`].
    pub(crate) fn open(
        services: Arc<Services>,
        workers: Arc<Workers>,
        mut request: Request<Streaming<Undecoded<pb::ModelInferRequest>>>,
        bounds: StreamBounds,
        closing: CancellationToken,
    ) -> Result<Response<Self>, Status> {
        let Call { holds, deadline, writer, handover, .. } = Call::of(&mut request)?;
        let headers = request.metadata().as_ref();
        let errors_end_stream = headers.get("triton_grpc_error").is_some_and(|value| value.as_bytes() == b"true");
        let (caller, parent) = (services.caller(&holds, headers), services.tracer.parent(headers));
        let client = services.client(&holds, headers);
        let of_connection = Arc::clone(&holds.backlog);
        Ok(writer.response(Self {
            services,
            workers,
            requests: request.into_inner(),
            handover,
            writer,
            deadline,
            bounds,
            errors_end_stream,
            phase: Phase::Open,
            turns: VecDeque::new(),
            decoupled: SelectAll::new(),
            backlog: of_connection.stream(),
            of_connection,
            room: None,
            ordinary_last: false,
            in_flight_bytes: 0,
            decoding: None,
            caller,
            parent,
            client,
            waiting: None,
            has_waited: false,
            place: None,
            closing: Box::pin(closing.cancelled_owned()),
            expiry: deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline.into()))),
        }))
    }

    /// Reads and starts requests within the limits.
    fn poll_requests(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        loop {
            if let Some((mut decoding, read)) = self.decoding.take() {
                match decoding.as_mut().poll(context) {
                    Poll::Ready(outcome) => self.start(outcome?, read),
                    Poll::Pending => {
                        self.decoding = Some((decoding, read));
                        return Ok(());
                    }
                }
            }
            if self.phase != Phase::Open || !self.has_room() || self.poll_room(context).is_pending() {
                return Ok(());
            }
            if self.poll_place(context).is_pending() {
                return Ok(());
            }
            match self.requests.poll_next_unpin(context) {
                Poll::Pending => {
                    if !self.handover.next_has_begun() {
                        (self.place, self.has_waited) = (None, false);
                    }
                    return Ok(());
                }
                Poll::Ready(None) => {
                    self.place = None;
                    self.phase = Phase::HalfClosed;
                }
                Poll::Ready(Some(message)) => {
                    let message = message?.take(&self.handover)?;
                    if let Some(client) = self.client.as_ref().filter(|_| std::mem::take(&mut self.has_waited)) {
                        client.count_wait();
                    }
                    let bytes = message.bytes.len();
                    let received = Received::now(self.services.tracer.head_of(self.parent));
                    let read = Read { bytes, received, span: span::open(Transport::Grpc), client: self.place.take() };
                    match take_in(&self.services, &self.workers, message, &self.caller, Services::decode, &read.span) {
                        Intake::Done(outcome) => self.start(outcome?, read),
                        Intake::Deferred(outcome) => self.decoding = Some((outcome, read)),
                    }
                }
            }
        }
    }

    /// Waits for a place of the client for the next request, which is not read before.
    fn poll_place(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(client) = &self.client else { return Poll::Ready(()) };
        if self.place.is_none() {
            let wait = || {
                let client = client.clone();
                Box::pin(async move { client.place_for_stream().await }) as Waiting
            };
            let place = self.waiting.get_or_insert_with(wait).as_mut().poll(context);
            self.has_waited |= place.is_pending();
            self.place = ready!(place);
            self.waiting = None;
        }
        Poll::Ready(())
    }

    fn has_room(&self) -> bool {
        self.turns.len() + self.decoupled.len() < self.bounds.requests
            && self.in_flight_bytes < self.bounds.bytes
            && self.backlog.has_room()
    }

    /// Waits until the client has taken responses of other calls of its connection.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.of_connection.has_room() {
            let backlog = &self.of_connection;
            let wait = || {
                let backlog = Arc::clone(backlog);
                Box::pin(async move { backlog.room().await }) as Pin<Box<dyn Future<Output = ()> + Send>>
            };
            ready!(self.room.get_or_insert_with(wait).as_mut().poll(context));
        }
        self.room = None;
        Poll::Ready(())
    }

    fn start(&mut self, admitted: Result<Admitted, RequestError>, read: Read) {
        let Read { bytes, received, span, client } = read;
        let mut admitted = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                span::refused(&span, error.kind().code(), error.message());
                return self.turns.push_back(Turn::Refused(error));
            }
        };
        let trace = begin(&self.services, Transport::Grpc, received, &mut admitted);
        let Admitted { version, mut request, reply, held } = admitted;
        request.deadline = self.deadline;
        let request = request.counted_in(&self.backlog);
        if version.spec().decoupled {
            let responses = version.servable().submit_stream(request);
            self.in_flight_bytes += bytes;
            let state = DecoupledState::Running;
            self.decoupled.push(Decoupled {
                version,
                responses,
                reply,
                bytes,
                state,
                trace,
                span,
                _held: (held, client),
            });
        } else {
            let response = version.submit(request);
            self.in_flight_bytes += bytes;
            let running = Running { response, version, reply, bytes, trace, span, _held: (held, client) };
            self.turns.push_back(Turn::Running(Box::new(running)));
        }
    }

    fn poll_response(&mut self, context: &mut Context<'_>) -> Poll<StreamedResponse> {
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

    /// Polls the response that is first in order. The futures behind it need no polling, because requests run by
    /// themselves.
    fn poll_ordinary(&mut self, context: &mut Context<'_>) -> Poll<StreamedResponse> {
        let Some(turn) = self.turns.front_mut() else { return Poll::Pending };
        let result = match turn {
            Turn::Refused(_) => None,
            Turn::Running(running) => Some(ready!(Pin::new(&mut running.response).poll(context))),
        };
        self.ordinary_last = true;
        match (self.turns.pop_front(), result) {
            (Some(Turn::Running(running)), Some(result)) => {
                self.in_flight_bytes -= running.bytes;
                let Running { version, reply, trace, span, .. } = &*running;
                Poll::Ready(conclude(version, reply, trace.as_ref(), span, result, true))
            }
            (Some(Turn::Refused(error)), _) => Poll::Ready(StreamedResponse::Refused(error)),
            _ => Poll::Pending,
        }
    }

    fn poll_decoupled(&mut self, context: &mut Context<'_>) -> Poll<StreamedResponse> {
        while let Some(event) = ready!(self.decoupled.poll_next_unpin(context)) {
            match event {
                DecoupledEvent::Answer(answer) => {
                    self.ordinary_last = false;
                    return Poll::Ready(answer);
                }
                DecoupledEvent::Over { bytes } => self.in_flight_bytes -= bytes,
            }
        }
        Poll::Pending
    }

    fn encode(&self, answer: StreamedResponse) -> Result<Encoded<pb::ModelStreamInferResponse>, Status> {
        let reply = match answer {
            StreamedResponse::Reply(reply) => reply,
            // The request's deadline is the stream's.
            StreamedResponse::Failed(_, error) if error.kind() == Kind::DeadlineExceeded => return Err(error.into()),
            StreamedResponse::Refused(error) => stream::refusal(error),
            StreamedResponse::Failed(_, error) if self.errors_end_stream => return Err(error.into()),
            StreamedResponse::Failed(version, error) => stream::failure(version.spec(), error),
        };
        let frame = counted(self.writer.encode(&reply)?, &self.of_connection);
        Ok(Encoded::new(Reply { frame, sending: None }, Arc::clone(&self.handover)))
    }

    fn poll_reply(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Encoded<pb::ModelStreamInferResponse>>, Status>> {
        if let Some(expiry) = &mut self.expiry
            && expiry.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(expired()));
        }
        if self.phase == Phase::Open && self.closing.as_mut().poll(context).is_ready() {
            self.phase = Phase::Closing;
        }
        loop {
            self.poll_requests(context)?;
            let decoupled = self.decoupled.len();
            if let Poll::Ready(answer) = self.poll_response(context) {
                return Poll::Ready(self.encode(answer).map(Some));
            }
            if self.decoupled.len() < decoupled {
                // Some requests have ended, so another one may be read, or the stream may be complete.
                continue;
            }
            let idle = self.turns.is_empty() && self.decoupled.is_empty();
            if !idle || self.decoding.is_some() {
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
    type Item = Result<Encoded<pb::ModelStreamInferResponse>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.phase == Phase::Ended {
            return Poll::Ready(None);
        }
        let reply = ready!(self.poll_reply(context));
        if !matches!(reply, Ok(Some(_))) {
            self.phase = Phase::Ended;
            self.turns.clear();
            self.decoding = None;
            self.waiting = None;
            self.place = None;
            self.decoupled.clear();
        }
        Poll::Ready(reply.transpose())
    }
}
