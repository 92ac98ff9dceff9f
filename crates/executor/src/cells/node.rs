//! One node of a request: gathers its inputs and stores its outputs.

use bytes::Bytes;
use paternoster_model::{
    DataType, Dims, Next, RowOutcome, TensorSpec,
    unfold::{CellInputSource, EmitRange, NodeType, Nodes, Segment, Start},
};

use super::{
    plan::{CellPrograms, is_of_steps},
    row::Row,
    unfolded_state::{NodePlace, UnfoldedState},
};
use crate::Response;

/// A node to run.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) unfolded_state: &'a UnfoldedState,
    pub(crate) place: NodePlace,
}

impl<'a> Node<'a> {
    /// Returns the node with this number of a request, or so many steps from it on, to run as a cell of `programs`.
    ///
    /// # Errors
    /// If the request has no such node, or if the node belongs to another cell.
    pub(crate) fn of(
        unfolded_state: &'a UnfoldedState,
        number: u32,
        steps: u32,
        programs: &CellPrograms,
        cell: usize,
    ) -> Result<Self, String> {
        let place = unfolded_state.place(number).ok_or_else(|| format!("a request has no node {number}"))?;
        let place = NodePlace { steps: steps as usize, ..place };
        let most = if unfolded_state.segment(place).runs_chunks() { place.nodes - place.node } else { 1 };
        if !(1..=most).contains(&place.steps) {
            return Err(format!("a task has {steps} steps of a request from node {number} on, expected 1 to {most}"));
        }
        let own = unfolded_state.node_type(place).cell;
        if !unfolded_state.programs.runs_as(own, programs, cell) {
            return Err(format!("node {number} of a request is of cell {own}"));
        }
        Ok(Self { unfolded_state, place })
    }

    /// Returns the inputs of its type.
    pub(crate) fn node_type(&self) -> &'a NodeType {
        self.unfolded_state.node_type(self.place)
    }

    pub(crate) fn segment(&self) -> &'a Segment {
        self.unfolded_state.segment(self.place)
    }

    /// Returns an input of the node.
    ///
    /// # Errors
    /// If the input is missing.
    pub(crate) fn input(&self, spec: &TensorSpec, source: &CellInputSource) -> Result<Row, String> {
        let Node { unfolded_state, place, .. } = *self;
        let own = |bytes: &Bytes| Row::alone(spec.dims.clone(), bytes.clone());
        let whole = |tensor| unfolded_state.tensor(tensor).map(|(dims, data)| Row::alone(dims, data));
        if let Some(row) = unfolded_state.given(&spec.name) {
            return Ok(row);
        }
        match source {
            CellInputSource::Whole(tensor) | CellInputSource::Rows(tensor) => whole(*tensor),
            CellInputSource::Step { of, reversed } => {
                let (dims, data) = unfolded_state.tensor(*of)?;
                if self.segment().runs_chunks() {
                    return rows_of(&dims, &data, place, *reversed)
                        .map_err(|fault| format!("input '{}' {fault}", spec.name));
                }
                let number = if *reversed { place.nodes - 1 - place.node } else { place.node };
                row_of(dims, data, number).map_err(|fault| format!("input '{}' {fault}", spec.name))
            }
            CellInputSource::Length(tensor) => {
                let (dims, _) = unfolded_state.tensor(*tensor)?;
                Ok(own(&length(spec, dims.first().copied().unwrap_or(1))))
            }
            CellInputSource::Steps => Ok(own(&length(spec, place.steps as i64))),
            CellInputSource::Grown { output } => {
                let mut dims = Dims::from_slice(&[place.node as i64]);
                dims.extend_from_slice(&spec.dims[1..]);
                let steps = unfolded_state.steps(place.segment, *output);
                let steps = steps.ok_or_else(|| format!("input '{}': it has no steps", spec.name))?;
                Ok(Row::alone(dims, steps))
            }
            CellInputSource::GrownLength => Ok(own(&length(spec, place.node as i64))),
            CellInputSource::Carried { output, .. } if place.node > 0 => {
                let row = unfolded_state.carried(place.segment, *output);
                row.ok_or_else(|| format!("input '{}': the step before has left nothing", spec.name))
            }
            CellInputSource::Carried { output, start, is_kept } => {
                match (is_kept.then(|| unfolded_state.kept(place.segment, *output)).flatten(), start) {
                    (Some(row), _) => Ok(row),
                    (None, Start::Row(row)) => Ok(own(row)),
                    (None, Start::Tensor(tensor)) => whole(*tensor),
                }
            }
            CellInputSource::Control { control, no, yes } => {
                Ok(own(if unfolded_state.is(*control) { yes } else { no }))
            }
            CellInputSource::CorrelationId => {
                let bytes = unfolded_state.correlation_id(spec.datatype);
                bytes.map(|bytes| own(&bytes)).ok_or_else(|| format!("input '{}': there is no sequence", spec.name))
            }
            CellInputSource::Child { child, output, none } => match unfolded_state.children(place).get(*child) {
                None => Ok(own(none)),
                Some(&child) => unfolded_state
                    .of_node(place.segment, *output, child)
                    .ok_or_else(|| format!("input '{}': node {child} has left nothing", spec.name)),
            },
        }
    }

    /// Returns the outcome of the node. `row` returns the row of an output. The last step of a loop ends the loop.
    pub(crate) fn outcome(&self, row: impl FnOnce(usize) -> Option<Row>) -> RowOutcome {
        let segment = self.segment();
        if self.is_past_the_end() {
            return RowOutcome { next: Next::On, emitted: false };
        }
        let mut outcome = RowOutcome { next: Next::On, emitted: segment.streams };
        if let Nodes::Decode { until: Some((output, last)), .. } = segment.nodes
            && row(output).and_then(|row| integer(row.as_slice())) == Some(last)
        {
            outcome.next = Next::Done;
            self.unfolded_state.end(self.place);
        }
        outcome
    }

    /// Stores the outputs of the node that are read later, if `row` returns them. All steps of one output have at most
    /// `max_bytes` together.
    ///
    /// # Errors
    /// If an output does not fit with the values stored before.
    pub(crate) fn keep(&self, row: impl Fn(usize) -> Option<Row>, max_bytes: usize) -> Result<(), String> {
        if self.is_past_the_end() {
            return Ok(());
        }
        let role = self.unfolded_state.role(self.place);
        for keep in &self.unfolded_state.programs.keeps[self.place.segment] {
            let Some(row) = row(keep.outputs[role]) else { continue };
            if is_of_steps(self.segment(), keep.outputs[0]) {
                let row = self.own_steps(row)?;
                self.unfolded_state.keep_steps(self.place, keep.outputs[0], &row, max_bytes)?;
            } else {
                self.unfolded_state.keep(self.place, keep.outputs[0], row, max_bytes)?;
            }
        }
        Ok(())
    }

    /// Cuts an output that has the values of several steps back to those of the node.
    fn own_steps(&self, row: Row) -> Result<Row, String> {
        let steps = self.place.steps;
        match row.dims.first() {
            Some(&found) if found >= steps as i64 => Ok(row.first(steps)),
            _ => Err(format!("an output has the dims {:?}, expected at least {steps} steps", row.dims.as_slice())),
        }
    }

    /// Builds the response of a node that streams one, with the values of all steps that ran together, from the rows
    /// that `row` returns; `None` for other nodes.
    pub(crate) fn response(&self, row: impl Fn(usize) -> Option<Row>) -> Option<Response> {
        let (segment, programs) = (self.segment(), &self.unfolded_state.programs);
        if !segment.streams || self.is_past_the_end() {
            return None;
        }
        let (keeps, role) = (&programs.keeps[self.place.segment], self.unfolded_state.role(self.place));
        let outputs = programs.unfolding.outputs.iter().enumerate().map(|(number, emitted)| {
            let emit = &segment.emits[emitted.emit];
            let keep = keeps.iter().find(|keep| keep.outputs[0] == emit.output);
            let row = row(keep.map_or(emit.output, |keep| keep.outputs[role]))?;
            let (mut dims, steps) = (Dims::new(), self.place.steps);
            let row = match (is_of_steps(segment, emit.output), emit.which) {
                (true, EmitRange::All) if segment.runs_backwards() => backwards(&self.own_steps(row).ok()?, steps),
                (true, EmitRange::All) => self.own_steps(row).ok()?,
                (true, EmitRange::Last) => self.own_steps(row).ok()?.part(steps - 1, steps),
                (false, EmitRange::All) => {
                    dims.push(1);
                    row
                }
                (false, EmitRange::Last) => row,
            };
            dims.extend_from_slice(&row.dims);
            Some(self.unfolded_state.output(number, &dims, Bytes::copy_from_slice(row.as_slice())))
        });
        Some(Response { outputs: outputs.collect::<Option<_>>()? })
    }

    /// Whether the node was submitted before an earlier step ended the loop.
    fn is_past_the_end(&self) -> bool {
        self.unfolded_state.is_past_the_end(self.place)
    }
}

