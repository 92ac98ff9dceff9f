//! The edges of a graph: which node produces each tensor, and which nodes read it.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
};

use super::pb;

/// A node, by its index in the file.
pub(super) type NodeId = usize;
/// A tensor, numbered by first appearance: inputs, initializers, then tensors that nodes produce and read.
pub(super) type TensorId = usize;

/// The edges of a graph.
///
/// A name belongs to its first definition; later definitions are ignored. Names without a definition are tensors
/// without a producer.
#[derive(Debug)]
pub(super) struct Links<'g> {
    names: Vec<&'g str>,
    index: HashMap<&'g str, TensorId>,
    makers: Vec<Option<NodeId>>,
    readers: Vec<Vec<NodeId>>,
    nodes: Vec<NodeLinks>,
    order: Vec<NodeId>,
}

/// The tensors of one node.
#[derive(Debug, Default)]
pub(super) struct NodeLinks {
    /// Operands in order; `None` if omitted.
    pub operands: Vec<Option<TensorId>>,
    /// Results in order; `None` if omitted or if the name has an earlier definition.
    pub results: Vec<Option<TensorId>>,
    /// Every tensor that the node depends on, once: operands, and tensors that its sub-graphs capture.
    pub reads: Vec<TensorId>,
}

impl<'g> Links<'g> {
    pub(super) fn new(graph: &'g pb::GraphProto) -> Self {
        let mut links = Self {
            names: Vec::new(),
            index: HashMap::new(),
            makers: Vec::new(),
            readers: Vec::new(),
            nodes: Vec::with_capacity(graph.node.len()),
            order: Vec::new(),
        };
        let weights =
            graph.initializer.iter().chain(graph.sparse_initializer.iter().filter_map(|it| it.values.as_ref()));
        let given = graph.input.iter().map(|input| input.name()).chain(weights.map(|tensor| tensor.name()));
        // Results first, so that a node that precedes its operands is linked to them as well.
        let mut defined: HashSet<TensorId> = given.map(|name| links.intern(name)).collect();
        for (id, node) in graph.node.iter().enumerate() {
            let mut made = NodeLinks::default();
            for name in &node.output {
                let tensor = links.named(name).filter(|tensor| defined.insert(*tensor));
                if let Some(tensor) = tensor {
                    links.makers[tensor] = Some(id);
                }
                made.results.push(tensor);
            }
            links.nodes.push(made);
        }
        for (id, node) in graph.node.iter().enumerate() {
            links.link_operands(id, node);
        }
        links.order = links.topological();
        links
    }

    fn link_operands(&mut self, id: NodeId, node: &'g pb::NodeProto) {
        let operands: Vec<_> = node.input.iter().map(|name| self.named(name)).collect();
        let mut reads: Vec<TensorId> = operands.iter().flatten().copied().collect();
        for inner in subgraphs(node) {
            reads.extend(captured(inner).into_iter().map(|name| self.intern(name)));
        }
        reads.sort_unstable();
        reads.dedup();
        reads.iter().for_each(|&tensor| self.readers[tensor].push(id));
        (self.nodes[id].operands, self.nodes[id].reads) = (operands, reads);
    }

    fn named(&mut self, name: &'g str) -> Option<TensorId> {
        (!name.is_empty()).then(|| self.intern(name))
    }

    fn intern(&mut self, name: &'g str) -> TensorId {
        let Self { names, index, makers, readers, .. } = self;
        *index.entry(name).or_insert_with(|| {
            names.push(name);
            makers.push(None);
            readers.push(Vec::new());
            names.len() - 1
        })
    }

    /// Returns the nodes in execution order: the file's order, corrected if a node precedes its operands. Of all nodes
    /// that can be next, it takes the first in the file.
    fn topological(&self) -> Vec<NodeId> {
        let makers = |node: &NodeLinks| node.reads.iter().filter(|&&tensor| self.makers[tensor].is_some()).count();
        let mut missing: Vec<usize> = self.nodes.iter().map(makers).collect();
        let ready = missing.iter().enumerate().filter(|(_, count)| **count == 0);
        let mut ready: BinaryHeap<Reverse<NodeId>> = ready.map(|(id, _)| Reverse(id)).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(Reverse(id)) = ready.pop() {
            order.push(id);
            for &tensor in self.nodes[id].results.iter().flatten() {
                for &reader in &self.readers[tensor] {
                    missing[reader] -= 1;
                    if missing[reader] == 0 {
                        ready.push(Reverse(reader));
                    }
                }
            }
        }
        order
    }

