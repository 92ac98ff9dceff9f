//! The contract between the core and its drivers (executor, simulator, tests): events in, actions out.

use std::{fmt, sync::Arc};

use paternoster_model::{CellId, InSequence, Lengths, RowOutcome, unfold::Unfolded};
use smallvec::SmallVec;

use super::{Instant, Knobs, Ns};

/// A request, from admission to its end. A driver never reuses an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReqId(pub u64);

/// One loaded version of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub u32);

/// One in-order queue on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u16);

/// One sequence of a version, from its first request to its end. The core never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceNo(pub u64);

/// One launch of a cell over some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// Requests can share a batch only if their keys are equal. Contains the variable dimensions that are not padded, and
/// which optional inputs are present. Empty for a model with fixed shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(pub SmallVec<[i64; 4]>);

/// Lengths rounded up to their buckets: the padded shape that all rows of a batch share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShapeClass(pub Lengths);

/// How much work a lane accepts ahead of completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneKnobs {
    /// Another task is launched once the work on the lane is predicted to end within this time. With 0, tasks are
    /// launched only on an idle lane, and only after everything they depend on has completed.
    pub horizon_ns: Ns,
    /// Maximum number of tasks on the lane at once, at least 1.
    pub depth: u16,
}

impl Default for LaneKnobs {
    /// A lane that runs one task at a time, as on the CPU.
    fn default() -> Self {
        Self { horizon_ns: 0, depth: 1 }
    }
}

/// A lease of one buffer at a boundary, held by a batch with all its parts (DVABatch section 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// Number of the boundary: the number of the stage before it.
    pub boundary: u16,
    /// Which of the boundary's buffers.
    pub pair: u16,
}

/// Consecutive rows of one request. For a version that unfolds requests into cells: one row of the task, which runs one
/// node, or several consecutive steps of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSpan {
    /// The request.
    pub req: ReqId,
    /// First row within the request, or the number of the node. Nodes are counted over all segments of the request; a
    /// loop whose end depends on outcomes counts with its maximum number of steps.
    pub start: u32,
    /// Number of rows, or of the steps that a row of cells runs.
    pub count: u32,
    /// Place of the first row in the batch: its row in every buffer that the batch leases.
    pub at: u32,
    /// For a node, the slot for the state that it writes; [`NO_SLOT`](Self::NO_SLOT) for rows of a batch.
    ///
    /// The number is below the `slots` of the request's own version, even if another version leads the task. A request
    /// holds its slots from its first task until it has ended and none of its rows is in flight; no other request uses
    /// them meanwhile. A chain has one slot, which each step reads and overwrites. In a tree each node has its own slot
    /// and reads the slots of its children. All segments of a request share its slots: a decoder continues in the slot
    /// in which its encoder stopped. A tree behind another segment needs a separate table, because its first leaves
    /// write while other nodes still have to read the state left by the segment before.
    ///
    /// Invalid results must not be written to the slot, because other nodes still read its previous state. Results are
    /// invalid if the task failed, if the node was launched ahead of one that failed, or if the step lies beyond the
    /// outcome that ended its loop.
    pub slot: u32,
}

impl RowSpan {
    /// The slot of rows that keep no state: rows of versions whose requests run in batches.
    pub const NO_SLOT: u32 = u32::MAX;

    /// Returns the number of rows that it takes in the batch.
    pub fn rows(&self) -> u32 {
        if self.slot == Self::NO_SLOT { self.count } else { 1 }
    }

    /// Returns one row of the span.
    pub(super) fn row(&self, row: u32) -> Self {
        Self { start: self.start + row, count: 1, at: self.at + row, ..*self }
    }
}

/// The executable size of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Rows of the executed batch, padding included: one of the `buckets` of the task's stage or cell, or exactly the
    /// number of its rows if there are no buckets, as on the CPU.
    pub rows: u32,
    /// Padded lengths.
    pub class: ShapeClass,
}

