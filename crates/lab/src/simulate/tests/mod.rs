//! The event loop, compared with results worked out by hand.

mod cards;
mod cells;
mod devices;

use paternoster_batching::{
    CostPoint, CostTable, Instant, Knobs, LaneKnobs, LazyKnobs, Ns, Policy, Predictor, WindowKnobs,
};

use super::*;
use crate::workload::{Arrivals, LengthDistribution};

/// Creates a model whose stages take these times for one row and for two.
fn model(stages: &[(Ns, Ns)]) -> ModelTable {
    let points =
        |&(one, two): &(Ns, Ns)| [(1, one), (2, two)].map(|(rows, took_ns)| CostPoint { rows, length: 1, took_ns });
    let latencies = CostTable { stages: stages.iter().map(|stage| points(stage).to_vec()).collect() };
    ModelTable { name: "m".to_owned(), max_batch_rows: 2, latencies, steps: None, cells: None, scatter: Vec::new() }
}

fn setup(table: ModelTable, policy: Policy) -> Setup {
    let knobs = Knobs {
        max_batch_rows: table.max_batch_rows,
        max_in_flight: 8,
        objective_ns: Some(150),
        latencies: Some(table.latencies.clone()),
        policy,
        ..Knobs::default()
    };
    let models = vec![Served { table, knobs }];
    Setup {
        models,
        devices: 1,
        lost: Vec::new(),
        lanes: 1,
        ahead: LaneKnobs::default(),
        idle_watts: 10.0,
        busy_watts: 110.0,
        after_idle_ns: 0,
        front: Vec::new(),
        replay: None,
        warm_up: 0,
        period: 0,
    }
}

fn window() -> Policy {
    Policy::Window(WindowKnobs::default())
}

fn offered(at: Ns, length: u32) -> Offered {
    Offered { at: Instant::from_ns(at), length, ..Offered::default() }
}

fn at(times: &[Ns]) -> impl Iterator<Item = Offered> {
    times.iter().map(|&at| offered(at, 1))
}

/// Returns the sum of all latencies, which is exact because the mean is.
fn sum_ns(figures: &ModelFigures) -> Ns {
    (figures.latencies.mean_ns() * figures.latencies.count() as f64).round() as Ns
}

#[test]
fn two_requests_run_one_after_the_other_under_serial() {
    let setup = setup(model(&[(100, 120)]), Policy::Serial);
    let figures = run(&setup, 1, at(&[0, 10]));
    let all = figures.all();
    assert_eq!((all.offered, all.completed, all.in_time), (2, 2, 1), "the second takes 190 ns and misses 150");
    assert_eq!(sum_ns(&all), 100 + 190);
    let [queued, computing] = [&all.queued, &all.computing].map(|part| (part.mean_ns() * 2.0) as Ns);
    assert_eq!((queued, computing), (90, 200));
    assert_eq!((figures.busy_ns, figures.span_ns), (200, 200));
    assert_eq!((all.missed(), all.mean_batch(), figures.utilisation()), (0.5, 1.0, 1.0));
}

#[test]
fn two_requests_that_wait_share_a_batch_under_window() {
    let figures = run(&setup(model(&[(100, 120)]), window()), 1, at(&[0, 10, 20]));
    let all = figures.all();
    assert_eq!(sum_ns(&all), 100 + 210 + 200, "the second and the third run from 100 to 220");
    assert_eq!((all.counters.tasks_launched, all.counters.rows_launched), (2, 3));
    assert_eq!(all.mean_batch(), 1.5);
}

#[test]
fn a_task_takes_as_long_as_its_bucket() {
    let mut setup = setup(model(&[(100, 120)]), Policy::Serial);
    let exact_ns = sum_ns(&run(&setup, 1, at(&[0])).all());
    setup.models[0].knobs.stages[0].buckets = [2].into();
    assert_eq!((exact_ns, sum_ns(&run(&setup, 1, at(&[0])).all())), (100, 120), "alone in a bucket of two rows");
}

#[test]
fn a_partial_batch_waits_for_its_delay_and_no_longer() {
    let policy = Policy::Window(WindowKnobs { max_queue_delay_ns: 50, ..WindowKnobs::default() });
    let figures = run(&setup(model(&[(100, 120)]), policy), 1, at(&[0]));
    assert_eq!(sum_ns(&figures.all()), 150);
}

