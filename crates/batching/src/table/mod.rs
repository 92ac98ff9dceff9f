//! The batch table (DVABatch section 5.2.1): the batches in progress. A batch is whole or in the parts of a split, and
//! each part is a staircase of steps, most advanced first.
//!
//! Only three meta operations create and change batches: *new*, *stretch* and *split* (section 5.1). A stretch pushes a
//! step at the foot of the staircase (LazyBatching section IV-B). Only the foot runs; the steps above wait for it to
//! catch up, and neighbours that wait for the same stage merge. The paper's status map and batch queues are views of
//! the steps.
//!
//! `batches` makes all changes; policies read the table.

pub(super) mod batch;
mod places;
mod spare;
pub(super) mod stages;

use std::{
    collections::BTreeSet,
    ops::{Index, IndexMut},
};

use paternoster_model::CellId;
use slab::Slab;
use smallvec::{SmallVec, smallvec};

use self::{
    batch::{Batch, Part, PartRank, Step, StepState},
    places::Places,
    spare::SpareRows,
};
use super::{
    Instant, PartOrder, RowSpan, ShapeClass, TaskId,
    ids::{BatchIx, PartIx},
    ledger::{BatchSpan, Ledger},
    queue::BatchKey,
};

/// Parameters of a new batch.
#[derive(Debug)]
pub(crate) struct Blueprint {
    pub(crate) batch_key: BatchKey,
    pub(crate) class: ShapeClass,
    pub(crate) level: u64,
    /// Precedence, if it takes over that of an earlier batch.
    pub(crate) precedence: Option<u64>,
    pub(crate) order: PartOrder,
    /// Whether newcomers are excluded.
    pub(crate) sealed: bool,
}

/// The batches of one group.
#[derive(Debug)]
pub(crate) struct BatchTable {
    pub(crate) batches: Slab<Batch>,
    /// Parts whose foot waits for a lane.
    queued: BTreeSet<PartRank>,
    stages: u16,
    max_rows: u32,
    made: u64,
    pub(crate) spare: SpareRows,
}

impl BatchTable {
    pub(crate) fn new(stages: u16, max_rows: u32) -> Self {
        Self { batches: Slab::new(), queued: BTreeSet::new(), stages, max_rows, made: 0, spare: SpareRows::default() }
    }

    fn next_number(&mut self) -> u64 {
        self.made += 1;
        self.made - 1
    }

    /// Meta operation *new*: creates a batch of these rows at stage `entry`, with one part for the caller to launch or
    /// queue. Assigns the rows' places.
    pub(crate) fn new_batch(
        &mut self,
        now: Instant,
        plan: Blueprint,
        entry: CellId,
        mut rows: Vec<BatchSpan>,
    ) -> PartIx {
        let number = self.next_number();
        let mut places = Places::default();
        if self.stages > 1 {
            // Places matter only if tensors are kept at boundaries. With one stage, rows are just numbered.
            places = Places::new(self.max_rows);
            rows.iter_mut().for_each(|span| span.rows.at = places.take(span.rows.count).unwrap_or_default());
        } else {
            lay_out(&mut rows);
        }
        let vacant = self.batches.vacant_entry();
        let ix = PartIx { number, batch: vacant.key() };
        let part = Part {
            ix,
            level: plan.level,
            precedence: plan.precedence.unwrap_or(number),
            steps: smallvec![Step::queued(entry, rows)],
            queued_as: None,
        };
        vacant.insert(Batch {
            number,
            batch_key: plan.batch_key,
            class: plan.class,
            created: now,
            sealed: plan.sealed,
            order: plan.order,
            parts: smallvec![part],
            places,
            leases: SmallVec::from_elem(None, usize::from(self.stages) - 1),
        });
        ix
    }

    /// Meta operation *stretch*: adds newcomers as a step at the foot of a batch's only part, and assigns their places;
    /// there must be room. Returns the number of steps merged at once.
    pub(crate) fn stretch(&mut self, ix: PartIx, level: u64, entry: CellId, mut rows: Vec<BatchSpan>) -> u32 {
        let places = &mut self.batches[ix.batch].places;
        for span in &mut rows {
            let place = places.take(span.rows.count);
            debug_assert!(place.is_some(), "a batch is stretched beyond its places");
            span.rows.at = place.unwrap_or_default();
        }
        // Gaps are filled from the lowest, so a later request may be placed before an earlier one.
        rows.sort_unstable_by_key(|span| span.rows.at);
        let part = &mut self[ix];
        part.level = part.level.min(level);
        part.steps.push(Step::queued(entry, rows));
        self.enqueue(ix)
    }

    /// Meta operation *split*: cuts the only step of a part, which must be queued, before these spans, given in
    /// ascending order. The part keeps the rows before the first cut.
    pub(crate) fn split(&mut self, ix: PartIx, before: &[usize]) {
        let Some(step) = self[ix].steps.first_mut() else { return };
        let next = step.next;
        let mut pieces: SmallVec<[Vec<BatchSpan>; 8]> = SmallVec::new();
        for &span in before.iter().rev() {
            pieces.push(step.rows.split_off(span));
        }
        for rows in pieces.into_iter().rev() {
            self.new_part(ix, next, rows);
        }
    }

    /// Cuts the foot of a part, which must be queued, behind its first `rows` rows. The others become another part.
    pub(crate) fn cut(&mut self, ix: PartIx, rows: u32) {
        let part = &mut self[ix];
        let Some(foot) = part.foot_at().map(|at| &mut part.steps[at]) else { return };
        let (next, mut left) = (foot.next, rows);
        let whole = foot.rows.iter().take_while(|span| {
            let fits = span.rows.count <= left;
            left -= if fits { span.rows.count } else { 0 };
            fits
        });
        let whole = whole.count();
        let mut rest = foot.rows.split_off(whole);
        if left > 0
            && let Some(first) = rest.first_mut()
        {
            foot.rows.push(first.split_off_front(left));
        }
        self.new_part(ix, next, rest);
    }

