//! Cells: the programs of a version whose requests unfold, and what a request keeps from its first cell to its last
//! (BatchMaker section 4). Tasks of their nodes are the device's: `host` runs them on the CPU.
//!
//! On a host a slot is not a row of a table but what a request holds: the rows that its last tasks wrote, shared with
//! the memory of the task, or copied where a tree would pin them for long. Rows that stay together from task to task
//! are read where they were written. How many requests may hold state at once the core decides, before they board.

mod indices;
mod journey;
mod node;
mod plan;
mod row;
mod sequence;

pub(super) use journey::Journey;
pub(super) use node::{Node, fits};
pub use plan::CellPrograms;
pub(super) use plan::Keep;
pub(super) use row::{ProgramInputs, Row};
pub(super) use sequence::SequenceState;

use crate::{
    executor::InputTensor,
    model::{
        InSequence, ModelSpec,
        unfold::{Given, UnfoldError, Unfolded},
    },
};

/// What a request of these inputs unfolds into.
///
/// # Errors
/// When it does not: its sender is at fault.
pub(super) fn unfold(
    programs: &CellPrograms,
    spec: &ModelSpec,
    rows: u32,
    inputs: &[Option<InputTensor>],
    sequence: Option<&InSequence>,
) -> Result<Box<[Unfolded]>, UnfoldError> {
    if rows != 1 {
        return Err(UnfoldError::Rows(rows));
    }
    if let Some((sequence, datatype)) = sequence.and_then(|own| Some((own, sequence::unreadable(programs, own)?))) {
        return Err(UnfoldError::CorrelationId { id: sequence.id.clone(), datatype });
    }
    let batch_axes = usize::from(spec.has_batch_axis());
    let given = inputs.iter().map(|input| {
        let input = input.as_ref()?;
        Some(Given { shape: &input.shape[batch_axes..], data: &input.data })
    });
    let given: Vec<Option<Given<'_>>> = given.collect();
    programs.unfolding().unfold(&spec.inputs, &given)
}

#[cfg(test)]
mod tests;
