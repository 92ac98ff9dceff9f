//! Opens the recurrent layers of a graph (`LSTM`, `GRU`, `RNN`, and `Scan` with states) over an axis that varies: finds
//! what of the graph works step by step, and builds programs that run any number of steps at a time (BatchMaker,
//! section 3.1, where a cell is one step).
//!
//! The result is a list of segments that run one after another. A *chain* runs the recurrent layers of one direction,
//! and what else works step by step on their operands or results. Its states come in and go out, so that the steps of a
//! sequence may be divided into runs anywhere, and rows of a run may have different numbers of steps. A *stage* runs
//! once on whole tensors: what needs all steps at once. What depends only on weights, shapes and the inputs of the
//! graph, step by step, is recomputed in every segment that reads it.
//!
//! Nothing here is a guess: a graph of which any part is not understood is refused, with the reason. Weights are shared
//! with the model that is opened, not copied.

mod assign;
mod check;
mod constants;
mod layer;
mod program;
#[cfg(test)]
mod tests;
mod unify;

use std::fmt;

use self::layer::is_recurrent;
use super::{
    Model, SealedModel,
    links::{Links, TensorId, subgraphs},
    pb,
};
use crate::outline::outline;

/// Maximum number of segments of an opened model.
pub const SEGMENTS_MAX: usize = 32;

/// A model whose recurrent layers were opened.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The segments, in the order in which they run.
    pub segments: Vec<Segment>,
    /// The input of the graph whose length along axis 1 is the number of steps.
    pub steps_of: String,
    /// How many recurrent layers there are; a bidirectional one counts once.
    pub layers: usize,
}

/// One segment of an opened model.
#[derive(Clone, Debug)]
pub struct Segment {
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
}

impl fmt::Display for NotOpened {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRecurrent => formatter.write_str("the graph has no LSTM, GRU, RNN or Scan with states"),
            Self::Refused(reason) => formatter.write_str(reason),
        }
    }
}

fn refused(reason: impl Into<String>) -> NotOpened {
    NotOpened::Refused(reason.into())
}

/// Opens a model.
///
/// # Errors
/// Returns why not.
pub fn open(model: &Model) -> Result<Opened, NotOpened> {
    let graph = model.0.graph.as_ref().ok_or(NotOpened::NotRecurrent)?;
    let layers = graph.node.iter().filter(|node| is_recurrent(node)).count();
    if layers == 0 {
        return Err(match inner_layer(graph) {
            Some(operator) => refused(format!("its recurrent layers are in the body of a {operator}")),
            None => NotOpened::NotRecurrent,
        });
    }
    if Links::new(graph).order().len() < graph.node.len() {
        return Err(refused("nodes of the graph wait for their own outputs"));
    }
    let unified = unify::unified(&model.0, graph)?;
    let links = Links::new(&unified.graph);
    let plan = assign::Plan::new(&model.0, &unified, &links)?;
    let (segments, steps_of) = program::build(&model.0, &plan)?;
    Ok(Opened { segments, steps_of, layers })
}

/// Returns whether a serialized model has recurrent layers. Reads no weights.
pub fn is_recurrent_model(model: &[u8]) -> bool {
    let graph = outline(model).and_then(|model| model.0.graph);
    graph.is_some_and(|graph| graph.node.iter().any(is_recurrent) || inner_layer(&graph).is_some())
}

/// Opens a sealed model; the programs use the same files of weights.
///
/// # Errors
/// Returns why not.
pub fn open_sealed(model: &SealedModel) -> Result<(Opened, Vec<SealedModel>), NotOpened> {
    let opened = open(model.model())?;
    let programs = opened.segments.iter().map(|segment| model.part(segment.model.clone())).collect();
    Ok((opened, programs))
}

/// Returns the operator in whose body there is a recurrent layer.
fn inner_layer(graph: &pb::GraphProto) -> Option<&str> {
    let holds = |node: &&pb::NodeProto| {
        subgraphs(node).any(|inner| inner.node.iter().any(is_recurrent) || inner_layer(inner).is_some())
    };
    graph.node.iter().find(holds).map(pb::NodeProto::op_type)
}

/// Returns the label of a node in messages: its name, or else its first output.
fn label(node: &pb::NodeProto) -> String {
    let name = match node.name() {
        "" => node.output.iter().find(|name| !name.is_empty()).map_or("", String::as_str),
        name => name,
    };
    format!("{} '{name}'", node.op_type())
}

/// A tensor of one program, in messages.
fn named(links: &Links<'_>, tensor: TensorId) -> String {
    format!("tensor '{}'", links.name(tensor))
}
