//! Requests whose tensors lie on a card, in memory that another process shares. They are read and written in place.

use std::sync::Arc;

use bytes::Bytes;
use cudarc::driver::{
    result,
    sys::{self, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, CUresult::CUDA_ERROR_OUT_OF_MEMORY},
};
use paternoster_batching::Policy;
use paternoster_device::cuda::{ImportedMemory, ImportedSlice, Sharing};
use paternoster_executor::{
    CardTensors, CardsOptions, InferError, InferRequest, Pool, PoolOptions, Response, ResponseFuture,
};
use paternoster_testing::{
    fake_control::{fail_calls, fail_none},
    fake_cuda::with_fake_cuda,
};
use smallvec::SmallVec;

use crate::{
    rng::Rng,
    running::{MAX_ROWS, PATIENCE, block_on, functions_called, pool},
    staged::Staged,
    stages::{bring_up, expected, knobs, policies},
};

const ROW_BYTES: usize = size_of::<u64>();
/// Rows in a region: those of a request, and some before them.
const REGION_ROWS: usize = 8;

/// Memory that a client shares, with the rows of one request.
struct Shared {
    memory: Arc<ImportedMemory>,
    card: u16,
    first: usize,
}

/// Allocates memory on a card as its owner and returns the handle. It is freed with its context.
fn allocated(card: u16, bytes: usize) -> [u8; 64] {
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the context lives until the process ends, as does the memory.
    unsafe {
        let context = result::primary_ctx::retain(i32::from(card)).expect("there is such a card");
        result::ctx::set_current(context).expect("it lives");
        let address = result::malloc_sync(bytes).expect("there is room");
        sys::cuIpcGetMemHandle(&mut handle, address).result().expect("it can be shared");
    }
    handle.reserved.map(|byte| byte as u8)
}

impl Shared {
    fn new(sharing: &Arc<Sharing>, card: u16, first: usize) -> Self {
        let memory = sharing.open(allocated(card, REGION_ROWS * ROW_BYTES)).expect("it can be opened");
        assert_eq!(memory.bytes(), REGION_ROWS * ROW_BYTES);
        Self { memory: Arc::new(memory), card, first }
    }

    fn slice(&self, rows: usize) -> ImportedSlice {
        ImportedSlice::new(&self.memory, self.first * ROW_BYTES, rows * ROW_BYTES).expect("it is that large")
    }

    fn write(&self, rows: &[u64]) {
        let data: Bytes = rows.iter().flat_map(|row| row.to_le_bytes()).collect();
        self.memory.write(self.first * ROW_BYTES, data).expect("the card is there");
    }

    fn read(&self, first: usize, rows: usize) -> Vec<u64> {
        let bytes = self.memory.read(first * ROW_BYTES, rows * ROW_BYTES, Vec::new()).expect("the card is there");
        bytes.chunks_exact(8).map(|value| u64::from_le_bytes(value.try_into().expect("8 bytes"))).collect()
    }
}

/// The tensors of a request that lie on the card.
#[derive(Clone, Copy, Debug)]
struct Placed {
    input: bool,
    output: bool,
}

/// A submitted request without a response yet.
struct Waiting {
    rows: Vec<u64>,
    sink: Option<Shared>,
    answer: ResponseFuture,
}

fn request(rows: &[u64], source: Option<&Shared>, sink: Option<&Shared>) -> InferRequest {
    let mut request = Staged::request(rows);
    let slices = |shared: Option<&Shared>| -> SmallVec<[(usize, ImportedSlice); 1]> {
        shared.map(|shared| (0, shared.slice(rows.len()))).into_iter().collect()
    };
    if let Some(source) = source {
        source.write(rows);
        request.inputs[0].as_mut().expect("it has one").data = Bytes::new();
    }
    if let Some(card) = source.or(sink).map(|shared| shared.card) {
        let tensors = CardTensors { card, inputs: slices(source), outputs: slices(sink) };
        request.on_card = Some(Box::new(tensors));
    }
    request
}

fn submit(
    handle: &Arc<paternoster_executor::ModelHandle>,
    sharing: &Arc<Sharing>,
    card: u16,
    rng: &mut Rng,
    placed: Placed,
) -> Waiting {
    let rows = Staged::ask(rng, u64::from(MAX_ROWS));
    let region = |is_there: bool, rng: &mut Rng| is_there.then(|| Shared::new(sharing, card, rng.below(3) as usize));
    let (source, sink) = (region(placed.input, rng), region(placed.output, rng));
    let answer = handle.submit(request(&rows, source.as_ref(), sink.as_ref()));
    // The request keeps its memory open; the client closes it.
    Waiting { rows, sink, answer }
}

