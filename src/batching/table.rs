//! The batch table (DVABatch section 5.2.1): the batches under way, each a staircase of steps, most advanced first.
//!
//! Batches change only by meta operations. *New* is the one there is so far: it makes a batch of rows that travel
//! together from then on.

use std::collections::VecDeque;

use slab::Slab;
use smallvec::SmallVec;

use super::{
    CellId, Ns, RowSpan, ShapeClass, TaskId,
    ledger::{Ledger, Slot},
};

/// Number of a batch, ascending in order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BatchId(pub(super) u64);

/// Where a batch is kept in its table.
pub(super) type BatchIx = usize;

/// Row vectors kept for reuse.
const SPARE_VECS: usize = 8;

/// Consecutive rows of one request in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) slot: Slot,
    pub(super) span: RowSpan,
}

/// What a step is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepState {
    /// It waits for a lane.
    Queued,
    /// This task runs it.
    Running(TaskId),
}

/// Rows of a batch that have come equally far.
#[derive(Debug)]
pub(super) struct Step {
    /// The stage that they run next, or run now.
    pub(super) next: CellId,
    /// Its rows in batch order; those of one request are neighbours.
    pub(super) rows: Vec<Seat>,
    pub(super) state: StepState,
}

/// Requests that travel together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) id: BatchId,
    /// Padded shape that its rows share.
    pub(super) class: ShapeClass,
    pub(super) created: Ns,
    /// No further request may join.
    pub(super) frozen: bool,
    /// Most advanced first; one as long as nothing stretches a batch.
    pub(super) steps: SmallVec<[Step; 1]>,
}

/// Rows and stage of a step that came off its lane.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) cell: CellId,
    pub(super) rows: Vec<Seat>,
}

/// The batches of one group.
#[derive(Debug, Default)]
pub(super) struct BatchTable {
    batches: Slab<Batch>,
    /// Batches with a queued step, in the order in which they go on.
    queued: VecDeque<BatchIx>,
    made: u64,
    spare: Vec<Vec<Seat>>,
}

impl BatchTable {
    /// Meta operation *new*: a batch of these rows, at the pipeline stage `entry`, in no queue yet.
    pub(super) fn new_batch(
        &mut self,
        now: Ns,
        class: ShapeClass,
        entry: CellId,
        rows: Vec<Seat>,
        frozen: bool,
    ) -> BatchIx {
        let id = BatchId(self.made);
        self.made += 1;
        let step = Step { next: entry, rows, state: StepState::Queued };
        self.batches.insert(Batch { id, class, created: now, frozen, steps: SmallVec::from_buf([step]) })
    }

    /// Lets a batch wait for a lane behind the other waiting batches.
    pub(super) fn queue(&mut self, batch: BatchIx) {
        self.queued.push_back(batch);
    }

    /// Lets a batch wait for a lane before the other waiting batches.
    pub(super) fn queue_first(&mut self, batch: BatchIx) {
        self.queued.push_front(batch);
    }

    /// The waiting batch whose turn it is, without its masked rows. Batches of which nothing is left are removed.
    pub(super) fn next_queued(&mut self, ledger: &Ledger) -> Option<BatchIx> {
        while let Some(batch) = self.queued.pop_front() {
            let Some(step) = self.batches[batch].steps.first_mut() else { continue };
            step.rows.retain(|seat| ledger.is_aboard(seat));
            if !step.rows.is_empty() {
                return Some(batch);
            }
            self.remove(batch);
        }
        None
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// The step of a batch that is to run next: its most advanced one.
    pub(super) fn head_mut(&mut self, batch: BatchIx) -> Option<&mut Step> {
        self.batches[batch].steps.first_mut()
    }

    /// Takes the rows out of a batch whose task ended. The batch must be queued again or removed.
    pub(super) fn arrive(&mut self, batch: BatchIx) -> Option<Arrived> {
        let step = self.batches[batch].steps.first_mut()?;
        step.state = StepState::Queued;
        Some(Arrived { cell: step.next, rows: std::mem::take(&mut step.rows) })
    }

    /// Gives a batch the rows that go on, towards `next`, and queues it.
    pub(super) fn go_on(&mut self, batch: BatchIx, next: CellId, rows: Vec<Seat>) {
        if let Some(step) = self.batches[batch].steps.first_mut() {
            step.next = next;
            step.rows = rows;
            self.queue(batch);
        }
    }

    pub(super) fn class(&self, batch: BatchIx) -> &ShapeClass {
        &self.batches[batch].class
    }

    pub(super) fn remove(&mut self, batch: BatchIx) {
        for step in self.batches.remove(batch).steps {
            self.recycle(step.rows);
        }
    }

    /// An empty vector for rows, reused if possible.
    pub(super) fn blank(&mut self) -> Vec<Seat> {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn recycle(&mut self, mut rows: Vec<Seat>) {
        if rows.capacity() > 0 && self.spare.len() < SPARE_VECS {
            rows.clear();
            self.spare.push(rows);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (BatchIx, &Batch)> {
        self.batches.iter()
    }

    pub(super) fn queued(&self) -> impl Iterator<Item = BatchIx> {
        self.queued.iter().copied()
    }
}
