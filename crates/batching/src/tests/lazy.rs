//! LazyBatching's figures 4, 8 and 10, and the rules of the stack (section IV-B), table by table.

use paternoster_model::CellId;

use super::{
    at,
    pool::{DynamicBatching, arrival, serial, window},
    timeline::{Timeline, UNIT, staged},
};
use crate::{Arrival, Knobs, LazyKnobs, ModelId, Ns, Policy, Predictor, ReqId, Task, WindowKnobs};

/// Knobs of the figures' servers, which push all waiting requests: there is no objective that a push could break.
fn paper() -> LazyKnobs {
    LazyKnobs { predictor: Predictor::Paper, ..LazyKnobs::default() }
}

/// Creates a model of `nodes` nodes of one unit each, for any batch size.
fn lazy(knobs: LazyKnobs, nodes: u16, max_batch_rows: u32) -> Knobs {
    staged(Policy::Lazy(knobs), nodes, max_batch_rows, &[(1, UNIT)])
}

fn a_unit(_: &Task) -> Ns {
    UNIT
}

/// Requests 1, 2 and 3 of figure 10: the device is busy until t = 2, when request 1 starts; requests 2 and 3 arrive
/// while nodes B and A run.
fn figure_10(knobs: LazyKnobs) -> Timeline {
    let mut server = Timeline::new([lazy(knobs, 8, 64)], a_unit);
    server.arrives(0, 1);
    server.lane_up(2 * UNIT, 0);
    server.arrives(3 * UNIT + UNIT / 2, 2);
    server.arrives(4 * UNIT + UNIT / 2, 3);
    server
}

#[test]
fn figure_10_newcomers_are_pushed_catch_up_and_merge() {
    let mut server = Timeline::new([lazy(paper(), 8, 64)], a_unit);
    server.arrives(0, 1);
    assert_eq!(server.table_at(UNIT), "", "the processor is busy with other requests");
    server.lane_up(2 * UNIT, 0);
    assert_eq!(server.table_at(2 * UNIT), "1:A");
    assert_eq!(server.table_at(3 * UNIT), "1:B");
    server.arrives(3 * UNIT + UNIT / 2, 2);
    assert_eq!(server.table_at(3 * UNIT + UNIT / 2), "1:B", "a node is never interrupted");
    assert_eq!(server.table_at(4 * UNIT), "1:C 2:A", "push");
    server.arrives(4 * UNIT + UNIT / 2, 3);
    assert_eq!(server.table_at(5 * UNIT), "1:C 2:B 3:A", "push");
    assert_eq!(server.table_at(6 * UNIT), "1:C 2,3:B", "merge");
    assert_eq!(server.table_at(7 * UNIT), "1,2,3:C", "merge");
    for (at, table) in (8..13).zip(["1,2,3:D", "1,2,3:E", "1,2,3:F", "1,2,3:G", "1,2,3:H"]) {
        assert_eq!(server.table_at(at * UNIT), table, "at {at}");
    }
    assert_eq!(server.table_at(13 * UNIT), "");
    assert_eq!(server.ended(), ["1 completed at 13", "2 completed at 13", "3 completed at 13"]);
    let counters = server.counters();
    assert_eq!([counters.stretches, counters.merges, counters.preemptions, counters.splits], [2, 2, 2, 0]);
}

#[test]
fn figure_10_the_processor_runs_one_sub_batch_at_a_time() {
    let mut server = figure_10(paper());
    server.run_out();
    let launched = [
        "2 1:A",
        "3 1:B",
        "4 2:A",
        "5 3:A",
        "6 2,3:B",
        "7 1,2,3:C",
        "8 1,2,3:D",
        "9 1,2,3:E",
        "10 1,2,3:F",
        "11 1,2,3:G",
        "12 1,2,3:H",
    ];
    assert_eq!(server.launched(), launched);
}

