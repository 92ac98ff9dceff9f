//! A task together with its requests, as a device receives it, and the result of its run before it is distributed to
//! the requests.

use std::{sync::Arc, time::Instant};

use paternoster_batching::{Bucket, ReqId, RowSpan, Task};
use paternoster_device::WorkFailure;
use paternoster_engine::{RowDelay, RowFailure, StopSignal};
use paternoster_model::{Next, RowOutcome};
use paternoster_observe::{ExecutionTimings, ModelStats, TokenCounts};
use smallvec::SmallVec;
use tracing::{debug, error};

use super::{
    Response, cells::UnfoldedState, gather::Part, pieces::Piece, record::Payload, short_runs::Size, stages::Programs,
    version::ServedVersion,
};

/// A member with at most 1 / `SMALL_PART` of a batch's rows is copied if its response has to wait.
const SMALL_PART: u32 = 2;

/// A task with everything it needs to run.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) model: Arc<ServedVersion>,
    /// One per span of the task's rows.
    pub(super) members: Vec<Member>,
    /// Signal that stops it early.
    pub(super) stop: Arc<StopSignal>,
}

/// Consecutive rows of one request in a task.
pub(super) struct Member {
    pub(super) span: RowSpan,
    pub(super) payload: Arc<Payload>,
    /// The request's data between its cells, if it unfolds.
    pub(super) unfolded_state: Option<Arc<UnfoldedState>>,
    /// Number of earlier runs of the request.
    pub(super) step: u32,
    /// Set if it belongs to another version or cell than the task.
    pub(super) guest: Option<ForeignMember>,
}

/// The version and cell of a node in a task that another cell of the same kind leads. The version may be the task's
/// own.
pub(super) struct ForeignMember {
    stats: Arc<ModelStats>,
    cell: u16,
}

impl ForeignMember {
    /// Creates the guest entry of a node.
    pub(super) fn new(stats: &Arc<ModelStats>, cell: usize) -> Self {
        Self { stats: Arc::clone(stats), cell: cell as u16 }
    }
}

/// The result of a task.
pub(super) enum Finished {
    Completed(TaskOutput),
    Failed(String),
}

impl Member {
    /// Returns the rows of its request's inputs.
    pub(super) fn part(&self) -> Part<'_> {
        Part { inputs: &self.payload.inputs, rows: self.payload.rows, start: self.span.start, count: self.span.count }
    }
}

impl Job {
    /// Returns the request that a row of the batch belongs to.
    pub(super) fn member_of_row(&self, row: u32) -> Option<ReqId> {
        let mut end = 0;
        let member = self.members.iter().find(|member| {
            end += member.span.rows();
            row < end
        });
        member.map(|member| member.span.req)
    }

    /// Returns the request that all rows belong to, if it is only one.
    pub(super) fn only_member(&self) -> Option<ReqId> {
        let req = self.members.first()?.span.req;
        self.members.iter().all(|member| member.span.req == req).then_some(req)
    }

    /// Returns the rows and the input bytes of its requests. Split requests count with all their bytes.
    pub(super) fn size(&self) -> Size {
        let inputs = self.members.iter().flat_map(|member| member.payload.inputs.iter().flatten());
        Size { rows: self.task.row_count(), input_bytes: inputs.map(|input| input.data.len()).sum() }
    }

    /// Groups the members by version and cell, with the version's counters and the cell's number.
    pub(super) fn by_cell(&self) -> impl Iterator<Item = (&ModelStats, u16, &[Member])> {
        let of = |member: &Member| member.guest.as_ref().map(|guest| (Arc::as_ptr(&guest.stats), guest.cell));
        self.members.chunk_by(move |one, other| of(one) == of(other)).map(|members| {
            let guest = members.first().and_then(|member| member.guest.as_ref());
            let own = (&*self.model.stats, self.task.cell.0);
            let (stats, cell) = guest.map_or(own, |guest| (&*guest.stats, guest.cell));
            (stats, cell, members)
        })
    }

    /// Returns the rows of each version, over all cells, with its counters.
    fn by_version(&self) -> SmallVec<[(&ModelStats, u32); 2]> {
        let mut versions: SmallVec<[(&ModelStats, u32); 2]> = SmallVec::new();
        for (stats, _, members) in self.by_cell() {
            let own = members.iter().map(|member| member.span.rows()).sum();
            match versions.iter_mut().find(|(known, _)| std::ptr::eq(*known, stats)) {
                Some((_, rows)) => *rows += own,
                None => versions.push((stats, own)),
            }
        }
        versions
    }

    /// Counts an execution for each version in the task if requests may leave with it: batch sizes in the statistics
    /// refer to the batches that requests leave with.
    pub(super) fn count_execution(&self, output: &TaskOutput) {
        if self.is_last_stage() || output.outcomes.iter().any(|outcome| outcome.next == Next::Done) {
            for (stats, rows) in self.by_version() {
                stats.execution(rows, &output.timings);
            }
            if let Some(tokens) = self.tokens() {
                self.model.stats.tokens(tokens);
            }
        }
    }

    /// Returns the positions of the batch along the first padded axis, if it has one.
    fn tokens(&self) -> Option<TokenCounts> {
        let Bucket { rows, class } = &self.task.bucket;
        let longest = class.0.first().copied()?;
        let of = |member: &Member| member.payload.lengths.first().map_or(0, |&length| u64::from(length));
        let own = self.members.iter().map(|member| of(member) * u64::from(member.span.rows())).sum();
        let all = u64::from(*rows) * u64::from(longest);
        Some(TokenCounts { own, padding: all.saturating_sub(own) })
    }

    fn is_last_stage(&self) -> bool {
        match &self.model.programs.0 {
            Programs::Whole(_) | Programs::Cells(_) => true,
            Programs::Cut(stages) => usize::from(self.task.cell.0) + 1 == stages.stages.len(),
        }
    }

    /// Copies small parts of the batch whose responses have to wait, because each would otherwise keep the memory of
    /// the whole batch.
    pub(super) fn detach_responses(&self, outputs: &mut Outputs) {
        let rows = self.task.row_count();
        let is_kept = |member: &Member| member.span.rows() * SMALL_PART <= rows && member.payload.waits_behind_others();
        for (member, response) in self.members.iter().zip(&mut outputs.responses) {
            if is_kept(member) {
                response.detach();
            }
        }
        for (part, piece) in &mut outputs.pieces {
            if self.members.get(*part).is_some_and(is_kept) {
                piece.tensor.detach();
            }
        }
    }

    /// Returns the error text of a failed task.
    pub(super) fn failed(&self, failure: WorkFailure) -> String {
        let spec = &self.model.spec;
        if let WorkFailure::Panicked(panic) = failure {
            error!(model = spec.name, version = spec.version, %panic, "the program panicked");
            return format!("the program of model '{}' panicked", spec.name);
        }
        let reason = failure.to_string();
        // Clients can cause this at will and receive the error, so it is not worth a warning.
        debug!(model = spec.name, version = spec.version, reason, "task failed");
        reason
    }
}

/// The result of a batch.
pub(super) struct TaskOutput {
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
    /// Pieces of responses that a stage made, each with its part's number.
    pub(super) pieces: Vec<(usize, Piece)>,
    /// Responses of nodes that stream them, each with its part's number.
    pub(super) streamed: Vec<(usize, Response)>,
    /// Parts whose outputs cannot be kept, with the reason.
    pub(super) failures: Vec<(usize, String)>,
}

/// Returns the nanoseconds from one instant to a later one.
pub(super) fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}
