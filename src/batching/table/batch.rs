//! A batch as it travels: a staircase of steps, most advanced first, each with the rows that have come equally far.

use smallvec::SmallVec;

use crate::batching::{
    CellId, Ns, TaskId,
    ids::{BatchId, LineageIx},
    ledger::BatchSpan,
};

/// What a step is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::batching) enum StepState {
    /// It may be launched, unless steps behind it have to catch up first.
    Queued,
    /// This task runs it.
    Running(TaskId),
}

/// Rows of a batch that have come equally far.
#[derive(Debug)]
pub(in crate::batching) struct Step {
    /// The stage that they run next, or run now.
    pub(in crate::batching) next: CellId,
    /// Its rows by place; those of one request are neighbours.
    pub(in crate::batching) rows: Vec<BatchSpan>,
    pub(in crate::batching) state: StepState,
    /// How long it has waited, and is bound to wait, for newcomers to catch up.
    pub(in crate::batching) waits_ns: Ns,
    /// It runs, but none of its rows is live any more: nobody waits for it.
    pub(in crate::batching) is_forsaken: bool,
}

impl Step {
    pub(in crate::batching) fn row_count(&self) -> u32 {
        self.rows.iter().map(|span| span.rows.count).sum()
    }

    pub(in crate::batching) fn is_queued(&self) -> bool {
        self.state == StepState::Queued
    }
}

/// Where a queued batch stands among the others: by the level of its first request, then by its turn; pipelined parts
/// by how far they have come.
pub(in crate::batching) type BatchRank = (u64, u64, u16, BatchId);

/// Requests that travel together.
#[derive(Debug)]
pub(in crate::batching) struct Batch {
    pub(in crate::batching) id: BatchId,
    pub(in crate::batching) lineage: LineageIx,
    /// Best priority level among its requests.
    pub(in crate::batching) level: u64,
    /// The oldest lineage first, but one that repeats a stage goes behind those that are there, and requests that start
    /// again have the turn of the batch that failed.
    pub(in crate::batching) precedence: u64,
    /// Most advanced first.
    pub(in crate::batching) steps: SmallVec<[Step; 1]>,
    /// Its key in `queued`, when its foot waits for a lane.
    pub(in crate::batching) queued_as: Option<BatchRank>,
}

impl Batch {
    /// The least advanced step with a live row: the one that runs.
    pub(in crate::batching) fn foot(&self) -> Option<&Step> {
        self.steps.get(self.foot_at()?)
    }

    /// Where the foot is among the steps.
    pub(in crate::batching) fn foot_at(&self) -> Option<usize> {
        self.steps.iter().rposition(|step| !step.is_forsaken)
    }

    pub(in crate::batching) fn row_count(&self) -> u32 {
        self.steps.iter().map(Step::row_count).sum()
    }
}
