//! Random pipelines over a pool, compared with a computation row by row. Every request has one answer, whatever its
//! steps, its conditions, its failures, its deadline, and when its client leaves; then nothing is held.
//!
//! `PIPELINES=100000` runs as many; a failure prints the seed of its pipeline.

use std::{
    collections::HashMap,
    env,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_engine::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program};
use paternoster_executor::{InferError, InferRequest, InputTensor, OutputTensor, Pool, PoolOptions};
use paternoster_model::{DataType, Dims, ModelSpec, TensorSpec};
use paternoster_observe::budget::Budget;
use paternoster_pipeline::{Condition, Graph, Models, Pipeline, PipelineOptions, Port, Runs, Servable, Step, Test};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::{sync::Semaphore, task::yield_now, time::timeout};

/// Numbers of a row.
const WIDTH: usize = 2;
/// Largest batch of the models, so that some requests are split.
const LARGEST_BATCH: u32 = 4;
const MOST_ROWS: usize = 9;
const REQUESTS: usize = 6;
/// A number that the model `picky` fails at.
const POISON: f32 = 13.0;
/// How long a pipeline may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

type Row = [f32; WIDTH];

/// What a model computes from one element of each input.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Sum,
    Negate,
    Picky,
}

impl Operation {
    const ALL: [(&'static str, Self); 3] = [("sum", Self::Sum), ("negate", Self::Negate), ("picky", Self::Picky)];

    fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::Sum => &["a", "b"],
            Self::Negate | Self::Picky => &["a"],
        }
    }

    fn of(self, inputs: &[f32]) -> Option<f32> {
        match (self, inputs) {
            (Self::Sum, [a, b]) => Some(a + b),
            (Self::Negate, [a]) => Some(-a),
            (Self::Picky, [a]) => (*a != POISON).then_some(a + 1.0),
            _ => None,
        }
    }
}

struct Elementwise(Operation);

impl Program for Elementwise {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        let mut columns: Vec<Vec<f32>> = Vec::new();
        let mut shape = Dims::new();
        for input in batch.inputs {
            let BatchInput::Dense { shape: dims, data } = input else { return Err(EngineError("dense".to_owned())) };
            shape = Dims::from_slice(dims);
            columns.push(data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect());
        }
        let mut data = Vec::new();
        for place in 0..columns[0].len() {
            let inputs: Vec<f32> = columns.iter().map(|column| column[place]).collect();
            let value = self.0.of(&inputs).ok_or_else(|| EngineError("a poisoned row".to_owned()))?;
            data.extend_from_slice(&value.to_le_bytes());
        }
        Ok(Execution { outputs: vec![BatchOutput { shape, data: Bytes::from(data) }], ..Execution::default() })
    }
}

struct Served(HashMap<&'static str, Servable>);

impl Models for Served {
    fn resolve(&self, model: &str, _version: Option<i64>) -> Result<Servable, String> {
        self.0.get(model).cloned().ok_or_else(|| format!("'{model}' is not served"))
    }
}

fn serve(pool: &Arc<Pool>) -> Served {
    let servable = |(name, operation): (&'static str, Operation)| {
        let tensor = |name: &&str| TensorSpec::new(*name, DataType::Fp32, &[WIDTH as i64]);
        let spec = ModelSpec {
            name: name.to_owned(),
            version: 1,
            max_batch_size: LARGEST_BATCH,
            inputs: operation.inputs().iter().map(tensor).collect(),
            outputs: vec![tensor(&"y")],
            symbols: vec![],
            decoupled: false,
        };
        let policy = Policy::Window(WindowKnobs::default());
        let knobs = Knobs { max_batch_rows: LARGEST_BATCH, policy, ..Knobs::default() };
        let handle = pool.bring_up(spec, knobs, Arc::new(Elementwise(operation))).expect("the CPU has room");
        (name, Servable::Model(Arc::new(handle)))
    };
    Served(Operation::ALL.into_iter().map(servable).collect())
}

/// A step of a random pipeline. Its output is the tensor of its number behind the two inputs.
#[derive(Clone, Debug)]
struct Plan {
    name: &'static str,
    operation: Operation,
    /// Tensors: 0 and 1 are the inputs.
    reads: Vec<usize>,
    /// A tensor, and the number that an element of it must reach.
    when: Option<(usize, f32)>,
}

fn name_of(tensor: usize) -> String {
    format!("t{tensor}")
}

fn draw_plans(draw: &mut ChaCha8Rng) -> Vec<Plan> {
    let count = draw.random_range(1..=7);
    let mut plan = |step: usize| {
        let (name, operation) = Operation::ALL[draw.random_range(0..Operation::ALL.len())];
        let reads = operation.inputs().iter().map(|_| draw.random_range(0..step + 2)).collect();
        let when = draw.random_bool(0.3).then(|| (draw.random_range(0..step + 2), draw.random_range(-3..8) as f32));
        Plan { name, operation, reads, when }
    };
    (0..count).map(&mut plan).collect()
}

fn graph_of(plans: &[Plan], draw: &mut ChaCha8Rng) -> Graph {
    let port = |port: &str, tensor: usize| Port { port: port.to_owned(), tensor: name_of(tensor) };
    let mut steps: Vec<Step> = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        let inputs = plan.operation.inputs().iter().zip(&plan.reads).map(|(name, &tensor)| port(name, tensor));
        let when = plan
            .when
            .map(|(tensor, least)| Condition { tensor: name_of(tensor), test: Test::AtLeast(f64::from(least)) });
        let runs = Runs::Served { model: plan.name.to_owned(), version: None };
        let step = Step { runs, inputs: inputs.collect(), outputs: vec![port("y", number + 2)], when };
        // The order of the text does not matter.
        steps.insert(draw.random_range(0..=steps.len()), step);
    }
    let outputs: Vec<String> = (2..plans.len() + 2).map(name_of).collect();
    Graph::new(&[name_of(0), name_of(1)], &outputs, steps).expect("an acyclic graph")
}

