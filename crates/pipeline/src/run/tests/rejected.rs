//! Requests that a step ends without running them, or that break it: the error names the pipeline and the step.

use futures_util::FutureExt;
use paternoster_batching::{QueueKnobs, QueueingKnobs, WindowKnobs};

use super::*;
use crate::{BuiltIn, BuiltInFault, Condition, StepWork, Stop, Test, WorkerGroup};

/// A pipeline whose first model is at a gate, and a request that is there.
struct Gated {
    pipeline: Arc<Pipeline>,
    first: Servable,
    /// Dropped, it lets all runs pass.
    _gate: Gate,
}

impl Gated {
    async fn on(default_queue: QueueKnobs) -> Self {
        let (program, gate) = FakeProgram::identity().gated();
        let queueing = QueueingKnobs { default_queue, ..QueueingKnobs::default() };
        let knobs = Knobs { queueing, policy: Policy::Window(WindowKnobs::default()), ..Knobs::default() };
        let pool = pool();
        let models = two_models(&pool, knobs, program);
        let first = models.resolve("first", None).expect("it is served");
        let gated = Self { pipeline: chain("chain", &["first", "second"], &models), first, _gate: gate };
        gated.send();
        while pool.stats().snapshot().tasks_running == 0 {
            tokio::task::yield_now().await;
        }
        gated
    }

    /// Sends a request without waiting for its response.
    fn send(&self) {
        let answer = self.pipeline.submit(request(None));
        tokio::spawn(answer);
    }
}

const PLACE: &str = "in pipeline 'chain', step 0 (model 'first')";

#[tokio::test]
async fn a_full_queue() {
    let gated = Gated::on(QueueKnobs { max_queue_size: 1, ..QueueKnobs::default() }).await;
    gated.send();
    while gated.first.stats().pending() != 1 {
        tokio::task::yield_now().await;
    }
    let refused = gated.pipeline.submit(request(None)).await.expect_err("one waits already");
    assert_eq!(refused.cause(), &InferError::QueueFull);
    assert_eq!(refused.to_string(), format!("{PLACE}: Exceeds maximum queue size"));
}

#[tokio::test]
async fn a_queue_timeout() {
    let queue = QueueKnobs { default_timeout_ns: HOUR_NS, allow_timeout_override: true, ..QueueKnobs::default() };
    let gated = Gated::on(queue).await;
    let impatient = InferRequest { queue_timeout: Some(Duration::from_millis(1)), ..request(None) };
    let refused = gated.pipeline.submit(impatient).await.expect_err("the lane is at the gate");
    assert_eq!(refused.cause(), &InferError::QueueTimeout);
    assert_eq!(refused.to_string(), format!("{PLACE}: Request timeout expired"));
}

/// A built-in step that needs this much room, and then panics. It refuses all requests in which other steps run first.
#[derive(Debug)]
struct Broken {
    needs_bytes: usize,
    inputs: [TensorSpec; 1],
    outputs: [TensorSpec; 1],
}

impl BuiltIn for Broken {
    fn kind(&self) -> &'static str {
        "broken"
    }

    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn is_short(&self, _inputs: &[Option<TensorRows>]) -> bool {
        false
    }

    fn workers<'a>(&self, all: &'a Workers) -> &'a WorkerGroup {
        &all.texts
    }

    fn built_bytes(&self, _inputs: &[Option<TensorRows>]) -> usize {
        self.needs_bytes
    }

    fn check(&self, _given: &[Option<TensorRows>], _dims: &[&[i64]], _rows: usize) -> Result<(), BuiltInFault> {
        Err(BuiltInFault::Invalid("too late".to_owned()))
    }

    fn begin(
        self: Arc<Self>,
        _inputs: Vec<Option<TensorRows>>,
        _rows: usize,
    ) -> Result<Box<dyn StepWork>, BuiltInFault> {
        Ok(Box::new(Panics))
    }
}

struct Panics;

impl StepWork for Panics {
    fn effort(&self, _row: usize) -> Duration {
        Duration::ZERO
    }

    fn run(&mut self, _row: usize, _stop: &Stop) -> Result<(), BuiltInFault> {
        panic!("out of order")
    }

    fn outputs(&mut self) -> Vec<TensorRows> {
        Vec::new()
    }
}

async fn refused_by_a_broken_step(needs_bytes: usize) -> InferError {
    let tensor = |name| [TensorSpec::new(name, DataType::Fp32, &[1])];
    let step = Broken { needs_bytes, inputs: tensor("x"), outputs: tensor("y") };
    let port = |name: &str| vec![PortBinding { port: name.to_owned(), tensor: name.to_owned() }];
    let step = Step { runs: Runs::BuiltIn(Arc::new(step)), inputs: port("x"), outputs: port("y"), when: None };
    let graph = PipelineGraph::new(&["x"], &["y"], vec![step]).expect("a graph");
    let options = options(&Arc::new(Served(Mutex::default())));
    let pipeline = Arc::new(Pipeline::new(spec("broken one", "x", "y"), graph, options).expect("it fits"));
    pipeline.submit(request(None)).await.expect_err("it cannot run")
}

