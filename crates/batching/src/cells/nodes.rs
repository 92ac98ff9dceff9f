//! The nodes of one subgraph: which are ready, and which become ready when one is submitted.

use std::{collections::VecDeque, sync::Arc};

use paternoster_model::unfold::Topology;

/// Nodes of one cell type that depend on one another.
#[derive(Debug)]
pub(super) enum Nodes {
    /// `steps` nodes, one after the other. A loop whose outcomes end it early has fewer.
    Steps { next: u32, steps: u32, has_ended: bool },
    /// A single node.
    One { node: u32, taken: bool },
    /// The inner nodes of a topology; each runs after its children.
    Inner { topology: Arc<Topology>, ready: VecDeque<u32>, unfinished: Vec<u32>, left: u32 },
}

impl Nodes {
    pub(super) fn inner(topology: &Arc<Topology>) -> Self {
        let unfinished: Vec<u32> = (0..topology.nodes()).map(|node| topology.children_of(node).len() as u32).collect();
        let left = unfinished.iter().filter(|children| **children > 0).count() as u32;
        Self::Inner { topology: Arc::clone(topology), ready: VecDeque::new(), unfinished, left }
    }

    /// Returns the number of ready nodes.
    pub(super) fn ready(&self) -> u32 {
        match self {
            Self::Steps { next, steps, .. } => u32::from(next < steps),
            Self::One { taken, .. } => u32::from(!taken),
            Self::Inner { ready, .. } => ready.len() as u32,
        }
    }

    /// Whether all nodes are submitted.
    pub(super) fn are_submitted(&self) -> bool {
        match self {
            Self::Steps { next, steps, .. } => next >= steps,
            Self::One { taken, .. } => *taken,
            Self::Inner { left, .. } => *left == 0,
        }
    }

    /// Returns the index, among its request's slots, of the slot that a node writes. A chain overwrites a single slot;
    /// in a tree each node has its own.
    pub(super) fn slot(&self, node: u32) -> usize {
        match self {
            Self::Steps { .. } => 0,
            Self::One { .. } | Self::Inner { .. } => node as usize,
        }
    }

    /// Returns the number of submitted steps.
    pub(super) fn submitted(&self) -> u32 {
        match self {
            Self::Steps { next, .. } => *next,
            Self::One { .. } | Self::Inner { .. } => 0,
        }
    }

    /// Submits the first ready node. Nodes that waited only for it become ready at once, because lanes run in order and
    /// the subgraph stays on its lane.
    pub(super) fn submit(&mut self) -> Option<u32> {
        match self {
            Self::Steps { next, steps, .. } => (*next < *steps).then(|| {
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

    /// Returns the number of steps that are not submitted.
    pub(super) fn left(&self) -> u32 {
        match self {
            Self::Steps { next, steps, .. } => steps - next,
            Self::One { .. } | Self::Inner { .. } => 0,
        }
    }

    /// Submits up to `more` further steps, which run together with the one that was submitted last, and returns their
    /// number.
    pub(super) fn submit_more(&mut self, more: u32) -> u32 {
        let more = more.min(self.left());
        if let Self::Steps { next, .. } = self {
            *next += more;
        }
        more
    }

    /// Marks the inputs that a node provides as available.
    pub(super) fn release_parents(&mut self, node: u32) {
        let Self::Inner { topology, ready, unfinished, .. } = self else { return };
        for &parent in topology.parents_of(node) {
            let waits_for = &mut unfinished[parent as usize];
            *waits_for -= 1;
            if *waits_for == 0 {
                ready.push_back(parent);
            }
        }
    }

    /// Takes back a submitted node that failed, of several steps the last. Nodes that were submitted because of it are
    /// taken back too, and returned.
    pub(super) fn take_back(&mut self, failed: u32) -> Vec<u32> {
        match self {
            Self::Steps { next, .. } => {
                let behind = failed + 1..*next;
                *next = failed + 1;
                behind.collect()
            }
            Self::One { .. } => Vec::new(),
            Self::Inner { topology, ready, unfinished, left } => {
                let mut taken_back = vec![failed];
                let mut at = 0;
                while let Some(&node) = taken_back.get(at) {
                    at += 1;
                    for &parent in topology.parents_of(node) {
                        let waits_for = &mut unfinished[parent as usize];
                        *waits_for += 1;
                        // The parent already waited for another child, so it was not submitted.
                        if *waits_for > 1 {
                            continue;
                        }
                        match ready.iter().position(|other| *other == parent) {
                            Some(place) => drop(ready.remove(place)),
                            None => {
                                *left += 1;
                                taken_back.push(parent);
                            }
                        }
                    }
                }
                taken_back.split_off(1)
            }
        }
    }

    /// Ends a loop by an outcome: no further step is submitted.
    pub(super) fn end(&mut self) {
        if let Self::Steps { next, steps, has_ended } = self {
            (*steps, *has_ended) = (*next, true);
        }
    }

    /// Whether an outcome has ended the loop, so that steps submitted beyond it do not count.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Self::Steps { has_ended: true, .. })
    }
}
