//! Determines which inputs of a request its nodes certainly read as indices, so that they can be checked before the
//! first node runs.

use paternoster_model::unfold::{CellInputSource, Nodes, Start, Tensor};

use super::plan::CellPrograms;
use crate::indices::{IndexCheck, ReadRows};

impl CellPrograms {
    /// Returns the checks that are possible before the first node runs. Steps that a loop may skip are not checked.
    pub(crate) fn index_checks(&self) -> Vec<IndexCheck> {
        let mut checks = Vec::new();
        for (number, segment) in self.unfolding.segments.iter().enumerate() {
            for (role, nodes) in segment.types.iter().enumerate() {
                let ranges = self.cells[nodes.cell].program.index_ranges();
                for (source, range) in nodes.inputs.iter().zip(ranges) {
                    let Some((range, read)) = range.zip(reads(number, &segment.nodes, role == 0, source)) else {
                        continue;
                    };
                    let (input, read) = read;
                    checks.push(IndexCheck { input, range, read });
                }
            }
        }
        checks
    }
}

/// Returns the request's input that nodes of a type certainly read, and which rows of it. In a tree the first type is
/// the leaves' type.
fn reads(segment: usize, nodes: &Nodes, is_first: bool, source: &CellInputSource) -> Option<(usize, ReadRows)> {
    let tensor = match *source {
        CellInputSource::Step { of: Tensor::Input(input), .. } => {
            return match nodes {
                Nodes::Tree { .. } => Some((input, ReadRows::Nodes { segment, leaves: is_first })),
                Nodes::Stage | Nodes::Chain { .. } => Some((input, ReadRows::Steps(segment))),
                Nodes::Decode { .. } => None,
            };
        }
        // Every request has a first step, and a node without children.
        CellInputSource::Whole(tensor) | CellInputSource::Rows(tensor) if is_first => tensor,
        CellInputSource::Carried { start: Start::Tensor(tensor), is_kept: false, .. } => tensor,
        _ => return None,
    };
    match tensor {
        Tensor::Input(input) => Some((input, ReadRows::All)),
        Tensor::Emitted(_) => None,
    }
}
