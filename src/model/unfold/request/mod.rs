//! One request unfolded: how many steps each of its segments has, and the topology that it brings.

use std::sync::Arc;

use super::{
    Nodes, Segment, Source, Tensor, Unfolding,
    topology::{Topology, topology},
};
use crate::model::{CorrelationId, DataType, TensorSpec};

/// Most steps of a segment: a client that asks for more is mistaken or means ill.
const MOST_STEPS: u64 = 1 << 20;

/// How a request unfolds in one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfolded {
    /// So many nodes, one after the other; at most so many, where outcomes end them.
    Steps(u32),
    /// Nodes behind their children.
    Tree(Arc<Topology>),
}

impl Unfolded {
    /// Nodes, at most.
    pub fn nodes(&self) -> u32 {
        match self {
            Self::Steps(steps) => *steps,
            Self::Tree(topology) => topology.nodes(),
        }
    }
}

/// An input of a request.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// Its shape without the batch.
    pub shape: &'a [i64],
    /// Its elements in wire form.
    pub data: &'a [u8],
}

/// Why a request cannot be unfolded: its sender is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfoldError {
    /// Its sequence's id does not fit the cell that reads it.
    #[error("expected a sequence_id that is {datatype}, as the model reads it, but found '{id}'")]
    CorrelationId {
        /// The id.
        id: CorrelationId,
        /// What it is read as.
        datatype: DataType,
    },
    /// More or fewer rows than one.
    #[error("expected a batch of 1, because each request unfolds by itself, but found {0}")]
    Rows(u32),
    /// No step.
    #[error("segment '{segment}' would have no step: expected an input of at least one element along its first axis")]
    Empty {
        /// The segment.
        segment: String,
    },
    /// Too many steps.
    #[error("segment '{segment}' would have {steps} steps, expected at most {MOST_STEPS}")]
    Long {
        /// The segment.
        segment: String,
        /// Its steps.
        steps: u64,
    },
    /// An input that says how many steps there are is left out.
    #[error("segment '{segment}' needs inputs that tell its steps, but they are left out")]
    Missing {
        /// The segment.
        segment: String,
    },
    /// An input has fewer rows than there are steps over it.
    #[error("input '{input}': expected a row for each of {steps} steps, but found {rows}")]
    Short {
        /// The input.
        input: String,
        /// Its rows.
        rows: u64,
        /// Steps.
        steps: u64,
    },
    /// The children table has another form.
    #[error("input '{input}': expected [nodes, {width}], but found {found:?}")]
    Shape {
        /// The table.
        input: String,
        /// Children that a node can have.
        width: usize,
        /// Its shape.
        found: Vec<i64>,
    },
    /// More nodes than the model takes.
    #[error("input '{input}': expected at most {most} nodes, but found {nodes}")]
    Nodes {
        /// The table.
        input: String,
        /// Nodes.
        nodes: usize,
        /// The most there may be.
        most: u32,
    },
    /// A child that is not there.
    #[error("node {node} names the child {child}, but there are {nodes} nodes, counted from 0")]
    UnknownChild {
        /// The parent.
        node: usize,
        /// The child.
        child: i64,
        /// Nodes.
        nodes: usize,
    },
    /// A node that depends on itself.
    #[error("node {node} is among its own descendants")]
    Cycle {
        /// One of those that do.
        node: usize,
    },
}

impl Unfolding {
    /// The graph of a request with these inputs, in the order of the specification.
    ///
    /// # Errors
    /// When there is no such graph; the error names what was expected.
    pub fn unfold(&self, specs: &[TensorSpec], inputs: &[Option<Given<'_>>]) -> Result<Box<[Unfolded]>, UnfoldError> {
        let length = |input: usize| inputs.get(input).copied().flatten().map(|given| given.length());
        let segments = self.segments.iter().map(|segment| {
            let name = || segment.name.clone();
            let (expression, least) = match &segment.nodes {
                Nodes::Tree { children, max_nodes } => {
                    return tree(*children, *max_nodes, specs, inputs).map(|tree| Unfolded::Tree(Arc::new(tree)));
                }
                Nodes::Stage if segment.has_no_rows(&length) => return Err(UnfoldError::Empty { segment: name() }),
                Nodes::Stage => return Ok(Unfolded::Steps(1)),
                Nodes::Chain { steps } => (steps, 0),
                // The first step is run in any case.
                Nodes::Decode { max_steps, .. } => (max_steps, 1),
            };
            let steps = expression.value(&length).ok_or_else(|| UnfoldError::Missing { segment: name() })?.max(least);
            segment.has_rows(specs, &length, steps)?;
            match steps {
                0 => Err(UnfoldError::Empty { segment: name() }),
                1..=MOST_STEPS => Ok(Unfolded::Steps(steps as u32)),
                _ => Err(UnfoldError::Long { segment: name(), steps }),
            }
        });
        segments.collect()
    }
}

impl Segment {
    /// Whether an input all of whose rows are read has none.
    fn has_no_rows(&self, length: &dyn Fn(usize) -> Option<u64>) -> bool {
        self.sources().any(|source| matches!(source, Source::Rows(Tensor::Input(input)) if length(*input) == Some(0)))
    }

    /// Whether every input that is gone over has a row for each step.
    fn has_rows(
        &self,
        specs: &[TensorSpec],
        length: &dyn Fn(usize) -> Option<u64>,
        steps: u64,
    ) -> Result<(), UnfoldError> {
        for source in self.sources() {
            let Source::Step { of: Tensor::Input(input), .. } = source else { continue };
            let rows = length(*input).unwrap_or(0);
            if rows < steps {
                return Err(UnfoldError::Short { input: specs[*input].name.clone(), rows, steps });
            }
        }
        Ok(())
    }
}

impl Given<'_> {
    /// Elements along the first axis.
    fn length(&self) -> u64 {
        self.shape.first().map_or(1, |&length| u64::try_from(length).unwrap_or(0))
    }
}

/// The tree of a request, whose input of the number `table` names each node's children.
fn tree(table: usize, most: u32, specs: &[TensorSpec], inputs: &[Option<Given<'_>>]) -> Result<Topology, UnfoldError> {
    let spec = &specs[table];
    let input = || spec.name.clone();
    let given = inputs.get(table).copied().flatten();
    let given = given.ok_or_else(|| UnfoldError::Missing { segment: input() })?;
    let width = spec.dims.get(1).and_then(|&width| usize::try_from(width).ok()).unwrap_or(0);
    let found = || given.shape.to_vec();
    let [_, own] = *given.shape else { return Err(UnfoldError::Shape { input: input(), width, found: found() }) };
    if usize::try_from(own) != Ok(width) || width == 0 {
        return Err(UnfoldError::Shape { input: input(), width, found: found() });
    }
    let children: Vec<i64> = integers(spec.datatype, given.data);
    let nodes = children.len() / width;
    if nodes == 0 {
        return Err(UnfoldError::Empty { segment: input() });
    }
    if nodes > most as usize {
        return Err(UnfoldError::Nodes { input: input(), nodes, most });
    }
    topology(&children, width)
}

/// Elements of INT32 or INT64.
fn integers(datatype: DataType, data: &[u8]) -> Vec<i64> {
    match datatype {
        DataType::Int32 => data.as_chunks().0.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect(),
        _ => data.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
    }
}

#[cfg(test)]
mod tests;
