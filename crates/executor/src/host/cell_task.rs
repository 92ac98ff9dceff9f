//! A task of nodes on the CPU: gathers their inputs from the requests, runs the cell, and stores the outputs for the
//! nodes that read them next. A failed task stores nothing, because its nodes may run again.

use std::{iter, ops::Range, sync::Arc, time::Instant};

use paternoster_device::BufferPool;
use paternoster_engine::{Batch, BatchInput, BatchOutput, RowFailure, StopSignal};
use paternoster_model::{Dims, Lengths, Next, RowOutcome, TensorSpec, element_count, unfold::CellSpec};
use paternoster_observe::ExecutionTimings;
use smallvec::SmallVec;

use super::{
    node_rows::{Group, NodeRows, gather, groups},
    output_bytes::{check_declared, check_made},
};
use crate::{
    cells::{CellPrograms, Node, Row, UnfoldedState, fits},
    gather::{Gathered, with_rows},
    job::{Outputs, TaskOutput, nanos},
    strings::Elements,
};

/// Nodes of one cell type, from any requests of any versions.
pub(crate) struct CellTask<'a> {
    /// The programs of the version that leads the task.
    pub(crate) programs: &'a CellPrograms,
    pub(crate) cell: usize,
    /// Each node's request, its number in the request, and the number of steps that it runs.
    pub(crate) nodes: &'a [(&'a UnfoldedState, u32, u32)],
    pub(crate) buffers: &'a Arc<BufferPool>,
    pub(crate) stop: &'a StopSignal,
}

/// A run of nodes whose inputs fit together.
struct GroupRun {
    outputs: Vec<BatchOutput>,
    /// For each output of strings, where each row starts in its bytes, followed by their end; empty for others.
    starts: SmallVec<[Vec<usize>; 4]>,
    /// Number of rows.
    count: usize,
    nodes: SmallVec<[RanNode; 32]>,
}

/// A node that has run.
struct RanNode {
    /// Its index in the task.
    node: usize,
    /// Number of its rows.
    count: usize,
    /// How long they are along each axis that rows are padded along, by the cell's symbols.
    lengths: Lengths,
}

/// The outputs of a run for one node.
struct NodeOutputs<'a> {
    outputs: &'a [BatchOutput],
    /// Where rows of strings start.
    starts: &'a [Vec<usize>],
    /// Number of rows of the run.
    count: usize,
    /// Rows of the node.
    at: Range<usize>,
    /// How long the node's own row is.
    lengths: &'a Lengths,
}

impl NodeOutputs<'_> {
    /// Returns a node's row of an output, without its padding along the first axis. If the node iterates over rows,
    /// returns all of them as one row with a new first axis.
    fn row(&self, spec: &TensorSpec, output: usize, by_rows: bool) -> Row {
        let BatchOutput { shape, data } = &self.outputs[output];
        let rows = self.at.len();
        let bytes = match self.starts[output].get(self.at.start..=self.at.end) {
            Some([start, .., end]) => *start..*end,
            _ => {
                let len = data.len() / self.count;
                self.at.start * len..self.at.end * len
            }
        };
        let mut dims = Dims::new();
        if by_rows {
            dims.push(rows as i64);
        }
        dims.extend_from_slice(&shape[1..]);
        let row = Row { dims, of: data.clone(), at: bytes.start, len: bytes.len() };
        let symbol = spec.symbols.first().copied().flatten().filter(|_| !by_rows);
        let own = symbol.and_then(|symbol| self.lengths.get(usize::from(symbol.0)));
        match own.zip(row.dims.first().copied()) {
            Some((&own, padded)) if i64::from(own) < padded => row.first(own as usize),
            _ => row,
        }
    }
}

impl<'a> CellTask<'a> {
    /// Runs the nodes on the calling thread.
    ///
    /// # Errors
    /// If a node's input is missing, nodes do not fit together, the program fails, or an output does not match the
    /// cell's specification.
    pub(crate) fn run(&self) -> Result<TaskOutput, String> {
        let cell = self.programs.unfolding.cells.get(self.cell);
        let cell = cell.ok_or_else(|| format!("there is no cell {}", self.cell))?;
        self.run_cell(cell).map_err(|fault| format!("cell '{}': {fault}", cell.name))
    }

