//! What requests unfold into: the segments of their model one after the other, each as subgraphs (BatchMaker sections 3.1 and 4.3).

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    nodes::{Nodes, Topology},
    queues::{NodeRow, Queues, SubgraphIx},
};
use crate::batching::{CellId, CellKnobs, LaneId, SegmentKnobs, ledger::Slot};

/// How a request unfolds in one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfolded {
    /// So many nodes, one after the other; at most so many, where outcomes end them.
    Steps(u32),
    /// Nodes behind their children.
    Tree(Arc<Topology>),
}

/// A request on its way.
#[derive(Debug)]
struct Journey {
    graph: SmallVec<[Unfolded; 1]>,
    /// The segment that it is in.
    segment: usize,
    /// Its subgraphs in it that are not complete.
    subgraphs: SmallVec<[SubgraphIx; 1]>,
    /// Of a tree: the subgraph of the inner nodes, and leaves that have not run.
    inner: Option<SubgraphIx>,
    leaves: u32,
}

/// The cell graphs of a group's requests.
#[derive(Debug)]
pub(in crate::batching) struct Cells {
    segments: Vec<SegmentKnobs>,
    queues: Queues,
    /// By slot.
    journeys: Vec<Option<Journey>>,
    /// Inner nodes wait for their own children alone, and not for all leaves (section 4.4).
    frontier: bool,
}

impl Cells {
    pub(in crate::batching) fn new(cells: &[CellKnobs], segments: &[SegmentKnobs], frontier: bool) -> Self {
        Self { segments: segments.to_vec(), queues: Queues::new(cells), journeys: Vec::new(), frontier }
    }

    /// A request boards: the subgraphs of its first segment stand in their queues.
    pub(in crate::batching) fn board(&mut self, request: Slot, graph: SmallVec<[Unfolded; 1]>) {
        let at = request as usize;
        if self.journeys.len() <= at {
            self.journeys.resize_with(at + 1, || None);
        }
        let journey = Journey { graph, segment: 0, subgraphs: SmallVec::new(), inner: None, leaves: 0 };
        self.journeys[at] = Some(journey);
        self.enter(request);
    }

    /// The type that a lane runs next, given how many nodes of it requests would bring that have not boarded.
    pub(in crate::batching) fn choose(&self, lane: LaneId, waiting: impl Fn(CellId) -> u64) -> Option<CellId> {
        self.queues.choose(lane, waiting)
    }

    pub(in crate::batching) fn ready(&self, cell: CellId, lane: LaneId) -> u64 {
        self.queues.ready(cell, lane)
    }

    pub(in crate::batching) fn form(&mut self, cell: CellId, lane: LaneId) -> Vec<NodeRow> {
        self.queues.form(cell, lane)
    }

    /// A task has ended; `is_last` tells for each of its rows whether its outcome ended the loop. Gives the requests that are done.
    pub(in crate::batching) fn completed(
        &mut self,
        cell: CellId,
        rows: &[NodeRow],
        is_last: impl Fn(usize) -> bool,
    ) -> SmallVec<[Slot; 8]> {
        for (at, row) in rows.iter().enumerate() {
            if is_last(at) {
                self.queues.change(row.subgraph, Nodes::end);
            }
        }
        let live: SmallVec<[NodeRow; 64]> = rows.iter().copied().filter(|row| self.is_live(row)).collect();
        self.queues.land(cell, rows);
        let mut done = SmallVec::new();
        for row in live {
            // A row before it may have been the last of the same subgraph.
            if self.is_live(&row) && self.queues.is_complete(row.subgraph) && self.passed(&row) {
                done.push(row.request);
            }
        }
        done
    }

    /// Takes a request out of all queues; rows of it that run are masked.
    pub(in crate::batching) fn drop(&mut self, request: Slot) {
        let journey = self.journeys.get_mut(request as usize).and_then(Option::take);
        for subgraph in journey.into_iter().flat_map(|journey| journey.subgraphs) {
            self.queues.remove(subgraph);
        }
    }

    /// Whether a row's request is still under way.
    fn is_live(&self, row: &NodeRow) -> bool {
        let journey = self.journeys.get(row.request as usize).and_then(Option::as_ref);
        journey.is_some_and(|journey| journey.subgraphs.contains(&row.subgraph))
    }

    /// A subgraph is complete: what waits for it goes on. Whether its request is done.
    fn passed(&mut self, row: &NodeRow) -> bool {
        let Some(journey) = self.journeys.get_mut(row.request as usize).and_then(Option::as_mut) else { return false };
        self.queues.remove(row.subgraph);
        journey.subgraphs.retain(|subgraph| *subgraph != row.subgraph);
        if let Some(inner) = journey.inner
            && inner != row.subgraph
        {
            journey.leaves -= 1;
            let all = journey.leaves == 0;
            match &journey.graph[journey.segment] {
                Unfolded::Tree(topology) if !self.frontier && all => {
                    let leaves: Vec<u32> = topology.leaves().collect();
                    self.queues.change(inner, |nodes| leaves.iter().for_each(|leaf| nodes.release_parents(*leaf)));
                }
                Unfolded::Tree(_) if self.frontier => {
                    self.queues.change(inner, |nodes| nodes.release_parents(row.node));
                }
                _ => {}
            }
        }
        if !journey.subgraphs.is_empty() {
            return false;
        }
        journey.segment += 1;
        if journey.segment < journey.graph.len() {
            self.enter(row.request);
            return false;
        }
        self.journeys[row.request as usize] = None;
        true
    }

    /// Puts the subgraphs of a request's segment into their queues.
    fn enter(&mut self, request: Slot) {
        let Some(journey) = self.journeys[request as usize].as_mut() else { return };
        let (queues, segment) = (&mut self.queues, journey.segment as u16);
        journey.inner = None;
        match (&self.segments[journey.segment], &journey.graph[journey.segment]) {
            (SegmentKnobs::Steps { cell }, Unfolded::Steps(steps)) => {
                let nodes = Nodes::Steps { next: 0, steps: (*steps).max(1) };
                journey.subgraphs.push(queues.push(request, segment, *cell, nodes));
            }
            (SegmentKnobs::Tree { leaf, inner }, Unfolded::Tree(topology)) => {
                for node in topology.leaves() {
                    journey.subgraphs.push(queues.push(request, segment, *leaf, Nodes::One { node, taken: false }));
                }
                journey.leaves = journey.subgraphs.len() as u32;
                let nodes = Nodes::inner(topology);
                if !nodes.are_submitted() {
                    let inner = queues.push(request, segment, *inner, nodes);
                    journey.subgraphs.push(inner);
                    journey.inner = Some(inner);
                }
            }
            (segment, unfolded) => debug_assert!(false, "a request unfolds into {unfolded:?} where {segment:?} stands"),
        }
    }
}
