//! The pool's record of a request in flight.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use paternoster_batching::{End, Instant, Ns, Rejection, ReqId};
use paternoster_model::{InputTensor, Lengths, Next, RowOutcome};
use paternoster_observe::{
    Charge, ObservedRequest, RequestEnd, TaskRun,
    budget::{Exhausted, Reservation},
};
use tokio::sync::{mpsc, oneshot};

use super::{
    Backlog, BacklogShare, CardTensors, InferError, ModelHandle, Response, Unread,
    cells::UnfoldedState,
    location::CurrentShard,
    pieces::{Piece, assemble},
};

/// The reply to a client.
pub(super) type ResponseResult = Result<Response, InferError>;

/// A response that is counted in the backlog, and charged to the client's request that its own is derived from, as long
/// as this value exists.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) reply: ResponseResult,
    _held: Option<BacklogShare>,
    _charged: Option<Reservation>,
}

/// The channel to the client.
pub(super) enum Sink {
    /// Exactly one response.
    Once(oneshot::Sender<Waiting>),
    /// Any number of responses; then the channel closes.
    Stream {
        sender: mpsc::UnboundedSender<Waiting>,
        /// Whether the request makes no further response until the client has taken the pending ones. Set before the
        /// last of them is sent, and reset by the receiver, which then resumes the request.
        paused: Arc<AtomicBool>,
    },
}

/// The inputs of a request, shared with the tasks that run it.
pub(super) struct Payload {
    pub(super) rows: u32,
    /// The request's own lengths along padded axes.
    pub(super) lengths: Lengths,
    pub(super) inputs: Vec<Option<InputTensor>>,
    /// The tensors that are in the memory of the card that runs the request.
    pub(super) on_card: Option<Box<CardTensors>>,
    /// The backlog that counts its waiting responses; `None` if they are not counted.
    pub(super) backlog: Option<Arc<Backlog>>,
}

/// A request in flight.
pub(super) struct Record {
    pub(super) req: ReqId,
    pub(super) handle: Arc<ModelHandle>,
    pub(super) payload: Arc<Payload>,
    /// Its data between cells, if it unfolds.
    pub(super) unfolded_state: Option<Arc<UnfoldedState>>,
    pub(super) sink: Sink,
    /// The account that its response is charged to, if it is derived from another request.
    pub(super) charge: Option<Charge>,
    /// Where its submitter finds it, if it may move to another device.
    pub(super) current_shard: Option<Arc<CurrentShard>>,
    /// Responses that its tasks made and that the core has not released yet.
    pub(super) responses: VecDeque<(Response, Option<BacklogShare>)>,
    /// Parts of its response, if each task makes only a part of it.
    pub(super) pieces: Vec<Piece>,
    /// The engine's error when one of its tasks failed.
    pub(super) error: Option<String>,
    /// Set if it failed because a response was not allowed to wait.
    pub(super) unread: Option<Unread>,
    /// Set if it failed because there was no memory for the state of its sequence.
    pub(super) no_state: Option<Exhausted>,
    /// Number of times that it ran.
    pub(super) step: u32,
    /// For each part of its completed tasks whose outputs the host has not taken yet, in order: whether they include a
    /// response of a stream.
    pub(super) unread_outputs: VecDeque<bool>,
    /// Responses that the core has released but that are still among those outputs, by number.
    pub(super) due_emits: VecDeque<u32>,
    /// Set once the core has ended it. It is answered once its outputs are taken and the requests before it are
    /// answered.
    pub(super) ended: Option<End>,
    /// Whether it must fail because outputs were lost, or because its client leaves too many responses unread.
    pub(super) is_lost: bool,
    /// Its times, which statistics, the timeline and its trace are made of.
    pub(super) observed: ObservedRequest,
    /// Whether it pauses until its client has taken its responses.
    pub(super) awaits_client: bool,
    /// End of a pause that its program asked for.
    pub(super) delayed_until: Option<Instant>,
    /// Total length of the pauses that its program asked for.
    pub(super) delayed_ns: Ns,
}

impl Waiting {
    /// A response that holds nothing.
    fn uncounted(reply: ResponseResult) -> Self {
        Self { reply, _held: None, _charged: None }
    }
}

impl Sink {
    /// Answers a request that is not admitted.
    pub(super) fn refuse(self, error: InferError) {
        self.send(Waiting::uncounted(Err(error)));
    }

