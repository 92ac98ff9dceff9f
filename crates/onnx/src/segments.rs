//! What an opened model consists of: segments that run one after another, each with a program of its own.

use std::fmt;

use super::Model;

/// Maximum number of segments of an opened model.
pub const SEGMENTS_MAX: usize = 32;

/// One segment of an opened model.
#[derive(Clone, Debug)]
pub struct OpenedSegment {
    /// Its name: `chain1`, `stage2`, with its number from 1.
    pub name: String,
    /// How it runs.
    pub kind: SegmentKind,
    /// Its program. All inputs and outputs have the batch as axis 0; in a chain, those that are steps or results of
    /// steps have the steps as axis 1.
    pub model: Model,
    /// The inputs of the program in its order.
    pub inputs: Vec<SegmentInput>,
    /// What it passes to later segments, or to the outputs of the graph, by the names of the graph's tensors.
    pub emits: Vec<SegmentEmit>,
    /// Names of its nodes that do the main work, for messages.
    pub layers: Vec<String>,
}

/// How a segment runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Once, on whole tensors.
    Stage,
    /// Over the steps, in any number of runs.
    Chain {
        /// From the last step to the first. The program gets the steps in the order in which they run.
        reverse: bool,
    },
    /// One step after another, each of which reads what the one before gave.
    Decode,
}

/// An input of a segment's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInput {
    /// Its name.
    pub name: String,
    /// Where its value comes from.
    pub source: SegmentSource,
}

/// Where the value of a program's input comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentSource {
    /// The steps of a tensor.
    Steps(SegmentTensor),
    /// A whole tensor.
    Whole(SegmentTensor),
    /// A state: the output with this name of the run before, and zeros at first.
    State(String),
    /// The number of steps of each row, INT32.
    Lengths,
    /// The length of a tensor along its first axis without the batch, INT64.
    Length(SegmentTensor),
    /// In a loop: the output with this name of the step before, and at first a tensor.
    Fed {
        /// The output.
        output: String,
        /// The tensor that the first step reads.
        start: SegmentTensor,
    },
    /// In a loop: the outputs with this name of all steps before, along axis 1.
    Grown(String),
    /// In a loop: the number of steps before, INT64.
    GrownLength,
}

/// A tensor that a segment reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentTensor {
    /// An input of the graph.
    Input(String),
    /// A tensor that an earlier segment emits.
    Emitted {
        /// Index of the segment.
        segment: usize,
        /// Name of the tensor.
        name: String,
    },
}

/// A tensor that a segment emits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEmit {
    /// Name of the tensor in the graph.
    pub name: String,
    /// The program's output.
    pub output: String,
    /// Whether it has an entry for each step; else it is the value after the last run.
    pub is_by_steps: bool,
}

/// Why a model was not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// It has no recurrent layer.
    NotRecurrent,
    /// It has some, but a part of the graph is not understood. The reason is a sentence without a full stop.
    Refused(String),
    /// It has some, but they run over axis 0 of the inputs, where requests would be joined. The reason is a sentence
    /// without a full stop.
    OverBatch(String),
}

impl NotOpened {
    /// Returns the reason with the names that nodes have in the file, where some were made with a prefix.
    pub(super) fn in_graph(self, prefix: &str) -> Self {
        let plain = |reason: String| reason.replace(&format!("{prefix}/"), "");
        match self {
            Self::NotRecurrent => self,
            Self::Refused(reason) => Self::Refused(plain(reason)),
            Self::OverBatch(reason) => Self::OverBatch(plain(reason)),
        }
    }
}

impl std::error::Error for NotOpened {}

impl fmt::Display for NotOpened {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRecurrent => formatter.write_str("the graph has no LSTM, GRU, RNN or Scan with states"),
            Self::Refused(reason) | Self::OverBatch(reason) => formatter.write_str(reason),
        }
    }
}

/// Returns a refusal to open a model.
pub(super) fn refused(reason: impl Into<String>) -> NotOpened {
    NotOpened::Refused(reason.into())
}
