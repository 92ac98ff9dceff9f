//! The pool with real threads and small programs: every request gets its own rows, ends once, and leaves nothing
//! behind.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use crossbeam_channel::Receiver;
use paternoster_batching::{Knobs, Policy, QueueKnobs, QueueingKnobs, WindowKnobs};
use paternoster_engine::{Batch, EngineError, Repeat};
use paternoster_executor::{InferError, InferRequest, ModelHandle, Pool, PoolOptions, Response};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, SymbolId, TensorSpec};
use paternoster_observe::TokenCounts;
use paternoster_testing::program::{FakeProgram, Gate, floats, identity};

/// A row with this first value fails, whatever batch it is in.
const POISON: f32 = -1.0;

fn has_poison(batch: &Batch<'_>) -> bool {
    floats(&batch.inputs[0]).chunks(2).any(|row| row[0] == POISON)
}

/// A model that returns its input, and the gate before it. It fails on poison.
struct Gated {
    handle: Arc<ModelHandle>,
    gate: Gate,
    program: Weak<FakeProgram>,
}

impl Gated {
    fn on(pool: &Arc<Pool>, knobs: Knobs) -> Self {
        Self::of(spec(8), pool, knobs)
    }

    fn of(spec: ModelSpec, pool: &Arc<Pool>, knobs: Knobs) -> Self {
        let program =
            FakeProgram::new(|batch| if has_poison(batch) { Err(EngineError::new("poison")) } else { identity(batch) });
        let (program, gate) = program.gated();
        let program = Arc::new(program);
        let weak = Arc::downgrade(&program);
        let handle = Arc::new(pool.bring_up(spec, knobs, program).expect("the CPU has room"));
        Self { handle, gate, program: weak }
    }
}

fn spec(max_batch_size: u32) -> ModelSpec {
    ModelSpec {
        name: "identity".to_owned(),
        version: 1,
        max_batch_size,
        inputs: vec![TensorSpec::new("x", DataType::Fp32, &[2])],
        outputs: vec![TensorSpec::new("y", DataType::Fp32, &[2])],
        symbols: vec![],
        decoupled: false,
    }
}

fn window(default_queue: QueueKnobs) -> Knobs {
    Knobs {
        max_batch_rows: 8,
        queueing: QueueingKnobs { default_queue, ..QueueingKnobs::default() },
        policy: Policy::Window(WindowKnobs::default()),
        ..Knobs::default()
    }
}

fn zero_batch() -> Knobs {
    window(QueueKnobs::default())
}

fn one_lane() -> Arc<Pool> {
    Pool::start(&PoolOptions { cpu_lanes: 1, ..PoolOptions::default() }).expect("threads start")
}

fn request(values: &[f32]) -> InferRequest {
    let rows = values.len() as u32 / 2;
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    InferRequest::new(
        rows,
        vec![Some(InputTensor { shape: Dims::from_slice(&[i64::from(rows), 2]), data: Bytes::from(data) })],
    )
}

