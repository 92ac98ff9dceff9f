//! Loads on a small program that can be made to answer incorrectly.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_engine::{Batch, EngineError, Execution, Program};
use paternoster_executor::{ModelHandle, Pool, PoolOptions};
use paternoster_lab::workload::Arrivals;
use paternoster_model::{DataType, ModelSpec, TensorSpec};
use paternoster_pipeline::Servable;
use paternoster_testing::program::{floats, like_input};

use super::{
    Meter, Target,
    checked_requests::CheckedRequests,
    compare::{self, Subject},
    load::{self, LoadFigures, LoadPattern, Timing},
    samples::{Ports, Recipe},
};

const RIGHT: u8 = 0;
const WRONG: u8 = 1;
const NOT_A_NUMBER: u8 = 2;
const FAILS: u8 = 3;

const SAMPLES: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);

/// Doubles its input, or misbehaves as configured; waits while its gate is locked.
#[derive(Default)]
struct Double {
    manner: AtomicU8,
    rows: AtomicUsize,
    gate: parking_lot::RwLock<()>,
}

impl Program for Double {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        let _open = self.gate.read();
        self.rows.fetch_add(batch.rows as usize, Ordering::SeqCst);
        let mut values: Vec<f32> = floats(&batch.inputs[0]).into_iter().map(|value| 2.0 * value).collect();
        match self.manner.load(Ordering::SeqCst) {
            WRONG => values[0] += 0.01,
            NOT_A_NUMBER => values[0] = f32::NAN,
            FAILS => return Err(EngineError::new("out of order")),
            _ => {}
        }
        like_input(batch, values)
    }
}

struct Rig {
    pool: Arc<Pool>,
    program: Arc<Double>,
    target: Target,
    work: Arc<CheckedRequests>,
}

impl Rig {
    async fn start() -> Self {
        let pool = Pool::start(&PoolOptions { cpu_lanes: 1, ..PoolOptions::default() }).expect("threads start");
        let (handle, program) = double(&pool);
        let target = Target::local(Servable::Model(handle));
        let samples = recipe().samples(target.ports(), SAMPLES).expect("the recipe suits the model");
        let work = Arc::new(CheckedRequests::prepare(&target, samples, 1, None).await.expect("the program answers"));
        program.rows.store(0, Ordering::SeqCst);
        Self { pool, program, target, work }
    }

    async fn load(&self, load: LoadPattern, timing: Timing) -> LoadFigures {
        load::run(&self.target, &self.work, &load, timing, 1).await
    }

    fn rows(&self) -> usize {
        self.program.rows.load(Ordering::SeqCst)
    }
}

fn double(pool: &Arc<Pool>) -> (Arc<ModelHandle>, Arc<Double>) {
    let spec = ModelSpec {
        name: "double".to_owned(),
        version: 1,
        max_batch_size: 8,
        inputs: vec![TensorSpec::new("x", DataType::Fp32, &[8])],
        outputs: vec![TensorSpec::new("y", DataType::Fp32, &[8])],
        symbols: vec![],
        decoupled: false,
    };
    let knobs = Knobs { max_batch_rows: 8, policy: Policy::Window(WindowKnobs::default()), ..Knobs::default() };
    let program = Arc::new(Double::default());
    (Arc::new(pool.bring_up(spec, knobs, Arc::clone(&program)).expect("the CPU has room")), program)
}

fn recipe() -> Recipe {
    Recipe { rows: 1, sizes: None, integers_below: 100, fills: [].into(), shapes: [].into(), seed: 5 }
}

/// All requests at the start.
fn at_once(count: usize) -> LoadPattern {
    LoadPattern::Open(Arrivals::At(vec![0; count]))
}

