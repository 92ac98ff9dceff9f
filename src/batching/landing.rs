//! What comes of a task: its rows go on, are done, leave the order of stages, or start again in halves of the failed task.

use smallvec::SmallVec;

use super::{
    CellId, End, Next, Ns, PartOrder, RowOutcome, RowSpan,
    batch::{Batch, BatchIx, Seat, Step},
    group::{Group, Turn},
    ledger::Flight,
    pending::Mates,
    pipeline::Onward,
    table::Blueprint,
    travel::{best_level, longest},
};

/// Rows that go on, by the stage that they go to.
type GoingOn = SmallVec<[(CellId, Vec<Seat>); 1]>;

impl Group {
    // ## running => (queued again | ended), row by row
    pub(super) fn complete(&mut self, turn: &mut Turn<'_>, flight: &Flight, outcomes: &[RowOutcome], took_ns: Ns) {
        if !flight.nodes.is_empty() {
            return self.complete_cells(turn, flight, outcomes, took_ns);
        }
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
                    Onward::Done | Onward::Paused | Onward::Failed => {
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
                if onward == Onward::Paused {
                    self.pause(seat, row);
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

    // ## running => (queued again, in halves | failed)
    pub(super) fn fail(&mut self, turn: &mut Turn<'_>, flight: &Flight) {
        self.totals.tasks_failed += 1;
        if !flight.nodes.is_empty() {
            return self.fail_cells(turn, flight);
        }
        self.fall(turn, flight, flight.requests > 1);
    }

    /// The lane of a task hangs: its requests fail.
    pub(super) fn lose(&mut self, turn: &mut Turn<'_>, flight: &Flight) {
        self.totals.tasks_failed += 1;
        if !flight.nodes.is_empty() {
            return self.lose_cells(turn, flight);
        }
        self.fall(turn, flight, false);
    }

    fn fall(&mut self, turn: &mut Turn<'_>, flight: &Flight, once_more: bool) {
        self.landed(flight);
        let place = self.place_of(flight);
        let step = self.table.take_running(flight.batch, flight.task);
        let ahead = step.is_none();
        let mut again: SmallVec<[Vec<Seat>; 8]> = SmallVec::new();
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
                again.push(self.recall(turn, seats[0]));
            } else {
                again.push(seats.to_vec());
            }
        }
        self.table.recycle(rows);
        again.retain(|rows| !rows.is_empty());
        self.halve(turn, place, &again);
        if !ahead {
            self.after_step(turn, flight.batch);
        }
        self.untidy = true;
    }

    /// Takes all rows of a request that are not done out of its batches, wherever they have gone.
    fn recall(&mut self, turn: &mut Turn<'_>, of: Seat) -> Vec<Seat> {
        // Masked rows of a request that had the same slot before may still run.
        let mine = |seat: &&Seat| seat.span.req == of.span.req && seat.boarding == of.boarding;
        let steps = self.table.iter().flat_map(|(_, batch)| &batch.steps);
        let mut rows: Vec<Seat> = steps.flat_map(|step| step.rows.iter().filter(mine)).copied().collect();
        rows.sort_unstable_by_key(|seat| seat.span.start);
        let request = &mut turn.ledger[of.slot];
        request.boarding += 1;
        rows.iter_mut().for_each(|seat| seat.boarding = request.boarding);
        rows
    }

    /// The turn of a task's batch, which may have gone on ahead to its end.
    fn place_of(&self, flight: &Flight) -> u64 {
        let is_its_own = |batch: &&Batch| self.table.lineages[batch.lineage].number == flight.lineage;
        self.table.find(flight.batch).filter(is_its_own).map_or(flight.lineage, |batch| batch.turn)
    }

    /// Lets requests whose task has failed start again in two parts, so that those that fail alone are found.
    fn halve(&mut self, turn: &Turn<'_>, place: u64, requests: &[Vec<Seat>]) {
        let (first, second) = requests.split_at(requests.len().div_ceil(2));
        for half in [first, second] {
            let rows: Vec<Seat> = half.concat();
            let count: u32 = rows.iter().map(|seat| seat.span.count).sum();
            // Rows that had parted come together again, and others may have come into their places.
            if count > self.max_rows {
                self.halve(turn, place, half);
            } else if count > 0 {
                self.start_again(turn, place, rows);
            }
        }
    }

    /// Lets rows start again in a batch that nobody joins, at the level of its requests and at the turn that they had.
    fn start_again(&mut self, turn: &Turn<'_>, place: u64, rows: Vec<Seat>) {
        self.totals.retries += 1;
        let (class, level) = (longest(&rows, turn.ledger), best_level(&rows, turn.ledger));
        let (mates, order) = (Mates::default(), PartOrder::DepthFirst);
        let plan = Blueprint { mates, class, level, turn: Some(place), order, sealed: true };
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
}

/// Adds a row to those that go to `next`, joining it to the last seat where it follows on.
fn go_on(going_on: &mut GoingOn, next: CellId, seat: &Seat, row: u32, blank: impl FnOnce() -> Vec<Seat>) {
    append(stage_of(going_on, next, blank), seat, row);
}

/// Adds a row of a seat to others, joining it to the last of them where it follows on.
pub(super) fn append(seats: &mut Vec<Seat>, seat: &Seat, row: u32) {
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
/// The outcomes of one request's rows within those of its task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcomes<'a> {
    all: &'a [RowOutcome],
    from: usize,
}

impl<'a> Outcomes<'a> {
    /// Those of a task.
    pub(super) fn of_all(all: &'a [RowOutcome]) -> Self {
        Self { all, from: 0 }
    }

    /// The outcome of a row. No outcomes at all mean that every row goes on; a row left out of some failed.
    pub(super) fn get(&self, row: usize) -> RowOutcome {
        let missing = if self.all.is_empty() { Next::On } else { Next::Failed };
        self.all.get(self.from + row).copied().unwrap_or(RowOutcome { next: missing, emitted: false })
    }
}
