//! The ledger: every live request from admission to its end, and every task in flight.
//!
//! A request ends exactly once, because only its removal from here makes a `Finish`. Rows of ended requests may still
//! sit in running tasks; their spans name a place that holds another request or none, and are passed over.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    ops::{Index, IndexMut},
};

use slab::Slab;
use smallvec::SmallVec;

use super::{
    End, LaneId, Lengths, Ns, ReqId, RowSpan, ShapeClass, TaskId,
    ids::{GroupIx, RequestIx, SequenceIx, SubQueueIx},
};
use crate::model::unfold::Unfolded;

/// An instant that never comes.
pub(super) const NEVER: Ns = Ns::MAX;

/// One live request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) req: ReqId,
    pub(super) group: GroupIx,
    /// Order of arrival among all requests of the core.
    pub(super) seq: u64,
    pub(super) rows: u32,
    /// Rows that are not done.
    pub(super) left: u32,
    pub(super) lengths: Lengths,
    /// What it unfolds into, until it boards.
    pub(super) graph: Box<[Unfolded]>,
    pub(super) sequence: Option<SequenceIx>,
    /// Priority level, 1 = highest.
    pub(super) level: u64,
    pub(super) arrived: Ns,
    /// When it first boarded.
    pub(super) boarded: Ns,
    /// End of its queue timeout; `NEVER` without one, and once it has been delayed.
    pub(super) board_by: Ns,
    /// The client's deadline; `NEVER` without one.
    pub(super) expiry: Ns,
    /// When its armed alarm goes off; `NEVER` when none is armed.
    pub(super) alarm: Ns,
    pub(super) state: RequestState,
    /// Device time that it takes, as expected when it arrived.
    pub(super) expected_ns: Ns,
    /// How often it boarded: spans of an earlier boarding are masked.
    pub(super) boarding: u32,
    /// Responses announced to the client.
    pub(super) emitted: u32,
    /// Responses made but held until the requests before it have ended.
    pub(super) unsent: u32,
    pub(super) in_queue: Links,
    pub(super) in_order: Links,
}

impl Request {
    /// When it should be done: its deadline, or the objective after its arrival; `NEVER` where nobody said.
    pub(super) fn target(&self, objective_ns: Option<Ns>) -> Ns {
        let objective = objective_ns.map_or(NEVER, |objective_ns| self.arrived.saturating_add(objective_ns));
        objective.min(self.expiry)
    }

    /// Stretches a padded shape to hold its own lengths.
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

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    /// It waits in a sub-queue, behind the others of its level if `delayed`.
    Queued { sub_queue: SubQueueIx, delayed: bool },
    /// Its rows are in batches, or its nodes in cells.
    Aboard,
    /// It is over; its reply is held until the requests before it have ended.
    Held(End),
    /// It is over; its reply is held until the requests that it was merged with have run.
    Merged(End),
}

/// A task in flight, as far as it is of one version and cell. Its rows are known to the version's work.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightTask {
    pub(super) task: TaskId,
    pub(super) lane: LaneId,
    pub(super) group: GroupIx,
    /// Rows that are of the version and cell.
    pub(super) own_rows: u32,
    /// Rows in all, also those of other versions.
    pub(super) rows: u32,
    /// Rows of the executed batch, padding included.
    pub(super) bucket: u32,
    pub(super) launched: Ns,
    /// Another of the same version and task follows, of another cell: the task ends for the version with that.
    pub(super) is_followed: bool,
}

impl InFlightTask {
    /// A task of so many rows that has just been launched in a bucket.
    pub(super) fn new(task: TaskId, lane: LaneId, group: GroupIx, (rows, bucket): (u32, u32), launched: Ns) -> Self {
        Self { task, lane, group, own_rows: rows, rows, bucket, launched, is_followed: false }
    }

    /// The group's part of the task's device time, in proportion to its rows.
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
    /// Which boarding of the request it belongs to: spans of an earlier one are masked.
    pub(super) boarding: u32,
    pub(super) rows: RowSpan,
}

/// No request.
pub(super) const NONE: RequestIx = RequestIx::MAX;

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
    /// One per busy lane, so few that a scan beats a map.
    in_flight_tasks: Vec<InFlightTask>,
    arrivals: u64,
    /// Device time that all live requests take.
    expected_ns: Ns,
    /// Requests that wait and may leave for another core.
    pub(super) may_leave: usize,
}

