//! A group: the requests of one loaded version, from its pending queue through its batches to their ends. What happens
//! to requests that wait is here; how batches travel is in `launching`, how requests end in `endings`.

use std::collections::BTreeMap;

use super::{
    Action, Actions, Arrival, CellId, Counters, End, Knobs, LaneId, ModelId, Ns, Rejection, RowSpan, TaskId,
    TimeoutAction,
    arbiter::Lane,
    batch::BatchSpan,
    cellular::Cellular,
    cost::Costs,
    ids::{GroupIx, NOT_THEIR_TURN, RequestIx, SubQueueIx},
    knobs,
    ledger::{Ledger, NEVER, Request, RequestState},
    lengths::LengthGroups,
    list::{InOrder, Links, List},
    pending::{BatchKey, LengthBucketing, Pending},
    pipeline::Pipeline,
    policy::{Decision, Policy, Selection},
    queue_rules::QueueRules,
    sequences::Sequences,
    table::BatchTable,
    targets::{LatestStarts, Targets},
    timers::Timers,
};

/// What one step of the core works with beside a group.
#[derive(Debug)]
pub(super) struct StepContext<'a> {
    pub(super) now: Ns,
    pub(super) ledger: &'a mut Ledger,
    pub(super) timers: &'a mut Timers,
    pub(super) actions: &'a mut Actions,
}

/// What a group sees of the pool as it is offered a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolView<'a> {
    /// Time that other models can spare before one of their targets is missed; none without targets.
    pub(super) neighbours_slack_ns: Option<Ns>,
    /// Lanes there are.
    pub(super) lanes: u32,
    /// Other lanes that have nothing to do.
    pub(super) idle_besides: u32,
    /// By cell type: nodes of other versions that would share a task of it; only those that some would.
    pub(super) brought: &'a [(CellId, u64)],
}

/// What a group makes of an offered lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It launched a task there, predicted to take so long.
    Launched(Option<Ns>),
    /// It has nothing to launch before this time.
    NotBefore(Ns),
    /// It has nothing to launch.
    Nothing,
}

/// State of one loaded version.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) model: ModelId,
    pub(super) max_rows: u32,
    pub(super) max_in_flight: u32,
    pub(super) objective_ns: Option<Ns>,
    pub(super) weight: u32,
    pub(super) costs: Costs,
    /// Runs that the costs have been corrected by.
    pub(super) learned: u64,
    /// Whether anything asks for the costs.
    pub(super) learns: bool,
    /// How lengths are rounded, when requests of equal keys may share a batch.
    merges: Option<LengthBucketing>,
    pub(super) pending: Pending,
    /// Where there is an objective: when the sub-queues of `pending` must start.
    pub(super) latest_starts: LatestStarts,
    pub(super) policy: Policy,
    pub(super) table: BatchTable,
    pub(super) pipeline: Pipeline,
    /// Rows of requests whose clients have yet to take responses, in no batch meanwhile.
    pub(super) paused: BTreeMap<RequestIx, Vec<BatchSpan>>,
    /// In place of batches, where requests unfold into cells.
    pub(super) cellular: Option<Cellular>,
    /// Where requests belong to sequences.
    pub(super) sequences: Option<Sequences>,
    /// Nothing runs before this many requests wait; 0 once they did.
    hold_until_waiting: u32,
    /// All live requests in order of arrival, when replies are to leave in that order.
    pub(super) order: Option<List<InOrder>>,
    draining: bool,
    /// A request ended while its rows were in batches.
    pub(super) untidy: bool,
    /// Requests that have not ended.
    pub(super) live: usize,
    /// Tasks on lanes.
    pub(super) running: u32,
    pub(super) totals: Counters,
}

