//! Groups of cells through the core: which requests board when, and random runs in which every node runs once, after
//! its dependencies.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use paternoster_model::{
    CellId, Next, RowOutcome,
    unfold::{Topology, Unfolded},
};
use proptest::{collection::vec, prelude::*};
use smallvec::SmallVec;

use super::pool::arrival;
use crate::{
    Action, Actions, Arrival, CellKnobs, CellularKnobs, Core, CostPoint, CostTable, End, Event, Instant, Knobs, LaneId,
    LaneKnobs, ModelId, Policy, Rejection, ReqId, SegmentKnobs, StageKnobs, Task, TaskId,
};

const MODEL: ModelId = ModelId(0);

pub(super) fn cell(max_rows: u32, priority: u32) -> CellKnobs {
    CellKnobs { max_rows, min_followup: 1, priority, kind: None, buckets: Box::default(), chunks: None }
}

pub(super) fn cellular(cells: &[CellKnobs], segments: &[SegmentKnobs], slots: u32) -> Knobs {
    let (cells, segments) = (cells.to_vec(), segments.to_vec());
    let policy = Policy::Cellular(CellularKnobs { cells, segments, slots, ..CellularKnobs::default() });
    Knobs { max_in_flight: 64, policy, ..Knobs::default() }
}

pub(super) fn chain(max_rows: u32, slots: u32) -> Knobs {
    cellular(&[cell(max_rows, 1)], &[SegmentKnobs::Steps { cell: CellId(0) }], slots)
}

pub(super) fn core(knobs: Knobs, lanes: u16, lane: LaneKnobs) -> Core {
    let mut core = Core::new();
    core.step(Instant::ZERO, Event::ModelUp(MODEL, Box::new(knobs)));
    for id in 0..lanes {
        core.step(Instant::ZERO, Event::LaneUp(LaneId(id), lane));
    }
    core
}

pub(super) fn request(req: u64, graph: Vec<Unfolded>) -> Arrival {
    Arrival { graph: graph.into(), ..arrival(req) }
}

pub(super) fn said(actions: &Actions) -> String {
    let one = |action: &Action| match action {
        Action::Launch(task) => {
            let rows = task.rows.iter().map(|row| format!(" {}.{}", row.req.0, row.start));
            format!("#{} cell {}:{}", task.id.0, task.cell.0, rows.collect::<String>())
        }
        Action::Finish { req, end } => format!("{} {end:?}", req.0),
        other => format!("{other:?}"),
    };
    actions.iter().map(one).collect::<Vec<_>>().join("; ")
}

pub(super) fn done(task: u64) -> Event<'static> {
    Event::Completed { task: TaskId(task), rows: &[] }
}

pub(super) fn failed(task: u64) -> Event<'static> {
    Event::Failed { task: TaskId(task) }
}

#[test]
fn newcomers_board_at_the_next_cell_and_each_leaves_with_its_own_last() {
    let mut core = core(chain(2, 9), 1, LaneKnobs::default());
    let mut step = |event| said(&core.step(Instant::ZERO, event));
    assert_eq!(step(Event::Arrived(request(0, vec![Unfolded::Steps(2)]))), "#0 cell 0: 0.0");
    assert_eq!(step(Event::Arrived(request(1, vec![Unfolded::Steps(3)]))), "");
    assert_eq!(step(Event::Arrived(request(2, vec![Unfolded::Steps(1)]))), "");
    assert_eq!(step(done(0)), "#1 cell 0: 0.1 1.0");
    assert_eq!(step(done(1)), "0 Completed; #2 cell 0: 1.1 2.0");
    assert_eq!(step(done(2)), "2 Completed; #3 cell 0: 1.2");
    assert_eq!(step(done(3)), "1 Completed");
}

/// Returns the knobs with algorithm 1 of BatchMaker.
pub(super) fn paper(mut knobs: Knobs) -> Knobs {
    if let Policy::Cellular(cellular) = &mut knobs.policy {
        cellular.paper = true;
    }
    knobs
}

/// Returns the knobs with the graphs of `requests` requests merged.
pub(super) fn merging(mut knobs: Knobs, requests: u32) -> Knobs {
    if let Policy::Cellular(cellular) = &mut knobs.policy {
        cellular.merge_requests = Some(requests);
    }
    knobs
}

