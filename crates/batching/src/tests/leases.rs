//! Edge cases of the batch table and of leases: which requests join and leave, which tasks wait for others, and which
//! leases are returned.

use paternoster_model::{CellId, Next};

use super::{
    at,
    ride::{Ride, chain, flat, latencies},
};
use crate::{
    Arrival, DiversityKnobs, End, InputDiversity, Knobs, LaneKnobs, LazyKnobs, LoadDiversity, Ns, OperatorDiversity,
    PartOrder, Policy, Predictor, QueueingKnobs, ReqId, RequestKey, Task, TaskId, WindowKnobs,
};

fn window() -> Policy {
    Policy::Window(WindowKnobs::default())
}

fn diversity(knobs: DiversityKnobs) -> Policy {
    Policy::Diversity(knobs)
}

/// Newcomers join wherever possible.
fn old_enough(max_age_ns: Ns) -> Option<LoadDiversity> {
    Some(LoadDiversity { max_age_ns: Some(max_age_ns), max_stage: None, paper: true })
}

fn load() -> Policy {
    diversity(DiversityKnobs { load: old_enough(100_000), ..DiversityKnobs::default() })
}

fn two_rows(request: &mut Arrival) {
    request.rows = 2;
}

/// An older row waits after stage 1 while two newcomers run stage 0, on two lanes.
fn waiting() -> Ride {
    let mut ride = Ride::on(2, flat(4, 4, load()));
    ride.arrive("a");
    assert_eq!(ride.done(0), "#1 stage 1: a");
    assert_eq!(ride.arrive_with('b', two_rows), "#2 stage 0: b[0..2]");
    assert_eq!(ride.done(1), "");
    ride
}

#[test]
fn the_waiting_rows_go_on_at_once_when_the_newcomers_are_cancelled() {
    let mut ride = waiting();
    assert_eq!(ride.cancel('b'), "b cancelled; #3 stage 2: a");
    assert_eq!(ride.table(), "batch 0 bs 3 passed 1 1 0 0", "masked rows count until their task ends");
    assert_eq!(ride.done(2), "");
    assert_eq!(ride.table(), "batch 0 bs 1 passed 1 1 0 0");
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
}

#[test]
fn newcomers_take_an_idle_lane_rather_than_hold_up_a_batch_on_another() {
    let load = LoadDiversity { max_age_ns: Some(100_000), ..LoadDiversity::default() };
    let policy = diversity(DiversityKnobs { load: Some(load), ..DiversityKnobs::default() });
    let mut ride = Ride::on(2, flat(4, 4, policy.clone()));
    ride.arrive("a");
    assert_eq!(ride.done(0), "#1 stage 1: a");
    assert_eq!(ride.arrive("b"), "#2 stage 0: b");
    assert_eq!((ride.task(2).batch, ride.task(2).rows[0].at), (1, 0), "a batch of its own");
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");

    let mut ride = Ride::on(1, flat(4, 4, policy));
    ride.arrive("ab");
    assert_eq!(ride.done(0), "#1 stage 0: b");
    assert_eq!((ride.task(1).batch, ride.task(1).rows[0].at), (0, 1), "on the only lane it gains by joining");
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
}

#[test]
fn newcomers_go_on_alone_when_the_older_rows_are_cancelled() {
    let mut ride = waiting();
    assert_eq!(ride.cancel('a'), "a cancelled");
    assert_eq!(ride.table(), "batch 0 bs 2 passed 0 0 0 0");
    for (task, next) in [(2, "#3 stage 1: b[0..2]"), (3, "#4 stage 2: b[0..2]"), (4, "#5 stage 3: b[0..2]")] {
        assert_eq!(ride.done(task), next);
    }
    assert_eq!(ride.done(5), "b completed");
    assert!(ride.is_idle(), "all leases are back");
}

#[test]
fn a_batch_without_live_rows_returns_its_leases() {
    let mut ride = waiting();
    ride.cancel('a');
    assert_eq!(ride.cancel('b'), "b cancelled");
    assert_eq!(ride.done(2), "");
    assert!(ride.is_idle(), "all leases are back");
}

