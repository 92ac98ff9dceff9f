//! What the policy of a step learns of the time that the steps behind it need, and what clients learn of a step that
//! cannot run.

mod cached;
mod derived;
mod rejected;
mod reloaded;
mod shapes;

use bytes::Bytes;
use parking_lot::Mutex;
use paternoster_batching::{Knobs, LazyKnobs, Policy};
use paternoster_executor::{Pool, PoolOptions};
use paternoster_model::{DataType, Dims, ModelSpec, TensorSpec};
use paternoster_observe::{RequestBudgets, budget::Budget};
use paternoster_testing::program::{FakeProgram, Gate};

use super::*;
use crate::{Models, PipelineGraph, PipelineOptions, PortBinding, Step, Workers};

/// Longer than any test takes.
const FOREVER: Duration = Duration::from_secs(3600);
const HOUR_NS: u64 = 3_600_000_000_000;

struct Served(Mutex<Vec<Servable>>);

impl Models for Served {
    fn resolve(&self, model: &str, _version: Option<i64>) -> Result<Servable, String> {
        let models = self.0.lock();
        let found = models.iter().find(|servable| servable.spec().name == model);
        found.cloned().ok_or_else(|| format!("'{model}' is not served"))
    }
}

impl Served {
    /// Serves a model instead of the one that has its name; that alone if there is no new one.
    fn replace(&self, name: &str, new: Option<Servable>) {
        let mut models = self.0.lock();
        models.retain(|servable| servable.spec().name != name);
        models.extend(new);
    }
}

fn spec(name: &str, input: &str, output: &str) -> ModelSpec {
    let tensor = |name: &str| vec![TensorSpec::new(name, DataType::Fp32, &[1])];
    ModelSpec {
        name: name.to_owned(),
        version: 1,
        max_batch_size: 4,
        inputs: tensor(input),
        outputs: tensor(output),
        symbols: vec![],
        decoupled: false,
    }
}

fn pool() -> Arc<Pool> {
    Pool::start(&PoolOptions { cpu_lanes: 1, ..PoolOptions::default() }).expect("threads start")
}

fn serve(pool: &Arc<Pool>, spec: ModelSpec, knobs: Knobs, program: FakeProgram) -> Servable {
    let handle = pool.bring_up(spec, knobs, Arc::new(program)).expect("the CPU has room");
    Servable::Model(Arc::new(handle))
}

/// The models `first` and `second`.
fn two_models(pool: &Arc<Pool>, first: Knobs, program: FakeProgram) -> Arc<Served> {
    let first = serve(pool, spec("first", "x", "y"), first, program);
    let second = serve(pool, spec("second", "x", "y"), Knobs::default(), FakeProgram::identity());
    Arc::new(Served(Mutex::new(vec![first, second])))
}

fn options(models: &Arc<impl Models + 'static>) -> PipelineOptions {
    let budgets = RequestBudgets { bytes: Budget::of_bytes(16 << 20), requests: Budget::of(1 << 10) };
    let models = Arc::clone(models);
    PipelineOptions { models, budgets, workers: Workers::new(1) }
}

/// A pipeline of these models, one after the other.
fn chain(name: &str, steps: &[&str], models: &Arc<impl Models + 'static>) -> Arc<Pipeline> {
    let last = steps.len() - 1;
    let tensor = |number: usize| if number == 0 { "x".to_owned() } else { format!("between {number}") };
    let step = |(number, model): (usize, &&str)| Step {
        runs: Runs::Served { model: (*model).to_owned(), version: None },
        inputs: vec![PortBinding { port: "x".to_owned(), tensor: tensor(number) }],
        outputs: vec![PortBinding {
            port: "y".to_owned(),
            tensor: if number == last { "y".to_owned() } else { tensor(number + 1) },
        }],
        when: None,
    };
    let graph = PipelineGraph::new(&["x"], &["y"], steps.iter().enumerate().map(step).collect()).expect("a graph");
    Arc::new(Pipeline::new(spec(name, "x", "y"), graph, options(models)).expect("it fits its models"))
}