#[test]
fn merged_requests_board_together_and_their_replies_leave_together() {
    let mut core = core(merging(chain(2, 9), 3), 1, LaneKnobs::default());
    let mut step = |event| said(&core.step(Instant::ZERO, event));
    let mut arrives = |req, steps| step(Event::Arrived(request(req, vec![Unfolded::Steps(steps)])));
    assert_eq!(arrives(0, 2), "#0 cell 0: 0.0");
    for (req, steps) in [(1, 2), (2, 1), (3, 1), (4, 1)] {
        assert_eq!(arrives(req, steps), "");
    }
    assert_eq!(step(done(0)), "#1 cell 0: 0.1", "there is a row left, but the graph is closed");
    assert_eq!(step(done(1)), "0 Completed; #2 cell 0: 1.0 2.0", "three board, though a task has two rows");
    assert_eq!(step(done(2)), "#3 cell 0: 1.1 3.0", "2 waits for its reply, 4 for all of them");
    assert_eq!(step(Event::Cancelled(ReqId(2))), "2 Cancelled");
    assert_eq!(step(done(3)), "1 Completed; 3 Completed; #4 cell 0: 4.0");
}

#[test]
fn replies_of_merged_requests_leave_when_the_last_is_given_up_or_fails() {
    for fails in [false, true] {
        let mut core = core(merging(chain(2, 9), 3), 1, LaneKnobs::default());
        let mut step = |event| said(&core.step(Instant::ZERO, event));
        step(Event::Arrived(request(0, vec![Unfolded::Steps(1)])));
        step(Event::Arrived(request(1, vec![Unfolded::Steps(1)])));
        step(Event::Arrived(request(2, vec![Unfolded::Steps(2)])));
        assert_eq!(step(done(0)), "0 Completed; #1 cell 0: 1.0 2.0");
        assert_eq!(step(done(1)), "#2 cell 0: 2.1");
        step(Event::Arrived(request(3, vec![Unfolded::Steps(1)])));
        if fails {
            assert_eq!(step(failed(2)), "2 Failed; 1 Completed; #3 cell 0: 3.0");
        } else {
            assert_eq!(step(Event::Cancelled(ReqId(2))), "2 Cancelled; 1 Completed");
            assert_eq!(step(done(2)), "#3 cell 0: 3.0");
        }
    }
}

#[test]
fn merged_replies_keep_the_order_of_arrival_where_they_are_to() {
    let mut knobs = merging(chain(2, 9), 2);
    knobs.queueing.preserve_ordering = true;
    let mut core = core(knobs, 1, LaneKnobs::default());
    let mut step = |event| said(&core.step(Instant::ZERO, event));
    step(Event::Arrived(request(0, vec![Unfolded::Steps(1)])));
    for (req, steps) in [(1, 1), (2, 3), (3, 1)] {
        step(Event::Arrived(request(req, vec![Unfolded::Steps(steps)])));
    }
    assert_eq!(step(done(0)), "0 Completed; #1 cell 0: 1.0 2.0");
    assert_eq!(step(done(1)), "#2 cell 0: 2.1", "the first in order waits for who is merged with it");
    assert_eq!(step(done(2)), "#3 cell 0: 2.2");
    assert_eq!(step(done(3)), "1 Completed; 2 Completed; #4 cell 0: 3.0");
}

#[test]
fn requests_wait_for_room_for_their_state_and_those_that_never_fit_are_refused() {
    let leaves = |count: u32| -> Vec<SmallVec<[u32; 2]>> {
        let root: SmallVec<[u32; 2]> = (1..=count).collect();
        std::iter::once(root).chain((0..count).map(|_| SmallVec::new())).collect()
    };
    let tree = |count| vec![Unfolded::Tree(Arc::new(Topology::new(leaves(count))))];
    let segments = [SegmentKnobs::Tree { leaf: CellId(0), inner: CellId(1) }];
    let mut core = core(cellular(&[cell(8, 2), cell(8, 1)], &segments, 4), 1, LaneKnobs::default());
    let mut step = |event| said(&core.step(Instant::ZERO, event));
    assert_eq!(step(Event::Arrived(request(0, tree(4)))), format!("0 {:?}", End::Rejected(Rejection::NoMemory)));
    assert_eq!(step(Event::Arrived(request(1, tree(2)))), "#0 cell 0: 1.1 1.2");
    assert_eq!(step(Event::Arrived(request(2, tree(1)))), "");
    assert_eq!(step(done(0)), "#1 cell 1: 1.0", "one slot is left of the two that request 2 needs");
    assert_eq!(step(done(1)), "1 Completed; #2 cell 0: 2.1");
    assert_eq!(step(Event::Cancelled(ReqId(2))), "2 Cancelled");
    assert_eq!(step(Event::Arrived(request(3, tree(2)))), "", "a task still names slots of request 2");
    assert_eq!(step(done(2)), "#3 cell 0: 3.1 3.2");
}