fn timing(warm_up_ms: u64, measured_ms: Option<u64>) -> Timing {
    Timing {
        warm_up: Duration::from_millis(warm_up_ms),
        measured: measured_ms.map(Duration::from_millis),
        patience: PATIENCE,
        keeps_each: true,
        interval: Duration::ZERO,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_counts_each_arrival_once() {
    let rig = Rig::start().await;
    let times = (0..500).map(|number| number * 20_000).collect();
    let figures = rig.load(LoadPattern::Open(Arrivals::At(times)), timing(0, None)).await;
    assert_eq!((figures.latencies.count(), figures.errors()), (500, 0), "{:?}", figures.first_fault);
    assert_eq!(rig.rows(), 500);
    let mut sent: Vec<u128> = figures.each.iter().map(|one| (one.sent_s * 1e6).round() as u128).collect();
    sent.sort_unstable();
    assert!(sent.into_iter().eq((0..500).map(|number| number * 20)), "each was to be sent at its own time");
    let total_ns: u64 = figures.each.iter().map(|one| one.latency_ns).sum();
    assert!((total_ns as f64 / 500.0 / figures.latencies.mean_ns() - 1.0).abs() < 0.01);
    assert!(figures.seconds > 0.0 && figures.throughput() > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_does_not_wait_for_answers() {
    const REQUESTS: usize = 50;
    let rig = Rig::start().await;
    let pool = Arc::clone(&rig.pool);
    let program = Arc::clone(&rig.program);
    let (locked, is_locked) = std::sync::mpsc::channel();
    // While the gate is locked nothing is answered, and yet all requests arrive.
    let gatekeeper = std::thread::spawn(move || {
        let shut = program.gate.write();
        locked.send(()).expect("the test waits for it");
        while pool.in_flight() < REQUESTS {
            std::thread::yield_now();
        }
        drop(shut);
    });
    is_locked.recv().expect("the gate is shut");
    let figures = rig.load(at_once(REQUESTS), timing(0, None)).await;
    gatekeeper.join().expect("all requests came");
    assert_eq!(figures.latencies.count(), REQUESTS as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_latency_counts_from_when_the_request_was_due() {
    const LATE: Duration = Duration::from_millis(50);
    let rig = Rig::start().await;
    let start = Instant::now().checked_sub(LATE).expect("the clock runs for longer");
    let arrivals = Arrivals::At(vec![0, 1000]);
    let figures = load::open(&rig.target, &rig.work, &arrivals, timing(0, None), 1, start).await;
    assert_eq!(figures.latencies.count(), 2);
    assert!(figures.latencies.mean_ns() >= (LATE.as_nanos() - 1000) as f64, "{:?}", figures.latencies);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_loop_keeps_its_number_in_flight() {
    let rig = Rig::start().await;
    let figures = rig.load(LoadPattern::Closed { concurrency: 4 }, timing(0, Some(300))).await;
    assert_eq!(figures.errors(), 0, "{:?}", figures.first_fault);
    assert!(figures.latencies.count() > 0);
    assert!(figures.latencies.count() <= rig.rows() as u64);
    assert!(rig.rows() as u64 <= figures.latencies.count() + 4, "only the last of each client came too late to count");
    assert_eq!(rig.pool.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_loop_counts_what_is_answered_in_the_measured_time() {
    let rig = Rig::start().await;
    let program = Arc::clone(&rig.program);
    let (locked, is_locked) = std::sync::mpsc::channel();
    let (start, timing) = (Instant::now(), timing(20, Some(300)));
    // Requests sent during the warm-up are answered after it.
    let gatekeeper = std::thread::spawn(move || {
        let shut = program.gate.write();
        locked.send(()).expect("the test waits for it");
        while Instant::now() < start + timing.warm_up {
            std::thread::yield_now();
        }
        drop(shut);
    });
    is_locked.recv().expect("the gate is shut");
    let figures = load::closed(&rig.target, &rig.work, 2, timing, start).await;
    gatekeeper.join().expect("the gate was opened");
    assert!(rig.rows() as u64 <= figures.latencies.count() + 2, "only the last of each client came too late to count");
    assert_eq!(figures.errors(), 0, "{:?}", figures.first_fault);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_while_warming_up_does_not_count() {
    let rig = Rig::start().await;
    let open = LoadPattern::Open(Arrivals::Poisson { rate: 5000.0 });
    for load in [open, LoadPattern::Closed { concurrency: 2 }] {
        let before = rig.rows();
        let figures = rig.load(load, timing(100, Some(0))).await;
        assert!(rig.rows() > before, "requests were sent");
        assert_eq!((figures.latencies.count(), figures.errors()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_answers_are_found() {
    let rig = Rig::start().await;
    for manner in [WRONG, NOT_A_NUMBER] {
        rig.program.manner.store(manner, Ordering::SeqCst);
        let figures = rig.load(at_once(40), timing(0, None)).await;
        // One row of a batch is corrupted.
        assert!(figures.wrong > 0 && figures.failed == 0, "{figures:?}");
        assert_eq!(figures.wrong + figures.latencies.count(), 40, "no wrong answer has a latency");
        let fault = figures.first_fault.expect("there was one");
        assert!(fault.starts_with("wrong answer: output 'y' is "), "{fault}");
    }
    rig.program.manner.store(RIGHT, Ordering::SeqCst);
    assert_eq!(rig.load(at_once(40), timing(0, None)).await.errors(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_requests_are_counted_and_end_a_closed_loop() {
    let rig = Rig::start().await;
    rig.program.manner.store(FAILS, Ordering::SeqCst);
    let figures = rig.load(at_once(40), timing(0, None)).await;
    assert_eq!((figures.failed, figures.wrong, figures.latencies.count()), (40, 0, 0));
    assert!(figures.first_fault.expect("there was one").contains("out of order"));
    let closed = rig.load(LoadPattern::Closed { concurrency: 3 }, timing(0, Some(60_000))).await;
    assert_eq!(closed.failed, 3, "each client gives up after its first");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_right_answer_beforehand_nothing_is_measured() {
    let rig = Rig::start().await;
    rig.program.manner.store(FAILS, Ordering::SeqCst);
    let samples = recipe().samples(rig.target.ports(), 1).expect("the recipe suits the model");
    let unanswered = CheckedRequests::prepare(&rig.target, samples, 1, None).await.expect_err("the program fails");
    assert!(unanswered.to_string().contains("request 0 failed"), "{unanswered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_measured_in_alternating_order_with_the_same_arrivals() {
    let rig = Rig::start().await;
    let (handle, second) = double(&rig.pool);
    let first = Subject { name: "first".to_owned(), target: rig.target.clone(), meter: Some(meter(20.0)) };
    let other = Subject { name: "second".to_owned(), target: Target::local(Servable::Model(handle)), meter: None };
    let mut sent = Vec::new();
    let done = || sent.push((rig.rows(), second.rows.load(Ordering::SeqCst)));
    let mut rounds = 0;
    let load = async || {
        rounds += 1;
        at_once(10 * rounds)
    };
    let outcomes = compare::measure(&[first, other], &rig.work, load, timing(0, None), 2, 3, done).await;
    assert_eq!(
        sent,
        [(10, 0), (10, 10), (10, 30), (30, 30)],
        "the second round is the other way round, and twice as much"
    );
    assert_eq!(outcomes.iter().map(|outcome| outcome.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert!(outcomes.iter().all(|outcome| outcome.total().latencies.count() == 30));
    let joules: Vec<_> = outcomes.iter().map(|outcome| outcome.total().joules).collect();
    assert_eq!(joules, [Some(40.0), None], "two rounds of 20 J each");
}

/// A meter on which `each` joules have been added at every reading.
fn meter(each: f64) -> Meter {
    let read = AtomicUsize::new(0);
    Meter::new(move || Some(each * read.fetch_add(1, Ordering::SeqCst) as f64))
}

#[tokio::test(flavor = "multi_thread")]
async fn energy_is_that_between_the_ends_of_the_counted_time() {
    let rig = Rig::start().await;
    let run = async |load: LoadPattern, meter: &Meter| {
        load::run_metered(&rig.target, &rig.work, &load, timing(10, Some(20)), 1, Some(meter)).await
    };
    let closed = run(LoadPattern::Closed { concurrency: 2 }, &meter(3.0)).await;
    assert_eq!(closed.joules, Some(3.0), "the counter is read twice, at the ends");
    let open = run(at_once(4), &meter(6.0)).await;
    assert_eq!((open.joules, open.joules_per_request()), (Some(6.0), Some(1.5)));
    let broken = run(at_once(4), &Meter::new(|| None)).await;
    assert_eq!((broken.joules, broken.joules_per_request()), (None, None));
}

#[test]
fn ports_are_what_the_specification_says() {
    let spec = ModelSpec {
        name: "m".to_owned(),
        version: 1,
        max_batch_size: 0,
        inputs: vec![TensorSpec::new("x", DataType::Int64, &[-1, 2])],
        outputs: vec![TensorSpec::new("y", DataType::Fp16, &[1]), TensorSpec::new("z", DataType::Fp16, &[1])],
        symbols: vec![],
        decoupled: false,
    };
    let ports = Ports::of(&spec, false);
    assert_eq!((ports.batched, ports.max_rows, ports.vary()), (false, 1, true));
    assert_eq!(ports.precision(), "FP16");
}
