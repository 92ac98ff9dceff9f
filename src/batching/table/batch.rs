//! A batch with its parts. Each part is a staircase of steps, most advanced first, each with the rows that have come
//! equally far.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::{places::Places, spare::SpareRows};
use crate::batching::{CellId, Ns, PartOrder, ShapeClass, TaskId, ids::PartIx, ledger::BatchSpan, queue::BatchKey};

/// A batch from its *new* to the end of its last part: what its parts have in common, and the parts.
#[derive(Debug)]
pub(in crate::batching) struct Batch {
    /// Ascending in order of creation.
    pub(in crate::batching) number: u64,
    /// What newcomers must agree with.
    pub(in crate::batching) batch_key: BatchKey,
    /// Padded shape that all its rows share, fixed when it is made: it is the stride of its rows in the buffers.
    pub(in crate::batching) class: ShapeClass,
    pub(in crate::batching) created: Ns,
    /// No newcomer may join any more: it has returned a lease, or a split is foreseen or has happened.
    pub(in crate::batching) sealed: bool,
    /// In which order its parts run.
    pub(in crate::batching) order: PartOrder,
    /// Oldest first: the batch in one piece, or the parts of a split.
    pub(in crate::batching) parts: SmallVec<[Part; 1]>,
    pub(in crate::batching) places: Places,
    /// By boundary: the buffer that it holds.
    pub(in crate::batching) leases: SmallVec<[Option<u16>; 8]>,
    /// By stage: rows that have completed it, dead ones included (DVABatch's status map).
    pub(in crate::batching) completed: SmallVec<[u32; 4]>,
}

impl Batch {
    /// The steps of all its parts.
    pub(in crate::batching) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.parts.iter().flat_map(|part| &part.steps)
    }

    /// Where a part is among its parts.
    pub(super) fn position(&self, ix: PartIx) -> Option<usize> {
        match &self.parts[..] {
            [only] => (only.ix == ix).then_some(0),
            parts => parts.binary_search_by_key(&ix, |part| part.ix).ok(),
        }
    }
}

/// Rank of a queued part among the others: by the level of its first request, then by its turn; parts that run
/// pipelined by how far they have come.
pub(in crate::batching) type PartRank = (u64, u64, u16, PartIx);

/// Rows of a batch that travel together.
#[derive(Debug)]
pub(in crate::batching) struct Part {
    pub(in crate::batching) ix: PartIx,
    /// Best priority level among its requests.
    pub(in crate::batching) level: u64,
    /// The oldest batch first, but a part that repeats a stage goes behind those that are there, and requests that
    /// start again have the turn of the batch that failed.
    pub(in crate::batching) precedence: u64,
    /// Most advanced first.
    pub(in crate::batching) steps: SmallVec<[Step; 1]>,
    /// Its entry in `queued`, when its foot waits for a lane.
    pub(in crate::batching) queued_as: Option<PartRank>,
}

impl Part {
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

    /// Puts a step back among the others, by how far it has come.
    pub(in crate::batching) fn insert_step(&mut self, next: CellId, rows: Vec<BatchSpan>, waits_ns: Ns) {
        let at = self.steps.iter().position(|step| step.next < next).unwrap_or(self.steps.len());
        self.steps.insert(at, Step { waits_ns, ..Step::queued(next, rows) });
    }

    /// Joins neighbouring steps that wait for the same stage; returns how many joined.
    pub(super) fn merge(&mut self, spare: &mut SpareRows) -> u32 {
        let steps = &mut self.steps;
        if steps.len() < 2 {
            return 0;
        }
        let (mut merged, mut at) = (0, 1);
        while at < steps.len() {
            let (before, behind) = (&steps[at - 1], &steps[at]);
            if before.next == behind.next && before.is_queued() && behind.is_queued() {
                let Step { rows, waits_ns, .. } = steps.remove(at);
                let into = &mut steps[at - 1];
                into.waits_ns = into.waits_ns.max(waits_ns);
                into.rows.extend_from_slice(&rows);
                into.rows.sort_unstable_by_key(|span| span.rows.at);
                spare.recycle(rows);
                merged += 1;
            } else {
                at += 1;
            }
        }
        merged
    }

    /// Files it among the queued parts, or out of them, as its foot is.
    pub(super) fn file(&mut self, order: PartOrder, queued: &mut BTreeSet<PartRank>) {
        let rank = self.foot().filter(|foot| foot.is_queued()).map(|foot| {
            let progress = match order {
                PartOrder::DepthFirst => 0,
                PartOrder::Pipelined => foot.next.0,
            };
            (self.level, self.precedence, progress, self.ix)
        });
        if rank != self.queued_as {
            if let Some(before) = std::mem::replace(&mut self.queued_as, rank) {
                queued.remove(&before);
            }
            queued.extend(rank);
        }
    }
}

/// What a step is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::batching) enum StepState {
    /// It may be launched, unless steps behind it have to catch up first.
    Queued,
    /// This task runs it.
    Running(TaskId),
}

/// Rows of a part that have come equally far.
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
    /// A step that has not waited for any newcomers.
    pub(super) fn queued(next: CellId, rows: Vec<BatchSpan>) -> Self {
        Self { next, rows, state: StepState::Queued, waits_ns: 0, is_forsaken: false }
    }

    pub(in crate::batching) fn row_count(&self) -> u32 {
        self.rows.iter().map(|span| span.rows.count).sum()
    }

    pub(in crate::batching) fn is_queued(&self) -> bool {
        self.state == StepState::Queued
    }
}
