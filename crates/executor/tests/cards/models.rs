//! Models of cells that mix, and the expected answers to their requests.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_batching::{CellularKnobs, Knobs, Policy, SequenceKnobs};
use paternoster_engine::Program;
use paternoster_executor::{CellPrograms, InferRequest, StagePrograms};
use paternoster_model::{
    DataType, Dims, InputTensor, ModelSpec, SymbolId, TensorSpec,
    unfold::{
        CellInputSource, CellSpec, Control, Emit, EmitRange, Emitted, Expression, NodeType, Nodes, Segment, Start,
        Tensor, Unfolding,
    },
};
use smallvec::smallvec;

use crate::{
    folding::{OverEntries, folding, marking},
    mixing::{Mixing, mixing},
    rng::Rng,
};

/// State before the first step, and in place of a missing child.
const START: u64 = 77;

/// Token that ends a loop.
const LAST: u64 = 3;

/// Outputs of loops are below this, so that some loops end early and some do not.
const FEW: u64 = 24;

const MANY: u64 = 1_000_000_007;

/// The graph that a model's requests unfold into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Steps; the last one's output is the response.
    Chain,
    /// Steps; the outputs of all are the response.
    AllSteps,
    /// Steps until one ends the loop.
    Loop,
    /// A chain whose last state starts a loop of another cell.
    TwoChains,
    /// A chain over the outputs of all steps of another.
    TwoLayers,
    /// A tree; the root's output is the response.
    Tree,
    /// Steps until one ends the loop. Each reads the outputs of all earlier steps.
    Growing,
    /// Steps that read all outputs of a chain.
    Held,
    /// A stage over all tokens, each as a row of its cell, and a chain over its output.
    Rows,
    /// A stage that reads all tokens as one row, and steps that read its whole output.
    Marked,
}

pub(crate) const FORMS: [Form; 10] = [
    Form::Chain,
    Form::AllSteps,
    Form::Loop,
    Form::TwoChains,
    Form::TwoLayers,
    Form::Tree,
    Form::Growing,
    Form::Held,
    Form::Rows,
    Form::Marked,
];

/// Maximum tokens of a request.
pub(crate) const MOST_TOKENS: u32 = 12;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub tokens: Vec<u64>,
    /// Indexed by node of a tree.
    pub children: Vec<[i64; 2]>,
}

fn tensor(name: &str, dims: &[i64]) -> TensorSpec {
    TensorSpec::new(name, DataType::Int64, dims)
}

fn bytes(values: impl IntoIterator<Item = u64>) -> Bytes {
    values.into_iter().flat_map(u64::to_le_bytes).collect()
}

impl Form {
    fn spec(self) -> ModelSpec {
        let mut inputs = vec![tensor("x", &[-1])];
        if self == Self::Tree {
            inputs.push(tensor("children", &[-1, 2]));
        }
        let all = matches!(self, Self::AllSteps | Self::TwoLayers)
            || matches!(self, Self::Growing | Self::Held | Self::Rows | Self::Marked);
        ModelSpec {
            name: format!("{self:?}"),
            version: 1,
            max_batch_size: 1,
            inputs,
            outputs: vec![tensor("y", if all { &[-1, 1] } else { &[1] })],
            symbols: vec![],
            decoupled: false,
        }
    }

    /// Returns everything to load a version with, in tasks of up to `max_rows` nodes.
    pub(crate) fn version(self, max_rows: u32, slots: u32) -> (ModelSpec, Knobs, StagePrograms) {
        let spec = self.spec();
        let (unfolding, programs) = self.unfolding(max_rows);
        let cells = CellPrograms::new(&spec, unfolding, programs).expect("the unfolding is sound");
        let cells = cells.with_most_steps(MOST_TOKENS);
        let (cell_knobs, segments) = cells.knobs();
        let cellular = CellularKnobs { cells: cell_knobs, segments, slots, ..CellularKnobs::default() };
        let knobs = Knobs {
            max_batch_rows: max_rows,
            max_in_flight: 2,
            policy: Policy::Cellular(cellular),
            ..Knobs::default()
        };
        (spec, knobs, cells.into())
    }

