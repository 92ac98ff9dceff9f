//! One loaded version, as admission and lanes need it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    admit::Admission,
    cells::SequenceState,
    hangs::Hangs,
    host::short_runs::ShortRunDetector,
    stages::{Programs, StagePrograms},
};
use crate::{
    batching::{Ns, ReqId, SequenceNo},
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
    /// Where replies leave in the order of arrival: requests that have completed, from the first on whose outputs the
    /// host has yet to take.
    pub(super) waiting: Option<VecDeque<ReqId>>,
    /// Sequences that are not over, by their state.
    sequences: HashMap<SequenceNo, Arc<SequenceState>>,
}

impl Version {
    /// One without requests, whose replies leave in the order of arrival or not.
    pub(super) fn new(loaded: Arc<Loaded>, preserves_ordering: bool) -> Self {
        let waiting = preserves_ordering.then(VecDeque::new);
        Self { loaded, live: 0, waiting, sequences: HashMap::new() }
    }

    /// Whether its batches keep rows between stages.
    pub(super) fn keeps_rows(&self) -> bool {
        matches!(self.loaded.programs.0, Programs::Cut(_))
    }

    /// The state of a sequence, empty before its first request.
    pub(super) fn sequence(&mut self, sequence: SequenceNo) -> Arc<SequenceState> {
        Arc::clone(self.sequences.entry(sequence).or_default())
    }

    /// A sequence is over; its state, for its requests in flight may still hold it.
    pub(super) fn sequence_over(&mut self, sequence: SequenceNo) -> Option<Arc<SequenceState>> {
        self.sequences.remove(&sequence)
    }

    /// A request has left. Whether the version has nothing to do by that.
    pub(super) fn left(&mut self) -> bool {
        self.live -= 1;
        self.live == 0
    }
}