#[test]
fn stages_run_one_after_the_other_and_side_by_side_on_two_lanes() {
    let mut setup = setup(model(&[(100, 100), (60, 60)]), window());
    setup.models[0].knobs.max_batch_rows = 1;
    assert_eq!(sum_ns(&run(&setup, 1, at(&[0, 0])).all()), 160 + 320);
    setup.lanes = 2;
    assert_eq!(sum_ns(&run(&setup, 1, at(&[0, 0])).all()), 160 + 160);
    setup.lanes = 1;
    setup.devices = 2;
    assert_eq!(sum_ns(&run(&setup, 1, at(&[0, 0, 0])).all()), 160 + 160 + 320, "the third goes to the first device");
}

#[test]
fn a_task_takes_longer_on_a_lane_that_had_nothing_to_do() {
    let setup = Setup { after_idle_ns: 30, ..setup(model(&[(100, 120)]), Policy::Serial) };
    let figures = run(&setup, 1, at(&[0, 10, 500]));
    assert_eq!(sum_ns(&figures.all()), 130 + (230 - 10) + 130, "the second follows the first at once");
    assert_eq!(figures.busy_ns, 130 + 100 + 130);
}

#[test]
fn tasks_scatter_by_the_quantiles_of_their_table() {
    let table = ModelTable { scatter: vec![0.5, 1.0, 1.5, 4.0], ..model(&[(300, 300)]) };
    let mut setup = setup(table, Policy::Serial);
    setup.models[0].knobs.latencies = None;
    // Each of 4,000 requests finds the lane free.
    let far_apart: Vec<Ns> = (0..4_000).map(|number| number * 2_000).collect();
    let figures = |seed| run(&setup, seed, at(&far_apart)).all();
    let (one, two) = (figures(1), figures(2));
    assert_eq!(sum_ns(&one), sum_ns(&figures(1)));
    assert_ne!(sum_ns(&one), sum_ns(&two), "the seed decides");
    let quantile = |part: f64| one.latencies.quantile_ns(part);
    assert!((140..=175).contains(&quantile(0.01)), "{}", quantile(0.01));
    assert!((350..=400).contains(&quantile(0.5)), "half way between 1.0 and 1.5: {}", quantile(0.5));
    assert!((1_100..=1_200).contains(&quantile(0.99)), "{}", quantile(0.99));
    setup.models[0].table.scatter = vec![2.0];
    assert_eq!(sum_ns(&run(&setup, 1, at(&[0])).all()), 600);
}

#[test]
fn requests_spend_time_on_the_way_to_the_core_and_back() {
    let on_the_way = |front: Vec<f64>| Setup { front, ..setup(model(&[(100, 120)]), Policy::Serial) };
    assert_eq!(sum_ns(&run(&on_the_way(vec![41.0]), 1, at(&[0, 10])).all()), 141 + 231, "all alike, half of it before");
    let setup = on_the_way(vec![0.0, 1_000.0, 3_000.0]);
    let far_apart: Vec<Ns> = (0..4_000).map(|number| number * 10_000).collect();
    let one = run(&setup, 1, at(&far_apart)).all();
    let quantile = |part: f64| one.latencies.quantile_ns(part);
    assert!((1_050..=1_150).contains(&quantile(0.5)) && (2_900..=3_100).contains(&quantile(0.99)), "{}", quantile(0.5));
    assert_ne!(sum_ns(&one), sum_ns(&run(&setup, 2, at(&far_apart)).all()), "the seed decides");
    // Requests sent at the same time run one after the other, whatever their durations.
    let figures = run(&setup, 1, at(&[0; 500]));
    assert_eq!((figures.all().completed, figures.busy_ns), (500, 50_000));
}

#[test]
fn a_sentence_leaves_a_loop_with_its_last_word() {
    let mut table = model(&[(10, 10), (100, 100), (100, 100), (100, 100)]);
    table.steps = Some(UnrolledLoop { first: 1 });
    let setup = setup(table, window());
    let sum_of = |length| sum_ns(&run(&setup, 1, [Offered { length, ..Offered::default() }]).all());
    assert_eq!([1, 2, 3, 9].map(sum_of), [110, 210, 310, 910], "the last step is repeated");
}

#[test]
fn sentences_that_repeat_the_last_step_share_it() {
    let mut table = model(&[(10, 10), (100, 120)]);
    table.steps = Some(UnrolledLoop { first: 1 });
    let lazy = Policy::Lazy(LazyKnobs { predictor: Predictor::Paper, ..LazyKnobs::default() });
    let knobs = |policy| Setup { models: setup(table.clone(), policy).models, ..setup(table.clone(), Policy::Serial) };
    let requests = || [(0, 4), (50, 3)].map(|(at, length)| offered(at, length));
    let alone = run(&knobs(Policy::Serial), 1, requests());
    assert_eq!(sum_ns(&alone.all()), 410 + (410 + 310 - 50));
    let mut together = knobs(lazy);
    together.models[0].knobs.objective_ns = Some(10_000);
    let figures = run(&together, 1, requests());
    // The first request runs its first step until 110, the second its entry until 120; then they run three steps
    // together.
    assert_eq!(sum_ns(&figures.all()), (120 + 3 * 120) + (120 + 3 * 120 - 50));
    assert_eq!(figures.all().counters.merges, 1);
}

