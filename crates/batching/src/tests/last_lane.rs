//! The last lane is kept for other models by the time that tasks are predicted to take. Tasks take exactly as long as
//! predicted, in virtual time.

use std::collections::{BTreeMap, BTreeSet};

use paternoster_model::{CellId, unfold::Unfolded};

use super::{
    cellular::{cell, cellular, request as cells_request},
    driver::Driver,
    pool::{arrival, serial},
    timeline::{Timeline, rows_of, staged},
};
use crate::{
    AdaptiveKnobs, Arrival, CellKnobs, ChunkKnobs, Core, CostPoint, CostTable, DeferredKnobs, DiversityKnobs, End,
    Event, Knobs, LaneId, LaneKnobs, LazyKnobs, ModelId, Ns, Policy, ReqId, SegmentKnobs, Task, WindowKnobs,
};

const MS: Ns = 1_000_000;
const LIMIT: Ns = 50 * MS;
const MINUTE: Ns = 60_000 * MS;

/// Model 0 takes 10 ms a row, model 1 a millisecond whatever its rows, models 2 and 3 200 ms a row.
fn takes_ns(task: &Task) -> Ns {
    let rows = Ns::from(rows_of(task));
    match task.model.0 {
        0 => 10 * MS * rows,
        1 => MS,
        _ => 200 * MS * rows,
    }
}

fn knobs(policy: Policy, stages: u16, row_ms: Ns) -> Knobs {
    let latencies: Vec<(u32, Ns)> = (1..=32).map(|rows| (rows, row_ms * MS * Ns::from(rows))).collect();
    Knobs { parts_requests: true, ..staged(policy, stages, 32, &latencies) }
}

fn window() -> Policy {
    Policy::Window(WindowKnobs::default())
}

/// A model for each of `takes_ns`.
fn models(policy: impl Fn() -> Policy, stages: u16) -> Vec<Knobs> {
    let short = staged(window(), 1, 32, &[(1, MS), (32, MS)]);
    vec![knobs(policy(), stages, 10), short, knobs(policy(), stages, 200), knobs(policy(), stages, 200)]
}

fn server(models: Vec<Knobs>, lanes: u16, limit: Option<Ns>) -> Timeline {
    let mut server = Timeline::new(models, takes_ns);
    server.core = std::mem::take(&mut server.core).with_last_lane_limit(limit);
    (0..lanes).for_each(|lane| server.lane_up(0, lane));
    server
}

fn request(req: u64, model: u32, rows: u32) -> Arrival {
    Arrival { model: ModelId(model), rows, ..arrival(req) }
}

/// Sends rows of a long model at `at` and a request of the short model before, then one each 7 ms until `until`.
/// Returns how long the latter waited at most.
fn longest_wait(server: &mut Timeline, sent: &[(Ns, u32, u32)], until: Ns) -> Ns {
    let mut arrivals: Vec<(Ns, Arrival)> = Vec::new();
    arrivals.extend((0..).zip(sent).map(|(req, &(at, model, rows))| (at, request(req, model, rows))));
    arrivals.extend((0..until / (7 * MS)).map(|at| (at * 7 * MS, request(1_000 + at, 1, 1))));
    arrivals.sort_by_key(|(at, _)| *at);
    let arrived: BTreeMap<ReqId, Ns> = arrivals.iter().map(|(at, arrival)| (arrival.req, *at)).collect();
    arrivals.into_iter().for_each(|(at, arrival)| server.sends(at, arrival));
    server.run_out();
    let ended = server.ended_at();
    let waits = arrived.iter().filter(|(req, _)| req.0 >= 1_000).map(|(req, at)| ended[req].0 - at);
    waits.max().expect("the short model has requests")
}

/// Checks that every row of these requests ran each of `stages` stages once.
fn assert_rows_ran_once(server: &Timeline, rows: &[(u64, u32)], stages: u16) {
    let mut ran = BTreeSet::new();
    for (_, task) in &server.launches {
        for span in &task.rows {
            for row in span.start..span.start + span.count {
                assert!(ran.insert((task.cell, span.req.0, row)), "row {row} of {:?} ran twice", span.req);
            }
        }
    }
    for &(req, rows) in rows {
        let of_request = ran.iter().filter(|(_, own, _)| *own == req).count();
        assert_eq!(of_request, rows as usize * usize::from(stages), "request {req}");
    }
}

