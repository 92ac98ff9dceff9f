//! Groups whose requests unfold into cells (BatchMaker section 4.3): who boards, and which task a lane is given.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::{
    Action, Arrival, Bucket, CellId, CellKind, CellularKnobs, End, LaneId, Ns, Rejection, RowSpan, ShapeClass, Task,
    TaskId,
    arbiter::Lane,
    cells::{Cells, NodeRow, slots},
    cells_lazy::Catching,
    cost::Quantile,
    group::{Answer, Group, StepContext, board_request},
    ids::{GroupIx, RequestIx},
    ledger::{InFlightTask, Ledger, RequestState},
};

/// What a group of cells has in place of batches.
#[derive(Debug)]
pub(super) struct Cellular {
    pub(super) cells: Cells,
    knobs: CellularKnobs,
    rounds: Vec<Round>,
    /// Requests that have boarded, by their targets; none where the version has no objective.
    targets: BTreeSet<(Ns, RequestIx)>,
    /// Under `lazy`.
    pub(super) catching: Option<Catching>,
    /// Requests that have run, but whose replies leave with those of the requests that they were merged with.
    merged: BTreeSet<RequestIx>,
}

/// Tasks of one type that a lane was given in a row.
#[derive(Clone, Copy, Debug)]
struct Round {
    lane: LaneId,
    cell: CellId,
    tasks: u16,
}

/// Where nodes are launched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) lane: LaneId,
    pub(super) task: TaskId,
    /// Rows that the task has by then.
    pub(super) at: u32,
}

impl Cellular {
    pub(super) fn new(knobs: &CellularKnobs) -> Self {
        let cells = Cells::new(&knobs.cells, &knobs.segments, knobs.slots, knobs.frontier);
        let catching = knobs.lazy.map(Catching::new);
        let (rounds, targets, merged) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        Self { cells, knobs: knobs.clone(), rounds, targets, catching, merged }
    }

    /// Why a request can never board.
    pub(super) fn refusal(&self, arrival: &Arrival) -> Option<End> {
        if arrival.graph.len() != self.knobs.segments.len() || arrival.rows != 1 {
            return Some(End::Failed);
        }
        (slots(&arrival.graph) > self.knobs.slots).then_some(End::Rejected(Rejection::NoMemory))
    }

    /// Whether any node is ready, on whatever lane.
    pub(super) fn has_ready(&self) -> bool {
        self.cells.has_ready()
    }

    /// Whether any node is ready that a lane may run.
    pub(super) fn has_ready_on(&self, lane: LaneId) -> bool {
        self.types().any(|cell| self.cells.ready(cell, lane) > 0) || self.cells.first_retry(lane).is_some()
    }

    /// A request that has boarded is no longer under way, whether it has run to its end or not.
    pub(super) fn left(&mut self, request: RequestIx, target: Ns) {
        self.targets.remove(&(target, request));
        self.cells.drop(request);
    }

    /// All types, in the order in which segments name them.
    pub(super) fn types(&self) -> impl Iterator<Item = CellId> + use<> {
        (0..self.knobs.cells.len()).map(|cell| CellId(cell as u16))
    }

    /// The kind of a type whose tasks may be shared.
    pub(super) fn kind(&self, cell: CellId) -> Option<CellKind> {
        let shares = self.catching.is_none() && self.knobs.merge_requests.is_none();
        self.knobs.cells[usize::from(cell.0)].kind.filter(|_| shares)
    }

    /// Largest batch of a type.
    pub(super) fn most_rows(&self, cell: CellId) -> u32 {
        self.knobs.cells[usize::from(cell.0)].max_rows
    }

    /// Whether requests are merged and some of them still run.
    pub(super) fn is_merged(&self) -> bool {
        self.knobs.merge_requests.is_some() && self.cells.under_way() > 0
    }

    /// A request has run, of whose merged graph others still run: whether its reply waits for them.
    pub(super) fn keep_reply(&mut self, request: RequestIx) -> bool {
        self.is_merged() && self.merged.insert(request)
    }

    /// Whether a request's reply waits for others.
    pub(super) fn keeps_reply(&self, request: RequestIx) -> bool {
        self.merged.contains(&request)
    }

    /// Forgets a request whose reply waited, if it did.
    pub(super) fn reply_left(&mut self, request: RequestIx) {
        self.merged.remove(&request);
    }

    /// The requests whose replies waited for others, all of which have run now.
    pub(super) fn merged_replies(&mut self) -> BTreeSet<RequestIx> {
        if self.is_merged() { BTreeSet::new() } else { std::mem::take(&mut self.merged) }
    }

