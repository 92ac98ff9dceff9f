//! DVABatch as exact tests: figures 3, 8, 10, 11 and 13, step by step and table by table.

use super::{
    at,
    ride::{Ride, chain, flat, latencies, req},
};
use crate::{
    DiversityKnobs, InputDiversity, Knobs, LaneKnobs, LoadDiversity, Ns, OperatorDiversity, Policy, QueueingKnobs,
    Task, WindowKnobs,
};

/// The figures' time unit in nanoseconds.
const T: Ns = 1_000;

fn diversity(knobs: DiversityKnobs) -> Policy {
    Policy::Diversity(knobs)
}

fn window(max_queue_delay_ns: Ns) -> Policy {
    Policy::Window(WindowKnobs { max_queue_delay_ns, ..WindowKnobs::default() })
}

/// Policy II as in the paper.
fn halves() -> Option<OperatorDiversity> {
    Some(OperatorDiversity { paper: true, ..OperatorDiversity::default() })
}

/// A query: name, time of the query, time of its arrival at the core, and length.
type Query = (char, Ns, Ns, u32);

/// Returns latencies in nanoseconds, in the order of the queries. At equal times, arrivals come first, then ends of
/// tasks in launch order, then wakes. Lanes exist from the first arrivals on.
fn latencies_of(lanes: u16, knobs: Knobs, queries: &[Query], took_ns: impl Fn(u16, u32, u64) -> Ns) -> Vec<Ns> {
    let took = |task: &Task| {
        let rows = task.rows.iter().map(|span| span.count).sum();
        took_ns(task.cell.0, rows, u64::from(task.bucket.class.0.first().copied().unwrap_or(1)))
    };
    let mut ride = Ride::new(knobs);
    let mut coming = queries.to_vec();
    coming.sort_by_key(|&(_, _, handed, _)| handed);
    let mut is_up = false;
    for _ in 0..1_000 {
        let arrival = coming.first().map(|&(_, _, handed, _)| at(handed));
        let ends = ride.running.iter().map(|(launched, task)| (*launched + took(task), task.id.0)).min();
        let due = [arrival, ends.map(|(end, _)| end), ride.wake].into_iter().flatten().min();
        let Some(due) = due else { break };
        if arrival == Some(due) {
            let (name, _, _, length) = coming.remove(0);
            ride.now = due;
            ride.arrive_with(name, |request| request.lengths = [length].into_iter().collect());
            if !is_up && coming.first().is_none_or(|&(_, _, handed, _)| at(handed) > due) {
                ride.lanes_up(lanes);
                is_up = true;
            }
        } else if let Some((_, task)) = ends.filter(|&(end, _)| end == due) {
            ride.now = due;
            ride.completes(task);
        } else {
            ride.pass_to(due);
        }
    }
    assert_eq!(ride.ends.len(), queries.len(), "every query has ended");
    assert!(ride.is_idle(), "all leases are back");
    let ended = |name| ride.ends.iter().find(|&&(ended, ..)| ended == req(name)).map(|&(_, at, _)| at);
    queries.iter().map(|&(name, asked, ..)| ended(name).unwrap_or_default().as_ns() - asked).collect()
}

fn mean(latencies: &[Ns]) -> f64 {
    latencies.iter().sum::<Ns>() as f64 / latencies.len() as f64 / T as f64
}

/// Runs queries under a policy over four operators, with measured latencies.
fn better_than_window(lanes: u16, better: Knobs, queries: &[Query], took_ns: fn(u16, u32, u64) -> Ns) -> Vec<Ns> {
    let better = Knobs { latencies: latencies(4, &[1, 2, 3, 4], &[2, 4], took_ns), ..better };
    latencies_of(lanes, better, queries, took_ns)
}

const AT_ONCE: [Query; 4] = [('a', 0, 0, 4), ('b', 0, 0, 4), ('c', 0, 0, 4), ('d', 0, 0, 4)];