fn values(response: &Response) -> Vec<f32> {
    let data = &response.outputs[0].data;
    data.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_gets_its_own_rows() {
    let pool = Pool::start(&PoolOptions::default()).expect("threads start");
    let handle =
        Arc::new(pool.bring_up(spec(8), zero_batch(), Arc::new(FakeProgram::identity())).expect("the CPU has room"));
    let requests = (0..2000_u16).map(|index| {
        let handle = Arc::clone(&handle);
        tokio::spawn(async move {
            let rows = usize::from(index % 3) + 1;
            let sent: Vec<f32> = (0..rows * 2).map(|place| f32::from(index) + place as f32 / 16.0).collect();
            let response = handle.submit(request(&sent)).await.expect("identity does not fail");
            assert_eq!(response.outputs[0].shape.as_slice(), [rows as i64, 2]);
            assert_eq!(values(&response), sent, "request {index} got rows that are not its own");
        })
    });
    for one in requests.collect::<Vec<_>>() {
        one.await.expect("the assertions of a request hold");
    }
    assert_eq!(pool.in_flight(), 0);
    assert!(pool.stop(Duration::from_secs(60)), "all threads end");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_travel_together() {
    let pool = one_lane();
    let model = Gated::on(&pool, zero_batch());
    let first = model.handle.submit(request(&[1.0, 2.0]));
    assert_eq!(model.gate.await_run(), 1, "the first request finds an idle lane");
    let waiting: Vec<_> = (0..5_u8).map(|index| model.handle.submit(request(&[f32::from(index), 0.5]))).collect();
    model.gate.let_pass(1);
    assert_eq!(model.gate.await_run(), 5, "those that waited form one batch");
    model.gate.let_pass(1);
    assert_eq!(values(&first.await.expect("it ran")), [1.0, 2.0]);
    for (index, response) in (0..5_u8).zip(waiting) {
        assert_eq!(values(&response.await.expect("it ran")), [f32::from(index), 0.5]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_of_batches_are_counted_with_and_without_padding() {
    let pool = one_lane();
    let tensor = |name: &str| {
        let mut tensor = TensorSpec::new(name, DataType::Fp32, &[-1]);
        tensor.symbols = [Some(SymbolId(0))].into_iter().collect();
        vec![tensor]
    };
    let symbols = vec!["length".to_owned()];
    let spec = ModelSpec { inputs: tensor("x"), outputs: tensor("y"), symbols, ..spec(8) };
    let queueing = QueueingKnobs { bucket_width: Some(0), ..QueueingKnobs::default() };
    let model = Gated::of(spec, &pool, Knobs { queueing, ..zero_batch() });
    let of = |rows: i64, length: i64| {
        let data = Bytes::from(vec![0; (rows * length * 4) as usize]);
        InferRequest::new(rows as u32, vec![Some(InputTensor { shape: Dims::from_slice(&[rows, length]), data })])
    };
    let first = model.handle.submit(of(1, 4));
    model.gate.await_run();
    let waiting = [model.handle.submit(of(2, 3)), model.handle.submit(of(1, 10))];
    model.gate.let_pass(2);
    first.await.expect("it ran");
    for response in waiting {
        response.await.expect("it ran");
    }
    let counted = model.handle.stats().reading().tokens;
    assert_eq!(counted, Some(TokenCounts { own: 4 + 2 * 3 + 10, padding: 2 * 7 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_fails_alone() {
    let pool = one_lane();
    let model = Gated::on(&pool, zero_batch());
    let first = model.handle.submit(request(&[1.0, 2.0]));
    model.gate.await_run();
    let good = model.handle.submit(request(&[3.0, 4.0]));
    let bad = model.handle.submit(request(&[POISON, 4.0]));
    let other = model.handle.submit(request(&[5.0, 6.0]));
    // Six runs: the first request alone, the three together, two of them, and each alone.
    model.gate.let_pass(6);
    assert_eq!(values(&first.await.expect("it ran")), [1.0, 2.0]);
    assert_eq!(bad.await.expect_err("poison fails"), InferError::Engine("poison".to_owned()));
    assert_eq!(values(&good.await.expect("a stranger's fault is not its own")), [3.0, 4.0]);
    assert_eq!(values(&other.await.expect("a stranger's fault is not its own")), [5.0, 6.0]);
    assert_eq!(model.gate.begun(), [3, 2, 1, 1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_a_program_fails_its_request_alone() {
    let pool = one_lane();
    let brittle = FakeProgram::new(|batch| {
        assert!(!has_poison(batch), "as planted");
        identity(batch)
    });
    let handle = Arc::new(pool.bring_up(spec(8), zero_batch(), Arc::new(brittle)).expect("the CPU has room"));
    for _ in 0..3 {
        let panicked = handle.submit(request(&[POISON, 0.0])).await.expect_err("the program panicked");
        assert_eq!(panicked, InferError::Engine("the program of model 'identity' panicked".to_owned()));
        assert_eq!(values(&handle.submit(request(&[1.0, 2.0])).await.expect("the lane goes on")), [1.0, 2.0]);
    }
    let running = pool.stats().snapshot().tasks_running;
    assert_eq!((pool.in_flight(), running), (0, 0), "a task that panicked has ended");
    assert!(pool.stop(Duration::from_secs(60)), "all threads end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_turns_requests_away_and_keeps_the_rest() {
    let pool = one_lane();
    let model = Gated::on(&pool, window(QueueKnobs { max_queue_size: 2, ..QueueKnobs::default() }));
    let first = model.handle.submit(request(&[1.0, 0.0]));
    model.gate.await_run();
    let mut waiting: Vec<_> = (2..6_u8).map(|index| model.handle.submit(request(&[f32::from(index), 0.0]))).collect();
    for surplus in waiting.split_off(2) {
        assert_eq!(surplus.await.expect_err("two wait already"), InferError::QueueFull);
    }
    model.gate.let_pass(2);
    assert_eq!(values(&first.await.expect("it ran")), [1.0, 0.0]);
    for (index, response) in (2..4_u8).zip(waiting) {
        assert_eq!(values(&response.await.expect("it ran")), [f32::from(index), 0.0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_ticket_leaves_the_queue() {
    let pool = one_lane();
    let model = Gated::on(&pool, zero_batch());
    let first = model.handle.submit(request(&[1.0, 0.0]));
    model.gate.await_run();
    drop(model.handle.submit(request(&[2.0, 0.0])));
    let last = model.handle.submit(request(&[3.0, 0.0]));
    assert_eq!(pool.in_flight(), 2, "the dropped one is gone");
    model.gate.let_pass(2);
    first.await.expect("it ran");
    assert_eq!(values(&last.await.expect("it ran")), [3.0, 0.0]);
    assert_eq!(model.gate.begun(), [1], "the last one ran by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_running_request_for_its_client() {
    let pool = one_lane();
    let model = Gated::on(&pool, zero_batch());
    let mut expiring = request(&[1.0, 0.0]);
    // Long enough for the run to begin on a busy machine.
    expiring.deadline = Some(Instant::now() + Duration::from_secs(1));
    let response = model.handle.submit(expiring);
    model.gate.await_run();
    assert_eq!(response.await.expect_err("the run is still at its gate"), InferError::Expired);
    let next = model.handle.submit(request(&[2.0, 0.0]));
    model.gate.let_pass(2);
    assert_eq!(values(&next.await.expect("the lane goes on")), [2.0, 0.0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_timeout_fires_when_it_expires() {
    let pool = one_lane();
    let model = Gated::on(&pool, window(QueueKnobs { allow_timeout_override: true, ..QueueKnobs::default() }));
    let first = model.handle.submit(request(&[1.0, 0.0]));
    model.gate.await_run();
    let mut impatient = request(&[2.0, 0.0]);
    impatient.queue_timeout = Some(Duration::from_millis(20));
    // The first run is still at its gate, so only the timer can end this request.
    assert_eq!(model.handle.submit(impatient).await.expect_err("it waited too long"), InferError::QueueTimeout);
    model.gate.let_pass(1);
    first.await.expect("it ran");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_freed_by_the_last_of_its_requests() {
    let pool = one_lane();
    let Gated { handle, gate, program } = Gated::on(&pool, zero_batch());
    let response = handle.submit(request(&[1.0, 0.0]));
    gate.await_run();
    drop(handle);
    assert!(program.upgrade().is_some(), "a request in flight holds its version");
    gate.let_pass(1);
    assert_eq!(values(&response.await.expect("it ends on the version it began on")), [1.0, 0.0]);
    assert!(pool.stop(Duration::from_secs(60)), "all threads end");
    assert!(program.upgrade().is_none(), "nothing holds the program any more");
}

/// Returns a program that returns its input, and records the thread on which it ran.
fn steady() -> (Arc<FakeProgram>, Receiver<Option<String>>) {
    let (threads, ran_on) = crossbeam_channel::unbounded();
    let program = FakeProgram::new(move |batch| {
        // The test may have ended.
        let _ = threads.send(std::thread::current().name().map(str::to_owned));
        identity(batch)
    });
    (Arc::new(program.steady()), ran_on)
}

/// The name of the only lane's thread.
const LANE: &str = "cpu-stream-0";

/// Sends requests of one row, one after another, until one runs on the thread that submitted it.
async fn until_one_needs_no_lane(handle: &Arc<ModelHandle>, ran_on: &Receiver<Option<String>>) {
    // The length of a run depends on the machine. Among this many runs, enough in a row are short.
    for index in 0..100_000_u32 {
        let sent = [index as f32, 0.5];
        assert_eq!(values(&handle.submit(request(&sent)).await.expect("it ran")), sent);
        let thread = ran_on.recv().expect("each run is noted").unwrap_or_default();
        assert!(index > 0 || thread == LANE, "nothing is known of the first run, but it ran on {thread}");
        if thread != LANE {
            return;
        }
    }
    panic!("a lone request of a short program should run on the thread that submitted it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_run_of_a_lone_request_needs_no_lane() {
    let pool = one_lane();
    let (program, ran_on) = steady();
    let handle = Arc::new(pool.bring_up(spec(8), zero_batch(), program).expect("the CPU has room"));
    until_one_needs_no_lane(&handle, &ran_on).await;
    assert_eq!(pool.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_request_larger_than_those_known_to_be_short_goes_to_a_lane() {
    const ROWS: usize = 1024;
    let pool = one_lane();
    let (program, ran_on) = steady();
    let knobs = Knobs { max_batch_rows: ROWS as u32, ..zero_batch() };
    let handle = Arc::new(pool.bring_up(spec(ROWS as u32), knobs, program).expect("the CPU has room"));
    until_one_needs_no_lane(&handle, &ran_on).await;
    let sent = vec![1.0; ROWS * 2];
    assert_eq!(values(&handle.submit(request(&sent)).await.expect("it ran")), sent);
    let thread = ran_on.recv().expect("each run is noted");
    assert_eq!(thread.as_deref(), Some(LANE), "one row tells nothing of {ROWS}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_answers_what_is_in_flight() {
    let pool = one_lane();
    let model = Gated::on(&pool, zero_batch());
    let running = model.handle.submit(request(&[1.0, 0.0]));
    model.gate.await_run();
    let waiting = model.handle.submit(request(&[2.0, 0.0]));
    assert!(!pool.stop(Duration::ZERO), "the lane is still at its gate");
    let late = model.handle.submit(request(&[3.0, 0.0]));
    for response in [running, waiting, late] {
        assert_eq!(response.await.expect_err("the pool stopped"), InferError::ShuttingDown);
    }
    model.gate.let_pass(1);
    assert!(pool.stop(Duration::from_secs(60)), "all threads end");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeat_gives_its_first_response_where_the_model_is_not_decoupled() {
    let pool = one_lane();
    let program = Repeat::compile(&spec(8)).expect("the specification fits");
    let handle = pool.bring_up(spec(8), zero_batch(), Arc::new(program)).expect("the CPU has room");
    let handle = Arc::new(handle);
    for count in [0.0, 1.0, 5.0] {
        let response = handle.submit(request(&[count, 7.0])).await.expect("repeat does not fail");
        assert_eq!(values(&response), [count, 7.0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeat_gives_as_many_responses_as_asked() {
    let pool = one_lane();
    let spec = ModelSpec { decoupled: true, ..spec(8) };
    let program = Repeat::compile(&spec).expect("the specification fits");
    let handle = Arc::new(pool.bring_up(spec, zero_batch(), Arc::new(program)).expect("the CPU has room"));
    for count in [0_u8, 1, 5] {
        let mut stream = handle.submit_stream(request(&[f32::from(count), 7.0]).counted_in(pool.backlog()));
        for step in 0..count {
            let response = stream.next().await.expect("a response is due").expect("repeat does not fail");
            assert_eq!(values(&response), [f32::from(count) + f32::from(step), 7.0 + f32::from(step)]);
        }
        assert!(stream.next().await.is_none(), "{count} responses are all");
    }
    let mut refused = handle.submit_stream(request(&[-3.0, 0.0]).counted_in(pool.backlog()));
    let error = refused.next().await.expect("an answer is due").expect_err("the count is negative");
    assert_eq!(error, InferError::Engine("negative count".to_owned()));
}
