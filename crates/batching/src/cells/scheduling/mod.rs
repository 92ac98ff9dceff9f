//! Scheduling of requests that unfold into cells (BatchMaker section 4.3): which requests board, and which task a lane
//! gets.

mod chunks;
mod gain;
mod paper;
mod slack;
mod waits;

use std::collections::BTreeSet;

use paternoster_model::CellId;
use smallvec::SmallVec;

use self::{chunks::Chunks, gain::Steps, paper::Round, waits::Waits};
use super::{graphs::CellGraphs, queues::NodeRow, slots::slots};
use crate::{
    Action, Arrival, Bucket, CellKind, CellKnobs, CellularKnobs, End, Instant, LaneId, Ns, Rejection, RowSpan,
    ShapeClass, Task, TaskId,
    arbiter::Lane,
    cost::{Quantile, class_of},
    graph::time_of,
    ids::RequestIx,
    ledger::{InFlightTask, Ledger, RequestState},
    offer::{OfferOutcome, PoolView, TimeLimit},
    policy::queue_delay::QueueDelay,
    queue::SubQueue,
    steps::MEDIAN,
    version::{StepContext, Tightest, Version},
};

/// Number of boarded requests, earliest targets first, and of waiting ones, whose slack is considered.
const LOOKED_AT: usize = 32;

/// How long after a request found no memory to board it looks again. Memory that others free does not step the core.
const MEMORY_WAIT_NS: Ns = 10_000_000;

/// The cells of one version.
#[derive(Debug)]
pub(crate) struct Cells {
    pub(crate) cells: CellGraphs,
    knobs: CellularKnobs,
    rounds: Vec<Round>,
    steps: Steps,
    waits: Waits,
    pub(super) chunks: Chunks,
    /// Boarded requests by target, without those that are late; empty if the version has no objective.
    targets: BTreeSet<(Instant, RequestIx)>,
    /// How waiting requests wait for a fuller batch, if they do.
    queue_delay: Option<QueueDelay>,
    /// Requests that have run, but whose responses leave together with those of the requests that they were merged
    /// with.
    pub(crate) merged: BTreeSet<RequestIx>,
    /// Tasks in flight in launch order, with one entry per task and cell.
    pub(crate) tasks: Vec<CellTask>,
}

/// The part of a task in flight that runs one cell.
#[derive(Debug)]
pub(crate) struct CellTask {
    pub(crate) id: TaskId,
    pub(crate) cell: CellId,
    pub(crate) nodes: Vec<NodeRow>,
    /// Most steps of any row of the task.
    pub(crate) steps: u32,
    /// Whether these nodes are of a failed task and run again.
    pub(crate) is_retry: bool,
}

/// The task that nodes are launched in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) lane: LaneId,
    pub(crate) task: TaskId,
    /// Number of rows that the task already has.
    pub(crate) at: u32,
    /// Most steps that a row may run, as the version that leads the task has chosen them; `None`: none has.
    pub(crate) steps: Option<u32>,
    /// Longest predicted time of a task of more than one step; `None`: no limit.
    pub(crate) most_ns: Option<Ns>,
}

impl Cells {
    pub(crate) fn new(knobs: &CellularKnobs) -> Self {
        let knobs = CellularKnobs { cells: knobs.cells.iter().map(CellKnobs::bounded).collect(), ..knobs.clone() };
        let cells = CellGraphs::new(&knobs.cells, &knobs.segments, knobs.slots, knobs.frontier);
        let steps = Steps::new(knobs.cells.len(), &knobs.segments);
        let most = knobs.cells.get(usize::from(cells.first().0)).map_or(1, |cell| cell.max_rows);
        let queue_delay = knobs.window.as_ref().map(|window| QueueDelay::new(most, window));
        let waits = Waits::new(knobs.cells.len());
        Self {
            cells,
            knobs,
            rounds: Vec::new(),
            steps,
            waits,
            chunks: Chunks::default(),
            targets: BTreeSet::new(),
            queue_delay,
            merged: BTreeSet::new(),
            tasks: Vec::new(),
        }
    }

    /// Returns why a request can never board, if so.
    pub(crate) fn refusal(&self, arrival: &Arrival) -> Option<End> {
        if arrival.graph.len() != self.knobs.segments.len() || arrival.rows != 1 {
            return Some(End::Failed);
        }
        (slots(&arrival.graph) > self.knobs.slots).then_some(End::Rejected(Rejection::NoMemory))
    }

