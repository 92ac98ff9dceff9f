//! The ONNX Runtime engine on the pool: every datatype, strings of any bytes, shapes that are not known beforehand,
//! concurrent runs of one session, operators that fail, loops that never end.
//!
//! Needs the library, from `ORT_DYLIB_PATH` or where `make` puts it. Without it each test prints a note and passes.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_device::BufferPool;
use paternoster_engine::{
    Batch, BatchInput, Program, ProgramPort, StopSignal,
    onnxruntime::{OnnxProgram, Runtime},
};
use paternoster_executor::{InferError, InferRequest, ModelHandle, OutputTensor, Pool, PoolOptions};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec};
use paternoster_onnx::{Model, PortDim, build::Graph, zoo};
use paternoster_testing::runtime::{MAX_MEMORY_BYTES, runtime};

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
    Arc::new(pool.bring_up(spec, knobs, Arc::new(program)).expect("the CPU has room"))
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
    InferRequest::new(rows, inputs)
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
            // BOOL has only the values 0 and 1; for the other types any bits would do.
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

#[tokio::test]
async fn an_output_of_a_declared_size_that_no_memory_holds_fails_by_name() {
    let Some(runtime) = runtime() else { return };
    let pool = pool();
    let dims = [PortDim::from("batch"), PortDim::from("n")];
    let model = zoo::identity_of(DataType::Fp32, &dims).expect("the graph is sound");
    let tensor = |name: &str, dims: &[i64]| TensorSpec::new(name, DataType::Fp32, dims);
    for length in [1_i64 << 36, 1 << 50, i64::MAX] {
        let spec = spec(vec![tensor("INPUT0", &[-1])], vec![tensor("OUTPUT0", &[length])]);
        let handle = bring_up(&pool, runtime, &model, spec);
        let Err(InferError::Engine(reason)) = infer(&handle, vec![(&[1, 2], fp32(&[1.0, 2.0]))]).await else {
            panic!("{length} elements were served")
        };
        let bytes = i128::from(length) * 4;
        assert!(
            reason.starts_with(&format!(
                "output 'OUTPUT0' of model 'model' would take {bytes} bytes for the shape [1, {length}]"
            )),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn outputs_above_the_limit_fail_whoever_allocates_them_and_smaller_ones_are_served() {
    let Some(runtime) = runtime() else { return };
    let pool = Pool::start(&PoolOptions { max_output_bytes: 64, ..PoolOptions::default() }).expect("threads start");
    let model =
        zoo::identity_of(DataType::Fp32, &[PortDim::from("batch"), PortDim::from("n")]).expect("the graph is sound");
    for (declared, takes) in [(9, "would take"), (-1, "takes")] {
        let tensor = |name: &str, length| TensorSpec::new(name, DataType::Fp32, &[length]);
        let spec = spec(vec![tensor("INPUT0", declared)], vec![tensor("OUTPUT0", declared)]);
        let handle = bring_up(&pool, runtime, &model, spec);
        let ask = |rows: i64| handle.submit(request(vec![(&[rows, 9], fp32(&vec![1.5; rows as usize * 9]))]));
        let expected = InferError::Engine(format!(
            "output 'OUTPUT0' of model 'model' {takes} 72 bytes for the shape [2, 9]: expected at most 64 bytes for \
             all outputs of a batch (--max-output-bytes)"
        ));
        assert_eq!(ask(2).await.expect_err("two rows take 72 bytes"), expected);
        ask(1).await.expect("one takes 36");
    }
}

#[tokio::test]
async fn a_run_that_needs_more_memory_than_there_is_fails_and_the_next_is_served() {
    let Some(runtime) = runtime() else { return };
    let pool = pool();
    // One number in the request decides how much memory the graph takes, whatever the sizes of its inputs and outputs.
    let mut graph = Graph::new("sum of numbers");
    let most = graph.input("INPUT0", DataType::Int64, &[PortDim::from("batch"), PortDim::from(1)]);
    let (shape, zero, one) = (graph.literal(&[1_i64, -1]), graph.scalar(0_i64), graph.scalar(1_i64));
    let axes = graph.literal(&[0_i64, 1]);
    let limit = graph.op("Squeeze", &[&most, &axes]).value();
    let numbers = graph.op("Range", &[&zero, &limit, &one]).value();
    let row = graph.op("Reshape", &[&numbers, &shape]).value();
    let last = graph.literal(&[1_i64]);
    let sum = graph.op("ReduceSum", &[&row, &last]).attr("keepdims", 1).named("OUTPUT0").value();
    graph.output(&sum, DataType::Int64, &[PortDim::from("batch"), PortDim::from(1)]);
    let model = graph.finish().expect("the graph is sound");
    let tensor = |name: &str| TensorSpec::new(name, DataType::Int64, &[1]);
    let handle = bring_up(&pool, runtime, &model, spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]));
    let ask = |numbers: i64| handle.submit(request(vec![(&[1, 1], numbers.to_le_bytes().to_vec())]));
    for numbers in [MAX_MEMORY_BYTES as i64 / 8 + 1, 1 << 40, 1 << 60] {
        let Err(InferError::Engine(reason)) = ask(numbers).await else { panic!("{numbers} numbers were summed") };
        assert!(
            reason.contains("Available memory of") && reason.contains("is smaller than requested bytes"),
            "{reason}"
        );
        let response = ask(5).await.expect("five numbers take little");
        assert_eq!(response.outputs[0].data, 10_i64.to_le_bytes().as_slice());
    }
}

#[tokio::test]
async fn shapes_that_differ_from_the_declaration_are_served_as_they_are() {
    let Some(runtime) = runtime() else { return };
    let pool = pool();
    // Converters of tree ensembles declare their labels like this: one label, whatever the number of rows.
    let mut graph = Graph::new("labels");
    let scores = graph.input("scores", DataType::Fp32, &[PortDim::from("n"), PortDim::from(2)]);
    let label = graph.op("ArgMax", &[&scores]).attr("axis", 1).attr("keepdims", 0).named("label").value();
    graph.output(&label, DataType::Int64, &[PortDim::from(1)]);
    let model = graph.finish().expect("the graph is sound");
    let inputs = vec![TensorSpec::new("scores", DataType::Fp32, &[-1, 2])];
    let outputs = vec![TensorSpec::new("label", DataType::Int64, &[1])];
    let handle = bring_up(&pool, runtime, &model, ModelSpec { max_batch_size: 0, ..spec(inputs, outputs) });
    for rows in [1_i64, 3, 1, 2] {
        let scores: Vec<f32> = (0..rows).flat_map(|row| if row % 2 == 0 { [1.0, 0.0] } else { [0.0, 1.0] }).collect();
        let mut asked = request(vec![(&[rows, 2], fp32(&scores))]);
        asked.rows = 1;
        let outputs = handle.submit(asked).await.expect("labels of any number of rows").outputs;
        assert_eq!(outputs[0].shape.as_slice(), [rows]);
        let expected: Vec<u8> = (0..rows).flat_map(|row| (row % 2).to_le_bytes()).collect();
        assert_eq!(outputs[0].data, expected);
    }
}

#[tokio::test]
async fn rows_are_wider_than_declared_but_not_fewer() {
    let Some(runtime) = runtime() else { return };
    let pool = pool();
    let dims = [PortDim::from("batch"), PortDim::from("n")];
    let model = zoo::identity_of(DataType::Fp32, &dims).expect("the graph is sound");
    let tensor = |name: &str, dims: &[i64]| TensorSpec::new(name, DataType::Fp32, dims);
    let handle = bring_up(&pool, runtime, &model, spec(vec![tensor("INPUT0", &[-1])], vec![tensor("OUTPUT0", &[1])]));
    for width in [1_i64, 3, 1] {
        let data = fp32(&vec![1.5; 2 * width as usize]);
        let outputs = infer(&handle, vec![(&[2, width], data.clone())]).await.expect("identity runs");
        assert_eq!((outputs[0].shape.as_slice(), &outputs[0].data[..]), ([2, width].as_slice(), &data[..]));
    }
    let mut graph = Graph::new("sum");
    let input = graph.input("INPUT0", DataType::Fp32, &dims);
    let axes = graph.literal(&[0_i64]);
    let sum = graph.op("ReduceSum", &[&input, &axes]).attr("keepdims", 1).named("OUTPUT0").value();
    graph.output(&sum, DataType::Fp32, &[PortDim::from("batch"), PortDim::from(1)]);
    let model = graph.finish().expect("the graph is sound");
    let handle = bring_up(&pool, runtime, &model, spec(vec![tensor("INPUT0", &[1])], vec![tensor("OUTPUT0", &[1])]));
    infer(&handle, vec![(&[1, 1], fp32(&[1.0]))]).await.expect("the sum of one row is one row");
    let Err(InferError::Engine(reason)) = infer(&handle, vec![(&[2, 1], fp32(&[1.0, 2.0]))]).await else {
        panic!("one row was served as two")
    };
    assert_eq!(reason, "output 'OUTPUT0' of model 'model' has the shape [1, 1], expected 2 rows on axis 0");
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
        let stop = StopSignal::default();
        let batch =
            Batch { rows: 1, inputs: &inputs, steps: &[], output_shapes: &shapes, buffers: &buffers, stop: &stop };
        program.run_into(&batch, &mut [None, Some(memory)])
    };
    let mut rows = fp32(&[7.0; 48]);
    let execution = run(1, &mut rows[64..128]).expect("addition runs");
    assert_eq!(execution.outputs[0].data, fp32(&[4.0; 16]), "the one that was given no memory comes in the pool's");
    assert!(execution.outputs[1].data.is_empty(), "the other is where it was wanted");
    assert_eq!(rows, fp32(&[[7.0; 16], [2.0; 16], [7.0; 16]].concat()), "its neighbours are untouched");
    run(0, &mut []).expect("no rows need no memory");
    let error = run(1, &mut rows).expect_err("three rows of memory are not one");
    assert!(error.message.contains("192 bytes") && error.message.contains("'OUTPUT1'"), "{error}");
}