#[test]
fn what_a_lane_ran_past_the_end_of_a_loop_is_not_emitted() {
    let ahead = LaneKnobs { horizon_ns: 1_000, depth: 3 };
    let segments = [SegmentKnobs::Steps { cell: CellId(0) }, SegmentKnobs::Steps { cell: CellId(1) }];
    let mut core = core(cellular(&[cell(2, 2), cell(2, 1)], &segments, 9), 1, ahead);
    let mut step = |event| said(&core.step(Instant::ZERO, event));
    let emitted = |next| [RowOutcome { next, emitted: true }];
    let (on, done) = (emitted(Next::On), emitted(Next::Done));
    step(Event::Arrived(request(0, vec![Unfolded::Steps(9), Unfolded::Steps(1)])));
    let first = step(Event::Completed { task: TaskId(0), rows: &on });
    assert!(first.starts_with("Emit { req: ReqId(0), step: 0 }"), "{first}");
    let end = step(Event::Completed { task: TaskId(1), rows: &done });
    assert_eq!(
        end, "Emit { req: ReqId(0), step: 1 }; #4 cell 1: 0.9",
        "the next segment does not wait for what runs beyond it"
    );
    assert_eq!(step(Event::Completed { task: TaskId(2), rows: &on }), "");
    assert_eq!(step(Event::Completed { task: TaskId(3), rows: &on }), "");
    let last = step(Event::Completed { task: TaskId(4), rows: &[] });
    assert_eq!(last, "0 Completed");
}

#[test]
fn a_round_ends_after_so_many_tasks_or_when_too_few_rows_are_left() {
    let ahead = LaneKnobs { horizon_ns: 1_000, depth: 4 };
    let segments = [SegmentKnobs::Steps { cell: CellId(0) }, SegmentKnobs::Steps { cell: CellId(1) }];
    let later = [
        (1, ["#5 cell 1: 0.5", "#6 cell 1: 0.6", "#7 cell 0: 1.0 2.0"]),
        // With fewer rows, the type of which nothing is running goes first.
        (2, ["#5 cell 0: 1.0 2.0", "#6 cell 0: 1.1 2.1", "#7 cell 0: 1.2 2.2"]),
    ];
    for (min_followup, expected) in later {
        let cells = [cell(8, 2), CellKnobs { min_followup, ..cell(8, 1) }];
        let mut knobs = cellular(&cells, &segments, 9);
        let takes = |took_ns| vec![CostPoint { rows: 1, length: 0, took_ns }];
        knobs.latencies = Some(CostTable { stages: vec![takes(10), takes(10)] });
        knobs.stages = StageKnobs::chain(2);
        if let Policy::Cellular(cellular) = &mut knobs.policy {
            (cellular.paper, cellular.max_tasks) = (true, 3);
        }
        let mut core = core(knobs, 1, ahead);
        let mut step = |event| said(&core.step(Instant::ZERO, event));
        assert_eq!(step(Event::Arrived(request(0, vec![Unfolded::Steps(1), Unfolded::Steps(9)]))), "#0 cell 0: 0.0");
        let three = "#1 cell 1: 0.1; #2 cell 1: 0.2; #3 cell 1: 0.3";
        assert_eq!(step(done(0)), format!("{three}; #4 cell 1: 0.4"), "alone it goes on, in a second round");
        for req in [1, 2] {
            let both = vec![Unfolded::Steps(3), Unfolded::Steps(1)];
            assert_eq!(step(Event::Arrived(request(req, both))), "", "the lane has no room");
        }
        for (task, expected) in (1..).zip(expected) {
            assert_eq!(step(done(task)), expected, "at least {min_followup}");
        }
    }
}

