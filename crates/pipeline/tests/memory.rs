//! What requests of random pipelines take is charged to them: whenever memory is taken, what is live is at most 1.25
//! times what is charged, and some megabytes for the tasks that run and for everything that is there without requests.
#![allow(unsafe_code, reason = "counts what the allocator gives")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    env,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_engine::{Batch, BatchOutput, Execution};
use paternoster_executor::{InferError, InferRequest, Pool, PoolOptions};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec};
use paternoster_observe::{RequestBudgets, budget::Budget};
use paternoster_pipeline::{
    Condition, Models, Pipeline, PipelineGraph, PipelineOptions, PortBinding, Runs, Servable, Step, Test, Workers,
};
use paternoster_testing::program::{FakeProgram, RunResult, dense};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Elements that a row grows by in the model `blow`.
const BLOWN: usize = 128 << 10;
const LARGEST_BATCH: u32 = 4;
const MOST_ROWS: usize = 8;
const LIMIT_BYTES: usize = 32 << 20;
const SLACK_BYTES: isize = 16 << 20;
/// Allocations below this size are counted, but nothing is compared there.
const COMPARED_BYTES: usize = 16 << 10;

/// Bytes that are live.
static LIVE: AtomicIsize = AtomicIsize::new(0);
/// Those that were live before the first request.
static BEFORE: AtomicIsize = AtomicIsize::new(0);
/// The most by which live bytes exceeded 1.25 times the charge.
static EXCESS: AtomicIsize = AtomicIsize::new(isize::MIN);
static COMPARES: AtomicBool = AtomicBool::new(false);
static CHARGED: OnceLock<Arc<Budget>> = OnceLock::new();
static MOST_CHARGED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn counted(change: isize) {
    let live = LIVE.fetch_add(change, Ordering::SeqCst) + change;
    if change < COMPARED_BYTES as isize || !COMPARES.load(Ordering::SeqCst) {
        return;
    }
    if let Some(charged) = CHARGED.get() {
        let charged = charged.used();
        MOST_CHARGED.fetch_max(charged, Ordering::SeqCst);
        let allowed = BEFORE.load(Ordering::SeqCst) + (charged + charged / 4) as isize;
        EXCESS.fetch_max(live - allowed, Ordering::SeqCst);
    }
}

// SAFETY: every call is passed on to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        counted(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the first element of each row [`BLOWN`] times.
fn blow(batch: &Batch<'_>) -> RunResult {
    let (shape, data) = dense(&batch.inputs[0]);
    // Rows of a tensor that no step gave have no elements.
    let (rows, row_bytes) = (shape[0] as usize, shape[1] as usize * size_of::<f32>());
    let mut data_of_rows = Vec::with_capacity(rows * BLOWN * size_of::<f32>());
    for row in 0..rows {
        let first: [u8; size_of::<f32>()] = data[row * row_bytes..].first_chunk().copied().unwrap_or_default();
        data_of_rows.extend(first.repeat(BLOWN));
    }
    let output = BatchOutput { shape: Dims::from_slice(&[shape[0], BLOWN as i64]), data: data_of_rows.into() };
    Ok(Execution { outputs: vec![output], ..Execution::default() })
}

struct Served(Mutex<Vec<Servable>>);

impl Models for Served {
    fn resolve(&self, model: &str, _version: Option<i64>) -> Result<Servable, String> {
        let models = self.0.lock();
        let found = models.iter().find(|servable| servable.spec().name == model);
        found.cloned().ok_or_else(|| format!("'{model}' is not served"))
    }
}

fn spec(name: &str, max_batch_size: u32, outputs: &[String]) -> ModelSpec {
    let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[-1]);
    ModelSpec {
        name: name.to_owned(),
        version: 1,
        max_batch_size,
        inputs: vec![tensor("x")],
        outputs: outputs.iter().map(|name| tensor(name)).collect(),
        symbols: vec![],
        decoupled: false,
    }
}