#[tokio::test]
async fn a_built_in_step_that_panics() {
    let failed = refused_by_a_broken_step(0).await;
    assert!(matches!(failed.cause(), InferError::Engine(_)), "{failed:?}");
    let text = failed.to_string();
    assert!(text.starts_with("in pipeline 'broken one', step 0 (broken): a built-in step failed: "), "{text}");
}

#[tokio::test]
async fn a_built_in_step_without_room() {
    let refused = refused_by_a_broken_step(1 << 30).await;
    assert!(matches!(refused.cause(), InferError::NoRoom(_)), "{refused:?}");
    let text = refused.to_string();
    assert!(text.starts_with("in pipeline 'broken one', step 0 (broken): no memory for what the request"), "{text}");
}

#[tokio::test]
async fn a_built_in_step_checks_a_request_before_models_run_unless_rows_may_skip_it() {
    let tensor = |name| [TensorSpec::new(name, DataType::Fp32, &[1])];
    let port = |port: &str, tensor: &str| vec![PortBinding { port: port.to_owned(), tensor: tensor.to_owned() }];
    let with = |when, program| {
        let models = two_models(&pool(), Knobs::default(), program);
        let runs = Runs::Served { model: "first".to_owned(), version: None };
        let first = Step { runs, inputs: port("x", "x"), outputs: port("y", "a"), when: None };
        let broken = Broken { needs_bytes: 0, inputs: tensor("x"), outputs: tensor("y") };
        let runs = Runs::BuiltIn(Arc::new(broken));
        let steps = vec![first, Step { runs, inputs: port("x", "a"), outputs: port("y", "y"), when }];
        let graph = PipelineGraph::new(&["x"], &["y"], steps).expect("a graph");
        Arc::new(Pipeline::new(spec("chain", "x", "y"), graph, options(&models)).expect("it fits"))
    };
    let (program, _gate) = FakeProgram::identity().gated();
    let refused = with(None, program).submit(request(None)).now_or_never().expect("no model has run");
    assert_eq!(refused.expect_err("too late").cause(), &InferError::Invalid("too late".to_owned()));

    let never = Condition { tensor: "x".to_owned(), test: Test::AtLeast(100.0) };
    with(Some(never), FakeProgram::identity()).submit(request(None)).await.expect("no row runs it");
}

/// A pipeline of one step, whose model requires what a request may leave out.
fn with_an_optional_input(pool: &Arc<Pool>, when: Option<Condition>) -> Arc<Pipeline> {
    let port = |port: &str, tensor: &str| vec![PortBinding { port: port.to_owned(), tensor: tensor.to_owned() }];
    let runs = Runs::Served { model: "model".to_owned(), version: None };
    let step = Step { runs, inputs: port("x", "b"), outputs: port("y", "y"), when };
    let model = serve(pool, spec("model", "x", "y"), Knobs::default(), FakeProgram::identity());
    let graph = PipelineGraph::new(&["a", "b"], &["y"], vec![step]).expect("a graph");
    let mut spec = spec("pipeline", "a", "y");
    spec.inputs.push(TensorSpec { optional: true, ..TensorSpec::new("b", DataType::Fp32, &[1]) });
    let models = Arc::new(Served(Mutex::new(vec![model])));
    Arc::new(Pipeline::new(spec, graph, options(&models)).expect("it fits"))
}

#[tokio::test]
async fn a_step_that_requires_what_the_request_leaves_out() {
    let pool = pool();
    let pipeline = with_an_optional_input(&pool, None);
    let input = InputTensor { shape: Dims::from_slice(&[1, 1]), data: Bytes::copy_from_slice(&1.0_f32.to_le_bytes()) };
    let without = InferRequest::new(1, vec![Some(input.clone()), None]);
    let refused = pipeline.submit(without.clone()).await.expect_err("it is required");
    assert!(matches!(refused.cause(), InferError::Invalid(_)), "{refused:?}");
    let text =
        "in pipeline 'pipeline', step 0 (model 'model'): its input 'x' is required, and the request leaves out 'b'";
    assert_eq!(refused.to_string(), text);
    let with = InferRequest::new(1, vec![Some(input.clone()), Some(input)]);
    let given = pipeline.submit(with).await.expect("it has all");
    assert_eq!(given.outputs[0].data, 1.0_f32.to_le_bytes().as_slice());
    // A row that the condition does not hold for has no need of the input.
    let when = Condition { tensor: "a".to_owned(), test: Test::AtLeast(2.0) };
    let skipped = with_an_optional_input(&pool, Some(when)).submit(without).await.expect("the step is skipped");
    assert_eq!(skipped.outputs[0].data, 0.0_f32.to_le_bytes().as_slice());
}
