//! Decides in which segment each node runs.

use std::collections::{HashMap, HashSet};

use super::{
    NotOpened, SEGMENTS_MAX, SegmentKind, constants, label,
    layer::{Layer, is_recurrent},
    refused,
    unify::Unified,
};
use crate::{
    Port, PortDim,
    cut::cost,
    infer::{
        Facts, Flow, is_repeatable,
        size::{Size, Symbol},
    },
    links::{Links, NodeId, TensorId},
    nodes::attribute,
    pb,
};

/// What a chain may spend in each run on what needs only its last states, as a part of the work of 64 steps.
const LAST_SHARE: f64 = 1.0 / 8.0;
/// First operator set with `GatherND` over batches.
const PICKING_SINCE: i64 = 12;

/// Where a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere: no output needs it.
    Unneeded,
    /// In every segment that reads it.
    Anywhere,
    /// In every stage that reads it.
    InStages,
    /// In the segment with this index.
    In(usize),
}

/// An analyzed graph.
#[derive(Debug)]
pub(super) struct Plan<'g> {
    pub unified: &'g Unified,
    pub graph: &'g pb::GraphProto,
    pub links: &'g Links<'g>,
    /// How tensors depend on the rows of a batch.
    pub rows: Facts,
    /// How tensors depend on the steps of a sequence.
    pub steps: Facts,
    pub kinds: Vec<SegmentKind>,
    /// By node.
    pub places: Vec<Place>,
    /// By node: whether it picks the last step of its first operand, in the order of its chain.
    pub picks_last: Vec<bool>,
    /// By tensor: inputs of the graph that a caller gives.
    pub is_input: Vec<bool>,
    /// By tensor: inputs that have the steps, but not as axis 1 alone.
    is_odd: Vec<bool>,
    /// Name of the input whose axis 1 has the steps.
    pub steps_of: String,
    /// By tensor: whether it depends on the contents of inputs.
    pub has_contents: Vec<bool>,
    /// By tensor: the last segment that it needs; `None` if it needs none.
    homes: Vec<Option<usize>>,
    /// By tensor: whether it exists only when all runs of that segment, a chain, have ended.
    pub is_late: Vec<bool>,
    /// By tensor: whether all its elements are known to be the number of steps.
    pub is_length: Vec<bool>,
    /// By chain: the work of 64 steps, and of a run on its last states.
    costs: Vec<(f64, f64)>,
    /// Outputs of the graph, each with the segment that gives it.
    pub outputs: Vec<(TensorId, usize)>,
}

impl<'g> Plan<'g> {
    pub(super) fn new(model: &pb::ModelProto, unified: &'g Unified, links: &'g Links<'g>) -> Result<Self, NotOpened> {
        let graph = &unified.graph;
        let weights: HashSet<&str> = graph.initializer.iter().map(|weight| weight.name()).collect();
        let mut is_input = vec![false; links.tensors()];
        for input in graph.input.iter().filter(|input| !weights.contains(input.name())) {
            let batch = Port::of(input).dims.and_then(|dims| dims.first().cloned());
            if !matches!(batch, Some(PortDim::Symbol(_) | PortDim::Unknown)) {
                return Err(refused(format!("input '{}' has no batch that varies as axis 0", input.name())));
            }
            links.find(input.name()).into_iter().for_each(|tensor| is_input[tensor] = true);
        }
        let rows = Facts::of(model, graph, links);
        let (length, axes, steps_of) = steps(graph, links, &rows, &is_input)?;
        let mut is_odd = vec![false; links.tensors()];
        axes.iter().filter(|(_, axis)| *axis != 1).for_each(|(tensor, _)| is_odd[*tensor] = true);
        let is_length = constants::all_of_length(graph, links, &rows, &length.into());
        let steps = Facts::of_steps(model, graph, links, axes);
        let mut plan = Self {
            unified,
            graph,
            links,
            rows,
            steps,
            kinds: Vec::new(),
            places: vec![Place::Unneeded; graph.node.len()],
            picks_last: vec![false; graph.node.len()],
            has_contents: is_input.clone(),
            is_input,
            is_odd,
            steps_of,
            homes: vec![None; links.tensors()],
            is_late: vec![false; links.tensors()],
            is_length,
            costs: Vec::new(),
            outputs: Vec::new(),
        };
        let needed = plan.needed();
        for &id in links.order() {
            if needed[id] {
                plan.place(id)?;
            }
        }
        plan.postpone();
        plan.place_outputs()?;
        Ok(plan)
    }

