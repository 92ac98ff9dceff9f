//! Programs on the pool: every datatype, shapes that are not known beforehand, concurrent runs, runs that are asked to
//! stop.

use std::{sync::Arc, thread};

use bytes::Bytes;
use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_device::BufferPool;
use paternoster_engine::{
    Batch, BatchInput, Precision, Program, ProgramPort, StopSignal,
    openvino::{OpenVino, OpenVinoProgram},
};
use paternoster_executor::{InferError, InferRequest, ModelHandle, OutputTensor, Pool, PoolOptions};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec};
use paternoster_onnx::{
    Model, PortDim, Signature,
    build::Graph,
    zoo::{self, Width, cells},
};
use paternoster_testing::openvino::openvino;

use crate::openvino::rig::sealed;

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

fn compile(openvino: &OpenVino, model: &Model, spec: &ModelSpec) -> OpenVinoProgram {
    let inputs: Vec<ProgramPort<'_>> = spec.inputs.iter().map(ProgramPort::from).collect();
    let outputs: Vec<ProgramPort<'_>> = spec.outputs.iter().map(ProgramPort::from).collect();
    OpenVinoProgram::compile_sealed(openvino, Precision::Ieee, &sealed(model), &inputs, &outputs)
        .expect("the model compiles")
}

fn bring_up(pool: &Arc<Pool>, openvino: &OpenVino, model: &Model, spec: ModelSpec) -> Arc<ModelHandle> {
    let program = compile(openvino, model, &spec);
    let policy = Policy::Window(WindowKnobs::default());
    let knobs = Knobs { max_batch_rows: 8, max_in_flight: 2, policy, ..Knobs::default() };
    Arc::new(pool.bring_up(spec, knobs, Arc::new(program)).expect("the CPU has room"))
}

fn pool() -> Arc<Pool> {
    Pool::start(&PoolOptions::default()).expect("threads start")
}

async fn infer(handle: &Arc<ModelHandle>, inputs: Vec<(&[i64], Vec<u8>)>) -> Result<Vec<OutputTensor>, InferError> {
    let rows = inputs[0].0[0] as u32;
    let tensor = |(shape, data): (&[i64], Vec<u8>)| InputTensor { shape: Dims::from_slice(shape), data: data.into() };
    let inputs = inputs.into_iter().map(|input| Some(tensor(input))).collect();
    let request = InferRequest::new(rows, inputs);
    handle.submit(request).await.map(|response| response.outputs)
}

