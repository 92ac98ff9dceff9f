//! Random decoders in a pool: what the process has allocated never exceeds by much what its requests have reserved. The
//! only test of its binary, because it counts all allocations.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use paternoster_batching::{CellularKnobs, Knobs, Policy};
use paternoster_engine::{Batch, BatchOutput, Execution, Program};
use paternoster_executor::{CellPrograms, InferError, InferRequest, ModelHandle, Pool, PoolOptions};
use paternoster_model::{
    DataType, Dims, InputTensor, ModelSpec, TensorSpec,
    unfold::{
        CellInputSource, CellSpec, Emit, EmitRange, Emitted, Expression, Limit, NodeType, Nodes, Segment, Start,
        Tensor, Unfolding,
    },
};
use paternoster_observe::budget::Budget;
use paternoster_testing::{
    program::{FakeProgram, dense},
    rng::Rng,
};
use smallvec::smallvec;
use tokio::task::JoinSet;

/// What may be allocated beyond 1.25 times what is reserved.
const SLACK_BYTES: i64 = 16 << 20;

/// What is allocated, and the most by which that exceeded 1.25 times what is reserved.
static ALLOCATED: AtomicI64 = AtomicI64::new(0);
static EXCESS: AtomicI64 = AtomicI64::new(0);
static MOST_RESERVED: AtomicI64 = AtomicI64::new(0);
static RESERVED: OnceLock<Arc<Budget>> = OnceLock::new();

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

fn count(bytes: i64) {
    let allocated = ALLOCATED.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if let Some(budget) = RESERVED.get().filter(|_| bytes > 1024) {
        let reserved = budget.used() as i64;
        MOST_RESERVED.fetch_max(reserved, Ordering::Relaxed);
        EXCESS.fetch_max(allocated - reserved * 5 / 4, Ordering::Relaxed);
    }
}

// SAFETY: all calls go to the system's allocator unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The last token of a response.
const END: i64 = 3;
/// Tokens are below it.
const TOKENS: i64 = 61;

fn integer(data: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(data[at * 8..][..8].try_into().expect("eight bytes"))
}

/// Appends the keys of a token.
fn push_keys(keys: &mut Vec<u8>, token: i64, width: usize) {
    keys.resize(keys.len() + width * 8, token as u8);
}

fn made(outputs: Vec<(Vec<i64>, Vec<u8>)>) -> Execution {
    let outputs = outputs.into_iter();
    let outputs = outputs.map(|(shape, data)| BatchOutput { shape: Dims::from_vec(shape), data: Bytes::from(data) });
    Execution { outputs: outputs.collect(), ..Execution::default() }
}

/// Returns the keys of the tokens of a prompt, and the last one.
fn prompt(batch: &Batch<'_>, width: usize) -> Execution {
    let (shape, tokens) = dense(&batch.inputs[0]);
    let (rows, length) = (shape[0] as usize, shape[1] as usize);
    let mut keys = Vec::with_capacity(rows * length * width * 8);
    (0..rows * length).for_each(|at| push_keys(&mut keys, integer(tokens, at), width));
    let last = (0..rows).flat_map(|row| integer(tokens, (row + 1) * length - 1).to_le_bytes()).collect();
    made(vec![(vec![shape[0], shape[1], width as i64], keys), (vec![shape[0]], last)])
}

