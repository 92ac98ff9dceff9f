//! Random pipelines over a pool, compared with a computation row by row. Every request has one response, whatever its
//! steps, its conditions and its failures, and whatever happens when one of its steps starts: its client leaves, its
//! deadline passes, the step's model is gone, or a model is unloaded that others use. Then nothing is held.
//!
//! A pipeline looks a step's model up when the step starts. So that is where these things happen, in every run in the
//! same step. Several pipelines share the pool at a time.
//!
//! `PIPELINES=100000` runs as many; a failure prints the seed of its pipeline.

use std::{
    collections::{BTreeMap, HashMap},
    env,
    future::poll_fn,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use futures_util::{FutureExt, future::join_all};
use paternoster_batching::{Knobs, Policy, WindowKnobs};
use paternoster_engine::EngineError;
use paternoster_executor::{InferError, InferRequest, OutputTensor, Pool, PoolOptions, Response};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec};
use paternoster_observe::{RequestBudgets, budget::Budget};
use paternoster_pipeline::{
    Condition, Models, Pipeline, PipelineGraph, PipelineOptions, PortBinding, Runs, Servable, Step, Test, Workers,
};
use paternoster_testing::program::{FakeProgram, floats, like_input};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::{
    spawn,
    task::{JoinHandle, yield_now},
    time::timeout,
};

/// Numbers of a row.
const WIDTH: usize = 2;
/// Largest batch of the models, so that some requests are split.
const LARGEST_BATCH: u32 = 4;
const MOST_ROWS: usize = 6;
const REQUESTS: usize = 4;
/// Pipelines at a time.
const AT_A_TIME: usize = 16;
/// What a request has until its deadline, if that passes in one of its steps.
const TIME_LEFT: Duration = Duration::from_micros(300);
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