    /// Sends the last response.
    fn send(self, waiting: Waiting) {
        // If the receiver is gone, no response is needed.
        match self {
            Self::Once(sender) => drop(sender.send(waiting)),
            Self::Stream { sender, .. } => drop(sender.send(waiting)),
        }
    }
}

impl Payload {
    /// Whether an output is written in place, in a card's memory.
    pub(super) fn is_placed(&self, output: usize) -> bool {
        self.on_card.as_ref().is_some_and(|tensors| tensors.output(output).is_some())
    }

    /// Whether other responses wait before the next one.
    pub(super) fn waits_behind_others(&self) -> bool {
        self.backlog.as_ref().is_some_and(|backlog| backlog.waiting_bytes() > 0)
    }
}

impl Record {
    /// Creates the record of a request that no device has yet.
    pub(super) fn new(
        handle: Arc<ModelHandle>,
        payload: Arc<Payload>,
        unfolded_state: Option<Arc<UnfoldedState>>,
        sink: Sink,
        charge: Option<Charge>,
        current_shard: Option<Arc<CurrentShard>>,
        observed: ObservedRequest,
    ) -> Self {
        Self {
            req: ReqId::default(),
            handle,
            payload,
            unfolded_state,
            sink,
            charge,
            current_shard,
            responses: VecDeque::new(),
            pieces: Vec::new(),
            error: None,
            unread: None,
            no_state: None,
            step: 0,
            unread_outputs: VecDeque::new(),
            due_emits: VecDeque::new(),
            ended: None,
            is_lost: false,
            observed,
            awaits_client: false,
            delayed_until: None,
            delayed_ns: 0,
        }
    }

    /// Records that one of its tasks ran, and returns how long it had waited for it.
    pub(super) fn ran(&mut self, run: &TaskRun) -> Ns {
        self.step += 1;
        self.observed.ran(run)
    }

    /// Stores the response of a task for `rows` of the request.
    pub(super) fn take(&mut self, response: Response, rows: Range<u32>) {
        if rows == (0..self.payload.rows) {
            let held = self.payload.backlog.as_ref().map(|backlog| backlog.hold(response.kept_bytes()));
            self.responses.push_back((response, held));
            return;
        }
        let outputs = response.outputs.into_iter().enumerate();
        self.pieces.extend(outputs.map(|(output, tensor)| Piece { output, rows: rows.clone(), tensor }));
    }

    /// Stores a response of a request that cannot pause. Returns false if the request fails because its client leaves
    /// too many responses unread.
    pub(super) fn take_streamed(&mut self, response: Response) -> bool {
        let held = self.payload.backlog.as_ref().map(|backlog| backlog.try_hold_streamed(response.kept_bytes()));
        match held.transpose() {
            Ok(held) => self.responses.push_back((response, held)),
            Err(unread) => self.unread = Some(unread),
        }
        self.unread.is_none()
    }

    /// Pauses rows that made a response and would make another, if too many responses wait for the client.
    pub(super) fn pause(&mut self, outcomes: &mut [RowOutcome]) {
        let Sink::Stream { paused, .. } = &self.sink else { return };
        let goes_on = |outcome: &RowOutcome| matches!(outcome.next, Next::Skip(_));
        if let Some(backlog) = self.payload.backlog.as_ref().filter(|backlog| backlog.is_full())
            && outcomes.iter().any(goes_on)
        {
            backlog.paused();
            self.awaits_client = true;
            paused.store(true, Ordering::Release);
            outcomes.iter_mut().filter(|outcome| goes_on(outcome)).for_each(|outcome| outcome.next = Next::Pause);
        }
    }

    /// Returns the single response of a request that has completed.
    fn reply(&mut self) -> ResponseResult {
        if let Some(unfolded_state) = &self.unfolded_state {
            let mut reply = unfolded_state.reply().map_err(InferError::Engine);
            if let Ok(response) = &mut reply
                && self.payload.waits_behind_others()
            {
                response.detach();
            }
            return reply;
        }
        let response = match self.responses.pop_back() {
            Some((response, _)) => Ok(response),
            None if self.pieces.is_empty() => Err("the model ended without a response".to_owned()),
            None => {
                let is_placed = |output| self.payload.is_placed(output);
                assemble(&self.handle.loaded.spec, self.payload.rows, &self.pieces, is_placed)
            }
        };
        response.map_err(InferError::Engine)
    }