/// Checks each launch against the rule, by the true times. `used` has the arrivals of all requests, by model.
fn assert_last_lane_is_kept(server: &Timeline, lanes: u16, used: &[(Ns, u32)]) -> usize {
    let mut running: BTreeMap<u16, (Ns, u32)> = BTreeMap::new();
    let mut cut = 0;
    for (at, task) in &server.launches {
        running.retain(|_, (ends, _)| *ends > *at);
        let (model, took) = (task.model.0, takes_ns(task));
        let lately = used.iter().any(|&(used, other)| other != model && used < *at && at - used < MINUTE);
        let soon = running.values().filter(|(ends, _)| ends - at <= LIMIT).count();
        let is_last = running.len() - soon + 1 == usize::from(lanes);
        if is_last && lately && took > LIMIT {
            assert_eq!(rows_of(task), 1, "{:?} takes {took} ns on the last lane at {at}", task.id);
            let held = running.values().filter(|(_, own)| *own == model).count();
            assert!(lanes == 1 || held + 1 < usize::from(lanes), "{:?} takes all lanes at {at}", task.id);
        }
        cut += usize::from(is_last && lately);
        running.insert(task.lane.0, (at + took, model));
    }
    cut
}

#[test]
fn another_model_waits_for_one_short_task_whatever_one_request_asks_for() {
    let attack = [(3 * MS, 0, 32), (3 * MS, 0, 32), (3 * MS, 0, 32), (3 * MS, 0, 32)];
    for lanes in 1..=3 {
        let mut free = server(models(window, 1), lanes, None);
        let without = longest_wait(&mut free, &attack, 1_000 * MS);
        assert!(without > 250 * MS, "without the limit it waits for {without} ns on {lanes} lanes");
        let mut kept = server(models(window, 1), lanes, Some(LIMIT));
        let with = longest_wait(&mut kept, &attack, 1_000 * MS);
        assert!(with <= LIMIT + 2 * MS, "it waits for {with} ns on {lanes} lanes");
        assert_rows_ran_once(&kept, &[0, 1, 2, 3].map(|req| (req, 32)), 1);
    }
}

#[test]
fn rows_that_take_long_leave_one_lane_to_others_and_are_not_starved() {
    let attack = [(3 * MS, 2, 4), (3 * MS, 2, 4), (4 * MS, 2, 1)];
    for lanes in 2..=3 {
        let mut kept = server(models(window, 1), lanes, Some(LIMIT));
        let waited = longest_wait(&mut kept, &attack, 3_000 * MS);
        assert!(waited <= 2 * MS, "a lane is free: {waited} ns on {lanes} lanes");
        assert_rows_ran_once(&kept, &[(0, 4), (1, 4), (2, 1)], 1);
    }
    let mut kept = server(models(window, 1), 1, Some(LIMIT));
    let waited = longest_wait(&mut kept, &attack, 3_000 * MS);
    assert!(waited <= 200 * MS + 2 * MS, "on one lane it waits for one row: {waited} ns");
    assert!(kept.launches.iter().all(|(_, task)| task.model.0 != 2 || rows_of(task) == 1));
}

#[test]
fn a_model_that_is_used_alone_loses_nothing() {
    let launches = |limit: Option<Ns>, other_used: Option<Ns>, models_used: [u32; 2]| {
        let mut server = server(models(window, 1), 2, limit);
        if other_used.is_some() {
            server.sends(0, request(99, 1, 1));
        }
        for (at, req) in [0, 1, 5, 9, 200, 900].into_iter().zip(0..) {
            server.sends(other_used.unwrap_or(0) + at * MS, request(req, models_used[req as usize % 2], 4));
        }
        server.run_out();
        server.launches.iter().map(|(at, task)| (*at, task.lane, rows_of(task))).collect::<Vec<_>>()
    };
    let is_same = |other_used: Option<Ns>, models_used: [u32; 2]| {
        launches(Some(LIMIT), other_used, models_used) == launches(None, other_used, models_used)
    };
    assert!(is_same(None, [2, 2]), "no other model was ever used");
    assert!(is_same(Some(MINUTE), [2, 2]), "another one was used a minute ago");
    assert!(!is_same(Some(MINUTE - 2 * MS), [2, 2]), "it was used within the minute");
    assert!(!is_same(None, [2, 3]), "two models are used");
}