#[test]
fn programs_of_one_graph_are_of_one_origin_and_runs_stop_alone() {
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
    let runs = |program: &OnnxProgram, stop: &StopSignal| {
        let inputs = [(); 2].map(|()| BatchInput::Dense { shape: &[1, 16], data: &values });
        let output_shapes = [None, None];
        let batch =
            Batch { rows: 1, inputs: &inputs, steps: &[], output_shapes: &output_shapes, buffers: &buffers, stop };
        program.run(&batch).is_ok()
    };
    let (lane, other) = (StopSignal::default(), StopSignal::default());
    other.raise();
    assert!(!runs(&one, &other), "it was told to stop before its first run");
    assert!(runs(&one, &lane) && runs(&two, &lane));
    lane.raise();
    other.clear();
    assert!(!runs(&one, &lane) && !runs(&two, &lane), "whatever runs there is to stop");
    assert!(runs(&one, &other), "elsewhere the same program goes on");
    lane.clear();
    assert!(runs(&one, &lane));
    drop(one);
    assert!(runs(&two, &lane), "the session lives as long as any handle");
}

#[tokio::test]
async fn what_the_graph_does_not_have_is_refused_by_name() {
    let Some(runtime) = runtime() else { return };
    let model = zoo::identity().expect("the graph is sound").to_bytes();
    let compile = |input: TensorSpec| {
        let output = TensorSpec::new("OUTPUT0", DataType::Fp32, &[16]);
        OnnxProgram::compile(runtime, &model, &spec(vec![input], vec![output])).err().map(|error| error.message)
    };
    let unknown = compile(TensorSpec::new("NOPE", DataType::Fp32, &[16])).expect("the name is refused");
    assert!(unknown.contains("'NOPE'") && unknown.contains("INPUT0"), "{unknown}");
    let mistyped = compile(TensorSpec::new("INPUT0", DataType::Int64, &[16])).expect("the type is refused");
    assert!(mistyped.contains("INPUT0") && mistyped.contains("INT64"), "{mistyped}");
    assert_eq!(compile(TensorSpec::new("INPUT0", DataType::Fp32, &[16])), None);
    let garbage = OnnxProgram::compile(runtime, b"garbage", &spec(vec![], vec![])).err().expect("garbage is refused");
    assert!(garbage.message.contains("is not an ONNX model"), "{garbage}");
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
async fn a_loop_that_never_ends_is_stopped_when_its_client_is_gone() {
    let Some(runtime) = runtime() else { return };
    let options = PoolOptions { cpu_lanes: 1, task_time_limit: Duration::ZERO, ..PoolOptions::default() };
    let pool = Pool::start(&options).expect("threads start");
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[16]);
    let ports = || spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]);
    let endless = bring_up(&pool, runtime, &zoo::runaway().expect("the graph is sound"), ports());
    let other = bring_up(&pool, runtime, &zoo::identity().expect("the graph is sound"), ports());
    let row = || vec![(&[1_i64, 16][..], fp32(&[1.0; 16]))];
    for _ in 0..5 {
        drop(endless.submit(request(row())));
        infer(&other, row()).await.expect("the only lane is free again");
    }
    assert!(pool.stop(Duration::from_secs(60)), "all threads end");
}

#[tokio::test]
async fn a_loop_that_never_ends_is_stopped_when_its_time_is_over() {
    let Some(runtime) = runtime() else { return };
    let options = PoolOptions { task_time_limit: Duration::from_millis(50), ..PoolOptions::default() };
    let pool = Pool::start(&options).expect("threads start");
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[16]);
    let model = zoo::runaway().expect("the graph is sound");
    let handle = bring_up(&pool, runtime, &model, spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]));
    let mut changes = pool.responsiveness();
    // Each time the lane becomes free again, and the program accepts the next request.
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