fn fp32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[tokio::test]
async fn every_datatype_comes_back_as_it_went() {
    let Some(openvino) = openvino() else { return };
    let pool = pool();
    // The other datatypes are refused.
    let refused = [DataType::Bytes, DataType::Fp64, DataType::Uint32, DataType::Uint64];
    for datatype in DataType::ALL.into_iter().filter(|datatype| !refused.contains(datatype)) {
        let size = datatype.size_bytes().expect("no strings");
        let dims = [PortDim::Symbol("batch".to_owned()), PortDim::Fixed(3)];
        let model = zoo::identity_of(datatype, &dims).expect("the graph is sound");
        let tensor = |name: &str| TensorSpec::new(name, datatype, &[3]);
        let handle = bring_up(&pool, openvino, &model, spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]));
        // BOOL has only the values 0 and 1; for the other types any bits would do. OpenVINO's INT64 has 32 bits.
        let data: Vec<u8> = (0..6 * size).map(|index| (index % size < 4 && index % 5 % 2 == 1) as u8).collect();
        let outputs = infer(&handle, vec![(&[2, 3], data.clone())]).await.expect("identity runs");
        assert_eq!(outputs[0].data, data, "{datatype}");
        assert_eq!(outputs[0].shape.as_slice(), [2, 3], "{datatype}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_runs_of_one_graph_do_not_mix() {
    let Some(openvino) = openvino() else { return };
    let pool = pool();
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[16]);
    let spec = spec(vec![tensor("INPUT0"), tensor("INPUT1")], vec![tensor("OUTPUT0"), tensor("OUTPUT1")]);
    let handle = bring_up(&pool, openvino, &zoo::add_sub().expect("the graph is sound"), spec);
    let tasks: Vec<_> = (0..8_u8)
        .map(|worker| {
            let handle = Arc::clone(&handle);
            tokio::spawn(async move {
                for round in 0..100_u8 {
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
    let Some(openvino) = openvino() else { return };
    let pool = pool();
    let dims = [PortDim::Symbol("batch".to_owned()), PortDim::Symbol("n".to_owned())];
    let model = zoo::identity_of(DataType::Fp32, &dims).expect("the graph is sound");
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[-1]);
    let handle = bring_up(&pool, openvino, &model, spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]));
    for length in [0_usize, 1, 5, 2] {
        let data = fp32(&vec![1.5; length]);
        let outputs = infer(&handle, vec![(&[1, length as i64], data.clone())]).await.expect("identity runs");
        assert_eq!(outputs[0].shape.as_slice(), [1, length as i64]);
        assert_eq!(outputs[0].data, data);
    }
}

/// Rows are wider than declared, narrower, and as declared, in turn.
#[tokio::test]
async fn rows_are_wider_or_narrower_than_declared() {
    let Some(openvino) = openvino() else { return };
    let pool = pool();
    let dims = [PortDim::from("batch"), PortDim::from("n")];
    let model = zoo::identity_of(DataType::Fp32, &dims).expect("the graph is sound");
    let tensor = |name: &str, dims: &[i64]| TensorSpec::new(name, DataType::Fp32, dims);
    for widths in [[1_i64, 3, 2], [3, 1, 2], [2, 3, 1]] {
        let spec = spec(vec![tensor("INPUT0", &[-1])], vec![tensor("OUTPUT0", &[2])]);
        let handle = bring_up(&pool, openvino, &model, spec);
        for width in widths {
            let data = fp32(&(0..2 * width).map(|place| place as f32).collect::<Vec<_>>());
            let outputs = infer(&handle, vec![(&[2, width], data.clone())]).await.expect("identity runs");
            assert_eq!((outputs[0].shape.as_slice(), &outputs[0].data[..]), ([2, width].as_slice(), &data[..]));
        }
    }
}

/// OpenVINO computes the shape of an output that the file lets vary, and accepts memory of no other.
#[tokio::test]
async fn an_output_that_varies_by_declaration_alone_is_served() {
    let Some(openvino) = openvino() else { return };
    let pool = pool();
    for (declared, dims) in [(PortDim::from("seq"), -1), (PortDim::from(5), 5), (PortDim::from(4), 4)] {
        let mut graph = Graph::new("fixed");
        let input = graph.input("INPUT0", DataType::Fp32, &[PortDim::from(1), PortDim::from(4)]);
        let made = graph.op("Relu", &[&input]).named("OUTPUT0").value();
        graph.output(&made, DataType::Fp32, &[PortDim::from(1), declared]);
        let model = graph.finish().expect("the graph is sound");
        let tensor = |name: &str, dims: &[i64]| TensorSpec::new(name, DataType::Fp32, dims);
        let spec = spec(vec![tensor("INPUT0", &[1, 4])], vec![tensor("OUTPUT0", &[1, dims])]);
        let handle = bring_up(&pool, openvino, &model, ModelSpec { max_batch_size: 0, ..spec });
        for number in [1.0, 3.0] {
            let outputs = infer(&handle, vec![(&[1, 4], fp32(&[number, -2.0, 0.5, 4.0]))]).await.expect("it runs");
            assert_eq!(outputs[0].shape.as_slice(), [1, 4], "declared as {dims}");
            assert_eq!(outputs[0].data, fp32(&[number, 0.0, 0.5, 4.0]), "declared as {dims}");
        }
    }
}

/// Shapes of another rank than declared are served as they are, as ONNX Runtime's.
#[tokio::test]
async fn an_output_of_another_rank_than_declared_is_served() {
    let Some(openvino) = openvino() else { return };
    let pool = pool();
    let dims = [PortDim::from("batch"), PortDim::from(4)];
    let mut graph = Graph::new("pairs");
    let input = graph.input("INPUT0", DataType::Fp32, &dims);
    let negative = graph.op("Neg", &[&input]).value();
    let to = graph.literal(&[0_i64, 2, 2]);
    let made = graph.op("Reshape", &[&negative, &to]).named("OUTPUT0").value();
    graph.output(&made, DataType::Fp32, &dims);
    let model = graph.finish().expect("the graph is sound");
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[4]);
    let handle = bring_up(&pool, openvino, &model, spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]));
    for rows in [1_i64, 2, 1] {
        let outputs = infer(&handle, vec![(&[rows, 4], fp32(&vec![1.5; 4 * rows as usize]))]).await.expect("it runs");
        assert_eq!(outputs[0].shape.as_slice(), [rows, 2, 2]);
        assert_eq!(outputs[0].data, fp32(&vec![-1.5; 4 * rows as usize]));
    }
}