    /// Whether any node is ready, on any lane.
    pub(crate) fn has_ready(&self) -> bool {
        self.cells.queues.has_ready()
    }

    /// Whether a node is ready that this lane may run.
    pub(crate) fn has_ready_on(&self, lane: LaneId) -> bool {
        self.types().any(|cell| self.cells.queues.ready(cell, lane) > 0)
            || self.cells.queues.first_retry(lane).is_some()
    }

    /// Returns all types, in the order in which segments name them.
    pub(crate) fn types(&self) -> impl Iterator<Item = CellId> + use<> {
        (0..self.knobs.cells.len()).map(|cell| CellId(cell as u16))
    }

    /// Returns the kind of a type whose tasks may be shared across versions.
    pub(crate) fn kind(&self, cell: CellId) -> Option<CellKind> {
        let shares = self.knobs.lazy.is_none() && self.knobs.merge_requests.is_none();
        self.knobs.cells[usize::from(cell.0)].kind.filter(|_| shares)
    }

    /// Returns the largest batch of a type.
    pub(crate) fn most_rows(&self, cell: CellId) -> u32 {
        self.knobs.cells[usize::from(cell.0)].max_rows
    }

    /// Whether requests are merged and some of them still run.
    pub(crate) fn is_merged(&self) -> bool {
        self.knobs.merge_requests.is_some() && self.cells.under_way > 0
    }

    // ## (pending | aboard | merged) => ended
    pub(crate) fn end(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx, end: End) {
        let state = context.ledger[request_ix].state;
        if state == RequestState::Aboard {
            self.targets.remove(&(context.version.target(&context.ledger[request_ix]), request_ix));
            self.cells.drop(request_ix);
        }
        if state == RequestState::Aboard && end == End::Completed && self.is_merged() {
            self.merged.insert(request_ix);
            context.hold(request_ix, RequestState::Merged(end));
        } else {
            self.merged.remove(&request_ix);
            context.end(request_ix, end);
        }
        if !self.merged.is_empty() && !self.is_merged() {
            context.release_merged(std::mem::take(&mut self.merged));
        }
    }

    /// Returns the boarded requests with the earliest targets.
    fn first_targets(&self) -> impl Iterator<Item = RequestIx> {
        self.targets.iter().take(LOOKED_AT).map(|&(_, request_ix)| request_ix)
    }

    /// Removes targets that have passed, which can no longer be met.
    fn forget_targets(&mut self, now: Instant) {
        while self.targets.first().is_some_and(|&(target, _)| target <= now) {
            self.targets.pop_first();
        }
    }
}

impl Cells {
    // ## open lane => task
    pub(crate) fn offer(
        &mut self,
        context: &mut StepContext<'_>,
        lane: &Lane,
        id: TaskId,
        PoolView { limit, brought, .. }: PoolView<'_>,
    ) -> OfferOutcome {
        self.refuse_late(context);
        self.forget_targets(context.now);
        let newcomers = self.newcomers(context.version, context.ledger);
        let most_newcomers = match (&self.queue_delay, newcomers) {
            (Some(queue_delay), Some(newcomers)) => {
                if let Some(due) =
                    queue_delay.waits_until(newcomers.rows, newcomers.iter(context.ledger), context.ledger)
                    && due > context.now
                {
                    return OfferOutcome::NotBefore(due);
                }
                queue_delay.cut(context.now, newcomers.iter(context.ledger), context.ledger)
            }
            _ => u32::MAX,
        };
        let waiting = self.may_board(context.version, context.ledger);
        let first = first_waiting(context.version, context.ledger);
        let nothing = match first.filter(|&request_ix| !context.ledger[request_ix].has_room()) {
            Some(_) => OfferOutcome::NotBefore(context.now + MEMORY_WAIT_NS),
            None => OfferOutcome::Nothing,
        };
        let cell = if self.knobs.paper {
            self.choose_by_priority(lane, waiting, brought)
        } else {
            self.choose_by_gain(context, lane.id, waiting, brought)
        };
        let Some(cell) = cell else { return nothing };
        let mut most = self.most_rows(cell).min(most_newcomers);
        if let Some(TimeLimit { most_ns, longer_from }) = limit {
            most = context.version.costs.rows_within(cell, most, &class_of(1), most_ns);
            if let (0, Some(from)) = (most, longer_from) {
                return OfferOutcome::NotBefore(from);
            }
        }
        let most_ns = limit.map(|limit| limit.most_ns);
        let place = Place { lane: lane.id, task: id, at: 0, steps: None, most_ns };
        // A retry runs exactly the nodes of its half. Additional nodes would make it harder to find the one at fault.
        let spans = match self.cells.launch_retry(cell, lane.id) {
            Some(nodes) => self.launch_nodes(context, place, cell, nodes, true),
            None => self.add_to_task(context, place, cell, most.max(1), brought),
        };
        if spans.is_empty() {
            return nothing;
        }
        OfferOutcome::Launched(launch(context, lane.id, id, cell, spans))
    }