/// Arrivals of figure 8: two before the processor is available at t = 4, three while these run.
fn figure_8(knobs: Knobs, takes_ns: fn(&Task) -> Ns) -> Timeline {
    let mut server = Timeline::new([knobs], takes_ns);
    server.arrives(2 * UNIT, 1);
    server.arrives(3 * UNIT, 2);
    server.lane_up(4 * UNIT, 0);
    for req in 3..=5 {
        server.arrives(5 * UNIT + req * 100, req);
    }
    server
}

#[test]
fn figure_8_a_batch_is_preempted_until_the_next_has_caught_up() {
    let mut server = figure_8(lazy(paper(), 5, 64), a_unit);
    let tables = [(6, "1,2:C 3,4,5:A"), (7, "1,2:C 3,4,5:B"), (8, "1,2,3,4,5:C"), (10, "1,2,3,4,5:E"), (11, "")];
    for (at, table) in tables {
        assert_eq!(server.table_at(at * UNIT), table, "at {at}");
    }
    let all = [1, 2, 3, 4, 5].map(|req| format!("{req} completed at 11"));
    assert_eq!(server.ended(), all, "the last ends three units earlier than under graph batching");
    let launched = ["4 1,2:A", "5 1,2:B", "6 3,4,5:A", "7 3,4,5:B", "8 1,2,3,4,5:C", "9 1,2,3,4,5:D", "10 1,2,3,4,5:E"];
    assert_eq!(server.launched(), launched);
}

#[test]
fn figure_8_the_baseline_lets_later_requests_wait_for_the_whole_graph() {
    let mut server = figure_8(window(64, DynamicBatching::default()), |_| 5 * UNIT);
    server.run_out();
    assert_eq!(server.launched(), ["4 1,2:A", "9 3,4,5:A"]);
    let ended = ["1 completed at 9", "2 completed at 9", "3 completed at 14", "4 completed at 14", "5 completed at 14"];
    assert_eq!(server.ended(), ended);
}

/// Graph batching with a time window, with requests at t = 0, 4 and 12 as in figure 4. A batch runs for four units.
fn figure_4(window_units: u64) -> Timeline {
    let delay = DynamicBatching { max_queue_delay_ns: window_units * UNIT, ..DynamicBatching::default() };
    let mut server = Timeline::new([window(3, delay)], |_| 4 * UNIT);
    server.lane_up(0, 0);
    for (req, at) in [(1, 0), (2, 4), (3, 12)] {
        server.arrives(at * UNIT, req);
    }
    server.run_out();
    server
}

#[test]
fn figure_4a_a_window_of_2_batches_nothing() {
    assert_eq!(figure_4(2).launched(), ["2 1:A", "6 2:A", "14 3:A"]);
}

#[test]
fn figure_4b_a_window_of_4_batches_nothing_either_and_delays_every_request() {
    let server = figure_4(4);
    assert_eq!(server.launched(), ["4 1:A", "8 2:A", "16 3:A"]);
    let later = figure_4(2).latencies().iter().map(|latency| latency + 2 * UNIT).collect::<Vec<_>>();
    assert_eq!(server.latencies(), later);
}

#[test]
fn figure_4c_a_window_that_is_long_enough_forms_a_larger_batch() {
    assert_eq!(figure_4(16).launched(), ["12 1,2,3:A"]);
    assert_eq!(figure_4(10).launched(), ["10 1,2:A", "22 3:A"]);
}

#[test]
fn no_more_entries_are_pushed_than_the_stack_may_have() {
    let mut server = figure_10(LazyKnobs { max_depth: 2, ..paper() });
    assert_eq!(server.table_at(5 * UNIT), "1:C 2:B", "request 3 waits");
    assert_eq!(server.table_at(6 * UNIT), "1,2:C 3:A", "the stack has room again");
    assert_eq!(server.table_at(8 * UNIT), "1,2,3:C");
    server.run_out();
    assert_eq!(server.ended(), ["1 completed at 14", "2 completed at 14", "3 completed at 14"]);
}