/// A pipeline of the models `first` and `second`.
fn pipeline(first: Knobs, program: FakeProgram) -> Arc<Pipeline> {
    chain("chain", &["first", "second"], &two_models(&pool(), first, program))
}

fn request(deadline: Option<Instant>) -> InferRequest {
    let data = Bytes::copy_from_slice(&1.5_f32.to_le_bytes());
    let input = InputTensor { shape: Dims::from_slice(&[1, 1]), data };
    InferRequest { deadline, ..InferRequest::new(1, vec![Some(input)]) }
}

/// Returns the request of a step, given the tensor that it reads.
fn request_of_step(pipeline: &Arc<Pipeline>, step: usize, asked: InferRequest) -> InferRequest {
    let input = asked.inputs[0].clone().map(TensorRows::Joint);
    let (run, _) = Run::begin(Arc::clone(pipeline), asked, None, Sink::Once(None));
    let (_, binding) = run.bound(step).expect("its model is served");
    let step_of = run.observed.step_apart(true);
    let (_, requests) = run.requests(step, &binding, &[input], None, None, &step_of).expect("it fits");
    requests.into_iter().next().expect("a request").0
}

fn rejecting() -> Knobs {
    let policy = Policy::Lazy(LazyKnobs { reject_late: true, ..LazyKnobs::default() });
    Knobs { policy, objective_ns: Some(24 * HOUR_NS), ..Knobs::default() }
}

#[tokio::test]
async fn a_step_leaves_the_time_that_later_steps_were_seen_to_need() {
    let pipeline = pipeline(Knobs::default(), FakeProgram::identity());
    let deadline = Some(Instant::now() + FOREVER);
    assert_eq!(request_of_step(&pipeline, 0, request(deadline)).needed_after, Duration::ZERO, "nothing is known");
    pipeline.submit(request(None)).await.expect("it runs");
    let learned = pipeline.expected.after(&pipeline.graph, &pipeline.order);
    assert!(learned[0] > Duration::ZERO, "{learned:?}");

    // A pipeline within another leaves what the outer one needs, too.
    let outer = Duration::from_secs(7);
    let asked = InferRequest { needed_after: outer, ..request(deadline) };
    let first = request_of_step(&pipeline, 0, asked.clone());
    assert_eq!((first.deadline, first.needed_after), (deadline, learned[0] + outer));
    let second = request_of_step(&pipeline, 1, asked);
    assert_eq!((second.deadline, second.needed_after), (deadline, outer), "nothing of this pipeline is behind it");
}

#[tokio::test]
async fn a_first_step_that_rejects_late_requests_counts_what_the_second_needs() {
    let pipeline = pipeline(rejecting(), FakeProgram::identity());
    let deadline = || Some(Instant::now() + FOREVER);
    pipeline.submit(request(deadline())).await.expect("there is time for both");
    pipeline.expected.learn(1, 100 * HOUR_NS);
    let late = pipeline.submit(request(deadline())).await.expect_err("there is no time for both");
    assert_eq!(late.cause(), &InferError::Late);
    let text = "in pipeline 'chain', step 0 (model 'first'): Request cannot meet the latency objective any more";
    assert_eq!(late.to_string(), text);
    pipeline.submit(request(None)).await.expect("without a deadline nothing is late");
}

#[tokio::test]
async fn one_slow_run_does_not_reject_requests_for_ever() {
    let pipeline = pipeline(rejecting(), FakeProgram::identity());
    pipeline.submit(request(None)).await.expect("the first step's time is known then");
    pipeline.expected.learn(1, 100 * HOUR_NS);
    let mut rejected = 0;
    while let Err(error) = pipeline.submit(request(Some(Instant::now() + FOREVER))).await {
        assert_eq!(error.cause(), &InferError::Late);
        rejected += 1;
        assert!(rejected < 100, "what it expects of the second step stays");
    }
    assert!(rejected > 0);
}

