//! A group: the requests of one loaded version, from its pending queue through its batches to their ends.

use super::{
    Action, Actions, Arrival, Bucket, CellId, Counters, End, Knobs, LaneId, ModelId, Next, Ns, Rejection, RowOutcome,
    RowSpan, ShapeClass, Task, TaskId, TimeoutAction,
    arbiter::GroupIx,
    knobs,
    ledger::{Flight, Ledger, NEVER, Request, Slot, Stand},
    list::{InOrder, Links, List},
    pending::{LineIx, Mates, Pending},
    pipeline::{Onward, Pipeline},
    policy::{Decision, Policy},
    queue_rules::QueueRules,
    table::{BatchIx, BatchTable, Seat, StepState},
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

/// What a group makes of an offered lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It launched a task there.
    Launched,
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
    /// `Some(bucket_width)` when requests of equal keys may share a batch.
    merges: Option<u32>,
    pub(super) pending: Pending,
    pub(super) policy: Policy,
    pub(super) table: BatchTable,
    pipeline: Pipeline,
    /// All live requests in order of arrival, when replies are to leave in that order.
    pub(super) order: Option<List<InOrder>>,
    draining: bool,
    /// Requests that have not ended.
    pub(super) live: usize,
    /// Tasks on lanes.
    pub(super) running: u32,
    pub(super) totals: Counters,
}

impl Group {
    pub(super) fn new(model: ModelId, knobs: &Knobs) -> Self {
        let serial = knobs.policy == knobs::Policy::Serial;
        let merges = (knobs.mergeable && !serial).then_some(knobs.queueing.bucket_width);
        Self {
            model,
            max_rows: knobs.max_batch_rows.max(1),
            max_in_flight: knobs.max_in_flight.max(1),
            merges,
            pending: Pending::new(QueueRules::new(&knobs.queueing)),
            policy: Policy::new(knobs),
            table: BatchTable::default(),
            pipeline: Pipeline::single(),
            order: knobs.queueing.preserve_ordering.then(List::new),
            draining: false,
            live: 0,
            running: 0,
            totals: Counters::default(),
        }
    }

    pub(super) fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether the group may be forgotten.
    pub(super) fn is_drained(&self) -> bool {
        self.draining && self.live == 0 && self.running == 0
    }