#[test]
fn rows_are_reserved_at_the_push_so_that_a_merge_always_fits() {
    let mut server = Timeline::new([lazy(paper(), 8, 3)], a_unit);
    server.lane_up(0, 0);
    server.arrives(0, 1);
    server.arrives(UNIT + 1, 2);
    server.arrives(2 * UNIT + 1, 3);
    server.arrives(3 * UNIT + 1, 4);
    assert_eq!(server.table_at(3 * UNIT), "1:C 2:B 3:A");
    assert_eq!(server.table_at(4 * UNIT), "1:C 2,3:B", "three rows are under way, though no task holds more than two");
    server.run_out();
    assert_eq!(server.ended_at().values().map(|end| end.0 / UNIT).collect::<Vec<_>>(), [11, 11, 11, 19]);
}

#[test]
fn a_request_that_does_not_fit_is_neither_parted_nor_overtaken() {
    let mut server = Timeline::new([lazy(paper(), 8, 4)], a_unit);
    server.lane_up(0, 0);
    for (req, rows) in [(1, 2), (2, 1), (3, 2), (4, 1)] {
        server.sends(req - 1, Arrival { rows, ..arrival(req) });
    }
    assert_eq!(server.table_at(UNIT), "1:B 2:A");
    server.run_out();
    assert_eq!(server.ended_at().values().map(|end| end.0 / UNIT).collect::<Vec<_>>(), [9, 9, 17, 17]);
}

/// Four nodes, the second of which may repeat rows.
fn looping(max_batch_rows: u32) -> Knobs {
    let mut knobs = lazy(paper(), 4, max_batch_rows);
    knobs.stages[1].decides = true;
    knobs
}

#[test]
fn rows_that_leave_a_loop_early_become_the_more_advanced_entry_below_the_rest() {
    let mut server = Timeline::new([looping(8)], a_unit);
    server.arrives(0, 1);
    server.arrives(0, 2);
    server.repeats(1, 2, 2);
    server.lane_up(0, 0);
    assert_eq!(server.table_at(UNIT), "1,2:B");
    assert_eq!(server.table_at(2 * UNIT), "1:C 2:B", "request 1 is through, and waits");
    server.arrives(2 * UNIT + 1, 3);
    assert_eq!(server.table_at(3 * UNIT), "1:C 2:B 3:A", "newcomers are still the top");
    assert_eq!(server.table_at(4 * UNIT), "1:C 2,3:B", "the third time of one row and the first of another");
    assert_eq!(server.table_at(5 * UNIT), "1,2,3:C");
    server.run_out();
    assert_eq!(server.ended(), ["1 completed at 7", "2 completed at 7", "3 completed at 7"]);
}

#[test]
fn merging_cascades_and_passes_over_no_entry() {
    let takes = |task: &Task| if task.cell == CellId(1) { 2 * UNIT } else { UNIT };
    let mut server = Timeline::new([looping(8), serial()], takes);
    server.arrives(0, 1);
    server.lane_up(0, 0);
    server.arrives(UNIT + 1, 2);
    server.arrives(UNIT + 2, 4);
    server.repeats(1, 4, 1);
    assert_eq!(server.table_at(3 * UNIT), "1:C 2,4:A");
    assert_eq!(server.table_at(4 * UNIT), "1:C 2,4:B");
    // Request 3 catches up on a second lane, which another model then takes before it can continue.
    server.lane_up(4 * UNIT, 1);
    server.arrives(4 * UNIT, 3);
    server.sends(4 * UNIT, Arrival { model: ModelId(1), ..arrival(9) });
    assert_eq!(server.table_at(4 * UNIT), "1:C 2,4:B 3:A");
    assert_eq!(server.table_at(5 * UNIT), "1:C 2,4:B 3:B", "an entry that runs is not merged with");
    let before = server.counters().merges;
    assert_eq!(server.table_at(6 * UNIT), "1,2:C 3,4:B", "request 2 joins the one below, 4 the one above");
    assert_eq!(server.counters().merges - before, 2);
    server.run_out();
}

