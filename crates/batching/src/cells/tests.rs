//! Algorithm 1, step by step.

use std::{collections::BTreeMap, sync::Arc};

use paternoster_model::{
    CellId,
    unfold::{Topology, Unfolded},
};
use smallvec::smallvec;

use super::{graphs::CellGraphs, queues::NodeRow};
use crate::{CellKnobs, LaneId, SegmentKnobs, ids::RequestIx};

const LANE: LaneId = LaneId(0);
const OTHER: LaneId = LaneId(1);
const SLOTS: u32 = 100;

fn cell(max_rows: u32, priority: u32) -> CellKnobs {
    CellKnobs { max_rows, min_followup: 1, priority, kind: None, buckets: Box::default(), chunks: None }
}

fn chain(max_rows: u32) -> CellGraphs {
    CellGraphs::new(&[cell(max_rows, 1)], &[SegmentKnobs::Steps { cell: CellId(0) }], SLOTS, true)
}

fn requests(rows: &[NodeRow]) -> Vec<u32> {
    rows.iter().map(|row| row.of.request.0).collect()
}

/// Forms a task of maximum size.
fn form(cells: &mut CellGraphs, cell: CellId, lane: LaneId) -> Vec<NodeRow> {
    cells.form(cell, lane, u32::MAX)
}

fn run(cells: &mut CellGraphs, cell: CellId, lane: LaneId) -> (Vec<u32>, Vec<u32>) {
    let rows = form(cells, cell, lane);
    let mut done: Vec<u32> = cells.completed(cell, &rows, |_| false).iter().map(|request| request.0).collect();
    done.sort_unstable();
    (requests(&rows), done)
}

#[test]
fn requests_join_and_leave_at_every_step() {
    // Figure 5: the number of steps, and the tick before which each request arrives.
    let lengths = [(1, 2, 0), (2, 3, 0), (3, 3, 0), (4, 5, 0), (5, 5, 2), (6, 7, 3), (7, 3, 3), (8, 1, 5)];
    let mut cells = chain(4);
    let mut ended = BTreeMap::new();
    let mut tasks = Vec::new();
    for tick in 0.. {
        for (request, steps, _) in lengths.iter().filter(|(_, _, at)| *at == tick) {
            cells.board(RequestIx(*request), Box::new([Unfolded::Steps(*steps)]));
        }
        let Some(cell) = cells.queues.choose(LANE, None, |_| 0, |_| 0) else { break };
        let (rows, done) = run(&mut cells, cell, LANE);
        tasks.push(rows);
        ended.extend(done.into_iter().map(|request| (request, tick + 1)));
    }
    let first = [vec![1, 2, 3, 4], vec![1, 2, 3, 4], vec![2, 3, 4, 5], vec![4, 5, 6, 7], vec![4, 5, 6, 7]];
    assert_eq!(tasks[..5], first);
    assert_eq!(ended[&1], 2, "request 1 leaves with its second step");
    assert_eq!((ended[&2], ended[&3], ended[&4]), (3, 3, 5));
    assert_eq!(tasks[5..], [vec![5, 6, 7, 8], vec![5, 6], vec![6], vec![6], vec![6]]);
}

/// A complete binary tree: node 0 is the root.
fn complete(leaves: u32) -> Arc<Topology> {
    let inner = leaves - 1;
    let children = |node| if node < inner { smallvec![2 * node + 1, 2 * node + 2] } else { smallvec![] };
    Arc::new(Topology::new((0..2 * leaves - 1).map(children).collect()))
}

fn trees(max_rows: u32, frontier: bool) -> CellGraphs {
    let (leaf, inner) = (CellId(0), CellId(1));
    CellGraphs::new(&[cell(max_rows, 2), cell(max_rows, 1)], &[SegmentKnobs::Tree { leaf, inner }], SLOTS, frontier)
}

#[test]
fn a_tree_of_16_leaves_has_15_inner_nodes() {
    let mut cells = trees(64, false);
    cells.board(RequestIx(0), Box::new([Unfolded::Tree(complete(16))]));
    let mut sizes = Vec::new();
    while let Some(cell) = cells.queues.choose(LANE, None, |_| 0, |_| 0) {
        let (rows, done) = run(&mut cells, cell, LANE);
        sizes.push((cell.0, rows.len(), done.len()));
    }
    assert_eq!(sizes, [(0, 16, 0), (1, 8, 0), (1, 4, 0), (1, 2, 0), (1, 1, 1)]);
}

#[test]
fn a_tree_runs_to_its_end_without_going_through_its_leaves_again() {
    for frontier in [false, true] {
        let mut cells = trees(64, frontier);
        cells.board(RequestIx(0), Box::new([Unfolded::Tree(complete(SLOTS / 2))]));
        let mut nodes = 0;
        while let Some(cell) = cells.queues.choose(LANE, None, |_| 0, |_| 0) {
            assert_eq!(cells.visited(0), 0, "after {nodes} nodes");
            nodes += run(&mut cells, cell, LANE).0.len() as u32;
        }
        assert_eq!(nodes, SLOTS - 1);
        // A request that ends early leaves each queue only once.
        cells.board(RequestIx(0), Box::new([Unfolded::Tree(complete(SLOTS / 2))]));
        form(&mut cells, CellId(0), LANE);
        cells.drop(RequestIx(0));
        assert_eq!(cells.visited(0), u64::from(SLOTS / 2) + 1, "the leaves, and the inner nodes as one");
    }
}

