//! The ledger: every live request from admission to its end, and every task in flight.
//!
//! A request ends exactly once, because only its removal from the ledger creates a `Finish`. Rows of an ended request
//! may still be in running tasks. Their spans point to an empty place or to another request; [`Ledger::is_aboard`]
//! detects this, and the rows are ignored.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    ops::{Index, IndexMut},
};

use paternoster_model::{Lengths, unfold::Unfolded};
use slab::Slab;
use smallvec::SmallVec;

use super::{
    End, Instant, LaneId, Ns, ReqId, RowSpan, ShapeClass, SharedStateMemory, TaskId,
    ids::{GroupIx, RequestIx, SequenceIx, SubQueueIx},
};

/// One live request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) req: ReqId,
    pub(super) group: GroupIx,
    /// Arrival order among all requests of the core.
    pub(super) seq: u64,
    pub(super) rows: u32,
    /// Rows that are not done.
    pub(super) left: u32,
    pub(super) lengths: Lengths,
    /// The graph it unfolds into, kept here until the request boards.
    pub(super) graph: Box<[Unfolded]>,
    /// Memory without which it does not board.
    pub(super) memory: Option<SharedStateMemory>,
    pub(super) sequence: Option<SequenceIx>,
    /// Priority level, 1 = highest.
    pub(super) level: u64,
    pub(super) arrived: Instant,
    /// Time at which it left the queue and boarded.
    pub(super) boarded: Instant,
    /// End of its queue timeout; `NEVER` without one, or once it has passed and the request waits behind others.
    pub(super) queue_deadline: Instant,
    /// The client's deadline; `NEVER` without one.
    pub(super) deadline: Instant,
    /// Completion time that leaves what is needed before the deadline; `NEVER` without one.
    pub(super) due: Instant,
    /// Time of the armed alarm; `NEVER` if none is armed.
    pub(super) alarm: Instant,
    pub(super) state: RequestState,
    /// Device time it needs, as expected at arrival.
    pub(super) expected_ns: Ns,
    /// Number of times it boarded. Spans of an earlier boarding are masked.
    pub(super) boarding: u32,
    /// Responses sent to the client.
    pub(super) emitted: u32,
    /// Responses held until the requests before it have ended.
    pub(super) unsent: u32,
    /// Its neighbours in each list that it may be in.
    pub(super) links: [Links; 2],
}

impl Request {
    /// Whether there is room for the memory that it boards with.
    pub(super) fn has_room(&self) -> bool {
        self.memory.as_ref().is_none_or(|memory| memory.0.fits())
    }

    /// Returns the target completion time, `NEVER` without a deadline or objective.
    pub(super) fn target(&self, objective_ns: Option<Ns>) -> Instant {
        self.objective(objective_ns).min(self.due)
    }

    /// Whether a completion at `now` misses the objective or the deadline.
    pub(super) fn is_missed(&self, objective_ns: Option<Ns>, now: Instant) -> bool {
        self.objective(objective_ns).min(self.deadline) < now
    }

    fn objective(&self, objective_ns: Option<Ns>) -> Instant {
        objective_ns.map_or(Instant::NEVER, |objective_ns| self.arrived + objective_ns)
    }

    /// Whether it waits behind the others of its level.
    pub(super) fn is_behind(&self) -> bool {
        matches!(self.state, RequestState::Queued { timed_out: true, .. })
    }

    /// Extends a padded shape so that it holds this request's lengths.
    pub(super) fn lengthen(&self, class: &mut ShapeClass) {
        let lengths = &mut class.0;
        if lengths.len() < self.lengths.len() {
            lengths.resize(self.lengths.len(), 0);
        }
        for (longest, &own) in lengths.iter_mut().zip(&self.lengths) {
            *longest = own.max(*longest);
        }
    }
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    /// Waits in a sub-queue, behind the others of its level if its queue timeout has passed, or if the policy has
    /// postponed it.
    Queued { sub_queue: SubQueueIx, timed_out: bool },
    /// Has boarded: its rows are in batches, or its nodes in cells.
    Aboard,
    /// Over; its response is held until the requests before it have ended.
    Held(End),
    /// Over; its response is held until the requests that it was merged with have run.
    Merged(End),
}