impl Ledger {
    /// The order number of the next arrival.
    pub(super) fn next_seq(&mut self) -> u64 {
        let seq = self.arrivals;
        self.arrivals += 1;
        seq
    }

    pub(super) fn insert(&mut self, request: Request) -> RequestIx {
        let req = request.req;
        self.expected_ns += request.expected_ns;
        // 2^32 live requests do not fit into memory.
        let request_ix = self.requests.insert(request) as RequestIx;
        self.by_id.insert(req, request_ix);
        request_ix
    }

    /// Forgets a request. What of it is still needed is read before, since it is large and each move would copy it.
    pub(super) fn remove(&mut self, request_ix: RequestIx) {
        let Request { req, expected_ns, .. } = self[request_ix];
        self.by_id.remove(&req);
        self.expected_ns -= expected_ns;
        self.requests.remove(request_ix as usize);
    }

    pub(super) fn find(&self, req: ReqId) -> Option<RequestIx> {
        self.by_id.get(&req).copied()
    }

    /// The request at a place in the ledger, if it still is `req`.
    pub(super) fn same(&self, request_ix: RequestIx, req: ReqId) -> Option<&Request> {
        self.requests.get(request_ix as usize).filter(|request| request.req == req)
    }

    /// Whether a span's request is still under way. Spans of others are masked.
    pub(super) fn is_aboard(&self, span: &BatchSpan) -> bool {
        let request = self.same(span.request_ix, span.rows.req);
        request.is_some_and(|request| request.state == RequestState::Aboard && request.boarding == span.boarding)
    }

    /// Device time that all live requests take, as expected when they arrived.
    pub(super) fn expected_ns(&self) -> Ns {
        self.expected_ns
    }

    pub(super) fn live(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestIx, &Request)> {
        self.requests.iter().map(|(request_ix, request)| (request_ix as RequestIx, request))
    }

    /// Adds what a group has in a task; whether the task is new to the group.
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

    /// Takes a task out: what each group has in it, in the order of its rows.
    pub(super) fn completed(&mut self, task: TaskId) -> SmallVec<[InFlightTask; 1]> {
        self.in_flight_tasks.extract_if(.., |in_flight| in_flight.task == task).collect()
    }

    /// A task has so many rows in all, of several groups, and runs in a bucket.
    pub(super) fn shared(&mut self, task: TaskId, rows: u32, bucket: u32) {
        self.in_flight_tasks
            .iter_mut()
            .filter(|in_flight| in_flight.task == task)
            .for_each(|in_flight| (in_flight.rows, in_flight.bucket) = (rows, bucket));
    }

    /// Takes the tasks of a lane that is lost.
    pub(super) fn take_lost(&mut self, lane: LaneId) -> Vec<InFlightTask> {
        self.in_flight_tasks.extract_if(.., |in_flight| in_flight.lane == lane).collect()
    }

    /// Lanes that run tasks of a group, or will.
    pub(super) fn lanes_of(&self, group: GroupIx) -> usize {
        let mut lanes: SmallVec<[LaneId; 8]> = SmallVec::new();
        for in_flight in self.in_flight_tasks.iter().filter(|in_flight| in_flight.group == group) {
            if !lanes.contains(&in_flight.lane) {
                lanes.push(in_flight.lane);
            }
        }
        lanes.len()
    }

    pub(super) fn in_flight_tasks(&self) -> &[InFlightTask] {
        &self.in_flight_tasks
    }
}

impl Index<RequestIx> for Ledger {
    type Output = Request;

    fn index(&self, request_ix: RequestIx) -> &Request {
        &self.requests[request_ix as usize]
    }
}

impl IndexMut<RequestIx> for Ledger {
    fn index_mut(&mut self, request_ix: RequestIx) -> &mut Request {
        &mut self.requests[request_ix as usize]
    }
}

/// Length of a run of ids that are neighbours in the table.
const RUN: u64 = 16;

/// A fixed hash for ids that the driver chose itself: the same in every run, and a few cycles long.
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
        // Ids that a driver counts up come and go together: each run of 16 stays together in the table, where it shares
        // cache lines. What is above is mixed, so that no other pattern of ids piles up: Fibonacci hashing mixes
        // upwards, the fold brings the mixed bits down to where a table takes its index.
        let mixed = (self.0 ^ (id / RUN)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let folded = mixed ^ (mixed >> 32);
        let tag = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57 << 57;
        self.0 = (folded / RUN * RUN + id % RUN) ^ tag;
    }
}
