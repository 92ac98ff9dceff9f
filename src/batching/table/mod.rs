//! The batch table (DVABatch section 5.2.1): the batches under way, each a staircase of steps, most advanced first.
//!
//! Only three meta operations make and change batches: *new*, *stretch* and *split* (section 5.1). A stretch is a push
//! at the staircase's foot (LazyBatching section IV-B): only the foot runs, the steps above it wait for it to catch up,
//! and neighbours that have come to the same stage merge. The paper's status map and batch queues are views of the
//! steps.

pub(super) mod batch;
pub(super) mod lineage;
pub(super) mod pipeline;

use std::collections::BTreeSet;

use slab::Slab;
use smallvec::SmallVec;

use self::{
    batch::{Batch, BatchRank, Step, StepState},
    lineage::{Lineage, Passed, Places},
};
use super::{
    CellId, Ns, PartOrder, RowSpan, ShapeClass, TaskId,
    ids::{BatchId, BatchIx, LineageIx},
    ledger::{BatchSpan, Ledger},
    queue::BatchKey,
};

/// Row vectors kept for reuse.
const SPARE_VECS: usize = 8;

/// What a new batch is made of.
#[derive(Debug)]
pub(in crate::batching) struct Blueprint {
    pub(in crate::batching) batch_key: BatchKey,
    pub(in crate::batching) class: ShapeClass,
    pub(in crate::batching) level: u64,
    /// Its turn, if it has that of an earlier batch.
    pub(in crate::batching) precedence: Option<u64>,
    pub(in crate::batching) order: PartOrder,
    /// No newcomer may ever join.
    pub(in crate::batching) sealed: bool,
}

/// The batches of one group.
#[derive(Debug)]
pub(in crate::batching) struct BatchTable {
    batches: Slab<Batch>,
    pub(in crate::batching) lineages: Slab<Lineage>,
    /// Batches whose foot waits for a lane.
    queued: BTreeSet<(BatchRank, BatchIx)>,
    stages: u16,
    max_rows: u32,
    made: u64,
    spare: Vec<Vec<BatchSpan>>,
}

impl BatchTable {
    pub(in crate::batching) fn new(stages: u16, max_rows: u32) -> Self {
        Self {
            batches: Slab::new(),
            lineages: Slab::new(),
            queued: BTreeSet::new(),
            stages,
            max_rows,
            made: 0,
            spare: Vec::new(),
        }
    }

    /// Meta operation *new*: a batch of these rows at stage `entry`, for its caller to launch or to queue. Their places
    /// are given out here.
    pub(in crate::batching) fn new_batch(
        &mut self,
        now: Ns,
        plan: Blueprint,
        entry: CellId,
        mut rows: Vec<BatchSpan>,
    ) -> BatchIx {
        let number = self.made;
        self.made += 1;
        let mut places = Places::default();
        if self.stages > 1 {
            places = Places::new(self.max_rows);
            rows.iter_mut().for_each(|span| span.rows.at = places.take(span.rows.count).unwrap_or_default());
        } else {
            lay_out(&mut rows);
        }
        let lineage = self.lineages.insert(Lineage {
            number,
            batch_key: plan.batch_key,
            class: plan.class,
            created: now,
            sealed: plan.sealed,
            order: plan.order,
            parts: SmallVec::new(),
            places,
            leases: SmallVec::from_elem(None, usize::from(self.stages) - 1),
            passed: SmallVec::from_elem(Passed::default(), usize::from(self.stages)),
        });
        let step = Step { next: entry, rows, state: StepState::Queued, waits_ns: 0, is_forsaken: false };
        let batch = self.batches.insert(Batch {
            id: BatchId(number),
            lineage,
            level: plan.level,
            precedence: plan.precedence.unwrap_or(number),
            steps: SmallVec::from_buf([step]),
            queued_as: None,
        });
        self.lineages[lineage].parts.push(batch);
        batch
    }

    /// Meta operation *stretch*: newcomers become a step at the foot of a batch. Their places are given out here; there
    /// must be room. Returns how many steps merged at once.
    pub(in crate::batching) fn stretch(
        &mut self,
        batch: BatchIx,
        level: u64,
        entry: CellId,
        mut rows: Vec<BatchSpan>,
    ) -> u32 {
        let entry_of = &mut self.batches[batch];
        let lineage = &mut self.lineages[entry_of.lineage];
        for span in &mut rows {
            let place = lineage.places.take(span.rows.count);
            debug_assert!(place.is_some(), "a batch is stretched beyond its places");
            span.rows.at = place.unwrap_or_default();
        }
        // Gaps are filled from the lowest, so that a later request may come to sit before an earlier one.
        rows.sort_unstable_by_key(|span| span.rows.at);
        entry_of.level = entry_of.level.min(level);
        entry_of.steps.push(Step { next: entry, rows, state: StepState::Queued, waits_ns: 0, is_forsaken: false });
        let merged = self.merge(batch);
        self.enqueue(batch);
        merged
    }