fn check(staged: Staged, waiting: &Waiting, response: &Response) {
    let (output, rows) = (&response.outputs[0], waiting.rows.len());
    assert_eq!(output.shape.as_slice(), [rows as i64, 1]);
    let right = expected(staged, &waiting.rows);
    let Some(sink) = &waiting.sink else {
        return assert_eq!(crate::running::values(response), right, "{staged:?}");
    };
    assert!(output.data.is_empty(), "it lies on the card");
    assert_eq!(sink.read(sink.first, rows), right, "{staged:?}");
    let around = [sink.read(0, sink.first), sink.read(sink.first + rows, REGION_ROWS - sink.first - rows)].concat();
    assert!(around.iter().all(|value| *value == u64::MAX), "nothing else is written: {around:x?}");
}

fn draw(rng: &mut Rng) -> Placed {
    Placed { input: rng.permille(600), output: rng.permille(600) }
}

#[test]
fn tensors_are_read_and_written_where_a_client_shares_them() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(41);
        for (lanes, depth) in [(1, 1), (2, 3)] {
            for policy in policies() {
                let pool = pool(lanes, depth);
                let sharing = Sharing::start(0).expect("there is a card");
                for staged in [Staged::Whole, Staged::Chain] {
                    let handle = bring_up(&pool, staged, knobs(policy.clone(), 2, 2));
                    assert_eq!(handle.card_ports().cards[..], [0]);
                    assert_eq!(
                        (&handle.card_ports().inputs[..], &handle.card_ports().outputs[..]),
                        (&[true][..], &[true][..])
                    );
                    let mut asked: Vec<Waiting> = Vec::new();
                    for _ in 0..40 {
                        let placed = draw(&mut rng);
                        asked.push(submit(&handle, &sharing, 0, &mut rng, placed));
                    }
                    block_on(async {
                        for waiting in &mut asked {
                            let response = (&mut waiting.answer).await.expect("it is answered");
                            check(staged, waiting, &response);
                        }
                    });
                }
                assert!(pool.stop(PATIENCE));
            }
        }
    });
}