/// Returns the token after a token, from the keys of the tokens before it, and its own keys.
fn step(batch: &Batch<'_>, width: usize) -> Execution {
    let (_, tokens) = dense(&batch.inputs[0]);
    let rows = batch.rows as usize;
    let (mut next, mut keys) = (Vec::with_capacity(rows * 8), Vec::with_capacity(rows * width * 8));
    // As an engine that joins what was held and what grew.
    let joined = [dense(&batch.inputs[1]).1, dense(&batch.inputs[3]).1].concat();
    let held = dense(&batch.inputs[1]).1.len();
    for row in 0..rows {
        let of = |input: usize, lengths: usize, from: usize| {
            let padded = dense(&batch.inputs[input]).0[1] as usize;
            let length = integer(dense(&batch.inputs[lengths]).1, row) as usize;
            let key = move |at: usize| (from + (row * padded + at) * width * 8, at);
            (0..length).map(key)
        };
        let seen = of(1, 2, 0).chain(of(3, 4, held));
        let sum: i64 = seen.map(|(place, _)| i64::from(joined[place])).sum();
        let token = answer(integer(tokens, row), sum);
        next.extend_from_slice(&token.to_le_bytes());
        push_keys(&mut keys, integer(tokens, row), width);
    }
    made(vec![(vec![rows as i64], next), (vec![rows as i64, width as i64], keys)])
}

/// Returns the token after one, where those before it have this sum.
fn answer(token: i64, before: i64) -> i64 {
    (token * 7 + before * 5 + 11) % TOKENS
}

/// Returns what a prompt is answered.
fn expected(prompt: &[i64], most: usize) -> Vec<i64> {
    // The prompt's keys are those of all its tokens.
    let (mut sum, mut token) = (prompt.iter().sum::<i64>(), prompt[prompt.len() - 1]);
    let mut tokens = Vec::new();
    while tokens.len() < most && tokens.last() != Some(&END) {
        let next = answer(token, sum);
        sum += token;
        token = next;
        tokens.push(token);
    }
    tokens
}

fn tensor(name: &str, datatype: DataType, dims: &[i64]) -> TensorSpec {
    TensorSpec::new(name, datatype, dims)
}

fn emit(name: &str, output: usize, which: EmitRange) -> Emit {
    Emit { name: name.to_owned(), output, which }
}

/// Returns a decoder whose tokens have keys of so many numbers, with tasks of up to so many rows.
fn decoder(pool: &Arc<Pool>, width: usize, max_rows: u32) -> Arc<ModelHandle> {
    let of_prompt = |emit| Tensor::Emitted(Emitted { segment: 0, emit });
    let (wide, number) = (width as i64, DataType::Int64);
    let cell = |name: &str, inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>| CellSpec {
        name: name.to_owned(),
        inputs,
        outputs,
        max_rows,
        min_followup: 1,
        priority: 1,
    };
    let cells = vec![
        cell(
            "prompt",
            vec![tensor("tokens", number, &[-1])],
            vec![tensor("keys", number, &[-1, wide]), tensor("last", number, &[])],
        ),
        cell(
            "step",
            vec![
                tensor("token", number, &[]),
                tensor("held", number, &[-1, wide]),
                tensor("held_length", number, &[]),
                tensor("past", number, &[-1, wide]),
                tensor("past_length", number, &[]),
            ],
            vec![tensor("next", number, &[]), tensor("own", number, &[wide])],
        ),
    ];
    let sources = vec![
        CellInputSource::Carried { output: 0, start: Start::Tensor(of_prompt(1)), is_kept: false },
        CellInputSource::Whole(of_prompt(0)),
        CellInputSource::Length(of_prompt(0)),
        CellInputSource::Grown { output: 1 },
        CellInputSource::GrownLength,
    ];
    let segments = vec![
        Segment {
            name: "prompt".to_owned(),
            types: smallvec![NodeType { cell: 0, inputs: vec![CellInputSource::Whole(Tensor::Input(0))] }],
            nodes: Nodes::Stage,
            emits: vec![emit("keys", 0, EmitRange::Last), emit("last", 1, EmitRange::Last)],
            streams: false,
        },
        Segment {
            name: "decode".to_owned(),
            types: smallvec![NodeType { cell: 1, inputs: sources }],
            nodes: Nodes::Decode {
                max_steps: Expression::Number(1 << 20),
                until: Some((0, END)),
                expected_steps: None,
            },
            emits: vec![emit("tokens", 0, EmitRange::All)],
            streams: false,
        },
    ];
    let limits = vec![Limit::Steps { segment: 1, input: 1 }];
    let outputs = vec![Emitted { segment: 1, emit: 0 }];
    let unfolding = Unfolding { cells, segments, outputs, limits };
    let spec = ModelSpec {
        name: format!("decoder{width}"),
        version: 1,
        max_batch_size: 1,
        inputs: vec![tensor("tokens", number, &[-1]), tensor("most", number, &[1])],
        outputs: vec![tensor("answer", number, &[-1])],
        symbols: Vec::new(),
        decoupled: false,
    };
    let prompt = FakeProgram::new(move |batch| Ok(prompt(batch, width)));
    let step = FakeProgram::new(move |batch| Ok(step(batch, width)));
    let programs: Vec<Arc<dyn Program>> = vec![Arc::new(prompt), Arc::new(step)];
    let programs = CellPrograms::new(&spec, unfolding, programs).expect("it fits");
    let (cells, segments) = programs.knobs();
    let policy = Policy::Cellular(CellularKnobs { cells, segments, ..CellularKnobs::default() });
    let knobs = Knobs { policy, ..Knobs::default() };
    Arc::new(pool.bring_up(spec, knobs, programs).expect("it needs nothing"))
}

