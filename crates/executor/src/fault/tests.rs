//! How a pool ends after its scheduler panicked, on any thread.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
    time::{Duration, Instant},
};

use bytes::Bytes;
use paternoster_batching::Knobs;
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec};
use paternoster_observe::{
    RequestEnd,
    timeline::{Record, Timeline},
};
use paternoster_testing::program::{FakeProgram, Gate};

use super::*;
use crate::{InferRequest, ModelHandle, PoolOptions, Response};

/// One lane, and one version whose runs wait and then fail.
struct Served {
    pool: Arc<Pool>,
    timeline: Arc<Timeline>,
    handle: Arc<ModelHandle>,
    gate: Gate,
}

impl Served {
    fn new() -> Self {
        let timeline = Arc::new(Timeline::on(100));
        let options = PoolOptions { cpu_lanes: 1, timeline: Arc::clone(&timeline), ..PoolOptions::default() };
        let pool = Pool::start(&options).expect("threads start");
        let (program, gate) = FakeProgram::failing("no row is ever made").gated();
        let spec = ModelSpec {
            name: "gated".to_owned(),
            version: 1,
            max_batch_size: 1,
            inputs: vec![TensorSpec::new("x", DataType::Uint8, &[1])],
            outputs: vec![TensorSpec::new("y", DataType::Uint8, &[1])],
            symbols: vec![],
            decoupled: false,
        };
        let handle = Arc::new(pool.bring_up(spec, Knobs::default(), Arc::new(program)).expect("the CPU has room"));
        Self { pool, timeline, handle, gate }
    }

    fn submit(&self) -> impl Future<Output = Result<Response, InferError>> + use<> {
        self.handle.submit(request())
    }

    /// Submits a request and waits until its run has started.
    fn running(&self) -> impl Future<Output = Result<Response, InferError>> + use<> {
        let response = self.submit();
        self.gate.await_run();
        response
    }

    /// Lets all runs end; the pool's threads must then end as well.
    fn ends(self) {
        assert!(self.pool.has_failed());
        soon(self.pool.failed());
        assert_eq!(self.pool.in_flight(), 0, "no request is left");
        drop(self.gate);
        assert!(self.pool.stop(Duration::from_secs(30)), "all threads end");
    }
}

fn request() -> InferRequest {
    let input = InputTensor { shape: Dims::from_slice(&[1, 1]), data: Bytes::from_static(&[1]) };
    InferRequest::new(1, vec![Some(input)])
}

/// Waits for a future that must complete, with a generous time limit.
fn soon<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let in_time = async { tokio::time::timeout(Duration::from_secs(120), what).await };
    runtime.block_on(in_time).expect("it comes in time")
}

/// Returns the error of a response, if any.
fn error(answer: Result<Response, InferError>) -> Option<InferError> {
    answer.err()
}

#[test]
fn a_panic_in_the_core_answers_everybody_and_nothing_is_admitted_any_more() {
    let served = Served::new();
    let (running, queued) = (served.running(), served.submit());
    let mut stream = served.handle.submit_stream(request().counted_in(served.pool.backlog()));
    served.pool.fail_next_step();
    let last = served.submit();
    assert!(served.pool.has_failed(), "before the client's thread goes on");
    for answer in [soon(running), soon(queued), soon(last), soon(served.submit())] {
        assert_eq!(error(answer), Some(InferError::SchedulerFailed));
    }
    let mut late = served.handle.submit_stream(request().counted_in(served.pool.backlog()));
    for answer in [soon(stream.next()), soon(late.next())] {
        assert_eq!(answer.and_then(error), Some(InferError::SchedulerFailed));
    }
    let stats = served.handle.stats().reading();
    let failures = stats.failures;
    assert_eq!((failures.other, failures.backend), (4, 0), "each that was admitted counts as failed, once");
    let recorded = served.timeline.recording().expect("it is on").records;
    let ended = recorded.iter().filter(|record| matches!(record, Record::Ended { how: RequestEnd::Lost, .. }));
    assert_eq!(ended.count(), 4, "and is seen to end in the timeline");
    served.ends();
}

#[test]
fn a_panic_in_the_core_on_a_lanes_thread_answers_everybody() {
    let served = Served::new();
    let (running, queued) = (served.running(), served.submit());
    served.pool.fail_next_step();
    served.gate.let_pass(1);
    for answer in [soon(running), soon(queued)] {
        assert_eq!(error(answer), Some(InferError::SchedulerFailed));
    }
    served.ends();
}

#[test]
fn a_panic_in_the_core_on_the_timers_thread_answers_everybody() {
    let served = Served::new();
    let running = served.running();
    served.pool.fail_next_step();
    served.pool.shards[0].timer.set(Instant::now());
    assert_eq!(error(soon(running)), Some(InferError::SchedulerFailed));
    served.ends();
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a test asked for this panic, too");
    }
}

#[test]
fn a_panic_on_a_lanes_thread_outside_of_core_and_program_ends_the_pool_too() {
    let served = Served::new();
    let (mut running, queued) = (pin!(served.running()), served.submit());
    let waker = Waker::from(Arc::new(Panics));
    assert!(running.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    served.gate.let_pass(1);
    assert_eq!(error(soon(queued)), Some(InferError::SchedulerFailed));
    served.ends();
}