#[tokio::test]
async fn what_later_steps_need_never_ends_a_request_early() {
    let (program, gate) = FakeProgram::identity().gated();
    let pipeline = pipeline(Knobs::default(), program);
    pipeline.expected.learn(1, 100 * HOUR_NS);
    let deadline = Instant::now() + Duration::from_millis(50);
    assert_eq!(pipeline.submit(request(Some(deadline))).await.err(), Some(InferError::Expired));
    assert!(Instant::now() >= deadline, "it ended before its deadline");

    // It is late for the estimate from the start, and has all of its time.
    let answer = tokio::spawn(pipeline.submit(request(Some(Instant::now() + FOREVER))));
    // The run of the expired request, and this one's.
    gate.let_pass(2);
    answer.await.expect("no panic").expect("it ends in time");
}

/// A pipeline within another, a model of which is then served with other tensors, or not at all.
async fn assert_unavailable(second: Option<ModelSpec>, why: &str) {
    let pool = pool();
    let models = two_models(&pool, Knobs::default(), FakeProgram::identity());
    let inner = chain("chain", &["first", "second"], &models);
    models.replace("chain", Some(Servable::Pipeline(Arc::clone(&inner))));
    let outer = chain("outer", &["first", "chain"], &models);
    outer.submit(request(None)).await.expect("both run");

    models.replace("second", second.map(|spec| serve(&pool, spec, Knobs::default(), FakeProgram::identity())));
    let text = format!("in pipeline 'chain', step 1 (model 'second'): {why}");
    let refused = inner.submit(request(None)).await.expect_err("its second step has no model");
    assert_eq!((refused.cause(), refused.to_string()), (&InferError::Unavailable(why.to_owned()), text.clone()));
    let text = format!("in pipeline 'outer', step 1 (model 'chain'): {text}");
    let refused = outer.submit(request(None)).await.expect_err("its second step has none, either");
    assert_eq!((refused.cause(), refused.to_string()), (&InferError::Unavailable(why.to_owned()), text));
}

#[tokio::test]
async fn a_step_whose_model_is_gone_is_named_with_all_pipelines_that_it_is_in() {
    assert_unavailable(None, "'second' is not served").await;
}

#[tokio::test]
async fn a_step_that_does_not_fit_its_model_any_more_is_named_with_all_pipelines_that_it_is_in() {
    let wider = ModelSpec { inputs: vec![TensorSpec::new("x", DataType::Fp32, &[2])], ..spec("second", "x", "y") };
    let why = "it does not fit any more: its input 'x' and the tensor 'between 1' differ: expected \
               shape [-1,2], but it has [-1,1]";
    assert_unavailable(Some(wider), why).await;
}

#[tokio::test]
async fn a_pipeline_with_a_step_that_does_not_fit_its_model_any_more_is_not_ready() {
    let pool = pool();
    let models = two_models(&pool, Knobs::default(), FakeProgram::identity());
    let inner = chain("chain", &["first", "second"], &models);
    models.replace("chain", Some(Servable::Pipeline(Arc::clone(&inner))));
    let outer = chain("outer", &["first", "chain"], &models);
    assert_eq!((inner.fault(), outer.fault()), (None, None));

    let outputs = vec![TensorSpec::new("z", DataType::Fp32, &[1])];
    let renamed = ModelSpec { outputs, ..spec("second", "x", "y") };
    models.replace("second", Some(serve(&pool, renamed, Knobs::default(), FakeProgram::identity())));
    let fault = "step 1: model 'second': it does not fit any more: it has no output 'y'; its outputs \
                 are 'z'";
    assert_eq!(inner.fault().as_deref(), Some(fault));
    assert_eq!(outer.fault(), Some(format!("step 1: model 'chain': {fault}")));

    // Served as before, it fits again.
    models.replace("second", Some(serve(&pool, spec("second", "x", "y"), Knobs::default(), FakeProgram::identity())));
    assert_eq!((inner.fault(), outer.fault()), (None, None));
    outer.submit(request(None)).await.expect("both run");
}
