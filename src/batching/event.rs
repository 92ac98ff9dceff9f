//! The contract between the core and its drivers (executor, simulator, tests): events in, actions out.

use smallvec::SmallVec;

use super::Knobs;
use crate::model::{InSequence, unfold::Unfolded};

/// Nanoseconds since an epoch of the driver's choosing.
pub type Ns = u64;

/// A request, from admission to its end. Never reused by a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReqId(pub u64);

/// One loaded version of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub u32);

/// A stage of a model's pipeline, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CellId(pub u16);

/// One in-order queue on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u16);

/// One sequence of a version, from its first request to its end. Never reused by a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceNo(pub u64);

/// One run of a cell over some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// A request's own length along each padded symbol of its model, in the order of the model's symbols.
pub type Lengths = SmallVec<[u32; 2]>;

/// What must agree for two requests to share a batch: variable dimensions that are not padded, and which optional
/// inputs are there. Empty for a model whose shapes are fixed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(pub SmallVec<[i64; 4]>);

/// Lengths rounded up to their buckets: the padded shape that all rows of a batch share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShapeClass(pub Lengths);

/// How far ahead of its completions a lane takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneKnobs {
    /// A further task is launched while the work on the lane is predicted to end within this time; 0: only on an idle
    /// lane, and only once everything it waits for has completed.
    pub horizon_ns: Ns,
    /// Most tasks on the lane at once, at least 1.
    pub depth: u16,
}

impl Default for LaneKnobs {
    /// A lane that takes one task at a time, as the CPU's do.
    fn default() -> Self {
        Self { horizon_ns: 0, depth: 1 }
    }
}

/// One buffer pair's memory at a boundary, held by a batch and all its parts (DVABatch section 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// The boundary behind the stage of this number.
    pub boundary: u16,
    /// Which of the boundary's buffers.
    pub pair: u16,
}

/// Consecutive rows of one request; of a version that unfolds requests into cells, one node each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSpan {
    /// The request.
    pub req: ReqId,
    /// First row within the request; the number of the node, counted over all segments of the request, of which a loop
    /// that outcomes end counts with its most steps.
    pub start: u32,
    /// Number of rows.
    pub count: u32,
    /// Where the first of them sits in its batch: its row in every buffer that the batch leases.
    pub at: u32,
    /// Of a node: the slot that holds the state which it leaves, [`NO_SLOT`](Self::NO_SLOT) of rows of a batch.
    ///
    /// A number below the `slots` of the request's own version, whatever version leads the task. A request has its
    /// slots from its first task until it has ended and no row of it is in flight; nothing else has them meanwhile. A
    /// chain has one, which each step reads and writes over. Of a tree each node has its own, and reads those of its
    /// children. All segments of a request have the same slots: a decoder goes on in that where its encoder stopped. A
    /// tree behind another segment needs a table of its own, since its first leaves write where others have yet to
    /// read what was left for them.
    ///
    /// What does not count must not get there, since others still read what was there before: what a failed task gives,
    /// or a node that was launched ahead of one that failed, or a step beyond the outcome that ended its loop.
    pub slot: u32,
}

impl RowSpan {
    /// The slot of rows that keep no state: those of versions whose requests travel in batches.
    pub const NO_SLOT: u32 = u32::MAX;
}

/// The executable size of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Rows of the executed batch, padding included: one of the `buckets` of the task's stage or cell, or the number of
    /// its rows where that has none, as on the CPU.
    pub rows: u32,
    /// Padded lengths.
    pub class: ShapeClass,
}

/// A request as the core sees it: sizes and times, no payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Unique among all requests of this core.
    pub req: ReqId,
    /// The loaded version that serves it.
    pub model: ModelId,
    /// Rows it brings, at least 1 and at most the model's largest batch.
    pub rows: u32,
    /// Its lengths along the model's padded symbols.
    pub lengths: Lengths,
    /// Requests share a batch only where this agrees.
    pub key: RequestKey,
    /// Triton's priority: 0 = the model's default, 1 = highest.
    pub priority: u64,
    /// Queue timeout asked for by the request, as an instant; the model's queue policy decides whether it counts.
    pub board_by: Option<Ns>,
    /// The client's deadline: the request ends here wherever it is.
    pub expiry: Option<Ns>,
    /// What it unfolds into, segment by segment; empty for a version whose requests travel in batches.
    pub graph: Box<[Unfolded]>,
    /// Its sequence, if its version has any; none for all others, whatever the client said.
    pub sequence: Option<InSequence>,
    /// Where it comes from another core: what that knew of it.
    pub first: Option<FirstArrival>,
}

/// When a request that was [recalled](Action::Recalled) first arrived. Its age and its times count from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstArrival {
    /// When.
    pub at: Ns,
    /// When its queue timeout is over; none without one.
    pub board_by: Option<Ns>,
}

