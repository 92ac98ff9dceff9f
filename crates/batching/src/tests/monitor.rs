//! BatchMonitor and BatchDispatcher: adaptive batching's figure 1 and algorithm 1, and where they are corrected.

use proptest::prelude::*;

use super::{
    at,
    cost::{costs, lengths},
    same_each_time,
};
use crate::{
    AdaptiveKnobs, Instant, Ns, ShapeClass,
    cost::Costs,
    policy::monitor::{
        Demand, Dispatch, Monitor, Queue, balanced_size, largest_within_objective, paper_size, smallest_that_keeps_up,
    },
};

const US: Ns = 1_000;
const MS: Ns = 1_000_000;
const SECOND: Ns = 1_000_000_000;

/// Returns the instant this many milliseconds after the epoch.
const fn ms(since_epoch_ms: u64) -> Instant {
    at(since_epoch_ms * MS)
}

const KNOBS: AdaptiveKnobs =
    AdaptiveKnobs { headroom: 0.15, average_ns: 32 * MS, max_queue_delay_ns: 100 * MS, paper: false };
const PAPER: AdaptiveKnobs = AdaptiveKnobs { paper: true, ..KNOBS };

/// T(B) = 1 ms + 0.1 ms · B.
fn linear() -> Costs {
    costs(&[&[(1, MS + 100 * US), (64, MS + 6_400 * US)]])
}

struct Model {
    costs: Costs,
    class: ShapeClass,
}

impl Model {
    fn of(costs: Costs) -> Self {
        Self { costs, class: lengths(&[]) }
    }

    fn demand(&self, max_rows: u32, objective_ns: Option<Ns>) -> Demand<'_> {
        Demand { costs: &self.costs, class: &self.class, max_rows, objective_ns, lanes: 1 }
    }
}

/// Reports one row every `gap_ns`, from just after `from` to `to`.
fn steady(monitor: &mut Monitor, from: Instant, to: Instant, gap_ns: Ns) {
    let mut now = from;
    while now + gap_ns <= to {
        now += gap_ns;
        monitor.arrived(now, 1);
    }
}

fn is_near(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= 0.05 * expected
}

#[test]
fn figure_1_a_batch_that_takes_longer_to_collect_than_to_run_is_too_large() {
    let model = Model::of(linear());
    let (batch, run_ns) = (10.0, (2 * MS) as f64);
    let collected_in = |queueing_ns: f64| smallest_that_keeps_up(batch / queueing_ns, &model.demand(64, None));
    assert!(collected_in(run_ns * 1.2) < 10, "queueing longer than computing");
    assert_eq!(collected_in(run_ns), 10, "queueing as long as computing");
    assert!(collected_in(run_ns / 1.2) > 10, "queueing shorter than computing");
}

#[test]
fn a_rate_that_no_batch_keeps_up_with_asks_for_the_smallest_that_does_nearly_best() {
    let model = Model::of(linear());
    let throughput = |rows| model.costs.throughput(rows, &model.class).expect("it is known");
    let size = smallest_that_keeps_up(1.0, &model.demand(64, None));
    assert_eq!(size, 47);
    assert!(throughput(47) >= 0.95 * throughput(64) && throughput(46) < 0.95 * throughput(64));
    let no_gain = Model::of(costs(&[&[(1, MS), (64, 64 * MS)]]));
    assert_eq!(smallest_that_keeps_up(1.0, &no_gain.demand(64, None)), 1, "larger batches make nothing cheaper");
}

#[test]
fn a_rate_is_shared_by_the_lanes() {
    let model = Model::of(linear());
    let sizes = [1, 2].map(|lanes| smallest_that_keeps_up(0.000_006, &Demand { lanes, ..model.demand(64, None) }));
    assert_eq!(sizes, [15, 5]);
}

#[test]
fn one_request_a_second_asks_for_batches_of_one() {
    let model = Model::of(linear());
    assert_eq!(smallest_that_keeps_up(1.0 / SECOND as f64, &model.demand(64, None)), 1);
}