#[test]
fn outputs_that_rows_may_be_answered_without_are_the_hosts() {
    with_fake_cuda(&[], || {
        let pool = pool(1, 1);
        for staged in [Staged::Exits, Staged::Skips] {
            let handle = bring_up(&pool, staged, knobs(Policy::Window(Default::default()), 2, 2));
            let ports = handle.card_ports();
            assert_eq!((&ports.inputs[..], &ports.outputs[..]), (&[true][..], &[false][..]), "{staged:?}");
        }
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn tensors_that_stay_on_the_card_take_no_call_of_their_own() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(42);
        let pool = pool(1, 2);
        let sharing = Sharing::start(0).expect("there is a card");
        let handle = bring_up(&pool, Staged::Whole, knobs(Policy::Window(Default::default()), 2, 2));
        let regions: Vec<(Vec<u64>, Shared, Shared)> = (0..30)
            .map(|_| (Staged::ask(&mut rng, 3), Shared::new(&sharing, 0, 1), Shared::new(&sharing, 0, 0)))
            .collect();
        let requests: Vec<_> =
            regions.iter().map(|(rows, source, sink)| request(rows, Some(source), Some(sink))).collect();
        let calls = functions_called(|| {
            let answers: Vec<_> = requests.into_iter().map(|request| handle.submit(request)).collect();
            block_on(async {
                for answer in answers {
                    answer.await.expect("it is answered");
                }
            });
        });
        assert!(calls.iter().all(|call| call == "cuGraphLaunch"), "{calls:?}");
        for (rows, _, sink) in &regions {
            assert_eq!(sink.read(0, rows.len()), expected(Staged::Whole, rows));
        }
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn launches_that_are_refused_are_made_again_on_the_same_memory() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(43);
        let pool = pool(2, 2);
        let sharing = Sharing::start(0).expect("there is a card");
        let handle = bring_up(&pool, Staged::Chain, knobs(Policy::Window(Default::default()), 2, 2));
        for nth in 1..8 {
            fail_calls(c"cuGraphLaunch", nth, CUDA_ERROR_OUT_OF_MEMORY);
            let mut asked = Vec::new();
            for _ in 0..6 {
                asked.push(submit(&handle, &sharing, 0, &mut rng, Placed { input: true, output: true }));
            }
            block_on(async {
                for waiting in &mut asked {
                    match (&mut waiting.answer).await {
                        Ok(response) => check(Staged::Chain, waiting, &response),
                        Err(error) => assert!(error.to_string().contains("OUT_OF_MEMORY"), "{error}"),
                    }
                }
            });
            fail_none();
        }
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn memory_is_let_go_of_once_neither_the_client_nor_a_request_needs_it() {
    with_fake_cuda(&[], || {
        let pool = pool(1, 1);
        let sharing = Sharing::start(0).expect("there is a card");
        let handle = bring_up(&pool, Staged::Whole, knobs(Policy::Serial, 2, 2));
        let (source, sink) = (Shared::new(&sharing, 0, 0), Shared::new(&sharing, 0, 0));
        let held = Arc::downgrade(&source.memory);
        let answer = handle.submit(request(&[7], Some(&source), Some(&sink)));
        drop(source);
        block_on(async { answer.await.expect("it is answered") });
        assert_eq!(sink.read(0, 1), expected(Staged::Whole, &[7]));
        block_on(async {
            while held.strong_count() > 0 {
                tokio::task::yield_now().await;
            }
        });
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn memory_is_closed_as_often_as_it_is_opened() {
    with_fake_cuda(&[], || {
        let sharing = Sharing::start(0).expect("there is a card");
        let handle = allocated(0, 64);
        let calls = functions_called(|| {
            let (one, other) = (sharing.open(handle).expect("it is there"), sharing.open(handle).expect("and again"));
            drop(one);
            other.write(0, Bytes::from_static(&[3; 64])).expect("it is still open");
            assert_eq!(other.read(60, 4, Vec::new()).expect("it is still open"), [3; 4]);
            drop(other);
            // The thread has executed its earlier orders by then.
            sharing.open([0; 64]).expect_err("it names nothing");
        });
        let count = |function: &str| calls.iter().filter(|call| *call == function).count();
        assert_eq!((count("cuIpcOpenMemHandle_v2"), count("cuIpcCloseMemHandle")), (3, 2), "{calls:?}");
    });
}

#[test]
fn requests_run_on_the_card_that_their_tensors_lie_on() {
    with_fake_cuda(&[("FAKE_CUDA_DEVICES", "3")], || {
        let mut rng = Rng::new(44);
        let cards = CardsOptions { ordinals: vec![0, 1, 2], lanes: 1, horizon_ns: 0, depth: 1, ..Default::default() };
        let pool = Pool::start(&PoolOptions { cards, cpu_lanes: 1, ..PoolOptions::default() }).expect("three cards");
        let sharing: Vec<_> = (0..3).map(|card| Sharing::start(card).expect("there is such a card")).collect();
        let handle = bring_up(&pool, Staged::Whole, knobs(Policy::Serial, 2, 1));
        let mut asked = Vec::new();
        for number in 0..90 {
            // Most requests are on one card, so that the others have capacity for them.
            let card = if number % 5 == 0 { rng.below(3) as u16 } else { 1 };
            let placed = if number % 7 == 0 { draw(&mut rng) } else { Placed { input: true, output: true } };
            asked.push(submit(&handle, &sharing[usize::from(card)], card, &mut rng, placed));
        }
        block_on(async {
            for waiting in &mut asked {
                let response = (&mut waiting.answer).await.expect("it is answered");
                check(Staged::Whole, waiting, &response);
            }
        });
        let mut late: Vec<Waiting> = Vec::new();
        for _ in 0..20 {
            late.push(submit(&handle, &sharing[1], 1, &mut rng, Placed { input: true, output: false }));
        }
        pool.lose_device(1);
        let (mut lost, mut done) = (0, 0);
        block_on(async {
            for waiting in &mut late {
                match (&mut waiting.answer).await {
                    Ok(response) => {
                        check(Staged::Whole, waiting, &response);
                        done += 1;
                    }
                    Err(InferError::DeviceLost) => lost += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            let after = submit(&handle, &sharing[1], 1, &mut rng, Placed { input: true, output: false });
            assert!(matches!(after.answer.await, Err(InferError::DeviceLost)), "no other card has its rows");
            let rows = Staged::ask(&mut rng, 3);
            let elsewhere = handle.submit(Staged::request(&rows)).await.expect("the other cards go on");
            assert_eq!(crate::running::values(&elsewhere), expected(Staged::Whole, &rows));
        });
        assert_eq!(lost + done, 20);
        pool.stop(PATIENCE);
    });
}

#[test]
fn a_lost_card_answers_no_copy_and_holds_nothing_up() {
    with_fake_cuda(&[], || {
        let sharing = Sharing::start(0).expect("there is a card");
        let shared = Shared::new(&sharing, 0, 0);
        shared.write(&[1, 2]);
        fail_calls(c"cuMemcpyDtoHAsync_v2", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
        for _ in 0..2 {
            let refused = shared.memory.read(0, 8, Vec::new()).expect_err("the card is lost");
            assert!(refused.to_string().contains("ILLEGAL_ADDRESS"), "{refused}");
        }
        let bad = shared.memory.read(8, REGION_ROWS * ROW_BYTES, Vec::new()).expect_err("it ends before");
        assert!(bad.to_string().contains("64 bytes at 8"), "{bad}");
    });
}

#[test]
fn handles_that_name_no_memory_are_refused_and_the_card_goes_on() {
    with_fake_cuda(&[], || {
        let sharing = Sharing::start(0).expect("there is a card");
        for handle in [[0; 64], [0xff; 64]] {
            let refused = sharing.open(handle).expect_err("it names nothing");
            assert!(refused.to_string().contains("INVALID_VALUE"), "{refused}");
        }
        let shared = Shared::new(&sharing, 0, 0);
        shared.write(&[5]);
        assert_eq!(shared.read(0, 1), [5]);
        assert!(Sharing::start(9).is_err(), "there is one card");
    });
}
