//! Steps with conditions that give one tensor: each row of it is what the first of them in the configuration gave,
//! whatever the order in which they end.

use std::sync::Arc;

use futures_util::future::join_all;
use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_executor::{InferRequest, Pool, PoolOptions};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec};
use paternoster_observe::RequestBudgets;
use paternoster_pipeline::{
    Condition, Models, Pipeline, PipelineGraph, PipelineOptions, PortBinding, Runs, Servable, Step, Test, Workers,
};
use paternoster_testing::program::{FakeProgram, floats, like_input};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

const CASES: u64 = 2_500;
/// Those of a long run.
const MANY_CASES: u64 = 20_000;
const AT_A_TIME: u64 = 50;
const MOST_ROWS: usize = 4;
/// Values of the rows, and of the conditions.
const VALUES: i32 = 8;

/// The models `10`, `20` and `30`, which add these numbers.
struct Served([Servable; 3]);

impl Models for Served {
    fn resolve(&self, model: &str, _version: Option<i64>) -> Result<Servable, String> {
        let found = self.0.iter().find(|servable| servable.spec().name == model);
        found.cloned().ok_or_else(|| format!("'{model}' is not served"))
    }
}

fn tensor(name: &str) -> TensorSpec {
    TensorSpec::new(name, DataType::Fp32, &[1])
}

fn spec(name: &str) -> ModelSpec {
    let (inputs, outputs) = (vec![tensor("x")], vec![tensor("y")]);
    let max_batch_size = MOST_ROWS as u32;
    ModelSpec { name: name.to_owned(), version: 1, max_batch_size, inputs, outputs, symbols: vec![], decoupled: false }
}

/// A step that adds a number to the rows that are at least `least`.
#[derive(Clone, Copy, Debug)]
struct Case {
    adds: i32,
    least: i32,
}

fn pipeline(models: &Arc<Served>, cases: &[Case; 3]) -> Arc<Pipeline> {
    let port = |port: &str, tensor: &str| PortBinding { port: port.to_owned(), tensor: tensor.to_owned() };
    let step = |case: &Case| Step {
        runs: Runs::Served { model: case.adds.to_string(), version: None },
        inputs: vec![port("x", "x")],
        outputs: vec![port("y", "y")],
        when: Some(Condition { tensor: "x".to_owned(), test: Test::AtLeast(f64::from(case.least)) }),
    };
    let graph = PipelineGraph::new(&["x"], &["y"], cases.iter().map(step).collect()).expect("a graph");
    let models: Arc<dyn Models> = Arc::<Served>::clone(models);
    let options = PipelineOptions { models, budgets: RequestBudgets::unlimited(), workers: Workers::new(1) };
    Arc::new(Pipeline::new(spec("pipeline"), graph, options).expect("it fits its models"))
}

async fn check(models: &Arc<Served>, seed: u64) {
    let mut draw = ChaCha8Rng::seed_from_u64(seed);
    let mut cases = [10, 20, 30].map(|adds| Case { adds, least: draw.random_range(0..=VALUES) });
    cases.shuffle(&mut draw);
    let rows: Vec<i32> = (0..draw.random_range(1..=MOST_ROWS)).map(|_| draw.random_range(0..VALUES)).collect();
    let data: Vec<u8> = rows.iter().flat_map(|&row| (row as f32).to_le_bytes()).collect();
    let input = InputTensor { shape: Dims::from_slice(&[rows.len() as i64, 1]), data: data.into() };
    let request = InferRequest::new(rows.len() as u32, vec![Some(input)]);
    let response = pipeline(models, &cases).submit(request).await.expect("it runs");
    let given: Vec<f32> = response.outputs[0].data.as_chunks().0.iter().map(|&row| f32::from_le_bytes(row)).collect();
    // A row that no step runs for is zero.
    let first = |&row: &i32| cases.iter().find(|case| row >= case.least).map_or(0, |case| row + case.adds);
    let wanted: Vec<f32> = rows.iter().map(|row| first(row) as f32).collect();
    assert_eq!(given, wanted, "seed {seed}: rows {rows:?} through {cases:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_is_what_the_first_step_gave_whatever_their_order() {
    check_cases(CASES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "many cases: make nightly"]
async fn in_many_cases_each_row_is_what_the_first_step_gave() {
    check_cases(MANY_CASES).await;
}

async fn check_cases(cases: u64) {
    let pool = Pool::start(&PoolOptions { cpu_lanes: 2, ..PoolOptions::default() }).expect("threads start");
    let serve = |adds: i32| {
        let policy = Policy::Window(WindowKnobs::default());
        let knobs = Knobs { max_batch_rows: MOST_ROWS as u32, policy, ..Knobs::default() };
        let plus = FakeProgram::new(move |batch| {
            like_input(batch, floats(&batch.inputs[0]).into_iter().map(|value| value + adds as f32))
        });
        let handle = pool.bring_up(spec(&adds.to_string()), knobs, Arc::new(plus));
        Servable::Model(Arc::new(handle.expect("the CPU has room")))
    };
    let models = Arc::new(Served([10, 20, 30].map(serve)));
    for first in (0..cases).step_by(AT_A_TIME as usize) {
        join_all((first..first + AT_A_TIME).map(|seed| check(&models, seed))).await;
    }
}
