//! Requests through cells whose programs are arithmetic on INT64, so that a wrong order or row changes the result.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::*;
use crate::{
    Response,
    host::{
        cell_task::CellTask,
        trial::{Trial, run_alone},
    },
    record::Payload,
};

mod chunks;
mod failures;
mod grow;
mod indices;
mod loops;
mod memory;
mod sequences;
mod sharing;
mod stages;
mod trees;
mod unread;

use paternoster_device::BufferPool;
use paternoster_engine::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program, StopSignal};
use paternoster_model::{
    DataType, Dims, Next, TensorSpec,
    unfold::{
        CellInputSource, CellSpec, Emit, EmitRange, Emitted, Expression, NodeType, Nodes, Segment, Start, Tensor,
        Unfolding,
    },
};
use stages::stage;
use trees::{same, tree, two_left_and_right};

/// Computes the outputs of a row from its inputs.
type Row = fn(&[Vec<i64>]) -> Vec<Vec<i64>>;

/// Value of the first input that makes a run fail.
const NO_TOKEN: i64 = 1_000_000_000;

/// A program that computes row by row and records the sizes of its runs.
struct Rows {
    row: Row,
    runs: Mutex<Vec<u32>>,
}

impl Program for Rows {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        self.runs.lock().push(batch.rows);
        let rows = batch.rows as usize;
        let mut made: Vec<Vec<Vec<i64>>> = Vec::new();
        for row in 0..rows {
            let inputs = batch.inputs.iter().map(|input| match input {
                BatchInput::Dense { data, .. } => {
                    let len = data.len() / rows;
                    let (values, _) = data[row * len..(row + 1) * len].as_chunks::<8>();
                    values.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
                }
                _ => Vec::new(),
            });
            let inputs: Vec<Vec<i64>> = inputs.collect();
            if inputs.first().is_some_and(|input| input.first() == Some(&NO_TOKEN)) {
                return Err(EngineError::new(format!("there is no token {NO_TOKEN}")));
            }
            made.push((self.row)(&inputs));
        }
        let outputs = (0..made[0].len()).map(|output| {
            let values: Vec<i64> = made.iter().flat_map(|row| row[output].clone()).collect();
            let shape = Dims::from_slice(&[rows as i64, made[0][output].len() as i64]);
            BatchOutput { shape, data: bytes(&values) }
        });
        Ok(Execution { outputs: outputs.collect(), ..Execution::default() })
    }

    fn origin(&self) -> Option<[u8; 32]> {
        let mut origin = [0; 32];
        origin[..8].copy_from_slice(&(self.row as usize as u64).to_le_bytes());
        Some(origin)
    }
}

fn bytes(values: &[i64]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
}

