//! A batch as it travels: a staircase of steps, most advanced first, each with the rows that have come equally far.

use smallvec::SmallVec;

use super::{
    CellId, Ns, RowSpan, TaskId,
    ids::{BatchId, LineageIx, RequestIx},
};

/// Consecutive rows of one request in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchSpan {
    pub(super) request_ix: RequestIx,
    /// Which boarding of the request it belongs to: spans of an earlier one are masked.
    pub(super) boarding: u32,
    pub(super) rows: RowSpan,
}

/// What a step is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepState {
    /// It may be launched, unless steps behind it have to catch up first.
    Queued,
    /// This task runs it.
    Running(TaskId),
}

/// Rows of a batch that have come equally far.
#[derive(Debug)]
pub(super) struct Step {
    /// The stage that they run next, or run now.
    pub(super) next: CellId,
    /// Its rows by place; those of one request are neighbours.
    pub(super) rows: Vec<BatchSpan>,
    pub(super) state: StepState,
    /// How long it has waited, and is bound to wait, for newcomers to catch up.
    pub(super) waits_ns: Ns,
    /// It runs, but none of its rows is live any more: nobody waits for it.
    pub(super) is_forsaken: bool,
}

impl Step {
    pub(super) fn row_count(&self) -> u32 {
        self.rows.iter().map(|span| span.rows.count).sum()
    }

    pub(super) fn is_queued(&self) -> bool {
        self.state == StepState::Queued
    }
}

/// Where a queued batch stands among the others: by the level of its first request, then by its turn; pipelined parts
/// by how far they have come.
pub(super) type BatchRank = (u64, u64, u16, BatchId);

/// Requests that travel together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) id: BatchId,
    pub(super) lineage: LineageIx,
    /// Best priority level among its requests.
    pub(super) level: u64,
    /// The oldest lineage first, but one that repeats a stage goes behind those that are there, and requests that start
    /// again have the turn of the batch that failed.
    pub(super) precedence: u64,
    /// Most advanced first.
    pub(super) steps: SmallVec<[Step; 1]>,
    /// Its key in `queued`, when its foot waits for a lane.
    pub(super) queued_as: Option<BatchRank>,
}

impl Batch {
    /// The least advanced step with a live row: the one that runs.
    pub(super) fn foot(&self) -> Option<&Step> {
        self.steps.get(self.foot_at()?)
    }

    /// Where the foot is among the steps.
    pub(super) fn foot_at(&self) -> Option<usize> {
        self.steps.iter().rposition(|step| !step.is_forsaken)
    }

    pub(super) fn row_count(&self) -> u32 {
        self.steps.iter().map(Step::row_count).sum()
    }
}
