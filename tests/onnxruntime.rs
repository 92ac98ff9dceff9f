//! The ONNX Runtime engine on the pool: every datatype, strings with any bytes, shapes that are not known before,
//! concurrent runs of one session, operators that fail, loops that never end.
//!
//! Needs the library: in `ORT_DYLIB_PATH` or where `make` puts it. Without it each test says so and passes.

#[path = "common/runtime.rs"]
mod runtime;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use paternoster::{
    batching::{Knobs, Policy, WindowKnobs},
    device::BufferPool,
    engine::{
        Batch, BatchInput, Program, ProgramPort,
        onnxruntime::{OnnxProgram, Runtime},
    },
    executor::{InferError, InferRequest, InputTensor, ModelHandle, OutputTensor, Pool, PoolOptions},
    model::{DataType, Dims, ModelSpec, TensorSpec},
    onnx::{Model, PortDim, zoo},
};
use runtime::runtime;

fn spec(inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>) -> ModelSpec {
    ModelSpec {
        name: "model".to_owned(),
        version: 1,
        max_batch_size: 8,
        inputs,
        outputs,
        symbols: vec![],
        decoupled: false,
    }
}

fn bring_up(pool: &Arc<Pool>, runtime: &Runtime, model: &Model, spec: ModelSpec) -> Arc<ModelHandle> {
    let program = OnnxProgram::compile(runtime, &model.to_bytes(), &spec).expect("the model compiles");
    let policy = Policy::Window(WindowKnobs::default());
    let knobs = Knobs { max_batch_rows: 8, max_in_flight: 2, policy, ..Knobs::default() };
    Arc::new(pool.bring_up(spec, knobs, Arc::new(program)))
}

fn pool() -> Arc<Pool> {
    Pool::start(&PoolOptions::default()).expect("threads start")
}

fn request(inputs: Vec<(&[i64], Vec<u8>)>) -> InferRequest {
    let rows = inputs[0].0[0] as u32;
    let inputs = inputs
        .into_iter()
        .map(|(shape, data)| Some(InputTensor { shape: Dims::from_slice(shape), data: Bytes::from(data) }))
        .collect();
    InferRequest { rows, inputs, priority: 0, queue_timeout: None, deadline: None, sequence: None }
}

async fn infer(handle: &Arc<ModelHandle>, inputs: Vec<(&[i64], Vec<u8>)>) -> Result<Vec<OutputTensor>, InferError> {
    handle.submit(request(inputs)).await.map(|response| response.outputs)
}