impl Group {
    pub(super) fn new(model: ModelId, knobs: &Knobs) -> Self {
        let serial = knobs.policy == knobs::Policy::Serial;
        let max_rows = knobs.max_batch_rows.max(1);
        let pipeline = Pipeline::new(&knobs.stages, knobs.buffer_pairs);
        let boards_by_target = matches!(knobs.policy, knobs::Policy::Lazy(_));
        let keeps_targets = boards_by_target || knobs.objective_ns.is_some();
        let targets = keeps_targets.then(|| Targets::new(knobs.objective_ns));
        let (cellular, sequences) = match &knobs.policy {
            knobs::Policy::Cellular(cellular) => {
                (Some(Cellular::new(cellular)), cellular.sequences.map(Sequences::new))
            }
            _ => (None, None),
        };
        Self {
            model,
            max_rows,
            max_in_flight: knobs.max_in_flight.max(1),
            objective_ns: knobs.objective_ns,
            weight: knobs.weight,
            costs: Costs::new(usize::from(pipeline.stages()), max_rows, knobs.latencies.as_ref()),
            learned: 0,
            learns: knobs.objective_ns.is_some()
                || !matches!(knobs.policy, knobs::Policy::Serial | knobs::Policy::Window(_)),
            merges: (knobs.mergeable && !serial && cellular.is_none()).then(|| length_bucketing(knobs)),
            cellular,
            pending: Pending::new(QueueRules::new(&knobs.queueing), targets),
            latest_starts: LatestStarts::default(),
            policy: Policy::new(knobs),
            table: BatchTable::new(pipeline.stages(), max_rows),
            pipeline,
            paused: BTreeMap::new(),
            // Each sequence is in order anyway; a reply that waits for another sequence would keep its own from ending.
            order: (knobs.queueing.preserve_ordering && sequences.is_none()).then(List::new),
            sequences,
            hold_until_waiting: knobs.queueing.hold_until_waiting,
            draining: false,
            untidy: false,
            live: 0,
            running: 0,
            totals: Counters::default(),
        }
    }

    pub(super) fn drain(&mut self) {
        self.draining = true;
        self.hold_until_waiting = 0;
    }

    /// Whether the group may be forgotten.
    pub(super) fn is_drained(&self) -> bool {
        self.draining && self.live == 0 && self.running == 0
    }

    /// Whether it may have one more task in flight.
    pub(super) fn may_run(&self) -> bool {
        self.hold_until_waiting == 0 && self.running < self.max_in_flight
    }

    /// Whether a lane would be of use, as far as can be told without a decision of the policy.
    pub(super) fn wants_lane(&self) -> bool {
        let has_ready = || self.cellular.as_ref().is_some_and(Cellular::has_ready);
        self.may_run() && (self.table.has_queued() || self.pending.ready() > 0 || has_ready())
    }

    /// Whether its next decision depends on how much time other models can spare.
    pub(super) fn asks_for_neighbours(&self) -> bool {
        self.policy.asks_for_neighbours() && self.pending.ready() > 0 && self.table.newest().is_some()
    }

    /// Whether it may launch on a lane what is bound to it.
    pub(super) fn has_ready_on(&self, lane: LaneId) -> bool {
        self.may_run() && self.cellular.as_ref().is_some_and(|cellular| cellular.has_ready_on(lane))
    }

    /// Whether what it has ready may be bound to a lane.
    pub(super) fn has_pins(&self) -> bool {
        self.cellular.is_some()
    }

    pub(super) fn counters(&self) -> Counters {
        Counters {
            pending_requests: self.pending.requests as u64,
            pending_rows: self.pending.rows,
            live_requests: self.live as u64,
            running_tasks: u64::from(self.running),
            ..self.totals
        }
    }

