//! The queues of ready nodes, one per cell type, and the formation of tasks from them (BatchMaker section 4.3,
//! algorithm 1).

mod retries;

use std::collections::{BTreeMap, VecDeque};

use paternoster_model::CellId;
use slab::Slab;
use smallvec::SmallVec;

use self::retries::Retry;
use super::{nodes::Nodes, ready::Places};
use crate::{CellKnobs, LaneId, hold::hold, ids::RequestIx};

/// Index of a subgraph; not reused while a task names it.
pub(super) type SubgraphIx = u32;

/// Marks a place without a subgraph.
const NOBODY: SubgraphIx = u32::MAX;
/// A queue with at least this many places is compacted instead of extended if half of them are empty.
const FEW_PLACES: usize = 64;

/// Index of a request's journey; not reused while a task names it.
pub(super) type JourneyIx = u32;

/// The request that nodes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) journey: JourneyIx,
    pub(super) request: RequestIx,
    /// Number of its nodes in earlier segments.
    pub(super) nodes_before: u32,
}

/// Connected nodes of one cell type and one request.
#[derive(Debug)]
pub(super) struct Subgraph {
    pub(super) nodes: Nodes,
    of: Origin,
    cell: CellId,
    place: u32,
    /// The lane that its nodes must run on while a task on that lane names it.
    pinned: Option<LaneId>,
    /// Number of tasks in flight that name it.
    tasks: u32,
    /// Number of its ready nodes as counted by its queue.
    counted: u32,
    /// Number of its failed nodes that have not yet run again successfully; its other nodes wait for them.
    retried: u32,
    /// Whether its request has ended, so that it is removed once no task names it.
    dropped: bool,
}

impl Subgraph {
    /// Returns the number of nodes that may be submitted.
    fn ready(&self) -> u32 {
        if self.dropped || self.retried > 0 { 0 } else { self.nodes.ready() }
    }
}

/// One node in a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeRow {
    pub(super) subgraph: SubgraphIx,
    pub(super) of: Origin,
    /// Number of the node in its segment.
    pub(super) node: u32,
    /// Number of steps that it runs, from that node on; 1 if its type does not run several.
    pub(super) steps: u32,
    /// Slot that it writes its state to.
    pub(super) slot: u32,
    /// Whether it was launched ahead and depends on a node that failed. Its outcome is ignored, and it runs again.
    pub(super) is_void: bool,
}

impl NodeRow {
    /// Returns its request's index. The request may have ended.
    pub(crate) fn request(&self) -> RequestIx {
        self.of.request
    }

    /// Returns its number among all nodes of its request.
    pub(crate) fn number(&self) -> u32 {
        self.of.nodes_before + self.node
    }

    /// Returns the number, in its segment, of the last node that it runs.
    pub(super) fn last(&self) -> u32 {
        self.node + (self.steps - 1)
    }
}

/// Subgraphs with ready nodes and the same pin.
#[derive(Debug, Default)]
struct Ready {
    places: Places,
    nodes: u64,
}

/// The queue of one cell type.
#[derive(Debug)]
struct Queue {
    knobs: CellKnobs,
    /// Subgraphs in the order in which they were added, with gaps.
    places: Vec<SubgraphIx>,
    live: usize,
    free: Ready,
    pinned: Vec<(LaneId, Ready)>,
    running: u32,
}

/// The queues of all cell types of a version.
#[derive(Debug)]
pub(super) struct Queues {
    queues: Vec<Queue>,
    subgraphs: Slab<Subgraph>,
    /// Failed rows that run again, in the order in which their tasks failed.
    retries: VecDeque<Retry>,
}

impl Queues {
    pub(super) fn new(cells: &[CellKnobs]) -> Self {
        Self { queues: cells.iter().map(Queue::new).collect(), subgraphs: Slab::new(), retries: VecDeque::new() }
    }

    /// Whether a subgraph is in its queue.
    pub(super) fn holds(&self, ix: SubgraphIx) -> bool {
        let Some(subgraph) = self.subgraphs.get(ix as usize) else { return false };
        self.queues[usize::from(subgraph.cell.0)].places.get(subgraph.place as usize) == Some(&ix)
    }