fn values(data: &[u8]) -> Vec<i64> {
    data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

fn tensor(name: &str, dims: &[i64]) -> TensorSpec {
    TensorSpec::new(name, DataType::Int64, dims)
}

/// Creates a cell of INT64 tensors, given by name and row dims.
fn cell(name: &str, inputs: &[(&str, &[i64])], outputs: &[&str]) -> CellSpec {
    let inputs = inputs.iter().map(|(name, dims)| tensor(name, dims)).collect();
    let outputs = outputs.iter().map(|name| tensor(name, &[1])).collect();
    CellSpec { name: name.to_owned(), inputs, outputs, max_rows: 8, min_followup: 1, priority: 1 }
}

fn emit(name: &str, output: usize, which: EmitRange) -> Emit {
    Emit { name: name.to_owned(), output, which }
}

fn emitted(segment: usize, emit: usize) -> Emitted {
    Emitted { segment, emit }
}

/// The nodes of a segment, and their types.
type Typed = (SmallVec<[NodeType; 2]>, Nodes);

fn segment(name: &str, (types, nodes): Typed, emits: Vec<Emit>) -> Segment {
    Segment { name: name.to_owned(), types, nodes, emits, streams: false }
}

fn steps(cell: usize, inputs: Vec<CellInputSource>, nodes: Nodes) -> Typed {
    (smallvec![NodeType { cell, inputs }], nodes)
}

/// One step per element of the first input.
fn over_tokens() -> Nodes {
    Nodes::Chain { steps: Expression::Length(0), chunks: false }
}

fn row_of_input(input: usize) -> CellInputSource {
    CellInputSource::Step { of: Tensor::Input(input), reversed: false }
}

fn carried(output: usize, start: i64) -> CellInputSource {
    CellInputSource::Carried { output, start: Start::Row(bytes(&[start])), is_kept: false }
}

/// Dims without the batch, and values.
type Made = (Vec<i64>, Vec<i64>);

/// A model with these inputs and outputs, and its compiled cells.
struct Tried {
    spec: ModelSpec,
    programs: Arc<CellPrograms>,
    rows: Vec<Arc<Rows>>,
    buffers: Arc<BufferPool>,
}

fn model(inputs: &[(&str, &[i64])], outputs: usize) -> ModelSpec {
    ModelSpec {
        name: "m".to_owned(),
        version: 1,
        max_batch_size: 1,
        inputs: inputs.iter().map(|(name, dims)| tensor(name, dims)).collect(),
        outputs: (0..outputs).map(|output| tensor(&format!("y{output}"), &[-1])).collect(),
        symbols: Vec::new(),
        decoupled: false,
    }
}

impl Tried {
    fn new(spec: ModelSpec, unfolding: Unfolding, rows: &[Row]) -> Result<Self, String> {
        let rows: Vec<Arc<Rows>> = rows.iter().map(|&row| Arc::new(Rows { row, runs: Mutex::default() })).collect();
        let programs = rows.iter().map(|rows| Arc::clone(rows) as Arc<dyn Program>).collect();
        let programs = Arc::new(CellPrograms::new(&spec, unfolding, programs)?);
        Ok(Self { spec, programs, rows, buffers: BufferPool::new(0) })
    }

    fn inputs(&self, given: &[(&[i64], &[i64])]) -> Vec<Option<InputTensor>> {
        let input = |(shape, data): &(&[i64], &[i64])| {
            let mut with_batch = Dims::from_slice(&[1]);
            with_batch.extend_from_slice(shape);
            Some(InputTensor { shape: with_batch, data: bytes(data) })
        };
        given.iter().map(input).collect()
    }

    /// Runs a request alone and returns its outputs, as dims without the batch and values.
    fn alone(&self, given: &[(&[i64], &[i64])]) -> Result<Vec<Made>, String> {
        let inputs = self.inputs(given);
        let graph = unfold(&self.programs, &self.spec, 1, &inputs, None).map_err(|fault| fault.to_string())?;
        let trial = Trial { inputs, graph, given: Arc::default() };
        let (replies, _) = run_alone(&self.spec, &self.programs, vec![trial], (&self.buffers, &StopSignal::default()))?;
        let outputs = replies.into_iter().flat_map(|Response { outputs }| outputs);
        Ok(outputs.map(|output| (output.shape[1..].to_vec(), values(&output.data))).collect())
    }

    fn unfolded_state(&self, given: &[(&[i64], &[i64])]) -> UnfoldedState {
        let inputs = self.inputs(given);
        let graph = unfold(&self.programs, &self.spec, 1, &inputs, None).expect("it unfolds");
        let payload = Payload { rows: 1, lengths: Default::default(), inputs, on_card: None, backlog: None };
        UnfoldedState::new(&self.programs, true, Arc::new(payload), &graph, None)
    }

    fn task(&self, cell: usize, nodes: &[(&UnfoldedState, u32)]) -> Result<Vec<Next>, String> {
        let nodes: Vec<(&UnfoldedState, u32, u32)> =
            nodes.iter().map(|&(unfolded_state, node)| (unfolded_state, node, 1)).collect();
        self.chunks(cell, &nodes)
    }

    /// Runs a task whose rows run several steps each.
    fn chunks(&self, cell: usize, nodes: &[(&UnfoldedState, u32, u32)]) -> Result<Vec<Next>, String> {
        let ran =
            CellTask { programs: &self.programs, cell, nodes, buffers: &self.buffers, stop: &StopSignal::default() }
                .run()?;
        Ok(ran.outcomes.iter().map(|outcome| outcome.next).collect())
    }
}

/// 10 · h + x: appends a digit to the number.
fn digits(inputs: &[Vec<i64>]) -> Vec<Vec<i64>> {
    vec![vec![10 * inputs[1][0] + inputs[0][0]]]
}

fn digit_cell() -> CellSpec {
    cell("step", &[("x", &[]), ("h", &[1])], &["h_next"])
}

/// A chain over the first input.
fn chain(reversed: bool) -> Typed {
    let x = CellInputSource::Step { of: Tensor::Input(0), reversed };
    steps(0, vec![x, carried(0, 0)], over_tokens())
}

fn digit_chain(reversed: bool) -> Tried {
    let emits = vec![emit("last", 0, EmitRange::Last), emit("all", 0, EmitRange::All)];
    let unfolding = Unfolding {
        cells: vec![digit_cell()],
        segments: vec![segment("chain", chain(reversed), emits)],
        outputs: vec![emitted(0, 0), emitted(0, 1)],
        limits: Vec::new(),
    };
    Tried::new(model(&[("tokens", &[-1])], 2), unfolding, &[digits]).expect("it fits")
}

#[test]
fn a_chain_carries_its_state_and_leaves_the_last_or_all_of_it() {
    let outputs = digit_chain(false).alone(&[(&[3], &[1, 2, 3])]).expect("it runs");
    assert_eq!(outputs, [(vec![1], vec![123]), (vec![3, 1], vec![1, 12, 123])]);
}

#[test]
fn a_request_whose_steps_leave_too_much_fails_alone() {
    let tried = Tried { buffers: BufferPool::with_output_limit(0, 16), ..digit_chain(false) };
    let unfolded_states =
        [&[1, 2, 3][..], &[4, 5]].map(|tokens| tried.unfolded_state(&[(&[tokens.len() as i64], tokens)]));
    for step in 0..2 {
        let nodes: Vec<(&UnfoldedState, u32)> =
            unfolded_states.iter().map(|unfolded_state| (unfolded_state, step)).collect();
        assert_eq!(tried.task(0, &nodes), Ok(vec![Next::On; 2]), "two rows of 8 bytes");
    }
    let [long, short] = &unfolded_states;
    assert_eq!(tried.task(0, &[(long, 2)]), Ok(vec![Next::Failed]), "a third is too much");
    assert_eq!(values(&short.reply().expect("it has run").outputs[0].data), [45]);
    let reason = tried.alone(&[(&[3], &[1, 2, 3])]).expect_err("as before");
    assert_eq!(reason, "cell 'step': its steps so far leave 24 bytes: expected at most 16 (--max-output-bytes)");
}

#[test]
fn what_is_left_can_be_read_in_any_order_and_again() {
    for order in [[0, 1, 0], [1, 0, 1]] {
        for tried in [(digit_chain(false), vec![123]), (digit_chain(true), vec![321])] {
            let (tried, last) = tried;
            let unfolded_state = tried.unfolded_state(&[(&[3], &[1, 2, 3])]);
            (0..3).for_each(|node| drop(tried.task(0, &[(&unfolded_state, node)]).expect("it runs")));
            for emit in order {
                let (dims, data) = unfolded_state.emitted(emitted(0, emit)).expect("it has run");
                let expected = if emit == 0 { (vec![1], 1) } else { (vec![3, 1], 3) };
                assert_eq!((dims.to_vec(), values(&data).len()), expected);
                assert!(emit == 1 || values(&data) == last);
            }
        }
    }
    let tree = tree();
    let unfolded_state = tree.unfolded_state(&[(&[1], &[5]), (&[1, 2], &[-1, -1])]);
    tree.task(0, &[(&unfolded_state, 0)]).expect("it runs");
    for emit in [1, 0, 1] {
        assert_eq!(values(&unfolded_state.emitted(emitted(0, emit)).expect("it has run").1), [5]);
    }
}

#[test]
fn a_reversed_chain_begins_at_the_end_and_leaves_its_states_in_the_order_of_the_input() {
    let outputs = digit_chain(true).alone(&[(&[3], &[1, 2, 3])]).expect("it runs");
    assert_eq!(outputs, [(vec![1], vec![321]), (vec![3, 1], vec![321, 32, 3])]);
}

#[test]
fn rows_of_a_task_are_their_own_requests_whatever_their_steps() {
    let tried = digit_chain(false);
    let (one, two) = (tried.unfolded_state(&[(&[2], &[1, 2])]), tried.unfolded_state(&[(&[3], &[7, 8, 9])]));
    tried.task(0, &[(&two, 0)]).expect("it runs");
    tried.task(0, &[(&one, 0), (&two, 1)]).expect("it runs");
    tried.task(0, &[(&two, 2), (&one, 1)]).expect("it runs");
    let last = |unfolded_state: &UnfoldedState| values(&unfolded_state.reply().expect("it has run").outputs[0].data);
    assert_eq!((last(&one), last(&two)), (vec![12], vec![789]));
    assert_eq!(*tried.rows[0].runs.lock(), [1, 2, 2]);
}

#[test]
fn a_node_without_what_it_reads_fails_alone() {
    let tried = digit_chain(false);
    let unfolded_state = tried.unfolded_state(&[(&[2], &[1, 2])]);
    let other = tried.unfolded_state(&[(&[1], &[7])]);
    let nodes = [(&unfolded_state, 1, 1), (&other, 0, 1)];
    let ran = CellTask {
        programs: &tried.programs,
        cell: 0,
        nodes: &nodes,
        buffers: &tried.buffers,
        stop: &StopSignal::default(),
    }
    .run();
    let ran = ran.expect("the other one runs");
    assert_eq!(ran.outcomes.iter().map(|outcome| outcome.next).collect::<Vec<_>>(), [Next::Failed, Next::On]);
    assert_eq!(ran.failures.len(), 1);
    assert_eq!(ran.failures[0].reason, "cell 'step': input 'h': the step before has left nothing");
    assert_eq!(values(&other.reply().expect("it has run").outputs[0].data), [7]);
    assert_eq!(tried.task(0, &[(&unfolded_state, 2)]).expect_err("two nodes"), "cell 'step': a request has no node 2");
    let unready = unfolded_state.reply().expect_err("it has not run");
    assert_eq!(unready, "'chain.last' is not there");
}

/// Returns the next number as the next token.
fn counts(inputs: &[Vec<i64>]) -> Vec<Vec<i64>> {
    vec![vec![inputs[0][0] + 1]]
}

/// Counts up from the number that the chain emits until 5, for at most ten steps.
fn decoder(streams: bool) -> Result<Tried, String> {
    let start = Start::Tensor(Tensor::Emitted(emitted(0, 0)));
    let source = CellInputSource::Carried { output: 0, start, is_kept: false };
    let nodes = Nodes::Decode { max_steps: Expression::Number(10), until: Some((0, 5)), expected_steps: None };
    let decode = steps(1, vec![source], nodes);
    let unfolding = Unfolding {
        cells: vec![digit_cell(), cell("next", &[("token", &[1])], &["next"])],
        segments: vec![
            segment("chain", chain(false), vec![emit("last", 0, EmitRange::Last)]),
            Segment { streams, ..segment("decode", decode, vec![emit("tokens", 0, EmitRange::All)]) },
        ],
        outputs: vec![emitted(1, 0)],
        limits: Vec::new(),
    };
    let spec = ModelSpec { decoupled: streams, ..model(&[("tokens", &[-1])], 1) };
    Tried::new(spec, unfolding, &[digits, counts])
}

#[test]
fn a_loop_feeds_back_until_its_end_or_its_most_steps() {
    let tried = decoder(false).expect("it fits");
    assert_eq!(tried.alone(&[(&[1], &[2])]), Ok(vec![(vec![3, 1], vec![3, 4, 5])]));
    let ten: Vec<i64> = (13..23).collect();
    assert_eq!(tried.alone(&[(&[2], &[1, 2])]), Ok(vec![(vec![10, 1], ten)]));
}

#[test]
fn each_step_of_a_stream_answers_for_itself() {
    let tried = decoder(true).expect("it fits");
    let unfolded_state = tried.unfolded_state(&[(&[1], &[3])]);
    tried.task(0, &[(&unfolded_state, 0)]).expect("it runs");
    let mut streamed = Vec::new();
    for node in 1..3 {
        let nodes = [(&unfolded_state, node, 1)];
        let ran = CellTask {
            programs: &tried.programs,
            cell: 1,
            nodes: &nodes,
            buffers: &tried.buffers,
            stop: &StopSignal::default(),
        }
        .run();
        let ran = ran.expect("it runs");
        assert!(ran.outcomes[0].emitted);
        let (part, response) = &ran.outputs.as_ref().expect("they are there at once").streamed[0];
        streamed.push((*part, response.outputs[0].shape.to_vec(), values(&response.outputs[0].data)));
    }
    assert_eq!(streamed, [(0, vec![1, 1, 1], vec![4]), (0, vec![1, 1, 1], vec![5])]);
}

#[test]
fn a_decoupled_model_answers_from_the_segment_that_streams() {
    let mut unfolding = decoder(false).expect("it fits").programs.unfolding().clone();
    unfolding.outputs = vec![emitted(0, 0)];
    let spec = ModelSpec { decoupled: true, ..model(&[("tokens", &[-1])], 1) };
    let refusal = Tried::new(spec, unfolding, &[digits, counts]).err().expect("it does not fit");
    assert_eq!(refusal, "a decoupled model answers step by step: expected all outputs from a segment that streams");
}

#[test]
fn what_does_not_fit_is_refused_with_its_segment_and_input() {
    let refusal = |change: fn(&mut Unfolding)| {
        let mut unfolding = digit_chain(false).programs.unfolding().clone();
        change(&mut unfolding);
        Tried::new(model(&[("tokens", &[-1])], 2), unfolding, &[digits]).err().expect("it does not fit")
    };
    let later = |unfolding: &mut Unfolding| {
        unfolding.segments[0].types[0].inputs[0] = CellInputSource::Whole(Tensor::Emitted(emitted(0, 0)));
    };
    assert_eq!(refusal(later), "segment 'chain': input 'x': comes from nothing that is there by then");
    let other_dims = |unfolding: &mut Unfolding| unfolding.cells[0].outputs[0].dims = Dims::from_slice(&[2]);
    assert_eq!(refusal(other_dims), "segment 'chain': input 'h': is INT64 [1], but 'h_next' is INT64 [2]");
    let unknown = |unfolding: &mut Unfolding| unfolding.segments[0].emits[0].output = 1;
    assert_eq!(refusal(unknown), "segment 'chain': cell 'step' has no output 1");
    let rows_of_a_chain = |unfolding: &mut Unfolding| {
        unfolding.segments[0].types[0].inputs[0] = CellInputSource::Rows(Tensor::Input(0));
    };
    let expected = "segment 'chain': expected a single node, all of whose inputs are rows, or none";
    assert_eq!(refusal(rows_of_a_chain), expected);
    let two_types = |unfolding: &mut Unfolding| {
        let again = unfolding.segments[0].types[0].clone();
        unfolding.segments[0].types.push(again);
    };
    let expected = "segment 'chain': expected nodes of one type, or of two in a tree, but found 2";
    assert_eq!(refusal(two_types), expected);
    let short = |unfolding: &mut Unfolding| {
        let start = Start::Row(Bytes::from_static(&[0; 4]));
        unfolding.segments[0].types[0].inputs[1] = CellInputSource::Carried { output: 0, start, is_kept: false };
    };
    assert_eq!(refusal(short), "segment 'chain': input 'h': starts with 4 bytes, expected 8");
    let missing = |unfolding: &mut Unfolding| unfolding.outputs.truncate(1);
    assert_eq!(refusal(missing), "expected an emit for each of 2 outputs");
    let Tried { spec, programs, .. } = tree();
    let mut unnamed = programs.unfolding().clone();
    unnamed.cells[1].outputs[0].name = "w".to_owned();
    let refusal = Tried::new(spec, unnamed, &[same, two_left_and_right]).err().expect("'v' is the leaves' alone");
    assert_eq!(refusal, "segment 'tree': input 'left': cell 'node' has no output 'v'");
}
