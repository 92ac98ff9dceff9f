//! Builds the models of stages.

use std::collections::{HashMap, HashSet};

use paternoster_model::DataType;

use super::{
    CutError, StageGraph,
    assign::Stages,
    plan::{Part, Plan},
};
use crate::{
    Model, Port, PortDim,
    links::{NodeId, TensorId},
    pb,
    port::declare,
};

/// Maximum nodes of all stages: this multiple of the graph's nodes, plus `REPEATS_ALWAYS`.
const REPEATS_MAX: usize = 4;
const REPEATS_ALWAYS: usize = 10_000;
/// First version of the file format in which weights need not be declared as inputs.
pub(crate) const IR_VERSION_PLAIN_WEIGHTS: i64 = 4;

/// An input or output of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagePort {
    /// Name of the tensor, the same in all stages.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// Shape, with the batch first for tensors that cross; `None` if an input or output of the graph has an unknown
    /// rank.
    pub dims: Option<Vec<PortDim>>,
    /// The stage that produces it; `None` for inputs of the graph.
    pub made_in: Option<usize>,
    /// The last stage that reads it; `None` if none does.
    pub last_read_in: Option<usize>,
    /// Whether it is an output of the graph.
    pub is_graph_output: bool,
}

/// Content of a stage.
#[derive(Debug, Default)]
struct Content {
    /// Nodes in an execution order.
    nodes: Vec<NodeId>,
    /// Tensors from outside, including weights, ascending.
    reads: Vec<TensorId>,
}

pub(super) fn build(model: &pb::ModelProto, plan: &Plan<'_>, stages: &Stages) -> Result<Vec<StageGraph>, CutError> {
    let contents = contents(plan, stages)?;
    let mut last_read = vec![None; plan.links.tensors()];
    for (stage, content) in contents.iter().enumerate() {
        content.reads.iter().for_each(|&tensor| last_read[tensor] = Some(stage));
    }
    let total: f64 = plan.costs.iter().sum();
    let builder = Builder { plan, stages, last_read, frame: frame(model), given: given(plan) };
    let share = |content: &Content| match content.nodes.iter().map(|&id| plan.costs[id]).sum::<f64>() {
        cost if total > 0.0 => cost / total,
        _ => 1.0 / stages.count as f64,
    };
    let built = contents.iter().enumerate().map(|(stage, content)| builder.stage(stage, content, share(content)));
    built.collect()
}

/// Returns the nodes of each stage, including recomputed ones.
fn contents(plan: &Plan<'_>, stages: &Stages) -> Result<Vec<Content>, CutError> {
    let mut own: Vec<Vec<NodeId>> = vec![Vec::new(); stages.count];
    for &id in plan.links.order().iter().filter(|&&id| plan.belongs(id)) {
        own[stages.of[id]].push(id);
    }
    let limit = plan.graph.node.len().saturating_mul(REPEATS_MAX).saturating_add(REPEATS_ALWAYS);
    let mut rank = vec![0; plan.graph.node.len()];
    plan.links.order().iter().enumerate().for_each(|(at, &id)| rank[id] = at);
    // The last stage that took each node.
    let mut taken = vec![usize::MAX; plan.graph.node.len()];
    let mut nodes = 0;
    let mut contents = Vec::with_capacity(stages.count);
    for (stage, own) in own.into_iter().enumerate() {
        let mut content = Content::default();
        let mut waiting = own;
        if stage + 1 == stages.count {
            for &output in &plan.outputs {
                match plan.links.maker(output) {
                    Some(maker) => waiting.extend(Some(maker).filter(|&id| plan.parts[id] == Part::Repeated)),
                    None => content.reads.push(output),
                }
            }
        }
        while let Some(id) = waiting.pop() {
            if std::mem::replace(&mut taken[id], stage) == stage {
                continue;
            }
            content.nodes.push(id);
            nodes += 1;
            if nodes > limit {
                return Err(CutError::Repeats { nodes, own: plan.graph.node.len(), limit });
            }
            for &tensor in &plan.links.node(id).reads {
                match plan.links.maker(tensor) {
                    Some(maker) if plan.parts[maker] == Part::Repeated => waiting.push(maker),
                    Some(maker) if stages.of[maker] == stage => {}
                    _ => content.reads.push(tensor),
                }
            }
        }
        content.nodes.sort_unstable_by_key(|&id| rank[id]);
        content.reads.sort_unstable();
        content.reads.dedup();
        contents.push(content);
    }
    Ok(contents)
}

