//! How batches travel: from a decision of the policy over a lane and its outcome to the next boundary, stage by stage.

use smallvec::SmallVec;

use super::{
    Action, Bucket, CellId, End, Lease, Next, Ns, PartOrder, RowOutcome, RowSpan, ShapeClass, Task, TaskId,
    arbiter::{GroupIx, Lane},
    cost::Quantile,
    group::{Group, Turn},
    ledger::{Flight, Ledger, Request},
    lineage::{Lineage, LineageIx},
    pending::LineIx,
    pipeline::{Access, Onward},
    policy::{Decision, Outlook, Passengers, View},
    table::{BatchIx, Blueprint, Seat, Step, StepState, lay_out},
};

/// Level of requests that run once more alone: ahead of all others.
const RETRY_LEVEL: u32 = 0;

/// Rows that go on, by the stage that they go to.
type GoingOn = SmallVec<[(CellId, Vec<Seat>); 1]>;

impl Group {
    /// Asks the policy what to do with a lane.
    pub(super) fn decide(&mut self, turn: &mut Turn<'_>, lane: &Lane, neighbours_slack_ns: Option<Ns>) -> Decision {
        let ready = self.table.queued().find(|&batch| self.admits(batch, lane));
        let enterable = self.pending.requests > 0 && self.can_enter(lane);
        let (now, ledger) = (turn.now, &*turn.ledger);
        let Self { pending, table, pipeline, policy, costs, learned, max_rows, objective_ns, .. } = self;
        let (learned, max_rows, objective_ns) = (*learned, *max_rows, *objective_ns);
        policy.decide(&View {
            now,
            ledger,
            pending,
            table,
            pipeline,
            costs,
            learned,
            max_rows,
            objective_ns,
            neighbours_slack_ns,
            ready,
            enterable,
        })
    }

    /// Whether the foot of a batch may be launched: a buffer is to be had, and on a lane without a horizon nobody uses it any more.
    fn admits(&self, batch: BatchIx, lane: &Lane) -> bool {
        if self.pipeline.boundaries() == 0 {
            return true;
        }
        let Some(foot) = self.table.get(batch).foot() else { return false };
        let (from, to) = hull(&foot.rows);
        let access = self.pipeline.access(self.table.lineage_of(batch), foot.next, from, to);
        access.is_some_and(|access| self.is_clear(&access, lane))
    }

    fn is_clear(&self, access: &Access, lane: &Lane) -> bool {
        lane.looks_ahead() || self.pipeline.hazards(access, lane.id).is_empty()
    }

    /// Whether a new batch could be launched: the first stage has a credit, or gets one as the newest batch ceases to be the newest.
    fn can_enter(&self, lane: &Lane) -> bool {
        if self.pipeline.boundaries() == 0 {
            return true;
        }
        let boundary = self.pipeline.entry().0;
        let clear = |pair: Option<u16>| {
            pair.is_some_and(|pair| lane.looks_ahead() || self.pipeline.is_unused(Lease { boundary, pair }))
        };
        if self.pipeline.has_credit(self.pipeline.entry()) {
            return clear(self.pipeline.next_pair(boundary));
        }
        let Some((_, newest)) = self.table.newest().filter(|(_, newest)| !newest.sealed) else { return false };
        self.pipeline.would_release(boundary, self.reached(newest)) && clear(newest.leases[usize::from(boundary)])
    }

    /// Meta operation *new*.
    pub(super) fn new_batch(
        &mut self,
        turn: &mut Turn<'_>,
        line: LineIx,
        passengers: &Passengers,
        outlook: Outlook,
    ) -> BatchIx {
        // It is the newest now, so that no other is stretched any more.
        if self.pipeline.boundaries() > 0 {
            if let Some((newest, _)) = self.table.newest() {
                self.table.lineages[newest].sealed = true;
            }
            self.release_leases(turn.now);
        }
        let rows = self.board(turn, line, passengers);
        let boarded: u32 = rows.iter().map(|seat| seat.span.count).sum();
        if boarded < self.max_rows && self.others_wait(line) {
            self.totals.batches_parted_by_key += 1;
        }
        self.totals.batches_formed += 1;
        let entry = &self.pending.lines[line as usize];
        let mates = entry.mates.clone();
        let sealed = outlook == Outlook::Split || !self.policy.stretches();
        let class = match self.pipeline.boundaries() {
            0 => ShapeClass::default(),
            _ if !sealed && !mates.class.0.is_empty() => mates.class.clone(),
            _ => longest(&rows, turn.ledger),
        };
        let level = best_level(&rows, turn.ledger);
        self.left(turn, line);
        let plan = Blueprint { mates, class, level, order: self.policy.part_order(), sealed };
        self.table.new_batch(turn.now, plan, self.pipeline.entry(), rows)
    }