    /// Returns the number of tensors.
    pub(super) fn tensors(&self) -> usize {
        self.names.len()
    }

    pub(super) fn name(&self, tensor: TensorId) -> &'g str {
        self.names[tensor]
    }

    pub(super) fn find(&self, name: &str) -> Option<TensorId> {
        self.index.get(name).copied()
    }

    /// Returns the node that produces a tensor; `None` for inputs, initializers and undefined tensors.
    pub(super) fn maker(&self, tensor: TensorId) -> Option<NodeId> {
        self.makers[tensor]
    }

    pub(super) fn node(&self, id: NodeId) -> &NodeLinks {
        &self.nodes[id]
    }

    /// Returns the nodes in an execution order. Nodes on or after a cycle are omitted.
    pub(super) fn order(&self) -> &[NodeId] {
        &self.order
    }
}

/// Iterates over the bodies of a node: branches and loops.
pub(super) fn subgraphs(node: &pb::NodeProto) -> impl Iterator<Item = &pb::GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.as_deref().into_iter().chain(&attribute.graphs))
}

/// Returns names that a sub-graph uses but does not define.
pub(super) fn captured(graph: &pb::GraphProto) -> Vec<&str> {
    let given = graph.input.iter().map(|input| input.name());
    let weights = graph.initializer.iter().map(|tensor| tensor.name());
    let made = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    let defined: HashSet<&str> = given.chain(weights).chain(made).collect();
    let mut used: Vec<&str> = graph.node.iter().flat_map(|node| node.input.iter().map(String::as_str)).collect();
    used.extend(graph.output.iter().map(|output| output.name()));
    used.extend(graph.node.iter().flat_map(subgraphs).flat_map(captured));
    used.retain(|name| !name.is_empty() && !defined.contains(name));
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> pb::NodeProto {
        pb::NodeProto {
            op_type: Some(op.to_owned()),
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: outputs.iter().map(|&name| name.to_owned()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn nodes_come_after_what_they_read_and_else_in_the_files_order() {
        let nodes = vec![node("C", &["b"], &["c"]), node("A", &["x"], &["a"]), node("B", &["a", "a"], &["b"])];
        let graph = pb::GraphProto { node: nodes, ..Default::default() };
        assert_eq!(Links::new(&graph).order(), [1, 2, 0]);
    }

    #[test]
    fn nodes_on_a_cycle_have_no_place_in_the_order() {
        let nodes = vec![node("A", &["b"], &["a"]), node("B", &["a"], &["b"]), node("C", &[], &["c"])];
        let graph = pb::GraphProto { node: nodes, ..Default::default() };
        assert_eq!(Links::new(&graph).order(), [2]);
    }

    #[test]
    fn the_first_definition_of_a_name_counts() {
        let graph = pb::GraphProto { node: vec![node("A", &[], &["t"]), node("B", &[], &["t"])], ..Default::default() };
        let links = Links::new(&graph);
        assert_eq!(links.find("t").and_then(|tensor| links.maker(tensor)), Some(0));
        assert_eq!(links.node(1).results, [None]);
    }

    #[test]
    fn what_a_body_takes_from_outside_counts_as_read() {
        let inner = pb::GraphProto { node: vec![node("Add", &["own", "deep"], &["sum"])], ..Default::default() };
        let mut branch = node("If", &["own"], &["chosen"]);
        branch.attribute.push(pb::AttributeProto { g: Some(Box::new(inner)), ..Default::default() });
        let body = pb::GraphProto { node: vec![node("Relu", &["outer"], &["own"]), branch], ..Default::default() };
        let mut looped = node("Loop", &["times"], &["result"]);
        looped.attribute.push(pb::AttributeProto { g: Some(Box::new(body)), ..Default::default() });
        let graph = pb::GraphProto { node: vec![looped], ..Default::default() };
        let links = Links::new(&graph);
        let reads: HashSet<&str> = links.node(0).reads.iter().map(|&tensor| links.name(tensor)).collect();
        assert_eq!(reads, HashSet::from(["times", "outer", "deep"]));
    }
}