/// A request as the core sees it: sizes and times without the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Unique among all requests of this core.
    pub req: ReqId,
    /// The loaded version that serves it.
    pub model: ModelId,
    /// Number of rows, at least 1 and at most the model's largest batch.
    pub rows: u32,
    /// Lengths along the model's padded symbols.
    pub lengths: Lengths,
    /// Requests share a batch only if their keys are equal.
    pub key: RequestKey,
    /// Triton's priority: 0 = the model's default, 1 = highest.
    pub priority: u64,
    /// End of the queue timeout that the request asks for. The model's queue policy decides whether it applies.
    pub queue_deadline: Option<Instant>,
    /// The client's deadline. The request ends at this time in whatever state it is.
    pub deadline: Option<Instant>,
    /// Time that is needed between its completion and its deadline, such as for later steps of a pipeline. Policies
    /// aim at a completion that leaves it; the request never ends because of it.
    pub needed_after_ns: Ns,
    /// The graph that it unfolds into, segment by segment; empty for a version whose requests run in batches.
    pub graph: Box<[Unfolded]>,
    /// Its sequence, or `None` if its version has no sequences; a sequence id sent to such a version is dropped before.
    pub sequence: Option<InSequence>,
    /// Its first arrival, if it was recalled from another core.
    pub first: Option<FirstArrival>,
    /// Memory without which it does not board, for a version whose requests unfold; `None`: it needs none.
    pub memory: Option<SharedStateMemory>,
}

impl Arrival {
    /// Creates a request of some rows without any options.
    pub fn new(req: ReqId, model: ModelId, rows: u32) -> Self {
        Self {
            req,
            model,
            rows,
            lengths: Lengths::new(),
            key: RequestKey::default(),
            priority: 0,
            queue_deadline: None,
            deadline: None,
            needed_after_ns: 0,
            graph: Box::default(),
            sequence: None,
            first: None,
            memory: None,
        }
    }
}

/// The memory for what a request keeps between its tasks, which it has to have before it boards. Its driver frees the
/// memory after the request has ended.
pub trait StateMemory: fmt::Debug + Send + Sync {
    /// Whether there is room for it now, or the request has it.
    fn fits(&self) -> bool;

    /// Takes it, unless the request has it. Returns whether the request has it then.
    fn take(&self) -> bool;
}

/// The memory of one request. Equal are shares of the same.
#[derive(Clone, Debug)]
pub struct SharedStateMemory(pub Arc<dyn StateMemory>);

impl PartialEq for SharedStateMemory {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedStateMemory {}

/// First arrival of a request that was [recalled](Action::Recalled) from another core. Its age and its timeouts count
/// from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstArrival {
    /// Time of the first arrival.
    pub at: Instant,
    /// End of its queue timeout, if it has one.
    pub queue_deadline: Option<Instant>,
}

/// An event: an input of the core.
#[derive(Debug)]
pub enum Event<'a> {
    /// A request was admitted.
    Arrived(Arrival),
    /// Requests that another core recalled. They arrive together, so that they may share a batch.
    TakenIn(Vec<Arrival>),
    /// The client cancelled a request.
    Cancelled(ReqId),
    /// A task completed successfully.
    Completed {
        /// The task.
        task: TaskId,
        /// One outcome per row, in the task's row order, including rows of ended requests. An empty slice means that
        /// every row goes `On` without a response. Rows beyond the end of a shorter slice failed.
        rows: &'a [RowOutcome],
    },
    /// The engine failed a task, without leaving any results. If the task held several requests, they run again in
    /// halves, which accept no newcomers, until only requests that fail alone end as `Failed`. For requests that unfold
    /// into cells, the halves are of nodes. Nodes that were launched ahead and depend on a failed node are void: they
    /// are launched again, and their first results must be dropped.
    Failed {
        /// The task.
        task: TaskId,
    },
    /// A lane is ready for tasks. Ignored if the lane is known.
    LaneUp(LaneId, LaneKnobs),
    /// A lane hangs and is out of service. The requests of its tasks fail. `LaneUp` brings it back.
    LaneLost(LaneId),
    /// A model version is loaded and ready.
    ModelUp(ModelId, Box<Knobs>),
    /// Remove this version once none of its requests and tasks is left. Requests that arrive until then are served.
    ModelDraining(ModelId),
    /// The client took the responses for which its request's rows were paused
    /// ([`Next::Pause`](paternoster_model::Next::Pause)); the rows continue.
    Resumed(ReqId),
    /// Another device is idle. For each version, half of the waiting requests, rounded up, and at most a largest batch
    /// of rows, leave as [`Action::Recalled`]; those that would board next leave first. Nothing leaves from a version
    /// whose requests belong to sequences or whose responses leave in arrival order.
    Recall,
    /// The device is lost, with all its lanes and all its memory. Requests that have boarded fail. Queued requests are
    /// recalled, except those that may not leave, which fail too.
    DeviceLost,
    /// The time of the last `WakeAt` has come. Each `WakeAt` that is not replaced must be answered with this event.
    Wake,
    /// Another core has named this one in [`Action::UnitsFreed`].
    UnitsFreed,
}