    /// Whether an index names an incomplete subgraph of this journey.
    pub(super) fn is_of(&self, ix: SubgraphIx, journey: JourneyIx) -> bool {
        let subgraph = self.subgraphs.get(ix as usize);
        subgraph.is_some_and(|subgraph| !subgraph.dropped && subgraph.of.journey == journey)
    }

    /// Checks that each queue counts the ready nodes of its subgraphs by pin. `retried` are the rows of retries in
    /// flight.
    pub(super) fn check<'a>(&self, retried: impl Iterator<Item = &'a NodeRow>) -> Result<(), String> {
        self.check_retries(retried)?;
        for (cell, queue) in self.queues.iter().enumerate() {
            let mut live = 0;
            let mut nodes: BTreeMap<Option<LaneId>, u64> = BTreeMap::new();
            for &ix in queue.places.iter().filter(|ix| **ix != NOBODY) {
                let Some(subgraph) = self.subgraphs.get(ix as usize) else {
                    return Err(format!("the queue of cell {cell} names subgraph {ix}, which is gone"));
                };
                live += 1;
                *nodes.entry(subgraph.pinned).or_default() += u64::from(subgraph.ready());
                let Subgraph { tasks, pinned, .. } = *subgraph;
                hold!(pinned.is_some() == (tasks > 0), "subgraph {ix} has {tasks} tasks and is pinned to {pinned:?}");
            }
            let pinned = queue.pinned.iter().map(|(lane, ready)| (Some(*lane), ready.nodes));
            for (pin, counted) in pinned.chain([(None, queue.free.nodes)]) {
                let there = nodes.get(&pin).copied().unwrap_or_default();
                hold!(there == counted, "the queue of cell {cell} counts {counted} ready nodes of {there} for {pin:?}");
            }
            hold!(live == queue.live, "the queue of cell {cell} counts {} subgraphs of {live}", queue.live);
        }
        Ok(())
    }

    pub(super) fn get(&self, subgraph: SubgraphIx) -> &Subgraph {
        &self.subgraphs[subgraph as usize]
    }

    /// Appends a subgraph to its type's queue.
    pub(super) fn push(&mut self, of: Origin, cell: CellId, nodes: Nodes) -> SubgraphIx {
        let ix = self.subgraphs.vacant_key() as SubgraphIx;
        self.make_room(cell);
        let queue = &mut self.queues[usize::from(cell.0)];
        let place = queue.places.len() as u32;
        queue.places.push(ix);
        queue.live += 1;
        let mut subgraph =
            Subgraph { nodes, of, cell, place, pinned: None, tasks: 0, counted: 0, retried: 0, dropped: false };
        queue.count(&mut subgraph, None);
        self.subgraphs.insert(subgraph);
        ix
    }

    /// Changes a subgraph because an input became available, a loop ended or nodes run again, and updates its queue.
    pub(super) fn change<T>(&mut self, subgraph: SubgraphIx, change: impl FnOnce(&mut Subgraph) -> T) -> T {
        let subgraph = &mut self.subgraphs[subgraph as usize];
        let changed = change(subgraph);
        self.queues[usize::from(subgraph.cell.0)].count(subgraph, subgraph.pinned);
        changed
    }

    /// Whether any node is ready, on any lane.
    pub(super) fn has_ready(&self) -> bool {
        !self.retries.is_empty() || self.queues.iter().any(Queue::has_ready)
    }

    /// Whether a node of a type is ready, on any lane.
    pub(super) fn is_ready(&self, cell: CellId) -> bool {
        self.queues[usize::from(cell.0)].has_ready()
    }

    /// Returns the number of nodes that a lane could run now.
    pub(super) fn ready(&self, cell: CellId, lane: LaneId) -> u64 {
        let queue = &self.queues[usize::from(cell.0)];
        queue.free.nodes + queue.pinned(lane).map_or(0, |ready| ready.nodes)
    }

    /// Returns the cell type that a lane runs next (lines 4 to 10): among the types with a full batch the one of
    /// highest priority; if there is none, among the types without a running task; otherwise among all. A retry counts
    /// as a full batch and goes before others of its priority. `waiting` counts nodes of unboarded requests, `brought`
    /// nodes in queues of other versions. `last` is a type that counts as running although the lane is idle.
    pub(super) fn choose(
        &self,
        lane: LaneId,
        last: Option<CellId>,
        waiting: impl Fn(CellId) -> u64,
        brought: impl Fn(CellId) -> u64,
    ) -> Option<CellId> {
        let ready = |cell: CellId| self.ready(cell, lane) + waiting(cell);
        let again = |cell: CellId| self.has_retry(cell, lane);
        let all = (0..self.queues.len()).map(|cell| CellId(cell as u16));
        let cells = || all.clone().filter(|cell| ready(*cell) > 0 || again(*cell));
        let queue = |cell: CellId| &self.queues[usize::from(cell.0)];
        // The lowest number is the highest priority, as with requests; ties go to the first type.
        let best = |of: &dyn Fn(CellId) -> bool| {
            cells().filter(|cell| of(*cell)).min_by_key(|cell| (queue(*cell).knobs.priority, !again(*cell)))
        };
        let is_full = |cell: CellId| ready(cell) + brought(cell) >= u64::from(queue(cell).knobs.max_rows);
        best(&|cell| is_full(cell) || again(cell))
            .or_else(|| best(&|cell| queue(cell).running == 0 && last != Some(cell)))
            .or_else(|| best(&|_| true))
    }

    /// Forms a task of up to `most` rows, and at most the type's largest batch, in queue order (lines 24 to 32). The
    /// nodes count as done for the rest of their subgraph (line 18). A subgraph stays on its lane until its last task
    /// has completed (line 20). `slot_of` is called once per row, and maps an index among the request's slots to the
    /// slot.
    pub(super) fn form(
        &mut self,
        cell: CellId,
        lane: LaneId,
        most: u32,
        mut slot_of: impl FnMut(Origin, usize) -> u32,
    ) -> Vec<NodeRow> {
        let ready = self.ready(cell, lane);
        let queue = &mut self.queues[usize::from(cell.0)];
        let most = most.min(queue.knobs.max_rows) as usize;
        let mut rows = Vec::with_capacity(ready.min(most as u64) as usize);
        let mut from = 0;
        while let Some((word, mut places)) = queue.next_places(lane, from)
            && rows.len() < most
        {
            from = word + 1;
            // Handling one place changes no other, so the word need not be read again.
            while places != 0 && rows.len() < most {
                let place = word * Places::WORD + places.trailing_zeros() as usize;
                places &= places - 1;
                let ix = queue.places[place];
                let subgraph = &mut self.subgraphs[ix as usize];
                for _ in 0..(subgraph.ready() as usize).min(most - rows.len()) {
                    let Some(node) = subgraph.nodes.submit() else { break };
                    let slot = slot_of(subgraph.of, subgraph.nodes.slot(node));
                    rows.push(NodeRow { subgraph: ix, of: subgraph.of, node, steps: 1, slot, is_void: false });
                }
                subgraph.tasks += 1;
                queue.count(subgraph, Some(lane));
            }
        }
        queue.running += u32::from(!rows.is_empty());
        rows
    }

    /// Returns how many steps each row of a task that has just been formed could run.
    pub(super) fn steps_left(&self, rows: &[NodeRow]) -> SmallVec<[u32; 64]> {
        rows.iter().map(|row| row.steps + self.get(row.subgraph).nodes.left()).collect()
    }

    /// Lets each row of a task that has just been formed run up to `steps` steps, if it has as many.
    pub(super) fn lengthen(&mut self, rows: &mut [NodeRow], steps: u32) {
        for row in rows {
            row.steps += self.change(row.subgraph, |subgraph| subgraph.nodes.submit_more(steps - row.steps));
        }
    }

    /// Handles the end of a task. Subgraphs that no task names any more may run on any lane again.
    pub(super) fn completed(&mut self, cell: CellId, rows: &[NodeRow]) {
        let queue = &mut self.queues[usize::from(cell.0)];
        queue.running -= 1;
        for of_subgraph in rows.chunk_by(|one, other| one.subgraph == other.subgraph) {
            let ix = of_subgraph[0].subgraph as usize;
            let subgraph = &mut self.subgraphs[ix];
            subgraph.tasks -= 1;
            if subgraph.tasks == 0 {
                queue.count(subgraph, None);
                if subgraph.dropped {
                    self.subgraphs.remove(ix);
                }
            }
        }
    }

    /// Whether all nodes of a subgraph that count have run. Steps beyond the outcome that ended a loop do not count.
    pub(super) fn is_complete(&self, subgraph: SubgraphIx) -> bool {
        let subgraph = self.get(subgraph);
        let runs_on = subgraph.tasks > 0 || subgraph.retried > 0;
        subgraph.nodes.has_ended() || (!runs_on && subgraph.nodes.are_submitted())
    }

    /// Removes a subgraph from its queue. It is forgotten when its last task has ended.
    pub(super) fn remove(&mut self, ix: SubgraphIx) {
        let subgraph = &mut self.subgraphs[ix as usize];
        let queue = &mut self.queues[usize::from(subgraph.cell.0)];
        subgraph.dropped = true;
        queue.count(subgraph, subgraph.pinned);
        queue.places[subgraph.place as usize] = NOBODY;
        queue.live -= 1;
        if subgraph.tasks == 0 {
            self.subgraphs.remove(ix as usize);
        }
    }

    /// Compacts a queue of which half is empty, before it would grow.
    fn make_room(&mut self, cell: CellId) {
        let queue = &mut self.queues[usize::from(cell.0)];
        let places = queue.places.len();
        if places < FEW_PLACES || places < queue.places.capacity() || queue.live > places / 2 {
            return;
        }
        let order: Vec<SubgraphIx> = queue.places.iter().copied().filter(|ix| *ix != NOBODY).collect();
        queue.places.clear();
        queue.places.extend(&order);
        queue.free = Ready::default();
        queue.pinned.clear();
        for (place, ix) in (0..).zip(order) {
            let subgraph = &mut self.subgraphs[ix as usize];
            (subgraph.place, subgraph.counted) = (place, 0);
            queue.count(subgraph, subgraph.pinned);
        }
    }
}