/// Returns the model without its graph.
pub(crate) fn frame(model: &pb::ModelProto) -> pb::ModelProto {
    pb::ModelProto {
        ir_version: model.ir_version,
        producer_name: model.producer_name.clone(),
        producer_version: model.producer_version.clone(),
        domain: model.domain.clone(),
        model_version: model.model_version,
        doc_string: None,
        graph: None,
        opset_import: model.opset_import.clone(),
        metadata_props: model.metadata_props.clone(),
        functions: model.functions.clone(),
    }
}

/// How the file defines a tensor that no node produces.
#[derive(Clone, Copy, Debug)]
enum Given {
    /// As an input with this index.
    Input(usize),
    /// As a weight with this index.
    Weight(usize),
    /// As a sparse weight with this index.
    Sparse(usize),
}

fn given(plan: &Plan<'_>) -> HashMap<TensorId, Given> {
    let graph = plan.graph;
    let inputs = graph.input.iter().map(|input| input.name()).enumerate();
    let weights = graph.initializer.iter().map(|weight| weight.name()).enumerate();
    let sparse = graph.sparse_initializer.iter().map(|weight| weight.values.as_ref().map_or("", |it| it.name()));
    // A tensor that is declared both as an input and as a weight counts as a weight.
    let all = inputs
        .map(|(at, name)| (name, Given::Input(at)))
        .chain(weights.map(|(at, name)| (name, Given::Weight(at))))
        .chain(sparse.enumerate().map(|(at, name)| (name, Given::Sparse(at))));
    all.filter_map(|(name, given)| Some((plan.links.find(name)?, given))).collect()
}

struct Builder<'a, 'g> {
    plan: &'a Plan<'g>,
    stages: &'a Stages,
    /// By tensor: the last stage that reads it.
    last_read: Vec<Option<usize>>,
    frame: pb::ModelProto,
    given: HashMap<TensorId, Given>,
}

impl Builder<'_, '_> {
    fn stage(&self, stage: usize, content: &Content, cost: f64) -> Result<StageGraph, CutError> {
        let graph = self.plan.graph;
        let mut made = pb::GraphProto {
            name: Some(format!("{}/stage{stage}", graph.name())),
            node: content.nodes.iter().map(|&id| graph.node[id].clone()).collect(),
            metadata_props: graph.metadata_props.clone(),
            ..Default::default()
        };
        let mut inputs = Vec::new();
        let mut crossing = Vec::new();
        let mut weights = Vec::new();
        for &tensor in &content.reads {
            match self.given.get(&tensor) {
                Some(&Given::Input(at)) => inputs.push((at, tensor)),
                Some(&Given::Weight(at)) => weights.push(at),
                Some(&Given::Sparse(at)) => made.sparse_initializer.push(graph.sparse_initializer[at].clone()),
                None if self.plan.owner(tensor).is_some() => crossing.push(tensor),
                // Undefined: the engine reports the error.
                None => {}
            }
        }
        inputs.sort_unstable();
        weights.sort_unstable();
        made.initializer = weights.iter().map(|&at| graph.initializer[at].clone()).collect();
        let mut stage_inputs = Vec::new();
        for (at, tensor) in inputs {
            made.input.push(graph.input[at].clone());
            stage_inputs.push(self.port(tensor, Some(&graph.input[at]))?);
        }
        for tensor in crossing {
            let port = self.port(tensor, None)?;
            made.input.push(declared(&port));
            stage_inputs.push(port);
        }
        if self.frame.ir_version() < IR_VERSION_PLAIN_WEIGHTS {
            let names: HashSet<&str> = made.initializer.iter().map(|weight| weight.name()).collect();
            made.input.extend(graph.input.iter().filter(|input| names.contains(input.name())).cloned());
        }
        let mut outputs = Vec::new();
        for tensor in self.outputs(stage, content) {
            let file = self.plan.output_at.get(&tensor).map(|&at| &graph.output[at]);
            let port = self.port(tensor, file)?;
            made.output.push(file.cloned().unwrap_or_else(|| declared(&port)));
            outputs.push(port);
        }
        self.annotate(&mut made);
        let model = Model(pb::ModelProto { graph: Some(made), ..self.frame.clone() });
        Ok(StageGraph { model, inputs: stage_inputs, outputs, cost })
    }