    /// Meta operation *stretch*.
    pub(super) fn stretch(
        &mut self,
        turn: &mut Turn<'_>,
        batch: BatchIx,
        line: LineIx,
        passengers: &Passengers,
        outlook: Outlook,
    ) {
        if self.table.get(batch).foot().is_some_and(Step::is_queued) {
            self.totals.preemptions += 1;
        }
        let rows = self.board(turn, line, passengers);
        self.totals.stretches += 1;
        let level = best_level(&rows, turn.ledger);
        self.left(turn, line);
        let boarded = rows.iter().map(|seat| seat.span.count).sum();
        self.count_wait(batch, boarded);
        let merged = self.table.stretch(batch, level, self.pipeline.entry(), rows);
        self.totals.merges += u64::from(merged);
        if outlook == Outlook::Split {
            self.table.lineage_of_mut(batch).sealed = true;
        }
    }

    /// The steps of a batch will wait for so many newcomers to catch up.
    fn count_wait(&mut self, batch: BatchIx, rows: u32) {
        let class = self.table.lineage_of(batch).class.clone();
        let entry = self.pipeline.entry();
        for step in &mut self.table.get_mut(batch).steps {
            let meets_at = CellId(step.next.0 + u16::from(!step.is_queued()));
            step.waits_ns += self.costs.between(entry, meets_at, rows, &class, Quantile::Mean).unwrap_or(0);
        }
    }

    fn left(&mut self, turn: &Turn<'_>, line: LineIx) {
        self.policy.touched(line, &self.pending, turn.ledger);
        self.pending.retire(line);
    }

    // ## queued => running
    pub(super) fn launch(
        &mut self,
        turn: &mut Turn<'_>,
        group: GroupIx,
        lane: &Lane,
        id: TaskId,
        batch: BatchIx,
    ) -> Option<Ns> {
        let staged = self.pipeline.boundaries() > 0;
        let lineage = self.table.get(batch).lineage;
        let foot_at = self.table.get(batch).foot_at()?;
        let step = &mut self.table.get_mut(batch).steps[foot_at];
        let cell = step.next;
        if !staged {
            lay_out(&mut step.rows);
        }
        let (mut rows, mut requests) = (0, 0);
        let mut previous = None;
        let spans: Vec<RowSpan> = step
            .rows
            .iter()
            .map(|seat| {
                rows += seat.span.count;
                if previous.replace(seat.span.req) != Some(seat.span.req) {
                    requests += 1;
                }
                seat.span
            })
            .collect();
        let (from, to) = hull(&step.rows);
        let class = if staged { self.table.lineages[lineage].class.clone() } else { longest(&step.rows, turn.ledger) };
        let access = self.pipeline.access(&self.table.lineages[lineage], cell, from, to).unwrap_or_default();
        let after = if lane.looks_ahead() { self.pipeline.hazards(&access, lane.id) } else { SmallVec::new() };
        let entry = &mut self.table.lineages[lineage];
        self.pipeline.take_off(id, lane.id, &access, entry);
        entry.passed[usize::from(cell.0)].launched += rows;
        let number = entry.number;
        let ahead = lane.looks_ahead() && !self.pipeline.decides(cell) && !self.pipeline.is_last(cell);
        let ahead = self.pass_on(batch, foot_at, id, ahead);
        self.running += 1;
        self.totals.tasks_launched += 1;
        self.totals.rows_launched += u64::from(rows);
        turn.ledger.take_off(Flight {
            task: id,
            lane: lane.id,
            group,
            batch,
            lineage: number,
            cell,
            requests,
            rows,
            launched: turn.now,
            class: class.clone(),
            ahead,
        });
        let predicted_ns =
            if lane.looks_ahead() { self.costs.predict(cell, rows, &class, Quantile::Mean) } else { None };
        let Access { reads, writes, .. } = access;
        let bucket = Bucket { rows, class };
        let task = Task {
            id,
            model: self.model,
            cell,
            bucket,
            lane: lane.id,
            batch: number,
            rows: spans,
            reads,
            writes,
            after,
        };
        turn.actions.push(Action::Launch(task));
        self.release_leases(turn.now);
        predicted_ns
    }

