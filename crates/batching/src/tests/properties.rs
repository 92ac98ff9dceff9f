//! Random runs: arrivals, cancellations, deadlines, failures, loops, drains, several models and lanes.
//!
//! Every step is checked against the oracle and the invariants (`pool`). Every run must finish with each request ended
//! exactly once. The runs are reproducible, and must have covered every rare case.

use paternoster_model::{CellId, Next, RowOutcome};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::pool::{DynamicBatching, Pool, arrival, window as window_of};
use crate::{Arrival, Counters, Knobs, ModelId, QueueKnobs, ReqId, RequestKey, TaskId, TimeoutAction};

const RUNS: u32 = 160;
/// Those of a long one.
const MANY_RUNS: u32 = 4000;
const MODELS: u32 = 3;

/// An event of a run.
#[derive(Clone, Debug)]
enum Happening {
    Arrives { model: u32, rows: u32, key: i64, length: u32, priority: u64, timeout: Option<u64>, deadline: Option<u64> },
    IsCancelled { which: usize },
    Completes { which: usize, outcomes: Vec<RowOutcome> },
    Fails { which: usize },
    TimePasses { by: u64 },
    Drains { model: u32 },
    ComesUp { model: u32 },
}

fn happening() -> impl Strategy<Value = Happening> {
    let rows = prop_oneof![18 => 1..6u32, 1 => Just(0), 1 => Just(99)];
    let arrives = (0..MODELS, rows, 0..2i64, 1..12u32, 0..4u64, maybe(30), maybe(120));
    prop_oneof![
        40 => arrives.prop_map(|(model, rows, key, length, priority, timeout, deadline)| {
            Happening::Arrives { model, rows, key, length, priority, timeout, deadline }
        }),
        4 => any::<usize>().prop_map(|which| Happening::IsCancelled { which }),
        12 => (any::<usize>(), prop_oneof![2 => Just(Vec::new()), 2 => vec(outcome(), 8..9), 1 => vec(outcome(), 1..8)])
            .prop_map(|(which, outcomes)| Happening::Completes { which, outcomes }),
        4 => any::<usize>().prop_map(|which| Happening::Fails { which }),
        10 => (1..40u64).prop_map(|by| Happening::TimePasses { by }),
        1 => (0..MODELS).prop_map(|model| Happening::Drains { model }),
        4 => (0..MODELS).prop_map(|model| Happening::ComesUp { model }),
    ]
}

fn maybe(most: u64) -> impl Strategy<Value = Option<u64>> {
    prop_oneof![2 => Just(None), 1 => (0..most).prop_map(Some)]
}

fn outcome() -> impl Strategy<Value = RowOutcome> {
    let next = prop_oneof![
        8 => Just(Next::On),
        2 => Just(Next::Done),
        6 => Just(Next::Skip(CellId(0))),
        1 => Just(Next::Skip(CellId(1))),
        1 => Just(Next::Failed),
    ];
    (next, any::<bool>()).prop_map(|(next, emitted)| RowOutcome { next, emitted })
}

fn queue() -> impl Strategy<Value = QueueKnobs> {
    (any::<bool>(), prop_oneof![Just(0), 10..60u64], any::<bool>(), prop_oneof![2 => Just(0), 1 => 1..5u32]).prop_map(
        |(delay, default_timeout_ns, allow_timeout_override, max_queue_size)| QueueKnobs {
            timeout_action: if delay { TimeoutAction::Delay } else { TimeoutAction::Reject },
            default_timeout_ns,
            allow_timeout_override,
            max_queue_size,
        },
    )
}

fn window() -> impl Strategy<Value = DynamicBatching> {
    (
        vec(1..10u32, 0..3),
        prop_oneof![Just(0), 1..50u64],
        any::<bool>(),
        0..4u64,
        queue(),
        vec((1..4u64, queue()), 0..2),
        prop_oneof![Just(0), Just(4u32)],
    )
        .prop_map(
            |(sizes, max_queue_delay_ns, preserve_ordering, priority_levels, queue, level_queues, bucket_width)| {
                DynamicBatching {
                    preferred_batch_sizes: sizes,
                    max_queue_delay_ns,
                    preserve_ordering,
                    priority_levels,
                    default_priority_level: priority_levels.div_ceil(2),
                    default_queue: queue,
                    level_queues,
                    bucket_width,
                }
            },
        )
}