    /// Finds the segment that gives each output: its own, or else a stage that only turns its axes.
    fn place_outputs(&mut self) -> Result<(), NotOpened> {
        for output in &self.graph.output {
            let name = output.name();
            let tensor = self.links.find(name);
            let maker = tensor.and_then(|tensor| self.links.maker(tensor));
            let (Some(tensor), Some(maker)) = (tensor, maker) else {
                return Err(refused(format!("output '{name}' is the result of no node")));
            };
            if self.rows_of(tensor) != Some(0) {
                return Err(refused(format!("output '{name}' does not have the batch as axis 0")));
            }
            let any_chain = || self.kinds.iter().position(|kind| *kind != SegmentKind::Stage);
            let home = match self.places[maker] {
                Place::In(segment) => Some(segment),
                Place::Anywhere if self.has_contents[tensor] => any_chain(),
                _ => None,
            };
            let home = home.ok_or_else(|| refused(format!("output '{name}' does not depend on the request")))?;
            let is_chain = self.kinds[home] != SegmentKind::Stage;
            let fits = match self.flow(tensor) {
                Flow::Rows(_) => self.steps_axis(tensor) == Some(1),
                _ => true,
            };
            let home = if is_chain && !fits { self.first(SegmentKind::Stage, Some(home))? } else { home };
            self.outputs.push((tensor, home));
        }
        Ok(())
    }

    /// Returns, for each node, whether an output needs it.
    fn needed(&self) -> Vec<bool> {
        let mut needed = vec![false; self.graph.node.len()];
        let outputs = self.graph.output.iter().filter_map(|output| self.links.find(output.name()));
        let mut open: Vec<TensorId> = outputs.collect();
        while let Some(tensor) = open.pop() {
            let Some(maker) = self.links.maker(tensor) else { continue };
            if !std::mem::replace(&mut needed[maker], true) {
                open.extend(&self.links.node(maker).reads);
            }
        }
        needed
    }

    /// Returns whether a tensor is known to have only zeros.
    pub(super) fn is_zero(&self, tensor: TensorId) -> bool {
        self.unified.zeros.contains(self.links.name(tensor))
    }

    pub(super) fn flow(&self, tensor: TensorId) -> Flow {
        self.steps.fact(tensor).flow
    }

    fn place(&mut self, id: NodeId) -> Result<(), NotOpened> {
        let node = &self.graph.node[id];
        let tensors = self.links.node(id);
        let layer = self.runs_along_steps(id);
        let has_contents = !matches!(node.op_type(), "Shape" | "Size")
            && (tensors.reads.iter().any(|&tensor| self.has_contents[tensor]) || !is_repeatable(node));
        for &result in tensors.results.iter().flatten() {
            self.has_contents[result] = has_contents;
        }
        // The first segment that has all operands while it runs, and the first that has them when its runs have ended.
        let ended = tensors.reads.iter().filter_map(|&tensor| self.homes[tensor]).max();
        let running =
            tensors.reads.iter().filter_map(|&tensor| Some(self.homes[tensor]? + usize::from(self.is_late[tensor])));
        let running = running.max();
        let reads_stage = tensors.reads.iter().any(|&tensor| {
            let by_stages = self.links.maker(tensor).is_some_and(|maker| self.places[maker] == Place::InStages);
            by_stages || self.is_odd[tensor] || matches!(self.flow(tensor), Flow::Mixed(_))
        });
        let needs_stage = reads_stage || (!layer && self.steps.is_barrier(id));
        let results = || tensors.results.iter().flatten();
        let is_last = |plan: &Self| results().all(|&result| plan.flow(result) == Flow::Constant);
        let (place, is_late) = if layer {
            (Place::In(self.chain_of(id, running)?), false)
        } else if let Some(chain) = self.chain_of_picked(id, ended) {
            self.picks_last[id] = true;
            (Place::In(chain), true)
        } else if !has_contents {
            (if needs_stage { Place::InStages } else { Place::Anywhere }, false)
        } else if needs_stage {
            (Place::In(self.first(SegmentKind::Stage, running)?), false)
        } else if is_last(self) {
            match ended {
                None => (Place::Anywhere, false),
                Some(chain) if self.spends(chain, id) => (Place::In(chain), true),
                Some(stage) if self.kinds.get(stage) == Some(&SegmentKind::Stage) => (Place::In(stage), false),
                Some(_) => (Place::In(self.first(SegmentKind::Stage, running)?), false),
            }
        } else {
            match running {
                None => (Place::Anywhere, false),
                Some(segment) if segment < self.kinds.len() => (Place::In(segment), false),
                Some(_) => (Place::In(self.first(SegmentKind::Stage, running)?), false),
            }
        };
        self.places[id] = place;
        for (index, result) in tensors.results.iter().enumerate() {
            let Some(result) = *result else { continue };
            (self.homes[result], self.is_late[result]) = match place {
                Place::In(segment) => (Some(segment), is_late || (layer && self.is_last_state(id, index))),
                _ => (running, false),
            };
        }
        Ok(())
    }