    /// Returns a form whose first segment keeps its state from one request of a sequence to the next.
    pub(crate) fn kept(self, max_rows: u32, slots: u32, sequences: SequenceKnobs) -> (ModelSpec, Knobs, StagePrograms) {
        let (mut unfolding, programs) = self.unfolding(max_rows);
        match &mut unfolding.segments[0].types[0].inputs[1] {
            CellInputSource::Carried { is_kept, .. } => *is_kept = true,
            other => panic!("{other:?} carries nothing"),
        }
        let spec = self.spec();
        let cells = CellPrograms::new(&spec, unfolding, programs).expect("the unfolding is sound");
        let (_, mut knobs, _) = self.version(max_rows, slots);
        if let Policy::Cellular(cellular) = &mut knobs.policy {
            cellular.sequences = Some(sequences);
        }
        (spec, knobs, cells.into())
    }

    /// Returns the expected answer of a chain that starts from a state.
    pub(crate) fn chain_from(start: Option<u64>, tokens: &[u64]) -> u64 {
        tokens.iter().fold(start.unwrap_or(START), |state, &token| mixing(token, state, MANY))
    }

    /// Returns a stage with tokens of varying length whose cell has no input for the length.
    pub(crate) fn untold() -> (ModelSpec, StagePrograms) {
        let (mut unfolding, programs) = Self::Marked.unfolding(1);
        unfolding.segments[0].types[0].inputs[1] =
            CellInputSource::Control { control: Control::Ready, no: bytes([0]), yes: bytes([1]) };
        let spec = Self::Marked.spec();
        let cells = CellPrograms::new(&spec, unfolding, programs).expect("the unfolding is sound");
        (spec, cells.into())
    }

    /// Returns a chain whose program runs several steps at a time.
    pub(crate) fn chunked() -> (ModelSpec, StagePrograms) {
        let (mut unfolding, programs) = Self::Chain.unfolding(1);
        unfolding.cells[0].inputs[0] = tensor("x", &[-1]);
        unfolding.segments[0].nodes = Nodes::Chain { steps: Expression::Length(0), chunks: true };
        let spec = Self::Chain.spec();
        let cells = CellPrograms::new(&spec, unfolding, programs).expect("the unfolding is sound");
        (spec, cells.into())
    }

