use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_engine::{Program, RepeatElements};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec};
use paternoster_testing::program::{FakeProgram, execution};

use crate::{BringUp, InferError, InferRequest, ModelHandle, Pool, PoolOptions, Response};

/// Far longer than any test.
const FOREVER_MS: u32 = u32::MAX;

fn up(pool: &Arc<Pool>, spec: ModelSpec, program: Arc<dyn Program>, limit: Duration) -> Arc<ModelHandle> {
    let knobs = Knobs { max_batch_rows: 1, policy: Policy::Window(WindowKnobs::default()), ..Knobs::default() };
    let options = BringUp { task_time_limit: Some(limit), ..BringUp::default() };
    Arc::new(pool.bring_up_on(spec, knobs, program, &options).expect("the CPU has room"))
}

fn spec(inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>, decoupled: bool) -> ModelSpec {
    let name = "m".to_owned();
    ModelSpec { name, version: 1, max_batch_size: 0, inputs, outputs, symbols: vec![], decoupled }
}

/// Triton's `repeat` on a pool of one lane, with an optional time limit (zero for none).
fn repeat(pool: &Arc<Pool>, limit: Duration) -> Arc<ModelHandle> {
    repeat_as(pool, limit, true)
}

fn repeat_as(pool: &Arc<Pool>, limit: Duration, decoupled: bool) -> Arc<ModelHandle> {
    let inputs = vec![
        TensorSpec::new("IN", DataType::Int32, &[-1]),
        TensorSpec::new("DELAY", DataType::Uint32, &[-1]),
        TensorSpec::new("WAIT", DataType::Uint32, &[1]),
    ];
    let outputs = vec![TensorSpec::new("OUT", DataType::Int32, &[1]), TensorSpec::new("IDX", DataType::Uint32, &[1])];
    let spec = spec(inputs, outputs, decoupled);
    let program = RepeatElements::compile(&spec).expect("it fits");
    up(pool, spec, Arc::new(program), limit)
}

fn pool() -> Arc<Pool> {
    Pool::start(&PoolOptions { cpu_lanes: 1, ..PoolOptions::default() }).expect("threads start")
}

fn tensor(values: &[u32]) -> Option<InputTensor> {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Some(InputTensor { shape: Dims::from_slice(&[values.len() as i64]), data: Bytes::from(data) })
}

fn request(values: &[u32], delays_ms: &[u32], wait_ms: u32) -> InferRequest {
    of_inputs(vec![tensor(values), tensor(delays_ms), tensor(&[wait_ms])])
}

fn of_inputs(inputs: Vec<Option<InputTensor>>) -> InferRequest {
    InferRequest::new(1, inputs)
}

/// Returns OUT and IDX.
fn numbers(response: &Response) -> Vec<u32> {
    let number = |data: &Bytes| u32::from_le_bytes(data[..].try_into().expect("four bytes"));
    response.outputs.iter().map(|output| number(&output.data)).collect()
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap_or_else(|_| panic!("{what} in time"));
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_come_in_their_order_whatever_their_delays() {
    let pool = pool();
    let repeat = repeat(&pool, Duration::from_secs(60));
    let backlog = pool.backlog().connection().stream();
    let mut stream = repeat.submit_stream(request(&[7, 9, 8], &[2, 0, 3], 7).counted_in(&backlog));
    for expected in [[7, 0], [9, 1], [8, 2]] {
        let response = stream.next().await.expect("a response is due").expect("repeat does not fail");
        assert_eq!(numbers(&response), expected);
    }
    assert!(stream.next().await.is_none());
    assert_eq!((pool.in_flight(), repeat.stats().snapshot().inference_stats.success.count), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_not_decoupled_answers_with_the_first_response() {
    let pool = pool();
    let repeat = repeat_as(&pool, Duration::from_secs(60), false);
    for (delays, wait) in [([2, 50], 0), ([0, 50], 0), ([0, 0], 3), ([3, 0], 50)] {
        let response = repeat.submit(request(&[7, 9], &delays, wait)).await.expect("repeat does not fail");
        assert_eq!(numbers(&response), [7, 0], "{delays:?} {wait}");
    }
    let empty = repeat.submit(request(&[], &[], 3)).await.map(|response| numbers(&response));
    let expected = "expected at least 1 element of IN, since the model is not decoupled, got 0";
    assert_eq!(empty, Err(InferError::Engine(expected.to_owned())));
    assert_eq!(pool.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_slowly_is_waited_for_beside_the_delays() {
    let backlog = crate::BacklogLimits { stream_bytes: 1, ..Default::default() };
    let pool = Pool::start(&PoolOptions { cpu_lanes: 1, backlog, ..PoolOptions::default() }).expect("threads start");
    let repeat = repeat(&pool, Duration::from_secs(60));
    let backlog = pool.backlog().connection().stream();
    let mut stream = repeat.submit_stream(request(&[1, 2, 3, 4], &[0, 1, 0, 1], 0).counted_in(&backlog));
    for number in 0..4 {
        eventually("it pauses", || number == 3 || pool.stats().snapshot().responses_paused == u64::from(number) + 1)
            .await;
        let response = stream.next().await.expect("a response is due").expect("repeat does not fail");
        assert_eq!(numbers(&response), [number + 1, number]);
    }
    assert!(stream.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_holds_no_lane_and_ends_with_its_client() {
    let pool = pool();
    let repeat = repeat(&pool, Duration::ZERO);
    let output = vec![TensorSpec::new("y", DataType::Int32, &[1])];
    let zero = FakeProgram::new(|batch| execution(batch, &[(&[1], &[0; 4])]));
    let zero = up(&pool, spec(Vec::new(), output, false), Arc::new(zero), Duration::ZERO);
    let backlog = pool.backlog().connection().stream();
    let delayed: Vec<_> =
        (0..20).map(|_| repeat.submit_stream(request(&[1], &[FOREVER_MS], FOREVER_MS).counted_in(&backlog))).collect();
    for _ in 0..10 {
        let answer = zero.submit(of_inputs(Vec::new())).await.expect("the only lane is free");
        assert_eq!(answer.outputs[0].data.len(), 4);
    }
    assert_eq!(pool.in_flight(), 20);
    drop(delayed);
    assert_eq!(pool.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_ends_by_the_deadline_of_its_request() {
    let pool = pool();
    let repeat = repeat(&pool, Duration::ZERO);
    let backlog = pool.backlog().connection().stream();
    let deadline = Some(Instant::now() + Duration::from_millis(20));
    let asked = InferRequest { deadline, ..request(&[1], &[FOREVER_MS], 0) };
    let mut stream = repeat.submit_stream(asked.counted_in(&backlog));
    assert_eq!(stream.next().await.map(|answer| answer.map(|_| ())), Some(Err(InferError::Expired)));
    assert_eq!(pool.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn delays_beyond_the_time_limit_of_a_task_fail_the_request() {
    let pool = pool();
    let repeat = repeat(&pool, Duration::from_secs(1));
    let backlog = pool.backlog().connection().stream();
    for asked in [request(&[1], &[1_001], 0), request(&[], &[], FOREVER_MS), request(&[1, 2], &[1, 1_000], 0)] {
        let mut stream = repeat.submit_stream(asked.counted_in(&backlog));
        let failed = loop {
            match stream.next().await.expect("it fails") {
                Ok(response) => assert_eq!(numbers(&response), [1, 0], "what came before the delay"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(failed.contains("expected at most its time limit of 1s"), "{failed}");
    }
    assert_eq!(pool.in_flight(), 0);
}
