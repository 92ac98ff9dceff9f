//! Unfolds one request: the number of steps of each segment, or the topology that the request provides.

use std::sync::Arc;

use super::{
    CellInputSource, Limit, Nodes, Segment, Tensor, Unfolding,
    topology::{Topology, topology},
};
use crate::{CorrelationId, DataType, TensorSpec};

/// Maximum steps of a segment, which rejects mistaken and malicious requests.
pub const MOST_STEPS: u64 = 1 << 20;

/// One segment of an unfolded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfolded {
    /// A chain of this many nodes, or at most this many if an output ends the chain.
    Steps(u32),
    /// Nodes that depend on their children.
    Tree(Arc<Topology>),
}

impl Unfolded {
    /// Returns the maximum number of nodes.
    pub fn nodes(&self) -> u32 {
        match self {
            Self::Steps(steps) => *steps,
            Self::Tree(topology) => topology.nodes(),
        }
    }
}

/// An input of a request.
#[derive(Clone, Copy, Debug)]
pub struct ProvidedInput<'a> {
    /// Its shape without the batch.
    pub shape: &'a [i64],
    /// Its elements in wire format.
    pub data: &'a [u8],
}

/// Client errors in a request that make it impossible to unfold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfoldError {
    /// The sequence id does not fit the datatype of the cell that reads it.
    #[error("expected a sequence_id that is {datatype}, as the model reads it, but found '{id}'")]
    CorrelationId {
        /// The id.
        id: CorrelationId,
        /// The expected datatype.
        datatype: DataType,
    },
    /// A request of a sequence does not have exactly one row.
    #[error(
        "inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher, but \
         found {rows}"
    )]
    SequenceRows {
        /// Name of the model.
        model: String,
        /// Rows of the request.
        rows: u32,
    },
    /// The request does not have exactly one row.
    #[error("expected a batch of 1, because each request unfolds by itself, but found {0}")]
    Rows(u32),
    /// A segment would have no steps.
    #[error("segment '{segment}' would have no step: expected an input of at least one element along its first axis")]
    Empty {
        /// Name of the segment.
        segment: String,
    },
    /// A segment would have too many steps.
    #[error("segment '{segment}' would have {steps} steps, expected at most {MOST_STEPS}")]
    Long {
        /// Name of the segment.
        segment: String,
        /// Number of steps.
        steps: u64,
    },
    /// An input that determines the number of steps is missing.
    #[error("segment '{segment}' takes its number of steps from inputs that are left out")]
    Missing {
        /// Name of the segment.
        segment: String,
    },
    /// An input has fewer rows than steps read.
    #[error("input '{input}': expected a row for each of {steps} steps, but found {rows}")]
    Short {
        /// Name of the input.
        input: String,
        /// Its rows.
        rows: u64,
        /// Number of steps.
        steps: u64,
    },
    /// An input is empty or too long.
    #[error("input '{input}': expected a length of 1 to {most}, but found {found}")]
    Length {
        /// Name of the input.
        input: String,
        /// Its length.
        found: u64,
        /// Maximum length.
        most: u64,
    },
    /// An input asks for no steps.
    #[error("input '{input}': expected 1 or more, but found {found}")]
    NoSteps {
        /// Name of the input.
        input: String,
        /// Its value.
        found: i64,
    },
    /// The table of children has the wrong shape.
    #[error("input '{input}': expected [nodes, {width}], but found {found:?}")]
    Shape {
        /// Name of the table.
        input: String,
        /// Number of children per node.
        width: usize,
        /// Its shape.
        found: Vec<i64>,
    },
    /// The request has too many nodes.
    #[error("input '{input}': expected at most {most} nodes, but found {nodes}")]
    Nodes {
        /// Name of the table.
        input: String,
        /// Number of nodes.
        nodes: usize,
        /// Maximum nodes.
        most: u32,
    },
    /// A child does not exist.
    #[error("node {node} names the child {child}, but there are {nodes} nodes, counted from 0")]
    UnknownChild {
        /// The parent.
        node: usize,
        /// The child.
        child: i64,
        /// Number of nodes.
        nodes: usize,
    },
    /// The graph has a cycle.
    #[error("node {node} is among its own descendants")]
    Cycle {
        /// A node on the cycle.
        node: usize,
    },
}

