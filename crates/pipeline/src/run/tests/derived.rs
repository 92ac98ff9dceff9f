//! What the requests that are derived from one may be: how many steps, how many at a time, and which are needed.

use futures_util::FutureExt;
use paternoster_observe::MAX_STEPS_WITHIN;
use smallvec::smallvec;

use super::*;
use crate::PipelineFault;

fn port(port: &str, tensor: &str) -> PortBinding {
    PortBinding { port: port.to_owned(), tensor: tensor.to_owned() }
}

/// A pipeline of steps that all read the input `x`. The first gives the output `y`; the others give further outputs.
fn wide(name: &str, steps: &[&str], options: PipelineOptions) -> Result<Arc<Pipeline>, PipelineFault> {
    let given = |number: usize| if number == 0 { "y".to_owned() } else { format!("y{number}") };
    let step = |(number, model): (usize, &&str)| Step {
        runs: Runs::Served { model: (*model).to_owned(), version: None },
        inputs: vec![port("x", "x")],
        outputs: vec![port("y", &given(number))],
        when: None,
    };
    let outputs: Vec<String> = (0..steps.len()).map(given).collect();
    let graph =
        PipelineGraph::new(&["x".to_owned()], &outputs, steps.iter().enumerate().map(step).collect()).expect("a graph");
    let tensor = |name: &String| TensorSpec::new(name, DataType::Fp32, &[-1]);
    let spec = ModelSpec { outputs: outputs.iter().map(tensor).collect(), ..spec(name, "x", "y") };
    Pipeline::new(spec, graph, options).map(Arc::new)
}

fn serve_pipeline(models: &Served, pipeline: Arc<Pipeline>) {
    let name = pipeline.spec().name.clone();
    models.replace(&name, Some(Servable::Pipeline(pipeline)));
}

#[tokio::test]
async fn pipelines_of_too_many_steps_within_each_other_are_not_loaded() {
    let models = two_models(&pool(), Knobs::default(), FakeProgram::identity());
    let inner = wide("inner", &["first"; 256], options(&models)).expect("256 steps");
    serve_pipeline(&models, inner);
    let fifteen = wide("outer", &["inner"; 15], options(&models)).expect("15 times 256, and 15");
    assert_eq!(fifteen.fault(), None);
    let refused = wide("outer", &["inner"; 16], options(&models)).expect_err("16 more than there may be");
    let text = format!("step 15: pipelines within each other have more than {MAX_STEPS_WITHIN} steps in all");
    assert_eq!(refused.to_string(), text);
}

#[tokio::test]
async fn pipelines_that_grow_when_a_model_is_reloaded_do_not_run() {
    let models = two_models(&pool(), Knobs::default(), FakeProgram::identity());
    serve_pipeline(&models, wide("inner", &["first"; 2], options(&models)).expect("it fits"));
    let outer = wide("outer", &["inner"; 100], options(&models)).expect("100 times 2, and 100");
    outer.submit(request(None)).await.expect("it runs");

    serve_pipeline(&models, wide("inner", &["first"; 50], options(&models)).expect("it fits"));
    let text = format!("pipelines within each other have more than {MAX_STEPS_WITHIN} steps in all");
    assert_eq!(outer.fault(), Some(text.clone()));
    // Only the first output of each is read, so the others do not run.
    outer.submit(request(None)).await.expect("100 times 1, and 100");

    let pass = wide("inner", &["first"], options(&models)).expect("it fits");
    serve_pipeline(&models, pass);
    let chain_of = |name: &str, inner: &str| chain(name, &[inner; 50], &models);
    serve_pipeline(&models, chain_of("fifty", "first"));
    let outer =
        wide("outer", &["middle"; 60], options_after(&models, chain_of("middle", "first"))).expect("3060 steps");
    serve_pipeline(&models, chain_of("middle", "fifty"));
    let refused = outer.submit(request(None)).await.expect_err("60 times 50 times 50");
    assert_eq!(refused.cause(), &InferError::Unavailable(text));
}

/// The options of a pipeline after another one is served.
fn options_after(models: &Arc<Served>, pipeline: Arc<Pipeline>) -> PipelineOptions {
    serve_pipeline(models, pipeline);
    options(models)
}

