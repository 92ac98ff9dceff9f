//! A batch with its parts. Each part is a staircase of steps, most advanced first; the rows of a step have progressed
//! equally far.

use std::collections::BTreeSet;

use paternoster_model::CellId;
use smallvec::SmallVec;

use super::{places::Places, spare::SpareRows};
use crate::{Instant, Ns, PartOrder, ShapeClass, TaskId, ids::PartIx, ledger::BatchSpan, queue::BatchKey};

/// A batch, from *new* to the end of its last part: the state shared by its parts, and the parts.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Ascending in order of creation.
    pub(crate) number: u64,
    /// The key that newcomers must match.
    pub(crate) batch_key: BatchKey,
    /// Padded shape of all its rows. Fixed at creation, since it determines the stride of rows in the buffers.
    pub(crate) class: ShapeClass,
    pub(crate) created: Instant,
    /// Whether newcomers are excluded: the batch has returned a lease, or has been split or will be.
    pub(crate) sealed: bool,
    /// The order in which its parts run.
    pub(crate) order: PartOrder,
    /// Oldest first: the whole batch, or the parts of a split.
    pub(crate) parts: SmallVec<[Part; 1]>,
    pub(crate) places: Places,
    /// For each boundary, the buffer that it holds.
    pub(crate) leases: SmallVec<[Option<u16>; 8]>,
}

impl Batch {
    /// Returns the steps of all parts.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.parts.iter().flat_map(|part| &part.steps)
    }

    /// Returns the position of a part in `parts`.
    pub(super) fn position(&self, ix: PartIx) -> Option<usize> {
        self.parts.binary_search_by_key(&ix, |part| part.ix).ok()
    }
}

/// Rank of a queued part: priority level, then precedence, then progress for parts that run pipelined, then age.
pub(crate) type PartRank = (u64, u64, u16, PartIx);

/// Rows of a batch that run together.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) ix: PartIx,
    /// Best priority level among its requests.
    pub(crate) level: u64,
    /// Older batches go first. A part that repeats a stage goes behind the parts that exist by then; requests that
    /// start again keep the precedence of the batch that failed.
    pub(crate) precedence: u64,
    /// Most advanced first.
    pub(crate) steps: SmallVec<[Step; 1]>,
    /// Its entry in `queued`, if its last step waits for a lane.
    pub(crate) queued_as: Option<PartRank>,
}

impl Part {
    /// Returns the foot: the least advanced step with a live row. Only the foot runs.
    pub(crate) fn foot(&self) -> Option<&Step> {
        self.steps.get(self.foot_at()?)
    }

    /// Returns the position of the foot in `steps`.
    pub(crate) fn foot_at(&self) -> Option<usize> {
        self.steps.iter().rposition(|step| !step.is_forsaken)
    }

    pub(crate) fn row_count(&self) -> u32 {
        self.steps.iter().map(Step::row_count).sum()
    }

    /// Inserts a step by its progress.
    pub(crate) fn insert_step(&mut self, next: CellId, rows: Vec<BatchSpan>, waits_ns: Ns) {
        let at = self.steps.iter().position(|step| step.next < next).unwrap_or(self.steps.len());
        self.steps.insert(at, Step { waits_ns, ..Step::queued(next, rows) });
    }

    /// Merges neighbouring steps that wait for the same stage, and returns the number of merges.
    pub(super) fn merge(&mut self, spare: &mut SpareRows) -> u32 {
        let steps = &mut self.steps;
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

    /// Adds the part to the queued parts, moves it or removes it, depending on its foot.
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

/// State of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepState {
    /// Ready to launch once the steps behind it have caught up.
    Queued,
    /// Running as this task.
    Running(TaskId),
}

/// Rows of a part that have progressed equally far.
#[derive(Debug)]
pub(crate) struct Step {
    /// The stage that they run now or next.
    pub(crate) next: CellId,
    /// Rows by place.
    pub(crate) rows: Vec<BatchSpan>,
    pub(crate) state: StepState,
    /// Time that it has waited, or will wait, for newcomers to catch up.
    pub(crate) waits_ns: Ns,
    /// Running, but without live rows, so no other step has to wait for it.
    pub(crate) is_forsaken: bool,
}

impl Step {
    /// Creates a queued step that has not waited for newcomers.
    pub(super) fn queued(next: CellId, rows: Vec<BatchSpan>) -> Self {
        Self { next, rows, state: StepState::Queued, waits_ns: 0, is_forsaken: false }
    }

    pub(crate) fn row_count(&self) -> u32 {
        self.rows.iter().map(|span| span.rows.count).sum()
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.state == StepState::Queued
    }
}
