//! Builds the programs of segments: divides the nodes among them, and has each written.

mod gates;
mod scan;
mod writer;

use std::collections::BTreeSet;

use self::writer::{Given, Writer};
use super::{
    NotOpened, OpenedSegment, SegmentKind,
    assign::{Place, Plan},
    layer::Layer,
    named, refused,
    unify::LENGTHS,
};
use crate::{
    cut::stage::{IR_VERSION_PLAIN_WEIGHTS, frame},
    infer::Flow,
    links::{NodeId, TensorId},
    pb,
};

/// Maximum nodes of all programs: this multiple of the graph's nodes, plus `NODES_ALWAYS`.
const NODES_MAX: usize = 4;
const NODES_ALWAYS: usize = 10_000;

/// How a tensor leaves a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// The batch as axis 0; the other axes as in the graph.
    Whole,
    /// The batch as axis 0, and the steps as axis 1.
    Steps,
}

/// What a segment has to do.
#[derive(Debug, Default)]
struct Content {
    /// Nodes in an execution order.
    nodes: Vec<NodeId>,
    /// Tensors from outside of the graph or from earlier segments, ascending.
    inputs: BTreeSet<TensorId>,
    /// Names of weights.
    weights: BTreeSet<TensorId>,
    /// What it gives to later segments and to the outputs.
    roots: BTreeSet<(TensorId, Form)>,
}

/// Builds all segments; also returns the input that gives the number of steps.
///
/// # Errors
/// Returns why a tensor cannot pass from one segment to another.
pub(super) fn build(model: &pb::ModelProto, plan: &Plan<'_>) -> Result<(Vec<OpenedSegment>, String), NotOpened> {
    let contents = contents(plan)?;
    let frame = pb::ModelProto { ir_version: Some(model.ir_version().max(IR_VERSION_PLAIN_WEIGHTS)), ..frame(model) };
    // Segments that nothing reads are left out.
    let mut numbers = vec![0; contents.len()];
    let mut count = 0;
    for (number, content) in numbers.iter_mut().zip(&contents) {
        *number = count;
        count += usize::from(!content.roots.is_empty());
    }
    let given = Given::new(plan.graph);
    let mut segments = Vec::with_capacity(count);
    for (at, content) in contents.iter().enumerate().filter(|(_, content)| !content.roots.is_empty()) {
        let writer = Writer::new(plan, &given, &numbers, at, content);
        segments.push(writer.segment(&frame)?);
    }
    let is_chain = |segment: &OpenedSegment| segment.kind != SegmentKind::Stage;
    if !segments.iter().any(is_chain) {
        return Err(refused("no output depends on a recurrent layer"));
    }
    Ok((segments, plan.steps_of.clone()))
}

/// Collects what each segment has to do, from the last one to the first.
fn contents(plan: &Plan<'_>) -> Result<Vec<Content>, NotOpened> {
    let mut contents: Vec<Content> = plan.kinds.iter().map(|_| Content::default()).collect();
    for &(output, segment) in &plan.outputs {
        let form = if plan.kinds[segment] == SegmentKind::Stage { Form::Whole } else { form_of(plan, output) };
        contents[segment].roots.insert((output, form));
    }
    let mut ranks = vec![0; plan.graph.node.len()];
    plan.links.order().iter().enumerate().for_each(|(rank, &id)| ranks[id] = rank);
    let limit = plan.graph.node.len().saturating_mul(NODES_MAX).saturating_add(NODES_ALWAYS);
    let mut nodes = 0;
    // The last segment that took each tensor or node.
    let mut taken = vec![usize::MAX; plan.links.tensors()];
    let mut taken_nodes = vec![usize::MAX; plan.graph.node.len()];
    for segment in (0..contents.len()).rev() {
        let is_stage = plan.kinds[segment] == SegmentKind::Stage;
        let mut content = std::mem::take(&mut contents[segment]);
        let mut open: Vec<TensorId> = content.roots.iter().map(|(tensor, _)| *tensor).collect();
        while let Some(tensor) = open.pop() {
            if std::mem::replace(&mut taken[tensor], segment) == segment {
                continue;
            }
            let refuse = |why: &str| refused(format!("{} {why}", named(plan.links, tensor)));
            let Some(maker) = plan.links.maker(tensor) else {
                match (plan.is_input[tensor], is_stage || plan.steps_axis(tensor).is_none_or(|axis| axis == 1)) {
                    (true, true) if is_stage || !matches!(plan.flow(tensor), Flow::Mixed(_)) => {
                        content.inputs.insert(tensor);
                    }
                    (true, _) => return Err(refuse("has the steps on another axis than 1")),
                    (false, _) => {
                        content.weights.insert(tensor);
                    }
                }
                continue;
            };
            match plan.places[maker] {
                Place::In(own) if own == segment => {}
                Place::In(earlier) if earlier < segment => {
                    let from_stage = plan.kinds[earlier] == SegmentKind::Stage;
                    let form = if from_stage && is_stage { Form::Whole } else { form_of(plan, tensor) };
                    if form == Form::Whole && !is_stage && plan.flow(tensor) != Flow::Constant {
                        return Err(refuse("is needed as a whole by what works step by step"));
                    }
                    contents[earlier].roots.insert((tensor, form));
                    content.inputs.insert(tensor);
                    continue;
                }
                Place::Anywhere => {}
                Place::InStages if is_stage => {}
                _ => return Err(refuse("depends on the number of steps in a way that cannot be followed")),
            }
            if std::mem::replace(&mut taken_nodes[maker], segment) == segment {
                continue;
            }
            nodes += 1;
            if nodes > limit {
                return Err(refused(format!("its segments would hold more than {limit} nodes")));
            }
            content.nodes.push(maker);
            open.extend(reads(plan, maker));
        }
        content.nodes.sort_unstable_by_key(|&id| ranks[id]);
        contents[segment] = content;
    }
    Ok(contents)
}

/// Returns what a node reads in its segment.
fn reads(plan: &Plan<'_>, id: NodeId) -> Vec<TensorId> {
    let tensors = plan.links.node(id);
    if plan.picks_last[id] {
        return tensors.operands.first().copied().flatten().into_iter().collect();
    }
    let layer = Layer::of(plan.graph, plan.links, id).filter(|_| plan.runs_along_steps(id));
    match &layer {
        Some(layer @ Layer { scan: Some(scan), .. }) => {
            let starts = layer.starts().flatten().filter(|start| !plan.is_zero(*start));
            let scanned = tensors.operands[scan.states..].iter().flatten().copied();
            starts.chain(scanned).chain(layer.captured(plan.links)).collect()
        }
        Some(Layer { scan: None, .. }) => {
            let operands = tensors.operands.iter().enumerate().filter(|(index, _)| *index != LENGTHS);
            operands.filter_map(|(_, operand)| *operand).collect()
        }
        None => tensors.reads.clone(),
    }
}

fn form_of(plan: &Plan<'_>, tensor: TensorId) -> Form {
    if plan.steps_axis(tensor).is_some() { Form::Steps } else { Form::Whole }
}