#[test]
fn a_batch_takes_the_time_of_its_longest_request() {
    let point = |rows, length, took_ns| CostPoint { rows, length, took_ns };
    let latencies =
        CostTable { stages: vec![vec![point(1, 10, 100), point(1, 20, 200), point(2, 10, 110), point(2, 20, 220)]] };
    let table = ModelTable {
        name: "m".to_owned(),
        max_batch_rows: 2,
        latencies,
        steps: None,
        cells: None,
        scatter: Vec::new(),
    };
    let setup = setup(table, window());
    let requests = [(0, 10), (1, 10), (1, 15)].map(|(at, length)| offered(at, length));
    assert_eq!(sum_ns(&run(&setup, 1, requests).all()), 100 + 2 * (99 + 165));
}

#[test]
fn power_grows_with_the_lanes_at_work() {
    let mut setup = setup(model(&[(1_000_000_000, 1_000_000_000)]), Policy::Serial);
    setup.lanes = 2;
    let figures = run(&setup, 1, at(&[1_000_000_000]));
    assert_eq!(figures.joules, 10.0 * 2.0 + 100.0 / 2.0, "idle for two seconds, one of two lanes at work for one");
    assert_eq!(figures.utilisation(), 0.25);
}

#[test]
fn the_warm_up_is_not_counted() {
    let mut setup = setup(model(&[(100, 120)]), Policy::Serial);
    setup.warm_up = 1;
    let figures = run(&setup, 1, at(&[0, 10, 1000]));
    assert_eq!((figures.all().offered, sum_ns(&figures.all())), (2, 190 + 100));
    assert_eq!((figures.span_ns, figures.arriving_ns, figures.served), (1090, 990, 3));
}

#[test]
fn periods_are_told_apart_by_the_numbers_of_their_requests() {
    let mut setup = setup(model(&[(100, 120)]), Policy::Serial);
    setup.period = 2;
    setup.warm_up = 1;
    let figures = run(&setup, 1, at(&[0, 10, 1000, 1200, 1500]));
    let period = |offered, arrived_ns, span_ns, latency_ns| Period {
        offered,
        arrived_ns,
        span_ns,
        completed: offered,
        latency_ns,
    };
    let expected = [period(2, 10, 1000, 290), period(2, 2200, 500, 200), period(1, 1500, 0, 100)];
    assert_eq!(figures.periods, expected, "the warm-up too");
    setup.period = 0;
    assert!(run(&setup, 1, at(&[0])).periods.is_empty());
}

fn poisson(rate: f64) -> SimulatedLoad {
    let models = vec![(1.0, RequestInputs::OfLength(LengthDistribution::Fixed(1)))];
    SimulatedLoad { arrivals: Arrivals::Poisson { rate }, models, traced: None, backlog: 0 }
}

#[test]
fn the_mean_wait_of_a_single_server_is_that_of_the_closed_form() {
    the_mean_wait_is_that_of_the_closed_form(20_000);
}

#[test]
#[ignore = "the full size: make nightly"]
fn over_many_requests_the_mean_wait_is_that_of_the_closed_form() {
    the_mean_wait_is_that_of_the_closed_form(60_000);
}

fn the_mean_wait_is_that_of_the_closed_form(requests: u64) {
    let mut setup = setup(model(&[(1_000_000, 1_000_000)]), Policy::Serial);
    setup.warm_up = 2000;
    for used in [0.5, 0.7] {
        let figures = run(&setup, 1, poisson(used * 1000.0).requests(11, requests));
        let wait_ns = figures.all().latencies.mean_ns() - 1e6;
        // M/D/1: the mean wait is ρ·D / 2(1 − ρ).
        let expected_ns = used * 1e6 / (2.0 * (1.0 - used));
        let off = wait_ns / expected_ns - 1.0;
        assert!(off.abs() < 0.05, "at {used} the wait is {wait_ns} ns against {expected_ns} ns");
    }
}