    /// The request aboard whose target comes first.
    pub(super) fn first_target(&self) -> Option<RequestIx> {
        self.targets.first().map(|&(_, request_ix)| request_ix)
    }

    /// The type that a lane runs now: that of its round, while it is to go on, else by algorithm 1. `waiting` are
    /// requests that may board, each with a node of the first type at least; `brought` are nodes of other versions
    /// that would share a task of a type.
    fn choose(&mut self, lane: &Lane, waiting: u64, brought: &[(CellId, u64)]) -> Option<CellId> {
        let first = self.cells.first();
        let joined = |cell: CellId| if cell == first { waiting } else { 0 };
        let brought = |cell: CellId| brought.iter().find(|(own, _)| *own == cell).map_or(0, |(_, nodes)| *nodes);
        let at = self.rounds.iter().position(|round| round.lane == lane.id).unwrap_or_else(|| {
            self.rounds.push(Round { lane: lane.id, cell: first, tasks: 0 });
            self.rounds.len() - 1
        });
        let round = &mut self.rounds[at];
        let own = self.cells.ready(round.cell, lane.id) + joined(round.cell);
        let enough = u64::from(self.knobs.cells[usize::from(round.cell.0)].min_followup.max(1));
        // A lane that nothing is on is scheduled anew: the round is for submitting ahead.
        if !lane.is_idle()
            && (1..self.knobs.max_tasks).contains(&round.tasks)
            && own > 0
            && own + brought(round.cell) >= enough
        {
            round.tasks += 1;
            return Some(round.cell);
        }
        // A lane that takes one task at a time never has one on it when the next is chosen: that of the last would
        // always go first.
        let last = (lane.is_idle() && round.tasks > 0).then_some(round.cell);
        let cell = self.cells.choose(lane.id, last, joined, brought)?;
        *round = Round { lane: lane.id, cell, tasks: 1 };
        Some(cell)
    }
}

impl Group {
    // ## open lane => task
    pub(super) fn offer_cells(
        &mut self,
        context: &mut StepContext<'_>,
        group: GroupIx,
        lane: &Lane,
        id: TaskId,
        brought: &[(CellId, u64)],
    ) -> Answer {
        self.refuse_late(context);
        let waiting = self.may_board(context.ledger);
        let Some(cellular) = &mut self.cellular else { return Answer::Nothing };
        let cell = match cellular.catching {
            Some(_) => self.choose_lazily(context.now, context.ledger, lane.id, waiting),
            None => cellular.choose(lane, waiting, brought),
        };
        let (Some(cell), Some(cellular)) = (cell, &mut self.cellular) else { return Answer::Nothing };
        let place = Place { lane: lane.id, task: id, at: 0 };
        if let Some(nodes) = cellular.cells.launch_retry(cell, lane.id) {
            let spans = self.launch_nodes(context, group, place, cell, nodes, true);
            return Answer::Launched(self.launch_cells(context, lane, id, cell, spans));
        }
        let most = cellular.most_rows(cell);
        let spans = self.add_to_task(context, group, place, cell, most);
        if spans.is_empty() {
            return Answer::Nothing;
        }
        Answer::Launched(self.launch_cells(context, lane, id, cell, spans))
    }

    /// Nodes that the group would bring to a task of another, of a cell of the same kind.
    pub(super) fn would_bring(&self, ledger: &Ledger, cell: CellId, lane: LaneId) -> u64 {
        let Some(cellular) = self.cellular.as_ref().filter(|_| self.may_run()) else { return 0 };
        let waiting = if cell == cellular.cells.first() { self.may_board(ledger) } else { 0 };
        cellular.cells.ready(cell, lane) + waiting
    }

    /// Turns away whoever could not meet its target any more, as far as anybody is next.
    fn refuse_late(&mut self, context: &mut StepContext<'_>) {
        while let Some(request_ix) = self.first_waiting(context.ledger)
            && self.is_late(context.now, context.ledger, request_ix)
        {
            self.end(context, request_ix, End::Rejected(Rejection::Late));
        }
    }

    /// Requests that wait and may board, as far as there is room for their state.
    pub(super) fn may_board(&self, ledger: &Ledger) -> u64 {
        let Some(cellular) = &self.cellular else { return 0 };
        let free = cellular.cells.free_slots();
        let first = self.first_waiting(ledger);
        let fits = !cellular.is_merged() && first.is_some_and(|request_ix| slots(&ledger[request_ix].graph) <= free);
        if fits { (self.pending.ready() as u64).min(u64::from(free)) } else { 0 }
    }