#[test]
fn a_node_that_fails_alone_ends_its_request() {
    let mut core = core(chain(2, 9), 1, LaneKnobs::default());
    let mut step = |event| said(&core.step(Instant::ZERO, event));
    step(Event::Arrived(request(0, vec![Unfolded::Steps(2)])));
    step(Event::Arrived(request(1, vec![Unfolded::Steps(1)])));
    assert_eq!(step(failed(0)), "0 Failed; #1 cell 0: 1.0");
    assert_eq!(step(done(1)), "1 Completed");
}

/// The state of a request as seen from outside.
#[derive(Debug)]
struct Known {
    graph: Vec<Unfolded>,
    /// Nodes that ran, and those in flight with their lanes.
    ran: BTreeSet<u32>,
    flying: BTreeMap<u32, LaneId>,
    /// Number of nodes of the first segment, if an outcome ended it early.
    ended_at: Option<u32>,
    end: Option<End>,
}

impl Known {
    /// Returns whether a node of the first segment is after the one that ended it.
    fn is_past_the_end(&self, node: u32) -> bool {
        node < self.graph[0].nodes() && self.ended_at.is_some_and(|end| end <= node)
    }

    /// Returns the nodes that must have run, or must run earlier on the same lane.
    fn needs(&self, node: u32) -> Vec<u32> {
        match &self.graph[0] {
            Unfolded::Steps(steps) if node < *steps => node.checked_sub(1).into_iter().collect(),
            Unfolded::Tree(topology) if node < topology.nodes() => topology.children_of(node).to_vec(),
            first => {
                let before = first.nodes();
                match node.checked_sub(before + 1) {
                    Some(earlier) => vec![before + earlier],
                    None => (0..self.ended_at.unwrap_or(before)).collect(),
                }
            }
        }
    }
}

/// A driver that tracks the dependencies of each request.
struct Driver {
    core: Core,
    known: BTreeMap<u64, Known>,
    /// Running tasks in launch order.
    running: Vec<Task>,
    /// Nodes in tasks, by request, that were launched ahead of a task that failed.
    void: BTreeSet<(TaskId, ReqId, u32)>,
    max_rows: u32,
}

impl Driver {
    fn act(&mut self, event: Event<'_>) {
        let actions = self.core.step(Instant::ZERO, event);
        self.core.check().expect("the invariants hold");
        for action in actions {
            match action {
                Action::Launch(task) => self.launch(*task),
                Action::Finish { req, end } => {
                    let known = self.known.get_mut(&req.0).expect("it arrived");
                    assert_eq!(known.end.replace(end), None, "{req:?} ends once");
                }
                _ => {}
            }
        }
    }

    fn launch(&mut self, task: Task) {
        assert!((1..=self.max_rows as usize).contains(&task.rows.len()));
        // Rows of one task run at the same time, so dependencies are checked before the rows count as in flight.
        for row in &task.rows {
            let known = &self.known[&row.req.0];
            assert_eq!(known.end, None, "{:?} has ended", row.req);
            assert!(!known.ran.contains(&row.start) && !known.flying.contains_key(&row.start), "{row:?} runs twice");
            for needed in known.needs(row.start) {
                let there = known.ran.contains(&needed) || known.flying.get(&needed) == Some(&task.lane);
                assert!(there, "{row:?} runs before {needed}");
            }
        }
        for row in &task.rows {
            let known = self.known.get_mut(&row.req.0).expect("it arrived");
            known.flying.insert(row.start, task.lane);
        }
        self.running.push(task);
    }

    /// Marks a node to run again, together with everything launched because of it.
    fn take_back(&mut self, req: ReqId, node: u32) {
        let known = self.known.get_mut(&req.0).expect("it arrived");
        let mut lost = BTreeSet::from([node]);
        for task in &self.running {
            for row in task.rows.iter().filter(|row| row.req == req) {
                if known.needs(row.start).iter().any(|needed| lost.contains(needed)) {
                    lost.insert(row.start);
                    known.flying.remove(&row.start);
                    self.void.insert((task.id, req, row.start));
                }
            }
        }
    }