impl Queue {
    fn new(knobs: &CellKnobs) -> Self {
        let (places, pinned) = (Vec::new(), Vec::new());
        Self { knobs: knobs.clone(), places, live: 0, free: Ready::default(), pinned, running: 0 }
    }

    fn has_ready(&self) -> bool {
        self.free.nodes > 0 || self.pinned.iter().any(|(_, ready)| ready.nodes > 0)
    }

    fn pinned(&self, lane: LaneId) -> Option<&Ready> {
        self.pinned.iter().find(|(own, _)| *own == lane).map(|(_, ready)| ready)
    }

    fn ready_mut(&mut self, pinned: Option<LaneId>) -> &mut Ready {
        let Some(lane) = pinned else { return &mut self.free };
        let at = self.pinned.iter().position(|(own, _)| *own == lane).unwrap_or_else(|| {
            self.pinned.push((lane, Ready::default()));
            self.pinned.len() - 1
        });
        &mut self.pinned[at].1
    }

    /// Sets a subgraph's pin, and updates the count of its ready nodes.
    fn count(&mut self, subgraph: &mut Subgraph, pinned: Option<LaneId>) {
        let nodes = subgraph.ready();
        let counted = std::mem::replace(&mut subgraph.counted, nodes);
        let before = std::mem::replace(&mut subgraph.pinned, pinned);
        let stays = before == pinned && counted > 0;
        if counted > 0 {
            let ready = self.ready_mut(before);
            ready.nodes -= u64::from(counted);
            if !stays || nodes == 0 {
                ready.places.remove(subgraph.place);
            }
        }
        if nodes > 0 {
            let ready = self.ready_mut(pinned);
            ready.nodes += u64::from(nodes);
            if !stays {
                ready.places.insert(subgraph.place);
            }
        }
    }

    /// Returns the first word of places, from `from` on, with nodes for this lane.
    fn next_places(&self, lane: LaneId, from: usize) -> Option<(usize, u64)> {
        let none = Places::default();
        let own = self.pinned(lane).map_or(&none, |ready| &ready.places);
        self.free.places.next_word(own, from)
    }
}
