//! Parameters of queues, stages and cells, as the core takes them. `repository` builds them from a model's
//! configuration.

use paternoster_model::CellId;
use smallvec::SmallVec;

use super::{Ns, WindowKnobs};

/// One stage of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageKnobs {
    /// Boundaries that it reads, ascending: the predecessor's, plus earlier ones for connections that skip stages.
    /// Empty for the first stage.
    pub reads: SmallVec<[u16; 2]>,
    /// Whether its outcomes decide where rows go (exit, skip, repetition). If so, later stages are launched only after
    /// it has completed.
    pub decides: bool,
    /// Batch sizes in rows that it can execute, ascending. A task is padded to the cheapest size that holds its rows.
    /// Batches of the version are limited to the largest. Empty: any size runs unpadded, as on the CPU.
    pub buckets: Box<[u32]>,
}

impl StageKnobs {
    /// Returns a chain of `count` stages, each reading its predecessor's boundary.
    pub fn chain(count: u16) -> Vec<Self> {
        let reads = |stage: u16| stage.checked_sub(1).into_iter().collect();
        (0..count.max(1)).map(|stage| Self { reads: reads(stage), ..Self::default() }).collect()
    }
}

/// Parameters of cellular batching (BatchMaker section 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellularKnobs {
    /// The cell types; at least one.
    pub cells: Vec<CellKnobs>,
    /// The segments that a request unfolds into, in order; at least one.
    pub segments: Vec<SegmentKnobs>,
    /// Number of state slots for boarded requests: a chain takes one, a tree one per node.
    pub slots: u32,
    /// Choose the next type by algorithm 1 of BatchMaker instead of by mean latency.
    pub paper: bool,
    /// Maximum number of consecutive tasks of one type per lane, at least 1 (the paper's MaxTasksToSubmit). Only used
    /// with `paper`, as are the cells' priorities and least rows of follow-up tasks.
    pub max_tasks: u16,
    /// Inner nodes of a tree wait only for their own children. In the paper they wait for all leaves (section 4.4).
    pub frontier: bool,
    /// Maximum number of requests whose graphs are merged, at least 1. Further requests board, and responses leave,
    /// only when all merged requests have run. This is what TensorFlow Fold and DyNet do (section 7.5), for comparison.
    /// `None`: requests board and leave at any task.
    pub merge_requests: Option<u32>,
    /// Sequence settings if requests belong to sequences, whose state persists between requests; `None`: requests are
    /// independent.
    pub sequences: Option<SequenceKnobs>,
    /// How long waiting requests wait for a fuller batch before they board, while no node is ready; `None`: they board
    /// at any task.
    pub window: Option<WindowKnobs>,
    /// Let requests that would become late veto tasks of types that they do not need, as in LazyBatching. Not used with
    /// `paper`.
    pub lazy: Option<LazyCellKnobs>,
    /// Longest predicted time of a task that runs several steps of its rows; `None`: as long as the gain says. A single
    /// step may take longer.
    pub max_chunk_ns: Option<Ns>,
}

impl Default for CellularKnobs {
    /// BatchMaker's MaxTasksToSubmit, and as many slots as a host has memory for. Cells and segments have no default.
    fn default() -> Self {
        Self {
            cells: Vec::new(),
            segments: Vec::new(),
            slots: 65_536,
            paper: false,
            max_tasks: 5,
            frontier: true,
            merge_requests: None,
            sequences: None,
            window: None,
            lazy: None,
            max_chunk_ns: None,
        }
    }
}

/// Parameters of LazyBatching over cells (section IV).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LazyCellKnobs {
    /// Reject requests that would probably miss the objective, by the steps that others took, instead of serving them
    /// late.
    pub reject_late: bool,
}

/// Triton's `sequence_batching`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceKnobs {
    /// Maximum number of sequences that hold state at once, at least 1. Requests of further sequences wait until one of
    /// these ends.
    pub max_sequences: u32,
    /// A sequence without queued or running requests for this time is closed.
    pub max_idle_ns: Ns,
}

/// One cell type: program, weights and shapes of inputs (section 4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellKnobs {
    /// Largest batch in rows, at least 1 (the paper's Bsizes.Max()).
    pub max_rows: u32,
    /// Minimum rows of a further task in the same round (the paper's Bsizes.Min()).
    pub min_followup: u32,
    /// Priority of this type, 1 = highest.
    pub priority: u32,
    /// Cells of the same kind share tasks across versions. `None`: only this version uses the type. Ignored under
    /// `lazy` and `merge_requests`.
    pub kind: Option<CellKind>,
    /// Batch sizes in rows that it can execute, ascending. A task is padded to the cheapest size that holds its rows.
    /// If the largest is below `max_rows`, it limits batches instead. Empty: any size runs unpadded, as on the CPU. A
    /// shared task uses a size of the version that leads it.
    pub buckets: Box<[u32]>,
    /// How a task may run several consecutive steps of each of its rows. `None`: the cell runs one step at a time. Only
    /// segments of steps may have such a type.
    pub chunks: Option<ChunkKnobs>,
}