    /// Returns the outputs of a stage, in the order of production. Outputs of the graph that belong to no stage are
    /// outputs of the last stage.
    fn outputs(&self, stage: usize, content: &Content) -> Vec<TensorId> {
        let plan = self.plan;
        let is_last = stage + 1 == self.stages.count;
        let leaves = |id: NodeId, tensor: TensorId| {
            if plan.belongs(id) {
                plan.is_output[tensor] || self.last_read[tensor] > Some(stage)
            } else {
                is_last && plan.is_output[tensor]
            }
        };
        let results = |&id: &NodeId| plan.links.node(id).results.iter().flatten().map(move |&tensor| (id, tensor));
        let made = content.nodes.iter().flat_map(results).filter(|&(id, tensor)| leaves(id, tensor));
        let passed = plan.outputs.iter().filter(|&&output| is_last && plan.links.maker(output).is_none());
        made.map(|(_, tensor)| tensor).chain(passed.copied()).collect()
    }

    /// Creates a port. `file` is the declaration of an input or output of the graph.
    fn port(&self, tensor: TensorId, file: Option<&pb::ValueInfoProto>) -> Result<StagePort, CutError> {
        let (links, facts) = (self.plan.links, &self.plan.facts);
        let file = file.map(|info| Port::decode(info.clone()));
        let datatype = file.as_ref().map_or(facts.fact(tensor).datatype, |port| port.datatype);
        let datatype = datatype.ok_or_else(|| CutError::Datatype {
            tensor: links.name(tensor).to_owned(),
            type_name: file.as_ref().map_or("unknown", |port| port.type_name).to_owned(),
        })?;
        Ok(StagePort {
            name: links.name(tensor).to_owned(),
            datatype,
            dims: file.and_then(|port| port.dims).or_else(|| facts.port_dims(tensor)),
            made_in: self.plan.owner(tensor).map(|id| self.stages.of[id]),
            last_read_in: self.last_read[tensor],
            is_graph_output: self.plan.output_at.contains_key(&tensor),
        })
    }

    /// Copies the file's annotations of the tensors of a stage.
    fn annotate(&self, made: &mut pb::GraphProto) {
        let graph = self.plan.graph;
        let outputs: HashSet<&str> = made.output.iter().map(|output| output.name()).collect();
        let results = made.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
        let inner: HashSet<&str> = results.clone().filter(|name| !outputs.contains(name)).collect();
        let weights = made.initializer.iter().map(|weight| weight.name());
        let annotated: HashSet<&str> = results.chain(weights).collect();
        let value_info = graph.value_info.iter().filter(|info| inner.contains(info.name())).cloned().collect();
        let annotations = graph.quantization_annotation.iter();
        let annotations = annotations.filter(|it| annotated.contains(it.tensor_name())).cloned().collect();
        (made.value_info, made.quantization_annotation) = (value_info, annotations);
    }
}

/// Declares a tensor that crosses.
fn declared(port: &StagePort) -> pb::ValueInfoProto {
    declare(&port.name, port.datatype, port.dims.as_deref().unwrap_or_default())
}
