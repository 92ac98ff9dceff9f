//! The cell graphs of boarded requests (BatchMaker sections 3.1 and 4.3). A request runs through its model's segments
//! in order; each segment unfolds into subgraphs, whose ready nodes are in `queues`.

use paternoster_model::{CellId, unfold::Unfolded};
use slab::Slab;
use smallvec::SmallVec;

use super::{
    members::Members,
    nodes::Nodes,
    queues::{JourneyIx, NodeRow, Origin, Queues, Subgraph, SubgraphIx},
    slots::{FreeSlots, HeldSlots, slots},
};
use crate::{CellKnobs, LaneId, SegmentKnobs, graph::most_nodes, hold::hold, ids::RequestIx};

/// A boarded request: its graph, its progress and its state slots.
#[derive(Debug)]
struct Journey {
    request: RequestIx,
    graph: Box<[Unfolded]>,
    /// State slots, held from the first node to the last and shared by all segments.
    slots: HeldSlots,
    /// Index of the current segment.
    segment: usize,
    /// Its subgraphs in the current segment.
    subgraphs: Members,
    /// For a tree, the subgraph of the inner nodes, and the number of leaves that have not run.
    inner: Option<SubgraphIx>,
    leaves: u32,
    /// Number of rows in flight.
    rows: u32,
    /// Whether the request has ended. Its slots are freed with its last row in flight.
    is_over: bool,
}

/// The cell graphs of a version's requests.
#[derive(Debug)]
pub(crate) struct CellGraphs {
    segments: Vec<SegmentKnobs>,
    pub(super) queues: Queues,
    journeys: Slab<Journey>,
    /// Number of boarded requests that have not ended.
    pub(super) under_way: u32,
    /// Indexed by the request's index in the ledger.
    of_request: Vec<Option<JourneyIx>>,
    pub(super) free_slots: FreeSlots,
    /// Whether inner nodes wait only for their own children instead of for all leaves (section 4.4).
    frontier: bool,
    /// Steps taken in segments where they are not known in advance, since they were last learned: the segment, the
    /// nodes that the request had at most, and the steps.
    pub(super) taken: Vec<(usize, u32, u32)>,
}

impl CellGraphs {
    pub(crate) fn new(cells: &[CellKnobs], segments: &[SegmentKnobs], slots: u32, frontier: bool) -> Self {
        Self {
            segments: segments.to_vec(),
            queues: Queues::new(cells),
            journeys: Slab::new(),
            under_way: 0,
            of_request: Vec::new(),
            free_slots: FreeSlots::new(slots),
            frontier,
            taken: Vec::new(),
        }
    }

