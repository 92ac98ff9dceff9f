//! Why a graph cannot be cut as asked.

use std::fmt;

use super::STAGES_MAX;

/// Why a graph cannot be cut as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// The model holds nothing.
    #[error("the model holds no graph")]
    NoGraph,
    /// Nodes wait for each other.
    #[error("node '{node}' waits for its own output, expected a graph without cycles")]
    Cycle {
        /// One of the nodes, or the one that it makes first if it has no name.
        node: String,
    },
    /// No stages at all, or more than any server could run.
    #[error("{asked} stages were asked for, expected 1 to {STAGES_MAX}")]
    Count {
        /// Stages asked for.
        asked: usize,
    },
    /// There are too few places to cut.
    #[error("{asked} stages were asked for, but the graph can be cut into at most {possible}")]
    Parts {
        /// Stages asked for.
        asked: usize,
        /// Stages possible.
        possible: usize,
    },
    /// The graph makes no such tensor.
    #[error("the graph has no tensor '{tensor}'{}", Listed("; similar names are", nearest))]
    Unknown {
        /// The name asked for.
        tensor: String,
        /// Tensors with similar names.
        nearest: Vec<String>,
    },
    /// The tensor is not made by a node in the middle of the graph.
    #[error("cannot cut at '{tensor}': it is {what} of the graph, expected a tensor between nodes")]
    Edge {
        /// The tensor.
        tensor: String,
        /// `an input`, `an output` or `a weight`.
        what: &'static str,
    },
    /// A tensor is named twice.
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
    /// The tensors are not in the order of execution.
    #[error("cannot cut at '{tensor}' after '{before}', which needs it: expected '{tensor}' first")]
    Order {
        /// The tensor that comes too late.
        tensor: String,
        /// The tensor before it.
        before: String,
    },
    /// Nothing is left to do between two cuts.
    #[error("cannot cut at '{tensor}' after '{before}': the same node makes both, so the stage would be empty")]
    Empty {
        /// The later tensor.
        tensor: String,
        /// The tensor before it.
        before: String,
    },
    /// A tensor that would cross does not come by rows.
    #[error(
        "cannot cut {place}: tensor '{tensor}' would cross, but {reason}{}",
        Listed("; possible cuts nearby are", nearest)
    )]
    Crossing {
        /// Where, as a phrase: `at 'x'`.
        place: String,
        /// The tensor that would cross.
        tensor: String,
        /// Why it may not.
        reason: String,
        /// Tensors nearby at which one may cut.
        nearest: Vec<String>,
    },
    /// An extra output does not come by rows.
    #[error("tensor '{tensor}' cannot be an output of its stage: {reason}")]
    Extra {
        /// The tensor.
        tensor: String,
        /// Why not.
        reason: String,
    },
    /// An input or output of the graph has a type that cannot be served.
    #[error("tensor '{tensor}' is {type_name}, expected an element type of the protocol")]
    Datatype {
        /// The tensor.
        tensor: String,
        /// Its type as the file calls it.
        type_name: String,
    },
    /// Stages would compute too much again.
    #[error("the stages would hold {nodes} nodes, of which the graph has {own}; expected at most {limit}")]
    Repeats {
        /// Nodes of all stages.
        nodes: usize,
        /// Nodes of the graph.
        own: usize,
        /// Most nodes of all stages.
        limit: usize,
    },
}

/// Names after a phrase, or nothing.
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