#[test]
fn a_lane_is_taken_again_when_the_minute_is_over() {
    let mut server = server(models(window, 1), 2, Some(LIMIT));
    server.sends(0, request(99, 1, 1));
    // The first task runs beyond the minute.
    server.sends(MINUTE - 1_000 * MS, request(0, 2, 32));
    server.sends(MINUTE - 500 * MS, request(1, 2, 1));
    server.run_out();
    let launched: Vec<Ns> = server.launches.iter().filter(|(_, task)| task.model.0 == 2).map(|(at, _)| *at).collect();
    assert_eq!(launched, [MINUTE - 1_000 * MS, MINUTE]);
}

#[test]
fn what_was_never_run_begins_with_one_row() {
    let unknown = || Knobs { latencies: None, ..knobs(window(), 1, 0) };
    let mut server = server(vec![unknown(), staged(window(), 1, 32, &[(1, MS)])], 1, Some(LIMIT));
    server.sends(0, request(99, 1, 1));
    server.sends(5 * MS, request(0, 0, 32));
    server.run_out();
    let sizes: Vec<u32> = server.sizes();
    assert_eq!(sizes[..3], [1, 1, 4], "{sizes:?}");
    assert_rows_ran_once(&server, &[(0, 32)], 1);
}

#[test]
fn requests_stay_whole_where_one_fits_or_rows_must_not_part() {
    let sizes = |parts_requests: bool, rows: &[u32]| {
        let mut models = models(window, 1);
        models[0].parts_requests = parts_requests;
        let mut server = server(models, 1, Some(LIMIT));
        server.sends(0, request(99, 1, 1));
        server.sends(0, request(98, 1, 1));
        rows.iter().zip(0..).for_each(|(rows, req)| server.sends(0, request(req, 0, *rows)));
        server.run_out();
        let of_long = server.launches.iter().filter(|(_, task)| task.model.0 == 0);
        of_long.map(|(_, task)| rows_of(task)).collect::<Vec<_>>()
    };
    assert_eq!(sizes(true, &[2, 2, 2, 3]), [4, 2, 3], "the first that does not fit waits");
    assert_eq!(sizes(true, &[6, 2])[..2], [4, 2], "its own rows go on first");
    assert_eq!(sizes(false, &[6, 2, 2]), [6, 4], "rows that may depend on each other stay together");
}

#[test]
fn models_with_long_tasks_share_the_lanes_as_without_the_limit() {
    let mut models = models(window, 1);
    (2..4).for_each(|model| models[model].max_batch_rows = 1);
    let mut server = server(models, 2, Some(LIMIT));
    server.sends(0, request(9_999, 1, 1));
    for req in 0..120 {
        server.sends(0, request(req, [0, 2, 3][req as usize % 3], [20, 1, 1][req as usize % 3]));
    }
    server.pass_to(4_000 * MS);
    let time = |model: u32| -> Ns {
        let own = server.launches.iter().filter(|(_, task)| task.model.0 == model);
        own.map(|(_, task)| takes_ns(task)).sum()
    };
    let times = [0, 2, 3].map(time);
    let (least, most) = (times.iter().min().expect("three"), times.iter().max().expect("three"));
    assert!(most - least <= 450 * MS, "{times:?}: no model is behind by more than a task or two");
    server.run_out();
}

/// Of a task of cells.
fn cells_ns(rows: u32, steps: u32) -> Ns {
    2 * MS + Ns::from(steps) * (MS + Ns::from(rows) * MS)
}

