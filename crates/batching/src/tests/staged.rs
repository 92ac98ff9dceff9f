//! Random runs over chains of stages, under every policy, with and without lanes that look ahead: the invariants
//! hold after each event, and every request ends.

use paternoster_model::{CellId, Next, RowOutcome};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::{
    driver::{Driver, drives},
    pool::arrival,
};
use crate::{
    Action, AdaptiveKnobs, Arrival, Counters, DeferredKnobs, DiversityKnobs, Event, InputDiversity, Instant, Knobs,
    LaneId, LaneKnobs, LazyKnobs, LoadDiversity, ModelId, OperatorDiversity, PartOrder, Policy, PolicyKind, Predictor,
    ReqId, StageKnobs, Task, WindowKnobs,
};

const RUNS: u32 = 240;
/// Those of a long one.
const MANY_RUNS: u32 = 6000;

/// An event of a run.
#[derive(Clone, Debug)]
enum Happening {
    Arrives { model: u32, rows: u32, length: u32, priority: u64, deadline: Option<u64> },
    IsCancelled(usize),
    Completes(usize, u8),
    Fails(usize),
    TimePasses(u64),
    LaneIsLost(u16),
    LaneIsBack(u16),
}

fn happening() -> impl Strategy<Value = Happening> {
    let deadline = prop_oneof![3 => Just(None), 1 => (1..200u64).prop_map(Some)];
    prop_oneof![
        30 => (0..2u32, 1..4u32, 1..20u32, 0..3u64, deadline).prop_map(|(model, rows, length, priority, deadline)| {
            Happening::Arrives { model, rows, length, priority, deadline }
        }),
        5 => any::<usize>().prop_map(Happening::IsCancelled),
        40 => (any::<usize>(), any::<u8>()).prop_map(|(which, seed)| Happening::Completes(which, seed)),
        2 => any::<usize>().prop_map(Happening::Fails),
        10 => (1..30u64).prop_map(Happening::TimePasses),
        1 => (0..3u16).prop_map(Happening::LaneIsLost),
        2 => (0..3u16).prop_map(Happening::LaneIsBack),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let operator = (any::<bool>(), any::<bool>()).prop_map(|(paper, pipelined)| OperatorDiversity {
        threshold: 0.5,
        order: if pipelined { PartOrder::Pipelined } else { PartOrder::DepthFirst },
        paper,
    });
    let diversity =
        (any::<bool>(), proptest::option::of(operator), any::<bool>()).prop_map(|(input, operator, load)| {
            Policy::Diversity(DiversityKnobs {
                input: input.then(InputDiversity::default),
                operator,
                load: load.then(LoadDiversity::default),
            })
        });
    let predictor = prop_oneof![Just(Predictor::Paper), Just(Predictor::Table), Just(Predictor::Oracle)];
    let lazy = (predictor, any::<bool>()).prop_map(|(predictor, reject_late)| {
        Policy::Lazy(LazyKnobs { predictor, reject_late, ..LazyKnobs::default() })
    });
    let deferred = (any::<bool>(), any::<bool>(), proptest::option::of(0..40u64))
        .prop_map(|(eager, reject_late, margin_ns)| Policy::Deferred(DeferredKnobs { margin_ns, eager, reject_late }));
    prop_oneof![
        1 => Just(Policy::Serial),
        1 => (0..40u64).prop_map(|max_queue_delay_ns| Policy::Window(WindowKnobs { max_queue_delay_ns, ..Default::default() })),
        1 => any::<bool>().prop_map(|paper| Policy::Adaptive(AdaptiveKnobs { paper, average_ns: 50, max_queue_delay_ns: 60, ..Default::default() })),
        3 => lazy,
        3 => deferred,
        6 => diversity,
        2 => proptest::sample::select(PolicyKind::over_batches().collect::<Vec<_>>()),
    ]
}

fn knobs() -> impl Strategy<Value = Knobs> {
    let objective = proptest::option::of(20..300u64);
    (1..9u32, 1..4u32, 1..6u16, 1..4u16, any::<bool>(), objective, policy()).prop_map(
        |(max_batch_rows, max_in_flight, stages, buffer_pairs, decides, objective_ns, policy)| {
            let mut stages = StageKnobs::chain(stages);
            if decides {
                stages.iter_mut().for_each(|stage| stage.decides = true);
                // Rows may skip the stage before it.
                stages.iter_mut().skip(2).take(1).for_each(|stage| stage.reads = [0].into_iter().collect());
            } else if stages.len() > 3 {
                // A connection that skips stages.
                stages[3].reads.insert(0, 0);
            }
            let mut knobs =
                Knobs { max_batch_rows, max_in_flight, stages, buffer_pairs, objective_ns, policy, ..Knobs::default() };
            knobs.queueing.priority_levels = 2;
            knobs.queueing.default_priority_level = 2;
            knobs
        },
    )
}

/// A driver, and the requests that have not ended.
struct Run {
    driver: Driver,
    live: Vec<ReqId>,
    knobs: Vec<Knobs>,
}

drives!(Run);

impl Run {
    fn act(&mut self, event: Event<'_>) {
        for action in self.driver.act(event) {
            match action {
                Action::Launch(task) => {
                    assert!(!task.rows.is_empty());
                    assert!(task.rows.is_sorted_by_key(|span| span.at), "rows come by place");
                }
                Action::Finish { req, .. } => {
                    let at = self.live.iter().position(|&live| live == req).expect("a request ends once");
                    self.live.swap_remove(at);
                }
                _ => {}
            }
        }
    }

    fn pass_to(&mut self, then: Instant) {
        while self.pass(then) {
            self.act(Event::Wake);
        }
    }

    fn complete(&mut self, which: usize, seed: u8) {
        if self.running.is_empty() {
            return;
        }
        // Tasks end in order on each lane, and not before the tasks that they wait for.
        let may = |task: &Task| {
            let mut running = self.running.iter().map(|(_, other)| other);
            let waits = running.clone().any(|other| task.after.contains(&other.id));
            !waits && running.find(|other| other.lane == task.lane).map(|other| other.id) == Some(task.id)
        };
        let ready: Vec<&Task> = self.running.iter().map(|(_, task)| task).filter(|task| may(task)).collect();
        assert!(!ready.is_empty(), "tasks wait for each other in a circle");
        let task = ready[which % ready.len()].clone();
        let stage = &self.knobs[task.model.0 as usize].stages[usize::from(task.cell.0)];
        let rows: u32 = task.rows.iter().map(|span| span.count).sum();
        let outcomes: Vec<RowOutcome> = if stage.decides {
            (0..rows).map(|row| outcome(task.cell, seed.wrapping_mul(31).wrapping_add(row as u8 * 17))).collect()
        } else {
            Vec::new()
        };
        self.act(Event::Completed { task: task.id, rows: &outcomes });
    }
}

fn outcome(cell: CellId, seed: u8) -> RowOutcome {
    let next = match seed % 16 {
        0 => Next::Done,
        1 => Next::Skip(CellId(cell.0 + 2)),
        2 => Next::Skip(cell),
        3 => Next::Failed,
        _ => Next::On,
    };
    RowOutcome { next, emitted: false }
}

fn happens(run: &mut Run, happening: &Happening, next_req: &mut u64) {
    match *happening {
        Happening::Arrives { model, rows, length, priority, deadline } => {
            let req = ReqId(*next_req);
            *next_req += 1;
            run.live.push(req);
            let most = run.knobs[model as usize].max_batch_rows;
            let deadline = deadline.map(|deadline| run.now + deadline);
            run.act(Event::Arrived(Arrival {
                model: ModelId(model),
                rows: rows.min(most),
                lengths: [length].into_iter().collect(),
                priority,
                deadline,
                ..arrival(req.0)
            }));
        }
        Happening::IsCancelled(which) => {
            if let Some(&req) = run.live.get(which % run.live.len().max(1)) {
                run.act(Event::Cancelled(req));
            }
        }
        Happening::Completes(which, seed) => run.complete(which, seed),
        Happening::Fails(which) => {
            if let Some((_, first)) = run.running.get(which % run.running.len().max(1)) {
                let task = first.id;
                run.act(Event::Failed { task });
            }
        }
        Happening::TimePasses(by) => run.pass_to(run.now + by),
        Happening::LaneIsLost(lane) => run.act(Event::LaneLost(LaneId(lane))),
        Happening::LaneIsBack(lane) => run.act(Event::LaneUp(LaneId(lane), LaneKnobs::default())),
    }
}

fn comes_to_rest(run: &mut Run) {
    run.act(Event::LaneUp(LaneId(7), LaneKnobs::default()));
    for turn in 0..100_000_u32 {
        if run.live.is_empty() && run.running.is_empty() {
            return;
        }
        if !run.running.is_empty() {
            run.now += 1;
            // Outcomes without repeats, because a row must not repeat forever.
            run.complete(turn as usize, 4);
        } else if let Some(wake) = run.wake {
            run.pass_to(wake);
        } else {
            panic!("{} requests never end", run.live.len());
        }
    }
    panic!("the run does not come to rest");
}

fn add(sum: &mut Counters, run: &Counters) {
    sum.stretches += run.stretches;
    sum.splits += run.splits;
    sum.merges += run.merges;
    sum.preemptions += run.preemptions;
    sum.early_exits += run.early_exits;
    sum.slack_misses += run.slack_misses;
    sum.retries += run.retries;
    sum.late += run.late;
}

#[test]
fn random_runs_over_stages_keep_the_invariants_and_come_to_rest() {
    plays(RUNS);
}

#[test]
#[ignore = "many runs: make nightly"]
fn many_random_runs_over_stages_keep_the_invariants_and_come_to_rest() {
    plays(MANY_RUNS);
}

fn plays(runs: u32) {
    let config = Config { cases: runs, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let sum = std::cell::RefCell::new(Counters::default());
    let horizons = prop_oneof![Just(0_u64), 1..40u64];
    let drawn = (vec(knobs(), 2), 1..4u16, horizons, vec(happening(), 1..200));
    let outcome = runner.run(&drawn, |(knobs, lanes, horizon_ns, happenings)| {
        let mut run = Run { driver: Driver::default(), live: Vec::new(), knobs: knobs.clone() };
        for (model, knobs) in (0..).zip(knobs) {
            run.act(Event::ModelUp(ModelId(model), Box::new(knobs)));
        }
        for lane in 0..lanes {
            let depth = if horizon_ns == 0 { 1 } else { 3 };
            run.act(Event::LaneUp(LaneId(lane), LaneKnobs { horizon_ns, depth }));
        }
        let mut next_req = 0;
        for happening in &happenings {
            happens(&mut run, happening, &mut next_req);
        }
        comes_to_rest(&mut run);
        run.core.counters().iter().for_each(|(_, counters)| add(&mut sum.borrow_mut(), counters));
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let sum = sum.into_inner();
    let met = [
        ("stretches", sum.stretches),
        ("splits", sum.splits),
        ("merges", sum.merges),
        ("preemptions", sum.preemptions),
        ("early exits", sum.early_exits),
        ("slack misses", sum.slack_misses),
        ("retries", sum.retries),
        ("refusals of late requests", sum.late),
    ];
    for (rare, count) in met {
        assert!(12 * count >= u64::from(runs), "{rare}: only {count} in {runs} runs: {sum:?}");
    }
}