    /// The foot of a batch is on its lane: it waits for the task's end, or goes on to the next stage `ahead` of it. Then its seats
    /// are given back, as they are in the task.
    fn pass_on(&mut self, batch: BatchIx, foot_at: usize, id: TaskId, ahead: bool) -> Vec<Seat> {
        let steps = &mut self.table.get_mut(batch).steps;
        let mut seats = Vec::new();
        if !ahead {
            steps[foot_at].state = StepState::Running(id);
        } else {
            let Step { next, rows, waits_ns, .. } = steps.remove(foot_at);
            seats.clone_from(&rows);
            self.table.insert_step(batch, CellId(next.0 + 1), rows, waits_ns);
        }
        self.totals.merges += u64::from(self.table.merge(batch));
        self.table.enqueue(batch);
        seats
    }

    // ## running => (queued again | ended), row by row
    pub(super) fn complete(&mut self, turn: &mut Turn<'_>, flight: &Flight, outcomes: &[RowOutcome], took_ns: Ns) {
        self.landed(flight);
        if self.learns {
            self.costs.learn(flight.cell, flight.rows, &flight.class, took_ns);
            self.learned += 1;
        }
        let Some(step) = self.table.take_running(flight.batch, flight.task) else {
            self.settle_ahead(turn, flight, outcomes);
            return;
        };
        // One end a seat, and a task and a wake beside them.
        turn.actions.reserve(step.rows.len() + 2);
        let mut going_on = GoingOn::new();
        let Step { next: cell, rows, waits_ns, .. } = step;
        let mut at = 0;
        for of_request in rows.chunk_by(|one, other| one.span.req == other.span.req) {
            let count: usize = of_request.iter().map(|seat| seat.span.count as usize).sum();
            let own = Outcomes { all: outcomes, from: at };
            at += count;
            if turn.ledger.is_aboard(&of_request[0]) {
                self.settle(turn, flight, cell, of_request, own, &mut going_on);
            } else {
                of_request.iter().for_each(|seat| self.table.vacate(flight.batch, seat.span));
            }
        }
        self.table.recycle(rows);
        for (next, rows) in going_on {
            if next <= cell {
                self.table.repeat(flight.batch, best_level(&rows, turn.ledger));
            }
            // Whoever skips stages travels on alone: the others are behind it for good.
            if next.0 > cell.0 + 1 && self.pipeline.boundaries() > 0 {
                self.table.part(flight.batch, next, rows);
            } else {
                self.table.insert_step(flight.batch, next, rows, waits_ns);
            }
        }
        self.after_step(turn, flight.batch);
    }

    /// A task is off its lane.
    fn landed(&mut self, flight: &Flight) {
        self.running -= 1;
        self.pipeline.land(flight.task);
        if let Some(lineage) = self.table.find(flight.batch).map(|batch| batch.lineage) {
            let lineage = &mut self.table.lineages[lineage];
            if lineage.number == flight.lineage {
                lineage.passed[usize::from(flight.cell.0)].completed += flight.rows;
            }
        }
    }

    /// Brings a batch whose steps changed in order, and returns what it needs no longer.
    fn after_step(&mut self, turn: &Turn<'_>, batch: BatchIx) {
        self.totals.merges += u64::from(self.table.merge(batch));
        self.table.tidy(batch, turn.ledger);
        self.release_leases(turn.now);
    }

    /// Deals with the outcomes of one request's rows; those that stay under way are put into `going_on`.
    fn settle(
        &mut self,
        turn: &mut Turn<'_>,
        flight: &Flight,
        cell: CellId,
        seats: &[Seat],
        outcomes: Outcomes<'_>,
        going_on: &mut GoingOn,
    ) {
        let slot = seats[0].slot;
        let (mut done, mut failed, mut emitted, mut at) = (0, false, false, 0);
        for seat in seats {
            if outcomes.all.is_empty() {
                match self.pipeline.onward(cell, Next::On) {
                    Onward::To(next) => stage_of(going_on, next, || self.table.blank()).push(*seat),
                    Onward::Done | Onward::Failed => {
                        done += seat.span.count;
                        self.table.vacate(flight.batch, seat.span);
                    }
                }
                continue;
            }
            for row in 0..seat.span.count {
                let outcome = outcomes.get(at);
                at += 1;
                emitted |= outcome.emitted;
                let onward = self.pipeline.onward(cell, outcome.next);
                if let Onward::To(next) = onward {
                    go_on(going_on, next, seat, row, || self.table.blank());
                    continue;
                }
                let span = RowSpan { start: seat.span.start + row, count: 1, at: seat.span.at + row, ..seat.span };
                self.table.vacate(flight.batch, span);
                failed |= onward == Onward::Failed;
                if onward == Onward::Done {
                    done += 1;
                    self.totals.early_exits += u64::from(!self.pipeline.is_last(cell));
                }
            }
        }
        if emitted {
            self.emit(turn, slot);
        }
        if failed {
            self.end(turn, slot, End::Failed);
            return;
        }
        let request = &mut turn.ledger[slot];
        request.left -= done;
        if request.left == 0 {
            self.end(turn, slot, End::Completed);
        }
    }