fn fp32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[tokio::test]
async fn every_datatype_comes_back_as_it_went() {
    let Some(runtime) = runtime() else { return };
    let pool = pool();
    for datatype in DataType::ALL {
        let dims = [PortDim::Symbol("batch".to_owned()), PortDim::Fixed(3)];
        let model = zoo::identity_of(datatype, &dims).expect("the graph is sound");
        let tensor = |name: &str| TensorSpec::new(name, datatype, &[3]);
        let handle = bring_up(&pool, runtime, &model, spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]));
        let data: Vec<u8> = match datatype.size_bytes() {
            // 0 and 1 are the values of BOOL, and bits like any other for the rest.
            Some(size) => (0..6 * size).map(|index| (index % 5 % 2) as u8).collect(),
            None => [b"".as_slice(), b"a", b"zero\0inside", b"\xff\xfe", b"e", b"f"]
                .iter()
                .flat_map(|element| [&(element.len() as u32).to_le_bytes(), *element].concat())
                .collect(),
        };
        let outputs = infer(&handle, vec![(&[2, 3], data.clone())]).await.expect("identity runs");
        assert_eq!(outputs[0].data, data, "{datatype}");
        assert_eq!(outputs[0].shape.as_slice(), [2, 3], "{datatype}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_runs_of_one_session_do_not_mix() {
    let Some(runtime) = runtime() else { return };
    let pool = pool();
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[16]);
    let spec = spec(vec![tensor("INPUT0"), tensor("INPUT1")], vec![tensor("OUTPUT0"), tensor("OUTPUT1")]);
    let handle = bring_up(&pool, runtime, &zoo::add_sub().expect("the graph is sound"), spec);
    let tasks: Vec<_> = (0..8_u8)
        .map(|worker| {
            let handle = Arc::clone(&handle);
            tokio::spawn(async move {
                for round in 0..200_u8 {
                    let (one, other) = (f32::from(worker) * 256.0 + f32::from(round), f32::from(worker) + 0.5);
                    let inputs = vec![([1, 16].as_slice(), fp32(&[one; 16])), ([1, 16].as_slice(), fp32(&[other; 16]))];
                    let outputs = infer(&handle, inputs).await.expect("addition runs");
                    assert_eq!(outputs[0].data, fp32(&[one + other; 16]), "worker {worker}, round {round}");
                    assert_eq!(outputs[1].data, fp32(&[one - other; 16]), "worker {worker}, round {round}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("the assertions of a worker hold");
    }
}

#[tokio::test]
async fn shapes_that_the_specification_leaves_open_are_read_from_the_result() {
    let Some(runtime) = runtime() else { return };
    let pool = pool();
    let dims = [PortDim::Symbol("batch".to_owned()), PortDim::Symbol("n".to_owned())];
    let model = zoo::identity_of(DataType::Fp32, &dims).expect("the graph is sound");
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[-1]);
    let handle = bring_up(&pool, runtime, &model, spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]));
    for length in [0_usize, 1, 5] {
        let data = fp32(&vec![1.5; length]);
        let outputs = infer(&handle, vec![(&[1, length as i64], data.clone())]).await.expect("identity runs");
        assert_eq!(outputs[0].shape.as_slice(), [1, length as i64]);
        assert_eq!(outputs[0].data, data);
    }
}

#[test]
fn outputs_are_written_where_the_caller_says() {
    let Some(runtime) = runtime() else { return };
    let model = zoo::add_sub().expect("the graph is sound").to_bytes();
    let port = |name| ProgramPort { name, datatype: DataType::Fp32 };
    let (inputs, outputs) = ([port("INPUT0"), port("INPUT1")], [port("OUTPUT0"), port("OUTPUT1")]);
    let program = OnnxProgram::compile_ports(runtime, "part", &model, &inputs, &outputs).expect("the model compiles");
    let buffers = BufferPool::new(0);
    let run = |rows: usize, memory: &mut [u8]| {
        let (one, other) = (fp32(&vec![3.0; rows * 16]), fp32(&vec![1.0; rows * 16]));
        let shape = [rows as i64, 16];
        let inputs = [&one, &other].map(|data| BatchInput::Dense { shape: &shape, data });
        let shapes = [Some(Dims::from_slice(&shape)), Some(Dims::from_slice(&shape))];
        let batch = Batch { rows: 1, inputs: &inputs, steps: &[], output_shapes: &shapes, buffers: &buffers };
        program.run_into(&batch, &mut [None, Some(memory)])
    };
    let mut rows = fp32(&[7.0; 48]);
    let execution = run(1, &mut rows[64..128]).expect("addition runs");
    assert_eq!(execution.outputs[0].data, fp32(&[4.0; 16]), "the one that was given no memory comes in the pool's");
    assert!(execution.outputs[1].data.is_empty(), "the other is where it was wanted");
    assert_eq!(rows, fp32(&[[7.0; 16], [2.0; 16], [7.0; 16]].concat()), "its neighbours are untouched");
    run(0, &mut []).expect("no rows need no memory");
    let error = run(1, &mut rows).expect_err("three rows of memory are not one");
    assert!(error.0.contains("192 bytes") && error.0.contains("'OUTPUT1'"), "{error}");
}

#[test]
fn programs_of_one_graph_are_of_one_origin_and_stop_alone() {
    let Some(runtime) = runtime() else { return };
    let compile = |model: &Model| {
        let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[16]);
        let spec = spec(vec![tensor("INPUT0"), tensor("INPUT1")], vec![tensor("OUTPUT0"), tensor("OUTPUT1")]);
        OnnxProgram::compile(runtime, &model.to_bytes(), &spec).expect("the model compiles")
    };
    let model = zoo::add_sub().expect("the graph is sound");
    let (one, two) = (compile(&model), compile(&model));
    assert!(one.origin().is_some());
    assert_eq!(one.origin(), two.origin());
    let values = fp32(&[1.0; 16]);
    let buffers = BufferPool::new(0);
    let runs = |program: &OnnxProgram| {
        let inputs = [(); 2].map(|()| BatchInput::Dense { shape: &[1, 16], data: &values });
        let batch = Batch { rows: 1, inputs: &inputs, steps: &[], output_shapes: &[None, None], buffers: &buffers };
        program.run(&batch).is_ok()
    };
    assert!(runs(&one) && runs(&two));
    one.terminate();
    assert!(!runs(&one) && runs(&two), "the other goes on");
    drop(one);
    assert!(runs(&two), "the session is there for as long as anybody has it");
}