    // ## arrival => (pending | ended)
    pub(super) fn arrive(&mut self, context: &mut StepContext<'_>, group: GroupIx, arrival: Arrival) {
        let level = self.pending.rules.level_of(arrival.priority);
        let board_by = self.pending.rules.board_by(level, context.now, arrival.board_by);
        let expiry = arrival.expiry.unwrap_or(NEVER);
        let refusal = self.refusal(context.now, &arrival, level, expiry);
        let batch_key = match &mut self.merges {
            Some(length_bucketing) => BatchKey::new(arrival.key, &arrival.lengths, length_bucketing),
            None => BatchKey::default(),
        };
        let seq = context.ledger.next_seq();
        let request_ix = context.ledger.insert(Request {
            req: arrival.req,
            group,
            seq,
            rows: arrival.rows,
            left: arrival.rows,
            lengths: arrival.lengths,
            graph: arrival.graph,
            sequence: None,
            level,
            arrived: context.now,
            boarded: NEVER,
            board_by,
            expiry,
            alarm: NEVER,
            state: RequestState::Aboard,
            boarding: 0,
            emitted: 0,
            unsent: 0,
            in_queue: Links::default(),
            in_order: Links::default(),
        });
        self.live += 1;
        if let Some(order) = &mut self.order {
            order.push_back(context.ledger, request_ix);
        }
        if let Some(end) = refusal {
            self.end(context, request_ix, end);
            return;
        }
        let sub_queue = if arrival.sequence.is_some() { NOT_THEIR_TURN } else { self.pending.sub_queue_for(batch_key) };
        self.pending.push(context.ledger, request_ix, sub_queue);
        self.policy.arrived(context.now, sub_queue, &context.ledger[request_ix]);
        if self.pending.requests >= self.hold_until_waiting as usize {
            self.hold_until_waiting = 0;
        }
        if let (Some(sequences), Some(request)) = (&mut self.sequences, &arrival.sequence) {
            let (ix, sequence, change) = sequences.join(context.now, request_ix, request);
            context.ledger[request_ix].sequence = Some(ix);
            context.actions.push(Action::Joined { req: arrival.req, sequence });
            self.apply(context, group, change);
        }
        context.timers.arm(context.ledger, request_ix, board_by.min(expiry));
        if board_by <= context.now {
            context.timers.disarm(context.ledger, request_ix);
            self.alarm(context, request_ix);
        } else {
            self.touched(context.ledger, sub_queue);
        }
    }

    /// Why a request never enters the queue. One whose size breaks the contract could only be lost: it fails.
    fn refusal(&self, now: Ns, arrival: &Arrival, level: u64, expiry: Ns) -> Option<End> {
        if expiry <= now {
            return Some(End::Expired);
        }
        if !(1..=self.max_rows).contains(&arrival.rows) {
            return Some(End::Failed);
        }
        if let Some(end) = self.cellular.as_ref().and_then(|cellular| cellular.refusal(arrival)) {
            return Some(end);
        }
        match (&self.sequences, &arrival.sequence) {
            (Some(sequences), Some(request)) if !sequences.admits(request) => {
                return Some(End::Rejected(Rejection::NotStarted));
            }
            (Some(_), None) | (None, Some(_)) => return Some(End::Failed),
            _ => {}
        }
        self.pending.is_full(level).then_some(End::Rejected(Rejection::QueueFull))
    }

    /// The request's alarm went off: its queue timeout, its deadline, or an instant that no longer matters.
    pub(super) fn alarm(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx) {
        let request = &context.ledger[request_ix];
        let (level, board_by, expiry) = (request.level, request.board_by, request.expiry);
        if let RequestState::Queued { sub_queue, delayed: false } = request.state
            && board_by <= context.now
            && board_by < expiry
        {
            if self.pending.rules.queue_of(level).timeout_action == TimeoutAction::Reject {
                self.end(context, request_ix, End::Rejected(Rejection::QueueTimeout));
                return;
            }
            self.totals.delayed += 1;
            context.ledger[request_ix].board_by = NEVER;
            self.pending.delay(context.ledger, request_ix, sub_queue);
            self.touched(context.ledger, sub_queue);
        }
        if expiry <= context.now {
            self.end(context, request_ix, End::Expired);
        } else {
            context.timers.arm(context.ledger, request_ix, expiry);
        }
    }

    pub(super) fn cancel(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx) {
        self.end(context, request_ix, End::Cancelled);
    }