    /// Sends the oldest held response, once the host has it.
    pub(super) fn emit(&mut self, now: Instant, step: u32) {
        if !self.unread_outputs.is_empty() && self.responses.is_empty() || !self.due_emits.is_empty() {
            self.due_emits.push_back(step);
        } else {
            self.send_oldest(now, step);
        }
    }

    /// Sends responses that are due and that the host has.
    pub(super) fn emit_due(&mut self, now: Instant) {
        while !self.responses.is_empty()
            && let Some(step) = self.due_emits.pop_front()
        {
            self.send_oldest(now, step);
        }
    }

    fn send_oldest(&mut self, now: Instant, step: u32) {
        let Some((response, held)) = self.responses.pop_front() else { return };
        self.observed.responded(&self.handle.observed, now.as_ns(), step);
        if let Sink::Stream { sender, .. } = &self.sink {
            // If the client is gone, the request has been or will be cancelled.
            let _ = sender.send(Waiting { reply: Ok(response), _held: held, _charged: None });
        }
    }

    /// Sends the response of a request that the core has ended.
    pub(super) fn finish(mut self, end: End, now: Instant) {
        let reply = match end {
            // All responses of a stream have been sent already.
            End::Completed if matches!(self.sink, Sink::Stream { .. }) => None,
            End::Completed => Some(self.reply()),
            End::Failed => {
                let lacking = self.unfolded_state.as_ref().and_then(|unfolded_state| unfolded_state.lacking());
                Some(Err(match (self.unread, self.no_state, lacking) {
                    (Some(unread), _, _) => unread.into(),
                    (None, Some(full), _) => InferError::NoState(full),
                    (None, None, Some(full)) => InferError::NoRoom(full),
                    (None, None, None) => InferError::Engine(self.error.take().unwrap_or_default()),
                }))
            }
            End::Rejected(Rejection::QueueFull) => Some(Err(InferError::QueueFull)),
            End::Rejected(Rejection::QueueTimeout) => Some(Err(InferError::QueueTimeout)),
            End::Rejected(Rejection::Late) => Some(Err(InferError::Late)),
            End::Rejected(Rejection::NoMemory) => Some(Err(InferError::NoMemory)),
            End::Rejected(Rejection::NotStarted) => Some(Err(self.not_started())),
            End::Expired => Some(Err(InferError::Expired)),
            End::Cancelled => Some(Err(InferError::Cancelled)),
        };
        self.answer(reply, now);
    }

    /// Answers a request that the pool abandons.
    pub(super) fn refuse(self, error: InferError, now: Instant) {
        self.answer(Some(Err(error)), now);
    }

    /// Records the request's end and sends its response, if there is one.
    fn answer(self, reply: Option<ResponseResult>, now: Instant) {
        let waiting = reply.map(|reply| self.waiting(reply));
        let version = &self.handle.observed;
        let end = match waiting.as_ref().map(|waiting| &waiting.reply) {
            None => RequestEnd::Completed,
            Some(Ok(_)) => {
                self.observed.answered(version, now.as_ns());
                RequestEnd::Completed
            }
            Some(Err(error)) => error.end(),
        };
        self.observed.ended(version, now.as_ns(), end);
        if let Some(waiting) = waiting {
            self.sink.send(waiting);
        }
    }

    /// Counts a response in the backlog and charges it, or replaces it by an error.
    fn waiting(&self, reply: ResponseResult) -> Waiting {
        let Ok(response) = reply else { return Waiting::uncounted(reply) };
        let bytes = response.kept_bytes();
        let held = self.payload.backlog.as_ref().map(|backlog| backlog.try_hold(bytes)).transpose();
        let charged = self.charge.as_ref().map(|charge| {
            let mut charged = charge.bytes();
            charged.grow_now(bytes).map(|()| charged)
        });
        match (held, charged.transpose()) {
            (Err(unread), _) => Waiting::uncounted(Err(unread.into())),
            (_, Err(full)) => Waiting::uncounted(Err(InferError::NoRoom(full))),
            (Ok(held), Ok(charged)) => Waiting { reply: Ok(response), _held: held, _charged: charged },
        }
    }

    fn not_started(&self) -> InferError {
        let model = &self.handle.loaded.spec.name;
        let id = self.unfolded_state.as_ref().and_then(|unfolded_state| unfolded_state.sequence());
        let sequence = id.map_or_else(String::new, |id| format!(" for sequence {id}"));
        InferError::Invalid(format!(
            "inference request{sequence} to model '{model}' must specify the START flag on the first request of the \
             sequence"
        ))
    }
}