/// Case I: three short queries and a long one.
const SHORT_AND_LONG: [Query; 4] = [('a', 0, 0, 2), ('b', 0, 0, 2), ('c', 0, 0, 2), ('d', 0, 0, 4)];

/// Each operator takes T on the padded length of the long query, and half of it on that of the short ones.
fn by_length(_: u16, _: u32, length: u64) -> Ns {
    T * length / 4
}

#[test]
fn figure_3_case_1_with_a_window_the_short_queries_wait_for_the_long_one() {
    // The paper's window pads whatever waits.
    let queueing = QueueingKnobs { bucket_width: Some(0), ..QueueingKnobs::default() };
    let latencies = latencies_of(2, Knobs { queueing, ..chain(4, 4, window(4 * T)) }, &SHORT_AND_LONG, by_length);
    assert_eq!(latencies, [4 * T; 4]);
}

#[test]
fn figure_3_case_1_short_queries_return_earlier_in_a_batch_of_their_own() {
    let input = InputDiversity { bounds: vec![2, 4], window_ns: Some(0), ..InputDiversity::default() };
    let policy = diversity(DiversityKnobs { input: Some(input), ..DiversityKnobs::default() });
    let latencies = better_than_window(2, chain(4, 4, policy), &SHORT_AND_LONG, by_length);
    assert_eq!(latencies, [2 * T, 2 * T, 2 * T, 4 * T]);
    assert_eq!(mean(&latencies), 2.5);
}

/// Case II: operator A takes T for up to four queries; B, C and D take T for four, and a quarter of T for one.
fn a_prefers_four(stage: u16, rows: u32, _: u64) -> Ns {
    if stage == 0 { T } else { T * u64::from(rows) / 4 }
}

#[test]
fn figure_3_case_2_with_a_window_all_queries_return_with_the_last() {
    let latencies = latencies_of(1, chain(4, 4, window(4 * T)), &AT_ONCE, a_prefers_four);
    assert_eq!(latencies, [4 * T; 4]);
}

#[test]
fn figure_3_case_2_split_into_four_after_operator_a_the_queries_return_one_by_one() {
    let policy = diversity(DiversityKnobs { operator: halves(), ..DiversityKnobs::default() });
    let latencies = better_than_window(1, chain(4, 4, policy), &AT_ONCE, a_prefers_four);
    assert_eq!(latencies, [T + 3 * T / 4, T + 6 * T / 4, T + 9 * T / 4, 4 * T]);
    assert_eq!(mean(&latencies), 2.875);
}

#[test]
fn figure_3_case_2_the_search_for_cuts_finds_the_same_as_the_halves() {
    let operator = Some(OperatorDiversity::default());
    let policy = diversity(DiversityKnobs { operator, ..DiversityKnobs::default() });
    let latencies = better_than_window(1, chain(4, 4, policy), &AT_ONCE, a_prefers_four);
    assert_eq!(mean(&latencies), 2.875);
}

/// Like [`a_prefers_four`], but A is worth sharing, and each task of B, C and D has a boundary cost.
fn with_boundaries(boundary_ns: Ns) -> impl Fn(u16, u32, u64) -> Ns + Copy {
    move |stage, rows, _| if stage == 0 { 40 * T } else { T * Ns::from(rows) + boundary_ns }
}

fn operator_latencies(boundary_ns: Ns) -> Vec<Ns> {
    let took_ns = with_boundaries(boundary_ns);
    let operator = Some(OperatorDiversity::default());
    let policy = diversity(DiversityKnobs { operator, ..DiversityKnobs::default() });
    let knobs = Knobs { latencies: latencies(4, &[1, 2, 3, 4], &[2, 4], took_ns), ..chain(4, 4, policy) };
    latencies_of(1, knobs, &AT_ONCE, took_ns)
}

#[test]
fn boundaries_that_cost_less_than_a_hundredth_of_the_rest_do_not_keep_it_whole() {
    let part_ns = 3 * (T + 2);
    assert_eq!(operator_latencies(2), [1, 2, 3, 4].map(|parts| 40 * T + parts * part_ns), "0.15 % in four parts");
    assert_eq!(operator_latencies(50), [40 * T + 3 * (4 * T + 50); 4], "1.2 % even in two parts");
}