    /// Builds the cells, segments and programs of a form.
    fn unfolding(self, max_rows: u32) -> (Unfolding, Vec<Arc<dyn Program>>) {
        let cell = |name: &str, inputs: Vec<TensorSpec>, priority| CellSpec {
            name: name.to_owned(),
            inputs,
            outputs: vec![tensor("v", &[1])],
            max_rows,
            min_followup: 1,
            priority,
        };
        let program = |inputs, modulus| Arc::new(Mixing { inputs, modulus }) as Arc<dyn Program>;
        let start = bytes([START]);
        let token = CellInputSource::Step { of: Tensor::Input(0), reversed: false };
        let carried = |start| CellInputSource::Carried { output: 0, start, is_kept: false };
        let child = |child| CellInputSource::Child { child, output: 0, none: start.clone() };
        let emit = |which| vec![Emit { name: "v".to_owned(), output: 0, which }];
        let emitted = |segment| Emitted { segment, emit: 0 };
        let length = || Expression::Length(0);
        let step = |name, priority| cell(name, vec![tensor("x", &[]), tensor("h", &[1])], priority);
        let over = |name, priority| {
            let symbols = smallvec![Some(SymbolId(0)), None];
            let entries = TensorSpec { symbols, ..tensor("entries", &[-1, 1]) };
            cell(name, vec![tensor("x", &[]), entries, tensor("length", &[])], priority)
        };
        let segment = |name: &str, types, nodes, which| Segment {
            name: name.to_owned(),
            types,
            nodes,
            emits: emit(which),
            streams: false,
        };
        let first = || smallvec![NodeType { cell: 0, inputs: vec![token.clone(), carried(Start::Row(start.clone()))] }];
        let chain = || Nodes::Chain { steps: length(), chunks: false };
        let decode = || Nodes::Decode { max_steps: length(), until: Some((0, LAST as i64)), expected_steps: None };
        let one = |nodes, which, modulus| {
            let segments = vec![segment("only", first(), nodes, which)];
            (vec![step("step", 1)], segments, vec![program(2, modulus)])
        };
        let (cells, segments, programs) = match self {
            Self::Chain => one(chain(), EmitRange::Last, MANY),
            Self::AllSteps => one(chain(), EmitRange::All, MANY),
            Self::Loop => one(decode(), EmitRange::Last, FEW),
            Self::TwoChains => {
                let begins = carried(Start::Tensor(Tensor::Emitted(emitted(0))));
                let second = smallvec![NodeType { cell: 1, inputs: vec![token.clone(), begins] }];
                let segments = vec![
                    segment("encode", first(), chain(), EmitRange::Last),
                    segment("decode", second, decode(), EmitRange::Last),
                ];
                (vec![step("encoder", 2), step("decoder", 1)], segments, vec![program(2, MANY), program(2, FEW)])
            }
            Self::TwoLayers => {
                let below = CellInputSource::Step { of: Tensor::Emitted(emitted(0)), reversed: false };
                let second = smallvec![NodeType { cell: 1, inputs: vec![below, carried(Start::Row(start.clone()))] }];
                let segments = vec![
                    segment("lower", first(), chain(), EmitRange::All),
                    segment("upper", second, chain(), EmitRange::All),
                ];
                let upper = cell("upper", vec![tensor("x", &[1]), tensor("h", &[1])], 1);
                (vec![step("lower", 2), upper], segments, vec![program(2, MANY), program(2, MANY)])
            }
            Self::Growing => {
                let grown = vec![token.clone(), CellInputSource::Grown { output: 0 }, CellInputSource::GrownLength];
                let types = smallvec![NodeType { cell: 0, inputs: grown }];
                let segments = vec![segment("grow", types, decode(), EmitRange::All)];
                (vec![over("grow", 1)], segments, vec![Arc::new(OverEntries::Folding(FEW)) as Arc<dyn Program>])
            }
            Self::Held => {
                let memory = Tensor::Emitted(emitted(0));
                let held = vec![token.clone(), CellInputSource::Whole(memory), CellInputSource::Length(memory)];
                let types = smallvec![NodeType { cell: 1, inputs: held }];
                let segments = vec![
                    segment("memory", first(), chain(), EmitRange::All),
                    segment("attend", types, Nodes::Chain { steps: length(), chunks: false }, EmitRange::All),
                ];
                let attending = Arc::new(OverEntries::Folding(MANY)) as Arc<dyn Program>;
                (vec![step("step", 2), over("attend", 1)], segments, vec![program(2, MANY), attending])
            }
            Self::Rows => {
                let each = smallvec![NodeType { cell: 0, inputs: vec![CellInputSource::Rows(Tensor::Input(0))] }];
                let below = CellInputSource::Step { of: Tensor::Emitted(emitted(0)), reversed: false };
                let second = smallvec![NodeType { cell: 1, inputs: vec![below, carried(Start::Row(start.clone()))] }];
                let segments = vec![
                    segment("each", each, Nodes::Stage, EmitRange::Last),
                    segment("upper", second, chain(), EmitRange::All),
                ];
                let upper = cell("upper", vec![tensor("x", &[1]), tensor("h", &[1])], 2);
                let each = cell("each", vec![tensor("x", &[])], 1);
                (vec![each, upper], segments, vec![program(1, MANY), program(2, MANY)])
            }
            Self::Marked => {
                let all = vec![CellInputSource::Whole(Tensor::Input(0)), CellInputSource::Length(Tensor::Input(0))];
                let memory = Tensor::Emitted(emitted(0));
                let held = vec![token.clone(), CellInputSource::Whole(memory), CellInputSource::Length(memory)];
                let segments = vec![
                    segment("mark", smallvec![NodeType { cell: 0, inputs: all }], Nodes::Stage, EmitRange::Last),
                    segment("attend", smallvec![NodeType { cell: 1, inputs: held }], chain(), EmitRange::All),
                ];
                let varying = |name: &str, dims: &[i64]| {
                    let symbols = dims.iter().map(|&dim| (dim < 0).then_some(SymbolId(0))).collect();
                    TensorSpec { symbols, ..tensor(name, dims) }
                };
                let marks = CellSpec {
                    outputs: vec![varying("v", &[-1, 1])],
                    ..cell("mark", vec![varying("entries", &[-1]), tensor("length", &[])], 2)
                };
                let programs = [OverEntries::Marking, OverEntries::Folding(MANY)];
                let programs = programs.map(|program| Arc::new(program) as Arc<dyn Program>);
                (vec![marks, over("attend", 1)], segments, programs.into())
            }
            Self::Tree => {
                let leaf = cell("leaf", vec![tensor("x", &[])], 2);
                let inner = cell("inner", vec![tensor("left", &[1]), tensor("right", &[1])], 1);
                let types = smallvec![
                    NodeType { cell: 0, inputs: vec![token.clone()] },
                    NodeType { cell: 1, inputs: vec![child(0), child(1)] },
                ];
                let nodes = Nodes::Tree { children: 1, max_nodes: 64 };
                let segments = vec![segment("tree", types, nodes, EmitRange::Last)];
                (vec![leaf, inner], segments, vec![program(1, MANY), program(2, MANY)])
            }
        };
        let outputs = vec![emitted(segments.len() - 1)];
        (Unfolding { cells, segments, outputs, limits: Vec::new() }, programs)
    }

