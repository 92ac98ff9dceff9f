//! What requests of a version run through, as far as times need it: stages one after another, or cells that each
//! request unfolds into.

use smallvec::SmallVec;

use super::{
    CellId, Ns, SegmentKnobs, ShapeClass,
    cost::{Costs, Quantile},
    ledger::Request,
};
use crate::model::unfold::Unfolded;

/// Time left, in nanoseconds; negative when late.
pub(super) type SlackNs = i64;

/// Nodes by their types.
pub(super) type NodeCounts = SmallVec<[(CellId, u32); 4]>;

/// The graph of one version.
#[derive(Debug)]
pub(super) enum Graph {
    /// So many stages.
    Stages(u16),
    /// So many cell types, and the segments that requests unfold into.
    Cells(u16, Vec<SegmentKnobs>),
}

impl Graph {
    /// The graph of a model of so many stages, or of cells where there are `segments`.
    pub(super) fn new(stages: usize, segments: Option<&[SegmentKnobs]>) -> Self {
        let stages = stages.max(1) as u16;
        segments.map_or(Self::Stages(stages), |segments| Self::Cells(stages, segments.to_vec()))
    }

    /// How many stages there are, or cell types.
    pub(super) fn stages(&self) -> u16 {
        match self {
            Self::Stages(stages) | Self::Cells(stages, _) => *stages,
        }
    }

    /// What a request that has not boarded takes alone: its rows through all stages, or each of its nodes in a task of
    /// its own. None when times are not known.
    pub(super) fn time_alone(&self, costs: &Costs, request: &Request, quantile: Quantile) -> Option<Ns> {
        match self {
            Self::Stages(_) => costs.whole(request.rows, &ShapeClass(request.lengths.clone()), quantile),
            Self::Cells(_, segments) => time_of(costs, &node_counts(segments, &request.graph, 0, 0), |_| 1, quantile),
        }
    }
}

/// Nodes of a request from a segment on, less those that are submitted there.
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
                nodes.push((*leaf, 1));
                nodes.push((*inner, topology.depth()));
            }
            (SegmentKnobs::Steps { cell }, unfolded) | (SegmentKnobs::Tree { leaf: cell, .. }, unfolded) => {
                nodes.push((*cell, unfolded.nodes().saturating_sub(before)));
            }
        }
    }
    nodes
}

/// What a request takes (LazyBatching, algorithm 1) whose nodes run in tasks of so many rows.
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

/// Algorithm 1: graph-wide execution time of one input, of whose nodes each has its profiled latency for one input and
/// the times that it runs: once if it is static, else once a time step of the input or of the output. The steps of the
/// output are the most that there may be, so that slack is rather under- than overestimated (the paper: the length that
/// covers 90 % of what was seen in training).
pub(super) fn single_input_exec_time(nodes: impl IntoIterator<Item = (Ns, u32)>) -> Ns {
    let times = nodes.into_iter().map(|(latency_ns, times)| latency_ns.saturating_mul(u64::from(times)));
    times.fold(0, Ns::saturating_add)
}
