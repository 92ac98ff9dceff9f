//! A request as it is submitted to the state.

use std::sync::Arc;

use paternoster_batching::Ns;
use paternoster_model::unfold::Unfolded;

use crate::{InferRequest, cells::JourneyMemory, location::CurrentShard, record::Sink};

/// A request at submission.
pub(crate) struct Submission {
    pub(crate) request: InferRequest,
    /// The graph that it unfolds into; empty if requests run in batches.
    pub(crate) graph: Box<[Unfolded]>,
    /// The memory that it boards with; `None`: it needs none.
    pub(crate) memory: Option<Arc<JourneyMemory>>,
    pub(crate) sink: Sink,
    /// Where its submitter finds it, if it may move to another device.
    pub(crate) current_shard: Option<Arc<CurrentShard>>,
}

/// Times of a request that count from its submission, in pool time.
#[derive(Clone, Copy)]
pub(crate) struct TimeLimits {
    pub(crate) queue_deadline: Option<Ns>,
    pub(crate) deadline: Option<Ns>,
}