    // ## open lane => task
    pub(super) fn offer(
        &mut self,
        context: &mut StepContext<'_>,
        group: GroupIx,
        lane: Lane,
        id: TaskId,
        pool: PoolView<'_>,
    ) -> Answer {
        if !self.may_run() {
            return Answer::Nothing;
        }
        if self.cellular.is_some() {
            return self.offer_cells(context, group, &lane, id, pool.brought);
        }
        loop {
            let (batch, waiting) = match self.decide(context, &lane, pool) {
                Decision::GoOn(batch) => (batch, None),
                Decision::New { sub_queue, selection, accepts_newcomers } => {
                    let waiting = self.table.has_queued();
                    (self.new_batch(context, sub_queue, &selection, accepts_newcomers), Some(waiting))
                }
                Decision::Stretch { batch, sub_queue, selection, accepts_newcomers } => {
                    self.stretch(context, batch, sub_queue, &selection, accepts_newcomers);
                    continue;
                }
                Decision::Split { batch, before } => {
                    self.table.split(batch, &before);
                    self.totals.splits += 1;
                    continue;
                }
                Decision::Refuse(request_ix) => {
                    self.end(context, request_ix, End::Rejected(Rejection::Late));
                    continue;
                }
                Decision::Wait(due) => return Answer::NotBefore(due),
                Decision::Nothing => return Answer::Nothing,
            };
            if waiting == Some(true) {
                self.totals.preemptions += 1;
            }
            return Answer::Launched(self.launch(context, group, &lane, id, batch));
        }
    }

    /// Takes requests out of their sub-queues and lets them board.
    pub(super) fn board(
        &mut self,
        context: &mut StepContext<'_>,
        sub_queue: SubQueueIx,
        selection: &Selection,
    ) -> Vec<BatchSpan> {
        let mut spans = self.table.blank();
        let mut pop = |sub_queue, requests: u32| {
            spans.reserve(requests as usize);
            let StepContext { now, ledger, timers, .. } = context;
            self.pending.pop(ledger, sub_queue, requests, |ledger, request_ix| {
                spans.push(board_request(*now, ledger, timers, request_ix))
            });
        };
        match selection {
            Selection::First(requests) => pop(sub_queue, *requests),
            Selection::Heads(sub_queues) => {
                sub_queues.iter().for_each(|&(sub_queue, requests)| pop(sub_queue, requests))
            }
            Selection::Named(request_ixs) => {
                for &request_ix in request_ixs {
                    self.pending.remove(context.ledger, request_ix);
                    let StepContext { now, ledger, timers, .. } = context;
                    spans.push(board_request(*now, ledger, timers, request_ix));
                }
            }
        }
        spans
    }

    /// Whether other requests wait that could not share a batch with those of a sub-queue.
    pub(super) fn others_wait(&self, sub_queue: SubQueueIx) -> bool {
        self.merges.is_some() && self.pending.rows > self.pending.sub_queues[sub_queue as usize].rows
    }
}

fn length_bucketing(knobs: &Knobs) -> LengthBucketing {
    match (&knobs.policy, knobs.queueing.bucket_width) {
        (knobs::Policy::Diversity(knobs::DiversityKnobs { input: Some(input), .. }), _) if input.by_runs => {
            LengthBucketing::Width(1)
        }
        (knobs::Policy::Diversity(knobs::DiversityKnobs { input: Some(input), .. }), _) => {
            LengthBucketing::Groups(LengthGroups::new(&input.bounds, input.max_groups))
        }
        (_, 0) => LengthBucketing::Any,
        (_, width) => LengthBucketing::Width(width),
    }
}

/// Lets a request board; its deadline still counts, its queue timeout no longer does.
pub(super) fn board_request(now: Ns, ledger: &mut Ledger, timers: &mut Timers, request_ix: RequestIx) -> BatchSpan {
    let request = &mut ledger[request_ix];
    request.state = RequestState::Aboard;
    request.boarding += 1;
    request.boarded = now;
    let rows = RowSpan { req: request.req, start: 0, count: request.rows, at: 0 };
    let boarding = request.boarding;
    if request.expiry == NEVER {
        timers.disarm(ledger, request_ix);
    }
    BatchSpan { request_ix, boarding, rows }
}