/// The part of a task in flight that belongs to one version and cell. The version's work knows its rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightTask {
    pub(super) task: TaskId,
    pub(super) lane: LaneId,
    pub(super) group: GroupIx,
    /// Rows of this version and cell.
    pub(super) own_rows: u32,
    /// Nodes that these run, or the rows themselves.
    pub(super) own_nodes: u32,
    /// Rows of the whole task, including those of other versions.
    pub(super) rows: u32,
    /// Rows of the executed batch, padding included.
    pub(super) bucket: u32,
    pub(super) launched: Instant,
    /// Whether another entry of the same version and task follows, for another cell. The task ends for the version with
    /// the last one.
    pub(super) is_followed: bool,
}

impl InFlightTask {
    /// Creates a newly launched task that has rows of this group only.
    pub(super) fn new(task: TaskId, lane: LaneId, group: GroupIx, rows: u32, bucket: u32, launched: Instant) -> Self {
        Self { task, lane, group, own_rows: rows, own_nodes: rows, rows, bucket, launched, is_followed: false }
    }

    /// Returns the group's share of the task's device time, in proportion to its rows.
    pub(super) fn share_ns(&self, used_ns: Ns) -> Ns {
        if self.own_rows == self.rows {
            return used_ns;
        }
        let share_ns = u128::from(used_ns) * u128::from(self.own_rows) / u128::from(self.rows.max(1));
        Ns::try_from(share_ns).unwrap_or(Ns::MAX)
    }
}

/// Consecutive rows of one request that have boarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchSpan {
    pub(super) request_ix: RequestIx,
    /// The boarding of the request that it belongs to. Spans of an earlier boarding are masked.
    pub(super) boarding: u32,
    pub(super) rows: RowSpan,
}

impl BatchSpan {
    /// Removes its first `count` rows, of more, and returns them.
    pub(super) fn split_off_front(&mut self, count: u32) -> Self {
        let RowSpan { start, at, count: all, .. } = self.rows;
        let front = Self { rows: RowSpan { count, ..self.rows }, ..*self };
        self.rows = RowSpan { start: start + count, at: at + count, count: all - count, ..self.rows };
        front
    }
}

/// Marks the absence of a request in a list.
pub(super) const NONE: RequestIx = RequestIx(u32::MAX);

/// A request's neighbours in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) prev: RequestIx,
    pub(super) next: RequestIx,
}

impl Default for Links {
    fn default() -> Self {
        Self { prev: NONE, next: NONE }
    }
}

/// All live requests and all tasks in flight.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    requests: Slab<Request>,
    by_id: HashMap<ReqId, RequestIx, BuildHasherDefault<IdHasher>>,
    /// About one per busy lane: so few that a scan is faster than a map.
    pub(super) in_flight_tasks: Vec<InFlightTask>,
    arrivals: u64,
    /// Device time that all live requests need, as expected at arrival.
    pub(super) expected_ns: Ns,
    /// Queued requests that may move to another core.
    pub(super) may_leave: usize,
}

impl Ledger {
    /// Returns the arrival number of the next request.
    pub(super) fn next_seq(&mut self) -> u64 {
        let seq = self.arrivals;
        self.arrivals += 1;
        seq
    }

    pub(super) fn insert(&mut self, request: Request) -> RequestIx {
        let req = request.req;
        self.expected_ns += request.expected_ns;
        // The cast cannot truncate: 2^32 live requests do not fit into memory.
        let request_ix = RequestIx(self.requests.insert(request) as u32);
        self.by_id.insert(req, request_ix);
        request_ix
    }

