//! Plays a world: lanes run their tasks in order, and nodes read when their task begins and write when it ends.

mod faults;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
};

use paternoster_batching::{
    Action, Arrival, CellKnobs, CellularKnobs, ChunkKnobs, Core, End, Event, Instant, LaneId, ModelId, Policy, ReqId,
    RowSpan, Task, TaskId,
};
use paternoster_model::{Next, RowOutcome, unfold::Unfolded};
use paternoster_testing::rng::{Rng, mix};

use super::{
    Rare,
    again::Again,
    buckets,
    sequences::Sequences,
    slots::{Planted, Slots},
    world::{Asked, World, alone, last_root, value},
};

/// An event that will happen. Of simultaneous events, ends of tasks come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Ends(TaskId),
    LaneBack(u16),
    Arrives(usize),
    IsCancelled(usize),
    Wake,
}

/// A task on a lane.
struct Flying {
    task: Task,
    /// The values that its rows will write, once it has begun.
    writes: Option<Vec<u64>>,
    /// Rows that were launched ahead of one that failed, and whose values are dropped.
    void: BTreeSet<usize>,
    /// Whether nodes of a failed task run again in it.
    is_retry: bool,
    /// Whether it fails, because the device failed when it refused the task behind it.
    fails: bool,
}

/// A request that has arrived.
struct Known {
    asked: Asked,
    /// The state that each segment's chain carries.
    carried: Vec<Option<u64>>,
    /// Values of tree nodes, keyed by segment and node.
    nodes: BTreeMap<(usize, u32), u64>,
    /// Segments whose loop has ended.
    ended: BTreeSet<usize>,
    /// Number of nodes in flight.
    flying: u32,
    boarded: bool,
    last_lane: Option<LaneId>,
    /// Whether a lane with nodes of it was lost, or it has ended otherwise.
    is_masked: bool,
    /// Whether a node of it failed alone, or was lost with its lane.
    may_fail: bool,
    end: Option<End>,
}

/// Where a task writes: a chain's state, or a node of a tree.
type Written = (u64, usize, Option<u32>);

pub(super) struct Run {
    world: World,
    core: Core,
    rng: Rng,
    now: Instant,
    due: BinaryHeap<Reverse<(Instant, Due)>>,
    wake: Option<Instant>,
    lanes: BTreeMap<u16, VecDeque<Flying>>,
    known: BTreeMap<u64, Known>,
    writing: BTreeSet<Written>,
    /// Slots held by requests of each model.
    slots: Vec<u32>,
    tables: Slots,
    /// When each model's merged requests began to board.
    merged_since: Vec<Instant>,
    /// The sequences of each model that has any.
    sequences: Vec<Option<Sequences>>,
    again: Again,
    /// Requests that have left the core and will arrive there again.
    moving: Vec<Arrival>,
    /// Those of them that were cancelled meanwhile.
    given_up: BTreeSet<ReqId>,
    rare: Rare,
}

/// Returns the most steps of any row of a task.
fn longest(task: &Task) -> u32 {
    task.rows.iter().map(|row| row.count).max().unwrap_or(1)
}

fn slots(graph: &[Unfolded]) -> u32 {
    let of_one = |unfolded: &Unfolded| match unfolded {
        Unfolded::Steps(_) => 1,
        Unfolded::Tree(topology) => topology.nodes(),
    };
    graph.iter().map(of_one).max().unwrap_or(1)
}