/// Case III: a window of 4 T, after which a query starts alone; three more arrive when it has run operator A.
const ALONE_AND_LATER: [Query; 4] =
    [('a', 0, 0, 4), ('b', 5 * T, 5 * T, 4), ('c', 5 * T, 5 * T, 4), ('d', 5 * T, 5 * T, 4)];

/// The same, if the serving system above holds the first query for its window, as Triton does for DVABatch.
const WINDOW_ABOVE: [Query; 4] =
    [('a', 0, 4 * T, 4), ('b', 5 * T, 5 * T, 4), ('c', 5 * T, 5 * T, 4), ('d', 5 * T, 5 * T, 4)];

/// All operators prefer four queries.
fn all_prefer_four(_: u16, _: u32, _: u64) -> Ns {
    T
}

/// Batching saves nothing.
fn all_prefer_one(_: u16, rows: u32, _: u64) -> Ns {
    T * u64::from(rows)
}

fn load() -> Policy {
    diversity(DiversityKnobs { load: Some(LoadDiversity::default()), ..DiversityKnobs::default() })
}

#[test]
fn figure_3_case_3_with_a_window_the_later_queries_wait_for_the_next_batch() {
    let latencies = latencies_of(1, chain(4, 4, window(4 * T)), &ALONE_AND_LATER, all_prefer_four);
    assert_eq!(latencies, [8 * T; 4]);
}

#[test]
fn figure_3_case_3_the_later_queries_catch_up_after_operator_a() {
    let latencies = better_than_window(1, chain(4, 4, load()), &WINDOW_ABOVE, all_prefer_four);
    assert_eq!(latencies, [9 * T, 4 * T, 4 * T, 4 * T]);
    assert_eq!(mean(&latencies), 5.25);
}

#[test]
fn a_stretch_that_would_only_delay_is_not_made() {
    let latencies = better_than_window(1, chain(4, 4, load()), &WINDOW_ABOVE, all_prefer_one);
    // The first query runs its four operators alone, then the other three run theirs.
    assert_eq!(latencies, [8 * T, 15 * T, 15 * T, 15 * T]);
}

#[test]
fn the_paper_makes_a_stretch_that_only_delays() {
    let load = Some(LoadDiversity { paper: true, ..LoadDiversity::default() });
    let policy = diversity(DiversityKnobs { load, ..DiversityKnobs::default() });
    let latencies = better_than_window(1, chain(4, 4, policy), &WINDOW_ABOVE, all_prefer_one);
    assert_eq!(latencies, [20 * T, 15 * T, 15 * T, 15 * T], "the first waits, and nobody is earlier for it");
}

// ## Figure 8

/// Four stages. The first two are short, so that catching up pays off; the fourth prefers batches of two.
fn figure_8(stage: u16, rows: u32, _: u64) -> Ns {
    match (stage, rows) {
        (0 | 1, _) => 100,
        (2, _) => 1_000,
        (_, 1) => 500,
        (_, 2) => 600,
        (..) => 1_200,
    }
}

