//! Attention on a card: requests of unlike lengths in one batch, each of which attends to its own tokens alone. A row
//! whose mask shows nothing attends to all of them equally, so its results tell how many it had.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_batching::Policy;
use paternoster_device::BufferPool;
use paternoster_engine::{
    Batch, BatchInput, Precision, Program, ProgramPort, StopSignal,
    cuda::{OnCard, Plan},
    onnxruntime::OnnxProgram,
};
use paternoster_executor::{InferRequest, StagePrograms};
use paternoster_model::{DataType, Dims, InputTensor, Lengths, ModelSpec, SymbolId, TensorSpec};
use paternoster_onnx::{
    Model, PortDim,
    build::{Graph, Value},
};
use paternoster_testing::{fake_cuda::with_card, runtime::runtime};
use smallvec::SmallVec;

use crate::{
    rng::Rng,
    running::{MAX_ROWS, PATIENCE, block_on, on_cards, pool},
    stages::knobs,
};

/// The lengths that the card is prepared for.
const LENGTHS: [u32; 3] = [4, 11, 37];

const VOCABULARY: usize = 300;
const HEADS: i64 = 2;
const HIDDEN: i64 = 64;

/// A request: as many tokens and masks in each of its rows.
struct Asked {
    length: usize,
    tokens: Vec<Vec<i64>>,
    masks: Vec<Vec<i64>>,
}

fn inputs(length: i64) -> Vec<TensorSpec> {
    let symbols = || SmallVec::from_slice(&[Some(SymbolId(0))]);
    let input = |name| TensorSpec { symbols: symbols(), ..TensorSpec::new(name, DataType::Int64, &[length]) };
    vec![input("input_ids"), input("attention_mask")]
}

fn outputs() -> Vec<TensorSpec> {
    let symbols = SmallVec::from_slice(&[Some(SymbolId(0)), None]);
    vec![TensorSpec { symbols, ..TensorSpec::new("attended", DataType::Fp32, &[-1, HIDDEN]) }]
}

/// Returns a graph of one layer of attention over embeddings.
fn model() -> Model {
    let mut graph = Graph::new("attending");
    let tokens = || [PortDim::from("batch"), PortDim::from("tokens")];
    let ids = graph.input("input_ids", DataType::Int64, &tokens());
    let mask = graph.input("attention_mask", DataType::Int64, &tokens());
    let mut rng = Rng::new(5);
    let mut weights = |graph: &mut Graph, name: &str, rows: usize, limit: f32| {
        let numbers = (0..rows * HIDDEN as usize).map(|_| (rng.below(2_001) as f32 / 1_000.0 - 1.0) * limit);
        graph.constant(name, &[rows, HIDDEN as usize], &numbers.collect::<Vec<f32>>())
    };
    let table = weights(&mut graph, "table", VOCABULARY, 1.0);
    let x = graph.op("Gather", &[&table, &ids]).value();
    let split = graph.literal(&[0, 0, HEADS, HIDDEN / HEADS]);
    let orders = [("query", [0_i64, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])];
    let [q, k, v]: [Value; 3] = orders.map(|(name, order)| {
        let weights = weights(&mut graph, name, HIDDEN as usize, 0.3);
        let projected = graph.op("MatMul", &[&x, &weights]).value();
        let parts = graph.op("Reshape", &[&projected, &split]).value();
        graph.op("Transpose", &[&parts]).attr("perm", order).value()
    });
    let axes = graph.literal(&[1_i64, 2]);
    let (one, hidden, scale) = (graph.scalar(1.0_f32), graph.scalar(f32::MIN), graph.scalar(0.2_f32));
    let mask = graph.op("Unsqueeze", &[&mask, &axes]).value();
    let mask = graph.op("Cast", &[&mask]).attr("to", 1).value();
    let mask = graph.op("Sub", &[&one, &mask]).value();
    let mask = graph.op("Mul", &[&mask, &hidden]).value();
    let scores = graph.op("MatMul", &[&q, &k]).value();
    let scores = graph.op("Mul", &[&scores, &scale]).value();
    let scores = graph.op("Add", &[&scores, &mask]).value();
    let shares = graph.op("Softmax", &[&scores]).attr("axis", -1).value();
    let mixed = graph.op("MatMul", &[&shares, &v]).value();
    let mixed = graph.op("Transpose", &[&mixed]).attr("perm", [0, 2, 1, 3]).value();
    let joined = graph.literal(&[0, 0, HIDDEN]);
    let attended = graph.op("Reshape", &[&mixed, &joined]).named("attended").value();
    graph.output(&attended, DataType::Fp32, &["batch".into(), "tokens".into(), HIDDEN.into()]);
    graph.finish().expect("the graph is sound")
}