#[tokio::test]
async fn numbers_beyond_32_bits_are_refused_before_a_run_and_in_one() {
    let Some(openvino) = openvino() else { return };
    let pool = pool();
    let dims = [PortDim::from("batch"), PortDim::from(2)];
    let model = zoo::identity_of(DataType::Int64, &dims).expect("the graph is sound");
    let tensor = |name: &str| TensorSpec::new(name, DataType::Int64, &[2]);
    let spec = spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]);
    let handle = bring_up(&pool, openvino, &model, spec.clone());
    let int64 = |numbers: [i64; 2]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    for number in [i64::from(i32::MAX), i64::from(i32::MIN)] {
        let outputs = infer(&handle, vec![(&[1, 2], int64([7, number]))]).await.expect("it fits");
        assert_eq!(outputs[0].data, int64([7, number]));
    }
    let program = compile(openvino, &model, &spec);
    for number in [i64::from(i32::MAX) + 1, i64::from(i32::MIN) - 1, 1 << 40] {
        let refused = infer(&handle, vec![(&[1, 2], int64([7, number]))]).await.expect_err("it does not fit");
        let reason = format!(
            "input 'INPUT0' of model 'model': expected 32-bit numbers from -2147483648 to 2147483647, but found \
             {number} at [0, 1]"
        );
        assert!(matches!(&refused, InferError::Invalid(found) if *found == reason), "{refused}");
        // Elements that another program made are not admitted first.
        let (data, buffers, stop) = (int64([7, number]), BufferPool::new(0), StopSignal::default());
        let inputs = [BatchInput::Dense { shape: &[1, 2], data: &data }];
        let batch =
            Batch { rows: 1, inputs: &inputs, steps: &[0], output_shapes: &[None], buffers: &buffers, stop: &stop };
        let error = program.run(&batch).expect_err("it does not fit");
        let reason = format!("input 'INPUT0' has the element {number}, which the engine openvino would cut to 32 bits");
        assert_eq!(error.message, reason);
    }
}

#[test]
fn outputs_are_written_where_the_caller_says() {
    let Some(openvino) = openvino() else { return };
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[16]);
    let spec = spec(vec![tensor("INPUT0"), tensor("INPUT1")], vec![tensor("OUTPUT0"), tensor("OUTPUT1")]);
    let program = compile(openvino, &zoo::add_sub().expect("the graph is sound"), &spec);
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
fn programs_of_one_graph_share_it_and_precisions_do_not() {
    let Some(openvino) = openvino() else { return };
    let model = cells::lstm::step(Width::QUARTER).expect("the graph is sound");
    let Signature { inputs, .. } = Signature::from_bytes("step", &model.to_bytes()).expect("it can be read");
    let inputs: Vec<ProgramPort<'_>> = inputs
        .iter()
        .map(|port| ProgramPort { name: &port.name, datatype: port.datatype.expect("a datatype") })
        .collect();
    let model = sealed(&model);
    let origin = |precision| {
        let compiled = OpenVinoProgram::compile_sealed(openvino, precision, &model, &inputs, &[]);
        compiled.expect("it compiles").origin()
    };
    assert!(origin(Precision::Ieee).is_some());
    assert_eq!(origin(Precision::Ieee), origin(Precision::Ieee));
    assert_ne!(origin(Precision::Ieee), origin(Precision::Bf16), "they do not compute the same");
}

/// A chain of products, each a node: far more than a second of work.
fn long() -> Model {
    let mut graph = Graph::new("long");
    let shape = [PortDim::from("batch"), PortDim::from(512)];
    let input = graph.input("INPUT0", DataType::Fp32, &shape);
    let weights = graph.constant("weights", &[512, 512], &vec![1.0 / 512.0; 512 * 512]);
    let mut value = input;
    for _ in 0..1_000 {
        let product = graph.op("MatMul", &[&value, &weights]).value();
        value = graph.op("Tanh", &[&product]).value();
    }
    let output = graph.op("Identity", &[&value]).named("OUTPUT0").value();
    graph.output(&output, DataType::Fp32, &shape);
    graph.finish().expect("the graph is sound")
}

#[test]
fn a_run_stops_when_it_is_told_to_and_the_next_is_as_good_as_before() {
    const ROWS: usize = 2_048;
    let Some(openvino) = openvino() else { return };
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[512]);
    let program = compile(openvino, &long(), &spec(vec![tensor("INPUT0")], vec![tensor("OUTPUT0")]));
    let buffers = BufferPool::new(0);
    let run = |rows: usize, stop: &StopSignal| {
        let (data, shape) = (fp32(&vec![1.0; rows * 512]), [rows as i64, 512]);
        let inputs = [BatchInput::Dense { shape: &shape, data: &data }];
        let batch = Batch { rows: 1, inputs: &inputs, steps: &[], output_shapes: &[None], buffers: &buffers, stop };
        program.run(&batch).map(|execution| execution.outputs[0].data.clone()).map_err(|error| error.message)
    };
    let [first, second] = [(); 2].map(|()| StopSignal::default());
    let expected: Bytes = run(1, &first).expect("nothing stops it");
    thread::scope(|scope| {
        let running = [&first, &second].map(|stop| scope.spawn(|| run(ROWS, stop)));
        // One of them is running and the other waits for it.
        for stop in [&second, &first] {
            stop.raise();
        }
        for (stop, running) in [&first, &second].into_iter().zip(running) {
            // A signal at the very start of a run is missed, but the next one is not.
            while !running.is_finished() {
                stop.raise();
                thread::yield_now();
            }
            let ended = running.join().expect("it does not panic");
            assert_eq!(ended, Err("the run was asked to stop".to_owned()));
        }
    });
    first.clear();
    assert_eq!(run(1, &first), Ok(expected), "another run is not harmed");
}
