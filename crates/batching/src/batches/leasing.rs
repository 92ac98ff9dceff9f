//! Buffer leases as batches see them: whether a batch may take a buffer, and when it gives its leases back.

use paternoster_model::CellId;
use smallvec::SmallVec;

use super::{Batches, launching::span_of};
use crate::{
    Instant, Lease,
    arbiter::Lane,
    ids::BatchIx,
    policy::BatchView,
    table::{
        batch::{Batch, Part},
        stages::Access,
    },
};

impl Batches {
    /// Whether the last step of a part may be launched: a buffer is free for it, and on a lane without a horizon no
    /// running task uses that buffer.
    pub(crate) fn admits(&self, part: &Part, lane: &Lane) -> bool {
        if self.stages.boundaries() == 0 {
            return true;
        }
        let is_clear = |access| lane.looks_ahead() || self.stages.hazards(&access, lane.id).is_empty();
        self.access(part).is_some_and(is_clear)
    }

    /// Whether the stage that a part waits for has no buffer for it (DVABatch section 6.2: *checking*).
    pub(crate) fn is_checking(&self, part: &Part) -> bool {
        self.access(part).is_none()
    }

    /// Returns the buffers that the last step of a part would read and write; `None` if no buffer is free.
    fn access(&self, part: &Part) -> Option<Access> {
        let foot = part.foot()?;
        let (from, to) = span_of(&foot.rows);
        self.stages.access(&self.table.batches[part.ix.batch], foot.next, from, to)
    }

    /// Whether a new batch could be launched: the first stage has a credit, or gets one when the newest batch is no
    /// longer the newest.
    pub(crate) fn can_enter(&self, lane: &Lane) -> bool {
        if self.stages.boundaries() == 0 {
            return true;
        }
        let boundary = self.stages.entry().0;
        let clear =
            |lease: Option<Lease>| lease.is_some_and(|lease| lane.looks_ahead() || self.stages.is_unused(lease));
        if self.stages.has_credit(self.stages.entry()) {
            return clear(self.stages.best_free(boundary));
        }
        let Some((_, newest)) = self.table.newest().filter(|(_, newest)| !newest.sealed) else { return false };
        let held = newest.leases[usize::from(boundary)].map(|pair| Lease { boundary, pair });
        self.stages.would_release(boundary, self.reached(newest)) && clear(held)
    }

    /// Returns the leases that are no longer needed, and removes batches without parts.
    pub(crate) fn release_leases(&mut self, now: Instant) {
        if self.stages.boundaries() == 0 {
            return;
        }
        let newest = self.table.newest().map(|(ix, _)| ix);
        let batches: SmallVec<[BatchIx; 8]> = self.table.batches.iter().map(|(ix, _)| ix).collect();
        // A credit returned at one boundary may allow another return at the boundary before it.
        loop {
            let mut any = false;
            for &ix in &batches {
                let Some(batch) = self.table.batches.get(ix) else { continue };
                let reached = self.reached(batch);
                let closed =
                    batch.sealed || Some(ix) != newest || self.is_over(now, batch) || self.older_wait_to_enter();
                let batch = &mut self.table.batches[ix];
                if self.stages.release(batch, reached, closed) {
                    batch.sealed = true;
                    any = true;
                }
                if reached.is_none() {
                    self.table.batches.remove(ix);
                }
            }
            if !any || self.stages.boundaries() < 2 {
                return;
            }
        }
    }

    /// Whether requests that start again wait for a buffer of the first stage. If so, no other batch keeps its buffer
    /// for newcomers, because newcomers are younger.
    fn older_wait_to_enter(&self) -> bool {
        let entry = self.stages.entry();
        self.table.all_queued().any(|ix| {
            let holds = self.table.batches[ix.batch].leases[usize::from(entry.0)].is_some();
            !holds && self.table[ix].foot().is_some_and(|foot| foot.next == entry)
        })
    }

    /// Whether a batch accepts no more newcomers, because of its size, age or progress.
    fn is_over(&self, now: Instant, batch: &Batch) -> bool {
        batch.places.free() == 0 || !self.policy.keeps_open(now, BatchView { batch, stages: self.stages.count() })
    }

    /// Returns the number of stages that all rows of a batch have been launched into, or `None` without rows. The last
    /// stage counts only once it has completed, and so does a stage that decides, since rows may repeat it.
    pub(crate) fn reached(&self, batch: &Batch) -> Option<u16> {
        let counts = |stage: CellId| !self.stages.is_last(stage) && !self.stages.decides(stage);
        batch.steps().map(|step| step.next.0 + u16::from(!step.is_queued() && counts(step.next))).min()
    }
}
