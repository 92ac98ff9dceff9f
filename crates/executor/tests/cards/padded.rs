//! Models with a padded axis, whole and in stages, on a card that is prepared for some of its lengths.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_batching::Policy;
use paternoster_device::{
    DeviceError, StreamId,
    cuda::{Address, Argument, Capture, Cuda, Function, KernelElement, KernelSource as Kernels, LaunchShape, Memory},
};
use paternoster_engine::{
    Batch, CardProgram, CardWeights, CardWorkspace, EngineError, Execution, Program, RunParameters, RunSize,
};
use paternoster_executor::{InferError, InferRequest, ModelHandle, Pool, Response, StagePrograms};
use paternoster_model::{
    BoundaryDim, BoundaryTensor, DataType, Dims, InputSource, InputTensor, Lengths, ModelSpec, Sink, StagePlan,
    StageSpec, SymbolId, TensorSpec,
};
use paternoster_testing::fake_cuda::with_card;
use smallvec::SmallVec;

use crate::{
    rng::Rng,
    running::{MAX_ROWS, PATIENCE, block_on, on_cards, pool},
    stages::{knobs, policies},
};

const KERNELS: Kernels = Kernels { name: "summing.cu", text: include_str!("summing.cu") };

/// The lengths that the card is prepared for.
const LENGTHS: [u32; 3] = [4, 7, 20];

/// The value that fills short rows.
const PADDING: i64 = -5;

/// A program over rows of tokens.
#[derive(Clone, Copy, Debug)]
struct Summing {
    /// The value that it ignores.
    padding: i64,
    step: i64,
}

impl Program for Summing {
    fn run(&self, _: &Batch<'_>) -> Result<Execution, EngineError> {
        Err(EngineError::new("it runs on cards alone"))
    }

    fn on_card(&self) -> Option<&dyn CardProgram> {
        Some(self)
    }
}

impl CardProgram for Summing {
    fn lengths(&self) -> Vec<Lengths> {
        LENGTHS.iter().map(|&length| Lengths::from_slice(&[length])).collect()
    }

    fn load(&self, card: &mut Cuda) -> Result<Box<dyn CardWeights>, DeviceError> {
        let kernel = card.kernels(KERNELS, KernelElement::F32)?.function("summing")?;
        Ok(Box::new(OnCard { of: *self, kernel }))
    }
}

struct OnCard {
    of: Summing,
    kernel: Function,
}

impl CardWeights for OnCard {
    fn reserve(&self, card: &mut Cuda, _: StreamId, max_rows: u32) -> Result<Box<dyn CardWorkspace>, DeviceError> {
        let most = LENGTHS.iter().copied().max().unwrap_or_default();
        let tensor = |length: u32| card.memory(max_rows as usize * length as usize * 8);
        let memory = [tensor(most)?, tensor(most)?, tensor(1)?];
        Ok(Box::new(Workspace { of: self.of, kernel: self.kernel.clone(), memory }))
    }
}

struct Workspace {
    of: Summing,
    kernel: Function,
    memory: [Memory; 3],
}

impl CardWorkspace for Workspace {
    fn input(&self, _: usize, _: usize) -> Address {
        self.memory[0].address()
    }

    fn output(&self, _: usize, index: usize) -> Address {
        self.memory[1 + index].address()
    }

    fn faults(&self, _: usize) -> Option<Address> {
        None
    }