impl Run {
    pub(super) fn new(world: World, seed: u64, planted: Option<Planted>) -> Self {
        let mut core = Core::new();
        for (model, knobs) in (0..).zip(&world.models) {
            core.step(Instant::ZERO, Event::ModelUp(ModelId(model), Box::new(knobs.clone())));
        }
        let mut lanes = BTreeMap::new();
        for (lane, knobs) in (0..).zip(&world.lanes) {
            core.step(Instant::ZERO, Event::LaneUp(LaneId(lane), *knobs));
            lanes.insert(lane, VecDeque::new());
        }
        let mut due = BinaryHeap::new();
        due.extend(world.requests.iter().enumerate().map(|(number, asked)| Reverse((asked.at, Due::Arrives(number)))));
        let (slots, merged_since) = (vec![0; world.models.len()], vec![Instant::ZERO; world.models.len()]);
        let rng = Rng::new(mix(seed));
        let (known, writing, rare) = (BTreeMap::new(), BTreeSet::new(), Rare::default());
        let sequences = world.models.iter().map(|knobs| match &knobs.policy {
            Policy::Cellular(cellular) => cellular.sequences.map(Sequences::new),
            _ => None,
        });
        let (sequences, again) = (sequences.collect(), Again::default());
        let (now, wake) = (Instant::ZERO, None);
        Self {
            world,
            core,
            rng,
            now,
            due,
            wake,
            lanes,
            known,
            writing,
            slots,
            tables: Slots::new(planted),
            merged_since,
            sequences,
            again,
            moving: Vec::new(),
            given_up: BTreeSet::new(),
            rare,
        }
    }

    pub(super) fn play(mut self) -> Result<Rare, String> {
        while let Some(Reverse((at, due))) = self.due.pop() {
            if due == Due::Wake && self.wake != Some(at) {
                // This wake-up was replaced by another. Moving requests must still arrive, even if nothing else is due.
                self.move_requests()?;
                continue;
            }
            self.now = self.now.max(at);
            match due {
                Due::Arrives(number) => self.arrive(number)?,
                Due::IsCancelled(number) => self.cancel(number)?,
                Due::Ends(task) => self.land(task)?,
                Due::LaneBack(lane) => {
                    self.lanes.insert(lane, VecDeque::new());
                    self.act(Event::LaneUp(LaneId(lane), self.world.lanes[usize::from(lane)]))?;
                }
                Due::Wake => {
                    self.wake = None;
                    self.act(Event::Wake)?;
                }
            }
            self.lose_a_lane()?;
            self.refuse_a_launch()?;
            self.move_requests()?;
        }
        if let Some((req, _)) = self.known.iter().find(|(_, known)| known.end.is_none()) {
            return Err(format!("request {req} waits forever"));
        }
        for sequences in self.sequences.iter().flatten() {
            if !sequences.is_empty() {
                return Err(format!("sequences are left: {sequences:?}"));
            }
            self.rare.sequences_reclaimed += sequences.reclaimed;
            self.rare.sequences_superseded += sequences.superseded;
            self.rare.requests_orphaned += sequences.orphans;
            self.rare.sequences_waited += sequences.waited_for_slot;
        }
        for model in 0..self.world.models.len() as u32 {
            let actions = self.core.step(self.now, Event::ModelDraining(ModelId(model)));
            let drained = actions.iter().any(|action| matches!(action, Action::Drained(_)));
            if !drained {
                return Err(format!("model {model} does not drain"));
            }
        }
        Ok(self.rare)
    }

    fn arrive(&mut self, number: usize) -> Result<(), String> {
        let asked = self.world.requests[number].clone();
        let req = number as u64;
        self.rare.requests += 1;
        if let Some(after) = asked.cancelled_after {
            self.due.push(Reverse((self.now + after, Due::IsCancelled(number))));
        }
        let arrival = Arrival {
            queue_deadline: asked.boards_within.map(|within| self.now + within),
            deadline: asked.expires_after.map(|after| self.now + after),
            graph: asked.graph.clone().into(),
            sequence: asked.sequence.clone(),
            ..Arrival::new(ReqId(req), ModelId(asked.model as u32), 1)
        };
        let (model, needs) = (asked.model, slots(&asked.graph));
        let carried = vec![None; asked.graph.len()];
        let (nodes, ended) = (BTreeMap::new(), BTreeSet::new());
        let known = Known {
            asked,
            carried,
            nodes,
            ended,
            flying: 0,
            boarded: false,
            last_lane: None,
            is_masked: false,
            may_fail: false,
            end: None,
        };
        self.known.insert(req, known);
        self.act(Event::Arrived(arrival))?;
        let merges = self.merge_requests(model).is_some();
        self.rare.waited_for_merged += u64::from(merges && !self.known[&req].boarded && self.aboard(model) > 0);
        let idle = self.lanes.values().any(VecDeque::is_empty);
        let known = &self.known[&req];
        let waits = idle && !known.boarded && known.end.is_none();
        self.rare.waited_for_room += u64::from(waits && self.slots[model] + needs > self.room(model));
        Ok(())
    }