    /// Completes the first task of a lane.
    fn land(&mut self, at: usize, fails: bool, ends: impl Fn(u32) -> bool) {
        let Some(lane) = self.running.get(at % self.running.len().max(1)).map(|task| task.lane) else { return };
        let first = self.running.iter().position(|task| task.lane == lane).expect("it is the lane of one");
        let task = self.running.remove(first);
        let mut outcomes = Vec::new();
        for row in &task.rows {
            let is_void = self.void.remove(&(task.id, row.req, row.start));
            let known = self.known.get_mut(&row.req.0).expect("it arrived");
            if is_void {
                outcomes.push(RowOutcome { next: Next::Failed, emitted: true });
                continue;
            }
            known.flying.remove(&row.start);
            if fails && task.rows.len() > 1 && !known.is_past_the_end(row.start) {
                self.take_back(row.req, row.start);
                continue;
            }
            known.ran.insert(row.start);
            let loops = matches!(known.graph[0], Unfolded::Steps(steps) if row.start < steps);
            let is_last = loops && known.ended_at.is_none() && ends(row.start);
            if is_last {
                known.ended_at = Some(row.start + 1);
            }
            outcomes.push(RowOutcome { next: if is_last { Next::Done } else { Next::On }, emitted: false });
        }
        if fails {
            self.act(Event::Failed { task: task.id })
        } else {
            self.act(Event::Completed { task: task.id, rows: &outcomes })
        }
    }
}

/// Creates a binary tree: every node after the leaves is the parent of the first two nodes without one.
pub(super) fn tree(leaves: u32) -> Unfolded {
    let mut children: Vec<SmallVec<[u32; 2]>> = (0..leaves).map(|_| SmallVec::new()).collect();
    let mut roots: std::collections::VecDeque<u32> = (0..leaves).collect();
    while let (Some(one), Some(two)) = (roots.pop_front(), roots.pop_front()) {
        roots.push_back(children.len() as u32);
        children.push([one, two].into_iter().collect());
        if roots.len() == 1 {
            break;
        }
    }
    Unfolded::Tree(Arc::new(Topology::new(children)))
}

proptest! {
    #[test]
    fn every_node_runs_once_behind_what_it_needs_and_every_request_ends(
        kind in 0_u8..3,
        lanes in 1_u16..4,
        ahead in any::<bool>(),
        slots in 6_u32..60,
        merged in 0_u32..4,
        happenings in vec((0_u8..8, any::<u16>()), 1..300),
    ) {
        let (first, most) = match kind {
            0 => (SegmentKnobs::Tree { leaf: CellId(0), inner: CellId(1) }, 7),
            1 => (SegmentKnobs::Stage { cell: CellId(0) }, 1),
            _ => (SegmentKnobs::Steps { cell: CellId(0) }, 7),
        };
        let segments = [first, SegmentKnobs::Steps { cell: CellId(2) }];
        let knobs = cellular(&[cell(4, 3), cell(4, 2), cell(3, 1)], &segments, slots);
        let knobs = if merged > 0 { merging(knobs, merged) } else { knobs };
        let horizon = if ahead { LaneKnobs { horizon_ns: 1_000, depth: 5 } } else { LaneKnobs::default() };
        let mut driver = Driver { core: core(knobs, lanes, horizon), known: BTreeMap::new(), running: Vec::new(), void: BTreeSet::new(), max_rows: 4 };
        let mut next = 0;
        for (what, detail) in happenings {
            match what {
                0..=2 => {
                    let size = u32::from(detail % most) + 1;
                    let first = if kind == 0 { tree(size) } else { Unfolded::Steps(size) };
                    let graph = vec![first, Unfolded::Steps(u32::from(detail / 7 % 3) + 1)];
                    let known = Known { graph: graph.clone(), ran: BTreeSet::new(), flying: BTreeMap::new(), ended_at: None, end: None };
                    driver.known.insert(next, known);
                    driver.act(Event::Arrived(request(next, graph)));
                    next += 1;
                }
                3 if next > 0 => driver.act(Event::Cancelled(ReqId(u64::from(detail) % next))),
                _ => driver.land(usize::from(detail), detail % 23 == 0, |node| (u32::from(detail) + node) % 11 == 0),
            }
        }
        while !driver.running.is_empty() {
            driver.land(0, false, |_| false);
        }
        for (req, known) in &driver.known {
            prop_assert!(known.end.is_some(), "request {req} never ended");
            if known.end == Some(End::Completed) {
                let last = known.graph[0].nodes() + known.graph[1].nodes() - 1;
                prop_assert!(known.ran.contains(&last), "request {req} was done before its last node");
            }
        }
    }
}