    /// Returns the first segment of a kind that is not before `from`. Adds one if there is none.
    fn first(&mut self, kind: SegmentKind, from: Option<usize>) -> Result<usize, NotOpened> {
        let from = from.unwrap_or(0);
        if let Some(at) = (from..self.kinds.len()).find(|&at| self.kinds[at] == kind) {
            return Ok(at);
        }
        if self.kinds.len() == SEGMENTS_MAX {
            return Err(refused(format!("it would take more than {SEGMENTS_MAX} segments")));
        }
        self.kinds.push(kind);
        self.costs.push((0.0, 0.0));
        Ok(self.kinds.len() - 1)
    }

    /// Returns whether a node is a recurrent layer over the steps.
    pub(super) fn runs_along_steps(&self, id: NodeId) -> bool {
        let layer = Layer::of(self.graph, self.links, id);
        let sequences = layer.and_then(|layer| layer.sequences(&self.steps)).unwrap_or_default();
        sequences.iter().any(|(tensor, axis)| is_exact(&self.steps, *tensor, *axis))
    }

    /// Returns whether a result of a layer is its state after the last step.
    fn is_last_state(&self, id: NodeId, result: usize) -> bool {
        Layer::of(self.graph, self.links, id).is_some_and(|layer| layer.is_last_state(result))
    }

    /// Returns the axis of a tensor that is the batch, if its rows depend on nothing else.
    pub(super) fn rows_of(&self, tensor: TensorId) -> Option<usize> {
        self.rows.fact(tensor).rows().filter(|&axis| is_exact(&self.rows, tensor, axis))
    }

    /// Returns the axis of a tensor that has the steps.
    pub(super) fn steps_axis(&self, tensor: TensorId) -> Option<usize> {
        self.steps.fact(tensor).rows().filter(|&axis| is_exact(&self.steps, tensor, axis))
    }

    /// Returns the chain of a layer.
    fn chain_of(&mut self, id: NodeId, from: Option<usize>) -> Result<usize, NotOpened> {
        let reverse = self.check(id)?;
        let chain = self.first(SegmentKind::Chain { reverse }, from)?;
        self.costs[chain].0 += cost::of_node(self.graph, self.links, &self.rows, id);
        Ok(chain)
    }

    /// Returns the chain of a node that picks the step that this chain runs last.
    fn chain_of_picked(&self, id: NodeId, home: Option<usize>) -> Option<usize> {
        let node = &self.graph.node[id];
        let data = self.links.node(id).operands.first().copied().flatten()?;
        let chain = home.filter(|home| self.homes[data] == Some(*home))?;
        let SegmentKind::Chain { reverse } = *self.kinds.get(chain)? else { return None };
        let Flow::Rows(axis) = self.flow(data) else { return None };
        if self.unified.opset < PICKING_SINCE || self.rows_of(data).is_none() || self.steps_axis(data).is_none() {
            return None;
        }
        let numbers = |index: usize| constants::numbers(self.links, &self.steps, id, index);
        let rank = self.steps.fact(data).dims.as_ref()?.len() as i64;
        let is_axis = |given: i64| (if given < 0 { given + rank } else { given }) == axis as i64;
        let (picked, along) = match node.op_type() {
            "Gather" => {
                let [index] = numbers(1)?[..] else { return None };
                (index, attribute(node, "axis").map_or(0, |attribute| attribute.i()))
            }
            "Slice" => {
                let ([start], [end], [along]) = (&numbers(1)?[..], &numbers(2)?[..], &numbers(3)?[..]) else {
                    return None;
                };
                let is_one = match *start {
                    -1 => *end >= i64::from(i32::MAX),
                    0 => *end == 1,
                    _ => false,
                };
                let has_steps = self.links.node(id).operands.get(4).copied().flatten().is_some();
                if !is_one || (has_steps && numbers(4)? != [1]) {
                    return None;
                }
                (*start, *along)
            }
            _ => return None,
        };
        (is_axis(along) && picked == if reverse { 0 } else { -1 }).then_some(chain)
    }

    /// Returns whether a chain should run a node in each of its runs, on its last states, and counts that.
    fn spends(&mut self, chain: usize, id: NodeId) -> bool {
        if !matches!(self.kinds.get(chain), Some(SegmentKind::Chain { .. })) {
            return false;
        }
        let cost = cost::of_node(self.graph, self.links, &self.rows, id);
        let (steps, spent) = &mut self.costs[chain];
        let fits = *spent + cost <= *steps * LAST_SHARE;
        *spent += if fits { cost } else { 0.0 };
        fits
    }