    /// Recalls waiting requests, as for another device, and submits them again at once or later.
    fn move_requests(&mut self) -> Result<(), String> {
        if self.rng.below(40) == 0 {
            self.act(Event::Recall)?;
            self.rare.requests_moved += self.moving.len() as u64;
        }
        if !self.moving.is_empty() && (self.due.is_empty() || self.rng.below(3) == 0) {
            let moving = std::mem::take(&mut self.moving);
            let given_up: Vec<ReqId> =
                moving.iter().map(|arrival| arrival.req).filter(|req| self.given_up.remove(req)).collect();
            self.act(Event::TakenIn(moving))?;
            for req in given_up {
                self.act(Event::Cancelled(req))?;
            }
        }
        Ok(())
    }

    fn merge_requests(&self, model: usize) -> Option<usize> {
        match &self.world.models[model].policy {
            Policy::Cellular(cellular) => cellular.merge_requests.map(|requests| requests as usize),
            _ => None,
        }
    }

    /// Returns the number of a model's requests that have boarded and not ended.
    fn aboard(&self, model: usize) -> usize {
        let is_aboard = |known: &&Known| known.asked.model == model && known.boarded && known.end.is_none();
        self.known.values().filter(is_aboard).count()
    }

    /// Checks that merged requests board together, and that their responses leave together.
    fn boards_merged(&mut self, req: u64, model: usize, most: usize) -> Result<(), String> {
        let aboard = self.aboard(model);
        if aboard == 0 {
            self.merged_since[model] = self.now;
        }
        let asked = &self.known[&req].asked;
        if asked.at > self.merged_since[model] {
            return Err(format!(
                "request {req} came at {:?}, and boards beside others since {:?}",
                asked.at, self.merged_since[model]
            ));
        }
        if aboard >= most {
            return Err(format!("request {req} boards beside {aboard} others of at most {most}"));
        }
        Ok(())
    }

    fn room(&self, model: usize) -> u32 {
        match &self.world.models[model].policy {
            Policy::Cellular(cellular) => cellular.slots,
            _ => 0,
        }
    }

    fn cancel(&mut self, number: usize) -> Result<(), String> {
        let known = &self.known[&(number as u64)];
        self.rare.cancelled_aboard += u64::from(known.end.is_none() && known.flying > 0);
        let req = ReqId(number as u64);
        if self.moving.iter().any(|arrival| arrival.req == req) {
            self.given_up.insert(req);
        }
        self.act(Event::Cancelled(req))
    }

    fn act(&mut self, event: Event<'_>) -> Result<(), String> {
        let actions = self.core.step(self.now, event);
        self.core.check()?;
        let mut replied = BTreeSet::new();
        for action in actions {
            match action {
                Action::Launch(task) => {
                    self.all_have_replied(&mut replied)?;
                    self.launch(*task)?;
                }
                Action::Finish { req, end } => {
                    self.finish(req, end)?;
                    if end == End::Completed {
                        replied.insert(self.known[&req.0].asked.model);
                    }
                }
                Action::WakeAt(at) => {
                    self.wake = Some(at.max(self.now));
                    self.due.push(Reverse((at.max(self.now), Due::Wake)));
                }
                Action::Joined { req, sequence } => {
                    let asked = &self.known.get(&req.0).ok_or("a request joins that never came")?.asked;
                    let request = asked.sequence.as_ref().ok_or("a request joins a sequence that named none")?;
                    let sequences = self.sequences[asked.model].as_mut().ok_or("a model has no sequences")?;
                    sequences.joined(self.now, req.0, request, sequence)?;
                }
                Action::SequenceOver { model, sequence } => {
                    let sequences = self.sequences[model.0 as usize].as_mut().ok_or("a model has no sequences")?;
                    sequences.over(self.now, sequence)?;
                }
                Action::Recalled(arrival) => self.moving.push(*arrival),
                Action::Emit { .. } | Action::Drained(_) | Action::UnitsFreed { .. } => {}
            }
        }
        self.all_have_replied(&mut replied)
    }

