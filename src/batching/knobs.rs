//! A model version's batching parameters as the core takes them; `repository` makes them from the configuration.

use smallvec::SmallVec;

use super::{CellId, CostTable, Ns};

/// What the core knows of one model version.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    /// Largest batch in rows, at least 1.
    pub max_batch_rows: u32,
    /// Whether requests may share a batch at all (false for models without a batch axis).
    pub mergeable: bool,
    /// Most tasks in flight at once per device (`instance_group.count`).
    pub max_in_flight: u32,
    /// The stages in order; at least one.
    pub stages: Vec<StageKnobs>,
    /// Buffers at each boundary between two stages (DVABatch section 6.1), at least 1: with 1, one batch is between
    /// admission and the last stage's end; with 2, stages overlap.
    pub buffer_pairs: u16,
    /// The latency that requests are to stay within, from arrival to end. Steers, never kills.
    pub objective_ns: Option<Ns>,
    /// Latencies of the stages as far as they are known beforehand; they are corrected online.
    pub latencies: Option<CostTable>,
    /// Share of the device against other models, at least 1.
    pub weight: u32,
    /// Order, priorities and limits of the queue.
    pub queueing: QueueingKnobs,
    /// How batches are formed.
    pub policy: Policy,
}

impl Default for Knobs {
    /// `serial`, one stage, batches of one row.
    fn default() -> Self {
        Self {
            max_batch_rows: 1,
            mergeable: true,
            max_in_flight: 1,
            stages: vec![StageKnobs::default()],
            buffer_pairs: 2,
            objective_ns: None,
            latencies: None,
            weight: 1,
            queueing: QueueingKnobs::default(),
            policy: Policy::Serial,
        }
    }
}

/// One stage of a version's pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageKnobs {
    /// Boundaries that it reads, ascending: its predecessor's, and earlier ones where a connection skips stages. Empty
    /// for the first stage.
    pub reads: SmallVec<[u16; 2]>,
    /// Whether its outcomes decide where rows go (an exit, a skip, a repetition), so that nothing behind it is
    /// launched before it has completed.
    pub decides: bool,
}

impl StageKnobs {
    /// A chain of `count` stages, each reading its predecessor's boundary.
    pub fn chain(count: u16) -> Vec<Self> {
        let reads = |stage: u16| stage.checked_sub(1).into_iter().collect();
        (0..count.max(1)).map(|stage| Self { reads: reads(stage), decides: false }).collect()
    }
}

/// The policy of a model version.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// One request at a time.
    Serial,
    /// Triton's dynamic batcher.
    Window(WindowKnobs),
    /// Batch sizes follow the request rate (Efficient Adaptive Batching).
    Adaptive(AdaptiveKnobs),
    /// Late requests catch up while the slack allows it (LazyBatching).
    Lazy(LazyKnobs),
    /// Batches are stretched, split and run in groups of like length (DVABatch).
    Diversity(DiversityKnobs),
    /// Requests unfold into cells, of which tasks are formed anew at every step (BatchMaker).
    Cellular(CellularKnobs),
}

/// BatchMaker, section 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellularKnobs {
    /// The cell types; at least one.
    pub cells: Vec<CellKnobs>,
    /// What requests unfold into, one after the other; at least one.
    pub segments: Vec<SegmentKnobs>,
    /// Slots for the state of requests that have boarded: one for a chain, one a node for a tree.
    pub slots: u32,
    /// Most tasks of one type that a lane is given in a row, at least 1: MaxTasksToSubmit.
    pub max_tasks: u16,
    /// Inner nodes of a tree wait for their own children alone, and not, as in the paper, for all leaves (section
    /// 4.4).
    pub frontier: bool,
    /// Most requests whose graphs are merged, at least one: others board, and replies leave, when all of
    /// them have run. That is what TensorFlow Fold and DyNet do (section 7.5), to compare with; none: requests board
    /// and leave at any task.
    pub merge_requests: Option<u32>,
    /// Requests belong to sequences, whose state lives on between them; none: each is by itself.
    pub sequences: Option<SequenceKnobs>,
    /// Which type goes first is decided by slack and progress, as in LazyBatching, and not by algorithm 1.
    pub lazy: Option<LazyCellKnobs>,
}