impl Unfolding {
    /// Returns the graph of a request with these inputs, which are in the order of the specification.
    ///
    /// # Errors
    /// If the request cannot be unfolded. The error states the expectation.
    pub fn unfold(
        &self,
        specs: &[TensorSpec],
        inputs: &[Option<ProvidedInput<'_>>],
    ) -> Result<Box<[Unfolded]>, UnfoldError> {
        let length = |input: usize| inputs.get(input).copied().flatten().map(|given| given.length());
        for limit in &self.limits {
            let &Limit::Length { input, most } = limit else { continue };
            let found = length(input).unwrap_or(0);
            if !(1..=most).contains(&found) {
                return Err(UnfoldError::Length { input: specs[input].name.clone(), found, most });
            }
        }
        let segments = self.segments.iter().enumerate().map(|(number, segment)| {
            let name = || segment.name.clone();
            let (expression, least) = match &segment.nodes {
                Nodes::Tree { children, max_nodes } => {
                    return tree(*children, *max_nodes, specs, inputs).map(|tree| Unfolded::Tree(Arc::new(tree)));
                }
                Nodes::Stage if segment.has_no_rows(&length) => return Err(UnfoldError::Empty { segment: name() }),
                Nodes::Stage => return Ok(Unfolded::Steps(1)),
                Nodes::Chain { steps, .. } => (steps, 0),
                // The first step always runs.
                Nodes::Decode { max_steps, .. } => (max_steps, 1),
            };
            let steps = expression.value(&length).ok_or_else(|| UnfoldError::Missing { segment: name() })?.max(least);
            let steps = steps.min(self.most_steps(number, specs, inputs)?);
            segment.has_rows(specs, &length, steps)?;
            match steps {
                0 => Err(UnfoldError::Empty { segment: name() }),
                1..=MOST_STEPS => Ok(Unfolded::Steps(steps as u32)),
                _ => Err(UnfoldError::Long { segment: name(), steps }),
            }
        });
        segments.collect()
    }

    /// Returns how many steps of a segment the request allows.
    fn most_steps(
        &self,
        number: usize,
        specs: &[TensorSpec],
        inputs: &[Option<ProvidedInput<'_>>],
    ) -> Result<u64, UnfoldError> {
        let mut most = u64::MAX;
        for limit in &self.limits {
            let &Limit::Steps { segment, input } = limit else { continue };
            let Some(given) = inputs.get(input).copied().flatten().filter(|_| segment == number) else { continue };
            let found = integers(specs[input].datatype, given.data).first().copied().unwrap_or(0);
            match u64::try_from(found) {
                Ok(steps @ 1..) => most = most.min(steps),
                _ => return Err(UnfoldError::NoSteps { input: specs[input].name.clone(), found }),
            }
        }
        Ok(most)
    }
}

impl Segment {
    /// Returns whether an input that is read row by row has no rows.
    fn has_no_rows(&self, length: &dyn Fn(usize) -> Option<u64>) -> bool {
        self.sources()
            .any(|source| matches!(source, CellInputSource::Rows(Tensor::Input(input)) if length(*input) == Some(0)))
    }

    /// Checks that every input read step by step has enough rows.
    fn has_rows(
        &self,
        specs: &[TensorSpec],
        length: &dyn Fn(usize) -> Option<u64>,
        steps: u64,
    ) -> Result<(), UnfoldError> {
        for source in self.sources() {
            let CellInputSource::Step { of: Tensor::Input(input), .. } = source else { continue };
            let rows = length(*input).unwrap_or(0);
            if rows < steps {
                return Err(UnfoldError::Short { input: specs[*input].name.clone(), rows, steps });
            }
        }
        Ok(())
    }
}

impl ProvidedInput<'_> {
    /// Returns the length along the first axis.
    fn length(&self) -> u64 {
        self.shape.first().map_or(1, |&length| u64::try_from(length).unwrap_or(0))
    }
}

/// Returns the tree of a request. `table` is the index of the input with the children of each node.
fn tree(
    table: usize,
    most: u32,
    specs: &[TensorSpec],
    inputs: &[Option<ProvidedInput<'_>>],
) -> Result<Topology, UnfoldError> {
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

/// Decodes elements of INT32 or INT64.
fn integers(datatype: DataType, data: &[u8]) -> Vec<i64> {
    match datatype {
        DataType::Int32 => data.as_chunks().0.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect(),
        _ => data.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
    }
}

#[cfg(test)]
mod tests;
