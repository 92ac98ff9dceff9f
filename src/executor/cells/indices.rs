//! Which inputs of a request its nodes read as indices, whatever becomes of it.

use super::plan::{CellPrograms, From, Initially};
use crate::{
    executor::indices::{IndexCheck, ReadRows},
    model::unfold::{Count, Nodes, Tensor},
};

impl CellPrograms {
    /// What can be checked of a request before its first node runs. Steps that a loop may leave out refuse nothing.
    pub(in crate::executor) fn index_checks(&self) -> Vec<IndexCheck> {
        let mut checks = Vec::new();
        for (number, segment) in self.segments.iter().enumerate() {
            for (role, types) in segment.types.iter().enumerate() {
                let ranges = self.cells[types.cell].program.index_ranges();
                for (from, range) in types.inputs.iter().zip(ranges) {
                    let (Some(range), Some((input, read))) = (*range, self.reads(number, role, from)) else { continue };
                    checks.push(IndexCheck { input, range, read });
                }
            }
        }
        checks
    }

    /// The request's input that nodes of a type read for certain, and what of it.
    fn reads(&self, segment: usize, role: usize, from: &From) -> Option<(usize, ReadRows)> {
        let is_leaf = role == 0;
        let tensor = match *from {
            From::Step { of: Tensor::Input(input), .. } => {
                return match &self.unfolding.segments[segment].nodes {
                    Nodes::Tree(_) => Some((input, ReadRows::Nodes { segment, leaves: is_leaf })),
                    Nodes::Steps(steps) => match steps.count {
                        Count::One | Count::Exactly(_) => Some((input, ReadRows::Steps(segment))),
                        Count::AtMost { .. } => None,
                    },
                };
            }
            // There is a first step, and a node without children, in every request.
            From::Whole(tensor) | From::Rows(tensor) if is_leaf => tensor,
            From::Carried { start: Initially::Tensor(tensor), kept: None, .. } => tensor,
            _ => return None,
        };
        match tensor {
            Tensor::Input(input) => Some((input, ReadRows::All)),
            Tensor::Emitted(_) => None,
        }
    }
}
