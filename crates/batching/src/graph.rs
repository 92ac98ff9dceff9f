//! The graph that requests of a version run through, as far as time estimates need it: a chain of stages, or the cells
//! that each request unfolds into.

use paternoster_model::{CellId, unfold::Unfolded};
use smallvec::SmallVec;

use super::{
    Ns, SegmentKnobs, ShapeClass,
    cost::{Costs, Quantile},
    ledger::Request,
    steps::StepCounts,
};

/// Time left, in nanoseconds; negative when late.
pub(super) type SlackNs = i64;

/// Number of nodes per cell type.
pub(super) type NodeCounts = SmallVec<[(CellId, u32); 4]>;

/// The graph of one version.
#[derive(Debug)]
pub(super) enum Graph {
    /// A chain of this many stages.
    Stages(u16),
    /// The number of cell types, the segments that requests unfold into, and the steps that they took in these.
    Cells(u16, Vec<SegmentKnobs>, StepCounts),
}

impl Graph {
    /// Creates a graph of cells if there are `segments`, or else a chain of `stages` stages.
    pub(super) fn new(stages: usize, segments: Option<&[SegmentKnobs]>) -> Self {
        let stages = stages.max(1) as u16;
        segments
            .map_or(Self::Stages(stages), |segments| Self::Cells(stages, segments.to_vec(), StepCounts::new(segments)))
    }

    /// Returns the number of stages or cell types.
    pub(super) fn stages(&self) -> u16 {
        match self {
            Self::Stages(stages) | Self::Cells(stages, ..) => *stages,
        }
    }

    /// Returns the execution time of an unboarded request alone: its rows through all stages, or each of its nodes in a
    /// task of its own. Decoders take as many steps as a `share` of like requests do not exceed. `None` if costs or
    /// steps are unknown.
    pub(super) fn time_alone(&self, costs: &Costs, request: &Request, quantile: Quantile, share: f64) -> Option<Ns> {
        match self {
            Self::Stages(_) => costs.whole(request.rows, &ShapeClass(request.lengths.clone()), quantile),
            Self::Cells(..) => time_of(costs, &self.nodes(&request.graph, 0, 0, share)?, |_| 1, quantile),
        }
    }

    /// Counts a request's nodes from a segment on, less the nodes of that segment that are already submitted. Decoders
    /// take as many steps as a `share` of like requests do not exceed; `None` if that is unknown.
    pub(super) fn nodes(&self, graph: &[Unfolded], from: usize, submitted: u32, share: f64) -> Option<NodeCounts> {
        let Self::Cells(_, segments, steps) = self else { return None };
        let most_nodes = most_nodes(graph);
        let mut nodes = NodeCounts::new();
        for (number, (knobs, unfolded)) in segments.iter().zip(graph).enumerate().skip(from) {
            let before = if number == from { submitted } else { 0 };
            let most = unfolded.nodes().saturating_sub(before);
            match (knobs, unfolded) {
                (SegmentKnobs::Tree { leaf, inner }, Unfolded::Tree(topology)) => {
                    // All leaves are ready at once, and each level of inner nodes runs together.
                    nodes.push((*leaf, 1));
                    nodes.push((*inner, topology.depth()));
                }
                (SegmentKnobs::Decode { cell, .. }, _) => {
                    nodes.push((*cell, steps.left(number, most_nodes, before, share)?.min(most)));
                }
                (
                    SegmentKnobs::Stage { cell } | SegmentKnobs::Steps { cell } | SegmentKnobs::Tree { leaf: cell, .. },
                    _,
                ) => nodes.push((*cell, most)),
            }
        }
        Some(nodes)
    }

    /// Learns how many steps a request took in a segment.
    pub(super) fn took_steps(&mut self, segment: usize, most_nodes: u32, taken: u32) {
        if let Self::Cells(_, _, steps) = self {
            steps.learn(segment, most_nodes, taken);
        }
    }

    /// Notes that such a request is refused, so that its steps remain unknown.
    pub(super) fn refused(&mut self, graph: &[Unfolded]) {
        if let Self::Cells(_, _, steps) = self {
            steps.fade(most_nodes(graph));
        }
    }
}

/// Returns the nodes that a request has at most, which tell like requests apart.
pub(super) fn most_nodes(graph: &[Unfolded]) -> u32 {
    graph.iter().map(Unfolded::nodes).fold(0, u32::saturating_add)
}

/// Returns the execution time of a request whose nodes run in tasks of `rows(cell)` rows (LazyBatching, algorithm 1).
pub(super) fn time_of(
    costs: &Costs,
    nodes: &[(CellId, u32)],
    rows: impl Fn(CellId) -> u32,
    quantile: Quantile,
) -> Option<Ns> {
    let nodes = nodes.iter().map(|&(cell, times)| {
        // Steps that a task may run together count as one node.
        let (class, times) = costs.tasks_of(cell, times);
        Some((costs.predict(cell, rows(cell).max(1), &class, quantile)?, times))
    });
    nodes.collect::<Option<SmallVec<[(Ns, u32); 4]>>>().map(single_input_exec_time)
}

/// Graph-wide execution time of one input (LazyBatching, algorithm 1). Takes, for each node, its profiled latency for
/// one input and how often it runs: once for a static node, else once per time step of the input or output. (The paper
/// takes the output length that covers 90 % of the training data; [`StepCounts`] learns it.)
pub(super) fn single_input_exec_time(nodes: impl IntoIterator<Item = (Ns, u32)>) -> Ns {
    let times = nodes.into_iter().map(|(latency_ns, times)| latency_ns.saturating_mul(u64::from(times)));
    times.fold(0, Ns::saturating_add)
}
