//! The result of a batch's run, before it is distributed to the requests.

use std::time::Instant;

use paternoster_batching::{Ns, RowOutcome};
use paternoster_engine::{RowDelay, RowFailure};
use paternoster_observe::ExecutionTimings;

use super::{Response, pieces::Piece};

/// The result of a batch.
pub(super) struct Ran {
    /// Its outputs; `None` if the host has not taken them yet.
    pub(super) outputs: Option<Outputs>,
    pub(super) outcomes: Vec<RowOutcome>,
    pub(super) failures: Vec<RowFailure>,
    pub(super) delays: Vec<RowDelay>,
    pub(super) timings: ExecutionTimings,
}

/// The outputs of a batch.
#[derive(Default)]
pub(super) struct Outputs {
    /// One per part, if the task ran the whole model; otherwise empty.
    pub(super) responses: Vec<Response>,
    /// Pieces of replies that a stage made, each with its part's number.
    pub(super) pieces: Vec<(usize, Piece)>,
    /// Responses of nodes that stream them, each with its part's number.
    pub(super) streamed: Vec<(usize, Response)>,
    /// Parts whose outputs cannot be kept, with the reason.
    pub(super) failures: Vec<(usize, String)>,
}

impl Ran {
    pub(super) fn took_ns(&self) -> Ns {
        let ExecutionTimings { compute_input_ns, compute_infer_ns, compute_output_ns } = self.timings;
        compute_input_ns + compute_infer_ns + compute_output_ns
    }
}

/// Returns the nanoseconds from one instant to a later one.
pub(super) fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}