#[test]
fn a_backlog_shows_which_rates_let_a_queue_empty() {
    // One row takes 1 ms and two take 1.2, so the maximum is 1,667 requests per second.
    let mut setup = setup(model(&[(1_000_000, 1_200_000)]), window());
    setup.warm_up = 4_000;
    let mean_ms = |rate| {
        let load = SimulatedLoad { backlog: 200, ..poisson(rate) };
        assert_eq!(load.requests(1, 400).take_while(|offered| offered.at == Instant::ZERO).count(), 200);
        run(&setup, 1, load.requests(1, 8_000)).all().latencies.mean_ns() / 1e6
    };
    let (below, above) = (mean_ms(1_500.0), mean_ms(1_750.0));
    assert!(below < 10.0 && above > 200.0, "200 requests are done in 120 ms, or never: {below} ms and {above} ms");
}

#[test]
fn every_request_that_comes_in_ends() {
    let mut setup = setup(model(&[(300, 400), (200, 250), (100, 180)]), window());
    let second = Served { table: setup.models[0].table.sliced(2).expect("of three parts"), ..setup.models[0].clone() };
    setup.models.push(second);
    setup.devices = 3;
    setup.lanes = 2;
    setup.models[0].knobs.queueing.default_queue.max_queue_size = 4;
    let models = [2.0, 1.0].map(|share| (share, RequestInputs::OfLength(LengthDistribution::Fixed(1)))).to_vec();
    let load = SimulatedLoad { arrivals: Arrivals::Poisson { rate: 20e6 }, models, traced: None, backlog: 0 };
    let figures = run(&setup, 1, load.requests(3, 5000));
    for model in &figures.models {
        assert_eq!(model.completed + model.refused, model.offered);
        assert_eq!(model.latencies.count(), model.completed);
    }
    assert!(figures.models[0].refused > 0 && figures.models[1].refused == 0, "only the first queue has a limit");
    assert_eq!(figures.all().offered, 5000);
}

#[test]
fn runs_are_fixed_by_their_seeds_on_any_number_of_threads() {
    let setup = setup(model(&[(300, 400), (200, 250)]), window());
    let seeds: Vec<u64> = (0..12).collect();
    let on = |threads| {
        let figures = on_all_cores(threads, &seeds, |&seed| run(&setup, 1, poisson(2e6).requests(seed, 500)), || {});
        figures.iter().map(|figures| (sum_ns(&figures.all()), figures.busy_ns)).collect::<Vec<_>>()
    };
    let alone = on(1);
    assert_eq!(alone, on(1));
    assert_eq!(alone, on(5));
    assert_ne!(alone[0], alone[1], "another seed, another run");
}

#[test]
fn more_load_never_needs_fewer_devices() {
    let mut setup = setup(model(&[(1_000_000, 1_200_000)]), window());
    let needed = [500.0, 2000.0, 4000.0, 8000.0].map(|rate| {
        fewest_devices(32, |devices| {
            setup.devices = devices;
            let figures = run(&setup, 1, poisson(rate).requests(1, 2000));
            figures.keeps_up(5_000_000) && figures.all().latencies.quantile_ns(0.99) <= 5_000_000
        })
    });
    assert!(needed.is_sorted() && needed[0] == Some(1) && needed[3] > Some(4), "{needed:?}");
}

#[test]
fn looking_ahead_queues_no_more_than_its_horizon_whatever_tasks_take() {
    looking_ahead_queues_no_more_than_its_horizon(12_000);
}

#[test]
#[ignore = "the full size: make nightly"]
fn over_many_requests_looking_ahead_queues_no_more_than_its_horizon() {
    looking_ahead_queues_no_more_than_its_horizon(40_000);
}

fn looking_ahead_queues_no_more_than_its_horizon(requests: u64) {
    const HORIZON_NS: Ns = 2_000_000;
    const PREDICTED_NS: Ns = 800_000;
    for off in [0.97, 1.0, 1.03] {
        let took_ns = (PREDICTED_NS as f64 * off) as Ns;
        let flat =
            |took_ns| CostTable { stages: vec![[1, 64].map(|rows| CostPoint { rows, length: 1, took_ns }).to_vec()] };
        let table = ModelTable { max_batch_rows: 64, latencies: flat(took_ns), ..model(&[]) };
        let mut setup = setup(table, window());
        setup.models[0].knobs.latencies = Some(flat(PREDICTED_NS));
        setup.models[0].knobs.objective_ns = None;
        setup.ahead = LaneKnobs { horizon_ns: HORIZON_NS, depth: 5 };
        setup.warm_up = 2_000;
        let queued = run(&setup, 1, poisson(8_000.0).requests(1, requests)).all().queued;
        let [p50, p99] = [0.5, 0.99].map(|part| queued.quantile_ns(part));
        assert!(p99 <= HORIZON_NS + took_ns, "tasks take {off} of what is predicted: queued {p50} / {p99} ns");
        assert!(p50 >= HORIZON_NS, "the lane is kept busy for its horizon: {p50} ns at {off}");
    }
}
