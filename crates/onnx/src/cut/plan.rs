//! The analysis that every cut needs: which nodes count, which are recomputed where needed, and which tensors may
//! cross.

use std::collections::HashMap;

use super::{CutError, cost};
use crate::{
    infer::{Facts, Flow, RowDependence, is_repeatable},
    links::{Links, NodeId, TensorId},
    pb,
};

/// Maximum number of suggestions for an unknown name.
const SUGGESTIONS: usize = 3;

/// The role of a node in the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// No output needs it.
    Unneeded,
    /// Depends only on weights and shapes. Recomputed in every stage that needs it.
    Repeated,
    /// Belongs to one stage.
    Own,
    /// Belongs to one stage, and only extra outputs need it.
    Exit,
}

/// An analyzed graph.
#[derive(Debug)]
pub(super) struct Plan<'g> {
    pub graph: &'g pb::GraphProto,
    pub links: &'g Links<'g>,
    pub facts: Facts,
    pub parts: Vec<Part>,
    /// Estimated time of each node that belongs to a stage; 0 for other nodes.
    pub costs: Vec<f64>,
    /// Outputs of the graph, in the graph's order.
    pub outputs: Vec<TensorId>,
    /// Index of each output.
    pub output_at: HashMap<TensorId, usize>,
    /// By tensor: whether it is an output of the graph or an extra output.
    pub is_output: Vec<bool>,
    /// By tensor: whether it may cross stages.
    pub crosses: Vec<bool>,
}

impl<'g> Plan<'g> {
    pub(super) fn new(
        model: &pb::ModelProto,
        graph: &'g pb::GraphProto,
        links: &'g Links<'g>,
        extra: &[String],
    ) -> Result<Self, CutError> {
        if links.order().len() < graph.node.len() {
            return Err(cycle(graph, links));
        }
        let facts = Facts::of(model, graph, links);
        let outputs = graph.output.iter().map(|output| {
            let unknown = || CutError::Unknown { tensor: output.name().to_owned(), nearest: Vec::new() };
            links.find(output.name()).ok_or_else(unknown)
        });
        let outputs = outputs.collect::<Result<Vec<TensorId>, CutError>>()?;
        let mut plan = Self {
            graph,
            links,
            facts,
            parts: Vec::new(),
            costs: Vec::new(),
            is_output: vec![false; links.tensors()],
            crosses: vec![false; links.tensors()],
            output_at: outputs.iter().enumerate().map(|(at, &output)| (output, at)).collect(),
            outputs,
        };
        plan.crosses = (0..links.tensors()).map(|tensor| plan.refusal(tensor).is_none()).collect();
        let extra = extra.iter().map(|name| plan.extra_output(name)).collect::<Result<Vec<TensorId>, _>>()?;
        plan.sort_out(&extra);
        plan.costs = (0..graph.node.len()).map(|id| plan.cost(id)).collect();
        Ok(plan)
    }

    fn extra_output(&self, name: &str) -> Result<TensorId, CutError> {
        let tensor = self.find(name)?;
        let what = "it is no result of a node".to_owned();
        let reason = if self.links.maker(tensor).is_none() { Some(what) } else { self.refusal(tensor) };
        match reason {
            Some(reason) => Err(CutError::Extra { tensor: name.to_owned(), reason }),
            None => Ok(tensor),
        }
    }

    fn sort_out(&mut self, extra: &[TensorId]) {
        let repeated = self.repeated();
        let own: Vec<TensorId> = self.outputs.iter().copied().filter(|tensor| !extra.contains(tensor)).collect();
        // If every output is an exit, the last stage still has to provide them.
        let ends = if own.is_empty() { self.outputs.clone() } else { own };
        let trunk = self.needed_by(&ends);
        let needed = self.needed_by(extra);
        let part = |id: NodeId| match (trunk[id], needed[id]) {
            (false, false) => Part::Unneeded,
            _ if repeated[id] => Part::Repeated,
            (true, _) => Part::Own,
            (false, true) => Part::Exit,
        };
        self.parts = (0..self.graph.node.len()).map(part).collect();
        self.outputs.iter().chain(extra).for_each(|&tensor| self.is_output[tensor] = true);
    }

    /// Finds the nodes whose results depend only on weights and on shapes of tensors that every stage may have.
    fn repeated(&self) -> Vec<bool> {
        let mut repeated = vec![false; self.graph.node.len()];
        let is_input = |tensor: TensorId| self.links.maker(tensor).is_none();
        for &id in self.links.order() {
            let node = &self.graph.node[id];
            let tensors = self.links.node(id);
            let looks_at_shape = matches!(node.op_type(), "Shape" | "Size");
            let has = |tensor: TensorId| match self.links.maker(tensor) {
                Some(maker) if repeated[maker] => true,
                None if self.facts.fact(tensor).flow == Flow::Constant => true,
                _ => looks_at_shape && (is_input(tensor) || self.crosses[tensor]),
            };
            let unmixed = |tensor: &TensorId| !matches!(self.facts.fact(*tensor).flow, Flow::Mixed(_));
            repeated[id] = is_repeatable(node)
                && tensors.reads.iter().all(|&tensor| has(tensor))
                && tensors.results.iter().flatten().all(unmixed);
        }
        repeated
    }

