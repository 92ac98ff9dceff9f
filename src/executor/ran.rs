//! What a run of a batch gave, before it is taken to its requests.

use std::time::Instant;

use super::{Response, pieces::Piece};
use crate::{
    batching::{Ns, RowOutcome},
    engine::{RowDelay, RowFailure},
    observe::ExecutionTimings,
};

/// What became of a batch.
pub(super) struct Ran {
    /// Its outputs; none where the host has yet to take them.
    pub(super) outputs: Option<Outputs>,
    pub(super) outcomes: Vec<RowOutcome>,
    pub(super) failures: Vec<RowFailure>,
    pub(super) delays: Vec<RowDelay>,
    pub(super) timings: ExecutionTimings,
}

/// The outputs of a batch.
#[derive(Default)]
pub(super) struct Outputs {
    /// One per part of a task that runs the whole model; else none.
    pub(super) responses: Vec<Response>,
    /// What a stage made of replies, each with its part's number.
    pub(super) pieces: Vec<(usize, Piece)>,
    /// Responses of nodes that answer for themselves, each with its part's number.
    pub(super) streamed: Vec<(usize, Response)>,
    /// Parts whose outputs cannot be kept, and why.
    pub(super) failures: Vec<(usize, String)>,
}

impl Ran {
    pub(super) fn took_ns(&self) -> Ns {
        let ExecutionTimings { compute_input_ns, compute_infer_ns, compute_output_ns } = self.timings;
        compute_input_ns + compute_infer_ns + compute_output_ns
    }
}

/// Nanoseconds from one instant to a later one.
pub(super) fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}