#[test]
fn figure_8_new_stretch_and_split_table_by_table() {
    let load = Some(LoadDiversity { paper: true, ..LoadDiversity::default() });
    let knobs = DiversityKnobs { operator: halves(), load, input: None };
    let knobs = Knobs { latencies: latencies(4, &[1, 2, 4], &[1], figure_8), ..chain(4, 4, diversity(knobs)) };
    let mut ride = Ride::new(knobs);

    // (a) new: two queries. Executor 1 takes {batch 0, start 0, num 2}.
    ride.arrive("ab");
    assert_eq!(ride.lanes_up(1), "#0 stage 0: a b");
    assert_eq!(ride.table(), "batch 0 bs 2 passed 0 0 0 0");
    assert_eq!(ride.works_on(), "0: {0, 0, 2}");
    assert_eq!(ride.done(0), "#1 stage 1: a b");
    assert_eq!(ride.table(), "batch 0 bs 2 passed 2 0 0 0");
    assert_eq!(ride.works_on(), "1: {0, 0, 2}");

    // (b) stretch by two while executor 2 is working: the newcomers start after the two, at the first stage.
    assert_eq!(ride.arrive("cd"), "");
    assert_eq!(ride.lane_up(1, LaneKnobs::default()), "#2 stage 0: c d");
    assert_eq!(ride.table(), "batch 0 bs 4 passed 2 0 0 0");
    assert_eq!(ride.works_on(), "1: {0, 0, 2} 0: {0, 2, 2}");
    // Executor 2 updates the status map, but pushes nothing into the third queue.
    assert_eq!(ride.done(1), "");
    assert_eq!(ride.table(), "batch 0 bs 4 passed 2 2 0 0");
    assert_eq!(ride.queues(), "");
    assert_eq!(ride.done(2), "#3 stage 1: c d");
    assert_eq!(ride.table(), "batch 0 bs 4 passed 4 2 0 0");
    assert_eq!(ride.works_on(), "1: {0, 2, 2}");
    // They have caught up: one item of four.
    assert_eq!(ride.done(3), "#4 stage 2: a b c d");
    assert_eq!(ride.table(), "batch 0 bs 4 passed 4 4 0 0");
    assert_eq!(ride.completed(), [4, 4, 0, 0]);
    assert_eq!(ride.works_on(), "2: {0, 0, 4}");

    // (c) split into two after the third stage.
    ride.pass_to(ride.now + figure_8(2, 4, 1));
    assert_eq!(ride.done(4), "#5 stage 3: a b");
    assert_eq!(ride.table(), "batch 0 bs 2 passed 2 2 2 0; batch 1 bs 2 passed 2 2 2 0");
    assert_eq!(ride.works_on(), "3: {0, 0, 2}");
    assert_eq!(ride.queues(), "3: {1, 2, 2}", "the second half waits for the first");
    assert_eq!(ride.done(5), "a completed; b completed; #6 stage 3: c d");
    assert_eq!(ride.done(6), "c completed; d completed");
    let counters = ride.counters();
    assert_eq!((counters.stretches, counters.merges, counters.splits), (1, 1, 1));
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
}

// ## Figures 10 and 11

#[test]
fn figure_10_with_one_pair_the_executors_work_in_the_serial_manner() {
    let mut ride = Ride::on(3, Knobs { buffer_pairs: 1, ..chain(3, 4, window(0)) });
    assert_eq!(ride.executors(), "active active active");
    assert_eq!(ride.arrive("a"), "#0 stage 0: a");
    assert_eq!((ride.executors(), ride.buffer_states()), said("working inactive active", "in-writing | available"));
    assert_eq!(ride.arrive("b"), "", "a batch is between admission and the last stage");
    assert_eq!(ride.done(0), "#1 stage 1: a");
    assert_eq!((ride.executors(), ride.buffer_states()), said("inactive working active", "in-reading | in-writing"));
    // In the figure's fault, executor i - 1 was active while executor i + 1 was working.
    assert_eq!(ride.done(1), "#2 stage 2: a");
    assert_eq!((ride.executors(), ride.buffer_states()), said("inactive inactive working", "invalid | in-reading"));
    assert_eq!(ride.done(2), "a completed; #3 stage 0: b");
    ride.run_out();
    assert_eq!((ride.executors(), ride.buffer_states()), said("active active active", "available | available"));
}