    fn run_cell(&self, cell: &CellSpec) -> Result<TaskOutput, String> {
        let nodes = self
            .nodes
            .iter()
            .map(|&(unfolded_state, number, steps)| Node::of(unfolded_state, number, steps, self.programs, self.cell));
        let nodes = nodes.collect::<Result<SmallVec<[Node<'_>; 32]>, String>>()?;
        let started = Instant::now();
        let mut rows: Vec<NodeRows> = Vec::with_capacity(nodes.len());
        let mut failures = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            // Only the node's own request fails if its inputs are incomplete.
            match rows_of(cell, node, number) {
                Ok(own) => rows.push(own),
                Err(fault) => failures.push(failure(cell, number, &fault)),
            }
        }
        let mut ran = TaskOutput {
            outputs: None,
            outcomes: vec![RowOutcome { next: Next::On, emitted: false }; nodes.len()],
            failures,
            delays: Vec::new(),
            timings: ExecutionTimings::default(),
        };
        ran.timings.compute_input_ns += nanos(started, Instant::now());
        for failure in &ran.failures {
            ran.outcomes[failure.row as usize].next = Next::Failed;
        }
        let memory = nodes.iter().find_map(|node| node.unfolded_state.memory());
        let mut padding = memory.map(|memory| memory.for_padding());
        let runs = groups(cell, &self.programs.cells[self.cell].pads, rows, padding.as_mut())
            .into_iter()
            .map(|group| self.run_group(cell, &nodes, group, &mut ran.timings));
        let runs = runs.collect::<Result<SmallVec<[GroupRun; 1]>, String>>()?;
        let ended = Instant::now();
        let mut outputs = Outputs::default();
        for run in &runs {
            leave(cell, &nodes, run, self.buffers.max_output_bytes(), &mut outputs, &mut ran);
        }
        ran.outputs = Some(outputs);
        ran.timings.compute_output_ns += nanos(ended, Instant::now());
        Ok(ran)
    }