    /// Checks that responses of merged requests leave together.
    fn all_have_replied(&self, models: &mut BTreeSet<usize>) -> Result<(), String> {
        for model in std::mem::take(models) {
            if self.merge_requests(model).is_some() && self.aboard(model) > 0 {
                return Err(format!(
                    "{} requests of model {model} run on behind the replies of others",
                    self.aboard(model)
                ));
            }
        }
        Ok(())
    }

    fn launch(&mut self, mut task: Task) -> Result<(), String> {
        self.tables.plant(&mut task, |req| self.known[&req].asked.model);
        self.rare.tasks += 1;
        let is_retry = self.again.launched(&task)?;
        self.is_of_one_type(&task, is_retry)?;
        self.rare.retries += u64::from(is_retry);
        let requests: BTreeSet<u64> = task.rows.iter().map(|row| row.req.0).collect();
        self.rare.same_request_twice += u64::from(requests.len() < task.rows.len());
        for row in &task.rows {
            let model = self.known.get(&row.req.0).map_or(0, |known| known.asked.model);
            let is_new = self.known.get(&row.req.0).is_some_and(|known| !known.boarded);
            if let (true, Some(most)) = (is_new, self.merge_requests(model)) {
                self.boards_merged(row.req.0, model, most)?;
            }
            let known = self.known.get_mut(&row.req.0).ok_or("a request runs that never came")?;
            if known.end.is_some() {
                return Err(format!("{row:?} runs behind the end of its request"));
            }
            if !std::mem::replace(&mut known.boarded, true) {
                self.slots[model] += slots(&known.asked.graph);
            }
            known.flying += 1;
            let place = self.written(row).2.unwrap_or(0);
            self.tables.launched(model, self.room(model), place, row)?;
            if let Some(sequences) = &mut self.sequences[model] {
                sequences.launched(row.req.0)?;
            }
            let known = self.known.get_mut(&row.req.0).ok_or("a request runs that never came")?;
            let moved = known.last_lane.is_some_and(|lane| lane != task.lane);
            self.rare.moved_lane += u64::from(moved);
            known.last_lane = Some(task.lane);
        }
        if let Some(model) = (0..self.slots.len()).find(|model| self.slots[*model] > self.room(*model)) {
            return Err(format!("{} slots are held of {}", self.slots[model], self.room(model)));
        }
        let lane = task.lane.0;
        let queue = self.lanes.get_mut(&lane).ok_or_else(|| format!("lane {lane} is lost"))?;
        queue.push_back(Flying { task, writes: None, void: BTreeSet::new(), is_retry, fails: false });
        if queue.len() == 1 { self.begin(lane) } else { Ok(()) }
    }

    /// Checks that the rows of a task are nodes of its cell, or of cells of the same kind that share it, and no more
    /// than any of these cells allows.
    fn is_of_one_type(&mut self, task: &Task, is_retry: bool) -> Result<(), String> {
        let leader = self.cellular(task.model.0 as usize)?;
        let own = &leader.cells[usize::from(task.cell.0)];
        let largest = |cell: &CellKnobs| cell.max_rows.min(cell.buckets.last().copied().unwrap_or(u32::MAX));
        let (mut most, mut is_shared, chunks) = (largest(own), false, own.chunks);
        buckets::check(task, &own.buckets)?;
        for row in &task.rows {
            let asked = &self.known.get(&row.req.0).ok_or("a request runs that never came")?.asked;
            let theirs = self.cellular(asked.model)?;
            let (id, cell) = asked.cell(row.start, theirs);
            most = most.min(largest(cell));
            let nodes = asked.graph[asked.place(row.start).0].nodes() - asked.place(row.start).1;
            let most_steps = if cell.chunks.is_none() || leader.paper { 1 } else { nodes };
            if !(1..=most_steps).contains(&row.count) {
                return Err(format!("{row:?} runs steps, expected 1 to {most_steps}"));
            }
            if (asked.model, id) == (task.model.0 as usize, task.cell) {
                continue;
            }
            is_shared = true;
            let shares = |of: &CellularKnobs| of.lazy.is_none() && of.merge_requests.is_none();
            if own.kind.is_none() || own.kind != cell.kind || !shares(leader) || !shares(theirs) {
                return Err(format!("{row:?} is no node of cell {} of model {}", task.cell.0, task.model.0));
            }
        }
        if task.rows.is_empty() || task.rows.len() > most as usize {
            return Err(format!("{:?} has {} rows of at most {most}", task.id, task.rows.len()));
        }
        self.rare.shared_tasks += u64::from(is_shared);
        let (longest, shortest) = (longest(task), task.rows.iter().map(|row| row.count).min().unwrap_or(1));
        self.rare.chunks += u64::from(longest > 1);
        self.rare.ragged_chunks += u64::from(longest > shortest);
        if let Some(ChunkKnobs { is_padded, most_row_steps, powers_up_to }) = chunks.filter(|_| longest > 1) {
            if powers_up_to.is_some_and(|most| longest > most) {
                return Err(format!("{task:?} runs more than {powers_up_to:?} steps"));
            }
            if longest * task.rows.len() as u32 > most_row_steps {
                return Err(format!("{task:?} runs more than {most_row_steps} steps of rows"));
            }
            // Rows of several models need not have equal steps left, and a half of theirs may be of one. The executor
            // runs such rows by themselves.
            if !is_padded && !is_shared && !is_retry && longest > shortest {
                return Err(format!("{task:?} runs different numbers of steps, and its cell has no input for them"));
            }
        }
        Ok(())
    }