/// The tensors of one row; `None` for those that no step gives. Fails if a step does.
fn expected(plans: &[Plan], inputs: [Row; 2]) -> Result<Vec<Option<Row>>, ()> {
    let mut tensors: Vec<Option<Row>> = inputs.into_iter().map(Some).collect();
    for plan in plans {
        let holds = plan.when.is_none_or(|(tensor, least)| {
            tensors[tensor].is_some_and(|row: Row| row.iter().any(|&value| value >= least))
        });
        let read: Option<Vec<Row>> = plan.reads.iter().map(|&tensor| tensors[tensor]).collect();
        let output = match read.filter(|_| holds) {
            None => None,
            Some(read) => {
                let column = |place: usize| plan.operation.of(&read.iter().map(|row| row[place]).collect::<Vec<_>>());
                Some([column(0).ok_or(())?, column(1).ok_or(())?])
            }
        };
        tensors.push(output);
    }
    Ok(tensors)
}

fn tensor(rows: &[Row]) -> InputTensor {
    let data: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    InputTensor { shape: Dims::from_slice(&[rows.len() as i64, WIDTH as i64]), data: data.into() }
}

fn rows_of(output: &OutputTensor) -> Vec<Row> {
    let values: Vec<f32> = output.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    values.as_chunks::<WIDTH>().0.to_vec()
}

/// How a client treats its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Waits,
    /// Leaves after it has polled so often.
    Leaves(usize),
    IsLate,
}

async fn ask(pipeline: &Arc<Pipeline>, plans: &[Plan], manner: Manner, inputs: [Vec<Row>; 2]) {
    let rows = inputs[0].len();
    let mut request = InferRequest::new(rows as u32, inputs.iter().map(|rows| Some(tensor(rows))).collect());
    if let Manner::Leaves(polls) = manner {
        let mut answer = pipeline.submit(request);
        for _ in 0..polls {
            if answer.as_mut().now_or_never().is_some() {
                return;
            }
            yield_now().await;
        }
        return;
    }
    if manner == Manner::IsLate {
        request.deadline = Some(Instant::now());
        assert_eq!(pipeline.submit(request).await.err(), Some(InferError::Expired));
        return;
    }
    let answer = pipeline.submit(request).await;
    let by_row: Result<Vec<_>, ()> = (0..rows).map(|row| expected(plans, [inputs[0][row], inputs[1][row]])).collect();
    let Ok(by_row) = by_row else {
        assert!(matches!(&answer, Err(InferError::Engine(text)) if text.contains("poisoned")), "{answer:?}");
        return;
    };
    let response = answer.expect("no step fails");
    for (number, output) in response.outputs.iter().enumerate() {
        let wanted: Vec<Row> = by_row.iter().map(|tensors| tensors[number + 2].unwrap_or_default()).collect();
        assert_eq!(rows_of(output), wanted, "tensor {}", number + 2);
    }
}

fn draw_manner(draw: &mut ChaCha8Rng) -> Manner {
    match draw.random_range(0..10) {
        0 => Manner::IsLate,
        1 | 2 => Manner::Leaves(draw.random_range(0..6)),
        _ => Manner::Waits,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_pipelines_answer_as_their_rows_would_alone() {
    let pool = Pool::start(&PoolOptions { cpu_lanes: 2, ..PoolOptions::default() }).expect("threads start");
    let room = Budget::of_bytes(64 << 20);
    let (models, workers) = (Arc::new(serve(&pool)), Arc::new(Semaphore::new(2)));
    let options = PipelineOptions { models, room: Arc::clone(&room), long_workers: Arc::clone(&workers), workers };
    let count: u64 = env::var("PIPELINES").ok().and_then(|count| count.parse().ok()).unwrap_or(400);
    let mut large = 0;
    for seed in 0..count {
        let mut draw = ChaCha8Rng::seed_from_u64(seed);
        let plans = draw_plans(&mut draw);
        let spec_of = |number: usize| TensorSpec::new(name_of(number), DataType::Fp32, &[WIDTH as i64]);
        let spec = ModelSpec {
            name: "pipeline".to_owned(),
            version: 1,
            max_batch_size: MOST_ROWS as u32,
            inputs: vec![spec_of(0), spec_of(1)],
            outputs: (2..plans.len() + 2).map(spec_of).collect(),
            symbols: vec![],
            decoupled: false,
        };
        let graph = graph_of(&plans, &mut draw);
        let pipeline = Arc::new(Pipeline::new(spec, graph, options.clone()).expect("it fits its models"));
        let mut requests = Vec::new();
        for _ in 0..REQUESTS {
            let rows = draw.random_range(1..=MOST_ROWS);
            large += usize::from(rows > LARGEST_BATCH as usize);
            let mut input =
                || -> Vec<Row> { (0..rows).map(|_| [(); WIDTH].map(|()| draw.random_range(-9..15) as f32)).collect() };
            let inputs = [input(), input()];
            requests.push(ask(&pipeline, &plans, draw_manner(&mut draw), inputs));
        }
        let ended = timeout(PATIENCE, AssertUnwindSafe(join_all(requests)).catch_unwind()).await;
        assert!(matches!(ended, Ok(Ok(_))), "seed {seed}, hangs: {}: {plans:?}", ended.is_err());
        assert_eq!(room.used(), 0, "seed {seed}");
        let counted = pipeline.stats().snapshot().inference_stats;
        assert_eq!(counted.success.count + counted.fail.count, REQUESTS as u64, "seed {seed}: each ends once");
    }
    assert!(large > 0, "some requests are larger than a batch");
}