#[test]
fn figure_11_with_two_pairs_executors_overlap_and_check_the_pair_of_their_item() {
    let mut ride = Ride::on(3, chain(3, 1, window(0)));
    assert_eq!(ride.arrive("a"), "#0 stage 0: a");
    let buffers = "in-writing available | available available";
    assert_eq!((ride.executors(), ride.buffer_states()), said("working active active", buffers));
    // The first executor becomes active again with the second pair, and the next one has another pair as well.
    assert_eq!(ride.done(0), "#1 stage 1: a");
    let buffers = "in-reading available | in-writing available";
    assert_eq!((ride.executors(), ride.buffer_states()), said("active working active", buffers));
    assert_eq!(ride.arrive("b"), "#2 stage 0: b");
    let buffers = "in-reading in-writing | in-writing available";
    assert_eq!((ride.executors(), ride.buffer_states()), said("working working active", buffers));
    assert_eq!(ride.done(1), "#3 stage 2: a");
    let buffers = "available in-writing | in-reading available";
    assert_eq!((ride.executors(), ride.buffer_states()), said("working active working", buffers));
    assert_eq!(ride.arrive("c"), "#4 stage 0: c");
    assert_eq!(ride.done(2), "#5 stage 1: b");
    let buffers = "in-writing in-reading | in-reading in-writing";
    assert_eq!((ride.executors(), ride.buffer_states()), said("working working working", buffers));
    // Both output buffers of the second executor are in use: it has the third item and waits for its pair.
    assert_eq!(ride.done(4), "");
    assert_eq!(ride.done(5), "#6 stage 2: b");
    let buffers = "invalid invalid | in-reading in-reading";
    assert_eq!((ride.executors(), ride.buffer_states()), said("inactive checking working", buffers));
    assert_eq!(ride.done(3), "a completed; #7 stage 1: c");
    let buffers = "in-reading available | in-writing in-reading";
    assert_eq!((ride.executors(), ride.buffer_states()), said("active working working", buffers));
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
}

#[test]
fn figure_10_stretched_rows_run_on_the_pairs_of_their_batch() {
    let early = LoadDiversity { max_stage: Some(2), max_age_ns: Some(100 * T), paper: true };
    let policy = diversity(DiversityKnobs { load: Some(early), ..DiversityKnobs::default() });
    let mut ride = Ride::on(2, flat(4, 4, policy));
    ride.arrive("a");
    ride.done(0);
    ride.done(1);
    assert_eq!(ride.done(2), "#3 stage 3: a");
    assert_eq!(ride.buffers(3), "reads 2.0");
    assert_eq!(ride.arrive("b"), "#4 stage 0: b", "the first has come too far to be joined");
    assert_eq!(ride.buffers(4), "writes 0.0");
    assert_eq!(ride.done(4), "#5 stage 1: b");
    assert_eq!(ride.done(3), "a completed");
    assert_eq!(ride.arrive_with('c', |request| request.rows = 2), "#6 stage 0: c[0..2]");
    assert_eq!(ride.buffers(6), "writes 0.0", "not the pair that the first executor would take next");
    assert_eq!(ride.buffers(5), "reads 0.0 writes 1.0");
    assert_eq!(ride.done(5), "");
    assert_eq!(ride.done(6), "#7 stage 1: c[0..2]");
    assert_eq!(ride.buffers(7), "reads 0.0 writes 1.0", "where the older row waits");
    assert_eq!(ride.done(7), "#8 stage 2: b c[0..2]");
    assert_eq!(ride.buffers(8), "reads 1.0 writes 2.0");
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
}

fn said(executors: &str, buffers: &str) -> (String, String) {
    (executors.to_owned(), buffers.to_owned())
}

// ## Figure 13

/// Runs 64 rows through two stages, the second of which takes `whole_ns` for 64 rows and 1,000 ns for 32.
fn after_stage_1(whole_ns: Ns) -> String {
    let rest = move |stage, rows, _| match (stage, rows) {
        (0, _) => 100,
        (_, 16) => 900,
        (_, 32) => 1_000,
        (..) => whole_ns,
    };
    let policy = diversity(DiversityKnobs { operator: halves(), ..DiversityKnobs::default() });
    let knobs = Knobs { latencies: latencies(2, &[16, 32, 64], &[1], rest), ..chain(2, 64, policy) };
    let mut ride = Ride::new(knobs);
    ('a'..='d').for_each(|name| drop(ride.arrive_with(name, |request| request.rows = 16)));
    ride.lanes_up(1);
    ride.done(0);
    let queued = format!("{} {}", ride.works_on(), ride.queues());
    ride.run_out();
    assert!(ride.is_idle(), "all leases are back");
    queued.trim_end().to_owned()
}