#[test]
fn inner_nodes_wait_for_all_leaves_or_for_their_own_children() {
    for (frontier, then) in [(false, (0, 2)), (true, (1, 1))] {
        let mut cells = trees(2, frontier);
        cells.board(RequestIx(0), Box::new([Unfolded::Tree(complete(4))]));
        let first = cells.queues.choose(LANE, None, |_| 0, |_| 0).expect("leaves are ready");
        assert_eq!(run(&mut cells, first, LANE).0.len(), 2);
        let mut one = cells.queues.choose(LANE, None, |_| 0, |_| 0).expect("there is more");
        if frontier {
            // The other two leaves fill a batch, which goes first.
            assert_eq!((one, run(&mut cells, one, LANE).0.len()), (CellId(0), 2));
            one = cells.queues.choose(LANE, None, |_| 0, |_| 0).expect("there is more");
        }
        let rows = form(&mut cells, one, LANE).len();
        assert_eq!((one.0, rows), if frontier { (1, 2) } else { then });
    }
}

#[test]
fn a_subgraph_stays_on_its_lane_until_its_last_task_has_ended() {
    let mut cells = chain(4);
    cells.board(RequestIx(0), Box::new([Unfolded::Steps(3)]));
    let one = form(&mut cells, CellId(0), LANE);
    assert_eq!(cells.queues.ready(CellId(0), LANE), 1, "the next step is ready where the first runs");
    assert_eq!(cells.queues.ready(CellId(0), OTHER), 0);
    let two = form(&mut cells, CellId(0), LANE);
    assert!(cells.completed(CellId(0), &one, |_| false).is_empty());
    assert_eq!(cells.queues.ready(CellId(0), OTHER), 0, "the second is still there");
    assert!(cells.completed(CellId(0), &two, |_| false).is_empty());
    assert_eq!(cells.queues.ready(CellId(0), OTHER), 1, "it may go anywhere");
    let three = form(&mut cells, CellId(0), OTHER);
    assert_eq!(cells.completed(CellId(0), &three, |_| false).as_slice(), [RequestIx(0)]);
}

#[test]
fn an_outcome_ends_a_loop_and_rows_that_ran_past_it_are_dropped() {
    let mut cells = chain(4);
    cells.board(RequestIx(7), Box::new([Unfolded::Steps(9)]));
    let one = form(&mut cells, CellId(0), LANE);
    let two = form(&mut cells, CellId(0), LANE);
    let free = cells.free_slots.count();
    assert_eq!(
        cells.completed(CellId(0), &one, |_| true).as_slice(),
        [RequestIx(7)],
        "what was submitted beyond it counts for nothing"
    );
    assert_eq!(
        (cells.queues.ready(CellId(0), LANE), cells.free_slots.count()),
        (0, free),
        "a task still names its slot"
    );
    assert!(cells.completed(CellId(0), &two, |_| false).is_empty());
    assert_eq!(cells.free_slots.count(), free + 1);
}

#[test]
fn a_step_that_failed_ahead_of_the_outcome_that_ended_its_loop_does_not_run_again() {
    let cell = CellId(0);
    let steps = SegmentKnobs::Steps { cell };
    for segments in [1, 2] {
        let mut cells = CellGraphs::new(&[self::cell(1, 1)], &vec![steps.clone(); segments], SLOTS, true);
        cells.board(RequestIx(1), (0..segments).map(|_| Unfolded::Steps(10)).collect());
        let first = form(&mut cells, cell, LANE);
        let ahead = form(&mut cells, cell, LANE);
        // The device refuses the second step before the first has completed.
        cells.failed(cell, &ahead, false, std::iter::empty());
        cells.completed(cell, &ahead, |_| false);
        assert_eq!(cells.queues.first_retry(LANE), Some(cell));
        let done = cells.completed(cell, &first, |_| true);
        assert_eq!(done.len(), usize::from(segments == 1), "the request is done, or goes on with its next segment");
        assert_eq!(cells.queues.first_retry(LANE), None);
        assert_eq!(cells.queues.choose(LANE, None, |_| 0, |_| 0), (segments == 2).then_some(cell));
        let aboard = if segments == 1 { vec![] } else { vec![RequestIx(1)] };
        cells.check(aboard, std::iter::empty(), std::iter::empty()).expect("nothing of the step is left");
    }
}