impl Default for CellularKnobs {
    /// BatchMaker's MaxTasksToSubmit, and as many slots as a host has memory for; cells and segments are still to
    /// come.
    fn default() -> Self {
        Self {
            cells: Vec::new(),
            segments: Vec::new(),
            slots: 65_536,
            max_tasks: 5,
            frontier: true,
            merge_requests: None,
            sequences: None,
            lazy: None,
        }
    }
}

/// LazyBatching over cells, section IV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LazyCellKnobs {
    /// Longest time that the type that is furthest on waits for newcomers to catch up; none: half of what a request
    /// takes whose cells run in their largest batches.
    pub max_catch_up_ns: Option<Ns>,
    /// Requests that cannot meet the objective any more, if they need all nodes that they may have, are rejected
    /// instead of served late.
    pub reject_late: bool,
}

/// Triton's `sequence_batching`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceKnobs {
    /// Most sequences that hold state at once, at least 1; requests of others wait until one of these ends.
    pub max_sequences: u32,
    /// A sequence of which no request has been under way or waiting for so long is over.
    pub max_idle_ns: Ns,
}

/// One cell type: program, weights and shapes of inputs (section 4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellKnobs {
    /// Largest batch in rows, at least 1: Bsizes.Max().
    pub max_rows: u32,
    /// A further task of a round has at least so many rows: Bsizes.Min().
    pub min_followup: u32,
    /// Which type goes first, 1 = highest.
    pub priority: u32,
    /// Cells of one kind share tasks, whatever versions they are of; none: the type is this version's alone. Of no
    /// account under `lazy` and `merge_requests`.
    pub kind: Option<CellKind>,
}

/// Equal where program, weights and shapes of inputs are: what makes cells one type (section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellKind(pub u128);

/// One segment of what a version's requests unfold into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentKnobs {
    /// Nodes one after the other: a chain, a loop that outcomes end, or a single one.
    Steps {
        /// Their type.
        cell: CellId,
    },
    /// Nodes behind their children.
    Tree {
        /// Type of the nodes without children.
        leaf: CellId,
        /// Type of the others.
        inner: CellId,
    },
}

/// What the queue of a batching policy does; `serial` has none of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueingKnobs {
    /// Responses leave in the order of arrival, rejections and failures included. Cancelled and expired requests end
    /// at once, since nobody waits for their replies.
    pub preserve_ordering: bool,
    /// Number of priority levels; 0 or 1: one level.
    pub priority_levels: u64,
    /// Level of a request with priority 0, or one out of range.
    pub default_priority_level: u64,
    /// Queue policy of levels without one of their own.
    pub default_queue: QueueKnobs,
    /// Queue policies by level (1 = highest).
    pub level_queues: Vec<(u64, QueueKnobs)>,
    /// Width of the length buckets: requests share a batch when their lengths round up to the same multiple; 0: any
    /// lengths share one. A task's bucket is padded to the longest of its own rows only.
    pub bucket_width: u32,
    /// Nothing runs before this many requests wait, once; 0: it runs as they come. For tests that need a full queue.
    pub hold_until_waiting: u32,
}

/// Triton's `dynamic_batching`, times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowKnobs {
    /// Sizes in rows at which a batch goes at once, ascending. Sizes that no batch can have are passed over; with none
    /// left it is the largest batch.
    pub preferred_batch_sizes: Vec<u32>,
    /// How long the oldest request may wait for a preferred size.
    pub max_queue_delay_ns: Ns,
}

/// BatchMonitor and BatchDispatcher (Efficient Adaptive Batching, section III).
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveKnobs {
    /// The preferred batch size carries the measured rate times 1 + this. The rule of equality is unstable under
    /// Poisson arrivals.
    pub headroom: f64,
    /// Time over which the request rate is averaged.
    pub average_ns: Ns,
    /// Longest time that a partial batch waits for its preferred size.
    pub max_queue_delay_ns: Ns,
    /// The paper's own rules: a window of one second, sizes from 2, no headroom, a linear fit of the latency.
    pub paper: bool,
}

impl Default for AdaptiveKnobs {
    fn default() -> Self {
        Self { headroom: 0.15, average_ns: 30_000_000, max_queue_delay_ns: 100_000_000, paper: false }
    }
}

