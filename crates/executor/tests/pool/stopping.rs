//! Runs that do not end by themselves. They are asked to stop when no client waits for them or their time limit has
//! passed. A lane whose task does not stop continues without it.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_engine::{Batch, Program};
use paternoster_executor::{
    BringUp, InferError, InferRequest, ModelHandle, Pool, PoolOptions, Response, ResponseFuture, Responsiveness,
    StagePrograms,
};
use paternoster_model::{Dims, InputTensor};
use paternoster_observe::LaneCounts;
use paternoster_testing::{
    chain,
    program::{FakeProgram, Gate, floats, identity, like_input, until_stopped},
};
use tokio::{sync::watch, time::timeout};

const WIDTH: usize = 2;
/// A row with this first value runs until it is asked to stop.
const ENDLESS: f32 = -1.0;
/// A row with this first value runs until the test releases it, even when it is asked to stop.
const DEAF: f32 = -2.0;
/// Time limit of waits: a test whose lane is not free by then fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);
/// A limit that no test reaches.
const NEVER: Duration = Duration::from_secs(3600);
/// A limit that a test waits for, and that no honest run reaches on a busy machine.
const SOON: Duration = Duration::from_millis(500);

/// A model, and the gate before its program.
struct Model {
    handle: Arc<ModelHandle>,
    gate: Gate,
    program: Weak<FakeProgram>,
}

/// Returns a program that returns its input, unless a row is endless. A deaf row waits at the gate.
fn listening() -> (Arc<FakeProgram>, Gate) {
    let holds = |batch: &Batch<'_>, first: f32| floats(&batch.inputs[0]).chunks(WIDTH).any(|row| row[0] == first);
    let run = move |batch: &Batch<'_>| if holds(batch, ENDLESS) { until_stopped(batch) } else { identity(batch) };
    let (program, gate) = FakeProgram::new(run).gated_if(move |batch| holds(batch, DEAF));
    (Arc::new(program), gate)
}

fn window() -> Knobs {
    Knobs { max_batch_rows: 8, policy: Policy::Window(WindowKnobs::default()), ..Knobs::default() }
}

impl Model {
    fn on(pool: &Arc<Pool>) -> Self {
        Self::within(pool, None)
    }

    /// Creates a model with its own time limit.
    fn within(pool: &Arc<Pool>, limit: Option<Duration>) -> Self {
        let (program, gate) = listening();
        let weak = Arc::downgrade(&program);
        let options = BringUp { task_time_limit: limit, ..BringUp::default() };
        let handle = pool.bring_up_on(chain::spec(WIDTH), window(), program, &options);
        let handle = Arc::new(handle.expect("the CPU has room"));
        Self { handle, gate, program: weak }
    }

    fn submit(&self, first: f32) -> ResponseFuture {
        self.submit_until(first, None)
    }

    fn submit_until(&self, first: f32, deadline: Option<Instant>) -> ResponseFuture {
        let data = Bytes::copy_from_slice(bytemuck::cast_slice(&[first, 0.5]));
        let input = InputTensor { shape: Dims::from_slice(&[1, 2]), data };
        let inputs = vec![Some(input)];
        self.handle.submit(InferRequest { deadline, ..InferRequest::new(1, inputs) })
    }

    async fn answers(&self) {
        let answer = timeout(PATIENCE, self.submit(7.0)).await.expect("a lane is free");
        let response = answer.expect("it ran");
        assert_eq!(first(&response), 7.0);
    }

    /// Returns the number of requests that the engine failed, and of those that clients cancelled.
    fn failed(&self) -> (u64, u64) {
        let failures = self.handle.stats().reading().failures;
        (failures.backend, failures.canceled)
    }
}

