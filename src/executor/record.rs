//! What the pool keeps of a request while it is in flight.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::{mpsc, oneshot};

use super::{InferError, InputTensor, ModelHandle, Response};
use crate::{
    batching::{End, Lengths, Ns, Rejection, ReqId},
    observe::{ExecutionTimings, FailureReason, RequestTimings},
};

/// What a client hears of its request.
pub(super) type Reply = Result<Response, InferError>;

/// Where a request's answer goes.
pub(super) enum Sink {
    /// Exactly one answer.
    Once(oneshot::Sender<Reply>),
    /// Any number of responses, then the channel closes.
    Stream(mpsc::UnboundedSender<Reply>),
}

/// The inputs of a request, shared with the tasks that run it.
pub(super) struct Payload {
    pub(super) rows: u32,
    /// The request's own lengths along padded axes.
    pub(super) lengths: Lengths,
    pub(super) inputs: Vec<Option<InputTensor>>,
}

/// A request in flight.
pub(super) struct Record {
    pub(super) req: ReqId,
    pub(super) handle: Arc<ModelHandle>,
    pub(super) payload: Arc<Payload>,
    pub(super) sink: Sink,
    /// Responses that its tasks made and the core has not let go yet.
    pub(super) responses: VecDeque<Response>,
    /// What the engine said when a task of it failed.
    pub(super) error: Option<String>,
    /// How often it ran.
    pub(super) step: u32,
    pub(super) arrived: Ns,
    /// Since when it waits for a lane.
    pub(super) waiting_since: Ns,
    /// Whether it never ran.
    pub(super) queued: bool,
    pub(super) queue_ns: Ns,
    pub(super) compute: ExecutionTimings,
}

impl Record {
    /// The request was given to a lane.
    pub(super) fn launched(&mut self) {
        if self.queued {
            self.queued = false;
            self.handle.stats.left_queue();
        }
    }

    /// A task of it ran from `started` to `now`.
    pub(super) fn ran(&mut self, started: Ns, now: Ns, timings: &ExecutionTimings) {
        self.queue_ns += started.saturating_sub(self.waiting_since);
        self.waiting_since = now;
        self.step += 1;
        self.compute.compute_input_ns += timings.compute_input_ns;
        self.compute.compute_infer_ns += timings.compute_infer_ns;
        self.compute.compute_output_ns += timings.compute_output_ns;
    }

    /// Sends the oldest response that was held.
    pub(super) fn emit(&mut self, step: u32) {
        let Some(response) = self.responses.pop_front() else { return };
        self.handle.stats.response(step, false, &self.compute);
        if let Sink::Stream(sender) = &self.sink {
            // A client that is gone has cancelled, or will.
            let _ = sender.send(Ok(response));
        }
    }

    /// Counts and answers the request's end.
    pub(super) fn finish(mut self, end: End, now: Ns) {
        let stats = &self.handle.stats;
        if self.queued {
            stats.left_queue();
        }
        let total_ns = now.saturating_sub(self.arrived);
        let error = match end {
            End::Completed => {
                let timings = RequestTimings {
                    total_ns,
                    queue_ns: self.queue_ns,
                    compute_input_ns: self.compute.compute_input_ns,
                    compute_infer_ns: self.compute.compute_infer_ns,
                    compute_output_ns: self.compute.compute_output_ns,
                };
                stats.success(self.payload.rows, &timings);
                None
            }
            End::Failed => Some(InferError::Engine(self.error.take().unwrap_or_default())),
            End::Rejected(Rejection::QueueFull) => Some(InferError::QueueFull),
            End::Rejected(Rejection::QueueTimeout) => Some(InferError::QueueTimeout),
            End::Rejected(Rejection::Late) => Some(InferError::Late),
            End::Expired => Some(InferError::Expired),
            End::Cancelled => Some(InferError::Cancelled),
        };
        if let Some(reason) = failure_reason(end) {
            stats.failure(reason, total_ns);
        }
        // A receiver that is gone needs no answer.
        match (self.sink, error) {
            (Sink::Once(sender), Some(error)) => drop(sender.send(Err(error))),
            (Sink::Once(sender), None) => {
                let response = self.responses.pop_back();
                let missing = || InferError::Engine("the model ended without a response".to_owned());
                drop(sender.send(response.ok_or_else(missing)));
            }
            (Sink::Stream(sender), Some(error)) => drop(sender.send(Err(error))),
            (Sink::Stream(_), None) => {}
        }
    }
}

fn failure_reason(end: End) -> Option<FailureReason> {
    match end {
        End::Completed => None,
        End::Failed => Some(FailureReason::Backend),
        End::Rejected(_) => Some(FailureReason::Rejected),
        End::Expired => Some(FailureReason::Expired),
        End::Cancelled => Some(FailureReason::Canceled),
    }
}