#[test]
fn the_earliest_targets_board_and_not_the_first_of_the_queue() {
    let mut server = Timeline::new([lazy(paper(), 1, 2)], a_unit);
    server.arrives(0, 1);
    server.lane_up(0, 0);
    let expiries = [(2, 90), (3, 80), (4, 70), (5, 60), (6, 50), (7, 95)];
    for (req, deadline) in expiries {
        server.sends(req, Arrival { deadline: Some(at(deadline * UNIT)), ..arrival(req) });
    }
    server.run_out();
    assert_eq!(server.launched(), ["0 1:A", "1 5,6:A", "2 3,4:A", "3 2,7:A"]);
}

#[test]
fn what_is_needed_after_a_request_brings_its_target_forward() {
    let mut server = Timeline::new([lazy(paper(), 1, 2)], a_unit);
    server.arrives(0, 1);
    server.lane_up(0, 0);
    for (req, deadline, needed_after) in [(2, 90, 50), (3, 80, 0), (4, 70, 0), (5, 60, 10)] {
        let (deadline, needed_after_ns) = (Some(at(deadline * UNIT)), needed_after * UNIT);
        server.sends(req, Arrival { deadline, needed_after_ns, ..arrival(req) });
    }
    server.run_out();
    assert_eq!(server.launched(), ["0 1:A", "1 2,5:A", "2 3,4:A"]);
}

#[test]
fn a_request_that_leaves_too_little_time_is_late_only_for_the_policy() {
    let ends = |reject_late| {
        let mut server = Timeline::new([lazy(LazyKnobs { reject_late, ..paper() }, 1, 1)], a_unit);
        let asks = Arrival { deadline: Some(at(4 * UNIT)), ..arrival(1) };
        server.sends(0, Arrival { needed_after_ns: 4 * UNIT, ..asks.clone() });
        server.sends(0, Arrival { req: ReqId(2), needed_after_ns: 2 * UNIT, ..asks });
        server.lane_up(0, 0);
        server.run_out();
        (server.ended(), server.counters().slack_misses)
    };
    let run = |ended: [&str; 2]| (ended.map(str::to_owned).to_vec(), 0);
    assert_eq!(ends(false), run(["1 completed at 1", "2 completed at 2"]));
    assert_eq!(ends(true), run(["1 rejected: late at 0", "2 completed at 1"]));
}

/// Returns the batch table at t = 2, where request 2 would be pushed onto request 1, next to a model whose request
/// waits for others and has the target `target`.
fn beside_a_target(knobs: LazyKnobs, target: Ns) -> String {
    let window = WindowKnobs { max_queue_delay_ns: 50 * UNIT, ..WindowKnobs::default() };
    let other = Knobs { objective_ns: Some(target), ..staged(Policy::Window(window), 1, 8, &[(1, UNIT)]) };
    let own = staged(Policy::Lazy(knobs), 8, 8, &[(1, UNIT), (8, UNIT)]);
    let mut server = Timeline::new([own, other], a_unit);
    server.sends(0, Arrival { model: ModelId(1), ..arrival(9) });
    server.arrives(0, 1);
    server.lane_up(0, 0);
    server.arrives(UNIT + UNIT / 2, 2);
    server.table_at(2 * UNIT)
}

#[test]
fn a_push_keeps_the_targets_of_co_located_models() {
    // The other model needs 1.15 units at the 99th percentile, and request 2 needs two to catch up.
    for knobs in [paper(), LazyKnobs::default()] {
        assert_eq!(beside_a_target(knobs.clone(), 5_150), "1:C 2:A");
        assert_eq!(beside_a_target(knobs.clone(), 5_149), "1:C", "{knobs:?}");
    }
}