    fn cellular(&self, model: usize) -> Result<&CellularKnobs, String> {
        match &self.world.models[model].policy {
            Policy::Cellular(cellular) => Ok(cellular),
            _ => Err(format!("model {model} has no cells")),
        }
    }

    /// Begins the first task of a lane: its nodes read.
    fn begin(&mut self, lane: u16) -> Result<(), String> {
        let Some((task, void)) = self.lanes[&lane].front().map(|flying| (flying.task.clone(), flying.void.clone()))
        else {
            return Ok(());
        };
        let mut writes = Vec::with_capacity(task.rows.len());
        for (at, row) in task.rows.iter().enumerate() {
            // The values of a failed task were never written, but whatever is computed from them is dropped.
            let is_masked = self.known[&row.req.0].is_masked || void.contains(&at);
            writes.push(self.read(row).or_else(|broken| if is_masked { Ok(0) } else { Err(broken) })?);
        }
        for row in &task.rows {
            let written = self.written(row);
            if !self.writing.insert(written) {
                return Err(format!("{row:?} writes what another row writes now"));
            }
        }
        if let Some(flying) = self.lanes.get_mut(&lane).and_then(VecDeque::front_mut) {
            flying.writes = Some(writes);
        }
        let takes = 50 + self.rng.exponential(100) + 10 * u64::from(task.bucket.rows) * u64::from(longest(&task));
        self.due.push(Reverse((self.now + takes, Due::Ends(task.id))));
        Ok(())
    }

    fn written(&self, row: &RowSpan) -> Written {
        let asked = &self.known[&row.req.0].asked;
        let (segment, node) = asked.place(row.start);
        let is_tree = matches!(asked.graph[segment], Unfolded::Tree(_));
        (row.req.0, segment, is_tree.then_some(node))
    }

    /// Returns the value of the last node of a row, from what it reads when it begins.
    fn read(&self, row: &RowSpan) -> Result<u64, String> {
        let (segment, node) = self.known[&row.req.0].asked.place(row.start);
        let first = self.read_first(row)?;
        Ok((node + 1..node + row.count).fold(first, |before, node| value(segment, node, &[before])))
    }

