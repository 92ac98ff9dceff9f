//! What a boundary between two stages costs on the CPU: a straight line of eight additions, whole and cut into 2, 4 and
//! 8 stages, each request alone on the pool. A boundary's cost is the slope over the number of stages.
//!
//! `cargo bench --bench stages`. Programs of this crate's own need nothing; those of ONNX Runtime need its library, in
//! `ORT_DYLIB_PATH` or where `make` puts it.

use std::{hint::black_box, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_engine::{
    Batch, BatchInput, BatchOutput, EngineError, Execution, Program, ProgramPort,
    onnxruntime::{OnnxProgram, Runtime, RuntimeOptions},
};
use paternoster_executor::{InferRequest, ModelHandle, Pool, PoolOptions, StagePrograms};
use paternoster_model::{DataType, Dims, InputTensor, StageSpec};
use paternoster_onnx::build::Graph;
use paternoster_testing::chain;

/// Values of a row: a token of a small language model.
const WIDTH: usize = 384;
/// Operators of the whole model.
const OPERATORS: usize = 8;

/// Adds one to every value, as often as it is told.
struct Add {
    times: usize,
}

impl Program for Add {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        let [BatchInput::Dense { shape, data }] = batch.inputs else { return Err(EngineError::new("one input")) };
        let mut made = data.to_vec();
        self.add(&mut made);
        let output = BatchOutput { shape: Dims::from_slice(shape), data: Bytes::from(made) };
        Ok(Execution { outputs: vec![output], ..Execution::default() })
    }

    fn run_into(&self, batch: &Batch<'_>, given: &mut [Option<&mut [u8]>]) -> Result<Execution, EngineError> {
        let ([BatchInput::Dense { shape, data }], [Some(memory)]) = (batch.inputs, given) else {
            return self.run(batch);
        };
        memory.copy_from_slice(data);
        self.add(memory);
        let output = BatchOutput { shape: Dims::from_slice(shape), data: Bytes::new() };
        Ok(Execution { outputs: vec![output], ..Execution::default() })
    }
}

impl Add {
    fn add(&self, values: &mut [u8]) {
        for _ in 0..self.times {
            for value in values.as_chunks_mut::<4>().0 {
                *value = (f32::from_le_bytes(*value) + 1.0).to_le_bytes();
            }
        }
    }
}

fn compile(runtime: &Runtime, stage: &StageSpec, times: usize) -> Arc<dyn Program> {
    let (inputs, outputs): (Vec<ProgramPort<'_>>, Vec<ProgramPort<'_>>) = StagePrograms::ports(stage);
    let dims = ["batch".into(), (WIDTH as i64).into()];
    let mut graph = Graph::new("line");
    let mut value = graph.input(inputs[0].name, DataType::Fp32, &dims);
    let one = graph.constant("one", &[1], &[1.0_f32]);
    for number in 1..=times {
        let sum = graph.op("Add", &[&value, &one]);
        value = if number == times { sum.named(outputs[0].name).value() } else { sum.value() };
    }
    graph.output(&value, DataType::Fp32, &dims);
    let model = graph.finish().expect("the graph is sound").to_bytes();
    Arc::new(OnnxProgram::compile_ports(runtime, "line", &model, &inputs, &outputs).expect("the model compiles"))
}

fn bring_up(pool: &Arc<Pool>, runtime: Option<&Runtime>, stages: usize) -> Arc<ModelHandle> {
    let plan = chain::plan(stages, WIDTH);
    let times = OPERATORS / stages;
    let programs = plan.stages.iter().map(|stage| match runtime {
        Some(runtime) => compile(runtime, stage, times),
        None => Arc::new(Add { times }) as Arc<dyn Program>,
    });
    let programs = programs.collect();
    let programs = StagePrograms::cut(&chain::spec(WIDTH), plan, programs).expect("the plan is sound");
    let policy = Policy::Window(WindowKnobs::default());
    let knobs = Knobs { max_batch_rows: 8, max_in_flight: 2, policy, ..Knobs::default() };
    Arc::new(pool.bring_up(chain::spec(WIDTH), knobs, programs).expect("the CPU has room"))
}

fn request(rows: usize) -> InferRequest {
    let shape = Dims::from_slice(&[rows as i64, WIDTH as i64]);
    let input = InputTensor { shape, data: Bytes::from(vec![0; rows * WIDTH * 4]) };
    InferRequest::new(rows as u32, vec![Some(input)])
}

fn boundaries(criterion: &mut Criterion) {
    let library = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache/onnxruntime/libonnxruntime.so");
    let library = library.exists().then_some(library);
    let runtime = Runtime::load(&RuntimeOptions { library, threads: 1, ..RuntimeOptions::default() });
    if let Err(error) = &runtime {
        eprintln!("only programs of this crate's own: {error}");
    }
    let waiting = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let engines =
        [("own", None)].into_iter().chain(runtime.as_ref().ok().map(|runtime| ("onnxruntime", Some(runtime))));
    for (engine, runtime) in engines {
        for rows in [1, 8] {
            let mut group = criterion.benchmark_group(format!("{engine}, {rows} rows"));
            group.measurement_time(Duration::from_secs(3));
            for stages in [1, 2, 4, 8] {
                let pool = Pool::start(&PoolOptions { cpu_lanes: 1, ..PoolOptions::default() }).expect("threads");
                let handle = bring_up(&pool, runtime, stages);
                let template = request(rows);
                group.bench_function(BenchmarkId::from_parameter(stages), |bencher| {
                    bencher.iter(|| {
                        let response =
                            waiting.block_on(handle.submit(template.clone())).expect("additions do not fail");
                        let first = response.outputs[0].data.first_chunk::<4>().copied().map(f32::from_le_bytes);
                        assert_eq!(black_box(first), Some(OPERATORS as f32));
                    });
                });
                drop(handle);
                pool.stop(Duration::from_secs(10));
            }
            group.finish();
        }
    }
}

criterion_group!(benches, boundaries);
criterion_main!(benches);