/// What happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// A request was admitted.
    Arrived(Arrival),
    /// Requests that another core recalled arrive together, so that they may share a batch.
    TakenIn(Vec<Arrival>),
    /// Its client gave it up.
    Cancelled(ReqId),
    /// A task ended well; one outcome per row, in the task's row order.
    Completed {
        /// The task.
        task: TaskId,
        /// Outcomes in row order, those of ended requests included. Empty: every row goes `On` and made no response. A
        /// row that a shorter slice leaves out failed.
        rows: &'a [RowOutcome],
    },
    /// The engine failed a task, which must have left nothing behind. If it held several requests, they run again in
    /// halves, which accept no newcomers, until only those that fail alone end `Failed`; of requests that unfold into
    /// cells, nodes do. Nodes that were launched ahead and need what the failed ones should have left are void: they
    /// are launched again, and what they give is to be dropped.
    Failed {
        /// The task.
        task: TaskId,
    },
    /// A lane takes work. A known lane is left as it is.
    LaneUp(LaneId, LaneKnobs),
    /// A lane is out of service: it hangs. The requests of its tasks fail; it comes back by `LaneUp`.
    LaneLost(LaneId),
    /// A model version is ready to run.
    ModelUp(ModelId, Knobs),
    /// Forget this version once no request and no task of it is left. Requests that still arrive until then are served.
    ModelDraining(ModelId),
    /// The client of a request took the responses that its rows paused for ([`Next::Pause`]): they go on.
    Resumed(ReqId),
    /// Another device is idle: of each version half of the requests that wait, rounded up, and at most a largest batch
    /// of rows, leave as [`Action::Recalled`], those that would board next. Nothing leaves of a version whose requests
    /// belong to sequences or whose replies leave in the order of arrival.
    Recall,
    /// The device is gone with all its lanes and all that it holds: requests that have boarded fail, those that wait
    /// are recalled, but for those that may not leave, which fail too.
    DeviceLost,
    /// The time of the last `WakeAt` has come. Each `WakeAt` that is not replaced must be answered.
    Wake,
}

/// What became of a row, as the engine evaluated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowOutcome {
    /// Where the row goes.
    pub next: Next,
    /// Whether the task produced a response for the row's request (decoupled models).
    pub emitted: bool,
}

/// Where a row goes after a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// To the following stage; after the last it is done.
    On,
    /// It is done, whatever stages are left.
    Done,
    /// Through the named stage (again).
    Skip(CellId),
    /// Through the same stage again, but not before the client has taken the responses there are ([`Event::Resumed`]).
    /// Only versions of one stage, whose rows hold no buffers, have rows that pause; all rows of a request pause
    /// together.
    Pause,
    /// It failed alone; the others of its task did not.
    Failed,
}

/// A batch that a lane shall run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Unique among all tasks of this core.
    pub id: TaskId,
    /// The version it runs.
    pub model: ModelId,
    /// The stage, or the cell type, that it runs.
    pub cell: CellId,
    /// Executable size.
    pub bucket: Bucket,
    /// Where it runs.
    pub lane: LaneId,
    /// Number of its batch, the same for all parts of a split one: what travels together.
    pub batch: u64,
    /// Its rows by their place in the batch; never empty. Where its cell is of a [kind](super::CellKind), requests of
    /// other versions may be among them, behind its own.
    pub rows: Vec<RowSpan>,
    /// Buffers of earlier stages that it reads, at its rows' places. The first stage reads the requests themselves.
    pub reads: SmallVec<[Lease; 2]>,
    /// The buffer that it writes, at its rows' places; none: it is the last stage and writes replies.
    pub writes: Option<Lease>,
    /// Tasks in flight on other lanes that must have ended on the device before this one begins there: they wrote what
    /// it reads, or still read or write what it writes. Empty on lanes without a horizon.
    pub after: SmallVec<[TaskId; 2]>,
}

impl Task {
    /// How many rows it has, without padding.
    pub fn row_count(&self) -> u32 {
        self.rows.iter().map(|span| span.count).sum()
    }
}

/// What the driver shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run a task.
    Launch(Task),
    /// Send one response of a decoupled request: one for each of its tasks in which any of its rows `emitted`. Where
    /// the version preserves the order of arrival it may come long after that task, so keep responses by `step`.
    Emit {
        /// The request.
        req: ReqId,
        /// How many responses went before.
        step: u32,
    },
    /// A request was taken in: what it reads and leaves of the version's state is this sequence's. Those of one
    /// sequence run one after the other; what a request leaves counts from its `Finish` on, and only if it completed.
    Joined {
        /// The request.
        req: ReqId,
        /// Its sequence, which begins with its first request.
        sequence: SequenceNo,
    },
    /// A sequence is over: nothing reads its state any more.
    SequenceOver {
        /// The version.
        model: ModelId,
        /// The sequence.
        sequence: SequenceNo,
    },
    /// A request ended: answer it. Its rows may still be in a running task, whose results for it are to be dropped.
    Finish {
        /// The request.
        req: ReqId,
        /// How it ended.
        end: End,
    },
    /// A request leaves before it has boarded, to arrive at another core. It has no further action here.
    Recalled(Box<Arrival>),
    /// A draining version has no request left.
    Drained(ModelId),
    /// Send `Wake` at this time; replaces the last.
    WakeAt(Ns),
}

/// Actions of one step, in order.
pub type Actions = SmallVec<[Action; 4]>;

/// How a request ended. Each ends exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Its outputs are there.
    Completed,
    /// The engine failed it, alone; or it was for a version that is not up, or of a size that its version does not
    /// take.
    Failed,
    /// It never ran.
    Rejected(Rejection),
    /// The client's deadline passed.
    Expired,
    /// The client gave it up.
    Cancelled,
}

/// Why a request was turned away before it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// The queue holds `max_queue_size` requests.
    QueueFull,
    /// It waited past its queue timeout.
    QueueTimeout,
    /// It could not have met its latency objective any more.
    Late,
    /// It needs more state than there is room for.
    NoMemory,
    /// Its sequence is not open, and it does not start it: there was no first request, that did not complete, the last
    /// has come, or the sequence was idle for too long.
    NotStarted,
}