#[test]
fn the_rate_of_steady_arrivals_is_found() {
    let mut monitor = Monitor::new(KNOBS, Instant::ZERO);
    steady(&mut monitor, Instant::ZERO, ms(300), MS / 4);
    assert!(is_near(monitor.rate(ms(300)), 4.0 / MS as f64), "{}", monitor.rate(ms(300)));
}

#[test]
fn the_first_row_counts_for_one_in_the_averaging_time() {
    let mut monitor = Monitor::new(KNOBS, ms(5_000));
    monitor.arrived(ms(5_000), 3);
    assert_eq!(monitor.rate(ms(5_000)), 3.0 / (32 * MS) as f64);
}

#[test]
fn the_rate_falls_while_nothing_arrives() {
    let mut monitor = Monitor::new(KNOBS, Instant::ZERO);
    steady(&mut monitor, Instant::ZERO, ms(100), MS);
    let rates = [100, 132, 200, 1_000].map(|at| monitor.rate(ms(at)));
    assert!(rates.windows(2).all(|pair| pair[1] < pair[0]), "{rates:?}");
    assert!(is_near(rates[1], rates[0] / 2.0), "halved after the averaging time: {rates:?}");
}

#[test]
fn rows_are_counted_once_however_often_the_rate_is_asked_for() {
    let mut asked = Monitor::new(KNOBS, Instant::ZERO);
    let mut left_alone = Monitor::new(KNOBS, Instant::ZERO);
    for step in 0..64 {
        asked.arrived(ms(step), 2);
        left_alone.arrived(ms(step), 2);
        (0..3).for_each(|_| assert!(asked.rate(ms(step)) > 0.0));
    }
    assert_eq!(asked.rate(ms(64)), left_alone.rate(ms(64)));
}

#[test]
fn headroom_asks_for_a_larger_batch_than_equality_would() {
    let model = Model::of(linear());
    let demand = model.demand(64, None);
    let mut with_headroom = Monitor::new(KNOBS, Instant::ZERO);
    let mut at_equality = Monitor::new(AdaptiveKnobs { headroom: 0.0, ..KNOBS }, Instant::ZERO);
    for monitor in [&mut with_headroom, &mut at_equality] {
        steady(monitor, Instant::ZERO, ms(500), MS / 5);
    }
    let rate = at_equality.rate(ms(500));
    let [more, equal] = [&mut with_headroom, &mut at_equality].map(|monitor| monitor.preferred(ms(500), 0, &demand));
    assert_eq!(equal, smallest_that_keeps_up(rate, &demand));
    assert_eq!(more, smallest_that_keeps_up(rate * 1.15, &demand));
    assert!(more > equal, "{more} and {equal}");
}

#[test]
fn the_preferred_size_rises_with_the_rate_at_once() {
    let model = Model::of(linear());
    let mut monitor = Monitor::new(KNOBS, Instant::ZERO);
    assert_eq!(monitor.preferred(Instant::ZERO, 0, &model.demand(64, None)), 1);
    steady(&mut monitor, Instant::ZERO, ms(40), MS / 8);
    assert!(monitor.preferred(ms(40), 0, &model.demand(64, None)) > 8);
}

#[test]
fn the_preferred_size_rises_at_once_when_the_queue_holds_the_next_power_of_two() {
    let model = Model::of(linear());
    let mut monitor = Monitor::new(KNOBS, Instant::ZERO);
    let sizes =
        [1, 2, 3, 4, 63, 64, 500].map(|queued| monitor.preferred(Instant::ZERO, queued, &model.demand(48, None)));
    assert_eq!(sizes, [1, 2, 2, 4, 48, 48, 48]);
}

#[test]
fn the_preferred_size_falls_only_when_less_was_asked_for_during_a_whole_averaging_time() {
    let model = Model::of(linear());
    let demand = model.demand(64, None);
    let mut monitor = Monitor::new(KNOBS, Instant::ZERO);
    steady(&mut monitor, Instant::ZERO, ms(200), MS / 8);
    let high = monitor.preferred(ms(200), 0, &demand);
    let asked_at_210 = smallest_that_keeps_up(monitor.rate(ms(210)) * 1.15, &demand);
    let sizes = [210, 220, 241, 300, 400, 500].map(|at| monitor.preferred(ms(at), 0, &demand));
    assert_eq!(sizes[..3], [high; 3]);
    assert_eq!(sizes[3], asked_at_210, "the most that was asked for meanwhile");
    assert!(sizes[3] < high && sizes[5] < sizes[3], "{high}, then {sizes:?}");
}