/// A batch for a lane to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Unique among all tasks of this core.
    pub id: TaskId,
    /// The version to run.
    pub model: ModelId,
    /// The stage or cell type to run.
    pub cell: CellId,
    /// Executable size.
    pub bucket: Bucket,
    /// The lane to run it on.
    pub lane: LaneId,
    /// Number of its batch, shared by all parts of a split batch. Identifies rows that share buffers.
    pub batch: u64,
    /// Rows by their place in the batch; never empty. If the cell has a [kind](super::CellKind), requests of other
    /// versions may follow the version's own.
    pub rows: Vec<RowSpan>,
    /// Buffers of earlier stages that it reads, at its rows' places. The first stage reads the requests themselves.
    pub reads: SmallVec<[Lease; 2]>,
    /// The buffer that it writes, at its rows' places; `None` for the last stage, which writes responses.
    pub writes: Option<Lease>,
    /// Tasks in flight on other lanes that must end on the device before this one starts there: they write what it
    /// reads, or still read or write what it writes. Empty on lanes without a horizon.
    pub after: SmallVec<[TaskId; 2]>,
}

impl Task {
    /// Returns the number of rows without padding.
    pub fn row_count(&self) -> u32 {
        self.rows.iter().map(RowSpan::rows).sum()
    }
}

/// An action that the driver must carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run a task.
    Launch(Box<Task>),
    /// Send one response of a decoupled request: one for each of its tasks in which any of its rows `emitted`. If the
    /// version preserves arrival order, this may come long after that task, so the driver must keep responses by
    /// `step`.
    Emit {
        /// The request.
        req: ReqId,
        /// Number of responses sent before.
        step: u32,
    },
    /// A request was admitted to a sequence: it reads and writes this sequence's state. Requests of one sequence run
    /// one after the other. The state that a request writes takes effect at its `Finish`, and only if it completed.
    Joined {
        /// The request.
        req: ReqId,
        /// Its sequence, which starts with its first request.
        sequence: SequenceNo,
    },
    /// A sequence is over; nothing reads its state any more.
    SequenceOver {
        /// The version.
        model: ModelId,
        /// The sequence.
        sequence: SequenceNo,
    },
    /// A request ended: answer it. Its rows may still be in a running task; drop that task's results for it.
    Finish {
        /// The request.
        req: ReqId,
        /// How it ended.
        end: End,
    },
    /// A request leaves before it has boarded, to arrive at another core. No further action names it here.
    Recalled(Box<Arrival>),
    /// A draining version has no requests left and is removed.
    Drained(ModelId),
    /// Units of the rate limiter are free for which a group of another core waited. Send [`Event::UnitsFreed`] to that
    /// core.
    UnitsFreed {
        /// Its number.
        core: usize,
    },
    /// Send `Wake` at this time; replaces the previous `WakeAt`.
    WakeAt(Instant),
}

/// Actions of one step, in order.
pub type Actions = SmallVec<[Action; 4]>;

/// How a request ended. Each request ends exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Its outputs are ready.
    Completed,
    /// The engine failed it when it ran alone, or its version is not loaded, or its size is not allowed by its version.
    Failed,
    /// Rejected before it ran.
    Rejected(Rejection),
    /// The client's deadline passed.
    Expired,
    /// The client cancelled it.
    Cancelled,
}

/// Why a request was rejected before it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// The queue holds `max_queue_size` requests.
    QueueFull,
    /// It waited past its queue timeout.
    QueueTimeout,
    /// It can no longer meet its latency objective.
    Late,
    /// It needs more state slots than the version has.
    NoMemory,
    /// It belongs to a sequence that is not open, and does not start one. Either no start request came, or that request
    /// did not complete, or the last request has come, or the sequence was idle for too long.
    NotStarted,
}