    /// Removes a request. Callers read what they still need first: a request is large, and returning it would copy it.
    pub(super) fn remove(&mut self, request_ix: RequestIx) {
        let Request { req, expected_ns, .. } = self[request_ix];
        self.by_id.remove(&req);
        self.expected_ns -= expected_ns;
        self.requests.remove(request_ix.at());
    }

    pub(super) fn find(&self, req: ReqId) -> Option<RequestIx> {
        self.by_id.get(&req).copied()
    }

    /// Returns the request at this index, if it is still `req`.
    pub(super) fn same(&self, request_ix: RequestIx, req: ReqId) -> Option<&Request> {
        self.requests.get(request_ix.at()).filter(|request| request.req == req)
    }

    /// Whether a span's request is still aboard, in the same boarding. All other spans are masked.
    pub(super) fn is_aboard(&self, span: &BatchSpan) -> bool {
        let request = self.same(span.request_ix, span.rows.req);
        request.is_some_and(|request| request.state == RequestState::Aboard && request.boarding == span.boarding)
    }

    pub(super) fn live(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestIx, &Request)> {
        self.requests.iter().map(|(request_ix, request)| (RequestIx(request_ix as u32), request))
    }

    /// Adds a group's part of a task, and returns whether the task is new to the group.
    pub(super) fn launched(&mut self, in_flight: InFlightTask) -> bool {
        let is_own = |other: &&mut InFlightTask| other.task == in_flight.task && other.group == in_flight.group;
        let before = self.in_flight_tasks.iter_mut().rfind(is_own);
        let is_new = before.is_none();
        if let Some(before) = before {
            before.is_followed = true;
        }
        self.in_flight_tasks.push(in_flight);
        is_new
    }

    /// Removes a task and returns the part of each group, in row order.
    pub(super) fn completed(&mut self, task: TaskId) -> SmallVec<[InFlightTask; 1]> {
        self.in_flight_tasks.extract_if(.., |in_flight| in_flight.task == task).collect()
    }

    /// Updates the total rows and the bucket of a task that several groups share.
    pub(super) fn shared(&mut self, task: TaskId, rows: u32, bucket: u32) {
        self.in_flight_tasks
            .iter_mut()
            .filter(|in_flight| in_flight.task == task)
            .for_each(|in_flight| (in_flight.rows, in_flight.bucket) = (rows, bucket));
    }

    /// Removes and returns the tasks of a lost lane.
    pub(super) fn take_lost(&mut self, lane: LaneId) -> Vec<InFlightTask> {
        self.in_flight_tasks.extract_if(.., |in_flight| in_flight.lane == lane).collect()
    }

    /// Returns the number of lanes with tasks of a group.
    pub(super) fn lanes_of(&self, group: GroupIx) -> usize {
        let mut lanes: SmallVec<[LaneId; 8]> = SmallVec::new();
        for in_flight in self.in_flight_tasks.iter().filter(|in_flight| in_flight.group == group) {
            if !lanes.contains(&in_flight.lane) {
                lanes.push(in_flight.lane);
            }
        }
        lanes.len()
    }
}

impl Index<RequestIx> for Ledger {
    type Output = Request;

    fn index(&self, request_ix: RequestIx) -> &Request {
        &self.requests[request_ix.at()]
    }
}

impl IndexMut<RequestIx> for Ledger {
    fn index_mut(&mut self, request_ix: RequestIx) -> &mut Request {
        &mut self.requests[request_ix.at()]
    }
}

/// Number of consecutive ids that are neighbours in the table.
const RUN: u64 = 16;

/// A fixed hash for ids that the driver chooses: deterministic, and only a few cycles long.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // A driver counts ids up, so consecutive ids come and go together: each run of 16 shares cache lines in the
        // table. The bits above a run are mixed, so that other patterns of ids do not collide. Fibonacci hashing mixes
        // upwards; the fold moves the mixed bits down to where the table takes its index.
        let mixed = (self.0 ^ (id / RUN)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let folded = mixed ^ (mixed >> 32);
        let tag = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57 << 57;
        self.0 = (folded / RUN * RUN + id % RUN) ^ tag;
    }
}
