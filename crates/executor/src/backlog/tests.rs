use std::{
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_engine::{Program, Repeat};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec};
use paternoster_observe::timeline::{Record, Timeline};
use paternoster_testing::program::FakeProgram;

use super::*;
use crate::{InferError, InferRequest, ModelHandle, Pool, PoolOptions, Response};

const LIMITS: BacklogLimits = BacklogLimits { stream_bytes: 10, connection_bytes: 40, total_bytes: 100 };

fn process() -> (Arc<Backlog>, Arc<PoolStats>) {
    let stats = Arc::new(PoolStats::default());
    (Backlog::new(LIMITS, &stats), stats)
}

#[test]
fn what_waits_counts_at_every_level_until_it_is_taken() {
    let (process, stats) = process();
    let connection = process.connection();
    let (one, other) = (connection.stream(), connection.stream());
    let held = one.hold(7);
    let all = |one: &Backlog| (one.waiting_bytes(), connection.waiting_bytes(), process.waiting_bytes());
    assert_eq!((all(&one), other.waiting_bytes()), ((7, 7, 7), 0));
    assert_eq!(stats.snapshot().waiting_response_bytes, 7);
    drop(held);
    assert_eq!(all(&one), (0, 0, 0));
}

#[test]
fn a_stream_is_full_by_itself_and_by_its_connection_and_process() {
    let (process, _) = process();
    let connection = process.connection();
    let (one, other) = (connection.stream(), connection.stream());
    let held = one.hold(10);
    assert!(one.is_full() && !other.is_full());
    let unread = one.try_hold_streamed(1).expect_err("10 of 10 bytes wait");
    assert_eq!(unread, Unread { waiting_bytes: 10, limit_bytes: 10 });
    let unary = connection.hold(30);
    assert!(other.is_full(), "the connection has 40 of 40 bytes");
    drop((held, unary));
    let _elsewhere = process.connection().hold(100);
    assert!(one.is_full(), "the process has 100 of 100 bytes");
}

#[test]
fn in_a_full_process_only_connections_that_left_much_unread_are_refused() {
    let (process, stats) = process();
    let (hoarder, reader) = (process.connection(), process.connection());
    let _much = hoarder.hold(99);
    let _little = reader.hold(9);
    assert!(reader.try_hold(50).is_ok(), "others may not take its share");
    let refused = hoarder.stream().try_hold(1).expect_err("it has 99 bytes");
    assert_eq!(refused.limit_bytes, 100);
    assert_eq!(hoarder.waiting_bytes(), 99, "what was refused does not count");
    assert_eq!(stats.snapshot().responses_refused, 1);
}

#[test]
fn room_comes_when_the_client_has_taken_enough() {
    let (process, _) = process();
    let connection = process.connection();
    let (some, rest) = (connection.hold(20), connection.hold(30));
    let mut waits = Box::pin(connection.room());
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending(), "50 of 40 bytes wait");
    drop(some);
    assert!(waits.as_mut().poll(&mut context).is_ready());
    drop(rest);
    let _elsewhere = process.connection().hold(100);
    assert!(connection.has_room(), "a connection with nothing unread has room in a full process");
}

fn up(pool: &Arc<Pool>, decoupled: bool, program: Arc<dyn Program>) -> Arc<ModelHandle> {
    let spec = ModelSpec {
        name: "m".to_owned(),
        version: 1,
        max_batch_size: 8,
        inputs: vec![TensorSpec::new("x", DataType::Fp32, &[2])],
        outputs: vec![TensorSpec::new("y", DataType::Fp32, &[2])],
        symbols: vec![],
        decoupled,
    };
    let policy = Policy::Window(WindowKnobs::default());
    Arc::new(
        pool.bring_up(spec, Knobs { max_batch_rows: 8, policy, ..Knobs::default() }, program)
            .expect("the CPU has room"),
    )
}

fn pool(stream_bytes: usize) -> Arc<Pool> {
    let backlog = BacklogLimits { stream_bytes, ..BacklogLimits::default() };
    Pool::start(&PoolOptions { cpu_lanes: 1, backlog, ..PoolOptions::default() }).expect("threads start")
}

fn request(values: [f32; 2]) -> InferRequest {
    let data = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    InferRequest::new(1, vec![Some(InputTensor { shape: Dims::from_slice(&[1, 2]), data: Bytes::from(data) })])
}