fn knobs() -> impl Strategy<Value = Knobs> {
    let batching = prop_oneof![1 => Just(None), 4 => window().prop_map(Some)];
    (prop_oneof![1 => 1..4u32, 4 => 5..12u32], prop_oneof![1 => Just(false), 5 => Just(true)], 1..4u32, batching)
        .prop_map(|(max_batch_rows, mergeable, max_in_flight, batching)| match batching {
            None => Knobs { max_batch_rows, mergeable, max_in_flight, ..Knobs::default() },
            Some(batching) => Knobs { mergeable, max_in_flight, ..window_of(max_batch_rows, batching) },
        })
}

/// Applies an event; impossible events are ignored.
fn happens(pool: &mut Pool, knobs: &[Knobs], happening: &Happening, next_req: &mut u64) {
    let nth_task = |pool: &Pool, which: usize| -> Option<TaskId> {
        let running = pool.running();
        (!running.is_empty()).then(|| running[which % running.len()].id)
    };
    match happening {
        Happening::Arrives { model, rows, key, length, priority, timeout, deadline } => {
            // Spreads the ids, so that nothing can depend on their being consecutive.
            let req = next_req.wrapping_mul(0x0100_0000_0000_00B3);
            *next_req += 1;
            pool.arrive(Arrival {
                model: ModelId(*model),
                rows: *rows,
                key: RequestKey([*key].into_iter().collect()),
                lengths: [*length].into_iter().collect(),
                priority: *priority,
                queue_deadline: timeout.map(|timeout| pool.now + timeout),
                deadline: deadline.map(|deadline| pool.now + deadline),
                ..arrival(req)
            });
        }
        Happening::IsCancelled { which } => {
            let known: Vec<ReqId> = pool.oracle.sent.keys().copied().collect();
            if !known.is_empty() {
                pool.cancel(known[which % known.len()]);
            }
        }
        Happening::Completes { which, outcomes } => {
            if let Some(task) = nth_task(pool, *which) {
                pool.complete(task, outcomes);
            }
        }
        Happening::Fails { which } => {
            if let Some(task) = nth_task(pool, *which) {
                pool.fail(task);
            }
        }
        Happening::TimePasses { by } => pool.pass_to(pool.now + *by),
        Happening::Drains { model } => {
            pool.drain(ModelId(*model));
        }
        Happening::ComesUp { model } => {
            pool.model_up(ModelId(*model), knobs[*model as usize].clone());
        }
    }
}

/// Lets everything finish: tasks complete, time passes, models drain.
fn comes_to_rest(pool: &mut Pool) {
    for _ in 0..1_000 {
        if let Some(task) = pool.running().first() {
            pool.complete(task.id, &[]);
        } else if let Some(wake) = pool.wake {
            pool.pass_to(wake.max(pool.now));
        } else {
            break;
        }
    }
    assert_eq!(pool.oracle.unended().next(), None, "a request never ends");
    for model in (0..MODELS).map(ModelId).filter(|model| pool.oracle.models.contains_key(model)).collect::<Vec<_>>() {
        pool.drain(model);
        assert!(pool.drained.contains(&model), "{model:?} is never drained");
    }
    assert!(pool.core.counters().is_empty(), "a drained model is still there");
}

#[test]
fn random_runs_keep_every_promise_and_meet_every_rare_case() {
    plays(RUNS);
}

#[test]
#[ignore = "many runs: make nightly"]
fn many_random_runs_keep_every_promise_and_meet_every_rare_case() {
    plays(MANY_RUNS);
}

fn plays(runs: u32) {
    let config = Config { cases: runs, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let sum = std::cell::RefCell::new(Counters::default());
    let drawn = (vec(knobs(), MODELS as usize), 1..4u16, vec(happening(), 1..160));
    let outcome = runner.run(&drawn, |(knobs, lanes, happenings)| {
        let mut pool = Pool::new(lanes, knobs.clone());
        let mut next_req = 0;
        for happening in &happenings {
            happens(&mut pool, &knobs, happening, &mut next_req);
        }
        let counters = pool.core.counters();
        let live: u64 = counters.iter().map(|(_, counters)| counters.live_requests).sum();
        assert_eq!(live, pool.oracle.unended().count() as u64, "live requests are counted");
        counters.iter().for_each(|(_, counters)| *sum.borrow_mut() += counters);
        comes_to_rest(&mut pool);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let sum = sum.into_inner();
    let met = [
        ("batches parted by key", sum.batches_parted_by_key),
        ("retries", sum.retries),
        ("delays", sum.delayed),
        ("completions", sum.completed),
        ("failures", sum.failed),
        ("full queues", sum.queue_full),
        ("queue timeouts", sum.queue_timeout),
        ("expiries", sum.expired),
        ("cancellations", sum.cancelled),
    ];
    for (rare, count) in met {
        assert!(4 * count >= u64::from(runs), "{rare}: only {count} in {runs} runs");
    }
}