#[tokio::test]
async fn what_the_graph_does_not_have_is_refused_by_name() {
    let Some(runtime) = runtime() else { return };
    let model = zoo::identity().expect("the graph is sound").to_bytes();
    let compile = |input: TensorSpec| {
        let output = TensorSpec::new("OUTPUT0", DataType::Fp32, &[16]);
        OnnxProgram::compile(runtime, &model, &spec(vec![input], vec![output])).err().map(|error| error.0)
    };
    let unknown = compile(TensorSpec::new("NOPE", DataType::Fp32, &[16])).expect("the name is refused");
    assert!(unknown.contains("'NOPE'") && unknown.contains("INPUT0"), "{unknown}");
    let mistyped = compile(TensorSpec::new("INPUT0", DataType::Int64, &[16])).expect("the type is refused");
    assert!(mistyped.contains("INPUT0") && mistyped.contains("INT64"), "{mistyped}");
    assert_eq!(compile(TensorSpec::new("INPUT0", DataType::Fp32, &[16])), None);
    let garbage = OnnxProgram::compile(runtime, b"garbage", &spec(vec![], vec![])).err().expect("garbage is refused");
    assert!(garbage.0.starts_with("onnx runtime error"), "{garbage}");
}

#[tokio::test]
async fn an_operator_that_fails_fails_its_request_alone() {
    let Some(runtime) = runtime() else { return };
    let pool = pool();
    let model = zoo::lookup().expect("the graph is sound");
    let spec = spec(
        vec![TensorSpec::new("INPUT0", DataType::Int64, &[1])],
        vec![TensorSpec::new("OUTPUT0", DataType::Fp32, &[1])],
    );
    let handle = bring_up(&pool, runtime, &model, spec);
    let ask = |index: i64| handle.submit(request(vec![(&[1, 1], index.to_le_bytes().to_vec())]));
    let (good, bad, other) = (ask(0), ask(1_000_000), ask(1));
    good.await.expect("row 0 exists");
    other.await.expect("row 1 exists");
    let Err(InferError::Engine(reason)) = bad.await else { panic!("row 1,000,000 does not exist") };
    assert!(reason.contains("onnx runtime error"), "{reason}");
}

#[tokio::test]
async fn a_loop_that_never_ends_is_stopped_with_the_pool() {
    let Some(runtime) = runtime() else { return };
    let pool = pool();
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[16]);
    let model = zoo::runaway().expect("the graph is sound");
    let handle = bring_up(&pool, runtime, &model, spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]));
    let running = handle.submit(request(vec![(&[1, 16], fp32(&[0.0; 16]))]));
    assert!(pool.stop(Duration::from_secs(60)), "the running program is told to stop, and all threads end");
    assert_eq!(running.await.expect_err("it never ends by itself"), InferError::ShuttingDown);
}

#[tokio::test]
async fn a_loop_that_never_ends_is_stopped_when_its_time_is_over() {
    let Some(runtime) = runtime() else { return };
    let options = PoolOptions { hang_after: Duration::from_millis(50), ..PoolOptions::default() };
    let pool = Pool::start(&options).expect("threads start");
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[16]);
    let model = zoo::runaway().expect("the graph is sound");
    let handle = bring_up(&pool, runtime, &model, spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]));
    let mut changes = pool.responsiveness();
    // Each time its lane comes back, and the program takes the next.
    for _ in 0..5 {
        let error = infer(&handle, vec![(&[1, 16], fp32(&[0.0; 16]))]).await.expect_err("it never ends by itself");
        let reason = "model 'model' does not respond: a task has not ended within 50ms";
        assert_eq!(error, InferError::Engine(reason.to_owned()));
        while !handle.is_responsive() {
            changes.changed().await.expect("the pool lives");
        }
    }
    assert!(pool.stop(Duration::from_secs(60)), "all threads end");
}