fn values(response: &Response) -> Vec<f32> {
    let data = &response.outputs[0].data;
    data.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
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
async fn a_request_makes_no_more_than_its_client_takes_and_holds_no_lane_meanwhile() {
    const LIMIT: usize = 2000;
    let pool = pool(LIMIT);
    let (repeat, identity) =
        (up(&pool, true, Arc::new(Repeat { decoupled: true })), up(&pool, false, Arc::new(FakeProgram::identity())));
    let backlog = pool.backlog().connection().stream();
    let mut stream = repeat.submit_stream(request([500.0, 7.0]).counted_in(&backlog));
    eventually("it pauses", || pool.stats().snapshot().responses_paused == 1).await;
    for value in 0..20_u8 {
        let sent = [f32::from(value), 0.0];
        let answer = identity.submit(request(sent)).await.expect("the only lane is free");
        assert_eq!(values(&answer), sent);
    }
    let most = LIMIT + 400;
    assert!((LIMIT..most).contains(&backlog.waiting_bytes()), "{} bytes wait", backlog.waiting_bytes());
    assert_eq!(pool.stats().snapshot().responses_paused, 1, "it makes nothing more");
    for step in 0..500_u16 {
        assert!(backlog.waiting_bytes() < most, "{} bytes wait", backlog.waiting_bytes());
        let response = stream.next().await.expect("a response is due").expect("repeat does not fail");
        assert_eq!(values(&response), [500.0 + f32::from(step), 7.0 + f32::from(step)]);
    }
    assert!(stream.next().await.is_none(), "none is lost and none is made twice");
    assert_eq!((backlog.waiting_bytes(), pool.in_flight()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_request_that_is_given_up_leaves_nothing() {
    let pool = pool(1);
    let repeat = up(&pool, true, Arc::new(Repeat { decoupled: true }));
    let backlog = pool.backlog().connection().stream();
    let stream = repeat.submit_stream(request([500.0, 7.0]).counted_in(&backlog));
    eventually("it pauses", || pool.stats().snapshot().responses_paused == 1).await;
    drop(stream);
    assert_eq!((backlog.waiting_bytes(), pool.in_flight()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn small_replies_that_wait_behind_others_do_not_keep_the_memory_of_their_batch() {
    let pool = pool(1 << 20);
    for earlier in [false, true] {
        let (program, gate) = FakeProgram::identity().gated();
        let model = up(&pool, false, Arc::new(program));
        let first = model.submit(request([0.0, 0.0]));
        let backlog = pool.backlog().connection().stream();
        let _earlier = earlier.then(|| backlog.hold(1));
        // They wait until the first one passes the gate, and then run as one batch.
        let responses: Vec<_> =
            (1..=8_u8).map(|value| model.submit(request([f32::from(value), 0.0]).counted_in(&backlog))).collect();
        gate.let_pass(2);
        drop(first.await.expect("identity does not fail"));
        eventually("all have run", || pool.in_flight() == 0).await;
        eventually("the lane has let go of the batch", || pool.stats().snapshot().tasks_running == 0).await;
        assert_eq!(model.stats().snapshot().execution_count, 2, "the eight are one batch");
        let expected = if earlier { 0 } else { 64 };
        eventually("outputs are shared or copied", || pool.buffers().in_use_bytes() == expected).await;
        for (value, response) in (1..=8_u8).zip(responses) {
            assert_eq!(values(&response.await.expect("identity does not fail")), [f32::from(value), 0.0]);
        }
        assert_eq!(backlog.waiting_bytes(), usize::from(earlier));
        eventually("nothing is kept", || pool.buffers().in_use_bytes() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_may_not_wait_is_an_error() {
    let backlog = BacklogLimits { stream_bytes: 10, connection_bytes: 10, total_bytes: 100 };
    let timeline = Arc::new(Timeline::on(100));
    let options = PoolOptions { backlog, timeline: Arc::clone(&timeline), ..PoolOptions::default() };
    let pool = Pool::start(&options).expect("threads start");
    let model = up(&pool, false, Arc::new(FakeProgram::identity()));
    let connection = pool.backlog().connection();
    let _unread = connection.hold(100);
    let refused =
        model.submit(request([1.0, 2.0]).counted_in(&connection.stream())).await.expect_err("it may not wait");
    assert!(matches!(refused, InferError::Unread(Unread { limit_bytes: 100, .. })), "{refused}");
    let other = pool.backlog().connection().stream();
    model.submit(request([1.0, 2.0]).counted_in(&other)).await.expect("another client's may");
    let read = model.stats().reading();
    assert_eq!((read.stats.inference_stats.fail.count, read.failures.rejected), (1, 1));
    let recorded = timeline.recording().expect("it is on").records;
    let ends = recorded.iter().filter_map(|record| match record {
        Record::Ended { how, .. } => Some(how.to_string()),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), ["failed", "completed"], "the timeline shows what the clients got");
}