    /// A task ended whose rows had gone on before: only rows that failed matter now.
    fn settle_ahead(&mut self, turn: &mut Turn<'_>, flight: &Flight, outcomes: &[RowOutcome]) {
        let mut at = 0;
        for seat in &flight.ahead {
            let own = Outcomes { all: outcomes, from: at };
            at += seat.span.count as usize;
            let failed = (0..seat.span.count as usize)
                .any(|row| self.pipeline.onward(flight.cell, own.get(row).next) == Onward::Failed);
            if failed && turn.ledger.is_aboard(seat) {
                self.end(turn, seat.slot, End::Failed);
            }
        }
        self.release_leases(turn.now);
    }

    // ## running => (queued again, each request alone | failed)
    pub(super) fn fail(&mut self, turn: &mut Turn<'_>, flight: &Flight) {
        self.totals.tasks_failed += 1;
        self.fall(turn, flight, flight.requests > 1);
    }

    /// The lane of a task hangs: its requests fail.
    pub(super) fn lose(&mut self, turn: &mut Turn<'_>, flight: &Flight) {
        self.totals.tasks_failed += 1;
        self.fall(turn, flight, false);
    }

    fn fall(&mut self, turn: &mut Turn<'_>, flight: &Flight, once_more: bool) {
        self.landed(flight);
        let step = self.table.take_running(flight.batch, flight.task);
        let ahead = step.is_none();
        let rows = step.map_or_else(|| flight.ahead.clone(), |step| step.rows);
        for seats in rows.chunk_by(|one, other| one.span.req == other.span.req) {
            if !ahead {
                seats.iter().for_each(|seat| self.table.vacate(flight.batch, seat.span));
            }
            let slot = seats[0].slot;
            if !turn.ledger.is_aboard(&seats[0]) {
                continue;
            }
            if !once_more {
                self.end(turn, slot, End::Failed);
            } else if ahead {
                let rows = self.recall(turn, seats[0]);
                self.run_alone(turn, rows);
            } else {
                self.run_alone(turn, seats.to_vec());
            }
        }
        self.table.recycle(rows);
        if !ahead {
            self.after_step(turn, flight.batch);
        }
        self.untidy = true;
    }

    /// Takes all rows of a request that are not done out of its batches, wherever they have gone.
    fn recall(&mut self, turn: &mut Turn<'_>, of: Seat) -> Vec<Seat> {
        let mine = |seat: &&Seat| seat.slot == of.slot && seat.boarding == of.boarding;
        let steps = self.table.iter().flat_map(|(_, batch)| &batch.steps);
        let mut rows: Vec<Seat> = steps.flat_map(|step| step.rows.iter().filter(mine)).copied().collect();
        rows.sort_unstable_by_key(|seat| seat.span.start);
        let request = &mut turn.ledger[of.slot];
        request.boarding += 1;
        rows.iter_mut().for_each(|seat| seat.boarding = request.boarding);
        rows
    }

    /// Lets rows of a request start again in a batch of their own, ahead of the queue.
    fn run_alone(&mut self, turn: &Turn<'_>, rows: Vec<Seat>) {
        if rows.is_empty() {
            return;
        }
        self.totals.solo_retries += 1;
        let class = longest(&rows, turn.ledger);
        let order = PartOrder::DepthFirst;
        let plan = Blueprint { mates: Default::default(), class, level: RETRY_LEVEL, order, sealed: true };
        let batch = self.table.new_batch(turn.now, plan, self.pipeline.entry(), rows);
        self.table.enqueue(batch);
    }

