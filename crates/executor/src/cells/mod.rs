//! Cells: the programs of a version whose requests unfold, and the data of a request between its cells (BatchMaker
//! section 4). `host` and `cuda` run the tasks.
//!
//! On the CPU a slot is not a row of a table. The request itself holds the rows that its last tasks wrote: shared with
//! the task's memory, or copied where a tree would hold them for long. Rows that stay together from task to task are
//! read in place. The core limits how many requests hold state at once.

mod indices;
mod memory;
mod node;
mod plan;
mod row;
mod sequence;
mod unfolded_state;

pub(crate) use memory::{StateBudget, UnfoldedMemory};
pub(super) use node::{Node, length};
use paternoster_model::{
    InSequence, InputTensor, ModelSpec,
    unfold::{ProvidedInput, UnfoldError, Unfolded},
};
pub use plan::CellPrograms;
pub(super) use plan::Keep;
pub(super) use row::{ProgramInputs, Row, fits};
pub(super) use sequence::SequenceState;
pub(super) use unfolded_state::{NodePlace, UnfoldedState};

/// Computes the graph that a request with these inputs unfolds into.
///
/// # Errors
/// If the inputs do not determine a graph; the client is at fault.
pub(super) fn unfold(
    programs: &CellPrograms,
    spec: &ModelSpec,
    rows: u32,
    inputs: &[Option<InputTensor>],
    sequence: Option<&InSequence>,
) -> Result<Box<[Unfolded]>, UnfoldError> {
    if rows != 1 {
        let of_sequence = || UnfoldError::SequenceRows { model: spec.name.clone(), rows };
        return Err(sequence.map_or(UnfoldError::Rows(rows), |_| of_sequence()));
    }
    if let Some((sequence, datatype)) = sequence.and_then(|own| Some((own, sequence::unreadable(programs, own)?))) {
        return Err(UnfoldError::CorrelationId { id: sequence.id.clone(), datatype });
    }
    let batch_axes = usize::from(spec.has_batch_axis());
    let given = inputs.iter().map(|input| {
        let input = input.as_ref()?;
        Some(ProvidedInput { shape: &input.shape[batch_axes..], data: &input.data })
    });
    let given: Vec<Option<ProvidedInput<'_>>> = given.collect();
    programs.unfolding().unfold(&spec.inputs, &given)
}

#[cfg(test)]
mod tests;
