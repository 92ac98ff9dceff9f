//! Tensors between a pipeline and its steps, where one side has a batch axis and the other has none, or where the
//! pipeline reshapes its inputs and outputs.

use paternoster_executor::OutputTensor;
use paternoster_model::ShapeText;

use super::*;
use crate::{PipelineFault, shape::leave};

/// A model or pipeline with one input and one output of these dims.
fn shaped(name: &str, max_batch_size: u32, dims: &[i64]) -> ModelSpec {
    let tensor = |name: &str| vec![TensorSpec::new(name, DataType::Fp32, dims)];
    ModelSpec { max_batch_size, inputs: tensor("x"), outputs: tensor("y"), ..spec(name, "x", "y") }
}

fn reshaped(mut spec: ModelSpec, reshape: &[i64]) -> ModelSpec {
    for tensor in spec.inputs.iter_mut().chain(&mut spec.outputs) {
        tensor.reshape = Some(Dims::from_slice(reshape));
    }
    spec
}

/// A pipeline of models that give their inputs back, one after the other.
fn over(pipeline: ModelSpec, steps: Vec<ModelSpec>) -> Result<Arc<Pipeline>, PipelineFault> {
    let (pool, last) = (pool(), steps.len() - 1);
    let of = |number: usize, model: &ModelSpec| Step {
        runs: Runs::Served { model: model.name.clone(), version: None },
        inputs: vec![PortBinding {
            port: "x".to_owned(),
            tensor: if number == 0 { "x".to_owned() } else { format!("between {number}") },
        }],
        outputs: vec![PortBinding {
            port: "y".to_owned(),
            tensor: if number == last { "y".to_owned() } else { format!("between {}", number + 1) },
        }],
        when: None,
    };
    let graph =
        PipelineGraph::new(&["x"], &["y"], steps.iter().enumerate().map(|(number, model)| of(number, model)).collect());
    let models = steps.into_iter().map(|spec| {
        let knobs = Knobs { max_batch_rows: spec.max_batch_size.max(1), ..Knobs::default() };
        serve(&pool, spec, knobs, FakeProgram::identity())
    });
    let models = Arc::new(Served(Mutex::new(models.collect())));
    Pipeline::new(pipeline, graph.expect("a graph"), options(&models)).map(Arc::new)
}

/// Submits numbers in this shape, and returns the shape in which they come back.
async fn returned(pipeline: &Arc<Pipeline>, given: &[i64]) -> Result<Vec<i64>, String> {
    let count: i64 = given.iter().product();
    let data: Vec<u8> = (0..count).flat_map(|number| (number as f32).to_le_bytes()).collect();
    let input = InputTensor { shape: Dims::from_slice(given), data: Bytes::from(data.clone()) };
    let rows = if pipeline.spec().has_batch_axis() { given[0] as u32 } else { 1 };
    let response =
        pipeline.submit(InferRequest::new(rows, vec![Some(input)])).await.map_err(|error| error.to_string())?;
    let [OutputTensor { shape, data: returned }] = &response.outputs[..] else { panic!("one output") };
    assert_eq!(returned[..], data[..], "the elements stay");
    Ok(shape.to_vec())
}

#[tokio::test]
async fn a_tensor_without_a_batch_axis_is_one_row_of_a_step_with_one() {
    let pipeline = over(shaped("ensemble", 0, &[6]), vec![shaped("step", 1024, &[-1])]).expect("rows agree");
    assert_eq!(returned(&pipeline, &[6]).await, Ok(vec![6]));
    let pipeline = over(shaped("ensemble", 0, &[2, 3]), vec![shaped("step", 4, &[3])]).expect("all dimensions agree");
    assert_eq!(returned(&pipeline, &[2, 3]).await, Ok(vec![2, 3]), "its first dimension is the batch");
}

