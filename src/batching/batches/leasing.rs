//! Which batches may use a buffer, and when buffers return: the pipeline's leases seen from the batches.

use smallvec::SmallVec;

use super::{Batches, launching::span_of};
use crate::batching::{
    CellId, Lease, Ns,
    arbiter::Lane,
    ids::{BatchIx, LineageIx},
    table::{lineage::Lineage, pipeline::Access},
};

impl Batches {
    /// Whether the foot of a batch may be launched: a buffer is free, and on a lane without a horizon no running task
    /// uses it.
    pub(in crate::batching) fn admits(&self, batch: BatchIx, lane: &Lane) -> bool {
        if self.pipeline.boundaries() == 0 {
            return true;
        }
        let Some(foot) = self.table.get(batch).foot() else { return false };
        let (from, to) = span_of(&foot.rows);
        let access = self.pipeline.access(self.table.lineage_of(batch), foot.next, from, to);
        access.is_some_and(|access| self.is_clear(&access, lane))
    }

    /// Whether the stage that a batch waits for has no buffer for it (DVABatch section 6.2: *checking*).
    pub(in crate::batching) fn is_checking(&self, batch: BatchIx) -> bool {
        let Some(foot) = self.table.get(batch).foot() else { return false };
        let (from, to) = span_of(&foot.rows);
        self.pipeline.access(self.table.lineage_of(batch), foot.next, from, to).is_none()
    }

    fn is_clear(&self, access: &Access, lane: &Lane) -> bool {
        lane.looks_ahead() || self.pipeline.hazards(access, lane.id).is_empty()
    }

    /// Whether a new batch could be launched: the first stage has a credit, or gets one as the newest batch ceases to
    /// be the newest.
    pub(in crate::batching) fn can_enter(&self, lane: &Lane) -> bool {
        if self.pipeline.boundaries() == 0 {
            return true;
        }
        let boundary = self.pipeline.entry().0;
        let clear = |pair: Option<u16>| {
            pair.is_some_and(|pair| lane.looks_ahead() || self.pipeline.is_unused(Lease { boundary, pair }))
        };
        if self.pipeline.has_credit(self.pipeline.entry()) {
            return clear(self.pipeline.next_pair(boundary));
        }
        let Some((_, newest)) = self.table.newest().filter(|(_, newest)| !newest.sealed) else { return false };
        self.pipeline.would_release(boundary, self.reached(newest)) && clear(newest.leases[usize::from(boundary)])
    }

    /// Returns the leases that are not needed any more, and forgets lineages without batches.
    pub(in crate::batching) fn release_leases(&mut self, now: Ns) {
        if self.pipeline.boundaries() == 0 {
            return;
        }
        let newest = self.table.newest().map(|(ix, _)| ix);
        let lineages: SmallVec<[LineageIx; 8]> = self.table.lineages.iter().map(|(ix, _)| ix).collect();
        // A credit that returns at one boundary may let another return before it.
        loop {
            let mut any = false;
            for &ix in &lineages {
                let Some(lineage) = self.table.lineages.get(ix) else { continue };
                let reached = self.reached(lineage);
                let closed =
                    lineage.sealed || Some(ix) != newest || self.is_over(now, lineage) || self.older_wait_to_enter();
                let lineage = &mut self.table.lineages[ix];
                if self.pipeline.release(lineage, reached, closed) {
                    lineage.sealed = true;
                    any = true;
                }
                if reached.is_none() {
                    self.table.lineages.remove(ix);
                }
            }
            if !any || self.pipeline.boundaries() < 2 {
                return;
            }
        }
    }

    /// Whether requests that start again wait for a buffer of the first stage. No other batch keeps one for newcomers
    /// then, since newcomers are younger.
    fn older_wait_to_enter(&self) -> bool {
        let entry = self.pipeline.entry();
        let waits = |batch| {
            let holds = self.table.lineage_of(batch).leases[usize::from(entry.0)].is_some();
            !holds && self.table.get(batch).foot().is_some_and(|foot| foot.next == entry)
        };
        self.table.all_queued().any(waits)
    }

    /// Whether no newcomer may join a lineage any more, by its size, age and progress.
    fn is_over(&self, now: Ns, lineage: &Lineage) -> bool {
        lineage.places.free() == 0 || !self.policy.keeps_open(now, lineage, &self.table, self.pipeline.stages())
    }

    /// The number of stages that all rows of a lineage have been launched into. The last counts once it has completed,
    /// and so does one that decides, since rows may repeat it. `None` without rows.
    pub(in crate::batching) fn reached(&self, lineage: &Lineage) -> Option<u16> {
        let steps = lineage.parts.iter().flat_map(|&part| &self.table.get(part).steps);
        let counts = |stage: CellId| !self.pipeline.is_last(stage) && !self.pipeline.decides(stage);
        steps.map(|step| step.next.0 + u16::from(!step.is_queued() && counts(step.next))).min()
    }
}