/// Returns the rows and steps of each task of 64 chains, next to another model.
fn tasks_of_cells(chunks: Option<ChunkKnobs>, limit: Option<Ns>) -> Vec<(u32, u32)> {
    let sizes = [(1, 1), (64, 1), (1, 30), (4, 8)].into_iter().filter(|(_, steps)| chunks.is_some() || *steps == 1);
    let points = sizes.map(|(rows, steps)| CostPoint { rows, length: steps.into(), took_ns: cells_ns(rows, steps) });
    let cells = [CellKnobs { chunks, ..cell(64, 1) }];
    let latencies = Some(CostTable { stages: vec![points.collect()] });
    let knobs = Knobs { latencies, ..cellular(&cells, &[SegmentKnobs::Steps { cell: CellId(0) }], 1_000) };
    let mut driver = Driver { core: Core::new().with_last_lane_limit(limit), ..Driver::default() };
    driver.act(Event::ModelUp(ModelId(0), Box::new(knobs)));
    driver.act(Event::ModelUp(ModelId(1), Box::new(serial())));
    driver.act(Event::LaneUp(LaneId(0), LaneKnobs::default()));
    driver.act(Event::Arrived(request(99, 1, 1)));
    (0..64).for_each(|req| _ = driver.act(Event::Arrived(cells_request(req, vec![Unfolded::Steps(30)]))));
    let mut tasks = Vec::new();
    while let Some((_, task)) = driver.running.first().cloned() {
        let size = (task.row_count(), task.rows.iter().map(|row| row.count).max().expect("it has rows"));
        driver.now += if task.model == ModelId(0) { cells_ns(size.0, size.1) } else { MS };
        tasks.extend((task.model == ModelId(0)).then_some(size));
        driver.act(Event::Completed { task: task.id, rows: &[] });
    }
    assert!(driver.ends.len() == 65 && driver.ends.iter().all(|(.., end)| *end == End::Completed));
    tasks
}

#[test]
fn cells_run_fewer_rows_and_fewer_steps() {
    for chunks in [None, Some(ChunkKnobs { is_padded: true, most_row_steps: u32::MAX, powers_up_to: None })] {
        let longest = |limit: Option<Ns>| {
            let tasks = tasks_of_cells(chunks, limit);
            tasks.into_iter().map(|(rows, steps)| cells_ns(rows, steps)).max().expect("there are tasks")
        };
        assert!(longest(None) > LIMIT, "the limit says nothing");
        assert!((LIMIT / 2..=LIMIT).contains(&longest(Some(LIMIT))), "{} ns", longest(Some(LIMIT)));
    }
}

/// A generator of random numbers (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

#[test]
fn random_runs_of_all_policies_keep_the_last_lane_and_lose_no_row() {
    random_runs_keep_the_last_lane(60);
}

#[test]
#[ignore = "many runs: make nightly"]
fn many_random_runs_of_all_policies_keep_the_last_lane_and_lose_no_row() {
    random_runs_keep_the_last_lane(2_400);
}

fn random_runs_keep_the_last_lane(runs: usize) {
    let policies: [fn() -> Policy; 6] = [
        || Policy::Serial,
        window,
        || Policy::Adaptive(AdaptiveKnobs::default()),
        || Policy::Lazy(LazyKnobs::default()),
        || Policy::Diversity(DiversityKnobs::default()),
        || Policy::Deferred(DeferredKnobs::default()),
    ];
    let mut cut = BTreeMap::<&str, usize>::new();
    for seed in 0..runs as u64 {
        let random = &mut Random(seed);
        let policy = policies[seed as usize % policies.len()];
        let (lanes, stages) = (1 + random.below(3) as u16, 1 + 2 * random.below(2) as u16);
        // Without batches, a request is what may take long.
        let most_rows = if policy() == Policy::Serial { 1 } else { 32 };
        let mut server = server(models(policy, stages), lanes, Some(LIMIT));
        let (mut at, mut used, mut sent) = (0, Vec::new(), Vec::new());
        for req in 0..40 {
            at += 1 + random.below(60) * MS + if random.below(12) == 0 { MINUTE } else { 0 };
            let model = random.below(4) as u32;
            let rows = 1 + random.below(if model == 1 { 1 } else { most_rows }) as u32;
            used.push((at, model));
            sent.push((req, rows, model));
            server.sends(at, request(req, model, rows));
        }
        server.run_out();
        *cut.entry(policy().name()).or_default() += assert_last_lane_is_kept(&server, lanes, &used);
        for (req, rows, model) in sent {
            assert_rows_ran_once(&server, &[(req, rows)], if model == 1 { 1 } else { stages });
        }
    }
    assert!(cut.values().all(|&cut| 12 * cut > 5 * runs), "the rule is met too rarely: {cut:?}");
}