/// How tasks run several steps of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkKnobs {
    /// Whether rows with different numbers of steps share a task, because the cell receives the number of each.
    pub is_padded: bool,
    /// Most rows times steps of a task, as memory bounds them; a task of single steps is always allowed.
    pub most_row_steps: u32,
    /// If set, tasks run numbers of steps that are powers of two up to this one, for which the device is prepared.
    pub powers_up_to: Option<u32>,
}

impl ChunkKnobs {
    /// Returns the largest number of steps up to `steps`, at least 1, that a task may run.
    pub(super) fn at_most(&self, steps: u32) -> u32 {
        self.powers_up_to.map_or(steps, |most| 1 << steps.min(most).max(1).ilog2())
    }
}

impl CellKnobs {
    /// Returns the cell with its batch sizes, follow-ups included, limited to its largest bucket.
    pub(super) fn bounded(&self) -> Self {
        let max_rows = self.buckets.iter().max().map_or(self.max_rows, |&largest| self.max_rows.min(largest.max(1)));
        Self { max_rows, min_followup: self.min_followup.min(max_rows), ..self.clone() }
    }
}

/// Identity of a cell type: equal if program, weights and input shapes are equal (section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellKind(pub u128);

/// One segment of the graph that a request unfolds into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentKnobs {
    /// A single node.
    Stage {
        /// Its type.
        cell: CellId,
    },
    /// Nodes in sequence, as many as the request has.
    Steps {
        /// Their type.
        cell: CellId,
    },
    /// Nodes in sequence until an outcome ends them, at most as many as the request has.
    Decode {
        /// Their type.
        cell: CellId,
        /// Number of nodes that 90 % of the requests do not exceed, if that is known (LazyBatching's dec_timesteps). It
        /// counts until requests have shown how many they take.
        expected_steps: Option<u32>,
    },
    /// A tree; each node runs after its children.
    Tree {
        /// Type of the nodes without children.
        leaf: CellId,
        /// Type of the others.
        inner: CellId,
    },
}

/// Parameters of the queue; `serial` uses none of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueingKnobs {
    /// Responses leave in arrival order, including rejections and failures. Cancelled and expired requests end at once,
    /// since no client waits for their responses.
    pub preserve_ordering: bool,
    /// Number of priority levels; 0 and 1 both mean one level.
    pub priority_levels: u64,
    /// Level of a request with priority 0 or with a priority out of range.
    pub default_priority_level: u64,
    /// Queue policy of levels that have none of their own.
    pub default_queue: QueueKnobs,
    /// Queue policies by level (1 = highest).
    pub level_queues: Vec<(u64, QueueKnobs)>,
    /// Width of the length buckets: requests share a batch if their lengths round up to the same multiple. 0: any
    /// lengths share a batch. `None`: those lengths do that the model's own runs have shown to be faster together. A
    /// task is padded only to its own longest row.
    pub bucket_width: Option<u32>,
    /// Nothing runs until this many requests wait for the first time; 0: requests run as they come. Meant for tests
    /// that need a full queue.
    pub hold_until_waiting: u32,
    /// While `hold_until_waiting` holds requests of sequences: the requests that must wait in sequences without a slot,
    /// which that number does not count.
    pub hold_until_backlog: u32,
}

/// The order in which the parts of a split batch run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartOrder {
    /// Each part runs to its end before the next starts.
    #[default]
    DepthFirst,
    /// All parts run stage by stage.
    Pipelined,
}

/// Triton's `ModelQueuePolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueKnobs {
    /// Action when the timeout passes.
    pub timeout_action: TimeoutAction,
    /// Timeout of requests without their own; 0: none.
    pub default_timeout_ns: Ns,
    /// Whether a request may set its own timeout. It can only shorten the default timeout.
    pub allow_timeout_override: bool,
    /// Maximum number of waiting requests at the level, including those past their queue timeout; 0: no limit.
    pub max_queue_size: u32,
}

/// Triton's `TimeoutAction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeoutAction {
    /// The request is rejected.
    #[default]
    Reject,
    /// The request moves behind all others of its level and waits there without a timeout.
    Delay,
}
