//! One node of a request: gathers its inputs and stores its outputs.

use bytes::Bytes;
use paternoster_batching::{Next, RowOutcome};
use paternoster_model::{
    DataType, Dims, TensorSpec,
    unfold::{NodeType, Nodes, Segment, Source, Start, Which},
};

use super::{
    journey::{Journey, NodePlace},
    plan::CellPrograms,
    row::Row,
};
use crate::Response;

/// A node to run.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) journey: &'a Journey,
    pub(crate) place: NodePlace,
}

impl<'a> Node<'a> {
    /// Returns the node with this number of a request, to run as a cell of `programs`.
    ///
    /// # Errors
    /// If the request has no such node, or if the node belongs to another cell.
    pub(crate) fn of(journey: &'a Journey, number: u32, programs: &CellPrograms, cell: usize) -> Result<Self, String> {
        let place = journey.place(number).ok_or_else(|| format!("a request has no node {number}"))?;
        let own = journey.node_type(place).cell;
        if !journey.programs.runs_as(own, programs, cell) {
            return Err(format!("node {number} of a request is of cell {own}"));
        }
        Ok(Self { journey, place })
    }

    /// Returns the inputs of its type.
    pub(crate) fn node_type(&self) -> &'a NodeType {
        self.journey.node_type(self.place)
    }

    pub(crate) fn segment(&self) -> &'a Segment {
        &self.journey.programs.unfolding.segments[self.place.segment]
    }

    /// Returns an input of the node.
    ///
    /// # Errors
    /// If the input is missing.
    pub(crate) fn input(&self, spec: &TensorSpec, source: &Source) -> Result<Row, String> {
        let Node { journey, place, .. } = *self;
        let own = |bytes: &Bytes| Row::alone(spec.dims.clone(), bytes.clone());
        let whole = |tensor| journey.tensor(tensor).map(|(dims, data)| Row::alone(dims, data));
        if let Some(row) = journey.given(&spec.name) {
            return Ok(row);
        }
        match source {
            Source::Whole(tensor) | Source::Rows(tensor) => whole(*tensor),
            Source::Step { of, reversed } => {
                let (dims, data) = journey.tensor(*of)?;
                let number = if *reversed { place.nodes - 1 - place.node } else { place.node };
                row_of(dims, data, number).map_err(|fault| format!("input '{}' {fault}", spec.name))
            }
            Source::Length(tensor) => {
                let (dims, _) = journey.tensor(*tensor)?;
                Ok(own(&length(spec, dims.first().copied().unwrap_or(1))))
            }
            Source::Grown { output } => {
                let mut dims = Dims::from_slice(&[place.node as i64]);
                dims.extend_from_slice(&spec.dims[1..]);
                let steps = journey.steps(place.segment, *output);
                let steps = steps.ok_or_else(|| format!("input '{}': it has no steps", spec.name))?;
                Ok(Row::alone(dims, steps))
            }
            Source::GrownLength => Ok(own(&length(spec, place.node as i64))),
            Source::Carried { output, .. } if place.node > 0 => {
                let row = journey.carried(place.segment, *output);
                row.ok_or_else(|| format!("input '{}': the step before has left nothing", spec.name))
            }
            Source::Carried { output, start, is_kept } => {
                match (is_kept.then(|| journey.kept(place.segment, *output)).flatten(), start) {
                    (Some(row), _) => Ok(row),
                    (None, Start::Row(row)) => Ok(own(row)),
                    (None, Start::Tensor(tensor)) => whole(*tensor),
                }
            }
            Source::Control { control, no, yes } => Ok(own(if journey.is(*control) { yes } else { no })),
            Source::CorrelationId => {
                let bytes = journey.correlation_id(spec.datatype);
                bytes.map(|bytes| own(&bytes)).ok_or_else(|| format!("input '{}': there is no sequence", spec.name))
            }
            Source::Child { child, output, none } => match journey.children(place).get(*child) {
                None => Ok(own(none)),
                Some(&child) => journey
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
            self.journey.end(self.place);
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
        let role = self.journey.role(self.place);
        for keep in &self.journey.programs.keeps[self.place.segment] {
            if let Some(row) = row(keep.outputs[role]) {
                self.journey.keep(self.place, keep.outputs[0], row, max_bytes)?;
            }
        }
        Ok(())
    }

    /// Builds the response of a node that streams one, from the rows that `row` returns; `None` for other nodes.
    pub(crate) fn response(&self, row: impl Fn(usize) -> Option<Row>) -> Option<Response> {
        let (segment, programs) = (self.segment(), &self.journey.programs);
        if !segment.streams || self.is_past_the_end() {
            return None;
        }
        let (keeps, role) = (&programs.keeps[self.place.segment], self.journey.role(self.place));
        let outputs = programs.unfolding.outputs.iter().map(|emitted| {
            let emit = &segment.emits[emitted.emit];
            let keep = keeps.iter().find(|keep| keep.outputs[0] == emit.output);
            let row = row(keep.map_or(emit.output, |keep| keep.outputs[role]))?;
            let mut dims = Dims::new();
            if emit.which == Which::All {
                dims.push(1);
            }
            dims.extend_from_slice(&row.dims);
            Some(self.journey.output(&dims, Bytes::copy_from_slice(row.as_slice())))
        });
        Some(Response { outputs: outputs.collect::<Option<_>>()? })
    }

    /// Whether the node was submitted before an earlier step ended the loop.
    fn is_past_the_end(&self) -> bool {
        self.journey.is_past_the_end(self.place)
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
