//! One loaded version, as admission and lanes use it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use paternoster_batching::{Ns, ReqId, SequenceNo};
use paternoster_model::ModelSpec;
use paternoster_observe::{ModelStats, budget::Budget};

use super::{
    admit::Admission,
    cells::SequenceState,
    hangs::Hangs,
    host::short_runs::ShortRunDetector,
    stages::{Programs, StagePrograms},
};

/// The parts of a loaded version that admission and lanes need.
pub(super) struct Loaded {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) stats: Arc<ModelStats>,
    pub(super) programs: StagePrograms,
    pub(super) short_runs: ShortRunDetector,
    pub(super) admission: Admission,
    pub(super) hangs: Arc<Hangs>,
    /// Time limit of a task; `None`: no limit.
    pub(super) limit_ns: Option<Ns>,
    /// Bytes of host memory that the state of sequences may take.
    sequence_state: Arc<Budget>,
}

impl Loaded {
    pub(super) fn new(
        spec: Arc<ModelSpec>,
        stats: Arc<ModelStats>,
        programs: StagePrograms,
        task_time_limit: Duration,
        sequence_state: &Arc<Budget>,
    ) -> Arc<Self> {
        let admission = Admission::new(&spec);
        let short_runs = ShortRunDetector::new(admission.is_fixed() && programs.is_steady());
        let hangs = Arc::new(Hangs::new(programs.count(), task_time_limit));
        let limit_ns = Ns::try_from(task_time_limit.as_nanos()).ok().filter(|&limit_ns| limit_ns > 0);
        let sequence_state = Arc::clone(sequence_state);
        Arc::new(Self { spec, stats, programs, short_runs, admission, hangs, limit_ns, sequence_state })
    }
}

/// Returns the longer of two limits; `None`, no limit, is the longest.
pub(super) fn longer(one_ns: Option<Ns>, other_ns: Option<Ns>) -> Option<Ns> {
    one_ns.zip(other_ns).map(|(one_ns, other_ns)| one_ns.max(other_ns))
}

/// The mutable state of a loaded version: its requests and sequences.
pub(super) struct Version {
    pub(super) loaded: Arc<Loaded>,
    /// Number of requests that have not ended.
    pub(super) live: usize,
    /// If replies leave in arrival order: completed requests, starting with the first one whose outputs the host has
    /// not taken yet.
    pub(super) waiting: Option<VecDeque<ReqId>>,
    /// State of the sequences that are not over.
    sequences: HashMap<SequenceNo, Arc<SequenceState>>,
}

impl Version {
    /// Creates a version without requests.
    pub(super) fn new(loaded: Arc<Loaded>, preserves_ordering: bool) -> Self {
        let waiting = preserves_ordering.then(VecDeque::new);
        Self { loaded, live: 0, waiting, sequences: HashMap::new() }
    }

    /// Whether its batches keep rows between stages.
    pub(super) fn keeps_rows(&self) -> bool {
        matches!(self.loaded.programs.0, Programs::Cut(_))
    }

    /// Returns the state of a sequence; empty before its first request.
    pub(super) fn sequence(&mut self, sequence: SequenceNo) -> Arc<SequenceState> {
        let budget = &self.loaded.sequence_state;
        let state = self.sequences.entry(sequence).or_insert_with(|| Arc::new(SequenceState::new(sequence, budget)));
        Arc::clone(state)
    }

    /// Removes a sequence that is over. Returns its state, which requests in flight may still hold.
    pub(super) fn sequence_over(&mut self, sequence: SequenceNo) -> Option<Arc<SequenceState>> {
        self.sequences.remove(&sequence)
    }

    /// Counts a request that left, and returns whether none is left.
    pub(super) fn left(&mut self) -> bool {
        self.live -= 1;
        self.live == 0
    }
}