fn integers(values: &[i64]) -> InputTensor {
    let data = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    InputTensor { shape: Dims::from_slice(&[1, values.len() as i64]), data: data.into() }
}

fn request(prompt: &[i64], most: usize) -> InferRequest {
    InferRequest::new(1, vec![Some(integers(prompt)), Some(integers(&[most as i64]))])
}

#[tokio::test]
async fn what_decoders_keep_is_reserved_before_it_exists() {
    let budget = Budget::of_bytes(64 << 20);
    let options = PoolOptions { retain_bytes: 0, pending_bytes: Arc::clone(&budget), ..PoolOptions::default() };
    let pool = Pool::start(&options).expect("threads");
    let before = ALLOCATED.load(Ordering::Relaxed);
    RESERVED.set(Arc::clone(&budget)).expect("it is set once");
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let widths = [rng.within(1, 64), rng.within(64, 512), rng.within(512, 1024)];
        let decoders = widths.map(|width| decoder(&pool, width as usize, rng.within(1, 32) as u32));
        let mut asked = JoinSet::new();
        for _ in 0..60 {
            let decoder = &decoders[rng.below(3) as usize];
            let prompt: Vec<i64> = (0..rng.within(1, 60)).map(|_| rng.below(TOKENS as u64) as i64).collect();
            let most = rng.within(1, 40) as usize;
            let future = decoder.submit(request(&prompt, most));
            asked.spawn(async move { (future.await, expected(&prompt, most)) });
        }
        while let Some(answered) = asked.join_next().await {
            let (response, expected) = answered.expect("no panic");
            let response = response.expect("each fits alone");
            assert_eq!(response.outputs[0].data, integers(&expected).data, "seed {seed}");
        }
        let never = decoders[2].submit(request(&[1; 60], 1 << 20)).await;
        assert!(matches!(&never, Err(InferError::NoRoom(full)) if full.never_fits()), "{never:?}");
    }
    let reserved = MOST_RESERVED.load(Ordering::Relaxed);
    assert!(reserved > SLACK_BYTES, "only {reserved} bytes were reserved, which shows nothing");
    assert!(reserved <= budget.capacity() as i64 / 2, "others have room: {reserved}");
    let excess = EXCESS.load(Ordering::Relaxed) - before;
    assert!(excess <= SLACK_BYTES, "{excess} bytes beyond 1.25 times what was reserved");
    assert!(pool.stop(Duration::from_secs(600)), "nothing runs");
    // Threads drop the last tasks after their responses.
    while budget.used() > 0 {
        tokio::task::yield_now().await;
    }
}