#[test]
fn figure_13_a_batch_of_64_splits_into_halves_where_its_rest_takes_twice_as_long() {
    assert_eq!(after_stage_1(2_000), "1: {0, 0, 32} 1: {1, 32, 32}");
}

#[test]
fn figure_13_a_batch_of_64_stays_whole_where_its_rest_takes_less() {
    assert_eq!(after_stage_1(1_999), "1: {0, 0, 64}");
}

// ## Groups within a batch

/// Runs three short queries and one twice as long on `lanes` lanes; a run takes `overhead`, and T per element. Returns
/// latencies from the end of the window.
fn in_groups(lanes: u16, overhead: Ns, paper: bool) -> Vec<Ns> {
    let took = |_: u16, rows: u32, length: u64| overhead + T * u64::from(rows) * length;
    let window_ns = 10 * T;
    let bounds = if paper { vec![2, 4] } else { Vec::new() };
    let input = InputDiversity { bounds, window_ns: Some(window_ns), paper, ..InputDiversity::default() };
    let policy = diversity(DiversityKnobs { input: Some(input), ..DiversityKnobs::default() });
    let table = latencies(1, &[1, 2, 3, 4], &[2, 4], took);
    let ended = latencies_of(lanes, Knobs { latencies: table, ..chain(1, 8, policy) }, &SHORT_AND_LONG, took);
    ended.into_iter().map(|ended| ended - window_ns).collect()
}

#[test]
fn groups_share_a_batch_where_a_run_of_its_own_costs_more_than_padding() {
    // The sums of completion times: 3 · 16 T + (16 + 14) T against 4 · 26 T, and 3 · 56 T + (56 + 54) T against 4 · 66
    // T.
    assert_eq!(in_groups(1, 10 * T, false), [16 * T, 16 * T, 16 * T, 30 * T]);
    assert_eq!(in_groups(1, 50 * T, false), [66 * T; 4]);
}

#[test]
fn groups_stay_apart_where_each_has_a_lane_at_once() {
    assert_eq!(in_groups(2, 50 * T, false), [56 * T, 56 * T, 56 * T, 54 * T]);
}

#[test]
fn the_papers_groups_never_share_a_batch() {
    assert_eq!(in_groups(1, 50 * T, true), [56 * T, 56 * T, 56 * T, 110 * T]);
}

#[test]
fn guests_are_of_the_same_level_and_fit_into_the_batch() {
    let policy = diversity(DiversityKnobs { input: Some(InputDiversity::default()), ..DiversityKnobs::default() });
    let table = latencies(1, &[1, 3], &[2, 3, 4], |_, _, _| T);
    let queueing = QueueingKnobs { priority_levels: 2, ..QueueingKnobs::default() };
    let mut ride = Ride::new(Knobs { latencies: table, queueing, ..chain(1, 3, policy) });
    for (name, length, priority) in [('a', 2, 1), ('b', 4, 2), ('c', 3, 1), ('d', 3, 1), ('e', 3, 1)] {
        ride.arrive_with(name, |request| {
            request.lengths = [length].into_iter().collect();
            request.priority = priority;
        });
    }
    assert_eq!(ride.lanes_up(1), "#0 stage 0: a c d");
    assert_eq!(ride.done(0), "a completed; c completed; d completed; #1 stage 0: e");
}

// ## Parts that board one after another

/// Four queries at once on one lane and one stage.
fn at_the_entry(operator: OperatorDiversity, took: fn(u16, u32, u64) -> Ns) -> Vec<Ns> {
    let policy = diversity(DiversityKnobs { operator: Some(operator), ..DiversityKnobs::default() });
    let table = latencies(1, &[1, 2, 3, 4], &[4], took);
    latencies_of(1, Knobs { latencies: table, ..chain(1, 4, policy) }, &AT_ONCE, took)
}