    /// Who boards next.
    fn first_waiting(&self, ledger: &Ledger) -> Option<RequestIx> {
        self.pending.sub_queues.iter().find_map(|(_, sub_queue)| sub_queue.iter(ledger).next())
    }

    /// Adds up to `most` nodes of a type to a lane's task, behind those that it has. Waiting requests board first, if
    /// their first node is of that type.
    pub(super) fn add_to_task(
        &mut self,
        context: &mut StepContext<'_>,
        group: GroupIx,
        place: Place,
        cell: CellId,
        most: u32,
    ) -> Vec<RowSpan> {
        let is_first = |cellular: &Cellular| cell == cellular.cells.first() && !cellular.is_merged();
        if self.cellular.as_ref().is_some_and(is_first) {
            self.board_cells(context, cell, place.lane, most);
        }
        let Some(cellular) = &mut self.cellular else { return Vec::new() };
        let nodes = cellular.cells.form(cell, place.lane, most);
        if nodes.is_empty() {
            return Vec::new();
        }
        self.launch_nodes(context, group, place, cell, nodes, false)
    }

    /// Nodes are in a task from now on.
    fn launch_nodes(
        &mut self,
        context: &mut StepContext<'_>,
        group: GroupIx,
        place: Place,
        cell: CellId,
        nodes: Vec<NodeRow>,
        is_retry: bool,
    ) -> Vec<RowSpan> {
        let span = |(at, row): (u32, &NodeRow)| {
            let req = context.ledger[row.request()].req;
            RowSpan { req, start: row.number(), count: 1, at }
        };
        let spans: Vec<RowSpan> = (place.at..).zip(&nodes).map(span).collect();
        let rows = spans.len() as u32;
        let is_new = context.ledger.launched(InFlightTask {
            task: place.task,
            lane: place.lane,
            group,
            batch: 0,
            lineage: place.task.0,
            cell,
            requests: rows,
            rows,
            launched: context.now,
            class: ShapeClass::default(),
            ahead: Vec::new(),
            nodes,
            is_retry,
            is_followed: false,
        });
        // A task counts once, however many cells of the group it runs.
        self.running += u32::from(is_new);
        self.totals.tasks_launched += u64::from(is_new);
        self.totals.rows_launched += u64::from(rows);
        spans
    }

    /// Lets requests board in queue order until the first type has `most` ready nodes, the limit of merged requests is
    /// reached, or no slots for their state are left.
    fn board_cells(&mut self, context: &mut StepContext<'_>, cell: CellId, lane: LaneId, most: u32) {
        while let Some(request_ix) = self.first_waiting(context.ledger) {
            let Some(cellular) = &mut self.cellular else { return };
            let is_full = match cellular.knobs.merge_requests {
                Some(requests) => cellular.cells.under_way() >= requests,
                None => cellular.cells.ready(cell, lane) >= u64::from(most),
            };
            if is_full || slots(&context.ledger[request_ix].graph) > cellular.cells.free_slots() {
                return;
            }
            let RequestState::Queued { sub_queue, .. } = context.ledger[request_ix].state else { return };
            self.pending.remove(context.ledger, request_ix);
            self.touched(context.ledger, sub_queue);
            self.pending.retire(sub_queue);
            board_request(context.now, context.ledger, context.timers, request_ix);
            let Some(cellular) = &mut self.cellular else { return };
            let graph = std::mem::take(&mut context.ledger[request_ix].graph);
            if let Some(catching) = &mut cellular.catching {
                catching.boarded(&cellular.cells, &graph);
            }
            cellular.cells.board(request_ix, graph);
            if self.objective_ns.is_some() {
                cellular.targets.insert((context.ledger[request_ix].target(self.objective_ns), request_ix));
            }
        }
    }

    fn launch_cells(
        &mut self,
        context: &mut StepContext<'_>,
        lane: &Lane,
        id: TaskId,
        cell: CellId,
        spans: Vec<RowSpan>,
    ) -> Option<Ns> {
        let rows = spans.len() as u32;
        context.actions.push(Action::Launch(Task {
            id,
            model: self.model,
            cell,
            bucket: Bucket { rows, class: ShapeClass::default() },
            lane: lane.id,
            batch: id.0,
            rows: spans,
            reads: SmallVec::new(),
            writes: None,
            after: SmallVec::new(),
        }));
        self.predict_cells(lane, cell, rows)
    }

    /// How long a task will have a lane that takes work ahead.
    pub(super) fn predict_cells(&self, lane: &Lane, cell: CellId, rows: u32) -> Option<Ns> {
        let predict = || self.costs.predict(cell, rows, &ShapeClass::default(), Quantile::Mean);
        lane.looks_ahead().then(predict).flatten()
    }
}
