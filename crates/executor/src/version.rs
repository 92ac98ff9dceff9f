//! One loaded version, as admission and lanes use it, and its state.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use paternoster_batching::{Ns, ReqId, SequenceNo};
use paternoster_model::ModelSpec;
use paternoster_observe::{ModelStats, budget::Budget};

use super::{
    admission::Admission,
    cells::SequenceState,
    short_runs::ShortRunDetector,
    stages::{Programs, StagePrograms},
};

/// The parts of a loaded version that admission and lanes need.
pub(super) struct ServedVersion {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) stats: Arc<ModelStats>,
    pub(super) programs: StagePrograms,
    pub(super) short_runs: ShortRunDetector,
    pub(super) admission: Admission,
    pub(super) hangs: HungTasks,
    /// Time limit of a task; `None`: no limit.
    pub(super) limit_ns: Option<Ns>,
    /// Bytes of host memory that the state of sequences may take.
    sequence_state: Arc<Budget>,
    /// Number of sequences that are not over, on all devices.
    pub(super) open_sequences: AtomicUsize,
}

impl ServedVersion {
    pub(super) fn new(
        spec: Arc<ModelSpec>,
        stats: Arc<ModelStats>,
        programs: StagePrograms,
        task_time_limit: Duration,
        sequence_state: &Arc<Budget>,
    ) -> Arc<Self> {
        let admission = Admission::new(&spec);
        let short_runs = ShortRunDetector::new(admission.is_fixed() && programs.is_steady());
        let hangs = HungTasks::new(programs.count(), task_time_limit);
        let limit_ns = Ns::try_from(task_time_limit.as_nanos()).ok().filter(|&limit_ns| limit_ns > 0);
        let sequence_state = Arc::clone(sequence_state);
        let open_sequences = AtomicUsize::new(0);
        Arc::new(Self { spec, stats, programs, short_runs, admission, hangs, limit_ns, sequence_state, open_sequences })
    }
}

/// Returns the longer of two limits; `None`, no limit, is the longest.
pub(super) fn longer(one_ns: Option<Ns>, other_ns: Option<Ns>) -> Option<Ns> {
    one_ns.zip(other_ns).map(|(one_ns, other_ns)| one_ns.max(other_ns))
}

/// The mutable state of a loaded version: its requests and sequences.
pub(super) struct VersionState {
    pub(super) loaded: Arc<ServedVersion>,
    /// Number of requests that have not ended.
    pub(super) live: usize,
    /// If responses leave in arrival order: completed requests, starting with the first one whose outputs the host has
    /// not taken yet.
    pub(super) waiting: Option<VecDeque<ReqId>>,
    /// State of the sequences that are not over.
    sequences: HashMap<SequenceNo, Arc<SequenceState>>,
}

impl VersionState {
    /// Creates a version without requests.
    pub(super) fn new(loaded: Arc<ServedVersion>, preserves_ordering: bool) -> Self {
        let waiting = preserves_ordering.then(VecDeque::new);
        Self { loaded, live: 0, waiting, sequences: HashMap::new() }
    }

    /// Whether its batches keep rows between stages.
    pub(super) fn keeps_rows(&self) -> bool {
        matches!(self.loaded.programs.0, Programs::Cut(_))
    }

    /// Returns the state of a sequence; empty before its first request.
    pub(super) fn sequence(&mut self, sequence: SequenceNo) -> Arc<SequenceState> {
        let ServedVersion { sequence_state, open_sequences, .. } = &*self.loaded;
        let state = self.sequences.entry(sequence).or_insert_with(|| {
            open_sequences.fetch_add(1, Ordering::Relaxed);
            Arc::new(SequenceState::new(sequence, sequence_state))
        });
        Arc::clone(state)
    }

    /// Removes a sequence that is over. Returns its state, which requests in flight may still hold.
    pub(super) fn sequence_over(&mut self, sequence: SequenceNo) -> Option<Arc<SequenceState>> {
        let over = self.sequences.remove(&sequence)?;
        self.loaded.open_sequences.fetch_sub(1, Ordering::Relaxed);
        Some(over)
    }

    /// Counts a request that left, and returns whether none is left.
    pub(super) fn left(&mut self) -> bool {
        self.live -= 1;
        self.live == 0
    }
}

/// Tasks of one version that exceeded its time limit and occupy their lanes.
#[derive(Debug)]
pub(super) struct HungTasks {
    by_stage: Box<[AtomicU32]>,
    limit: Duration,
}

impl HungTasks {
    pub(super) fn new(stages: usize, limit: Duration) -> Self {
        Self { by_stage: (0..stages).map(|_| AtomicU32::new(0)).collect(), limit }
    }

    /// Records that a task of the stage exceeded the limit.
    pub(super) fn began(&self, stage: u16) {
        if let Some(hanging) = self.by_stage.get(usize::from(stage)) {
            hanging.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that one of them no longer occupies its lane.
    pub(super) fn ended(&self, stage: u16) {
        if let Some(hanging) = self.by_stage.get(usize::from(stage)) {
            hanging.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the fault of the version if one of its tasks hangs.
    pub(super) fn reason(&self) -> Option<String> {
        let stage = self.by_stage.iter().position(|hanging| hanging.load(Ordering::Relaxed) > 0)?;
        Some(self.reason_of(stage))
    }

    /// Returns the fault of a version of which a task of this stage hangs.
    pub(super) fn reason_of(&self, stage: usize) -> String {
        let task = if self.by_stage.len() > 1 { format!("a task of stage {stage}") } else { "a task".to_owned() };
        format!("{task} has not ended within {:?}", self.limit)
    }
}