fn elementwise(operation: Operation) -> FakeProgram {
    FakeProgram::new(move |batch| {
        let columns: Vec<Vec<f32>> = batch.inputs.iter().map(floats).collect();
        let values = (0..columns[0].len()).map(|place| {
            let inputs: Vec<f32> = columns.iter().map(|column| column[place]).collect();
            operation.of(&inputs).ok_or_else(|| EngineError::new("a poisoned row"))
        });
        like_input(batch, values.collect::<Result<Vec<f32>, EngineError>>()?)
    })
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Manner {
    Waits,
    /// Its deadline has passed when it comes.
    IsLate,
    /// Its client leaves when it has started a step, some turns later.
    Leaves(usize),
    /// Its deadline passes when it starts a step.
    Expires,
    /// A step's model is not served.
    IsRefused,
    /// A step's model is replaced by another version.
    Reloads,
}

/// A request on its way.
struct Client {
    manner: Manner,
    /// The step in which it happens, in the order of their starts.
    at: usize,
    started: AtomicUsize,
    deadline: Option<Instant>,
}

impl Client {
    fn new(manner: Manner, at: usize) -> Self {
        let deadline = match manner {
            Manner::IsLate => Some(Instant::now()),
            Manner::Expires => Some(Instant::now() + TIME_LEFT),
            _ => None,
        };
        Self { manner, at, started: AtomicUsize::new(0), deadline }
    }

    /// Whether the step has started in which it happens.
    fn is_there(&self) -> bool {
        self.started.load(Ordering::Relaxed) > self.at
    }
}

tokio::task_local! {
    /// The request that is being polled.
    static CLIENT: Arc<Client>;
}

/// The models, which every pipeline uses.
struct Served {
    pool: Arc<Pool>,
    models: ArcSwap<HashMap<&'static str, Servable>>,
}

impl Served {
    fn new(pool: Arc<Pool>) -> Self {
        let models = Operation::ALL.map(|(name, operation)| (name, serve(&pool, name, operation)));
        Self { pool, models: ArcSwap::from_pointee(models.into()) }
    }
}

impl Models for Served {
    fn resolve(&self, model: &str, _version: Option<i64>) -> Result<Servable, String> {
        // There is none where a pipeline is created.
        let here = CLIENT.try_with(|client| {
            let number = client.started.fetch_add(1, Ordering::Relaxed);
            // All models are looked up where another request has replaced one, so a refusal must last.
            let is_here = number == client.at || (number > client.at && client.manner == Manner::IsRefused);
            is_here.then(|| (client.manner, client.deadline))
        });
        match here {
            Ok(Some((Manner::Expires, Some(deadline)))) => {
                while Instant::now() <= deadline {
                    std::hint::spin_loop();
                }
            }
            Ok(Some((Manner::IsRefused, _))) => return Err(format!("'{model}' is not served")),
            Ok(Some((Manner::Reloads, _))) => {
                let of_name = |(name, _): &&(&'static str, Operation)| *name == model;
                let (name, operation) = *Operation::ALL.iter().find(of_name).expect("a model");
                let fresh = serve(&self.pool, name, operation);
                self.models.rcu(|models| {
                    let mut models = HashMap::clone(models);
                    models.insert(name, fresh.clone());
                    models
                });
            }
            _ => {}
        }
        Ok(self.models.load()[model].clone())
    }
}

fn serve(pool: &Arc<Pool>, name: &str, operation: Operation) -> Servable {
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
    let handle = pool.bring_up(spec, knobs, Arc::new(elementwise(operation))).expect("the CPU has room");
    Servable::Model(Arc::new(handle))
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

fn graph_of(plans: &[Plan], draw: &mut ChaCha8Rng) -> PipelineGraph {
    let port = |port: &str, tensor: usize| PortBinding { port: port.to_owned(), tensor: name_of(tensor) };
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
    PipelineGraph::new(&[name_of(0), name_of(1)], &outputs, steps).expect("an acyclic graph")
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

/// Polls a request until its response is there; `None` if its client leaves before that.
async fn answer(
    pipeline: &Arc<Pipeline>,
    client: &Client,
    request: InferRequest,
) -> Option<Result<Response, InferError>> {
    let mut answer = pipeline.submit(request);
    let Manner::Leaves(turns) = client.manner else { return Some(answer.await) };
    let answered = poll_fn(|context| match answer.as_mut().poll(context) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending if client.is_there() => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    });
    let mut answered = answered.await;
    for _ in 0..turns {
        if answered.is_some() {
            break;
        }
        yield_now().await;
        answered = answer.as_mut().now_or_never();
    }
    answered
}

/// How requests ended, by what happened to them in which step.
type Ends = BTreeMap<(Manner, usize, &'static str), u64>;

/// Sends one request, checks its response, and returns how it ended.
async fn ask(pipeline: &Arc<Pipeline>, plans: &[Plan], client: &Client, inputs: [Vec<Row>; 2]) -> &'static str {
    let rows = inputs[0].len();
    let mut request = InferRequest::new(rows as u32, inputs.iter().map(|rows| Some(tensor(rows))).collect());
    request.deadline = client.deadline;
    let Some(answer) = answer(pipeline, client, request).await else { return "left" };
    let by_row: Result<Vec<_>, ()> = (0..rows).map(|row| expected(plans, [inputs[0][row], inputs[1][row]])).collect();
    let is_poisoned = by_row.is_err();
    match &answer {
        Ok(response) => {
            assert!(!matches!(client.manner, Manner::IsLate | Manner::IsRefused), "{:?} is answered", client.manner);
            let by_row = by_row.expect("a step fails");
            for (number, output) in response.outputs.iter().enumerate() {
                let wanted: Vec<Row> = by_row.iter().map(|tensors| tensors[number + 2].unwrap_or_default()).collect();
                assert_eq!(rows_of(output), wanted, "tensor {}", number + 2);
            }
            "answered"
        }
        Err(error) => match error.cause() {
            InferError::Expired if matches!(client.manner, Manner::IsLate | Manner::Expires) => "expired",
            InferError::Unavailable(text) if client.manner == Manner::IsRefused => {
                assert!(text.contains("is not served"), "{text}");
                "refused"
            }
            InferError::Engine(_) if is_poisoned => {
                let text = error.to_string();
                assert!(text.contains("poisoned") && text.contains("in pipeline 'pipeline', step"), "{text}");
                "failed"
            }
            _ => panic!("{:?}: {error}", client.manner),
        },
    }
}

fn draw_manner(draw: &mut ChaCha8Rng) -> Manner {
    match draw.random_range(0..200) {
        0..20 => Manner::IsLate,
        20..60 => Manner::Leaves(draw.random_range(0..4)),
        60..80 => Manner::Expires,
        80..100 => Manner::IsRefused,
        100 => Manner::Reloads,
        _ => Manner::Waits,
    }
}

/// Runs requests of the pipeline of one seed at once. Returns how they ended, and how many were larger than a batch.
async fn play(seed: u64, models: Arc<Served>) -> (Ends, usize) {
    let room = Budget::of_bytes(64 << 20);
    let budgets = RequestBudgets { bytes: Arc::clone(&room), requests: Budget::of(8) };
    let options = PipelineOptions { models, budgets: budgets.clone(), workers: Workers::new(2) };
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
    let pipeline = Arc::new(Pipeline::new(spec, graph, options).expect("it fits its models"));
    let (mut large, mut requests) = (0, Vec::new());
    for _ in 0..REQUESTS {
        let rows = draw.random_range(1..=MOST_ROWS);
        large += usize::from(rows > LARGEST_BATCH as usize);
        let mut input =
            || -> Vec<Row> { (0..rows).map(|_| [(); WIDTH].map(|()| draw.random_range(-9..15) as f32)).collect() };
        let inputs = [input(), input()];
        let client = Arc::new(Client::new(draw_manner(&mut draw), draw.random_range(0..plans.len())));
        let (pipeline, plans) = (&pipeline, &plans);
        requests.push(CLIENT.scope(Arc::clone(&client), async move {
            let end = ask(pipeline, plans, &client, inputs).await;
            (client.manner, client.at, end)
        }));
    }
    let ended = timeout(PATIENCE, AssertUnwindSafe(join_all(requests)).catch_unwind()).await;
    let Ok(Ok(ended)) = ended else { panic!("seed {seed}, hangs: {}: {plans:?}", ended.is_err()) };
    // A lane may still hold what it ran for a client that has left.
    let held = || (room.used(), budgets.requests.used());
    let returned = async {
        while held() != (0, 0) {
            yield_now().await;
        }
    };
    assert!(timeout(PATIENCE, returned).await.is_ok(), "seed {seed}: {:?} bytes and requests are held", held());
    let counted = pipeline.stats().snapshot().inference_stats;
    assert_eq!(counted.success.count + counted.fail.count, REQUESTS as u64, "seed {seed}: each ends once");
    let mut ends = Ends::new();
    ended.into_iter().for_each(|end| *ends.entry(end).or_default() += 1);
    (ends, large)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_pipelines_answer_as_their_rows_would_alone() {
    let pool = Pool::start(&PoolOptions { cpu_lanes: 2, ..PoolOptions::default() }).expect("threads start");
    let models = Arc::new(Served::new(pool));
    let count: u64 = env::var("PIPELINES").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000);
    let next = Arc::new(AtomicU64::new(0));
    let player = |_| -> JoinHandle<(Ends, usize)> {
        let (models, next) = (Arc::clone(&models), Arc::clone(&next));
        spawn(async move {
            let (mut ends, mut large) = (Ends::new(), 0);
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= count {
                    return (ends, large);
                }
                let (more, larger) = play(seed, Arc::clone(&models)).await;
                more.into_iter().for_each(|(end, times)| *ends.entry(end).or_default() += times);
                large += larger;
            }
        })
    };
    let (mut ends, mut large) = (Ends::new(), 0);
    for player in (0..AT_A_TIME).map(player).collect::<Vec<_>>() {
        let (more, larger) = player.await.expect("its pipelines are right");
        more.into_iter().for_each(|(end, times)| *ends.entry(end).or_default() += times);
        large += larger;
    }
    assert!(large > 0, "some requests are larger than a batch");
    assert_eq!(ends.values().sum::<u64>(), count * REQUESTS as u64);
    for (at, end) in (0..4).flat_map(|at| [(at, "answered"), (at, "failed")]) {
        assert!(ends.contains_key(&(Manner::Waits, at, end)), "step {at}: none {end}, but {ends:?}");
    }
    // When a request is over before its client leaves depends on other threads, so not every step sees each of these.
    for (manner, end) in [
        (Manner::Leaves(0), "left"),
        (Manner::Leaves(3), "left"),
        (Manner::Expires, "expired"),
        (Manner::IsRefused, "refused"),
    ] {
        let found = ends.keys().any(|&(found, _, ended)| (found, ended) == (manner, end));
        assert!(found, "{manner:?}: none {end}, but {ends:?}");
    }
    assert!(ends.keys().any(|(manner, ..)| *manner == Manner::Reloads), "models are replaced");
    let pending: Vec<u64> = models.models.load().values().map(|it| it.stats().pending()).collect();
    assert_eq!(pending, [0; 3], "no step waits any more");
}