fn spec() -> ModelSpec {
    ModelSpec {
        name: "attending".to_owned(),
        version: 1,
        max_batch_size: MAX_ROWS,
        inputs: inputs(-1),
        outputs: outputs(),
        symbols: vec!["tokens".to_owned()],
        decoupled: false,
    }
}

/// Plans the model for all lengths.
fn planned(model: &Model, host: &Arc<OnnxProgram>) -> StagePrograms {
    let plan = |length: &u32| {
        let plan = Plan::new(model, &inputs(i64::from(*length)), &outputs(), true, Precision::Ieee);
        (Lengths::from_slice(&[*length]), plan.expect("it has a plan"))
    };
    let program = OnCard::new(Arc::clone(host) as Arc<dyn Program>, LENGTHS.iter().map(plan).collect());
    (Arc::new(program) as Arc<dyn Program>).into()
}

impl Asked {
    /// Returns a random request. Some masks have holes, some show nothing, and some are padded by the client.
    fn new(rng: &mut Rng) -> Self {
        let length = rng.within(1, u64::from(LENGTHS[2])) as usize;
        let rows = rng.within(1, 3);
        let tokens = (0..rows).map(|_| (0..length).map(|_| rng.below(VOCABULARY as u64) as i64).collect()).collect();
        let mask = |rng: &mut Rng| -> Vec<i64> {
            let (form, end) = (rng.below(4), rng.within(1, length as u64) as usize);
            let shows = |place: usize, rng: &mut Rng| match form {
                0 => true,
                1 => rng.permille(700),
                2 => place < end,
                _ => false,
            };
            (0..length).map(|place| i64::from(shows(place, rng))).collect()
        };
        Self { length, tokens, masks: (0..rows).map(|_| mask(rng)).collect() }
    }

    fn data(&self) -> [Bytes; 2] {
        [&self.tokens, &self.masks].map(|rows| rows.iter().flatten().flat_map(|number| number.to_le_bytes()).collect())
    }

    fn request(&self) -> InferRequest {
        let shape = Dims::from_slice(&[self.tokens.len() as i64, self.length as i64]);
        let inputs = self.data().map(|data| Some(InputTensor { shape: shape.clone(), data }));
        InferRequest::new(self.tokens.len() as u32, inputs.into())
    }

    /// Returns what ONNX Runtime answers to the request alone.
    fn expected(&self, host: &OnnxProgram) -> Vec<f32> {
        let (shape, data, rows) = ([self.tokens.len() as i64, self.length as i64], self.data(), self.tokens.len());
        let inputs = data.each_ref().map(|data| BatchInput::Dense { shape: &shape, data });
        let (stop, buffers) = (StopSignal::default(), BufferPool::new(0));
        let batch = Batch {
            rows: rows as u32,
            inputs: &inputs,
            steps: &vec![0; rows],
            output_shapes: &[None],
            buffers: &buffers,
            stop: &stop,
        };
        floats(&host.run(&batch).expect("it runs").outputs[0].data)
    }
}

fn floats(data: &[u8]) -> Vec<f32> {
    data.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
}

#[test]
fn requests_attend_to_their_own_tokens_in_batches_of_unlike_lengths() {
    with_card(|| {
        let Some(runtime) = runtime() else { return };
        let model = model();
        let (inputs, outputs) = (inputs(-1), outputs());
        let (takes, gives): (Vec<ProgramPort<'_>>, Vec<ProgramPort<'_>>) =
            (inputs.iter().map(Into::into).collect(), outputs.iter().map(Into::into).collect());
        let host = OnnxProgram::compile_ports(runtime, "attending", &model.to_bytes(), &takes, &gives);
        let host = Arc::new(host.unwrap_or_else(|error| panic!("{error}")));
        let mut rng = Rng::new(31);
        let pool = pool(2, 2);
        let knobs = knobs(Policy::Window(Default::default()), 2, 2);
        let handle = Arc::new(on_cards(&pool, (spec(), knobs, planned(&model, &host))).expect("the card has room"));
        let asked: Vec<Asked> = (0..40).map(|_| Asked::new(&mut rng)).collect();
        let answers: Vec<_> = asked.iter().map(|asked| handle.submit(asked.request())).collect();
        block_on(async {
            for (asked, answer) in asked.iter().zip(answers) {
                let response = answer.await.unwrap_or_else(|error| panic!("{error}"));
                let (answer, expected) = (floats(&response.outputs[0].data), asked.expected(&host));
                assert_eq!(response.outputs[0].shape[1], asked.length as i64);
                assert_eq!(answer.len(), expected.len());
                for (answer, expected) in answer.iter().zip(expected) {
                    let masks = &asked.masks;
                    assert!((answer - expected).abs() < 1e-4, "{answer}, expected {expected}, for {masks:?}");
                }
            }
        });
        let counted = handle.stats().snapshot();
        assert!(counted.execution_count < 40, "{} batches", counted.execution_count);
        assert!(pool.stop(PATIENCE));
    });
}
