//! Validation of finished graphs.

use std::collections::HashSet;

use paternoster_model::{DataType, element_count};

use super::pb;

/// Reasons why a graph cannot be finished.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A node uses a tensor that is not defined before it.
    #[error("node '{node}' uses tensor '{tensor}', which is not defined before it")]
    Undefined {
        /// The node.
        node: String,
        /// The tensor.
        tensor: String,
    },
    /// An output is not defined.
    #[error("output '{tensor}' of graph '{graph}' is not defined")]
    UndefinedOutput {
        /// The graph.
        graph: String,
        /// The tensor.
        tensor: String,
    },
    /// Two inputs, constants or nodes define the same name, in one graph or in a graph and its sub-graph.
    #[error("tensor '{tensor}' of graph '{graph}' is defined twice")]
    Duplicate {
        /// The graph of the second definition.
        graph: String,
        /// The tensor.
        tensor: String,
    },
    /// The length of a constant's data does not match its shape.
    #[error("constant '{tensor}' of shape {dims:?} takes {expected} bytes, but {got} were given")]
    DataLength {
        /// The constant.
        tensor: String,
        /// Its shape.
        dims: Vec<usize>,
        /// Bytes required by the shape and the element type.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// The graph has no output.
    #[error("graph '{graph}' has no output")]
    NoOutput {
        /// The graph.
        graph: String,
    },
}

/// A constant whose data does not fit its shape: detected when it is added, reported when the graph is finished.
#[derive(Clone, Debug)]
pub struct DataLength {
    tensor: String,
    dims: Vec<usize>,
    expected: usize,
    got: usize,
}

impl DataLength {
    /// Returns the mismatch, if there is one.
    pub(super) fn of(tensor: &str, datatype: DataType, dims: &[usize], got: usize) -> Option<Self> {
        let shape: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
        let count = element_count(&shape).unwrap_or(usize::MAX);
        let expected = count.saturating_mul(datatype.size_bytes().unwrap_or(0));
        (expected != got).then(|| Self { tensor: tensor.to_owned(), dims: dims.to_vec(), expected, got })
    }
}

pub(super) fn check(graph: &pb::GraphProto, mismatches: &[DataLength]) -> Result<(), BuildError> {
    if let Some(DataLength { tensor, dims, expected, got }) = mismatches.first().cloned() {
        return Err(BuildError::DataLength { tensor, dims, expected, got });
    }
    check_graph(graph, &HashSet::new())
}

/// Checks a graph. `outer` are the tensors that a sub-graph may use; its own names must differ from them.
fn check_graph(graph: &pb::GraphProto, outer: &HashSet<&str>) -> Result<(), BuildError> {
    let name = || graph.name().to_owned();
    let mut defined = outer.clone();
    let inputs = graph.input.iter().map(|input| input.name());
    let weights = graph.initializer.iter().map(|tensor| tensor.name());
    for tensor in inputs.chain(weights) {
        if !defined.insert(tensor) {
            return Err(BuildError::Duplicate { graph: name(), tensor: tensor.to_owned() });
        }
    }
    for node in &graph.node {
        // An empty name is an omitted optional input.
        let used = node.input.iter().map(String::as_str).filter(|tensor| !tensor.is_empty());
        if let Some(tensor) = used.into_iter().find(|tensor| !defined.contains(tensor)) {
            return Err(BuildError::Undefined { node: node.name().to_owned(), tensor: tensor.to_owned() });
        }
        for inner in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
            check_graph(inner, &defined)?;
        }
        for tensor in &node.output {
            if !defined.insert(tensor) {
                return Err(BuildError::Duplicate { graph: name(), tensor: tensor.clone() });
            }
        }
    }
    if graph.output.is_empty() {
        return Err(BuildError::NoOutput { graph: name() });
    }
    match graph.output.iter().find(|output| !defined.contains(output.name())) {
        Some(output) => Err(BuildError::UndefinedOutput { graph: name(), tensor: output.name().to_owned() }),
        None => Ok(()),
    }
}
