//! Deferred batch scheduling: a batch starts once it is efficient, or as late as its targets allow, on few lanes;
//! requests that are late wait behind those that are not.

use super::{
    at,
    pool::arrival,
    timeline::{Timeline, UNIT, rows_of, staged},
};
use crate::{
    Arrival, DeferredKnobs, Knobs, LaneId, Ns, Policy, QueueKnobs, QueueingKnobs, ReqId, Task, TimeoutAction,
    WindowKnobs,
};

/// Four rows take hardly longer than one, and eight twice as long as four.
const TIMES: [(u32, Ns); 4] = [(1, 10 * UNIT), (2, 11 * UNIT), (4, 12 * UNIT), (8, 24 * UNIT)];

fn takes(task: &Task) -> Ns {
    match rows_of(task) {
        rows @ 0..=4 => [10, 11, 11, 12][rows.max(1) as usize - 1] * UNIT,
        rows => 3 * UNIT * Ns::from(rows),
    }
}

/// A run is predicted to take the 99th percentile of what was measured, and no run has been seen: 3 deviations of 5 %.
fn certain(ns: Ns) -> Ns {
    ns * 115 / 100
}

fn deferred(knobs: DeferredKnobs, objective: Ns) -> Knobs {
    Knobs { objective_ns: Some(objective * UNIT), ..staged(Policy::Deferred(knobs), 1, 8, &TIMES) }
}

fn without_margin() -> DeferredKnobs {
    DeferredKnobs { margin_ns: Some(0), ..DeferredKnobs::default() }
}

/// A server of `lanes` lanes to which requests 0, 1, … arrive at these times, in units.
fn served(knobs: Knobs, lanes: u16, arrivals: &[Ns]) -> Timeline {
    let mut server = Timeline::new([knobs], takes);
    (0..lanes).for_each(|lane| server.lane_up(0, lane));
    for (req, at) in (0..).zip(arrivals) {
        server.arrives(at * UNIT, req);
    }
    server.run_out();
    server
}

/// Times, lanes and rows of the tasks.
fn launches(server: &Timeline) -> Vec<(Ns, LaneId, u32)> {
    server.launches.iter().map(|(at, task)| (*at, task.lane, rows_of(task))).collect()
}

#[test]
fn a_request_waits_for_as_long_as_one_more_could_join_it_in_time() {
    let start = 100 * UNIT - certain(11 * UNIT);
    let server = served(deferred(without_margin(), 100), 1, &[0]);
    assert_eq!(launches(&server), [(start, LaneId(0), 1)]);
    let server = served(deferred(DeferredKnobs::default(), 100), 1, &[0]);
    assert_eq!(launches(&server), [(start - 10 * UNIT, LaneId(0), 1)], "the default margin is a tenth");
}

#[test]
fn those_that_arrive_meanwhile_share_the_batch() {
    let server = served(deferred(without_margin(), 100), 1, &[0, 50, 80]);
    let start = 100 * UNIT - certain(12 * UNIT);
    assert_eq!(launches(&server), [(start, LaneId(0), 3)]);
    assert!(server.latencies().iter().all(|&latency_ns| latency_ns <= 100 * UNIT), "{:?}", server.latencies());
}

#[test]
fn an_efficient_batch_starts_at_once() {
    let server = served(deferred(without_margin(), 100), 1, &[0, 5, 10, 15]);
    assert_eq!(launches(&server), [(15 * UNIT, LaneId(0), 4)], "eight take as long per row");
}

#[test]
fn a_batch_that_would_take_more_than_half_of_the_objective_starts_at_once() {
    // Two rows are certain to take 12.65.
    let server = served(deferred(without_margin(), 25), 1, &[0]);
    assert_eq!(launches(&server), [(0, LaneId(0), 1)]);
    let server = served(deferred(without_margin(), 26), 1, &[0]);
    assert_eq!(launches(&server), [(26 * UNIT - certain(11 * UNIT), LaneId(0), 1)]);
}