#[tokio::test]
async fn the_only_row_of_a_batch_goes_to_a_step_without_a_batch_axis() {
    let pipeline = over(shaped("ensemble", 8, &[6]), vec![shaped("step", 0, &[6])]).expect("rows agree");
    assert_eq!(returned(&pipeline, &[1, 6]).await, Ok(vec![1, 6]));
    let several = returned(&pipeline, &[2, 6]).await.expect_err("two rows");
    let place = "in pipeline 'ensemble', step 0 (model 'step'): input 'x': ";
    assert!(several.starts_with(place) && several.contains("[6]") && several.contains("[2,6]"), "{several}");
}

#[tokio::test]
async fn steps_with_and_without_a_batch_axis_follow_one_another() {
    for has_batch in 0..16_u32 {
        let batch = |bit: u32| if has_batch >> bit & 1 == 1 { 4 } else { 0 };
        let steps = (0..3).map(|bit| shaped(&format!("step {bit}"), batch(bit), &[2, -1])).collect();
        let pipeline = over(shaped("ensemble", batch(3), &[-1, 3]), steps).expect("rows agree");
        let shape: &[i64] = if batch(3) > 0 { &[1, 2, 3] } else { &[2, 3] };
        assert_eq!(returned(&pipeline, shape).await, Ok(shape.to_vec()), "{has_batch:04b}");
    }
}

#[tokio::test]
async fn steps_know_inputs_and_outputs_as_they_are_reshaped() {
    for max_batch_size in [0, 8] {
        let ensemble = reshaped(shaped("ensemble", max_batch_size, &[2, 2, 3]), &[3, 2, 2]);
        let pipeline = over(ensemble, vec![shaped("step", max_batch_size, &[3, 2, 2])]).expect("it is reshaped");
        let shape: &[i64] = if max_batch_size > 0 { &[2, 2, 2, 3] } else { &[2, 2, 3] };
        assert_eq!(returned(&pipeline, shape).await, Ok(shape.to_vec()), "max_batch_size {max_batch_size}");
    }
    let variable = reshaped(shaped("ensemble", 8, &[-1, 2]), &[-1, 1, 2]);
    let pipeline = over(variable, vec![shaped("step", 0, &[-1, 1, 2])]).expect("it is reshaped");
    assert_eq!(returned(&pipeline, &[1, 5, 2]).await, Ok(vec![1, 5, 2]), "and has one row");
    let scalars = reshaped(shaped("ensemble", 8, &[1]), &[]);
    let pipeline = over(scalars, vec![shaped("step", 8, &[])]).expect("it is reshaped");
    assert_eq!(returned(&pipeline, &[3, 1]).await, Ok(vec![3, 1]));
}

#[tokio::test]
async fn an_output_that_is_no_row_to_reshape_is_refused() {
    let ensemble = reshaped(shaped("ensemble", 0, &[-1]), &[-1, 1]);
    let pipeline = over(ensemble, vec![shaped("step", 4, &[1])]).expect("all dimensions agree");
    assert_eq!(returned(&pipeline, &[3]).await, Ok(vec![3]));
    let spec = &reshaped(shaped("ensemble", 0, &[4]), &[2, 2]).outputs[0];
    let tensor = InputTensor { shape: Dims::from_slice(&[2, 2, 2]), data: Bytes::new() };
    let expected = ValueFault::Shape { expected: ShapeText(vec![2, 2]), got: ShapeText(vec![2, 2, 2]) };
    assert_eq!(leave(tensor, spec, false).err(), Some(expected));
}

#[tokio::test]
async fn dims_that_agree_neither_with_the_batch_nor_without_are_refused() {
    let refusal = |ensemble, step| over(ensemble, vec![step]).expect_err("it does not fit").to_string();
    let text = refusal(shaped("ensemble", 0, &[6]), shaped("step", 8, &[5]));
    assert!(text.ends_with("differ: expected shape [-1,5], but it has [6]"), "{text}");
    let text = refusal(reshaped(shaped("ensemble", 8, &[2, 3]), &[3, 2]), shaped("step", 8, &[2, 3]));
    assert!(text.ends_with("differ: expected shape [-1,2,3], but it has [-1,3,2]"), "{text}");
}
