//! Models that are reloaded with another specification: what readiness and requests learn of it.

use super::*;

/// A model with one input and one output.
fn shaped(name: &str, input: (DataType, i64), output: (DataType, i64)) -> ModelSpec {
    let tensor = |name: &str, (datatype, size)| vec![TensorSpec::new(name, datatype, &[size])];
    ModelSpec { inputs: tensor("x", input), outputs: tensor("y", output), ..spec(name, "x", "y") }
}

fn reload(models: &Arc<Served>, pool: &Arc<Pool>, spec: ModelSpec) {
    let name = spec.name.clone();
    models.replace(&name, Some(serve(pool, spec, Knobs::default(), FakeProgram::identity())));
}

const ONE: (DataType, i64) = (DataType::Fp32, 1);

#[tokio::test]
async fn a_model_that_became_decoupled_does_not_fit_a_pipeline_that_is_not() {
    let pool = pool();
    let models = two_models(&pool, Knobs::default(), FakeProgram::identity());
    let pipeline = chain("chain", &["first", "second"], &models);
    reload(&models, &pool, ModelSpec { decoupled: true, ..spec("second", "x", "y") });
    let why = "it does not fit any more: it is decoupled, and it was not before";
    assert_eq!(pipeline.fault(), Some(format!("step 1: model 'second': {why}")));
    let refused = pipeline.submit(request(None)).await.expect_err("the second step has any number of responses");
    assert_eq!(refused.cause(), &InferError::Unavailable(why.to_owned()));

    reload(&models, &pool, spec("second", "x", "y"));
    assert_eq!(pipeline.fault(), None);
    pipeline.submit(request(None)).await.expect("both run");
}

#[tokio::test]
async fn an_output_that_became_another_size_does_not_fit_though_it_varied_before() {
    let pool = pool();
    let models = two_models(&pool, Knobs::default(), FakeProgram::identity());
    reload(&models, &pool, shaped("second", ONE, (DataType::Fp32, -1)));
    let pipeline = chain("chain", &["first", "second"], &models);
    reload(&models, &pool, shaped("second", ONE, (DataType::Fp32, 2)));
    let why = "output 'y': expected shape [-1,1], but it has [-1,2]";
    assert_eq!(pipeline.fault(), Some(format!("it does not fit any more: {why}")));
    let refused = pipeline.submit(request(None)).await.expect_err("clients expect one number");
    let text = format!("the pipeline does not fit its models any more: {why}");
    assert_eq!(refused.cause(), &InferError::Unavailable(text));
}

#[tokio::test]
async fn models_that_change_together_fit_unless_a_tensor_has_another_datatype() {
    let pool = pool();
    let models = two_models(&pool, Knobs::default(), FakeProgram::identity());
    let pipeline = chain("chain", &["first", "second"], &models);
    reload(&models, &pool, shaped("first", ONE, (DataType::Fp32, 2)));
    assert!(pipeline.fault().is_some_and(|fault| fault.starts_with("step 1: model 'second'")), "two numbers for one");
    reload(&models, &pool, shaped("second", (DataType::Fp32, 2), ONE));
    assert_eq!(pipeline.fault(), None);

    reload(&models, &pool, shaped("first", ONE, (DataType::Int32, 2)));
    reload(&models, &pool, shaped("second", (DataType::Int32, 2), ONE));
    let fault = "step 0: model 'first': it does not fit any more: its output 'y' and the tensor 'between 1' differ: \
                 expected datatype FP32, but it has INT32";
    assert_eq!(pipeline.fault().as_deref(), Some(fault));
}

#[tokio::test]
async fn pipelines_that_became_nested_too_deep_are_not_ready() {
    let models = two_models(&pool(), Knobs::default(), FakeProgram::identity());
    let mut last = chain("level 1", &["first"], &models);
    for depth in 2..=MAX_DEPTH {
        models.replace(&last.spec.name, Some(Servable::Pipeline(Arc::clone(&last))));
        last = chain(&format!("level {depth}"), &[&last.spec.name.clone()], &models);
    }
    assert_eq!(last.fault(), None);
    // What was a model is a pipeline now.
    let inner = chain("first", &["second"], &models);
    models.replace("first", Some(Servable::Pipeline(inner)));
    assert_eq!(last.fault().as_deref(), Some("pipelines are nested more than 8 deep"));
    let refused = last.submit(request(None)).await.expect_err("one too many");
    assert_eq!(refused.cause(), &InferError::Unavailable("pipelines are nested more than 8 deep".to_owned()));

    // One that is within itself.
    let itself = chain("second", &["second"], &models);
    models.replace("second", Some(Servable::Pipeline(Arc::clone(&itself))));
    assert_eq!(itself.fault().as_deref(), Some("pipelines are nested more than 8 deep"));
}
