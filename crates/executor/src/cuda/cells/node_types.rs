//! The node types of a cell, and the axes of its tensors.

use paternoster_model::{TensorSpec, unfold::NodeType};

use crate::cells::CellPrograms;

/// Returns the axis of the cell that the first axis of a tensor is.
pub(super) fn axis_of(spec: &TensorSpec) -> Option<usize> {
    spec.symbols.first().copied().flatten().map(|symbol| usize::from(symbol.0))
}

/// Returns the node types that run as a cell, each with its segment and its place there.
pub(super) fn types_of(programs: &CellPrograms, cell: usize) -> impl Iterator<Item = (usize, usize, &NodeType)> {
    let segments = programs.unfolding.segments.iter().enumerate();
    segments
        .flat_map(|(number, segment)| segment.types.iter().enumerate().map(move |(role, own)| (number, role, own)))
        .filter(move |(.., own)| own.cell == cell)
}