    /// Checks the invariants between two steps, given the requests that have boarded, the rows in flight, and the rows
    /// that run again.
    pub(crate) fn check<'a>(
        &self,
        mut aboard: Vec<RequestIx>,
        in_flight: impl Iterator<Item = &'a NodeRow>,
        retried: impl Iterator<Item = &'a NodeRow>,
    ) -> Result<(), String> {
        let mut under_way: Vec<RequestIx> =
            self.journeys.iter().filter(|(_, journey)| !journey.is_over).map(|(_, journey)| journey.request).collect();
        aboard.sort_unstable();
        under_way.sort_unstable();
        let counted = aboard == under_way && aboard.len() == self.under_way as usize;
        hold!(counted, "requests in slots {aboard:?} are aboard, but {under_way:?} are under way");
        let in_flight: Vec<&NodeRow> = in_flight.collect();
        self.check_slots(&in_flight)?;
        for (ix, journey) in self.journeys.iter().filter(|(_, journey)| !journey.is_over) {
            let is_there = |subgraph: &SubgraphIx| self.queues.is_of(*subgraph, ix as JourneyIx);
            let there = journey.subgraphs.iter().filter(is_there);
            let (there, open) = (there.filter(|&ix| self.queues.holds(ix)).count(), journey.subgraphs.open());
            hold!(there == open as usize, "a request counts {open} queued subgraphs of {there}");
        }
        self.check_order(in_flight)?;
        self.queues.check(retried.filter(|row| self.is_live(row)))
    }

    /// Each request holds as many slots as it needs, no slot is held twice, and rows in flight name slots of their own
    /// requests.
    fn check_slots(&self, in_flight: &[&NodeRow]) -> Result<(), String> {
        for (ix, journey) in &self.journeys {
            let (held, needs) = (journey.slots.len(), slots(&journey.graph));
            hold!(held == needs as usize, "journey {ix} holds {held} slots, and needs {needs}");
        }
        self.free_slots.check(self.journeys.iter().flat_map(|(_, journey)| &journey.slots))?;
        for row in in_flight {
            let which = self.queues.get(row.subgraph).nodes.slot(row.node);
            let journey = self.journeys.get(row.of.journey as usize);
            let slot = journey.and_then(|journey| journey.slots.get(which));
            hold!(slot == Some(&row.slot), "{row:?} is in flight in a slot that its request does not hold");
        }
        Ok(())
    }

    /// The steps of a chain that are in flight or run again follow one another up to the last that was submitted, so
    /// that each is taken once and in order. What a lane runs again counts as in flight.
    fn check_order(&self, in_flight: Vec<&NodeRow>) -> Result<(), String> {
        let again = self.queues.retries().filter(|row| self.is_live(row));
        let mut rows: Vec<&NodeRow> = in_flight.into_iter().filter(|row| self.is_live(row)).chain(again).collect();
        rows.sort_unstable_by_key(|row| (row.subgraph, row.node));
        for of_subgraph in rows.chunk_by(|one, other| one.subgraph == other.subgraph) {
            let nodes = &self.queues.get(of_subgraph[0].subgraph).nodes;
            if !matches!(nodes, Nodes::Steps { .. }) || nodes.has_ended() {
                continue;
            }
            let follows = of_subgraph.windows(2).all(|pair| pair[0].last() + 1 == pair[1].node);
            let last = of_subgraph.last().map(|row| row.last() + 1);
            hold!(follows && last == Some(nodes.submitted()), "{of_subgraph:?} are not the latest steps of {nodes:?}");
        }
        Ok(())
    }

    /// Boards a request, and queues the subgraphs of its first segment. The caller has checked that enough slots are
    /// free.
    pub(crate) fn board(&mut self, request: RequestIx, graph: Box<[Unfolded]>) {
        self.under_way += 1;
        let ix = self.journeys.insert(Journey {
            request,
            slots: self.free_slots.take(slots(&graph)),
            graph,
            segment: 0,
            subgraphs: Members::default(),
            inner: None,
            leaves: 0,
            rows: 0,
            is_over: false,
        }) as JourneyIx;
        let at = request.at();
        if self.of_request.len() <= at {
            self.of_request.resize(at + 1, None);
        }
        self.of_request[at] = Some(ix);
        self.enter(ix);
    }

    /// Returns the type of the nodes with which a request starts.
    pub(crate) fn first(&self) -> CellId {
        match self.segments.first() {
            Some(
                SegmentKnobs::Stage { cell }
                | SegmentKnobs::Steps { cell }
                | SegmentKnobs::Decode { cell, .. }
                | SegmentKnobs::Tree { leaf: cell, .. },
            ) => *cell,
            None => CellId(0),
        }
    }

    pub(crate) fn form(&mut self, cell: CellId, lane: LaneId, most: u32) -> Vec<NodeRow> {
        let journeys = &mut self.journeys;
        self.queues.form(cell, lane, most, |of, which| {
            let journey = &mut journeys[of.journey as usize];
            journey.rows += 1;
            journey.slots[which]
        })
    }

    /// Takes the rows of a retry of this type for a lane. They run as a separate task.
    pub(crate) fn launch_retry(&mut self, cell: CellId, lane: LaneId) -> Option<Vec<NodeRow>> {
        let rows = self.queues.launch_retry(cell, lane)?;
        rows.iter().for_each(|row| self.journeys[row.of.journey as usize].rows += 1);
        Some(rows)
    }

    /// Handles the failure of a task: these rows, whose outcomes count, run again in halves. What was launched ahead
    /// and depends on them counts for nothing, and runs in its turn. `in_flight` are the rows of all other tasks, and
    /// whether they run again.
    pub(crate) fn failed<'a>(
        &mut self,
        cell: CellId,
        rows: &[NodeRow],
        is_retry: bool,
        in_flight: impl Iterator<Item = (&'a mut NodeRow, bool)>,
    ) {
        if !is_retry {
            let mut behind: SmallVec<[(SubgraphIx, u32); 8]> = SmallVec::new();
            for row in rows {
                behind.extend(self.queues.take_back(row).into_iter().map(|node| (row.subgraph, node)));
            }
            if !behind.is_empty() {
                self.void(&behind, in_flight);
            }
        }
        self.queues.halve(cell, rows);
    }

    /// Voids the rows of nodes that were taken back. Some may have failed before, if the device refused them while what
    /// they depend on was running: these do not run again by themselves.
    fn void<'a>(&mut self, nodes: &[(SubgraphIx, u32)], in_flight: impl Iterator<Item = (&'a mut NodeRow, bool)>) {
        let is_void = |row: &NodeRow| nodes.contains(&(row.subgraph, row.node));
        let mut failed_before = self.queues.forget_retries(is_void);
        for (row, is_retry) in in_flight.filter(|(row, _)| is_void(row) && !row.is_void) {
            row.is_void = true;
            failed_before.extend(is_retry.then_some(*row));
        }
        failed_before.iter().for_each(|row| self.queues.ran_again(row));
    }

    /// Handles the success of a retry.
    pub(crate) fn ran_again(&mut self, rows: &[NodeRow]) {
        for row in rows {
            if self.is_live(row) {
                self.queues.ran_again(row);
            }
        }
    }

    /// Whether the outcome of a row counts: its request has not ended, its inputs were valid, and no earlier outcome
    /// has ended its loop.
    pub(crate) fn counts(&self, row: &NodeRow) -> bool {
        self.is_live(row) && !self.queues.get(row.subgraph).nodes.has_ended()
    }

    fn is_live(&self, row: &NodeRow) -> bool {
        !row.is_void && !self.journeys[row.of.journey as usize].is_over
    }

    /// Handles the end of a task, and returns the requests that are done. `is_last` returns whether a row's outcome
    /// ended its loop.
    pub(crate) fn completed(
        &mut self,
        cell: CellId,
        rows: &[NodeRow],
        is_last: impl Fn(usize) -> bool,
    ) -> SmallVec<[RequestIx; 8]> {
        for (at, row) in rows.iter().enumerate() {
            if is_last(at) && self.counts(row) {
                self.took_steps(row, row.last() + 1);
                self.queues.end_loop(row.subgraph);
            }
        }
        self.queues.completed(cell, rows);
        let mut done = SmallVec::new();
        for row in rows {
            let journey = &mut self.journeys[row.of.journey as usize];
            journey.rows -= 1;
            if !journey.is_over {
                // An earlier row of this task may have been the last of the same subgraph.
                let is_there = self.queues.is_of(row.subgraph, row.of.journey);
                if !is_there || !self.queues.is_complete(row.subgraph) || !self.passed(row) {
                    continue;
                }
                done.push(row.of.request);
            }
            // A request that is over is forgotten with its last row in flight.
            self.forget_if_over(row.of.journey);
        }
        done
    }

    /// Returns the graph of a boarded request, its segment, and the steps of that segment that are submitted.
    pub(crate) fn progress(&self, request: RequestIx) -> Option<(&[Unfolded], usize, u32)> {
        let journey = self.of_request.get(request.at()).copied().flatten();
        let journey = self.journeys.get(journey? as usize)?;
        // Steps form a single subgraph. For a tree, submitted nodes are not subtracted.
        let submitted = match (&journey.graph[journey.segment], journey.subgraphs.first()) {
            (Unfolded::Steps(_), Some(subgraph)) => self.queues.get(subgraph).nodes.submitted(),
            _ => 0,
        };
        Some((&journey.graph, journey.segment, submitted))
    }

    /// Removes an ended request from all queues. Its rows in running tasks are masked, and its slots are freed with the
    /// last of them.
    pub(crate) fn drop(&mut self, request: RequestIx) {
        let Some(ix) = self.of_request.get_mut(request.at()).and_then(Option::take) else { return };
        let journey = &mut self.journeys[ix as usize];
        journey.is_over = true;
        self.under_way -= 1;
        for subgraph in journey.subgraphs.iter() {
            if self.queues.is_of(subgraph, ix) {
                self.queues.remove(subgraph);
            }
        }
        self.queues.forget_retries(|row| row.of.journey == ix);
        self.forget_if_over(ix);
    }

    /// Number of times that a subgraph of a journey was visited by iteration.
    #[cfg(test)]
    pub(super) fn visited(&self, journey: JourneyIx) -> u64 {
        self.journeys.get(journey as usize).map_or(0, |journey| journey.subgraphs.visited())
    }

    fn forget_if_over(&mut self, ix: JourneyIx) {
        if self.journeys.get(ix as usize).is_some_and(|journey| journey.is_over && journey.rows == 0) {
            let journey = self.journeys.remove(ix as usize);
            self.free_slots.give_back(&journey.slots);
        }
    }

    /// Handles a complete subgraph: starts the nodes or the segment that wait for it. Returns whether the request is
    /// done.
    fn passed(&mut self, row: &NodeRow) -> bool {
        if !self.queues.get(row.subgraph).nodes.has_ended() {
            self.took_steps(row, row.last() + 1);
        }
        let journey = &mut self.journeys[row.of.journey as usize];
        self.queues.remove(row.subgraph);
        let are_all = journey.subgraphs.complete_one();
        if journey.inner == Some(row.subgraph) {
            // Leaves that no inner node waits for may still be running.
            journey.inner = None;
        } else if let Some(inner) = journey.inner {
            journey.leaves -= 1;
            let all = journey.leaves == 0;
            match &journey.graph[journey.segment] {
                Unfolded::Tree(topology) if !self.frontier && all => {
                    self.queues.change(inner, |Subgraph { nodes, .. }| {
                        topology.leaves().for_each(|leaf| nodes.release_parents(leaf));
                    });
                }
                Unfolded::Tree(_) if self.frontier => {
                    self.queues.change(inner, |subgraph| subgraph.nodes.release_parents(row.node));
                }
                _ => {}
            }
        }
        if !are_all {
            return false;
        }
        journey.segment += 1;
        if journey.segment < journey.graph.len() {
            self.enter(row.of.journey);
            return false;
        }
        journey.is_over = true;
        self.under_way -= 1;
        self.of_request[row.of.request.at()] = None;
        true
    }

    /// Records how many steps a request took in its current segment, if that was not known in advance.
    fn took_steps(&mut self, row: &NodeRow, steps: u32) {
        let journey = &self.journeys[row.of.journey as usize];
        if matches!(self.segments[journey.segment], SegmentKnobs::Decode { .. }) {
            self.taken.push((journey.segment, most_nodes(&journey.graph), steps));
        }
    }

    /// Queues the subgraphs of a request's current segment.
    fn enter(&mut self, ix: JourneyIx) {
        let journey = &mut self.journeys[ix as usize];
        let queues = &mut self.queues;
        let nodes_before = journey.graph[..journey.segment].iter().map(Unfolded::nodes).sum();
        let of = Origin { journey: ix, request: journey.request, nodes_before };
        journey.inner = None;
        journey.subgraphs.clear();
        match (&self.segments[journey.segment], &journey.graph[journey.segment]) {
            (
                SegmentKnobs::Stage { cell } | SegmentKnobs::Steps { cell } | SegmentKnobs::Decode { cell, .. },
                Unfolded::Steps(steps),
            ) => {
                let nodes = Nodes::Steps { next: 0, steps: (*steps).max(1), has_ended: false };
                journey.subgraphs.push(queues.push(of, *cell, nodes));
            }
            (SegmentKnobs::Tree { leaf, inner }, Unfolded::Tree(topology)) => {
                for node in topology.leaves() {
                    journey.subgraphs.push(queues.push(of, *leaf, Nodes::One { node, taken: false }));
                }
                journey.leaves = journey.subgraphs.open();
                let nodes = Nodes::inner(topology);
                if !nodes.are_submitted() {
                    let inner = queues.push(of, *inner, nodes);
                    journey.subgraphs.push(inner);
                    journey.inner = Some(inner);
                }
            }
            (segment, unfolded) => {
                debug_assert!(false, "a request unfolds into {unfolded:?}, but the segment is {segment:?}")
            }
        }
    }
}
