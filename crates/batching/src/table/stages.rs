//! The stages of a version (DVABatch section 6), the buffers between them, and which batches and tasks use them.
//!
//! A *lease* is a pair (boundary, buffer), held by a batch with all its parts. A batch takes it when its first row is
//! launched into the stage before the boundary. It returns, as one credit of that stage, when
//! - every live row of the batch has been launched at the last stage that reads the boundary (for the last stage of
//!   all: has completed there),
//! - the batch is closed to newcomers, and
//! - the stage behind the boundary can take another lease; the last stage always can.
//!
//! The paper's rule, by which each executor legitimates a pair for its predecessor, deadlocks
//! (`docs/decisions/0025-leases-of-buffers.md`). The four states of a buffer and those of an
//! executor follow from the leases.
//!
//! *Uses* record which tasks in flight read or write which rows of a buffer. They determine which tasks a new task must
//! not overtake on the device.

use paternoster_model::{CellId, Next};
use smallvec::SmallVec;

use super::batch::Batch;
use crate::{LaneId, Lease, StageKnobs, TaskId};

/// The stages of one version and their buffers.
#[derive(Debug)]
pub(crate) struct Stages {
    stages: Vec<StageKnobs>,
    /// For each boundary, the last stage that reads it.
    last_reader: Vec<u16>,
    /// For each boundary, a bit set of the buffers that no batch holds.
    free: Vec<u64>,
    pairs: u16,
    uses: Vec<Use>,
}

/// A task in flight that reads or writes rows of a buffer.
#[derive(Clone, Copy, Debug)]
struct Use {
    task: TaskId,
    lane: LaneId,
    lease: Lease,
    /// First place, and the place after the last.
    from: u32,
    to: u32,
    writes: bool,
}

/// Where a row goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Onward {
    /// To this stage.
    To(CellId),
    /// It is done.
    Done,
    /// To the same stage, after the client has taken the pending responses.
    Paused,
    /// It failed.
    Failed,
}

/// The buffers that a task reads and writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub(crate) reads: SmallVec<[Lease; 2]>,
    pub(crate) writes: Option<Lease>,
    /// Place of its first row, and the place after its last.
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// Maximum number of buffers per boundary.
pub(crate) const MAX_PAIRS: u16 = u64::BITS as u16;

impl Stages {
    pub(crate) fn new(stages: &[StageKnobs], pairs: u16) -> Self {
        let mut stages = stages.to_vec();
        if stages.is_empty() {
            stages.push(StageKnobs::default());
        }
        let pairs = pairs.clamp(1, MAX_PAIRS);
        let boundaries = stages.len() as u16 - 1;
        let last_reader = |boundary: u16| {
            let readers =
                (0..stages.len() as u16).filter(|&stage| stages[usize::from(stage)].reads.contains(&boundary));
            readers.max().unwrap_or(boundary + 1).max(boundary + 1)
        };
        Self {
            last_reader: (0..boundaries).map(last_reader).collect(),
            free: vec![u64::MAX >> (MAX_PAIRS - pairs); usize::from(boundaries)],
            pairs,
            uses: Vec::new(),
            stages,
        }
    }

    /// Returns the stage at which new batches start.
    pub(crate) fn entry(&self) -> CellId {
        CellId(0)
    }

    pub(crate) fn count(&self) -> u16 {
        self.stages.len() as u16
    }

    pub(crate) fn boundaries(&self) -> u16 {
        self.free.len() as u16
    }

    pub(crate) fn is_last(&self, stage: CellId) -> bool {
        stage.0 + 1 == self.count()
    }

    /// Returns the boundaries that a stage reads.
    pub(crate) fn reads(&self, stage: CellId) -> &[u16] {
        &self.stages[usize::from(stage.0)].reads
    }

    /// Whether later stages may be launched only after this stage has completed.
    pub(crate) fn decides(&self, stage: CellId) -> bool {
        self.stages[usize::from(stage.0)].decides
    }

    /// Returns where a row goes after `stage`. Invalid targets count as failed: a stage that does not exist, or one
    /// that reads a boundary that the row has skipped.
    pub(crate) fn onward(&self, stage: CellId, next: Next) -> Onward {
        let following = stage.0.saturating_add(1);
        match next {
            Next::On if following < self.count() => Onward::To(CellId(following)),
            Next::On | Next::Done => Onward::Done,
            Next::Skip(target) if target.0 < self.count() && self.has_run(stage, target) => Onward::To(target),
            Next::Pause if self.boundaries() == 0 => Onward::Paused,
            Next::Skip(_) | Next::Pause | Next::Failed => Onward::Failed,
        }
    }

    /// Whether every boundary that `target` reads has been written by the time `stage` has run.
    fn has_run(&self, stage: CellId, target: CellId) -> bool {
        self.reads(target).iter().all(|&boundary| boundary <= stage.0)
    }

    /// Whether a stage has a credit, that is, a buffer at its boundary that no batch holds.
    pub(crate) fn has_credit(&self, stage: CellId) -> bool {
        self.is_last(stage) || self.free[usize::from(stage.0)] != 0
    }

    /// Returns the number of free credits of a stage and the total.
    pub(crate) fn credits(&self, boundary: u16) -> (u32, u32) {
        (self.free[usize::from(boundary)].count_ones(), u32::from(self.pairs))
    }

