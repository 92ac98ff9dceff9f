//! Versions cut into stages on the pool with real threads: rows keep their places from stage to stage, leave at their
//! exits, and each request gets its own rows back in order.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use paternoster_batching::{
    CostPoint, CostTable, DiversityKnobs, Knobs, LoadDiversity, OperatorDiversity, Policy, PolicyKind, WindowKnobs,
};
use paternoster_engine::{EngineError, Program, StopSignal};
use paternoster_executor::{
    InferError, InferRequest, ModelHandle, Pool, PoolOptions, Response, ResponseFuture, StagePrograms, WarmUp,
};
use paternoster_model::{DataType, Dims, Exit, ExitTo, InputSource, InputTensor, Sink, StagePlan, TensorSpec};
use paternoster_observe::timeline::Timeline;
use paternoster_testing::{
    chain,
    program::{FakeProgram, Gate, dense, execution, floats, like_input},
};

/// Values of a row.
const WIDTH: usize = 2;
/// A row with this first value fails, whatever batch it is in.
const POISON: f32 = -1.0;

/// Returns a program that multiplies all values by ten and adds its digit. Digits above one fail on poison.
fn digit(own: f32) -> FakeProgram {
    FakeProgram::new(move |batch| {
        let values = floats(&batch.inputs[0]);
        if own > 1.0 && values.chunks(2).any(|row| row[1] == POISON) {
            return Err(EngineError::new("poison"));
        }
        let keep_poison = |value: f32| if value == POISON { POISON } else { value * 10.0 + own };
        like_input(batch, values.into_iter().map(keep_poison))
    })
}

fn free(own: f32) -> Arc<dyn Program> {
    Arc::new(digit(own))
}

fn gated(own: f32) -> (Arc<dyn Program>, Gate) {
    let (program, gate) = digit(own).gated();
    (Arc::new(program), gate)
}

fn window() -> Knobs {
    Knobs { max_batch_rows: 8, policy: Policy::Window(WindowKnobs::default()), ..Knobs::default() }
}

fn start(lanes: u16, task_time_limit: Duration) -> Arc<Pool> {
    let stop_grace = Duration::from_secs(3600);
    let options = PoolOptions { cpu_lanes: lanes, task_time_limit, stop_grace, ..PoolOptions::default() };
    Pool::start(&options).expect("threads start")
}

fn bring_up(pool: &Arc<Pool>, knobs: Knobs, plan: StagePlan, programs: Vec<Arc<dyn Program>>) -> Arc<ModelHandle> {
    let programs = StagePrograms::cut(&chain::spec(WIDTH), plan, programs).expect("the plan is sound");
    Arc::new(pool.bring_up(chain::spec(WIDTH), knobs, programs).expect("the CPU has room"))
}

fn submit(handle: &Arc<ModelHandle>, values: &[f32]) -> ResponseFuture {
    let rows = values.len() as u32 / 2;
    let data = Bytes::copy_from_slice(bytemuck::cast_slice(values));
    let input = InputTensor { shape: Dims::from_slice(&[i64::from(rows), 2]), data };
    handle.submit(InferRequest::new(rows, vec![Some(input)]))
}

