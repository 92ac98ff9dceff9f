//! The nodes of one subgraph: which are ready, and what becomes ready when one is submitted.

use std::{collections::VecDeque, sync::Arc};

use smallvec::SmallVec;

/// Nodes with their children: a tree, or any directed graph without cycles. Nodes without children are leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    children: Vec<SmallVec<[u32; 2]>>,
    parents: Vec<SmallVec<[u32; 1]>>,
    depth: u32,
}

impl Topology {
    /// The nodes' children, by node; each is below the number of nodes, and no node is among its own descendants.
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

    /// Nodes that must run one after the other beyond the first: the longest way from a leaf.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// How many there are.
    pub fn nodes(&self) -> u32 {
        self.children.len() as u32
    }

    /// What a node waits for.
    pub fn children_of(&self, node: u32) -> &[u32] {
        &self.children[node as usize]
    }

    /// Whether nothing waits for a node.
    pub fn is_root(&self, node: u32) -> bool {
        self.parents[node as usize].is_empty()
    }

    /// Nodes without children.
    pub(super) fn leaves(&self) -> impl Iterator<Item = u32> {
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

/// Nodes of one cell type that depend on one another.
#[derive(Debug)]
pub(super) enum Nodes {
    /// One after the other, so many; a generator where outcomes end them early.
    Steps { next: u32, steps: u32 },
    /// A single one.
    One { node: u32, taken: bool },
    /// Those of a topology that are no leaves, each behind its children.
    Inner { topology: Arc<Topology>, ready: VecDeque<u32>, unfinished: Vec<u32>, left: u32 },
}

impl Nodes {
    pub(super) fn inner(topology: &Arc<Topology>) -> Self {
        let unfinished: Vec<u32> = topology.children.iter().map(|children| children.len() as u32).collect();
        let left = unfinished.iter().filter(|children| **children > 0).count() as u32;
        Self::Inner { topology: Arc::clone(topology), ready: VecDeque::new(), unfinished, left }
    }

    /// How many are ready.
    pub(super) fn ready(&self) -> u32 {
        match self {
            Self::Steps { next, steps } => u32::from(next < steps),
            Self::One { taken, .. } => u32::from(!taken),
            Self::Inner { ready, .. } => ready.len() as u32,
        }
    }

    /// Whether none is left to submit.
    pub(super) fn are_submitted(&self) -> bool {
        match self {
            Self::Steps { next, steps } => next >= steps,
            Self::One { taken, .. } => *taken,
            Self::Inner { left, .. } => *left == 0,
        }
    }

    /// Steps that are.
    pub(super) fn submitted(&self) -> u32 {
        match self {
            Self::Steps { next, .. } => *next,
            Self::One { .. } | Self::Inner { .. } => 0,
        }
    }

    /// Submits the first that is ready, which makes ready what waited for it alone: lanes are in order, and the subgraph stays on its
    /// lane.
    pub(super) fn submit(&mut self) -> Option<u32> {
        match self {
            Self::Steps { next, steps } => (*next < *steps).then(|| {
                *next += 1;
                *next - 1
            }),
            Self::One { node, taken } => (!std::mem::replace(taken, true)).then_some(*node),
            Self::Inner { ready, left, .. } => {
                let node = ready.pop_front()?;
                *left -= 1;
                self.release_parents(node);
                Some(node)
            }
        }
    }

    /// A node is there for those that wait for it.
    pub(super) fn release_parents(&mut self, node: u32) {
        let Self::Inner { topology, ready, unfinished, .. } = self else { return };
        for &parent in &topology.parents[node as usize] {
            let waits_for = &mut unfinished[parent as usize];
            *waits_for -= 1;
            if *waits_for == 0 {
                ready.push_back(parent);
            }
        }
    }

    /// An outcome was the last: nothing more is submitted.
    pub(super) fn end(&mut self) {
        if let Self::Steps { next, steps } = self {
            *steps = *next;
        }
    }
}
