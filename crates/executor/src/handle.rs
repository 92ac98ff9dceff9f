//! Handles to the pool: a loaded version, the future response of a request, and its stream of responses.

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use paternoster_batching::ModelId;
use paternoster_model::ModelSpec;
use paternoster_observe::{ModelStats, ObservedSteps, ObservedVersion, RequestEnd};
use tokio::sync::{mpsc, oneshot};

use super::{
    CardPorts, InferError, InferRequest, Response,
    indices::IndexChecks,
    length_limits::LengthLimits,
    location::Location,
    pool::Pool,
    record::{Sink, Waiting},
    rows,
    version::ServedVersion,
};

/// One loaded version. Each holder may submit requests. When the last handle is dropped, the version leaves the pool
/// and its memory is freed.
pub struct ModelHandle {
    pub(super) pool: Arc<Pool>,
    pub(super) id: ModelId,
    /// The devices that it is loaded on, by number.
    pub(super) homes: Box<[usize]>,
    pub(super) loaded: Arc<ServedVersion>,
    /// Where the events of its requests go.
    pub(super) observed: ObservedVersion,
    /// Checks of a request before admission.
    pub(super) indices: IndexChecks,
    /// Maximum length of its padded axes.
    pub(super) longest: LengthLimits,
    /// Whether its requests belong to sequences.
    pub(super) has_sequences: bool,
    /// Name of the policy that batches its requests.
    pub(super) policy: &'static str,
    /// Which tensors may stay on cards.
    pub(super) card_ports: CardPorts,
}

impl ModelHandle {
    /// Returns whether its requests belong to sequences.
    pub fn has_sequences(&self) -> bool {
        self.has_sequences
    }

    /// Returns how many of its sequences keep state for further requests.
    pub fn open_sequences(&self) -> usize {
        self.loaded.open_sequences.load(Ordering::Relaxed)
    }

    /// Returns the name of the policy that batches its requests.
    pub fn policy(&self) -> &'static str {
        self.policy
    }

    /// Returns the version's inputs and outputs.
    pub fn spec(&self) -> &Arc<ModelSpec> {
        &self.loaded.spec
    }

    /// Returns the version's counters.
    pub fn stats(&self) -> &Arc<ModelStats> {
        &self.observed.stats
    }

    /// Returns how many tasks may run at the same time on its devices.
    pub fn lanes(&self) -> u16 {
        self.pool.lanes_of(&self.homes)
    }

    /// Returns the tensors of requests that the version reads and writes in place, in a card's memory.
    pub fn card_ports(&self) -> &CardPorts {
        &self.card_ports
    }

    /// Whether no task of the version hangs.
    pub fn is_responsive(&self) -> bool {
        self.fault().is_none()
    }

    /// Returns why the version is not responsive; `None` if it is.
    pub fn fault(&self) -> Option<String> {
        self.loaded.hangs.reason()
    }

    /// Submits a request that has exactly one response. Dropping the future cancels the request. The rows of a
    /// request that unfolds into cells run as requests; it counts once.
    pub fn submit(self: &Arc<Self>, request: InferRequest) -> ResponseFuture {
        let unfolds = self.loaded.programs.cells().is_some() && !self.has_sequences;
        let Some(rows) = unfolds.then(|| rows::apart(&self.loaded.spec, &request)).flatten() else {
            return ResponseFuture(Parts::Whole(self.submit_row(request)));
        };
        let observed = ObservedSteps::begin(self.stats(), request.rows, request.step_of).missed(request.missed_ns);
        let rows = rows.into_iter().map(|row| {
            let row = InferRequest { step_of: Some(observed.step(false)), ..row };
            self.submit_row(row)
        });
        let rows = RowFutures { rows: rows.collect(), replies: Vec::new(), observed: Some(observed) };
        ResponseFuture(Parts::Rows(rows))
    }

    fn submit_row(self: &Arc<Self>, request: InferRequest) -> RowFuture {
        let (sender, receiver) = oneshot::channel();
        let location = self.pool.submit(self, request, Sink::Once(sender));
        RowFuture { receiver, cancel: CancelOnDrop { handle: Arc::clone(self), location } }
    }

    /// Submits a request with any number of responses. Dropping the stream cancels the request.
    ///
    /// Responses that the stream has not returned count in the request's backlog. When that is full, the request pauses
    /// until the stream has returned all pending responses; a request that unfolds into cells fails instead.
    pub fn submit_stream(self: &Arc<Self>, request: InferRequest) -> ResponseStream {
        let (sender, receiver) = mpsc::unbounded_channel();
        let paused = Arc::new(AtomicBool::new(false));
        let sink = Sink::Stream { sender, paused: Arc::clone(&paused) };
        let location = self.pool.submit(self, request, sink);
        ResponseStream { receiver, paused, cancel: CancelOnDrop { handle: Arc::clone(self), location } }
    }
}