    /// Returns the buffers that a task of `batch` at `stage` over places `from..to` would read and write, or `None` if
    /// no buffer is free. A buffer without running tasks is preferred to one that a task still uses.
    pub(crate) fn access(&self, batch: &Batch, stage: CellId, from: u32, to: u32) -> Option<Access> {
        let held = |boundary: u16| Some(Lease { boundary, pair: batch.leases[usize::from(boundary)]? });
        let writes = if self.is_last(stage) {
            None
        } else {
            let boundary = stage.0;
            Some(held(boundary).or_else(|| self.best_free(boundary))?)
        };
        let reads = self.stages[usize::from(stage.0)].reads.iter().filter_map(|&boundary| held(boundary));
        Some(Access { reads: reads.collect(), writes, from, to })
    }

    /// Returns the buffer of a boundary that a batch would get now.
    pub(crate) fn best_free(&self, boundary: u16) -> Option<Lease> {
        let free = self.free[usize::from(boundary)];
        let pairs = (0..self.pairs).filter(|&pair| free >> pair & 1 == 1).map(|pair| Lease { boundary, pair });
        pairs.min_by_key(|lease| self.uses.iter().filter(|other| other.lease == *lease).count())
    }

    /// Returns the tasks in flight on other lanes that a task with this access must not overtake.
    pub(crate) fn hazards(&self, access: &Access, lane: LaneId) -> SmallVec<[TaskId; 2]> {
        let mut after = SmallVec::new();
        for other in &self.uses {
            let rows_meet = other.from < access.to && access.from < other.to;
            let conflict = access.writes == Some(other.lease) || other.writes && access.reads.contains(&other.lease);
            if conflict && rows_meet && other.lane != lane && !after.contains(&other.task) {
                after.push(other.task);
            }
        }
        after
    }

    /// Records a launched task: leases the written buffer to the batch if it does not hold one, and adds the task's
    /// uses.
    pub(crate) fn launched(&mut self, task: TaskId, lane: LaneId, access: &Access, batch: &mut Batch) {
        if let Some(lease) = access.writes {
            batch.leases[usize::from(lease.boundary)] = Some(lease.pair);
            self.free[usize::from(lease.boundary)] &= !(1 << lease.pair);
        }
        let (from, to) = (access.from, access.to);
        let used = |lease, writes| Use { task, lane, lease, from, to, writes };
        self.uses.extend(access.reads.iter().map(|&lease| used(lease, false)));
        self.uses.extend(access.writes.map(|lease| used(lease, true)));
    }

    /// Removes the uses of a task that has ended on the device.
    pub(crate) fn completed(&mut self, task: TaskId) {
        self.uses.retain(|used| used.task != task);
    }

    /// Returns leases that a batch no longer needs, from the last boundary to the first, and reports whether any was
    /// returned. `reached` is the number of stages that all its live rows have been launched into (`None`: no live
    /// rows); `closed` says whether newcomers are excluded.
    pub(crate) fn release(&mut self, batch: &mut Batch, reached: Option<u16>, closed: bool) -> bool {
        let mut any = false;
        for boundary in (0..self.boundaries()).rev() {
            let at = usize::from(boundary);
            let Some(pair) = batch.leases[at] else { continue };
            let due = match reached {
                None => true,
                Some(reached) => reached > self.last_reader[at] && closed && self.has_credit(CellId(boundary + 1)),
            };
            if due {
                batch.leases[at] = None;
                self.free[at] |= 1 << pair;
                any = true;
            }
        }
        any
    }

    /// Whether a batch would return its lease of a boundary if it were closed to newcomers.
    pub(crate) fn would_release(&self, boundary: u16, reached: Option<u16>) -> bool {
        let read = reached.is_none_or(|reached| reached > self.last_reader[usize::from(boundary)]);
        read && self.has_credit(CellId(boundary + 1))
    }

    /// Whether no task in flight reads or writes a buffer.
    pub(crate) fn is_unused(&self, lease: Lease) -> bool {
        self.uses.iter().all(|used| used.lease != lease)
    }

    /// Whether a buffer is free.
    pub(crate) fn is_free(&self, lease: Lease) -> bool {
        self.free[usize::from(lease.boundary)] >> lease.pair & 1 == 1
    }

    /// Returns the tasks that use buffers, once per use.
    pub(crate) fn users(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.uses.iter().map(|used| used.task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single() -> Stages {
        Stages::new(&StageKnobs::chain(1), 2)
    }

    #[test]
    fn after_the_last_stage_a_row_is_done() {
        assert_eq!(single().onward(CellId(0), Next::On), Onward::Done);
        let chain = Stages::new(&StageKnobs::chain(2), 2);
        assert_eq!(chain.onward(CellId(0), Next::On), Onward::To(CellId(1)));
        assert_eq!(chain.onward(CellId(1), Next::On), Onward::Done);
    }

    #[test]
    fn a_row_may_run_its_stage_again() {
        assert_eq!(single().onward(CellId(0), Next::Skip(CellId(0))), Onward::To(CellId(0)));
    }

    #[test]
    fn a_row_sent_to_a_stage_that_does_not_exist_failed() {
        assert_eq!(single().onward(CellId(0), Next::Skip(CellId(1))), Onward::Failed);
    }
}
