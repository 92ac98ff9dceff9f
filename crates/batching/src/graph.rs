//! The graph that requests of a version run through, as far as time estimates need it: a chain of stages, or the cells
//! that each request unfolds into.

use paternoster_model::unfold::Unfolded;
use smallvec::SmallVec;

use super::{
    CellId, Ns, SegmentKnobs, ShapeClass,
    cost::{Costs, Quantile},
    ledger::Request,
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
    /// The number of cell types, and the segments that requests unfold into.
    Cells(u16, Vec<SegmentKnobs>),
}

impl Graph {
    /// Creates a graph of cells if there are `segments`, or else a chain of `stages` stages.
    pub(super) fn new(stages: usize, segments: Option<&[SegmentKnobs]>) -> Self {
        let stages = stages.max(1) as u16;
        segments.map_or(Self::Stages(stages), |segments| Self::Cells(stages, segments.to_vec()))
    }

    /// Returns the number of stages or cell types.
    pub(super) fn stages(&self) -> u16 {
        match self {
            Self::Stages(stages) | Self::Cells(stages, _) => *stages,
        }
    }

    /// Returns the execution time of an unboarded request alone: its rows through all stages, or each of its nodes in a
    /// task of its own. `None` if costs are unknown.
    pub(super) fn time_alone(&self, costs: &Costs, request: &Request, quantile: Quantile) -> Option<Ns> {
        match self {
            Self::Stages(_) => costs.whole(request.rows, &ShapeClass(request.lengths.clone()), quantile),
            Self::Cells(_, segments) => time_of(costs, &node_counts(segments, &request.graph, 0, 0), |_| 1, quantile),
        }
    }
}

/// Counts a request's nodes from a segment on, less the nodes of that segment that are already submitted.
pub(super) fn node_counts(
    segments: &[SegmentKnobs],
    graph: &[Unfolded],
    from_segment: usize,
    submitted: u32,
) -> NodeCounts {
    let mut nodes = NodeCounts::new();
    for (number, (knobs, unfolded)) in segments.iter().zip(graph).enumerate().skip(from_segment) {
        let before = if number == from_segment { submitted } else { 0 };
        match (knobs, unfolded) {
            (SegmentKnobs::Tree { leaf, inner }, Unfolded::Tree(topology)) => {
                // All leaves are ready at once, and each level of inner nodes runs together.
                nodes.push((*leaf, 1));
                nodes.push((*inner, topology.depth()));
            }
            (
                SegmentKnobs::Stage { cell } | SegmentKnobs::Steps { cell } | SegmentKnobs::Tree { leaf: cell, .. },
                unfolded,
            ) => {
                nodes.push((*cell, unfolded.nodes().saturating_sub(before)));
            }
        }
    }
    nodes
}

/// Returns the execution time of a request whose nodes run in tasks of `rows(cell)` rows (LazyBatching, algorithm 1).
pub(super) fn time_of(
    costs: &Costs,
    nodes: &[(CellId, u32)],
    rows: impl Fn(CellId) -> u32,
    quantile: Quantile,
) -> Option<Ns> {
    let nodes = nodes.iter().map(|&(cell, times)| {
        let latency_ns = costs.predict(cell, rows(cell).max(1), &ShapeClass::default(), quantile)?;
        Some((latency_ns, times))
    });
    nodes.collect::<Option<SmallVec<[(Ns, u32); 4]>>>().map(single_input_exec_time)
}

/// Graph-wide execution time of one input (LazyBatching, algorithm 1). Takes, for each node, its profiled latency for
/// one input and how often it runs: once for a static node, else once per time step of the input or output. Output
/// steps count at their maximum, so slack is underestimated rather than overestimated. (The paper uses the length that
/// covers 90 % of the training data.)
pub(super) fn single_input_exec_time(nodes: impl IntoIterator<Item = (Ns, u32)>) -> Ns {
    let times = nodes.into_iter().map(|(latency_ns, times)| latency_ns.saturating_mul(u64::from(times)));
    times.fold(0, Ns::saturating_add)
}