#[test]
fn a_lull_that_ends_soon_does_not_lower_the_preferred_size() {
    let model = Model::of(linear());
    let demand = model.demand(64, None);
    let mut monitor = Monitor::new(KNOBS, Instant::ZERO);
    steady(&mut monitor, Instant::ZERO, ms(200), MS / 8);
    let high = monitor.preferred(ms(200), 0, &demand);
    for round in 0..10 {
        let start = ms(200 + round * 40);
        assert_eq!(monitor.preferred(start + 20 * MS, 0, &demand), high, "in lull {round}");
        monitor.arrived(start + 21 * MS, 320);
        assert!(monitor.preferred(start + 39 * MS, 0, &demand) >= high);
    }
}

#[test]
fn an_objective_bounds_the_time_to_collect_and_run_a_batch() {
    let model = Model::of(linear());
    let rate = 1.0 / MS as f64;
    let within = |objective_ns| largest_within_objective(rate, &model.demand(64, Some(objective_ns)));
    assert_eq!(within(MS), 1, "at least one");
    // Ten more arrive in 10 ms, and eleven take 2.1 ms to run.
    let eleven = 12 * MS + 100 * US;
    assert_eq!([within(eleven - US), within(eleven + US)], [10, 11]);
    assert_eq!([within(SECOND), largest_within_objective(rate, &model.demand(64, None))], [64, 64]);
}

#[test]
fn without_arrivals_an_objective_allows_batches_of_one() {
    let model = Model::of(linear());
    assert_eq!(largest_within_objective(0.0, &model.demand(64, Some(SECOND))), 1);
}

#[test]
fn the_objective_bounds_the_preferred_size_while_batches_of_the_bound_can_hold_it() {
    let model = Model::of(linear());
    let mut monitor = Monitor::new(KNOBS, Instant::ZERO);
    steady(&mut monitor, Instant::ZERO, ms(300), MS);
    let demand = model.demand(64, Some(12 * MS));
    let bound = largest_within_objective(monitor.rate(ms(300)), &demand);
    assert!((10..=12).contains(&bound));
    // Eleven rows take 2.1 ms, so 60 of them about as long as the objective.
    assert_eq!(monitor.preferred(ms(300), 50, &demand), bound);
    assert_eq!(monitor.preferred(ms(300), 100, &demand), 64, "they could not be in time");
}

#[test]
fn a_rate_that_batches_of_the_bound_do_not_carry_lifts_it() {
    let model = Model::of(linear());
    // Six arrive a millisecond. Two are collected and run within 1.5 ms, at 1.7 a millisecond; 23 keep up.
    let demand = model.demand(64, Some(MS + 500 * US));
    let mut monitor = Monitor::new(KNOBS, Instant::ZERO);
    steady(&mut monitor, Instant::ZERO, ms(300), MS / 6);
    assert_eq!(largest_within_objective(monitor.rate(ms(300)), &demand), 2);
    let free = monitor.clone().preferred(ms(300), 0, &model.demand(64, None));
    assert_eq!(monitor.preferred(ms(300), 0, &demand), free);
    assert!((20..=26).contains(&free));
}

#[test]
fn while_no_time_is_known_only_the_queue_raises_the_preferred_size_and_an_objective_holds_it_at_one() {
    let model = Model::of(Costs::new(&[&[]], 64, None));
    let mut monitor = Monitor::new(KNOBS, Instant::ZERO);
    steady(&mut monitor, Instant::ZERO, ms(100), MS / 8);
    assert_eq!(monitor.preferred(ms(100), 0, &model.demand(64, None)), 1);
    assert_eq!(monitor.preferred(ms(100), 9, &model.demand(64, None)), 8);
    assert_eq!(monitor.preferred(ms(100), 9, &model.demand(64, Some(SECOND))), 1);
}