fn values(response: &Response) -> Vec<f32> {
    let data = &response.outputs[0].data;
    data.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_gets_its_own_rows_after_all_stages() {
    let operator = Some(OperatorDiversity { threshold: 0.5, ..OperatorDiversity::default() });
    let splits = Policy::Diversity(DiversityKnobs { input: None, operator, load: None });
    let policies: Vec<Policy> = PolicyKind::over_batches().chain([splits]).collect();
    let settings = [(1, 1), (1, 2), (2, 2), (3, 3)];
    for (policy, (buffer_pairs, max_in_flight)) in policies.iter().flat_map(|it| settings.map(|pairs| (it, pairs))) {
        let pool = start(3, Duration::ZERO);
        let objective_ns = Some(1_000_000_000);
        let knobs = Knobs { buffer_pairs, max_in_flight, policy: policy.clone(), objective_ns, ..window() };
        let programs = [1.0, 2.0, 3.0].map(free).to_vec();
        let handle = bring_up(&pool, knobs, chain::plan(3, WIDTH), programs);
        let requests = (0..500_u16).map(|index| {
            let handle = Arc::clone(&handle);
            tokio::spawn(async move {
                let rows = usize::from(index % 3) + 1;
                let sent: Vec<f32> = (0..rows * 2).map(|place| f32::from(index) + place as f32 / 16.0).collect();
                let future = submit(&handle, &sent);
                if index % 7 == 0 {
                    return;
                }
                let response = future.await.expect("digits do not fail");
                let expected: Vec<f32> = sent.iter().map(|value| value * 1000.0 + 123.0).collect();
                assert_eq!(values(&response), expected, "request {index} got rows that are not its own");
                assert_eq!(response.outputs[0].shape.as_slice(), [rows as i64, 2]);
            })
        });
        for one in requests.collect::<Vec<_>>() {
            one.await.expect("the assertions of a request hold");
        }
        assert_eq!(pool.in_flight(), 0);
        drop(handle);
        assert!(pool.stop(Duration::from_secs(60)), "all threads end");
        assert_eq!(pool.buffers().in_use_bytes(), 0, "no batch keeps anything");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_that_catches_up_goes_on_with_the_batch() {
    let pool = start(1, Duration::ZERO);
    let (first, gate) = gated(1.0);
    let (last, end) = gated(2.0);
    let load = Some(LoadDiversity { max_age_ns: Some(u64::MAX / 2), ..LoadDiversity::default() });
    let policy = Policy::Diversity(DiversityKnobs { input: None, operator: None, load });
    let handle = bring_up(&pool, Knobs { policy, ..window() }, chain::plan(2, WIDTH), vec![first, last]);
    let early = submit(&handle, &[1.0, 2.0]);
    assert_eq!(gate.await_run(), 1);
    let late = submit(&handle, &[3.0, 4.0, 5.0, 6.0]);
    gate.let_pass(1);
    assert_eq!(gate.await_run(), 2, "the newcomer catches up");
    gate.let_pass(1);
    assert_eq!(end.await_run(), 3, "both go on as one batch");
    end.let_pass(1);
    assert_eq!(values(&early.await.expect("it ran")), [112.0, 212.0]);
    assert_eq!(values(&late.await.expect("it ran")), [312.0, 412.0, 512.0, 612.0]);
    pool.count_meta_operations();
    let meta = handle.stats().reading().meta;
    assert_eq!((meta.stretches, meta.merges), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_split_batch_run_on_their_own_rows() {
    let pool = start(1, Duration::ZERO);
    let point = |rows, took_ns| CostPoint { rows, length: 1, took_ns };
    // After the boundary, two halves take a tenth of the time of all rows together.
    let stages = vec![vec![point(1, 1_000), point(4, 1_000)], vec![point(1, 1_000), point(2, 1_000), point(4, 20_000)]];
    let operator = Some(OperatorDiversity::default());
    let policy = Policy::Diversity(DiversityKnobs { input: None, operator, load: None });
    let knobs = Knobs { policy, latencies: Some(CostTable { stages }), ..window() };
    let (first, gate) = gated(1.0);
    let (last, end) = gated(2.0);
    let handle = bring_up(&pool, knobs, chain::plan(2, WIDTH), vec![first, last]);
    let lone = submit(&handle, &[9.0, 9.0]);
    assert_eq!(gate.await_run(), 1);
    let waiting: Vec<ResponseFuture> = (1..5_u8).map(|index| submit(&handle, &[f32::from(index), 0.0])).collect();
    gate.let_pass(2);
    end.let_pass(5);
    assert_eq!(values(&lone.await.expect("it ran")), [912.0, 912.0]);
    for (index, response) in (1..5_u8).zip(waiting) {
        assert_eq!(values(&response.await.expect("it ran")), [f32::from(index) * 100.0 + 12.0, 12.0]);
    }
    assert_eq!(gate.begun(), [4], "those that waited form one batch");
    let runs = end.begun();
    assert!(runs.len() > 2 && runs.iter().sum::<u32>() == 5, "which goes on in parts: {runs:?}");
    pool.count_meta_operations();
    assert!(handle.stats().reading().meta.splits > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_leaves_on_the_way_makes_a_gap_and_no_mix_up() {
    let pool = start(1, Duration::ZERO);
    let (first, gate) = gated(1.0);
    let (last, end) = gated(3.0);
    let handle = bring_up(&pool, window(), chain::plan(3, WIDTH), vec![first, free(2.0), last]);
    let lone = submit(&handle, &[0.0, 0.0]);
    gate.await_run();
    let mut waiting: Vec<ResponseFuture> = (1..5_u8).map(|index| submit(&handle, &[f32::from(index), 0.5])).collect();
    gate.let_pass(1);
    end.let_pass(1);
    assert_eq!(gate.await_run(), 4, "those that waited form one batch");
    drop(waiting.remove(1));
    gate.let_pass(1);
    assert_eq!(end.await_run(), 1, "the lone one");
    assert_eq!(end.await_run(), 3, "the one that left is not carried along");
    end.let_pass(1);
    assert_eq!(values(&lone.await.expect("it ran")), [123.0, 123.0]);
    for (index, response) in [1.0, 3.0, 4.0].into_iter().zip(waiting) {
        assert_eq!(values(&response.await.expect("it ran")), [index * 1000.0 + 123.0, 623.0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_a_later_stage_cannot_bear_fails_alone() {
    let pool = start(1, Duration::ZERO);
    let (first, gate) = gated(1.0);
    let handle = bring_up(&pool, window(), chain::plan(2, WIDTH), vec![first, free(2.0)]);
    let lone = submit(&handle, &[0.0, 0.0]);
    gate.await_run();
    let good = submit(&handle, &[3.0, 4.0]);
    let bad = submit(&handle, &[3.0, POISON]);
    let other = submit(&handle, &[5.0, 6.0]);
    // Six runs of the first stage: the first request alone, the three together, two of them, and each alone.
    gate.let_pass(6);
    assert_eq!(values(&lone.await.expect("it ran")), [12.0, 12.0]);
    assert_eq!(bad.await.expect_err("poison fails"), InferError::Engine("poison".to_owned()));
    assert_eq!(values(&good.await.expect("a stranger's fault is not its own")), [312.0, 412.0]);
    assert_eq!(values(&other.await.expect("a stranger's fault is not its own")), [512.0, 612.0]);
}

/// A plan of four stages whose first has exits: rows from 100 on go to stage 2, rows from 10 on are done.
fn with_exits() -> StagePlan {
    let mut plan = chain::plan(3, WIDTH);
    plan.stages[0].outputs.push((TensorSpec::new("leading", DataType::Fp32, &[]), Sink::Exit));
    plan.stages[0].exits = vec![
        Exit { value: 1, at_least: 100.0, to: ExitTo::Stage(2) },
        Exit { value: 1, at_least: 10.0, to: ExitTo::Done(vec![Some(0)]) },
    ];
    // Rows that skip stage 1 cannot read its output, so both later stages read the first boundary.
    plan.stages[1].outputs.clear();
    plan.boundaries[1].clear();
    plan.stages[2].inputs[0].1 = InputSource::Boundary { boundary: 0, tensor: 0 };
    plan
}

/// Programs for that plan: the first returns the rows unchanged and the first value of each, the second nothing.
fn exiting() -> Vec<Arc<dyn Program>> {
    let leading = FakeProgram::new(|batch| {
        let (shape, data) = dense(&batch.inputs[0]);
        let leading: Vec<u8> = data.chunks(8).flat_map(|row| row[..4].to_vec()).collect();
        execution(batch, &[(shape, data), (&shape[..1], &leading)])
    });
    let nothing = FakeProgram::new(|batch| execution(batch, &[]));
    vec![Arc::new(leading), Arc::new(nothing), free(3.0)]
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_leave_early_come_back_in_order_with_the_rest() {
    let pool = start(2, Duration::ZERO);
    let handle = bring_up(&pool, window(), with_exits(), exiting());
    let rows = [1.0, 0.0, 20.0, 0.0, 300.0, 0.0, 4.0, 0.0];
    let response = submit(&handle, &rows).await.expect("it runs");
    assert_eq!(values(&response), [13.0, 3.0, 20.0, 0.0, 3003.0, 3.0, 43.0, 3.0]);
    assert_eq!(response.outputs[0].shape.as_slice(), [4, 2]);
    let gone = submit(&handle, &[50.0, 7.0]).await.expect("it runs");
    assert_eq!(values(&gone), [50.0, 7.0], "no row went on");
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_are_warmed_up_one_after_another() {
    let pool = start(1, Duration::ZERO);
    let warm = |programs: Vec<Arc<dyn Program>>| {
        let programs =
            StagePrograms::cut(&chain::spec(WIDTH), chain::plan(2, WIDTH), programs).expect("the plan is sound");
        let data = Bytes::copy_from_slice(bytemuck::cast_slice(&[1.0_f32, POISON]));
        let input = InputTensor { shape: Dims::from_slice(&[1, 2]), data };
        let warm_up = WarmUp { rows: 1, inputs: &[Some(input)], program_inputs: &[], stop: &StopSignal::default() };
        pool.warm_up(&chain::spec(WIDTH), &programs, warm_up).map(|took_ns| took_ns.len())
    };
    assert_eq!(warm(vec![free(1.0), free(0.0)]), Ok(2), "a time for each stage");
    assert_eq!(warm(vec![free(1.0), free(2.0)]), Err("poison".to_owned()), "the second stage ran");
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_are_counted_apart_and_a_request_is_counted_once() {
    let timeline = Arc::new(Timeline::on(100));
    let options = PoolOptions { cpu_lanes: 1, timeline: Arc::clone(&timeline), ..PoolOptions::default() };
    let pool = Pool::start(&options).expect("threads start");
    let handle = bring_up(&pool, window(), with_exits(), exiting());
    submit(&handle, &[1.0, 0.0, 20.0, 0.0, 4.0, 0.0]).await.expect("it runs");
    pool.count_meta_operations();
    let read = handle.stats().reading();
    let stages: Vec<_> = read.stages.iter().map(|stage| (stage.tasks, stage.rows)).collect();
    assert_eq!(stages, [(1, 3), (1, 2), (1, 2)], "one row left behind the first stage");
    assert!(read.stages.iter().all(|stage| stage.run_ns > 0));
    assert_eq!(read.meta.early_exits, 1);
    assert_eq!((read.stats.inference_count, read.stats.inference_stats.success.count), (3, 1));
    let sizes: Vec<_> =
        read.stats.batch_stats.iter().map(|batch| (batch.batch_size, batch.compute_infer.count)).collect();
    assert_eq!(sizes, [(2, 1), (3, 1)], "rows left in a batch of three, and in one of two");
    let mut trace = Vec::new();
    timeline.recording().expect("it is on").picture().write_chrome(&mut trace).expect("memory takes it");
    let trace = String::from_utf8(trace).expect("JSON is text");
    for span in ["stage 0", "stage 1", "stage 2"] {
        assert!(trace.contains(span), "{span} is missing in {trace}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_past_its_time_keeps_its_version_from_being_ready_until_it_returns() {
    let pool = start(2, Duration::from_secs(3));
    let mut changes = pool.responsiveness();
    let (last, gate) = gated(2.0);
    let hanging = bring_up(&pool, window(), chain::plan(2, WIDTH), vec![free(1.0), last]);
    let healthy = bring_up(&pool, window(), chain::plan(2, WIDTH), vec![free(1.0), free(2.0)]);
    let late = submit(&hanging, &[1.0, 1.0]);
    changes.changed().await.expect("the pool lives");
    assert_eq!(hanging.fault().as_deref(), Some("a task of stage 1 has not ended within 3s"));
    assert!(!hanging.is_responsive() && healthy.is_responsive());
    assert_eq!(values(&submit(&healthy, &[1.0, 1.0]).await.expect("a lane is left")), [112.0, 112.0]);
    gate.let_pass(2);
    assert_eq!(values(&late.await.expect("its late result is its answer")), [112.0, 112.0]);
    while !hanging.is_responsive() {
        changes.changed().await.expect("the pool lives");
    }
    assert_eq!(values(&submit(&hanging, &[2.0, 2.0]).await.expect("it is as good as before")), [212.0, 212.0]);
    assert!(pool.stop(Duration::from_secs(60)), "all threads end");
}
