//! The memory that the batches of each version keep at the boundaries between stages.

use std::{collections::BTreeMap, sync::Arc};

use paternoster_batching::{Lease, ModelId, Task};

use super::{boundary::BoundaryRows, work::HostTask};
use crate::{
    job::Job,
    stages::{Programs, StagePrograms},
};

/// Buffer pairs by version. Versions without boundaries have none.
#[derive(Default)]
pub(super) struct Pairs(BTreeMap<ModelId, VersionPairs>);

struct VersionPairs {
    /// Number of tensors at each boundary.
    tensors: Box<[usize]>,
    max_batch_rows: u32,
    /// For each lease, the batch that holds it and its rows.
    leased: Vec<(Lease, u64, Arc<BoundaryRows>)>,
}

impl Pairs {
    /// Adds a version.
    pub(super) fn load(&mut self, model: ModelId, programs: &StagePrograms, max_batch_rows: u32) {
        if let Programs::Cut(stages) = &programs.0 {
            let tensors = stages.boundaries.iter().map(Vec::len).collect();
            self.0.insert(model, VersionPairs { tensors, max_batch_rows, leased: Vec::new() });
        }
    }

    /// Attaches the memory of its batch to a task.
    pub(super) fn lend(&mut self, job: Job) -> HostTask {
        let Some(version) = self.0.get_mut(&job.task.model) else {
            return HostTask { job, reads: Default::default(), writes: None };
        };
        let kept = |&lease: &Lease| Some((lease.boundary, version.kept(lease, job.task.batch)?));
        let reads = job.task.reads.iter().filter_map(kept).collect();
        let writes = version.keep(&job.task);
        HostTask { job, reads, writes }
    }

    /// Frees the memory of a version's batches when it has no requests.
    pub(super) fn rest(&mut self, model: ModelId) {
        if let Some(version) = self.0.get_mut(&model) {
            version.leased.clear();
        }
    }

    /// Removes a version.
    pub(super) fn unload(&mut self, model: ModelId) {
        self.0.remove(&model);
    }
}

impl VersionPairs {
    /// Returns the rows that the task's batch keeps at a boundary that it reads, if any.
    fn kept(&self, lease: Lease, batch: u64) -> Option<Arc<BoundaryRows>> {
        let pair = self.leased.iter().find(|(held, by, _)| (*held, *by) == (lease, batch));
        pair.map(|(_, _, rows)| Arc::clone(rows))
    }

    /// Returns the rows that the task writes: new ones if another batch held the lease before.
    fn keep(&mut self, task: &Task) -> Option<Arc<BoundaryRows>> {
        let (lease, batch) = (task.writes?, task.batch);
        let tensors = *self.tensors.get(usize::from(lease.boundary))?;
        let fresh = || BoundaryRows::new(self.max_batch_rows, tensors);
        let Some(pair) = self.leased.iter_mut().find(|(held, ..)| *held == lease) else {
            let rows = fresh();
            self.leased.push((lease, batch, Arc::clone(&rows)));
            return Some(rows);
        };
        if pair.1 != batch {
            (pair.1, pair.2) = (batch, fresh());
        }
        Some(Arc::clone(&pair.2))
    }
}

#[cfg(test)]
mod tests {
    use paternoster_batching::{Bucket, LaneId, ShapeClass, TaskId};
    use paternoster_model::CellId;
    use smallvec::SmallVec;

    use super::*;

    const LEASE: Lease = Lease { boundary: 0, pair: 1 };

    fn version() -> VersionPairs {
        VersionPairs { tensors: Box::new([1]), max_batch_rows: 4, leased: Vec::new() }
    }

    fn task(batch: u64) -> Task {
        Task {
            id: TaskId(0),
            model: ModelId(0),
            cell: CellId(0),
            bucket: Bucket { rows: 1, class: ShapeClass::default() },
            lane: LaneId(0),
            batch,
            rows: vec![],
            reads: SmallVec::new(),
            writes: Some(LEASE),
            after: SmallVec::new(),
        }
    }

    #[test]
    fn a_pair_is_its_batchs_until_another_batch_takes_it() {
        let mut version = version();
        let own = version.keep(&task(7)).expect("the boundary exists");
        let again = version.keep(&task(7)).expect("the boundary exists");
        assert!(Arc::ptr_eq(&own, &again), "a stretched batch writes where it wrote before");
        let read = version.kept(LEASE, 7).expect("the batch wrote");
        assert!(Arc::ptr_eq(&own, &read));
        assert!(version.kept(LEASE, 8).is_none(), "another batch's rows are not its own");
        let other = version.keep(&task(8)).expect("the boundary exists");
        assert!(!Arc::ptr_eq(&own, &other));
        assert!(version.kept(LEASE, 7).is_none());
        drop((again, read));
        assert_eq!(Arc::strong_count(&own), 1, "what the batch before kept is let go");
    }

    #[test]
    fn a_version_that_rests_keeps_nothing() {
        let mut pairs = Pairs(BTreeMap::from([(ModelId(0), version())]));
        let version = pairs.0.get_mut(&ModelId(0)).expect("it is loaded");
        let own = version.keep(&task(7)).expect("the boundary exists");
        pairs.rest(ModelId(0));
        assert_eq!(Arc::strong_count(&own), 1);
        assert!(pairs.0[&ModelId(0)].kept(LEASE, 7).is_none());
    }
}