    /// Returns how many nodes the version could add to another version's task of a cell of the same kind.
    pub(crate) fn would_bring(&self, version: &Version, ledger: &Ledger, cell: CellId, lane: LaneId) -> u64 {
        if !version.may_run() {
            return 0;
        }
        let waiting = if cell == self.cells.first() { self.may_board(version, ledger) } else { 0 };
        self.cells.queues.ready(cell, lane) + waiting
    }

    /// Returns the waiting requests if nothing else could run.
    fn newcomers<'v>(&self, version: &'v Version, ledger: &Ledger) -> Option<&'v SubQueue> {
        let mut sub_queues = version.pending.sub_queues.iter().map(|(_, sub_queue)| sub_queue);
        let first = sub_queues.find(|sub_queue| sub_queue.iter(ledger).next().is_some())?;
        (!self.has_ready()).then_some(first)
    }

    /// Rejects queue heads that can no longer meet their target.
    fn refuse_late(&mut self, context: &mut StepContext<'_>) {
        while let Some(request_ix) = first_waiting(context.version, context.ledger)
            && self.is_late(context, request_ix)
        {
            context.version.graph.refused(&context.ledger[request_ix].graph);
            self.end(context, request_ix, End::Rejected(Rejection::Late));
        }
    }

    /// Returns how many waiting requests may board; an upper bound limited by the free slots, and by whether there is
    /// memory for the first.
    fn may_board(&self, version: &Version, ledger: &Ledger) -> u64 {
        let free = self.cells.free_slots.count();
        let first = first_waiting(version, ledger);
        let fits = |request_ix| slots(&ledger[request_ix].graph) <= free && ledger[request_ix].has_room();
        let fits = !self.is_merged() && first.is_some_and(fits);
        if fits { (version.pending.ready() as u64).min(u64::from(free)) } else { 0 }
    }

    /// Adds up to `most` nodes of a type to a lane's task, behind the rows that it has. Waiting requests board first if
    /// their first node is of that type. `brought` counts nodes that other versions will add, by type.
    pub(crate) fn add_to_task(
        &mut self,
        context: &mut StepContext<'_>,
        place: Place,
        cell: CellId,
        most: u32,
        brought: &[(CellId, u64)],
    ) -> Vec<RowSpan> {
        if cell == self.cells.first() && !self.is_merged() {
            self.board(context, cell, place.lane, most);
        }
        let mut nodes = self.cells.form(cell, place.lane, most);
        if nodes.is_empty() {
            return Vec::new();
        }
        self.lengthen(context, place, cell, &mut nodes, brought);
        self.launch_nodes(context, place, cell, nodes, false)
    }

    /// Records that nodes are in a task, and returns their spans.
    fn launch_nodes(
        &mut self,
        context: &mut StepContext<'_>,
        place: Place,
        cell: CellId,
        nodes: Vec<NodeRow>,
        is_retry: bool,
    ) -> Vec<RowSpan> {
        let span = |(at, row): (u32, &NodeRow)| {
            let req = context.ledger[row.request()].req;
            RowSpan { req, start: row.number(), count: row.steps, at, slot: row.slot }
        };
        let spans: Vec<RowSpan> = (place.at..).zip(&nodes).map(span).collect();
        let rows = spans.len() as u32;
        let own_nodes = nodes.iter().map(|row| row.steps).fold(0, u32::saturating_add);
        let steps = place.steps.into_iter().chain(nodes.iter().map(|row| row.steps)).max().unwrap_or(1);
        let class = class_of(steps);
        let duration_ns = context.version.costs.predict(cell, rows, &class, Quantile::Mean);
        self.waits.launched(cell, duration_ns.unwrap_or(0));
        self.tasks.push(CellTask { id: place.task, cell, nodes, steps, is_retry });
        let bucket = context.version.costs.bucket(cell, rows, &class);
        let in_flight = InFlightTask::new(place.task, place.lane, context.version.ix, rows, bucket, context.now);
        let in_flight = InFlightTask { own_nodes, ..in_flight };
        let is_new = context.ledger.launched(in_flight);
        // A task counts once, however many cells of the group it runs.
        context.version.running += u32::from(is_new);
        context.version.totals.tasks_launched += u64::from(is_new);
        context.version.totals.rows_launched += u64::from(rows);
        spans
    }

    /// Boards requests in queue order until the first type has `most` ready nodes, the limit of merged requests is
    /// reached, or slots or memory are used up.
    fn board(&mut self, context: &mut StepContext<'_>, cell: CellId, lane: LaneId, most: u32) {
        while let Some(request_ix) = first_waiting(context.version, context.ledger) {
            let is_full = match self.knobs.merge_requests {
                Some(requests) => self.cells.under_way >= requests,
                None => self.cells.queues.ready(cell, lane) >= u64::from(most),
            };
            let request = &context.ledger[request_ix];
            let has_memory = || request.memory.as_ref().is_none_or(|memory| memory.0.take());
            if is_full || slots(&request.graph) > self.cells.free_slots.count() || !has_memory() {
                return;
            }
            context.board(request_ix);
            let graph = std::mem::take(&mut context.ledger[request_ix].graph);
            if let Some(nodes) = context.version.graph.nodes(&graph, 0, 0, MEDIAN) {
                self.steps.boarded(&nodes);
            }
            self.cells.board(request_ix, graph);
            if context.version.objective_ns.is_some() {
                self.targets.insert((context.version.target(&context.ledger[request_ix]), request_ix));
            }
        }
    }

    /// Returns the least slack of boarded requests whose target can probably be met, with each remaining node in a task
    /// of its own.
    pub(crate) fn tightest(&self, version: &Version, now: Instant, ledger: &Ledger) -> Option<Tightest> {
        let slack = self.first_targets().filter_map(|request_ix| {
            let needs_ns = time_of(&version.costs, &self.nodes_left(version, request_ix)?, |_| 1, Quantile::P99)?;
            version.target(&ledger[request_ix]).checked_since(now + needs_ns)
        });
        let slack_ns = slack.min()?;
        Some(Tightest { slack_ns, stage_ns: version.stage_ns(1, &ShapeClass::default())? })
    }
}