#[test]
fn the_balanced_size_of_a_line_is_where_collecting_takes_as_long_as_running() {
    assert_eq!(balanced_size(0.5, 10.0, 1.0), Some(10.0));
    assert_eq!([balanced_size(1.0, 10.0, 1.0), balanced_size(2.0, 10.0, 1.0)], [None; 2]);
}

#[test]
fn as_published_the_search_starts_at_two_and_is_strict() {
    assert_eq!(paper_size(0.0, 10.0, 1.0, 64), 2);
    assert_eq!([paper_size(0.5, 10.0, 1.0, 64), paper_size(0.49, 10.0, 1.0, 64)], [11, 10]);
    assert_eq!([paper_size(1.0, 10.0, 1.0, 64), paper_size(0.5, 1.0, 1.0, 1)], [64, 1]);
}

#[test]
fn as_published_the_rate_is_the_count_of_the_last_whole_second() {
    let model = Model::of(linear());
    let demand = model.demand(64, None);
    let mut monitor = Monitor::new(PAPER, Instant::ZERO);
    assert_eq!(monitor.preferred(Instant::ZERO, 64, &demand), 2);
    for row in 0..5_000 {
        monitor.arrived(at(row * SECOND / 5_000), 1);
    }
    assert_eq!(monitor.preferred(ms(1_000) - 1, 64, &demand), 2, "the window is not over");
    assert_eq!(monitor.rate(ms(1_000) - 1), 0.0);
    assert_eq!(monitor.preferred(ms(1_000), 0, &demand), 11, "5 a millisecond, from B / T(B) of 10");
    assert_eq!(monitor.rate(ms(1_000)), 5_000.0 / SECOND as f64);
    assert_eq!(monitor.preferred(ms(2_000), 0, &demand), 2, "nothing came in the second window");
}

#[test]
fn as_published_a_window_in_which_nothing_came_leaves_no_rate() {
    let mut monitor = Monitor::new(PAPER, Instant::ZERO);
    monitor.arrived(Instant::ZERO, 1_000);
    monitor.arrived(ms(2_000), 1);
    assert_eq!(monitor.rate(ms(2_000)), 0.0);
}

/// Creates a monitor that has seen one row per millisecond up to 200 ms.
fn at_one_a_millisecond(knobs: AdaptiveKnobs) -> Monitor {
    let mut monitor = Monitor::new(knobs, Instant::ZERO);
    steady(&mut monitor, Instant::ZERO, ms(200), MS);
    monitor
}

const NOW: Instant = ms(200);

fn queue(rows: u32, waited_ns: Ns, oldest_slack_ns: Option<Ns>) -> Queue {
    Queue { rows, oldest_arrival: NOW - waited_ns, oldest_slack_ns, lane_is_left: false }
}

#[test]
fn the_preferred_number_of_rows_goes_at_once() {
    let model = Model::of(linear());
    let monitor = at_one_a_millisecond(KNOBS);
    for rows in [8, 20] {
        let dispatch = monitor.dispatch(NOW, &queue(rows, 0, None), 8, false, &model.demand(64, None));
        assert_eq!(dispatch, Dispatch::Go(8));
    }
}

#[test]
fn nothing_goes_from_an_empty_queue() {
    let model = Model::of(linear());
    let monitor = at_one_a_millisecond(KNOBS);
    let dispatch = monitor.dispatch(NOW, &queue(0, 0, Some(0)), 1, true, &model.demand(64, None));
    assert_eq!(dispatch, Dispatch::Until(Instant::NEVER));
}

#[test]
fn a_partial_batch_waits_half_as_long_again_as_the_rest_is_expected_to_take() {
    let model = Model::of(linear());
    let monitor = at_one_a_millisecond(KNOBS);
    let dispatch = |now| monitor.dispatch(now, &queue(4, 3 * MS, None), 8, false, &model.demand(64, None));
    let Dispatch::Until(limit) = dispatch(NOW) else { panic!("it went at once") };
    assert!(is_near(limit.since(NOW) as f64, (6 * MS) as f64), "{}", limit.since(NOW));
    assert_eq!(dispatch(limit - 1), Dispatch::Until(limit), "waiting does not move the limit");
    assert_eq!(dispatch(limit), Dispatch::Go(4));
}