impl fmt::Debug for ModelHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ModelHandle")
            .field("id", &self.id)
            .field("model", &self.loaded.spec.name)
            .field("version", &self.loaded.spec.version)
            .finish_non_exhaustive()
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        self.pool.retire(self.id, &self.homes);
    }
}

/// Cancels a request when its client drops it before the end.
#[derive(Debug)]
struct CancelOnDrop {
    handle: Arc<ModelHandle>,
    /// `None` once the request has ended.
    location: Option<Location>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(location) = self.location.take() {
            self.handle.pool.cancel(&location);
        }
    }
}

/// The future response of a request. Dropping it cancels the request.
#[derive(Debug)]
pub struct ResponseFuture(Parts);

#[derive(Debug)]
enum Parts {
    /// It runs as one request.
    Whole(RowFuture),
    /// Each of its rows runs as a request.
    Rows(RowFutures),
}

/// The future response of what runs as one request.
#[derive(Debug)]
struct RowFuture {
    receiver: oneshot::Receiver<Waiting>,
    cancel: CancelOnDrop,
}

/// The future responses of the rows of a request.
#[derive(Debug)]
struct RowFutures {
    /// Those without a response, from the first row on.
    rows: VecDeque<RowFuture>,
    /// Of the rows before them.
    replies: Vec<Waiting>,
    /// `None` once the request has ended.
    observed: Option<ObservedSteps>,
}

impl RowFuture {
    fn poll_response(&mut self, context: &mut Context<'_>) -> Poll<Result<Waiting, InferError>> {
        let answer = ready!(Pin::new(&mut self.receiver).poll(context));
        self.cancel.location = None;
        Poll::Ready(answer.map_err(|_| self.cancel.handle.pool.refusal()))
    }
}

impl RowFutures {
    /// Takes the responses in the order of the rows. An error of a row is the request's, once all rows before it have
    /// replied; the rows behind it are cancelled.
    fn poll_reply(&mut self, context: &mut Context<'_>) -> Poll<Result<Response, InferError>> {
        while let Some(row) = self.rows.front_mut() {
            let waiting = match ready!(row.poll_response(context)) {
                Ok(waiting) => waiting,
                Err(error) => return Poll::Ready(self.ended(Err(error))),
            };
            if let Err(error) = waiting.reply {
                return Poll::Ready(self.ended(Err(error)));
            }
            self.replies.push(waiting);
            self.rows.pop_front();
        }
        let replies = std::mem::take(&mut self.replies).into_iter().map(|waiting| waiting.reply);
        let joined = replies.collect::<Result<Vec<Response>, InferError>>().and_then(rows::joined);
        Poll::Ready(self.ended(joined))
    }

    fn ended(&mut self, reply: Result<Response, InferError>) -> Result<Response, InferError> {
        self.rows.clear();
        if let Some(mut observed) = self.observed.take() {
            match &reply {
                Ok(_) => {
                    observed.responded(false);
                    observed.ended(RequestEnd::Completed);
                }
                // The rows were checked before any was admitted.
                Err(InferError::Invalid(_)) => observed.refused(),
                Err(error) => observed.ended(error.end()),
            }
        }
        reply
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response, InferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Parts::Whole(row) => row.poll_response(context).map(|answer| answer.and_then(|waiting| waiting.reply)),
            Parts::Rows(rows) => rows.poll_reply(context),
        }
    }
}

/// The responses of a decoupled request, in order.
#[derive(Debug)]
pub struct ResponseStream {
    receiver: mpsc::UnboundedReceiver<Waiting>,
    paused: Arc<AtomicBool>,
    cancel: CancelOnDrop,
}

impl ResponseStream {
    /// Returns the next response; `None` after the last response of a successful request.
    ///
    /// # Errors
    /// If the request ended otherwise; nothing follows.
    pub async fn next(&mut self) -> Option<Result<Response, InferError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next response; see [`Self::next`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Response, InferError>>> {
        let reply = ready!(self.receiver.poll_recv(context)).map(|waiting| waiting.reply);
        if !matches!(reply, Some(Ok(_))) {
            self.cancel.location = None;
        }
        // A request sets the flag before it sends its last response, so the flag cannot be missed here.
        if let Some(location) = &self.cancel.location
            && self.receiver.is_empty()
            && self.paused.swap(false, Ordering::AcqRel)
        {
            self.cancel.handle.pool.resume(location);
        }
        Poll::Ready(reply)
    }
}