#[tokio::test]
async fn requests_of_steps_take_places_and_go_on_without_any() {
    let (program, gate) = FakeProgram::identity().gated();
    let pool = pool();
    let models = two_models(&pool, Knobs::default(), program);
    let options = options(&models);
    let requests = Arc::clone(&options.budgets.requests);
    let others = Budget::part_of(&requests, usize::MAX);
    let mut held = Reservation::none(&others);
    assert!(held.try_grow(requests.capacity() - 5));
    let pipeline = wide("wide", &["first"; 20], options).expect("it fits");

    let mut answer = pipeline.submit(request(None));
    assert!(answer.as_mut().now_or_never().is_none(), "the lane is at the gate");
    assert_eq!(requests.used(), requests.capacity(), "five beside the first");
    let mut another = pipeline.submit(request(None));
    assert!(another.as_mut().now_or_never().is_none(), "it has one in flight");
    drop(gate);
    let (answer, another) = tokio::join!(answer, another);
    assert_eq!(answer.expect("it runs").outputs.len(), 20);
    another.expect("it runs, too");
    assert_eq!(requests.used(), held.amount(), "all places are given back");
    assert_eq!(requests.refused(), 0, "no client's request was refused");
}

#[tokio::test]
async fn a_request_that_leaves_gives_back_its_places_and_bytes() {
    let (program, _gate) = FakeProgram::identity().gated();
    let models = two_models(&pool(), Knobs::default(), program);
    let options = options(&models);
    let budgets = options.budgets.clone();
    let pipeline = wide("wide", &["first"; 200], options).expect("it fits");
    let mut answer = pipeline.submit(request(None));
    assert!(answer.as_mut().now_or_never().is_none());
    assert!(budgets.requests.used() > 0 && budgets.bytes.used() > 0);
    drop(answer);
    assert_eq!((budgets.requests.used(), budgets.bytes.used()), (0, 0));
}

#[tokio::test]
async fn a_request_without_room_for_its_steps_is_refused() {
    let models = two_models(&pool(), Knobs::default(), FakeProgram::identity());
    let budgets = RequestBudgets { bytes: Budget::of(8 << 10), requests: Budget::of(8) };
    let pipeline = wide("wide", &["first"; 200], PipelineOptions { budgets, ..options(&models) }).expect("it fits");
    let refused = pipeline.submit(request(None)).await.expect_err("200 steps take more");
    assert!(matches!(refused, InferError::NoRoom(_)), "{refused}");
}

#[tokio::test]
async fn outputs_whose_size_is_known_are_reserved_before_a_step_runs() {
    let (program, _gate) = FakeProgram::identity().gated();
    let models = two_models(&pool(), Knobs::default(), FakeProgram::identity());
    let large =
        ModelSpec { outputs: vec![TensorSpec::new("y", DataType::Fp32, &[1 << 20])], ..spec("large", "x", "y") };
    let huge = ModelSpec { outputs: vec![TensorSpec::new("y", DataType::Fp32, &[8 << 20])], ..spec("huge", "x", "y") };
    models.replace("large", Some(serve(&pool(), large, Knobs::default(), program)));
    models.replace("huge", Some(serve(&pool(), huge, Knobs::default(), FakeProgram::identity())));

    let options = options(&models);
    let bytes = Arc::clone(&options.budgets.bytes);
    let ten = wide("ten", &["large"; 10], options.clone()).expect("it fits");
    let mut answer = ten.submit(request(None));
    assert!(answer.as_mut().now_or_never().is_none(), "no step has run");
    assert_eq!(bytes.used() >> 20, 12, "three of four megabytes each; the others wait");
    assert_eq!(bytes.refused(), 0);
    let refused = ten.submit(request(None)).now_or_never().expect("it does not wait for others");
    assert!(matches!(refused.expect_err("there is no room").cause(), InferError::NoRoom(_)));
    drop(answer);
    assert_eq!(bytes.used(), 0);
    let refused = wide("one", &["huge"], options).expect("it fits").submit(request(None)).now_or_never();
    assert!(matches!(refused.expect("it has not run").expect_err("32 MB").cause(), InferError::NoRoom(_)));
}

#[tokio::test]
async fn steps_that_no_wanted_output_needs_do_not_run() {
    let (program, _gate) = FakeProgram::identity().gated();
    let models = two_models(&pool(), Knobs::default(), program);
    // The first model never answers.
    let pipeline = wide("wide", &["second", "first"], options(&models)).expect("it fits");
    let wants = |outputs| InferRequest { wanted_outputs: Some(outputs), ..request(None) };
    let response = pipeline.submit(wants(smallvec![0])).await.expect("the second model answers");
    let bytes = response.outputs.iter().map(|output| output.data.len());
    assert_eq!(bytes.collect::<Vec<_>>(), [size_of::<f32>(), 0], "the other output has no elements");
    assert!(pipeline.submit(wants(smallvec![0, 1])).now_or_never().is_none(), "both are needed");

    // A pipeline within another runs what the other reads.
    serve_pipeline(&models, pipeline);
    let outer = wide("outer", &["wide"], options(&models)).expect("it fits");
    outer.submit(request(None)).await.expect("the second model answers");
}