    fn prepare(&mut self, _: &mut Cuda, _: RunSize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn issue(
        &self,
        capture: &mut Capture<'_>,
        size: RunSize,
        RunParameters { live, .. }: RunParameters<'_>,
    ) -> Result<(), DeviceError> {
        let [tokens, marks, sums] = [0, 1, 2].map(|index| Argument::Address(self.memory[index].address()));
        let number = |number: i64| Argument::U64(number.cast_unsigned());
        let arguments = [
            Argument::Address(live),
            Argument::I32(size.rows as i32),
            Argument::I32(LENGTHS[size.lengths] as i32),
            tokens,
            number(self.of.padding),
            number(self.of.step),
            marks,
            sums,
        ];
        capture.kernel(&self.kernel, LaunchShape { grid: [size.rows, 1, 1], threads: 32, shared_bytes: 0 }, &arguments)
    }
}

fn padded(name: &str) -> TensorSpec {
    let symbols = SmallVec::from_slice(&[Some(SymbolId(0))]);
    TensorSpec { symbols, pad_value: PADDING as f64, ..TensorSpec::new(name, DataType::Int64, &[-1]) }
}

fn sum() -> TensorSpec {
    TensorSpec::new("sums", DataType::Int64, &[])
}

fn spec(stages: usize) -> ModelSpec {
    ModelSpec {
        name: format!("padded{stages}"),
        version: 1,
        max_batch_size: MAX_ROWS,
        inputs: vec![padded("tokens")],
        outputs: vec![padded("marks"), sum()],
        symbols: vec!["tokens".to_owned()],
        decoupled: false,
    }
}

/// Returns a chain of stages. Each marks the previous one's marks; the last also returns their sum.
fn programs(count: usize) -> StagePrograms {
    let program = |stage: usize| {
        // The previous stage left 0 where it ignored a value.
        let padding = if stage == 0 { PADDING } else { 0 };
        Arc::new(Summing { padding, step: stage as i64 })
    };
    if count == 1 {
        return program(0).into();
    }
    let stages = (0..count).map(|stage| {
        let input = match stage.checked_sub(1) {
            None => (padded("tokens"), InputSource::Request(0)),
            Some(before) => (padded(&named(before)), InputSource::Boundary { boundary: before as u16, tensor: 0 }),
        };
        let outputs = if stage + 1 == count {
            vec![(padded("marks"), Sink::Reply(0)), (sum(), Sink::Reply(1))]
        } else {
            vec![(padded(&named(stage)), Sink::Boundary(0))]
        };
        StageSpec { inputs: vec![input], outputs, exits: vec![] }
    });
    let left = |boundary: usize| BoundaryTensor {
        name: named(boundary),
        datatype: DataType::Int64,
        dims: Some(SmallVec::from_slice(&[BoundaryDim::Symbol(SymbolId(0))])),
    };
    let plan = StagePlan { stages: stages.collect(), boundaries: (1..count).map(|at| vec![left(at - 1)]).collect() };
    let programs = (0..count).map(|stage| program(stage) as Arc<dyn Program>).collect();
    StagePrograms::cut(&spec(count), plan, programs).expect("the plan is sound")
}

fn named(stage: usize) -> String {
    format!("marks{stage}")
}

/// Creates a random request: rows of equal length.
fn ask(rng: &mut Rng) -> Vec<Vec<i64>> {
    let length = rng.within(1, u64::from(LENGTHS[2]));
    let token = |rng: &mut Rng| rng.below(1 << 30) as i64;
    (0..rng.within(1, 3)).map(|_| (0..length).map(|_| token(rng)).collect()).collect()
}

fn request(rows: &[Vec<i64>]) -> InferRequest {
    let data: Bytes = rows.iter().flatten().flat_map(|token| token.to_le_bytes()).collect();
    let input = InputTensor { shape: Dims::from_slice(&[rows.len() as i64, rows[0].len() as i64]), data };
    InferRequest::new(rows.len() as u32, vec![Some(input)])
}

fn check(response: &Response, stages: i64, rows: &[Vec<i64>]) {
    let values = |index: usize| -> Vec<i64> {
        let data = response.outputs[index].data.chunks_exact(8);
        data.map(|value| i64::from_le_bytes(value.try_into().expect("8 bytes"))).collect()
    };
    let mark = |token: &i64| token + (0..stages).map(|stage| 1 + stage).sum::<i64>();
    let marks: Vec<Vec<i64>> = rows.iter().map(|row| row.iter().map(mark).collect()).collect();
    assert_eq!(response.outputs[0].shape.as_slice(), [rows.len() as i64, rows[0].len() as i64]);
    assert_eq!(values(0), marks.concat(), "{rows:?}");
    assert_eq!(values(1), marks.iter().map(|row| row.iter().sum()).collect::<Vec<i64>>(), "{rows:?}");
}

fn bring_up(pool: &Arc<Pool>, stages: usize, policy: Policy) -> Arc<ModelHandle> {
    let handle = on_cards(pool, (spec(stages), knobs(policy, 2, 2), programs(stages)));
    Arc::new(handle.expect("the card has room"))
}

#[test]
fn requests_of_unlike_lengths_share_batches_and_get_their_own_lengths_back() {
    with_card(|| {
        let mut rng = Rng::new(21);
        for policy in policies() {
            for (lanes, depth) in [(1, 1), (2, 2)] {
                let pool = pool(lanes, depth);
                for stages in [1, 3] {
                    let handle = bring_up(&pool, stages, policy.clone());
                    let asked: Vec<Vec<Vec<i64>>> = (0..60).map(|_| ask(&mut rng)).collect();
                    let answers: Vec<_> = asked.iter().map(|rows| handle.submit(request(rows))).collect();
                    block_on(async {
                        for (rows, answer) in asked.iter().zip(answers) {
                            let response = answer.await.unwrap_or_else(|error| panic!("{rows:?}: {error}"));
                            check(&response, stages as i64, rows);
                        }
                    });
                    let counted = handle.stats().snapshot();
                    let shares = !matches!(policy, Policy::Serial);
                    assert_eq!(counted.execution_count < 60, shares, "{policy:?}: {} batches", counted.execution_count);
                }
                assert!(pool.stop(PATIENCE));
                assert_eq!(pool.in_flight(), 0);
            }
        }
    });
}

#[test]
fn what_is_longer_than_the_card_is_prepared_for_is_refused_at_once() {
    with_card(|| {
        let pool = pool(1, 1);
        let handle = bring_up(&pool, 3, Policy::Window(Default::default()));
        let longest = vec![vec![3; LENGTHS[2] as usize]];
        let longer = vec![vec![3; LENGTHS[2] as usize + 1]];
        block_on(async {
            let refused = handle.submit(request(&longer)).await.expect_err("there is no graph for it");
            assert!(matches!(&refused, InferError::Invalid(reason) if reason.contains("'tokens' has 21 entries")));
            check(&handle.submit(request(&longest)).await.expect("there is one for this"), 3, &longest);
        });
        assert!(pool.stop(PATIENCE));
    });
}