#[test]
fn a_partial_batch_waits_no_longer_than_its_oldest_slack() {
    let model = Model::of(linear());
    let monitor = at_one_a_millisecond(KNOBS);
    let dispatch = |slack| monitor.dispatch(NOW, &queue(4, 3 * MS, Some(slack)), 8, false, &model.demand(64, None));
    assert_eq!([dispatch(MS), dispatch(0)], [Dispatch::Until(NOW + MS), Dispatch::Go(4)]);
}

#[test]
fn a_partial_batch_waits_no_longer_than_the_cap() {
    let model = Model::of(linear());
    let monitor = at_one_a_millisecond(AdaptiveKnobs { max_queue_delay_ns: 4 * MS, ..KNOBS });
    let dispatch = |waited| monitor.dispatch(NOW, &queue(4, waited, None), 8, false, &model.demand(64, None));
    assert_eq!([dispatch(3 * MS), dispatch(4 * MS)], [Dispatch::Until(NOW + MS), Dispatch::Go(4)]);
}

#[test]
fn an_idle_lane_takes_a_partial_batch_that_runs_no_longer_than_the_next_takes_to_come() {
    let monitor = at_one_a_millisecond(KNOBS);
    let dispatch = |run_ns: Ns, lane_is_idle| {
        let model = Model::of(costs(&[&[(1, run_ns), (8, run_ns)]]));
        monitor.dispatch(NOW, &queue(4, 0, None), 8, lane_is_idle, &model.demand(64, None))
    };
    assert_eq!(dispatch(4 * MS, true), Dispatch::Go(4), "five rows come in 5 ms");
    assert!(matches!(dispatch(6 * MS, true), Dispatch::Until(_)));
    assert!(matches!(dispatch(4 * MS, false), Dispatch::Until(_)));
}

#[test]
fn an_idle_lane_takes_a_partial_batch_that_gains_too_little_by_waiting() {
    let monitor = at_one_a_millisecond(KNOBS);
    let dispatch = |model: &Model, lane_is_left| {
        let queue = Queue { lane_is_left, ..queue(4, 0, None) };
        monitor.dispatch(NOW, &queue, 8, true, &model.demand(64, None))
    };
    let flat = Model::of(costs(&[&[(1, 6 * MS), (8, 6 * MS)]]));
    assert!(matches!(dispatch(&flat, false), Dispatch::Until(_)), "the next would wait for the lane and run as long");
    assert_eq!(dispatch(&flat, true), Dispatch::Go(4), "the next has a lane of its own");
    let steep = Model::of(costs(&[&[(1, 2 * MS), (8, 16 * MS)]]));
    assert_eq!(dispatch(&steep, false), Dispatch::Go(4), "five rows take as long as four and one");
}

#[test]
fn an_idle_lane_takes_a_partial_batch_once_the_next_row_is_late() {
    let monitor = at_one_a_millisecond(KNOBS);
    let model = Model::of(costs(&[&[(1, 6 * MS), (5, 8 * MS), (64, 67 * MS)]]));
    let dispatch =
        |now, lane_is_idle| monitor.dispatch(now, &queue(4, 0, None), 32, lane_is_idle, &model.demand(64, None));
    let Dispatch::Until(limit) = dispatch(NOW, true) else { panic!("it went at once") };
    // Four take 7.5 ms, after which the fifth would go alone.
    let waited_ns = limit.since(NOW) as f64;
    let (apart, together) = (4.0 * 7.5e6 + (7.5e6 - waited_ns) + 6e6, 4.0 * (waited_ns + 8e6) + 8e6);
    assert!(is_near(together, 1.1 * apart), "{waited_ns}");
    assert_eq!(dispatch(limit - 1, true), Dispatch::Until(limit), "waiting does not move the limit");
    assert_eq!(dispatch(limit, true), Dispatch::Go(4));
    assert!(matches!(dispatch(limit, false), Dispatch::Until(_)), "no lane would take it");
}