    /// Moves what only a later stage needs there, so that fewer stages are left.
    fn postpone(&mut self) {
        let outputs: HashSet<&str> = self.graph.output.iter().map(|output| output.name()).collect();
        // By tensor: the first segment that reads it.
        let mut first: Vec<usize> = vec![usize::MAX; self.links.tensors()];
        for &id in self.links.order().iter().rev() {
            let tensors = self.links.node(id);
            let wanted = tensors.results.iter().flatten().map(|&result| first[result]).min().unwrap_or(usize::MAX);
            let place = match self.places[id] {
                Place::Unneeded => continue,
                Place::Anywhere | Place::InStages => wanted,
                Place::In(segment) => {
                    let is_stage = |at: usize| self.kinds.get(at) == Some(&SegmentKind::Stage);
                    let mut results = tensors.results.iter().flatten();
                    let is_output = results.any(|&result| outputs.contains(self.links.name(result)));
                    if is_stage(segment) && is_stage(wanted) && !is_output {
                        self.places[id] = Place::In(wanted);
                        tensors.results.iter().flatten().for_each(|&result| self.homes[result] = Some(wanted));
                        wanted
                    } else {
                        segment
                    }
                }
            };
            tensors.reads.iter().for_each(|&tensor| first[tensor] = first[tensor].min(place));
        }
    }
}

/// Returns whether an axis of a tensor has exactly the rows that are followed.
fn is_exact(facts: &Facts, tensor: TensorId, axis: usize) -> bool {
    let dims = facts.fact(tensor).dims.as_ref();
    dims.and_then(|dims| dims.get(axis)?.as_ref()).is_some_and(Size::is_batch)
}

/// The length of a sequence, the axes of inputs that have it, and the name of an input whose axis 1 does.
type Sequence = (Symbol, HashSet<(TensorId, usize)>, String);

/// Returns the length of the sequence, the axes of inputs that have it, and an input whose axis 1 does.
fn steps(graph: &pb::GraphProto, links: &Links<'_>, rows: &Facts, is_input: &[bool]) -> Result<Sequence, NotOpened> {
    let mut reason = None;
    let mut is_over_batch = false;
    let all = axes(links, rows, is_input);
    for &id in links.order() {
        let node = &graph.node[id];
        if !is_recurrent(node) {
            continue;
        }
        let name = label(node);
        let Some(layer) = Layer::of(graph, links, id) else {
            reason.get_or_insert(format!("{name} has a form that is not understood"));
            continue;
        };
        let sequence = layer.sequences(rows).unwrap_or_default().first().copied();
        let length = sequence.and_then(|(input, axis)| rows.fact(input).dims.as_ref()?.get(axis)?.clone());
        let refusal = match length {
            None => format!("{name} runs over an axis of unknown length"),
            Some(length) if length.known().is_some() => format!("{name} runs over an axis of fixed length"),
            Some(length) if length.is_batch() => {
                is_over_batch = true;
                format!("{name} runs over axis 0 of the inputs, expected the batch there")
            }
            Some(length) => {
                let axes = length.symbol().and_then(|symbol| Some((symbol, all.get(&symbol)?)));
                let first = axes.and_then(|(symbol, axes)| {
                    let (first, _) = axes.iter().find(|(_, axis)| *axis == 1)?;
                    Some((symbol, axes.iter().copied().collect(), links.name(*first).to_owned()))
                });
                match first {
                    Some(first) => return Ok(first),
                    None => format!("{name} runs over an axis that is not axis 1 of an input"),
                }
            }
        };
        reason.get_or_insert(refusal);
    }
    let reason = reason.unwrap_or_else(|| "no recurrent layer can be reached".to_owned());
    Err(if is_over_batch { NotOpened::OverBatch(reason) } else { refused(reason) })
}

/// Returns the axes of inputs, other than axis 0, by their lengths.
fn axes(links: &Links<'_>, rows: &Facts, is_input: &[bool]) -> HashMap<Symbol, Vec<(TensorId, usize)>> {
    let mut all: HashMap<Symbol, Vec<(TensorId, usize)>> = HashMap::new();
    for tensor in (0..links.tensors()).filter(|&tensor| is_input[tensor]) {
        let dims = rows.fact(tensor).dims.as_deref().unwrap_or_default();
        for (axis, dim) in dims.iter().enumerate().skip(1) {
            if let Some(symbol) = dim.as_ref().and_then(Size::symbol) {
                all.entry(symbol).or_default().push((tensor, axis));
            }
        }
    }
    all
}
