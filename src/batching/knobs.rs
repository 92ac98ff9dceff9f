//! Parameters of queues, stages and cells as the core takes them; `repository` makes them from the configuration.

use smallvec::SmallVec;

use super::{CellId, Ns};

/// One stage of a version's pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageKnobs {
    /// Boundaries that it reads, ascending: its predecessor's, and earlier ones where a connection skips stages. Empty
    /// for the first stage.
    pub reads: SmallVec<[u16; 2]>,
    /// Whether its outcomes decide where rows go (an exit, a skip, a repetition), so that nothing behind it is
    /// launched before it has completed.
    pub decides: bool,
    /// The sizes in rows that it is executed in, ascending: a task runs in the cheapest that holds its rows, padded.
    /// Batches of the version are no larger than the largest. Empty: any size is executed as it is, as on the CPU.
    pub buckets: Box<[u32]>,
}

impl StageKnobs {
    /// A chain of `count` stages, each reading its predecessor's boundary.
    pub fn chain(count: u16) -> Vec<Self> {
        let reads = |stage: u16| stage.checked_sub(1).into_iter().collect();
        (0..count.max(1)).map(|stage| Self { reads: reads(stage), ..Self::default() }).collect()
    }
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
    /// The sizes in rows that it is executed in, ascending: a task runs in the cheapest that holds its rows, padded.
    /// Where the largest is less than `max_rows`, it takes its place. Empty: any size is executed as it is, as on the
    /// CPU. A task that versions share runs in a size of the version that leads it.
    pub buckets: Box<[u32]>,
}

impl CellKnobs {
    /// The cell with batches that its largest bucket holds, follow-ups among them.
    pub(super) fn bounded(&self) -> Self {
        let max_rows = self.buckets.iter().max().map_or(self.max_rows, |&largest| self.max_rows.min(largest.max(1)));
        Self { max_rows, min_followup: self.min_followup.min(max_rows), ..self.clone() }
    }
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

/// In which order the parts of a split batch run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartOrder {
    /// One to its end, then the next.
    #[default]
    DepthFirst,
    /// Stage by stage.
    Pipelined,
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