    /// Whether a lane would be of use, as far as can be told without a decision of the policy.
    pub(super) fn wants_lane(&self) -> bool {
        self.running < self.max_in_flight && (self.table.has_queued() || self.pending.requests > 0)
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
        let mates = match self.merges {
            Some(bucket_width) => Mates::new(arrival.key, &arrival.lengths, bucket_width),
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
            level,
            arrived: turn.now,
            board_by,
            expiry,
            alarm: NEVER,
            stand: Stand::Aboard,
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
        let line = self.pending.line_for(mates);
        self.pending.push(turn.ledger, slot, line);
        turn.timers.arm(turn.ledger, slot, board_by.min(expiry));
        if board_by <= turn.now {
            turn.timers.disarm(turn.ledger, slot);
            self.alarm(turn, slot);
        } else {
            self.policy.touched(line, &self.pending, turn.ledger);
        }
    }

    /// Why a request never enters the queue. One whose size breaks the contract could only be lost: it fails.
    fn refusal(&self, now: Ns, arrival: &Arrival, level: u32, expiry: Ns) -> Option<End> {
        if expiry <= now {
            return Some(End::Expired);
        }
        if !(1..=self.max_rows).contains(&arrival.rows) {
            return Some(End::Failed);
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
            self.policy.touched(line, &self.pending, turn.ledger);
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

    // ## idle lane => task
    pub(super) fn offer(&mut self, turn: &mut Turn<'_>, group: GroupIx, lane: LaneId, id: TaskId) -> Answer {
        if self.running >= self.max_in_flight {
            return Answer::Nothing;
        }
        // A batch that has begun, or is to be retried, goes on before another is formed.
        let batch = match self.table.next_queued(turn.ledger) {
            Some(batch) => batch,
            None => match self.policy.decide(turn.now, &self.pending, turn.ledger) {
                Decision::Board { line, requests } => self.board(turn, line, requests),
                Decision::Wait(due) => return Answer::NotBefore(due),
                Decision::Nothing => return Answer::Nothing,
            },
        };
        self.launch(turn, group, lane, id, batch);
        Answer::Launched
    }

    /// Forms a batch of the first requests of a line.
    fn board(&mut self, turn: &mut Turn<'_>, line: LineIx, requests: u32) -> BatchIx {
        let mut seats = self.table.blank();
        seats.reserve(requests as usize);
        let mut rows = 0;
        for _ in 0..requests {
            let Some(slot) = self.pending.pop(turn.ledger, line) else { break };
            let request = &mut turn.ledger[slot];
            request.stand = Stand::Aboard;
            rows += request.rows;
            seats.push(Seat {
                slot,
                span: RowSpan { req: request.req, start: 0, count: request.rows, at: rows - request.rows },
            });
            if request.expiry == NEVER {
                turn.timers.disarm(turn.ledger, slot);
            }
        }
        let entry = &self.pending.lines[line as usize];
        let (class, left_in_line) = (entry.mates.class.clone(), entry.rows);
        if rows < self.max_rows && self.merges.is_some() && self.pending.rows > left_in_line {
            self.totals.batches_parted_by_key += 1;
        }
        self.policy.touched(line, &self.pending, turn.ledger);
        self.pending.retire(line);
        self.totals.batches_formed += 1;
        self.table.new_batch(turn.now, class, self.pipeline.entry(), seats, false)
    }

    fn launch(&mut self, turn: &mut Turn<'_>, group: GroupIx, lane: LaneId, id: TaskId, batch: BatchIx) {
        let Some(step) = self.table.head_mut(batch) else { return };
        step.state = StepState::Running(id);
        let cell = step.next;
        let mut longest = ShapeClass::default();
        let (mut rows, mut requests) = (0, 0);
        let mut previous = None;
        let spans: Vec<RowSpan> = step
            .rows
            .iter()
            .map(|seat| {
                lengthen(&mut longest, &turn.ledger[seat.slot]);
                rows += seat.span.count;
                if previous.replace(seat.span.req) != Some(seat.span.req) {
                    requests += 1;
                }
                seat.span
            })
            .collect();
        self.running += 1;
        self.totals.tasks_launched += 1;
        self.totals.rows_launched += u64::from(rows);
        turn.ledger.take_off(Flight { task: id, lane, group, batch, requests });
        let bucket = Bucket { rows, class: longest };
        turn.actions.push(Action::Launch(Task {
            id,
            model: self.model,
            cell,
            bucket,
            lane,
            batch: 0,
            rows: spans,
            reads: Default::default(),
            writes: None,
            after: Default::default(),
        }));
    }

    // ## running => (queued again | ended), row by row
    pub(super) fn complete(&mut self, turn: &mut Turn<'_>, flight: &Flight, outcomes: &[RowOutcome]) {
        self.running -= 1;
        let Some(arrived) = self.table.arrive(flight.batch) else { return };
        let mut going_on = self.table.blank();
        // One end a seat, and a task and a wake beside them.
        turn.actions.reserve(arrived.rows.len() + 2);
        let mut next = arrived.cell;
        let mut at = 0;
        for of_request in arrived.rows.chunk_by(|one, other| one.span.req == other.span.req) {
            let rows: usize = of_request.iter().map(|seat| seat.span.count as usize).sum();
            let own = Outcomes { all: outcomes, from: at };
            at += rows;
            if turn.ledger.is_aboard(&of_request[0])
                && let Some(onward) = self.settle(turn, arrived.cell, of_request, own, &mut going_on)
            {
                next = onward;
            }
        }
        self.table.recycle(arrived.rows);
        if going_on.is_empty() {
            self.table.recycle(going_on);
            self.table.remove(flight.batch);
        } else {
            self.table.go_on(flight.batch, next, going_on);
        }
    }

    /// Deals with the outcomes of one request's rows; those that stay under way are put into `going_on`. Returns where
    /// they go.
    fn settle(
        &mut self,
        turn: &mut Turn<'_>,
        cell: CellId,
        seats: &[Seat],
        outcomes: Outcomes<'_>,
        going_on: &mut Vec<Seat>,
    ) -> Option<CellId> {
        let (slot, before) = (seats[0].slot, going_on.len());
        let (mut done, mut failed, mut emitted, mut next) = (0, false, false, None);
        let rows = seats.iter().flat_map(|seat| seat.span.start..seat.span.start + seat.span.count);
        for (at, row) in rows.enumerate() {
            let outcome = outcomes.get(at);
            emitted |= outcome.emitted;
            match self.pipeline.onward(cell, outcome.next) {
                Onward::Done => done += 1,
                Onward::Failed => failed = true,
                Onward::To(cell) => {
                    next = Some(cell);
                    add_row(
                        going_on,
                        before,
                        Seat { slot, span: RowSpan { req: seats[0].span.req, start: row, count: 1, at: 0 } },
                    );
                }
            }
        }
        if emitted {
            self.emit(turn, slot);
        }
        if failed {
            going_on.truncate(before);
            self.end(turn, slot, End::Failed);
            return None;
        }
        let request = &mut turn.ledger[slot];
        request.left -= done;
        if request.left == 0 {
            self.end(turn, slot, End::Completed);
        }
        next
    }

    // ## running => (queued again, each request alone | failed)
    pub(super) fn fail(&mut self, turn: &mut Turn<'_>, flight: &Flight) {
        self.running -= 1;
        self.totals.tasks_failed += 1;
        let class = self.table.class(flight.batch).clone();
        let Some(arrived) = self.table.arrive(flight.batch) else { return };
        self.table.remove(flight.batch);
        // Backwards, since each goes before those that are there.
        for seats in arrived.rows.chunk_by(|one, other| one.span.req == other.span.req).rev() {
            if !turn.ledger.is_aboard(&seats[0]) {
                continue;
            }
            if flight.requests == 1 {
                self.end(turn, seats[0].slot, End::Failed);
                continue;
            }
            let mut rows = self.table.blank();
            rows.extend_from_slice(seats);
            let batch = self.table.new_batch(turn.now, class.clone(), arrived.cell, rows, true);
            self.table.queue_first(batch);
            self.totals.solo_retries += 1;
        }
        self.table.recycle(arrived.rows);
    }
}

/// Adds a row behind those added since `from`, joining it to the last seat where it follows on.
fn add_row(seats: &mut Vec<Seat>, from: usize, row: Seat) {
    match seats[from..].last_mut() {
        Some(last) if last.span.start + last.span.count == row.span.start => last.span.count += 1,
        _ => seats.push(row),
    }
}

/// Stretches a padded shape to hold a request's own lengths.
fn lengthen(class: &mut ShapeClass, request: &Request) {
    let lengths = &mut class.0;
    if lengths.len() < request.lengths.len() {
        lengths.resize(request.lengths.len(), 0);
    }
    for (longest, &own) in lengths.iter_mut().zip(&request.lengths) {
        *longest = own.max(*longest);
    }
}

/// The outcomes of one request's rows within those of its task.
#[derive(Clone, Copy, Debug)]
struct Outcomes<'a> {
    all: &'a [RowOutcome],
    from: usize,
}

impl Outcomes<'_> {
    /// The outcome of a row. No outcomes at all mean that every row goes on; a row left out of some failed.
    fn get(&self, row: usize) -> RowOutcome {
        let missing = if self.all.is_empty() { Next::On } else { Next::Failed };
        self.all.get(self.from + row).copied().unwrap_or(RowOutcome { next: missing, emitted: false })
    }
}