    /// Meta operation *split*: cuts the only, queued step of a batch before these spans, which ascend. The first part
    /// keeps the batch's place in the table.
    pub(in crate::batching) fn split(&mut self, batch: BatchIx, before: &[usize]) {
        let Some(step) = self.batches[batch].steps.first_mut() else { return };
        let next = step.next;
        let mut parts: SmallVec<[Vec<BatchSpan>; 8]> = SmallVec::new();
        for &span in before.iter().rev() {
            parts.push(step.rows.split_off(span));
        }
        for rows in parts.into_iter().rev() {
            self.part(batch, next, rows);
        }
    }

    /// A further part of a batch's lineage that waits for `next`.
    pub(in crate::batching) fn part(&mut self, of: BatchIx, next: CellId, rows: Vec<BatchSpan>) {
        let Batch { lineage, level, precedence, .. } = self.batches[of];
        let id = BatchId(self.made);
        self.made += 1;
        let step = Step { next, rows, state: StepState::Queued, waits_ns: 0, is_forsaken: false };
        let steps = SmallVec::from_buf([step]);
        let part = self.batches.insert(Batch { id, lineage, level, precedence, steps, queued_as: None });
        let lineage = &mut self.lineages[lineage];
        lineage.sealed = true;
        lineage.parts.push(part);
        self.enqueue(part);
    }

    /// Joins neighbouring steps that wait for the same stage; returns how many joined.
    pub(in crate::batching) fn merge(&mut self, batch: BatchIx) -> u32 {
        let mut merged = 0;
        let steps = &mut self.batches[batch].steps;
        let mut at = 1;
        while at < steps.len() {
            let (before, behind) = (&steps[at - 1], &steps[at]);
            if before.next == behind.next && before.is_queued() && behind.is_queued() {
                let Step { rows, waits_ns, .. } = steps.remove(at);
                steps[at - 1].waits_ns = steps[at - 1].waits_ns.max(waits_ns);
                let into = &mut steps[at - 1].rows;
                into.extend_from_slice(&rows);
                into.sort_unstable_by_key(|span| span.rows.at);
                merged += 1;
                if self.spare.len() < SPARE_VECS {
                    self.spare.push({
                        let mut rows = rows;
                        rows.clear();
                        rows
                    });
                }
            } else {
                at += 1;
            }
        }
        merged
    }

    /// Puts a step back among those of its batch, by how far it has come, and lets the batch wait for a lane.
    pub(in crate::batching) fn insert_step(
        &mut self,
        batch: BatchIx,
        next: CellId,
        rows: Vec<BatchSpan>,
        waits_ns: Ns,
    ) {
        let steps = &mut self.batches[batch].steps;
        let at = steps.iter().position(|step| step.next < next).unwrap_or(steps.len());
        steps.insert(at, Step { next, rows, state: StepState::Queued, waits_ns, is_forsaken: false });
    }

    /// A batch repeats a stage: it goes behind the others of this level.
    pub(in crate::batching) fn repeat(&mut self, batch: BatchIx, level: u64) {
        let entry = &mut self.batches[batch];
        entry.level = level;
        entry.precedence = self.made;
        self.made += 1;
    }

    /// Takes the step that runs as `task` out of its batch.
    pub(in crate::batching) fn take_running(&mut self, batch: BatchIx, task: TaskId) -> Option<Step> {
        let steps = &mut self.batches.get_mut(batch)?.steps;
        let at = steps.iter().position(|step| step.state == StepState::Running(task))?;
        Some(steps.remove(at))
    }

    /// Drops masked rows of steps that do not run, steps and batches of which nothing is left, and lineages without
    /// batches. What stays is queued where its foot waits; steps that run without a live row delay no other.
    pub(in crate::batching) fn tidy(&mut self, batch: BatchIx, ledger: &Ledger) {
        let Some(entry) = self.batches.get_mut(batch) else { return };
        let lineage_ix = entry.lineage;
        let lineage = &mut self.lineages[lineage_ix];
        let stages = self.stages;
        entry.steps.retain(|step| {
            if step.is_queued() {
                step.rows.retain(|span| {
                    let stays = ledger.is_aboard(span);
                    if !stays && stages > 1 {
                        lineage.places.give_back(span.rows.at, span.rows.count);
                    }
                    stays
                });
            }
            step.is_forsaken = !step.rows.iter().any(|span| ledger.is_aboard(span));
            !step.rows.is_empty()
        });
        if entry.steps.is_empty() {
            self.dequeue(batch);
            self.batches.remove(batch);
            let lineage = &mut self.lineages[lineage_ix];
            lineage.parts.retain(|part| *part != batch);
            if lineage.parts.is_empty() && stages == 1 {
                self.lineages.remove(lineage_ix);
            }
        } else {
            self.merge(batch);
            self.enqueue(batch);
        }
    }