    /// Finds the nodes that tensors depend on.
    pub(super) fn needed_by(&self, tensors: &[TensorId]) -> Vec<bool> {
        let mut needed = vec![false; self.graph.node.len()];
        let mut open: Vec<NodeId> = tensors.iter().filter_map(|&tensor| self.links.maker(tensor)).collect();
        while let Some(id) = open.pop() {
            if !std::mem::replace(&mut needed[id], true) {
                open.extend(self.links.node(id).reads.iter().filter_map(|&tensor| self.links.maker(tensor)));
            }
        }
        needed
    }

    fn cost(&self, id: NodeId) -> f64 {
        match self.parts[id] {
            Part::Own | Part::Exit => cost::of_node(self.graph, self.links, &self.facts, id),
            Part::Unneeded | Part::Repeated => 0.0,
        }
    }

    /// Returns whether a node belongs to one stage.
    pub(super) fn belongs(&self, id: NodeId) -> bool {
        matches!(self.parts[id], Part::Own | Part::Exit)
    }

    /// Returns the node that produces a tensor, if it belongs to one stage. Such a tensor either crosses or stays in
    /// its stage.
    pub(super) fn owner(&self, tensor: TensorId) -> Option<NodeId> {
        self.links.maker(tensor).filter(|&id| self.belongs(id))
    }

    /// Returns for each tensor the last place that reads it, directly or through nodes that are recomputed there.
    /// `place` returns the place of a node that belongs to a stage. Repeated nodes that produce outputs of the graph
    /// count as read at `end`.
    pub(super) fn last_reads(&self, place: impl Fn(NodeId) -> usize, end: usize) -> Vec<Option<usize>> {
        let mut last: Vec<Option<usize>> = vec![None; self.links.tensors()];
        for &id in self.links.order().iter().rev() {
            let at = match self.parts[id] {
                Part::Own | Part::Exit => Some(place(id)),
                Part::Unneeded => None,
                Part::Repeated => {
                    let results = || self.links.node(id).results.iter().flatten();
                    let output = results().any(|&result| self.is_output[result]).then_some(end);
                    results().filter_map(|&result| last[result]).max().max(output)
                }
            };
            for &tensor in &self.links.node(id).reads {
                last[tensor] = last[tensor].max(at);
            }
        }
        last
    }

    /// Returns why a tensor must not cross; `None` if it may.
    pub(super) fn refusal(&self, tensor: TensorId) -> Option<String> {
        let reason = match self.facts.rows(self.graph, self.links, tensor) {
            RowDependence::PerRow if self.facts.fact(tensor).datatype.is_none() => {
                "its element type is not known".to_owned()
            }
            RowDependence::PerRow => return None,
            RowDependence::Moved { axis } => format!("the batch is its axis {axis}, expected axis 0"),
            RowDependence::Grouped { axis } => {
                format!("its axis {axis} is the batch times another length, expected the batch alone on axis 0")
            }
            RowDependence::Constant => {
                "it does not depend on the rows of the request, expected the batch on axis 0".to_owned()
            }
            RowDependence::Count => "it counts the rows, expected the batch on axis 0".to_owned(),
            RowDependence::Mixed { origin, cause } => {
                format!("{origin} {cause}, expected every row to depend on its own request alone")
            }
        };
        Some(reason)
    }

    /// Returns a tensor by name.
    pub(super) fn find(&self, name: &str) -> Result<TensorId, CutError> {
        let unknown = || CutError::Unknown { tensor: name.to_owned(), nearest: self.similar(name) };
        self.links.find(name).ok_or_else(unknown)
    }

    /// Returns names of produced tensors with a similar start and end.
    fn similar(&self, name: &str) -> Vec<String> {
        let made = (0..self.links.tensors()).filter(|&tensor| self.links.maker(tensor).is_some());
        let mut scored: Vec<(usize, &str)> =
            made.map(|tensor| self.links.name(tensor)).map(|own| (likeness(name, own), own)).collect();
        scored.retain(|(score, _)| *score > 0);
        scored.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        scored.into_iter().take(SUGGESTIONS).map(|(_, own)| own.to_owned()).collect()
    }
}

/// Returns the similarity of two names: twice the bytes that they share at both ends, minus the longer length.
fn likeness(name: &str, other: &str) -> usize {
    let begin = name.bytes().zip(other.bytes()).take_while(|(left, right)| left == right).count();
    let rest = name.len().min(other.len()) - begin;
    let end = name.bytes().rev().zip(other.bytes().rev()).take(rest).take_while(|(left, right)| left == right).count();
    (2 * (begin + end)).saturating_sub(name.len().max(other.len()))
}

fn cycle(graph: &pb::GraphProto, links: &Links<'_>) -> CutError {
    let mut ordered = vec![false; graph.node.len()];
    links.order().iter().for_each(|&id| ordered[id] = true);
    let stuck = graph.node.iter().zip(&ordered).find(|(_, ordered)| !**ordered).map(|(node, _)| node);
    let name = stuck.map(|node| match node.name() {
        "" => node.output.first().cloned().unwrap_or_default(),
        name => name.to_owned(),
    });
    CutError::Cycle { node: name.unwrap_or_default() }
}