/// A pipeline of up to 20 steps, each of which reads any earlier tensor, if `when` holds for a row. Its first output is
/// called as a model's is, so that pipelines may be steps of others.
fn pipeline(name: &str, steps_of: &[&str], draw: &mut ChaCha8Rng, options: &PipelineOptions) -> Pipeline {
    let count = draw.random_range(2..=20_usize);
    let name_of = |tensor: usize| if tensor == 0 { "x".to_owned() } else { format!("t{tensor}") };
    let port = |port: &str, tensor: String| PortBinding { port: port.to_owned(), tensor };
    let mut steps: Vec<Step> = (1..=count)
        .map(|number| Step {
            runs: Runs::Served { model: steps_of[draw.random_range(0..steps_of.len())].to_owned(), version: None },
            inputs: vec![port("x", name_of(draw.random_range(0..number)))],
            outputs: vec![port("y", name_of(number))],
            when: draw.random_bool(0.3).then(|| Condition { tensor: "x".to_owned(), test: Test::AtLeast(0.5) }),
        })
        .collect();
    // Behind all others, so that any of them may be read by the response or not.
    let last = Step { outputs: vec![port("y", "y".to_owned())], when: None, ..steps.pop().expect("a step") };
    steps.push(last);
    let mut outputs = vec!["y".to_owned()];
    outputs.extend((1..count).filter(|_| draw.random_bool(0.6)).map(name_of));
    let graph = PipelineGraph::new(&["x".to_owned()], &outputs, steps).expect("a graph");
    Pipeline::new(spec(name, MOST_ROWS as u32, &outputs), graph, options.clone()).expect("it fits its models")
}

fn request(draw: &mut ChaCha8Rng) -> InferRequest {
    let rows = draw.random_range(1..=MOST_ROWS);
    let data: Vec<u8> = (0..rows).flat_map(|_| draw.random::<f32>().to_le_bytes()).collect();
    let input = InputTensor { shape: Dims::from_slice(&[rows as i64, 1]), data: data.into() };
    InferRequest::new(rows as u32, vec![Some(input)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_requests_of_random_pipelines_take_is_charged_to_them() {
    let pool = Pool::start(&PoolOptions { cpu_lanes: 2, ..PoolOptions::default() }).expect("threads start");
    let serve = |name: &str, program: FakeProgram| {
        let policy = Policy::Window(WindowKnobs::default());
        let knobs = Knobs { max_batch_rows: LARGEST_BATCH, policy, ..Knobs::default() };
        let handle = pool.bring_up(spec(name, LARGEST_BATCH, &["y".to_owned()]), knobs, Arc::new(program));
        Servable::Model(Arc::new(handle.expect("the CPU has room")))
    };
    let served = vec![serve("blow", FakeProgram::new(blow)), serve("echo", FakeProgram::identity())];
    let models = Arc::new(Served(Mutex::new(served)));
    let budgets = RequestBudgets { bytes: Budget::of_bytes(LIMIT_BYTES), requests: Budget::of(64) };
    CHARGED.set(Arc::clone(&budgets.bytes)).expect("it is set once");
    let options =
        PipelineOptions { models: Arc::<Served>::clone(&models), budgets: budgets.clone(), workers: Workers::new(1) };
    let count: u64 = env::var("PIPELINES").ok().and_then(|count| count.parse().ok()).unwrap_or(150);
    let (mut answered, mut without_room) = (0, 0);
    for seed in 0..count {
        let mut draw = ChaCha8Rng::seed_from_u64(seed);
        let inner = pipeline("inner", &["blow", "echo"], &mut draw, &options);
        models.0.lock().push(Servable::Pipeline(Arc::new(inner)));
        let outer = Arc::new(pipeline("outer", &["blow", "echo", "inner"], &mut draw, &options));
        let request = request(&mut draw);
        BEFORE.store(LIVE.load(Ordering::SeqCst), Ordering::SeqCst);
        COMPARES.store(true, Ordering::SeqCst);
        let answer = outer.submit(request).await;
        COMPARES.store(false, Ordering::SeqCst);
        match answer.as_ref().map_err(InferError::cause) {
            Ok(_) => answered += 1,
            Err(InferError::NoRoom(_)) => without_room += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
        drop(answer);
        let excess = EXCESS.load(Ordering::SeqCst);
        assert!(excess <= SLACK_BYTES, "seed {seed}: {excess} bytes are not charged");
        models.0.lock().pop();
    }
    let most = MOST_CHARGED.load(Ordering::SeqCst);
    assert!(answered > 0 && without_room > 0, "{answered} were answered, and {without_room} had no room");
    assert!(most > LIMIT_BYTES / 2, "at most {most} bytes were charged");
}