    /// Adds rows that wait for `next` as another part of the batch.
    pub(crate) fn new_part(&mut self, of: PartIx, next: CellId, rows: Vec<BatchSpan>) {
        let ix = PartIx { number: self.next_number(), batch: of.batch };
        let Part { level, precedence, .. } = self[of];
        let steps = smallvec![Step::queued(next, rows)];
        let batch = &mut self.batches[of.batch];
        batch.sealed = true;
        batch.parts.push(Part { ix, level, precedence, steps, queued_as: None });
        self.enqueue(ix);
    }

    /// Moves a part that repeats a stage behind the others of this level.
    pub(crate) fn repeat(&mut self, ix: PartIx, level: u64) {
        let precedence = self.next_number();
        let part = &mut self[ix];
        (part.level, part.precedence) = (level, precedence);
    }

    /// Removes the step that runs as `task` from its part.
    pub(crate) fn take_running(&mut self, ix: PartIx, task: TaskId) -> Option<Step> {
        let steps = &mut self.find_mut(ix)?.steps;
        let at = steps.iter().position(|step| step.state == StepState::Running(task))?;
        Some(steps.remove(at))
    }

    /// Merges the steps of a part and drops masked rows from queued steps. Removes the part if it is empty; a batch
    /// that holds leases stays until they are returned. Otherwise requeues the part by its foot. Running steps without
    /// live rows delay no other step. Returns the number of merges.
    pub(crate) fn tidy(&mut self, ix: PartIx, ledger: &Ledger) -> u32 {
        let Some(batch) = self.batches.get_mut(ix.batch) else { return 0 };
        let Some(at) = batch.position(ix) else { return 0 };
        let (part, places) = (&mut batch.parts[at], &mut batch.places);
        let merged = part.merge(&mut self.spare);
        part.steps.retain(|step| {
            if step.is_queued() {
                step.rows.retain(|span| {
                    let stays = ledger.is_aboard(span);
                    if !stays && self.stages > 1 {
                        places.give_back(span.rows.at, span.rows.count);
                    }
                    stays
                });
            }
            step.is_forsaken = !step.rows.iter().any(|span| ledger.is_aboard(span));
            !step.rows.is_empty()
        });
        part.file(batch.order, &mut self.queued);
        if part.steps.is_empty() {
            batch.parts.remove(at);
            // With several stages the batch may still hold leases; `release_leases` removes it.
            if batch.parts.is_empty() && self.stages == 1 {
                self.batches.remove(ix.batch);
            }
        }
        merged
    }

    /// Frees the places of rows that leave their batch.
    pub(crate) fn vacate(&mut self, ix: PartIx, span: RowSpan) {
        if self.stages > 1 {
            self.batches[ix.batch].places.give_back(span.at, span.count);
        }
    }

    /// Merges the steps of a part and queues it if its foot waits. Returns the number of merges.
    pub(crate) fn enqueue(&mut self, ix: PartIx) -> u32 {
        let batch = &mut self.batches[ix.batch];
        let Some(at) = batch.position(ix) else { return 0 };
        let merged = batch.parts[at].merge(&mut self.spare);
        batch.parts[at].file(batch.order, &mut self.queued);
        merged
    }

    /// Returns the queued parts that may run, in order. In a depth-first batch of several stages only the first part
    /// may run.
    pub(crate) fn queued(&self) -> impl Iterator<Item = &Part> {
        self.all_queued().map(|ix| &self[ix]).filter(|part| {
            let batch = &self.batches[part.ix.batch];
            self.stages == 1 || batch.order == PartOrder::Pipelined || batch.parts[0].ix == part.ix
        })
    }

    /// Returns all parts whose foot waits, in order.
    pub(crate) fn all_queued(&self) -> impl Iterator<Item = PartIx> {
        self.queued.iter().map(|&(.., ix)| ix)
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Returns a part, or `None` if it is over.
    pub(crate) fn find(&self, ix: PartIx) -> Option<&Part> {
        let batch = self.batches.get(ix.batch)?;
        Some(&batch.parts[batch.position(ix)?])
    }

    fn find_mut(&mut self, ix: PartIx) -> Option<&mut Part> {
        let batch = self.batches.get_mut(ix.batch)?;
        let at = batch.position(ix)?;
        Some(&mut batch.parts[at])
    }

    /// Returns the newest batch, the only one that may be stretched.
    pub(crate) fn newest(&self) -> Option<(BatchIx, &Batch)> {
        self.batches.iter().max_by_key(|(_, batch)| batch.number)
    }

    /// Returns the number of rows in all batches.
    pub(crate) fn rows_aboard(&self) -> u32 {
        self.parts().map(Part::row_count).sum()
    }

    /// Returns the parts of all batches.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.batches.iter().flat_map(|(_, batch)| &batch.parts)
    }
}

/// Panics if the part is over, as a slab does.
impl Index<PartIx> for BatchTable {
    type Output = Part;

    fn index(&self, ix: PartIx) -> &Part {
        self.find(ix).expect("the part is under way")
    }
}

impl IndexMut<PartIx> for BatchTable {
    fn index_mut(&mut self, ix: PartIx) -> &mut Part {
        self.find_mut(ix).expect("the part is under way")
    }
}

/// Assigns consecutive places to rows that share no buffer with a later stage.
pub(crate) fn lay_out(rows: &mut [BatchSpan]) {
    let mut at = 0;
    for span in rows {
        span.rows.at = at;
        at += span.rows.count;
    }
}