    /// Returns the value of the first node of a row.
    fn read_first(&self, row: &RowSpan) -> Result<u64, String> {
        let known = &self.known[&row.req.0];
        let (segment, node) = known.asked.place(row.start);
        let writes = |node: Option<u32>| self.writing.contains(&(row.req.0, segment, node));
        match &known.asked.graph[segment] {
            Unfolded::Steps(_) if node > 0 => {
                let carried = known.carried[segment].filter(|_| !writes(None));
                let carried = carried.ok_or_else(|| format!("{row:?} begins before the step before it has ended"))?;
                let carried = self.tables.read(known.asked.model, segment, row.req.0, 0, carried)?;
                Ok(value(segment, node, &[carried]))
            }
            Unfolded::Steps(_) => self.before(row, segment).map(|input| value(segment, node, &[input])),
            Unfolded::Tree(topology) if topology.children_of(node).is_empty() => {
                self.before(row, segment).map(|input| value(segment, node, &[input]))
            }
            Unfolded::Tree(topology) => {
                let reads = topology.children_of(node).iter().map(|&child| {
                    let read = known.nodes.get(&(segment, child)).copied().filter(|_| !writes(Some(child)));
                    let read = read.ok_or_else(|| format!("{row:?} begins before its child {child} has ended"))?;
                    self.tables.read(known.asked.model, segment, row.req.0, child, read)
                });
                Ok(value(segment, node, &reads.collect::<Result<Vec<u64>, String>>()?))
            }
        }
    }

    /// Returns the output of the preceding segments.
    fn before(&self, row: &RowSpan, segment: usize) -> Result<u64, String> {
        let Some(last) = segment.checked_sub(1) else { return Ok(mix(row.req.0) ^ self.state(row.req.0)) };
        self.left_in_slot(row.req.0, last)?.ok_or_else(|| format!("{row:?} begins before segment {last} has ended"))
    }

    /// Returns the output of a completed segment, as in the slot of its last step or root.
    fn left_in_slot(&self, req: u64, segment: usize) -> Result<Option<u64>, String> {
        let Some(left) = self.left(req, segment) else { return Ok(None) };
        let asked = &self.known[&req].asked;
        let place = match &asked.graph[segment] {
            Unfolded::Steps(_) => 0,
            Unfolded::Tree(topology) => last_root(topology),
        };
        self.tables.read(asked.model, segment, req, place, left).map(Some)
    }

    /// Returns the state that a request's sequence has left for it.
    fn state(&self, req: u64) -> u64 {
        let model = self.known[&req].asked.model;
        self.sequences[model].as_ref().map_or(0, |sequences| sequences.state(req))
    }

    /// Returns the output of a completed segment.
    fn left(&self, req: u64, segment: usize) -> Option<u64> {
        let known = &self.known[&req];
        match &known.asked.graph[segment] {
            Unfolded::Steps(_) => known.carried[segment].filter(|_| known.ended.contains(&segment)),
            Unfolded::Tree(topology) => {
                let all = (0..topology.nodes()).all(|node| known.nodes.contains_key(&(segment, node)));
                known.nodes.get(&(segment, last_root(topology))).copied().filter(|_| all)
            }
        }
    }