/// Returns a row of a tensor along its first axis.
fn row_of(dims: Dims, data: Bytes, number: usize) -> Result<Row, String> {
    let rows = dims.first().and_then(|&rows| usize::try_from(rows).ok()).unwrap_or(0);
    if number >= rows {
        return Err(format!("has no row {number}, but {rows}"));
    }
    Ok(Row::alone(dims, data).part(number, rows))
}

/// Returns the rows of a tensor along its first axis that the steps of a node read, in the order in which they run.
fn rows_of(dims: &Dims, data: &Bytes, place: NodePlace, reversed: bool) -> Result<Row, String> {
    let NodePlace { node, steps, nodes, .. } = place;
    let rows = dims.first().and_then(|&rows| usize::try_from(rows).ok()).unwrap_or(0);
    let first = if reversed { nodes - node - steps } else { node };
    if first + steps > rows {
        return Err(format!("has no row {}, but {rows}", first + steps - 1));
    }
    let len = data.len() / rows;
    let mut own = dims.clone();
    own[0] = steps as i64;
    let own = Row { dims: own, of: data.clone(), at: first * len, len: steps * len };
    Ok(if reversed { backwards(&own, steps) } else { own })
}

/// Returns the rows that a row consists of along its first axis, from the last to the first.
fn backwards(row: &Row, rows: usize) -> Row {
    let bytes: Vec<u8> = row.as_slice().rchunks((row.len / rows).max(1)).flatten().copied().collect();
    Row::alone(row.dims.clone(), bytes.into())
}

/// Encodes a length in the cell's datatype.
pub(crate) fn length(spec: &TensorSpec, length: i64) -> Bytes {
    match spec.datatype {
        DataType::Int32 => Bytes::copy_from_slice(&(length as i32).to_le_bytes()),
        _ => Bytes::copy_from_slice(&length.to_le_bytes()),
    }
}

/// Decodes a single INT32 or INT64.
fn integer(bytes: &[u8]) -> Option<i64> {
    match bytes.len() {
        4 => Some(i64::from(i32::from_le_bytes(bytes.try_into().ok()?))),
        8 => Some(i64::from_le_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}