    /// Creates a random request of up to `most` tokens.
    pub(crate) fn ask(self, rng: &mut Rng, most: u64) -> Asked {
        let count = rng.within(1, most);
        let tokens = (0..count).map(|_| rng.below(1 << 40)).collect();
        let mut children: Vec<[i64; 2]> = Vec::new();
        for node in 0..count as i64 {
            // Children come before their parents. Some nodes have one child.
            let leaf = [-1, -1];
            let open: Vec<i64> = (0..node).filter(|at| !children.iter().flatten().any(|own| own == at)).collect();
            let is_last = node + 1 == count as i64;
            children.push(match open[..] {
                [.., left, right] if is_last || rng.coin() => [left, right],
                [only] if is_last || rng.permille(100) => [only, -1],
                _ => leaf,
            });
        }
        Asked { tokens, children }
    }

    /// Returns the expected answer to a request.
    pub(crate) fn answer(self, asked: &Asked) -> Vec<u64> {
        self.answer_from(START, asked)
    }

    /// Returns the expected answer to a request whose first chain starts from `before`, in a form that keeps its state.
    pub(crate) fn kept_answer(self, before: Option<u64>, asked: &Asked) -> Vec<u64> {
        self.answer_from(before.unwrap_or(START), asked)
    }

    fn answer_from(self, start: u64, asked: &Asked) -> Vec<u64> {
        let steps = |tokens: &[u64], start: u64, modulus: u64| {
            let mut states: Vec<u64> = Vec::with_capacity(tokens.len());
            for &token in tokens {
                states.push(mixing(token, states.last().copied().unwrap_or(start), modulus));
            }
            states
        };
        let until_last = |start: u64| {
            let states = steps(&asked.tokens, start, FEW);
            let end = states.iter().position(|state| *state == LAST).unwrap_or(states.len() - 1);
            vec![states[end]]
        };
        let last = |states: Vec<u64>| states.last().copied().into_iter().collect::<Vec<u64>>();
        match self {
            Self::Chain => last(steps(&asked.tokens, start, MANY)),
            Self::AllSteps => steps(&asked.tokens, START, MANY),
            Self::Loop => until_last(START),
            Self::TwoChains => until_last(last(steps(&asked.tokens, start, MANY))[0]),
            Self::TwoLayers => steps(&steps(&asked.tokens, START, MANY), START, MANY),
            Self::Growing => {
                let mut values: Vec<u64> = Vec::new();
                for &token in &asked.tokens {
                    let next = folding(token, &values, FEW);
                    values.push(next);
                    if next == LAST {
                        break;
                    }
                }
                values
            }
            Self::Held => {
                let memory = steps(&asked.tokens, START, MANY);
                asked.tokens.iter().map(|&token| folding(token, &memory, MANY)).collect()
            }
            Self::Rows => {
                let each: Vec<u64> = asked.tokens.iter().map(|&token| mixing(token, 0, MANY)).collect();
                steps(&each, START, MANY)
            }
            Self::Marked => {
                let memory = marking(&asked.tokens);
                asked.tokens.iter().map(|&token| folding(token, &memory, MANY)).collect()
            }
            Self::Tree => {
                let mut values: Vec<u64> = Vec::new();
                for (token, children) in asked.tokens.iter().zip(&asked.children) {
                    let of = |child: i64| usize::try_from(child).map_or(START, |child| values[child]);
                    values.push(match children {
                        [-1, -1] => mixing(*token, 0, MANY),
                        [left, right] => mixing(of(*left), of(*right), MANY),
                    });
                }
                last(values)
            }
        }
    }

    /// Returns a request in the form in which it is submitted.
    pub(crate) fn request(self, asked: &Asked) -> InferRequest {
        let count = asked.tokens.len() as i64;
        let mut inputs =
            vec![Some(InputTensor { shape: Dims::from_slice(&[1, count]), data: bytes(asked.tokens.iter().copied()) })];
        if self == Self::Tree {
            let data = bytes(asked.children.iter().flatten().map(|child| *child as u64));
            inputs.push(Some(InputTensor { shape: Dims::from_slice(&[1, count, 2]), data }));
        }
        InferRequest::new(1, inputs)
    }
}