    /// Ends the first task of its lane: its nodes write.
    fn land(&mut self, id: TaskId) -> Result<(), String> {
        let found = self.lanes.iter().find(|(_, queue)| queue.front().is_some_and(|flying| flying.task.id == id));
        // Its lane has been lost.
        let Some(lane) = found.map(|(&lane, _)| lane) else { return Ok(()) };
        let Some(Flying { task, writes, void, fails, .. }) = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front)
        else {
            return Ok(());
        };
        let fails = self.fails(&task) || fails;
        let rows = task.rows.iter().enumerate();
        let count = rows.filter(|(at, row)| !void.contains(at) && self.counts(row)).map(|(_, row)| *row);
        let count: Vec<RowSpan> = count.collect();
        let nobody = task.rows.iter().all(|row| self.known[&row.req.0].end.is_some());
        self.rare.task_of_nobody += u64::from(nobody);
        let mut outcomes = Vec::with_capacity(task.rows.len());
        for (at, (row, value)) in task.rows.iter().zip(writes.unwrap_or_default()).enumerate() {
            let is_void = void.contains(&at);
            outcomes.push(self.write(row, value, fails || is_void, is_void));
        }
        self.release(&task);
        if fails {
            self.rare.failed_tasks += 1;
            let more = task.rows.iter().any(|row| self.known[&row.req.0].flying > 0);
            self.rare.failed_with_more_in_flight += u64::from(more);
            self.run_again(&task, &count);
        }
        self.begin(lane)?;
        if fails {
            self.act(Event::Failed { task: id })?
        } else {
            self.act(Event::Completed { task: id, rows: &outcomes })?
        }
        match (fails && task.rows.len() == 1).then(|| count.first()).flatten() {
            Some(row) if self.known[&row.req.0].end.is_none() => {
                Err(format!("{row:?} failed alone, but its request lives"))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether an earlier step of a row's loop was its last.
    fn is_past_the_end(&self, row: &RowSpan) -> bool {
        let (_, segment, node) = self.written(row);
        node.is_none() && self.known[&row.req.0].ended.contains(&segment)
    }

    /// Writes a row's value and returns its outcome. The outcome of a void row may be anything.
    fn write(&mut self, row: &RowSpan, written: u64, is_lost: bool, is_void: bool) -> RowOutcome {
        let key = self.written(row);
        self.writing.remove(&key);
        let (_, segment, node) = key;
        let next = if is_void { [Next::On, Next::Done, Next::Failed][self.rng.below(3) as usize] } else { Next::On };
        let on = RowOutcome { next, emitted: is_void };
        let Some(known) = self.known.get_mut(&row.req.0) else { return on };
        if node.is_none() && known.ended.contains(&segment) {
            self.rare.ran_past_the_end += 1;
            return on;
        }
        if is_lost || known.is_masked {
            return on;
        }
        self.tables.write(known.asked.model, segment, row.slot, written);
        if let Some(node) = node {
            known.nodes.insert((segment, node), written);
            return on;
        }
        known.carried[segment] = Some(written);
        let (_, step) = known.asked.place(row.start + row.count - 1);
        if step + 1 < known.asked.steps[segment] {
            return on;
        }
        known.ended.insert(segment);
        let nodes = known.asked.graph[segment].nodes();
        let beyond = row.start + row.count..row.start + row.count - 1 + nodes - step;
        self.rare.ended_before_step_ran_again +=
            u64::from(self.again.forget(|req, node| req == row.req.0 && beyond.contains(&node)));
        let is_early = step + 1 < nodes;
        RowOutcome { next: if is_early { Next::Done } else { Next::On }, emitted: false }
    }

    /// Removes a task's rows from those in flight, and frees the slots of requests that have ended.
    fn release(&mut self, task: &Task) {
        for row in &task.rows {
            if let Some(known) = self.known.get_mut(&row.req.0) {
                known.flying -= 1;
            }
            self.give_back(row.req.0);
        }
    }

    fn give_back(&mut self, req: u64) {
        let Some(known) = self.known.get_mut(&req) else { return };
        if known.boarded && known.flying == 0 && known.end.is_some() {
            known.boarded = false;
            self.slots[known.asked.model] -= slots(&known.asked.graph);
            self.tables.release(known.asked.model, req);
        }
    }

    fn finish(&mut self, req: ReqId, end: End) -> Result<(), String> {
        let known = self.known.get_mut(&req.0).ok_or("a request ends that never came")?;
        if let Some(before) = known.end.replace(end) {
            return Err(format!("{req:?} ends {end:?} after {before:?}"));
        }
        known.is_masked |= end != End::Completed;
        if end == End::Failed && !known.may_fail {
            return Err(format!("{req:?} fails, though no node of it failed alone"));
        }
        self.rare.ended_before_retry += u64::from(self.again.forget(|own, _| own == req.0));
        let Some(known) = self.known.get(&req.0) else { return Ok(()) };
        let (model, needs) = (known.asked.model, slots(&known.asked.graph));
        self.rare.never_fits += u64::from(needs > self.room(model));
        let flying = known.flying > 0;
        let left = if end == End::Completed { self.left_in_slot(req.0, known.asked.graph.len() - 1)? } else { None };
        if flying {
            self.tables.ended_in_flight(model, req.0);
        }
        self.give_back(req.0);
        let (asked, sequence) = (self.known[&req.0].asked.clone(), self.state(req.0));
        let expected = alone(req.0, sequence, &asked);
        if end == End::Completed {
            match left {
                Some(found) if found == expected => {}
                found => return Err(format!("{req:?} made {found:?}, alone {expected}")),
            }
        }
        match (&mut self.sequences[model], &asked.sequence) {
            (Some(sequences), Some(request)) => sequences.finished(self.now, req.0, request, end, expected),
            _ => Ok(()),
        }
    }
}