#[test]
fn newcomers_that_fail_start_again_in_halves_at_the_turn_that_they_had_and_the_waiting_row_goes_on() {
    let mut ride = Ride::on(1, flat(3, 4, load()));
    ride.arrive("abc");
    assert_eq!(ride.done(0), "#1 stage 0: b c");
    ride.arrive("d");
    assert_eq!(ride.fails(1), "#2 stage 1: a", "it waits for nobody");
    assert_eq!(ride.table().split("; ").count(), 3, "each half in a batch of its own: {}", ride.table());
    assert_eq!(ride.done(2), "#3 stage 2: a");
    assert_eq!(ride.done(3), "a completed; #4 stage 0: b", "before d");
    assert_eq!(ride.done(4), "#5 stage 1: b");
    assert_eq!(ride.done(5), "#6 stage 2: b", "nobody joins it");
    assert_eq!(ride.done(6), "b completed; #7 stage 0: c");
    assert_eq!(ride.done(7), "#8 stage 1: c");
    assert_eq!(ride.fails(8), "c failed; #9 stage 0: d", "once more and no more");
    ride.run_out();
    assert_eq!(ride.counters().retries, 2);
    assert!(ride.is_idle(), "all leases are back");
}

#[test]
fn rows_of_a_request_that_had_the_same_slot_before_are_not_run_again() {
    let ahead = LaneKnobs { horizon_ns: 1_000, depth: 1 };
    let mut ride = Ride::new(Knobs { buffer_pairs: 3, ..flat(2, 4, window()) });
    ride.lane_up(0, ahead);
    ride.arrive("a");
    assert_eq!(ride.done(0), "#1 stage 1: a");
    ride.cancel('a');
    ride.arrive("bc");
    assert_eq!(ride.lane_up(1, ahead), "#2 stage 0: b c", "b has the slot of a, whose row still runs");
    assert_eq!(ride.lane_up(2, ahead), "#3 stage 1: b c");
    assert_eq!(ride.fails(2), "#4 stage 0: b");
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
}

/// A batch runs stage 0 in the first three of its places; then the second place becomes free.
fn gaps(policy: Policy, places: u32, newcomers: &[(char, u32)]) -> Ride {
    let mut ride = Ride::new(flat(3, places, policy));
    ride.arrive("abc");
    assert_eq!(ride.lanes_up(1), "#0 stage 0: a b c");
    ride.cancel('b');
    for &(name, rows) in newcomers {
        ride.arrive_with(name, |request| request.rows = rows);
    }
    ride
}

#[test]
fn newcomers_need_places_in_a_row() {
    let lazy = Policy::Lazy(LazyKnobs { predictor: Predictor::Paper, ..LazyKnobs::default() });
    for policy in [load(), lazy] {
        let mut ride = gaps(policy.clone(), 4, &[('d', 2)]);
        assert_eq!(ride.done(0), "#1 stage 1: a c", "d finds two places, but not in a row");
        ride.run_out();
        let mut ride = gaps(policy, 5, &[('d', 2)]);
        assert_eq!(ride.done(0), "#1 stage 0: d[0..2]");
        assert_eq!(ride.task(1).rows[0].at, 3);
        ride.run_out();
        assert!(ride.is_idle(), "all leases are back");
    }
}

#[test]
fn rows_of_a_task_are_in_the_order_of_their_places() {
    let mut ride = gaps(load(), 6, &[('d', 2), ('e', 1)]);
    assert_eq!(ride.done(0), "#1 stage 0: e d[0..2]", "the gap is filled first");
    let places: Vec<u32> = ride.task(1).rows.iter().map(|span| span.at).collect();
    assert_eq!(places, [1, 3]);
}

/// Returns whether newcomers of two rows join a batch that runs stage 1 of four.
fn joins(knobs: Knobs, first: fn(&mut Arrival), newcomers: fn(&mut Arrival)) -> bool {
    let mut ride = Ride::on(2, knobs);
    ride.arrive_with('a', first);
    ride.done(0);
    let said = ride.arrive_with('b', |request| {
        request.rows = 2;
        newcomers(request);
    });
    assert_eq!(said, "#2 stage 0: b[0..2]");
    let joined = ride.task(2).batch == 0;
    assert_eq!(ride.counters().stretches, u64::from(joined));
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
    joined
}