#[test]
fn nothing_waits_without_a_target_or_before_times_are_known_or_if_batches_start_early() {
    let objective_ns = None;
    let server = served(Knobs { objective_ns, ..deferred(without_margin(), 100) }, 1, &[0, 30]);
    assert_eq!(launches(&server), [(0, LaneId(0), 1), (30 * UNIT, LaneId(0), 1)]);
    let cold = Knobs { latencies: None, ..deferred(without_margin(), 100) };
    assert_eq!(launches(&served(cold, 1, &[0])), [(0, LaneId(0), 1)]);
    let eager = DeferredKnobs { eager: true, ..without_margin() };
    assert_eq!(launches(&served(deferred(eager, 100), 1, &[0])), [(0, LaneId(0), 1)]);
}

#[test]
fn a_lane_stays_idle_while_another_is_soon_enough() {
    let arrivals = [0, 0, 0, 0, 1, 1, 1, 1];
    let server = served(deferred(without_margin(), 100), 2, &arrivals);
    assert_eq!(launches(&server), [(0, LaneId(0), 4), (12 * UNIT, LaneId(0), 4)]);
    // The second batch must start by 13.2 at the latest, and by 9.2 where the objective is shorter.
    let start = |objective| launches(&served(deferred(without_margin(), objective), 2, &arrivals))[1];
    assert_eq!(start(35), (12 * UNIT, LaneId(0), 4));
    let until = 1 + 28;
    assert_eq!(start(28), (until * UNIT - certain(15 * UNIT), LaneId(1), 4), "five rows are certain to take 17.25");
}

#[test]
fn a_request_starts_before_its_queue_timeout() {
    let default_queue = QueueKnobs { default_timeout_ns: 50 * UNIT, ..QueueKnobs::default() };
    let queueing = QueueingKnobs { default_queue, ..QueueingKnobs::default() };
    let server = served(Knobs { queueing, ..deferred(DeferredKnobs::default(), 100) }, 1, &[0]);
    assert_eq!(server.ended(), ["0 completed at 55"], "a tenth before it");
}

#[test]
fn several_stages_count_together() {
    let policy = Policy::Deferred(without_margin());
    let knobs = Knobs { objective_ns: Some(100 * UNIT), ..staged(policy, 3, 8, &TIMES) };
    let server = served(knobs, 1, &[0, 10]);
    let start = 100 * UNIT - certain(3 * 11 * UNIT + 3 * UNIT / 2);
    assert_eq!(launches(&server)[0], (start, LaneId(0), 2));
    assert_eq!(server.sizes(), [2, 2, 2]);
}

/// Request 0 arrives at 0 and request 1 at 7; from 8 on, request 1 can be in time and request 0 cannot.
fn one_late(knobs: Knobs, late: Arrival) -> Timeline {
    let mut server = Timeline::new([Knobs { max_batch_rows: 1, ..knobs }], takes);
    server.sends(0, late);
    server.arrives(7 * UNIT, 1);
    server.lane_up(8 * UNIT, 0);
    server.run_out();
    server
}

#[test]
fn a_late_request_runs_after_those_that_can_be_in_time() {
    let ended = |knobs: Knobs| one_late(knobs, arrival(0)).ended();
    assert_eq!(ended(deferred(without_margin(), 20)), ["0 completed at 18", "1 completed at 28"], "it is not late yet");
    let ours = deferred(without_margin(), 17);
    assert_eq!(ended(ours.clone()), ["0 completed at 28", "1 completed at 18"]);
    let refuses = DeferredKnobs { reject_late: true, ..without_margin() };
    assert_eq!(ended(deferred(refuses, 17)), ["0 rejected: late at 8", "1 completed at 18"]);
    let in_order = QueueingKnobs { preserve_ordering: true, ..QueueingKnobs::default() };
    assert_eq!(ended(Knobs { queueing: in_order, ..ours }), ["0 completed at 18", "1 completed at 28"]);
}

