//! The graph of a request's nodes and their children, and its construction from the table in the request.

use smallvec::SmallVec;

use super::UnfoldError;

/// Nodes with their children: a tree or any directed acyclic graph. Nodes without children are leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    children: Vec<SmallVec<[u32; 2]>>,
    parents: Vec<SmallVec<[u32; 1]>>,
    depth: u32,
}

impl Topology {
    /// Creates the graph from the children of each node. Every child must be below the number of nodes, and the graph
    /// must be acyclic.
    pub fn new(children: Vec<SmallVec<[u32; 2]>>) -> Self {
        let mut parents = vec![SmallVec::new(); children.len()];
        for (parent, children) in (0..).zip(&children) {
            for &child in children {
                parents[child as usize].push(parent);
            }
        }
        let depth = depth(&children, &parents);
        Self { children, parents, depth }
    }

    /// Returns the length of the longest path from a leaf, in edges: the number of nodes that must run one after the
    /// other, minus one.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.children.len() as u32
    }

    /// Returns the nodes that a node depends on.
    pub fn children_of(&self, node: u32) -> &[u32] {
        &self.children[node as usize]
    }

    /// Returns the nodes that depend on a node.
    pub fn parents_of(&self, node: u32) -> &[u32] {
        &self.parents[node as usize]
    }

    /// Returns whether no node depends on this one.
    pub fn is_root(&self, node: u32) -> bool {
        self.parents[node as usize].is_empty()
    }

    /// Returns the nodes without children.
    pub fn leaves(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.children).filter(|(_, children)| children.is_empty()).map(|(node, _)| node)
    }
}

fn depth(children: &[SmallVec<[u32; 2]>], parents: &[SmallVec<[u32; 1]>]) -> u32 {
    let mut waits_for: Vec<usize> = children.iter().map(SmallVec::len).collect();
    let mut depths = vec![0; children.len()];
    let mut free: Vec<usize> = (0..children.len()).filter(|&node| waits_for[node] == 0).collect();
    while let Some(node) = free.pop() {
        for &parent in &parents[node] {
            let parent = parent as usize;
            depths[parent] = depths[parent].max(depths[node] + 1);
            waits_for[parent] -= 1;
            if waits_for[parent] == 0 {
                free.push(parent);
            }
        }
    }
    depths.into_iter().max().unwrap_or(0)
}

/// Value for no child.
pub(super) const NO_CHILD: i64 = -1;

/// Creates the graph from a table with `width` children per node.
///
/// # Errors
/// If a child does not exist, or a node is its own descendant.
pub(super) fn topology(children: &[i64], width: usize) -> Result<Topology, UnfoldError> {
    let nodes = children.len().checked_div(width).unwrap_or(0);
    let mut table: Vec<SmallVec<[u32; 2]>> = Vec::with_capacity(nodes);
    for (node, own) in children.chunks_exact(width.max(1)).enumerate() {
        let mut named = SmallVec::new();
        for &child in own.iter().filter(|child| **child != NO_CHILD) {
            let known = u32::try_from(child).ok().filter(|child| (*child as usize) < nodes);
            named.push(known.ok_or(UnfoldError::UnknownChild { node, child, nodes })?);
        }
        table.push(named);
    }
    match in_a_circle(&table) {
        Some(node) => Err(UnfoldError::Cycle { node }),
        None => Ok(Topology::new(table)),
    }
}

/// Returns a node on a cycle, if there is one: repeatedly removes nodes whose children have all been removed, and
/// searches the rest.
fn in_a_circle(children: &[SmallVec<[u32; 2]>]) -> Option<usize> {
    let mut left: Vec<usize> = children.iter().map(SmallVec::len).collect();
    let mut parents: Vec<SmallVec<[u32; 2]>> = vec![SmallVec::new(); children.len()];
    for (parent, own) in (0..).zip(children) {
        own.iter().for_each(|&child| parents[child as usize].push(parent));
    }
    let mut free: Vec<usize> = (0..children.len()).filter(|&node| left[node] == 0).collect();
    while let Some(node) = free.pop() {
        for &parent in &parents[node] {
            left[parent as usize] -= 1;
            if left[parent as usize] == 0 {
                free.push(parent as usize);
            }
        }
    }
    // Every remaining node has a remaining child, so following them leads to a cycle.
    let mut node = left.iter().position(|left| *left > 0)?;
    for _ in 0..children.len() {
        node = children[node].iter().map(|&child| child as usize).find(|&child| left[child] > 0)?;
    }
    Some(node)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal(children: &[i64], width: usize) -> String {
        topology(children, width).expect_err("it is none").to_string()
    }

    #[test]
    fn children_are_named_by_their_numbers() {
        let found = topology(&[1, 2, NO_CHILD, NO_CHILD, NO_CHILD, NO_CHILD], 2).expect("a tree");
        assert_eq!(found, Topology::new(vec![[1, 2].into_iter().collect(), SmallVec::new(), SmallVec::new()]));
    }

    #[test]
    fn what_is_no_graph_is_refused_with_the_node() {
        assert_eq!(
            refusal(&[1, 3, -1, -1, -1, -1], 2),
            "node 0 names the child 3, but there are 3 nodes, counted from 0"
        );
        assert_eq!(refusal(&[1, -5, -1, -1], 2), "node 0 names the child -5, but there are 2 nodes, counted from 0");
        assert_eq!(refusal(&[0], 1), "node 0 is among its own descendants");
        assert_eq!(refusal(&[-1, 2, 3, 1], 1), "node 2 is among its own descendants");
    }

    proptest! {
        #[test]
        fn a_graph_is_refused_exactly_if_it_comes_round(
            children in proptest::collection::vec(-1_i64..12, 24),
        ) {
            let comes_round = (0..12).any(|start| {
                let (mut reached, mut open) = (vec![false; 12], vec![start]);
                while let Some(node) = open.pop() {
                    for &child in children[2 * node..2 * node + 2].iter().filter(|child| **child >= 0) {
                        if !std::mem::replace(&mut reached[child as usize], true) {
                            open.push(child as usize);
                        }
                    }
                }
                reached[start]
            });
            prop_assert_eq!(topology(&children, 2).is_err(), comes_round);
        }
    }
}