    /// Runs rows whose inputs fit together.
    fn run_group(
        &self,
        cell: &CellSpec,
        nodes: &[Node<'_>],
        group: Group,
        timings: &mut ExecutionTimings,
    ) -> Result<GroupRun, String> {
        let started = Instant::now();
        let count = group.count;
        let inputs = cell.inputs.iter().enumerate();
        let gathered = inputs.map(|(input, spec)| gather(spec, input, &group, self.buffers));
        let gathered = gathered.collect::<Result<SmallVec<[Gathered<'_>; 4]>, String>>()?;
        let inputs: SmallVec<[BatchInput<'_>; 4]> = gathered.iter().map(Gathered::as_input).collect();
        let shape = |output: &TensorSpec| {
            let is_known = output.dims.iter().all(|dim| *dim >= 0);
            is_known.then(|| with_rows(count, &output.dims))
        };
        let shapes: SmallVec<[Option<Dims>; 4]> = cell.outputs.iter().map(shape).collect();
        check_declared(cell.outputs.iter().zip(&shapes), self.buffers, format_args!(""))?;
        let steps = group.nodes.iter().flat_map(|rows| iter::repeat_n(nodes[rows.node].place.node as u32, rows.count));
        let steps: SmallVec<[u32; 32]> = steps.collect();
        let ran = group.nodes.iter();
        let ran = ran.map(|rows| RanNode { node: rows.node, count: rows.count, lengths: lengths_of(cell, rows) });
        let ran = ran.collect();
        let gathered_at = Instant::now();
        let batch = Batch {
            rows: count as u32,
            inputs: &inputs,
            steps: &steps,
            output_shapes: &shapes,
            buffers: self.buffers,
            stop: self.stop,
        };
        let execution = self.programs.cells[self.cell].program.run(&batch).map_err(|error| error.message)?;
        let ran_at = Instant::now();
        check_made(cell.outputs.iter().zip(&execution.outputs), self.buffers, format_args!(""))?;
        // Release the inputs before the outputs are stored: a growing tensor is extended in place once it has no other
        // reader.
        drop(inputs);
        drop(gathered);
        drop(group);
        let mut starts = SmallVec::new();
        for (spec, output) in cell.outputs.iter().zip(&execution.outputs) {
            promised(spec, output, count)?;
            starts.push(starts_of(spec, output, count)?);
        }
        timings.compute_input_ns += nanos(started, gathered_at);
        timings.compute_infer_ns += nanos(gathered_at, ran_at);
        timings.compute_output_ns += nanos(ran_at, Instant::now());
        Ok(GroupRun { outputs: execution.outputs, starts, count, nodes: ran })
    }
}

/// Returns the rows of a node: one, or one per row of the tensors that it iterates over.
fn rows_of(cell: &CellSpec, node: &Node<'_>, number: usize) -> Result<NodeRows, String> {
    let own = node.node_type();
    let by_rows = own.goes_over_rows();
    let mut count = 1;
    let mut inputs: SmallVec<[Row; 4]> = SmallVec::new();
    for (spec, source) in cell.inputs.iter().zip(&own.inputs) {
        let mut row = node.input(spec, source)?;
        if by_rows {
            let found = row.dims.first().copied().unwrap_or(0) as usize;
            if found == 0 || (found != count && !inputs.is_empty()) {
                let expected = if inputs.is_empty() { "at least one row".to_owned() } else { format!("{count} rows") };
                return Err(format!("input '{}': expected {expected}, but found {found}", spec.name));
            }
            count = found;
            row = row.part(0, count);
        }
        fits(spec, &row)?;
        inputs.push(row);
    }
    Ok(NodeRows { node: number, count, inputs })
}

/// Stores the outputs of a run. A node whose outputs cannot be stored fails alone.
fn leave(
    cell: &CellSpec,
    nodes: &[Node<'_>],
    run: &GroupRun,
    max_bytes: usize,
    outputs: &mut Outputs,
    ran: &mut TaskOutput,
) {
    let mut at = 0;
    for RanNode { node: number, count, lengths } in &run.nodes {
        let (number, count) = (*number, *count);
        let given =
            NodeOutputs { outputs: &run.outputs, starts: &run.starts, count: run.count, at: at..at + count, lengths };
        at += count;
        let node = nodes[number];
        let by_rows = node.node_type().goes_over_rows();
        let row = |output: usize| Some(given.row(&cell.outputs[output], output, by_rows));
        if let Err(fault) = node.keep(row, max_bytes) {
            ran.failures.push(failure(cell, number, &fault));
            ran.outcomes[number].next = Next::Failed;
        } else {
            outputs.streamed.extend(node.response(row).map(|response| (number, response)));
            ran.outcomes[number] = node.outcome(row);
        }
    }
}

/// How long a node's inputs are along each axis that rows are padded along, by the cell's symbols.
fn lengths_of(cell: &CellSpec, rows: &NodeRows) -> Lengths {
    let mut lengths = Lengths::new();
    for (spec, input) in cell.inputs.iter().zip(&rows.inputs) {
        for (symbol, dim) in spec.symbols.iter().zip(&input.dims) {
            let Some(symbol) = symbol.map(|symbol| usize::from(symbol.0)) else { continue };
            if lengths.len() <= symbol {
                lengths.resize(symbol + 1, u32::MAX);
            }
            lengths[symbol] = u32::try_from(*dim).unwrap_or(u32::MAX);
        }
    }
    lengths
}

fn failure(cell: &CellSpec, node: usize, fault: &str) -> RowFailure {
    RowFailure { row: node as u32, reason: format!("cell '{}': {fault}", cell.name) }
}

/// Returns where each row of an output of strings starts, followed by the end of the last; empty for other outputs.
fn starts_of(spec: &TensorSpec, output: &BatchOutput, count: usize) -> Result<Vec<usize>, String> {
    if spec.datatype.size_bytes().is_some() {
        return Ok(Vec::new());
    }
    let row_elements = element_count(&output.shape[1..]);
    let row_elements = row_elements.ok_or_else(|| format!("output '{}' is too large", spec.name))?;
    let mut elements = Elements { rest: &output.data };
    let mut starts = vec![0];
    for _ in 0..count {
        let whole = elements.by_ref().take(row_elements).count() == row_elements;
        if !whole {
            return Err(format!("output '{}' has fewer elements than its shape {:?} says", spec.name, output.shape));
        }
        starts.push(output.data.len() - elements.rest.len());
    }
    Ok(starts)
}

/// Checks that an output has one row per node, with the dimensions that the cell declares.
fn promised(spec: &TensorSpec, output: &BatchOutput, count: usize) -> Result<(), String> {
    let (first, rest) = output.shape.split_first().unwrap_or((&0, &[]));
    let fits = usize::try_from(*first) == Ok(count)
        && rest.len() == spec.dims.len()
        && spec.dims.iter().zip(rest).all(|(expected, found)| *expected < 0 || expected == found);
    if fits {
        return Ok(());
    }
    let expected = spec.dims.as_slice();
    Err(format!("output '{}' has the shape {:?}, expected {count} rows of {expected:?}", spec.name, output.shape))
}