#[test]
fn newcomers_join_a_batch_that_is_open_only() {
    let plain = |_: &mut Arrival| {};
    assert!(joins(flat(4, 4, load()), plain, plain));
    assert!(joins(flat(4, 3, load()), plain, plain), "a row and two are three");
    assert!(!joins(flat(4, 2, load()), plain, plain), "it is full");
    let shut =
        |load: Option<LoadDiversity>| flat(4, 4, diversity(DiversityKnobs { load, ..DiversityKnobs::default() }));
    assert!(!joins(shut(None), plain, plain), "policy III is off");
    assert!(joins(shut(old_enough(100)), plain, plain), "just young enough");
    assert!(!joins(shut(old_enough(99)), plain, plain), "over its age");
    let up_to = |stage| Some(LoadDiversity { max_age_ns: Some(100_000), max_stage: Some(stage), paper: true });
    assert!(joins(shut(up_to(2)), plain, plain), "they meet at stage 2");
    assert!(!joins(shut(up_to(1)), plain, plain), "over its stage");
    let input = Some(InputDiversity { window_ns: Some(0), ..InputDiversity::default() });
    let grouped = diversity(DiversityKnobs { input, load: old_enough(100_000), operator: None });
    assert!(!joins(flat(4, 4, grouped), plain, plain), "parallel entry resolves load diversity already");
}

#[test]
fn nobody_joins_a_batch_whose_split_is_foreseen() {
    let operator = Some(OperatorDiversity { paper: true, ..OperatorDiversity::default() });
    let policy = diversity(DiversityKnobs { operator, load: old_enough(100_000), input: None });
    // After the third stage, two rows run as fast one by one; up to there, newcomers gain by joining.
    let prefers_one = |stage, rows, _| match stage {
        0 | 1 => 100,
        2 => 1_000,
        _ => 100 * u64::from(rows),
    };
    let knobs = Knobs { latencies: latencies(4, &[1, 2, 4], &[1], prefers_one), ..chain(4, 4, policy) };
    assert!(joins(knobs.clone(), |_| {}, |_| {}), "of one row none is");
    assert!(!joins(knobs, two_rows, |_| {}), "of two it is");
}

#[test]
fn the_padded_length_of_a_batch_is_fixed_when_it_is_made() {
    let length = |request: &mut Arrival| request.lengths = [4].into_iter().collect();
    assert!(joins(flat(4, 4, load()), length, |request| request.lengths = [3].into_iter().collect()));
    assert!(!joins(flat(4, 4, load()), length, |request| request.lengths = [5].into_iter().collect()));
    assert!(!joins(flat(4, 4, load()), length, |request| request.key = RequestKey([7].into_iter().collect())));
}

#[test]
fn only_the_newest_batch_is_stretched() {
    let mut ride = Ride::on(3, Knobs { buffer_pairs: 3, ..flat(4, 4, load()) });
    ride.arrive("a");
    assert_eq!(ride.done(0), "#1 stage 1: a");
    let said = ride.arrive_with('d', |request| request.key = RequestKey([7].into_iter().collect()));
    assert_eq!(said, "#2 stage 0: d");
    assert_eq!(ride.arrive_with('e', two_rows), "#3 stage 0: e[0..2]", "which could have joined the first");
    assert_eq!((ride.task(2).batch, ride.task(3).batch), (1, 2));
    ride.run_out();
    assert_eq!(ride.counters().stretches, 0);
    assert!(ride.is_idle(), "all leases are back");
}