#[test]
fn a_late_request_keeps_its_queue_timeout() {
    let late = Arrival { queue_deadline: Some(at(12 * UNIT)), ..arrival(0) };
    let with = |timeout_action| {
        let default_queue = QueueKnobs { timeout_action, allow_timeout_override: true, ..QueueKnobs::default() };
        let queueing = QueueingKnobs { default_queue, ..QueueingKnobs::default() };
        one_late(Knobs { queueing, ..deferred(without_margin(), 17) }, late.clone()).ended()
    };
    assert_eq!(with(TimeoutAction::Reject), ["0 rejected at 12", "1 completed at 18"]);
    assert_eq!(with(TimeoutAction::Delay), ["0 completed at 28", "1 completed at 18"]);
}

#[test]
fn the_first_are_left_behind_where_more_are_in_time_without_them() {
    // At 18 request 0 has 7 left, which is not enough, request 1 has 13, which is enough for itself (11.5) alone, and
    // the four others have 25, enough for all four (13.8).
    let mut server = Timeline::new([deferred(DeferredKnobs { eager: true, ..without_margin() }, 25)], takes);
    for (req, at) in [(0, 0), (1, 6), (2, 18), (3, 18), (4, 18), (5, 18)] {
        server.arrives(at * UNIT, req);
    }
    server.lane_up(18 * UNIT, 0);
    server.run_out();
    let boarded: Vec<Vec<u64>> =
        server.launches.iter().map(|(_, task)| task.rows.iter().map(|span| span.req.0).collect()).collect();
    assert_eq!(boarded, [vec![2, 3, 4, 5], vec![0, 1]]);
}

#[test]
fn late_requests_fill_a_batch_whose_requests_stay_in_time() {
    // At 26 requests 0 and 1 are late. Request 2 has 29 left: four rows are certain to take 13.8, and eight would take
    // 27.6, which is more than half of its time.
    let boarded = |objective| {
        let mut server = Timeline::new([deferred(DeferredKnobs { eager: true, ..without_margin() }, objective)], takes);
        for (req, at) in [(0, 0), (1, 0), (2, 25)] {
            server.arrives(at * UNIT, req);
        }
        server.lane_up((objective - 4) * UNIT, 0);
        server.run_out();
        let reqs = |task: &Task| task.rows.iter().map(|span| span.req.0).collect::<Vec<_>>();
        server.launches.iter().map(|(_, task)| reqs(task)).collect::<Vec<_>>()
    };
    assert_eq!(boarded(30), [vec![2, 0, 1]]);
    assert_eq!(boarded(25), [vec![2], vec![0, 1]], "three rows would take more than half of its time");
}

#[test]
fn where_all_are_late_as_many_are_served_as_without_an_objective() {
    // A run takes 8 and 2 for each row, but the table says that more than two rows save nothing. Two serve fewer
    // requests than arrive, and the largest batches serve more.
    let table = [(1, 10 * UNIT), (2, 12 * UNIT), (16, 96 * UNIT)];
    let run = |task: &Task| (8 + 2 * Ns::from(rows_of(task))) * UNIT;
    let last = |policy: Policy| {
        let knobs = Knobs { objective_ns: Some(20 * UNIT), ..staged(policy, 1, 16, &table) };
        let mut server = Timeline::new([knobs], run);
        server.lane_up(0, 0);
        (0..400).for_each(|req| server.arrives(3 * req * UNIT, req));
        server.run_out();
        server.ended_at().values().map(|(at, _)| *at).max().expect("they end")
    };
    let with = last(Policy::Deferred(DeferredKnobs { eager: true, ..DeferredKnobs::default() }));
    let without = last(Policy::Window(WindowKnobs::default()));
    assert!(with * 10 <= without * 11, "the last ended at {with} ns in place of {without} ns");
}

#[test]
fn late_requests_do_not_wait_for_ever() {
    // A request arrives whenever the last is done, and would be in time if it went first.
    let mut server = Timeline::new([Knobs { max_batch_rows: 1, ..deferred(without_margin(), 21) }], takes);
    server.arrives(0, 0);
    server.lane_up(12 * UNIT, 0);
    (1..40).for_each(|req| server.arrives((2 + 10 * req) * UNIT, req));
    server.run_out();
    let (ended, _) = server.ended_at()[&ReqId(0)];
    assert!(ended <= (21 * 8 + 20) * UNIT, "it ended at {ended}");
}