/// LazyBatching, section IV.
#[derive(Clone, Debug, PartialEq)]
pub struct LazyKnobs {
    /// How remaining times are predicted.
    pub predictor: Predictor,
    /// Most entries of the batch table's stack; more would starve its bottom.
    pub max_depth: u32,
    /// Longest time in all that an entry waits for later ones to catch up; none: half the time of the whole model for
    /// the largest batch.
    pub max_catch_up_ns: Option<Ns>,
    /// Requests that cannot meet the objective any more are rejected instead of served late.
    pub reject_late: bool,
}

impl Default for LazyKnobs {
    fn default() -> Self {
        Self { predictor: Predictor::Table, max_depth: 4, max_catch_up_ns: None, reject_late: false }
    }
}

/// How the slack of a request is predicted (LazyBatching section IV-C).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Predictor {
    /// Equation 2: the batch-1 times of all requests, summed.
    Paper,
    /// Measured latency per stage and batch size at its 99th percentile, corrected online.
    #[default]
    Table,
    /// The mean latency per stage and batch size: the exact curve, where the table holds it (simulation).
    Oracle,
}

/// DVABatch, section 7.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiversityKnobs {
    /// Policy I: requests of like length travel together, the groups in parallel.
    pub input: Option<InputDiversity>,
    /// Policy II: batches split where the rest runs faster in parts.
    pub operator: Option<OperatorDiversity>,
    /// Policy III: newcomers join the newest batch. Off where Policy I is on (section 7.2).
    pub load: Option<LoadDiversity>,
}

/// Policy I.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputDiversity {
    /// Upper ends of the length groups, ascending; empty: chosen by dynamic programming over the observed lengths.
    pub bounds: Vec<u32>,
    /// Most groups where they are chosen; 0: 8.
    pub max_groups: u32,
    /// How long a group may wait for more; none: the time of the first stage with the largest batch.
    pub window_ns: Option<Ns>,
    /// The paper's own rule: groups wait for the window even while the pipeline is empty, and never share a batch.
    pub paper: bool,
    /// Without bounds: each length is a group of its own, and those of near lengths share a batch where the model's
    /// own runs tell that this is faster. For models of which no times are known; not together with `bounds`,
    /// `max_groups` and `paper`.
    pub by_runs: bool,
}

/// Policy II.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorDiversity {
    /// A batch splits when its remaining time is at least this times the sum of its parts'. Each part pays the
    /// boundaries again, so that with 1 even a rest that takes exactly as long as its rows one by one would never be
    /// split.
    pub threshold: f64,
    /// In which order the parts run.
    pub order: PartOrder,
    /// The paper's own rule: halves only, and only between stages.
    pub paper: bool,
}

impl Default for OperatorDiversity {
    fn default() -> Self {
        Self { threshold: 0.99, order: PartOrder::DepthFirst, paper: false }
    }
}

/// In which order the parts of a split batch run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartOrder {
    /// One to its end, then the next.
    #[default]
    DepthFirst,
    /// Stage by stage.
    Pipelined,
}

/// Policy III.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadDiversity {
    /// T_comp_wait: a batch older than this is not stretched; none: the smaller of its slack after a catch-up and half
    /// of the whole model's time for the largest batch, evaluated at each stretch.
    pub max_age_ns: Option<Ns>,
    /// A batch past this stage is not stretched; none: any stage but the last.
    pub max_stage: Option<u16>,
    /// The paper's own rule: newcomers join wherever they may, whether or not rows complete earlier for it.
    pub paper: bool,
}

/// Triton's `ModelQueuePolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueKnobs {
    /// What happens when the timeout passes.
    pub timeout_action: TimeoutAction,
    /// Timeout of requests that bring none; 0: none.
    pub default_timeout_ns: Ns,
    /// Whether a request's own timeout counts. It may shorten the default timeout, never lengthen it.
    pub allow_timeout_override: bool,
    /// Most requests waiting at the level, delayed ones included; 0: no limit.
    pub max_queue_size: u32,
}

/// Triton's `TimeoutAction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeoutAction {
    /// The request is rejected.
    #[default]
    Reject,
    /// The request goes behind all others of its level and waits there without a timeout.
    Delay,
}