fn first(response: &Response) -> f32 {
    let bytes = &response.outputs[0].data;
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn pool(cpu_lanes: u16, task_time_limit: Duration, stop_grace: Duration) -> Arc<Pool> {
    let options = PoolOptions { cpu_lanes, task_time_limit, stop_grace, ..PoolOptions::default() };
    Pool::start(&options).expect("threads start")
}

fn counts(pool: &Pool) -> LaneCounts {
    pool.stats().snapshot().lanes
}

/// Waits until versions and lanes respond as they should.
async fn until(pool: &Pool, reached: impl FnMut(&Responsiveness) -> bool) {
    let mut responsiveness: watch::Receiver<Responsiveness> = pool.responsiveness();
    responsiveness.wait_for(reached).await.expect("the pool lives");
}

const OVERDUE: &str = "model 'line' does not respond: a task has not ended within 500ms";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_client_is_gone_leaves_its_lane_at_once() {
    let pool = pool(1, Duration::ZERO, NEVER);
    let (model, other) = (Model::on(&pool), Model::on(&pool));
    for given_up in 1..=3 {
        let response = model.submit(ENDLESS);
        model.gate.await_run();
        drop(response);
        other.answers().await;
        model.answers().await;
        assert_eq!(model.gate.await_run(), 1);
        assert_eq!(model.failed(), (0, given_up), "it is cancelled, nothing else");
    }
    assert_eq!(counts(&pool), LaneCounts { unwanted: 3, ..LaneCounts::default() });
    assert!(pool.stop(PATIENCE), "all threads end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_clients_deadline_has_passed_leaves_its_lane_at_once() {
    let pool = pool(2, Duration::ZERO, NEVER);
    let (model, other) = (Model::on(&pool), Model::on(&pool));
    let deadline = Some(Instant::now() + SOON);
    // Each request holds a lane.
    let (one, two) = (model.submit_until(ENDLESS, deadline), other.submit_until(ENDLESS, deadline));
    for response in [one, two] {
        assert_eq!(response.await.expect_err("it never ends by itself"), InferError::Expired);
    }
    model.answers().await;
    other.answers().await;
    assert_eq!((model.failed(), other.failed()), ((0, 1), (0, 1)));
    assert!(pool.stop(PATIENCE), "all threads end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_anybody_waits_for_goes_on() {
    let pool = pool(1, Duration::ZERO, NEVER);
    let model = Model::on(&pool);
    let first_run = model.submit(DEAF);
    model.gate.await_run();
    let (leaves, stays) = (model.submit(1.0), model.submit(DEAF));
    model.gate.let_pass(1);
    first_run.await.expect("it was released");
    assert_eq!(model.gate.await_run(), 2, "those that waited run together");
    drop(leaves);
    model.gate.let_pass(1);
    assert_eq!(first(&stays.await.expect("it ran to its end")), DEAF);
    assert_eq!(counts(&pool).unwanted, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_whose_client_is_gone_leaves_its_lane() {
    let pool = pool(1, Duration::ZERO, NEVER);
    let (last, gate) = listening();
    let program = Arc::downgrade(&last);
    let ends = FakeProgram::new(|batch| like_input(batch, [ENDLESS, 0.5].repeat(batch.rows as usize)));
    let stages: Vec<Arc<dyn Program>> = vec![Arc::new(ends), last];
    let programs = StagePrograms::cut(&chain::spec(WIDTH), chain::plan(2, WIDTH), stages).expect("the plan is sound");
    let handle = Arc::new(pool.bring_up(chain::spec(WIDTH), window(), programs).expect("the CPU has room"));
    let (staged, other) = (Model { handle, gate, program }, Model::on(&pool));
    for _ in 0..2 {
        let response = staged.submit(1.0);
        staged.gate.await_run();
        drop(response);
        other.answers().await;
    }
    assert_eq!(staged.failed(), (0, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_a_task_past_its_time_run_again_and_only_the_endless_one_fails() {
    let pool = pool(1, Duration::ZERO, NEVER);
    let (model, other) = (Model::within(&pool, Some(SOON)), Model::on(&pool));
    let first_run = model.submit(ENDLESS);
    model.gate.await_run();
    let (endless, stranger) = (model.submit(ENDLESS), model.submit(3.0));
    drop(first_run);
    assert_eq!(model.gate.await_run(), 2, "those that waited run together");
    assert_eq!(first(&stranger.await.expect("it ends when it is alone")), 3.0);
    assert_eq!(endless.await.expect_err("it never ends by itself"), InferError::Engine(OVERDUE.to_owned()));
    until(&pool, |lanes| lanes.stuck_lanes == 0).await;
    assert!(model.handle.is_responsive());
    other.answers().await;
    assert!(counts(&pool).overdue >= 2, "once with the stranger, once alone");
    assert!(pool.stop(PATIENCE), "all threads end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_may_run_longer_than_others() {
    let pool = pool(2, SOON, NEVER);
    let (patient, other) = (Model::within(&pool, Some(Duration::ZERO)), Model::on(&pool));
    let honest = patient.submit(DEAF);
    patient.gate.await_run();
    // By then the other requests' limit has passed for this one too.
    for _ in 0..3 {
        assert_eq!(other.submit(ENDLESS).await.expect_err("its time is over"), InferError::Engine(OVERDUE.to_owned()));
    }
    patient.gate.let_pass(1);
    assert_eq!(first(&honest.await.expect("it may run for as long as it likes")), DEAF);
    let hasty = Model::within(&pool, Some(SOON / 2));
    let reason = "model 'line' does not respond: a task has not ended within 250ms";
    assert_eq!(hasty.submit(ENDLESS).await.expect_err("its time is over"), InferError::Engine(reason.to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_is_stuck_while_a_task_past_its_time_has_not_returned() {
    let pool = pool(2, Duration::ZERO, NEVER);
    let (model, other) = (Model::within(&pool, Some(SOON)), Model::on(&pool));
    let response = model.submit(DEAF);
    until(&pool, |lanes| lanes.stuck_lanes == 1).await;
    assert_eq!(model.handle.fault().as_deref(), Some("a task has not ended within 500ms"));
    assert!(other.handle.is_responsive());
    other.answers().await;
    model.gate.let_pass(1);
    assert_eq!(first(&response.await.expect("its late result is its answer")), DEAF);
    until(&pool, |lanes| lanes.stuck_lanes == 0).await;
    assert!(model.handle.is_responsive());
    assert_eq!(counts(&pool), LaneCounts { overdue: 1, ..LaneCounts::default() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_goes_on_without_a_task_that_does_not_stop() {
    let pool = pool(1, Duration::ZERO, SOON);
    let (model, other) = (Model::within(&pool, Some(SOON)), Model::on(&pool));
    assert_eq!(model.submit(DEAF).await.expect_err("it does not stop"), InferError::Engine(OVERDUE.to_owned()));
    other.answers().await;
    assert!(model.handle.is_responsive(), "its other requests have a lane");
    assert_eq!(counts(&pool), LaneCounts { overdue: 1, replaced: 1, abandoned: 1, ..LaneCounts::default() });
    model.gate.let_pass(1);
    until(&pool, |_| counts(&pool).abandoned == 0).await;
    other.answers().await;
    let program = model.program;
    drop((model.handle, other));
    assert!(pool.stop(PATIENCE), "all threads end, the one that was left to itself too");
    assert!(program.upgrade().is_none(), "nothing holds the program any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_of_an_unwanted_task_that_does_not_stop_goes_on_too() {
    let pool = pool(1, Duration::ZERO, SOON);
    let (model, other) = (Model::on(&pool), Model::on(&pool));
    let response = model.submit(DEAF);
    model.gate.await_run();
    drop(response);
    other.answers().await;
    assert_eq!(counts(&pool), LaneCounts { unwanted: 1, replaced: 1, abandoned: 1, ..LaneCounts::default() });
    model.gate.let_pass(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_tasks_than_lanes_are_left_to_themselves() {
    let pool = pool(1, Duration::ZERO, SOON);
    let [one, two] = [(); 2].map(|()| Model::within(&pool, Some(SOON)));
    let other = Model::on(&pool);
    for model in [&one, &two] {
        model.submit(DEAF).await.expect_err("it does not stop");
    }
    until(&pool, |lanes| lanes.stuck_lanes == 1).await;
    assert!(one.handle.is_responsive() && !two.handle.is_responsive());
    assert_eq!(counts(&pool), LaneCounts { stuck: 1, abandoned: 1, replaced: 1, overdue: 2, ..LaneCounts::default() });
    // When the first ends, there is room for the second.
    one.gate.let_pass(1);
    until(&pool, |lanes| lanes.stuck_lanes == 0).await;
    other.answers().await;
    assert!(two.handle.is_responsive());
    assert_eq!(counts(&pool), LaneCounts { abandoned: 1, replaced: 2, overdue: 2, ..LaneCounts::default() });
    two.gate.let_pass(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lane_takes_tasks_again_when_its_own_returns() {
    let pool = pool(1, Duration::ZERO, SOON);
    let [one, two] = [(); 2].map(|()| Model::within(&pool, Some(SOON)));
    for model in [&one, &two] {
        model.submit(DEAF).await.expect_err("it does not stop");
    }
    until(&pool, |lanes| lanes.stuck_lanes == 1).await;
    two.gate.let_pass(1);
    until(&pool, |lanes| lanes.stuck_lanes == 0).await;
    Model::on(&pool).answers().await;
    assert_eq!(counts(&pool), LaneCounts { abandoned: 1, replaced: 1, overdue: 2, ..LaneCounts::default() });
    one.gate.let_pass(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_with_stuck_lanes_stops() {
    let pool = pool(1, Duration::ZERO, SOON);
    let [one, two] = [(); 2].map(|()| Model::within(&pool, Some(SOON)));
    for model in [&one, &two] {
        model.submit(DEAF).await.expect_err("it does not stop");
    }
    let waiting = one.submit(1.0);
    assert!(!pool.stop(Duration::ZERO), "two threads are still at their gates");
    assert_eq!(waiting.await.expect_err("the pool stopped"), InferError::ShuttingDown);
    one.gate.let_pass(1);
    two.gate.let_pass(1);
    assert!(pool.stop(PATIENCE), "all threads end");
}
