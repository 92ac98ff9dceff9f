//! Errors of cutting a graph.

use std::fmt;

use super::STAGES_MAX;

/// Reasons why a graph cannot be cut as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// The model contains no graph.
    #[error("the model holds no graph")]
    NoGraph,
    /// The graph has a cycle.
    #[error("node '{node}' waits for its own output, expected a graph without cycles")]
    Cycle {
        /// A node on the cycle; its first output if it has no name.
        node: String,
    },
    /// The number of stages is 0 or above the limit.
    #[error("{asked} stages were requested, expected 1 to {STAGES_MAX}")]
    Count {
        /// Requested stages.
        asked: usize,
    },
    /// The graph has too few places to cut.
    #[error("{asked} stages were requested, but the graph can be cut into at most {possible}")]
    Parts {
        /// Requested stages.
        asked: usize,
        /// Possible stages.
        possible: usize,
    },
    /// The graph has no tensor with this name.
    #[error("the graph has no tensor '{tensor}'{}", Listed("; similar names are", nearest))]
    Unknown {
        /// The requested name.
        tensor: String,
        /// Tensors with similar names.
        nearest: Vec<String>,
    },
    /// The tensor is not produced and read by nodes.
    #[error("cannot cut at '{tensor}': it is {what} of the graph, expected a tensor between nodes")]
    Edge {
        /// The tensor.
        tensor: String,
        /// `an input`, `an output` or `a weight`.
        what: &'static str,
    },
    /// A tensor is listed twice.
    #[error("cannot cut at '{tensor}' twice")]
    Twice {
        /// The tensor.
        tensor: String,
    },
    /// No output depends on the tensor.
    #[error("cannot cut at '{tensor}': no output of the graph needs it")]
    Unneeded {
        /// The tensor.
        tensor: String,
    },
    /// The tensors are not in execution order.
    #[error("cannot cut at '{tensor}' after '{before}', which needs it: expected '{tensor}' first")]
    Order {
        /// The tensor that comes too late.
        tensor: String,
        /// The tensor before it.
        before: String,
    },
    /// The stage between two cuts would be empty.
    #[error("cannot cut at '{tensor}' after '{before}': the same node produces both, so the stage would be empty")]
    Empty {
        /// The later tensor.
        tensor: String,
        /// The tensor before it.
        before: String,
    },
    /// A tensor that would cross the cut is not by rows.
    #[error(
        "cannot cut {place}: tensor '{tensor}' would cross, but {reason}{}",
        Listed("; possible cuts nearby are", nearest)
    )]
    Crossing {
        /// The place of the cut, as a phrase: `at 'x'`.
        place: String,
        /// The tensor that would cross.
        tensor: String,
        /// Why it must not cross.
        reason: String,
        /// Nearby tensors at which a cut is possible.
        nearest: Vec<String>,
    },
    /// An extra output is not by rows.
    #[error("tensor '{tensor}' cannot be an output of its stage: {reason}")]
    Extra {
        /// The tensor.
        tensor: String,
        /// The reason.
        reason: String,
    },
    /// The type of an input or output of the graph is not supported by the protocol.
    #[error("tensor '{tensor}' is {type_name}, expected an element type of the protocol")]
    Datatype {
        /// The tensor.
        tensor: String,
        /// Name of its type in the file.
        type_name: String,
    },
    /// The stages would recompute too many nodes.
    #[error("the stages would hold {nodes} nodes, of which the graph has {own}; expected at most {limit}")]
    Repeats {
        /// Nodes of all stages.
        nodes: usize,
        /// Nodes of the graph.
        own: usize,
        /// Maximum nodes of all stages.
        limit: usize,
    },
}

/// Displays a list of names after a phrase, or nothing if the list is empty.
struct Listed<'a>(&'static str, &'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.1.iter().enumerate() {
            let before = if index == 0 { self.0 } else { "," };
            write!(formatter, "{before} '{name}'")?;
        }
        Ok(())
    }
}