/// Returns how two rows run that share stage 0 and then run one by one, in this order, on one lane.
fn in_parts(order: PartOrder) -> Vec<String> {
    let operator = Some(OperatorDiversity { order, ..OperatorDiversity::default() });
    let policy = diversity(DiversityKnobs { operator, ..DiversityKnobs::default() });
    let prefers_one = |stage, rows, _| if stage == 0 { 100 } else { 100 * u64::from(rows) };
    let mut ride = Ride::new(Knobs { latencies: latencies(3, &[1, 2], &[1], prefers_one), ..chain(3, 2, policy) });
    ride.arrive("ab");
    ride.lanes_up(1);
    let mut said = Vec::new();
    for task in 0..5 {
        assert_eq!(ride.task(task).batch, 0, "parts are of one batch");
        let spans = &ride.task(task).rows;
        let at = if ride.task(task).cell == CellId(0) { 0 } else { u32::from(spans[0].req.0 == 1) };
        assert_eq!(spans[0].at, at, "rows keep their places");
        let reads = [None, Some("reads 0.0 writes 1.0"), Some("reads 1.0")][usize::from(ride.task(task).cell.0)];
        reads.into_iter().for_each(|buffers| assert_eq!(ride.buffers(task), buffers, "and their leases"));
        said.push(ride.done(task));
    }
    assert!(ride.is_idle(), "all leases are back");
    said
}

#[test]
fn parts_run_to_the_end_one_after_another_or_stage_by_stage() {
    let depth_first = ["#1 stage 1: a", "#2 stage 2: a", "a completed; #3 stage 1: b", "#4 stage 2: b", "b completed"];
    assert_eq!(in_parts(PartOrder::DepthFirst), depth_first);
    let pipelined = ["#1 stage 1: a", "#2 stage 1: b", "#3 stage 2: a", "a completed; #4 stage 2: b", "b completed"];
    assert_eq!(in_parts(PartOrder::Pipelined), pipelined);
}

#[test]
fn rows_that_exit_are_done_and_rows_that_skip_travel_on_alone() {
    let mut knobs = flat(3, 4, window());
    knobs.stages[0].decides = true;
    knobs.stages[2].reads = [0].into_iter().collect();
    let mut ride = Ride::new(knobs);
    ride.arrive("abc");
    ride.lanes_up(1);
    let said = ride.done_with(0, &[Next::Done, Next::Skip(CellId(2)), Next::On]);
    assert_eq!(said, "a completed; #1 stage 1: c");
    assert_eq!(ride.queues(), "2: {1, 1, 1}");
    assert_eq!(ride.done(1), "#2 stage 2: c");
    assert_eq!(ride.done(2), "c completed; #3 stage 2: b");
    assert_eq!(ride.buffers(3), "reads 0.0", "which no part gave back before");
    assert_eq!(ride.done(3), "b completed");
    assert_eq!(ride.counters().early_exits, 1);
    assert!(ride.is_idle(), "all leases are back");
}

#[test]
fn a_connection_that_skips_stages_holds_its_boundary_until_its_last_reader() {
    let states = |knobs: Knobs| {
        let mut ride = Ride::on(1, knobs);
        ride.arrive("a");
        ride.done(0);
        ride.done(1);
        let before = ride.buffer_states();
        ride.done(2);
        let last = ride.buffer_states();
        ride.run_out();
        assert!(ride.is_idle(), "all leases are back");
        (before, last)
    };
    let (before, last) = states(flat(4, 1, window()));
    assert_eq!(before, "available available | in-reading available | in-writing available");
    assert_eq!(last, "available available | available available | in-reading available");
    let mut skips = flat(4, 1, window());
    skips.stages[3].reads.insert(0, 0);
    let (before, last) = states(skips);
    assert_eq!(before, "invalid available | in-reading available | in-writing available");
    assert_eq!(last, "in-reading available | available available | in-reading available");
}

#[test]
fn places_of_rows_that_left_are_taken_by_newcomers() {
    let mut knobs = flat(4, 2, load());
    knobs.stages[0].decides = true;
    let mut ride = Ride::new(knobs);
    ride.arrive("ab");
    ride.lanes_up(1);
    ride.arrive("c");
    assert_eq!(ride.done_with(0, &[Next::Done, Next::On]), "a completed; #1 stage 0: c");
    assert_eq!((ride.task(1).batch, ride.task(1).rows[0].at), (0, 0));
    assert_eq!(ride.done(1), "#2 stage 1: c b");
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
}