#[test]
fn where_batching_gains_nothing_requests_board_one_by_one() {
    assert_eq!(at_the_entry(OperatorDiversity::default(), all_prefer_one), [T, 2 * T, 3 * T, 4 * T]);
}

/// In a batch of four a query takes 3.25 T, in one of two 3.5 T, alone 4 T.
fn gains_little(_: u16, rows: u32, _: u64) -> Ns {
    T * (1 + 3 * u64::from(rows))
}

/// Sends `queries` queries at once, four of which fit in a batch.
fn at_once(queries: u32) -> Vec<Ns> {
    let policy =
        diversity(DiversityKnobs { operator: Some(OperatorDiversity::default()), ..DiversityKnobs::default() });
    let table = latencies(1, &[1, 2, 3, 4], &[4], gains_little);
    let names = (b'a'..).take(queries as usize).map(char::from);
    let queries: Vec<Query> = names.map(|name| (name, 0, 0, 4)).collect();
    latencies_of(1, Knobs { latencies: table, ..chain(1, 4, policy) }, &queries, gains_little)
}

#[test]
fn where_nobody_else_waits_parts_may_take_a_little_longer_together() {
    // The sums of completion times: 40 T, 42 T in pairs, 52 T in one batch; one by one also 40 T, but the last ends at
    // 16 T.
    assert_eq!(at_once(4), [7, 7, 11, 15].map(|after| after * T));
}

#[test]
fn parts_delay_those_who_wait_behind_them_too() {
    // With four waiting: 42 + 4 · 14 T in pairs, 40 + 4 · 16 T one by one, 52 + 4 · 13 T in one batch. With eight: 154,
    // 168, 156 T. With twelve: 210, 232, 208 T.
    let boards_first = |queries| at_once(queries).iter().filter(|&&ended| ended == at_once(queries)[0]).count();
    assert_eq!([8, 12, 16].map(boards_first), [2, 2, 4]);
}

#[test]
fn at_a_high_load_parts_delay_those_who_will_come() {
    let slowly = |stage: u16, rows: u32, length: u64| 10_000 * gains_little(stage, rows, length);
    let policy =
        diversity(DiversityKnobs { operator: Some(OperatorDiversity::default()), ..DiversityKnobs::default() });
    // One query every 42 ms; in batches of four the device could run one every 32.5 ms, so the load is 0.77. Then four
    // arrive together, while the last of these is running.
    let period = 42_000 * T;
    let mut queries: Vec<Query> =
        (0..100).map(|at| (char::from(b'a' + at), Ns::from(at) * period, Ns::from(at) * period, 4)).collect();
    let last = 99 * period + 1_000 * T;
    queries.extend((b'a' + 100..b'a' + 104).map(|name| (char::from(name), last, last, 4)));
    let table = latencies(1, &[1, 2, 3, 4], &[4], slowly);
    let ended = latencies_of(1, Knobs { latencies: table, ..chain(1, 4, policy) }, &queries, slowly);
    assert_eq!(ended[99], 40_000 * T, "alone");
    // With fourteen expected to arrive: 234 in one batch, 238 in pairs.
    assert_eq!(ended[100..], [(39_000 + 130_000) * T; 4]);
}

#[test]
fn what_will_be_split_on_the_way_boards_together() {
    let policy =
        diversity(DiversityKnobs { operator: Some(OperatorDiversity::default()), ..DiversityKnobs::default() });
    let took = |stage: u16, rows: u32, _: u64| if stage == 0 { T } else { T * u64::from(rows * rows) };
    let table = latencies(2, &[1, 2, 3, 4], &[4], took);
    let ended = latencies_of(1, Knobs { latencies: table, ..chain(2, 4, policy) }, &AT_ONCE, took);
    assert_eq!(ended, [2 * T, 3 * T, 4 * T, 5 * T], "one by one the last would end at 8 T");
}

#[test]
fn the_paper_splits_only_between_stages() {
    let paper = OperatorDiversity { paper: true, ..OperatorDiversity::default() };
    assert_eq!(at_the_entry(paper, all_prefer_one), [4 * T; 4]);
}