#[test]
fn a_node_that_was_refused_ahead_of_one_that_fails_runs_in_its_turn() {
    let (leaf, inner) = (CellId(0), CellId(1));
    // A chain of three steps, and a tree with two inner nodes below its root. The last of the three is refused, then
    // the first fails, on which it depends; its retry waits or is launched by then.
    for (is_tree, is_launched) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut cells, cell, graph) = if is_tree {
            (trees(1, false), inner, Unfolded::Tree(complete(4)))
        } else {
            (chain(1), leaf, Unfolded::Steps(3))
        };
        cells.board(RequestIx(1), Box::new([graph]));
        if is_tree {
            (0..4).for_each(|_| _ = run(&mut cells, leaf, LANE));
        }
        let [first, second, refused] = [(); 3].map(|()| form(&mut cells, cell, LANE));
        let nodes = [&first, &second, &refused].map(|rows| rows[0].node);
        cells.failed(cell, &refused, false, std::iter::empty());
        cells.completed(cell, &refused, |_| false);
        let again = if is_launched { cells.launch_retry(cell, LANE).expect("its lane is free") } else { vec![] };
        let mut others: Vec<(NodeRow, bool)> = second.iter().map(|row| (*row, false)).collect();
        others.extend(again.iter().map(|row| (*row, true)));
        cells.failed(cell, &first, false, others.iter_mut().map(|(row, is_retry)| (row, *is_retry)));
        cells.completed(cell, &first, |_| false);
        assert!(others.iter().all(|(row, is_retry)| row.is_void == (*is_retry || !is_tree)), "{others:?}");
        for (row, _) in &others {
            cells.completed(cell, &[*row], |_| false);
        }
        cells.check(vec![RequestIx(1)], std::iter::empty(), std::iter::empty()).expect("only the first runs again");
        let mut ran = Vec::new();
        while ran.len() < 3 && cells.queues.has_ready() {
            let rows = match cells.launch_retry(cell, LANE) {
                None => form(&mut cells, cell, LANE),
                Some(rows) => {
                    cells.ran_again(&rows);
                    rows
                }
            };
            ran.extend(rows.iter().map(|row| row.node));
            cells.completed(cell, &rows, |_| false);
        }
        let expected = if is_tree { vec![nodes[0], nodes[2]] } else { nodes.to_vec() };
        assert_eq!(ran, expected, "launched: {is_launched}");
    }
}

#[test]
fn full_batches_go_first_then_idle_types_then_any_by_priority() {
    let segments = [SegmentKnobs::Steps { cell: CellId(0) }, SegmentKnobs::Steps { cell: CellId(1) }];
    let mut cells = CellGraphs::new(&[cell(2, 2), cell(2, 1)], &segments, SLOTS, true);
    let both = |first| -> Box<[Unfolded]> { Box::new([Unfolded::Steps(first), Unfolded::Steps(5)]) };
    cells.board(RequestIx(0), both(1));
    cells.board(RequestIx(1), both(2));
    assert_eq!(cells.queues.choose(LANE, None, |_| 0, |_| 0), Some(CellId(0)));
    let (_, done) = run(&mut cells, CellId(0), LANE);
    assert!(done.is_empty());
    assert_eq!(cells.queues.choose(LANE, None, |_| 0, |_| 0), Some(CellId(1)), "one each: the decoder has priority");
    let one = |cell: CellId| u64::from(cell.0 == 0);
    assert_eq!(cells.queues.choose(LANE, None, one, |_| 0), Some(CellId(0)), "with who waits, a full batch");
    assert_eq!(cells.queues.choose(LANE, None, |_| 0, one), Some(CellId(0)), "with what others bring, a full batch");
    let decoding = form(&mut cells, CellId(1), LANE);
    assert_eq!(cells.queues.choose(OTHER, None, |_| 0, |_| 0), Some(CellId(0)), "nothing runs of it");
    cells.completed(CellId(1), &decoding, |_| false);
}

#[test]
fn requests_that_end_leave_their_queues_and_running_rows_are_masked() {
    let mut cells = chain(4);
    for request in 0..3 {
        cells.board(RequestIx(request), Box::new([Unfolded::Steps(2)]));
    }
    let rows = form(&mut cells, CellId(0), LANE);
    cells.drop(RequestIx(1));
    assert_eq!(cells.free_slots.count(), SLOTS - 3, "a task names its slot");
    // Another request in the same slot of the ledger is not the one that is running.
    cells.board(RequestIx(1), Box::new([Unfolded::Steps(1)]));
    assert!(cells.completed(CellId(0), &rows, |_| false).is_empty());
    let (rows, done) = run(&mut cells, CellId(0), LANE);
    assert_eq!((rows, done), (vec![0, 2, 1], vec![0, 1, 2]));
    assert_eq!(cells.free_slots.count(), SLOTS);
    assert_eq!(cells.queues.choose(LANE, None, |_| 0, |_| 0), None);
}

#[test]
fn a_queue_that_requests_come_and_go_in_stays_short_and_in_order() {
    let mut cells = chain(3);
    let mut served = 0;
    cells.board(RequestIx(9_000), Box::new([Unfolded::Steps(2_001)]));
    for request in 0..2_000 {
        cells.board(RequestIx(request), Box::new([Unfolded::Steps(1)]));
        let (rows, done) = run(&mut cells, CellId(0), LANE);
        assert_eq!((rows[0], &rows[1..], done.len()), (9_000, &done[..], 1));
        served += done.len();
    }
    assert_eq!(served, 2_000);
    assert_eq!(run(&mut cells, CellId(0), LANE), (vec![9_000], vec![9_000]));
}
