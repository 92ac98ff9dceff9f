//! A group: the requests of one loaded version, from its pending queue through its batches to their ends. What happens to
//! requests that wait is here; how batches travel is in `travel`, how requests end in `endings`.

use std::collections::BTreeMap;

use super::{
    Action, Actions, Arrival, CellId, Counters, End, Knobs, LaneId, ModelId, Ns, Rejection, RowSpan, TaskId,
    TimeoutAction,
    arbiter::{GroupIx, Lane},
    batch::Seat,
    cellular::Cellular,
    cost::Costs,
    knobs,
    ledger::{Ledger, NEVER, Request, Slot, Stand},
    lengths::LengthGroups,
    list::{InOrder, Links, List},
    pending::{HELD, LineIx, Mates, Pending, Rounding},
    pipeline::Pipeline,
    policy::{Decision, Passengers, Policy},
    queue_rules::QueueRules,
    sequences::Sequences,
    table::BatchTable,
    targets::{LatestStarts, Targets},
    timers::Timers,
};

/// What one step of the core works with beside a group.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) now: Ns,
    pub(super) ledger: &'a mut Ledger,
    pub(super) timers: &'a mut Timers,
    pub(super) actions: &'a mut Actions,
}

/// What a group sees of the pool as it is offered a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
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
    merges: Option<Rounding>,
    pub(super) pending: Pending,
    /// Where there is an objective: when the lines of `pending` must start.
    pub(super) latest_starts: LatestStarts,
    pub(super) policy: Policy,
    pub(super) table: BatchTable,
    pub(super) pipeline: Pipeline,
    /// Rows of requests whose clients have yet to take responses, in no batch meanwhile.
    pub(super) paused: BTreeMap<Slot, Vec<Seat>>,
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
            merges: (knobs.mergeable && !serial && cellular.is_none()).then(|| rounding(knobs)),
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
    pub(super) fn arrive(&mut self, turn: &mut Turn<'_>, group: GroupIx, arrival: Arrival) {
        let level = self.pending.rules.level_of(arrival.priority);
        let board_by = self.pending.rules.board_by(level, turn.now, arrival.board_by);
        let expiry = arrival.expiry.unwrap_or(NEVER);
        let refusal = self.refusal(turn.now, &arrival, level, expiry);
        let mates = match &mut self.merges {
            Some(rounding) => Mates::new(arrival.key, &arrival.lengths, rounding),
            None => Mates::default(),
        };
        let seq = turn.ledger.next_seq();
        let slot = turn.ledger.insert(Request {
            req: arrival.req,
            group,
            seq,
            rows: arrival.rows,
            left: arrival.rows,
            lengths: arrival.lengths,
            graph: arrival.graph,
            sequence: None,
            level,
            arrived: turn.now,
            boarded: NEVER,
            board_by,
            expiry,
            alarm: NEVER,
            stand: Stand::Aboard,
            boarding: 0,
            emitted: 0,
            unsent: 0,
            in_queue: Links::default(),
            in_order: Links::default(),
        });
        self.live += 1;
        if let Some(order) = &mut self.order {
            order.push_back(turn.ledger, slot);
        }
        if let Some(end) = refusal {
            self.end(turn, slot, end);
            return;
        }
        let line = if arrival.sequence.is_some() { HELD } else { self.pending.line_for(mates) };
        self.pending.push(turn.ledger, slot, line);
        self.policy.arrived(turn.now, line, &turn.ledger[slot]);
        if self.pending.requests >= self.hold_until_waiting as usize {
            self.hold_until_waiting = 0;
        }
        if let (Some(sequences), Some(request)) = (&mut self.sequences, &arrival.sequence) {
            let (ix, sequence, change) = sequences.join(turn.now, slot, request);
            turn.ledger[slot].sequence = Some(ix);
            turn.actions.push(Action::Joined { req: arrival.req, sequence });
            self.apply(turn, group, change);
        }
        turn.timers.arm(turn.ledger, slot, board_by.min(expiry));
        if board_by <= turn.now {
            turn.timers.disarm(turn.ledger, slot);
            self.alarm(turn, slot);
        } else {
            self.touched(turn.ledger, line);
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
    pub(super) fn alarm(&mut self, turn: &mut Turn<'_>, slot: Slot) {
        let request = &turn.ledger[slot];
        let (level, board_by, expiry) = (request.level, request.board_by, request.expiry);
        if let Stand::Queued { line, delayed: false } = request.stand
            && board_by <= turn.now
            && board_by < expiry
        {
            if self.pending.rules.queue_of(level).timeout_action == TimeoutAction::Reject {
                self.end(turn, slot, End::Rejected(Rejection::QueueTimeout));
                return;
            }
            self.totals.delayed += 1;
            turn.ledger[slot].board_by = NEVER;
            self.pending.delay(turn.ledger, slot, line);
            self.touched(turn.ledger, line);
        }
        if expiry <= turn.now {
            self.end(turn, slot, End::Expired);
        } else {
            turn.timers.arm(turn.ledger, slot, expiry);
        }
    }

    pub(super) fn cancel(&mut self, turn: &mut Turn<'_>, slot: Slot) {
        self.end(turn, slot, End::Cancelled);
    }

    // ## open lane => task
    pub(super) fn offer(
        &mut self,
        turn: &mut Turn<'_>,
        group: GroupIx,
        lane: Lane,
        id: TaskId,
        around: Around<'_>,
    ) -> Answer {
        if !self.may_run() {
            return Answer::Nothing;
        }
        if self.cellular.is_some() {
            return self.offer_cells(turn, group, &lane, id, around.brought);
        }
        loop {
            let (batch, waiting) = match self.decide(turn, &lane, around) {
                Decision::GoOn(batch) => (batch, None),
                Decision::New { line, passengers, outlook } => {
                    let waiting = self.table.has_queued();
                    (self.new_batch(turn, line, &passengers, outlook), Some(waiting))
                }
                Decision::Stretch { batch, line, passengers, outlook } => {
                    self.stretch(turn, batch, line, &passengers, outlook);
                    continue;
                }
                Decision::Split { batch, before } => {
                    self.table.split(batch, &before);
                    self.totals.splits += 1;
                    continue;
                }
                Decision::Refuse(slot) => {
                    self.end(turn, slot, End::Rejected(Rejection::Late));
                    continue;
                }
                Decision::Wait(due) => return Answer::NotBefore(due),
                Decision::Nothing => return Answer::Nothing,
            };
            if waiting == Some(true) {
                self.totals.preemptions += 1;
            }
            return Answer::Launched(self.launch(turn, group, &lane, id, batch));
        }
    }

    /// Takes requests out of their lines and seats them.
    pub(super) fn board(&mut self, turn: &mut Turn<'_>, line: LineIx, passengers: &Passengers) -> Vec<Seat> {
        let mut seats = self.table.blank();
        let mut pop = |line, requests: u32| {
            seats.reserve(requests as usize);
            for _ in 0..requests {
                let Some(slot) = self.pending.pop(turn.ledger, line) else { break };
                seats.push(seat(turn, slot));
            }
        };
        match passengers {
            Passengers::First(requests) => pop(line, *requests),
            Passengers::Heads(lines) => lines.iter().for_each(|&(line, requests)| pop(line, requests)),
            Passengers::Named(slots) => {
                for &slot in slots {
                    self.pending.remove(turn.ledger, slot);
                    seats.push(seat(turn, slot));
                }
            }
        }
        seats
    }

    /// Whether other requests wait that could not share a batch with those of a line.
    pub(super) fn others_wait(&self, line: LineIx) -> bool {
        self.merges.is_some() && self.pending.rows > self.pending.lines[line as usize].rows
    }
}

fn rounding(knobs: &Knobs) -> Rounding {
    match (&knobs.policy, knobs.queueing.bucket_width) {
        (knobs::Policy::Diversity(knobs::DiversityKnobs { input: Some(input), .. }), _) if input.by_runs => {
            Rounding::Width(1)
        }
        (knobs::Policy::Diversity(knobs::DiversityKnobs { input: Some(input), .. }), _) => {
            Rounding::Groups(LengthGroups::new(&input.bounds, input.max_groups))
        }
        (_, 0) => Rounding::Any,
        (_, width) => Rounding::Width(width),
    }
}

/// Lets a request board; its deadline still counts, its queue timeout no longer does.
pub(super) fn seat(turn: &mut Turn<'_>, slot: Slot) -> Seat {
    let request = &mut turn.ledger[slot];
    request.stand = Stand::Aboard;
    request.boarding += 1;
    request.boarded = turn.now;
    let span = RowSpan { req: request.req, start: 0, count: request.rows, at: 0 };
    let boarding = request.boarding;
    if request.expiry == NEVER {
        turn.timers.disarm(turn.ledger, slot);
    }
    Seat { slot, boarding, span }
}