#[test]
fn of_several_lanes_the_next_one_is_free_after_a_part_of_a_run() {
    let monitor = at_one_a_millisecond(KNOBS);
    let model = Model::of(costs(&[&[(1, 8 * MS), (2, 11 * MS), (8, 29 * MS)]]));
    let dispatch = |lanes| {
        let demand = Demand { lanes, ..model.demand(64, None) };
        monitor.dispatch(NOW, &queue(1, 0, None), 4, true, &demand)
    };
    // Alone, the second would wait for 7 ms on one lane, for 3 ms on two.
    assert!(matches!(dispatch(1), Dispatch::Until(_)));
    assert_eq!(dispatch(2), Dispatch::Go(1));
}

#[test]
fn an_idle_lane_takes_what_there_is_while_no_time_is_known() {
    let model = Model::of(Costs::new(&[&[]], 64, None));
    let monitor = at_one_a_millisecond(KNOBS);
    let dispatch = monitor.dispatch(NOW, &queue(4, 0, None), 8, true, &model.demand(64, None));
    assert_eq!(dispatch, Dispatch::Go(4));
}

#[test]
fn as_published_a_partial_batch_goes_at_the_cap_only() {
    let model = Model::of(linear());
    let monitor = at_one_a_millisecond(PAPER);
    let dispatch = |waited| monitor.dispatch(NOW, &queue(4, waited, Some(0)), 8, true, &model.demand(64, None));
    assert_eq!([dispatch(0), dispatch(100 * MS)], [Dispatch::Until(NOW + 100 * MS), Dispatch::Go(4)]);
}

/// Lines 6 to 18 of algorithm 1, literally.
fn algorithm_1(request_count: f64, a: f64, c: f64, max_batch_size: u32) -> u32 {
    let mut batch_size = 2;
    while batch_size <= max_batch_size {
        let batch_time = a + c * f64::from(batch_size);
        let throughput = f64::from(batch_size) / batch_time;
        if request_count < throughput {
            return batch_size;
        }
        batch_size += 1;
    }
    batch_size - 1
}

proptest! {
    #![proptest_config(same_each_time(256))]

    #[test]
    fn the_closed_form_is_algorithm_1(per_mille in 0..3_000_u32, a in 1..500_u32, c in 1..500_u32, max_rows in 1..200_u32) {
        // Prime denominators avoid equality, where rounding would decide.
        let (rate, a, c) = (f64::from(per_mille) / 9_973.0, f64::from(a) / 7.0, f64::from(c) / 101.0);
        prop_assert_eq!(paper_size(rate, a, c, max_rows), algorithm_1(rate, a, c, max_rows));
    }

    #[test]
    fn the_size_keeps_up_with_the_rate_and_no_smaller_one_does(
        steps in proptest::collection::vec((1..12_u32, 0..3_000_u64), 1..8),
        per_second in 0..40_000_u32,
        max_rows in 1..80_u32,
    ) {
        let rising = steps.iter().scan((0, 500), |(rows, took_us), step| {
            *rows += step.0;
            *took_us += step.1;
            Some((*rows, *took_us * US))
        });
        let model = Model::of(costs(&[&rising.collect::<Vec<_>>()]));
        let rate = f64::from(per_second) / SECOND as f64;
        let size = smallest_that_keeps_up(rate, &model.demand(max_rows, None));
        let keeps_up = |rows| model.costs.throughput(rows, &model.class).is_some_and(|throughput| rate <= throughput);
        prop_assert!((1..=max_rows).contains(&size));
        let best = (1..=max_rows).filter_map(|rows| model.costs.throughput(rows, &model.class)).fold(0.0, f64::max);
        let nearly_best = |rows| model.costs.throughput(rows, &model.class).is_some_and(|own| own >= 0.95 * best);
        prop_assert!(keeps_up(size) || nearly_best(size));
        prop_assert!((1..size).all(|smaller| !keeps_up(smaller) && !nearly_best(smaller)));
    }
}