/// Returns the waiting requests in the order in which they board.
fn unboarded<'v>(version: &'v Version, ledger: &'v Ledger) -> impl Iterator<Item = RequestIx> + 'v {
    version.pending.sub_queues.iter().flat_map(|(_, sub_queue)| sub_queue.iter(ledger))
}

/// Returns the request that boards next.
fn first_waiting(version: &Version, ledger: &Ledger) -> Option<RequestIx> {
    unboarded(version, ledger).next()
}

fn launch(context: &mut StepContext<'_>, lane: LaneId, id: TaskId, cell: CellId, spans: Vec<RowSpan>) -> Option<Ns> {
    let rows = spans.len() as u32;
    let steps = longest(&spans);
    let class = class_of(steps);
    let bucket = Bucket { rows: context.version.costs.bucket(cell, rows, &class), class };
    context.actions.push(Action::Launch(Box::new(Task {
        id,
        model: context.version.model,
        cell,
        bucket,
        lane,
        batch: id.0,
        rows: spans,
        reads: SmallVec::new(),
        writes: None,
        after: SmallVec::new(),
    })));
    predict(context.version, cell, rows, steps)
}

/// Returns the most steps of any row of a task.
pub(crate) fn longest(rows: &[RowSpan]) -> u32 {
    rows.iter().map(|row| row.count).max().unwrap_or(1)
}

/// Returns the predicted duration of a task.
pub(crate) fn predict(version: &Version, cell: CellId, rows: u32, steps: u32) -> Option<Ns> {
    version.costs.predict(cell, rows, &class_of(steps), Quantile::Mean)
}