#[test]
fn a_request_of_a_higher_level_boards_before_a_lower_batch_goes_on() {
    let queueing = QueueingKnobs { priority_levels: 2, default_priority_level: 2, ..QueueingKnobs::default() };
    let mut ride = Ride::on(1, Knobs { queueing, ..flat(2, 4, window()) });
    ride.arrive("a");
    ride.arrive_with('h', |request| request.priority = 1);
    assert_eq!(ride.done(0), "#1 stage 0: h", "before a goes on");
    assert_eq!(ride.done(1), "#2 stage 1: h");
    assert_eq!(ride.done(2), "h completed; #3 stage 1: a");
    assert_eq!(ride.counters().preemptions, 1);
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
}

#[test]
fn a_request_past_its_deadline_leaves_at_the_boundary() {
    let mut ride = Ride::new(flat(3, 4, window()));
    ride.arrive_with('a', |request| request.deadline = Some(at(150)));
    ride.arrive("b");
    assert_eq!(ride.lanes_up(1), "#0 stage 0: a b");
    assert_eq!(ride.done(0), "#1 stage 1: a b");
    assert_eq!(ride.done(1), "#2 stage 2: b");
    assert_eq!(ride.ends, [(ReqId(0), at(150), End::Expired)]);
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
}

#[test]
fn the_pairs_say_how_many_batches_overlap_and_none_is_lost() {
    let overlaps = [1, 2, 3].map(|pairs| {
        let mut ride = Ride::on(8, Knobs { buffer_pairs: pairs, ..flat(3, 1, window()) });
        ride.arrive("abcdefghij");
        ride.cancel('b');
        ride.cancel('i');
        let mut most = 0;
        while let Some((_, task)) = ride.running.first() {
            most = most.max(ride.running.len());
            ride.done(task.id.0);
        }
        assert_eq!(ride.counters().completed, 8);
        assert!(ride.is_idle(), "all leases are back");
        most
    });
    assert_eq!(overlaps[0], 1, "the serial manner");
    assert!(overlaps[0] < overlaps[1] && overlaps[1] < overlaps[2], "{overlaps:?}");
}

/// Returns the tasks in flight on other lanes that `task` must not overtake, whether it reads data that one of them
/// writes, and whether it writes data that one of them uses.
fn hazards(task: &Task, flying: &[Task]) -> (Vec<TaskId>, bool, bool) {
    let places = |task: &Task| task.rows.iter().flat_map(|span| span.at..span.at + span.count).collect::<Vec<_>>();
    let (mut after, mut reads_written, mut writes_read) = (Vec::new(), false, false);
    for other in flying.iter().filter(|other| other.lane != task.lane) {
        if places(other).iter().all(|place| !places(task).contains(place)) {
            continue;
        }
        let raw = other.writes.is_some_and(|lease| task.reads.contains(&lease));
        let war = task.writes.is_some_and(|lease| other.reads.contains(&lease));
        let waw = task.writes.is_some() && task.writes == other.writes;
        (reads_written, writes_read) = (reads_written || raw, writes_read || war);
        if raw || war || waw {
            after.push(other.id);
        }
    }
    (after, reads_written, writes_read)
}

#[test]
fn tasks_that_are_launched_ahead_name_exactly_the_hazards() {
    let (mut raw, mut war) = (0, 0);
    for pairs in 1..=3 {
        let mut ride = Ride::new(Knobs { buffer_pairs: pairs, ..flat(4, 1, window()) });
        ride.arrive("abcdefghijkl");
        (0..3).for_each(|lane| drop(ride.lane_up(lane, LaneKnobs { horizon_ns: 250, depth: 3 })));
        let mut seen = 0;
        for _ in 0..1_000 {
            let flying: Vec<Task> = ride.running.iter().map(|(_, task)| task.clone()).collect();
            for (at, task) in flying.iter().enumerate().filter(|(_, task)| task.id.0 >= seen) {
                let (expected, reads_written, writes_read) = hazards(task, &flying[..at]);
                assert_eq!(task.after.to_vec(), expected, "{task:?}");
                raw += u32::from(reads_written);
                war += u32::from(writes_read);
            }
            let Some(first) = flying.first() else { break };
            seen = flying.last().map_or(seen, |last| last.id.0 + 1);
            ride.done(first.id.0);
        }
        assert_eq!(ride.counters().completed, 12);
        assert!(ride.is_idle(), "all leases are back");
    }
    assert!(raw > 0 && war > 0, "{raw} reads after writes, {war} writes after reads");
}
