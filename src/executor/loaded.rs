//! One loaded version, as admission and lanes need it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    admit::Admission,
    boundary::BoundaryRows,
    cells::SequenceState,
    hangs::Hangs,
    short_runs::ShortRunDetector,
    stages::{Programs, StagePrograms},
};
use crate::{
    batching::{Lease, Ns, SequenceNo, Task},
    model::ModelSpec,
    observe::ModelStats,
};

/// What lanes and admission need of a loaded version.
pub(super) struct Loaded {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) stats: Arc<ModelStats>,
    pub(super) programs: StagePrograms,
    pub(super) short_runs: ShortRunDetector,
    pub(super) admission: Admission,
    pub(super) hangs: Arc<Hangs>,
    /// How long a task may run; `None`: as long as it likes.
    pub(super) limit_ns: Option<Ns>,
}

impl Loaded {
    pub(super) fn new(
        spec: Arc<ModelSpec>,
        stats: Arc<ModelStats>,
        programs: StagePrograms,
        task_time_limit: Duration,
    ) -> Arc<Self> {
        let admission = Admission::new(&spec);
        let short_runs = ShortRunDetector::new(admission.is_fixed() && programs.is_steady());
        let hangs = Arc::new(Hangs::new(programs.count(), task_time_limit));
        let limit_ns = Ns::try_from(task_time_limit.as_nanos()).ok().filter(|&limit_ns| limit_ns > 0);
        Arc::new(Self { spec, stats, programs, short_runs, admission, hangs, limit_ns })
    }
}

/// The longer of two limits; none is longer than any.
pub(super) fn longer(one_ns: Option<Ns>, other_ns: Option<Ns>) -> Option<Ns> {
    one_ns.zip(other_ns).map(|(one_ns, other_ns)| one_ns.max(other_ns))
}

/// A loaded version on its pool: what changes with its requests and tasks.
pub(super) struct Version {
    pub(super) loaded: Arc<Loaded>,
    /// Requests that have not ended.
    pub(super) live: usize,
    /// Largest batch.
    max_batch_rows: u32,
    /// By lease: which batch holds it, and what it keeps there.
    pairs: Vec<(Lease, u64, Arc<BoundaryRows>)>,
    /// Sequences that are not over, by their state.
    sequences: HashMap<SequenceNo, Arc<SequenceState>>,
}

impl Version {
    pub(super) fn new(loaded: Arc<Loaded>, max_batch_rows: u32) -> Self {
        Self { loaded, live: 0, max_batch_rows, pairs: Vec::new(), sequences: HashMap::new() }
    }

    /// What the task's batch keeps at a boundary that it reads; `None` if it keeps nothing there.
    pub(super) fn kept(&self, lease: Lease, batch: u64) -> Option<Arc<BoundaryRows>> {
        let pair = self.pairs.iter().find(|(held, by, _)| (*held, *by) == (lease, batch));
        pair.map(|(_, _, rows)| Arc::clone(rows))
    }

    /// Where the task's batch keeps what the task writes: a new place if another batch held the lease before, whose own
    /// goes to `freed`.
    pub(super) fn keep(&mut self, task: &Task, freed: &mut Vec<Arc<BoundaryRows>>) -> Option<Arc<BoundaryRows>> {
        let (lease, batch) = (task.writes?, task.batch);
        let Programs::Cut(stages) = &self.loaded.programs.0 else { return None };
        let tensors = stages.boundaries.get(usize::from(lease.boundary))?.len();
        let fresh = || BoundaryRows::new(self.max_batch_rows, tensors);
        let Some(pair) = self.pairs.iter_mut().find(|(held, ..)| *held == lease) else {
            let rows = fresh();
            self.pairs.push((lease, batch, Arc::clone(&rows)));
            return Some(rows);
        };
        if pair.1 != batch {
            freed.push(std::mem::replace(&mut pair.2, fresh()));
            pair.1 = batch;
        }
        Some(Arc::clone(&pair.2))
    }

    /// The state of a sequence, empty before its first request.
    pub(super) fn sequence(&mut self, sequence: SequenceNo) -> Arc<SequenceState> {
        Arc::clone(self.sequences.entry(sequence).or_default())
    }

    /// A sequence is over; its state, for its requests in flight may still hold it.
    pub(super) fn sequence_over(&mut self, sequence: SequenceNo) -> Option<Arc<SequenceState>> {
        self.sequences.remove(&sequence)
    }

    /// A request ended. What batches kept goes to `freed` with the last.
    pub(super) fn left(&mut self, freed: &mut Vec<Arc<BoundaryRows>>) {
        self.live -= 1;
        if self.live == 0 {
            freed.extend(self.pairs.drain(..).map(|(_, _, rows)| rows));
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::{
        batching::{Bucket, CellId, LaneId, ModelId, ShapeClass, TaskId},
        engine::{Program, Repeat},
        model::{BoundaryTensor, DataType, Sink, Source, StagePlan, StageSpec, TensorSpec},
    };

    const LEASE: Lease = Lease { boundary: 0, pair: 1 };

    fn version() -> Version {
        let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[1]);
        let spec = ModelSpec {
            name: "m".to_owned(),
            version: 1,
            max_batch_size: 4,
            inputs: vec![tensor("x")],
            outputs: vec![tensor("y")],
            symbols: vec![],
            decoupled: false,
        };
        let stage = |input, output| StageSpec { inputs: vec![input], outputs: vec![output], exits: vec![] };
        let left = BoundaryTensor { name: "h".to_owned(), datatype: DataType::Fp32, dims: None };
        let first = stage((tensor("x"), Source::Request(0)), (tensor("h"), Sink::Boundary(0)));
        let from = Source::Boundary { boundary: 0, tensor: 0 };
        let last = stage((tensor("h"), from), (tensor("y"), Sink::Reply(0)));
        let plan = StagePlan { stages: vec![first, last], boundaries: vec![vec![left]] };
        let programs = (0..2).map(|_| Arc::new(Repeat) as Arc<dyn Program>).collect();
        let programs = StagePrograms::cut(&spec, plan, programs).expect("the plan is sound");
        let stats = Arc::new(ModelStats::new(4));
        Version::new(Loaded::new(Arc::new(spec), stats, programs, Duration::ZERO), 4)
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
        let (mut version, mut freed) = (version(), Vec::new());
        let own = version.keep(&task(7), &mut freed).expect("the boundary exists");
        let again = version.keep(&task(7), &mut freed).expect("the boundary exists");
        assert!(Arc::ptr_eq(&own, &again), "a stretched batch writes where it wrote before");
        let read = version.kept(LEASE, 7).expect("the batch wrote");
        assert!(Arc::ptr_eq(&own, &read) && freed.is_empty());
        assert!(version.kept(LEASE, 8).is_none(), "another batch's rows are not its own");
        let other = version.keep(&task(8), &mut freed).expect("the boundary exists");
        assert!(!Arc::ptr_eq(&own, &other));
        assert!(version.kept(LEASE, 7).is_none());
        assert!(freed.len() == 1 && Arc::ptr_eq(&freed[0], &own), "what the batch before kept is let go");
    }

    #[test]
    fn an_idle_version_keeps_nothing() {
        let (mut version, mut freed) = (version(), Vec::new());
        version.live = 2;
        version.keep(&task(7), &mut freed).expect("the boundary exists");
        version.left(&mut freed);
        assert!(freed.is_empty(), "one request is left");
        version.left(&mut freed);
        assert_eq!(freed.len(), 1);
        assert!(version.kept(LEASE, 7).is_none());
    }
}