    /// Drops the rows of requests that have ended since the last boundary.
    pub(super) fn tidy(&mut self, turn: &Turn<'_>) {
        if !std::mem::take(&mut self.untidy) {
            return;
        }
        let batches: SmallVec<[BatchIx; 8]> = self.table.iter().map(|(batch, _)| batch).collect();
        for batch in batches {
            self.totals.merges += u64::from(self.table.merge(batch));
            self.table.tidy(batch, turn.ledger);
        }
        self.release_leases(turn.now);
    }

    /// Returns the leases that are not needed any more, and forgets lineages without batches.
    pub(super) fn release_leases(&mut self, now: Ns) {
        if self.pipeline.boundaries() == 0 {
            return;
        }
        let newest = self.table.newest().map(|(ix, _)| ix);
        let lineages: SmallVec<[LineageIx; 8]> = self.table.lineages.iter().map(|(ix, _)| ix).collect();
        // A credit that returns at one boundary may let another return before it.
        loop {
            let mut any = false;
            for &ix in &lineages {
                let Some(lineage) = self.table.lineages.get(ix) else { continue };
                let reached = self.reached(lineage);
                let closed = lineage.sealed || Some(ix) != newest || self.is_over(now, lineage);
                let lineage = &mut self.table.lineages[ix];
                if self.pipeline.release(lineage, reached, closed) {
                    lineage.sealed = true;
                    any = true;
                }
                if reached.is_none() {
                    self.table.lineages.remove(ix);
                }
            }
            if !any || self.pipeline.boundaries() < 2 {
                return;
            }
        }
    }

    /// Whether no newcomer may join a lineage any more, by its size, age and progress.
    fn is_over(&self, now: Ns, lineage: &Lineage) -> bool {
        lineage.places.free() == 0 || !self.policy.keeps_open(now, lineage, &self.table, self.pipeline.stages())
    }

    /// The number of stages that all rows of a lineage have been launched into. The last counts once it has completed, and so does one
    /// that decides, since rows may repeat it. `None` without rows.
    pub(super) fn reached(&self, lineage: &Lineage) -> Option<u16> {
        let steps = lineage.parts.iter().flat_map(|&part| &self.table.get(part).steps);
        let counts = |stage: CellId| !self.pipeline.is_last(stage) && !self.pipeline.decides(stage);
        steps.map(|step| step.next.0 + u16::from(!step.is_queued() && counts(step.next))).min()
    }
}

/// Adds a row to those that go to `next`, joining it to the last seat where it follows on.
fn go_on(going_on: &mut GoingOn, next: CellId, seat: &Seat, row: u32, blank: impl FnOnce() -> Vec<Seat>) {
    let seats = stage_of(going_on, next, blank);
    let span = RowSpan { start: seat.span.start + row, count: 1, at: seat.span.at + row, ..seat.span };
    match seats.last_mut() {
        Some(last)
            if last.slot == seat.slot
                && last.span.start + last.span.count == span.start
                && last.span.at + last.span.count == span.at =>
        {
            last.span.count += 1;
        }
        _ => seats.push(Seat { span, ..*seat }),
    }
}

/// The rows that go to `next`.
fn stage_of(going_on: &mut GoingOn, next: CellId, blank: impl FnOnce() -> Vec<Seat>) -> &mut Vec<Seat> {
    let at = going_on.iter().position(|&(stage, _)| stage == next).unwrap_or_else(|| {
        going_on.push((next, blank()));
        going_on.len() - 1
    });
    &mut going_on[at].1
}

/// Places of rows, from the first to behind the last.
fn hull(rows: &[Seat]) -> (u32, u32) {
    let from = rows.first().map_or(0, |seat| seat.span.at);
    let to = rows.last().map_or(0, |seat| seat.span.at + seat.span.count);
    (from, to)
}

/// The padded shape that holds all these rows.
fn longest(rows: &[Seat], ledger: &Ledger) -> ShapeClass {
    let mut class = ShapeClass::default();
    for seat in rows {
        lengthen(&mut class, &ledger[seat.slot]);
    }
    class
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

/// The highest level of the requests that these rows belong to; ended ones do not count.
fn best_level(rows: &[Seat], ledger: &Ledger) -> u32 {
    let aboard = rows.iter().filter(|seat| ledger.is_aboard(seat));
    aboard.map(|seat| ledger[seat.slot].level).min().unwrap_or(u32::MAX)
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
