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

use self::layer::is_recurrent;
use super::{
    Model, SealedModel,
    links::{Links, TensorId, subgraphs},
    outline::outline,
    pb,
    segments::{NotOpened, OpenedSegment, SEGMENTS_MAX, SegmentKind, refused},
};

/// A model whose recurrent layers were opened.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The segments, in the order in which they run.
    pub segments: Vec<OpenedSegment>,
    /// The input of the graph whose length along axis 1 is the number of steps.
    pub steps_of: String,
    /// How many recurrent layers there are; a bidirectional one counts once.
    pub layers: usize,
}

/// Opens a model.
///
/// # Errors
/// Returns why not.
pub fn open(model: &Model) -> Result<Opened, NotOpened> {
    let graph = model.0.graph.as_ref().ok_or(NotOpened::NotRecurrent)?;
    let layers = graph.node.iter().filter(|node| is_recurrent(node)).count();
    if layers == 0 {
        if let Some(node) = graph.node.iter().find(|node| is_quantized(node)) {
            return Err(refused(format!("{} is not opened, because it quantizes all steps together", label(node))));
        }
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
    let built = assign::Plan::new(&model.0, &unified, &links).and_then(|plan| program::build(&model.0, &plan));
    let (segments, steps_of) = built.map_err(|reason| reason.in_graph(&unified.prefix))?;
    Ok(Opened { segments, steps_of, layers })
}

/// Returns whether the recurrent layers of a serialized model run over axis 0 of its inputs, so that requests joined
/// there would be taken for one sequence. Reads no weights.
pub fn runs_over_batch(model: &[u8]) -> bool {
    outline(model).is_some_and(|model| matches!(open(&model), Err(NotOpened::OverBatch(_))))
}

/// Returns whether a serialized model has recurrent layers. Reads no weights.
pub fn is_recurrent_model(model: &[u8]) -> bool {
    let graph = outline(model).and_then(|model| model.0.graph);
    let is_any = |node: &pb::NodeProto| is_recurrent(node) || is_quantized(node);
    graph.is_some_and(|graph| graph.node.iter().any(is_any) || inner_layer(&graph).is_some())
}

/// Returns whether a node is a recurrent layer of ONNX Runtime's own, whose scales depend on all steps of a run.
fn is_quantized(node: &pb::NodeProto) -> bool {
    node.op_type() == "DynamicQuantizeLSTM"
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