    /// Gives the places of rows back that leave their batch.
    pub(in crate::batching) fn vacate(&mut self, batch: BatchIx, span: RowSpan) {
        if self.stages > 1 {
            let lineage = self.batches[batch].lineage;
            self.lineages[lineage].places.give_back(span.at, span.count);
        }
    }

    /// Files a batch among the queued ones, or out of them, as its foot is.
    pub(in crate::batching) fn enqueue(&mut self, batch: BatchIx) {
        let entry = &self.batches[batch];
        let lineage = &self.lineages[entry.lineage];
        let rank = entry.foot().filter(|foot| foot.is_queued()).map(|foot| {
            let progress = match lineage.order {
                PartOrder::DepthFirst => 0,
                PartOrder::Pipelined => foot.next.0,
            };
            (entry.level, entry.precedence, progress, entry.id)
        });
        if rank == entry.queued_as {
            return;
        }
        self.dequeue(batch);
        if let Some(rank) = rank {
            self.queued.insert((rank, batch));
            self.batches[batch].queued_as = Some(rank);
        }
    }

    fn dequeue(&mut self, batch: BatchIx) {
        if let Some(rank) = self.batches[batch].queued_as.take() {
            self.queued.remove(&(rank, batch));
        }
    }

    /// Queued batches in the order in which they go on. Of a lineage whose parts run depth first, only the first part
    /// counts.
    pub(in crate::batching) fn queued(&self) -> impl Iterator<Item = BatchIx> + '_ {
        self.queued.iter().map(|&(_, batch)| batch).filter(|&batch| {
            let lineage = &self.lineages[self.batches[batch].lineage];
            lineage.order == PartOrder::Pipelined || lineage.parts.first() == Some(&batch)
        })
    }

    /// All batches whose foot waits, in order.
    pub(in crate::batching) fn all_queued(&self) -> impl Iterator<Item = BatchIx> + '_ {
        self.queued.iter().map(|&(_, batch)| batch)
    }

    pub(in crate::batching) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    pub(in crate::batching) fn get(&self, batch: BatchIx) -> &Batch {
        &self.batches[batch]
    }

    pub(in crate::batching) fn find(&self, batch: BatchIx) -> Option<&Batch> {
        self.batches.get(batch)
    }

    pub(in crate::batching) fn get_mut(&mut self, batch: BatchIx) -> &mut Batch {
        &mut self.batches[batch]
    }

    pub(in crate::batching) fn lineage_of(&self, batch: BatchIx) -> &Lineage {
        &self.lineages[self.batches[batch].lineage]
    }

    pub(in crate::batching) fn lineage_of_mut(&mut self, batch: BatchIx) -> &mut Lineage {
        &mut self.lineages[self.batches[batch].lineage]
    }

    /// The newest lineage: the only one that may be stretched.
    pub(in crate::batching) fn newest(&self) -> Option<(LineageIx, &Lineage)> {
        self.lineages.iter().max_by_key(|(_, lineage)| lineage.number)
    }

    /// Rows in all batches.
    pub(in crate::batching) fn rows_aboard(&self) -> u32 {
        self.batches.iter().map(|(_, batch)| batch.row_count()).sum()
    }

    /// An empty vector for rows, reused if possible.
    pub(in crate::batching) fn blank(&mut self) -> Vec<BatchSpan> {
        self.spare.pop().unwrap_or_default()
    }

    pub(in crate::batching) fn recycle(&mut self, mut rows: Vec<BatchSpan>) {
        if rows.capacity() > 0 && self.spare.len() < SPARE_VECS {
            rows.clear();
            self.spare.push(rows);
        }
    }

    pub(in crate::batching) fn iter(&self) -> impl Iterator<Item = (BatchIx, &Batch)> {
        self.batches.iter()
    }
}

/// Places of rows that share no buffer with any later stage: one behind the other.
pub(in crate::batching) fn lay_out(rows: &mut [BatchSpan]) {
    let mut at = 0;
    for span in rows {
        span.rows.at = at;
        at += span.rows.count;
    }
}
