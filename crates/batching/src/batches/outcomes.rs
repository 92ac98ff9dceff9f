//! Outcomes of a task: rows go on to a stage, are done, pause, or fail. The requests of a failed task start again in
//! halves.
//!
//! Rows pause if their client has more responses pending than it takes, so that no further response is made. They are
//! in no batch and occupy no lane. Their request still ends at its deadline or when the client cancels it.

use paternoster_model::{CellId, Next, RowOutcome};
use smallvec::SmallVec;

use super::{
    BatchTask, Batches,
    launching::{best_level, longest},
};
use crate::{
    End, Ns, PartOrder, TaskId,
    ids::{PartIx, RequestIx},
    ledger::{BatchSpan, InFlightTask},
    queue::BatchKey,
    table::{Blueprint, batch::Step, stages::Onward},
    version::StepContext,
};

/// Rows that go on, grouped by their next stage.
type GoingOn = SmallVec<[(CellId, Vec<BatchSpan>); 1]>;

impl Batches {
    // ## running => (queued again | ended), row by row
    pub(crate) fn complete(
        &mut self,
        context: &mut StepContext<'_>,
        InFlightTask { task, bucket, .. }: &InFlightTask,
        outcomes: &[RowOutcome],
        took_ns: Ns,
    ) {
        let Some(in_flight) = self.take_completed(context, *task) else { return };
        let in_flight = &in_flight;
        context.version.learn(in_flight.cell, in_flight.rows, *bucket, &in_flight.class, took_ns);
        let Some(step) = self.table.take_running(in_flight.part, in_flight.id) else {
            self.apply_outcomes_ahead(context, in_flight, outcomes);
            return;
        };
        // Usually one `Finish` per span, plus one launch and one wake.
        context.actions.reserve(step.rows.len() + 2);
        let mut going_on = GoingOn::new();
        let Step { next: cell, rows, waits_ns, .. } = step;
        let mut at = 0;
        for of_request in rows.chunk_by(|one, other| one.rows.req == other.rows.req) {
            let count: usize = of_request.iter().map(|span| span.rows.count as usize).sum();
            if context.ledger.is_aboard(&of_request[0]) {
                self.apply_outcomes(context, in_flight, of_request, outcomes, at, &mut going_on);
            } else {
                of_request.iter().for_each(|span| self.table.vacate(in_flight.part, span.rows));
            }
            at += count;
        }
        self.table.spare.recycle(rows);
        for (next, rows) in going_on {
            if next <= cell {
                self.table.repeat(in_flight.part, best_level(&rows, context.ledger));
            }
            // Rows that skip stages become their own part; the rest can never catch up with them.
            if next.0 > cell.0 + 1 && self.stages.boundaries() > 0 {
                self.table.new_part(in_flight.part, next, rows);
            } else {
                self.table[in_flight.part].insert_step(next, rows, waits_ns);
            }
        }
        self.after_step(context, in_flight.part);
    }

    /// Removes a task that has left its lane.
    fn take_completed(&mut self, context: &mut StepContext<'_>, task: TaskId) -> Option<BatchTask> {
        let at = self.tasks.iter().position(|in_flight| in_flight.id == task)?;
        let in_flight = self.tasks.swap_remove(at);
        context.version.running -= 1;
        self.stages.completed(task);
        Some(in_flight)
    }

    /// Restores the order of a part whose steps have changed, and returns the leases that its batch no longer needs.
    fn after_step(&mut self, context: &mut StepContext<'_>, part: PartIx) {
        context.version.totals.merges += u64::from(self.table.tidy(part, context.ledger));
        self.release_leases(context.now);
    }

    /// Applies the outcomes of one request's rows, whose first is row `at` of the task. Rows that go on are added to
    /// `going_on`.
    fn apply_outcomes(
        &mut self,
        context: &mut StepContext<'_>,
        in_flight: &BatchTask,
        spans: &[BatchSpan],
        outcomes: &[RowOutcome],
        mut at: usize,
        going_on: &mut GoingOn,
    ) {
        let (request_ix, cell) = (spans[0].request_ix, in_flight.cell);
        let (mut done, mut failed, mut emitted) = (0, false, false);
        for span in spans {
            // Fast path for stages without decisions: the whole span continues, without a loop over its rows.
            if outcomes.is_empty() {
                match self.stages.onward(cell, Next::On) {
                    Onward::To(next) => stage_of(going_on, next, || self.table.spare.blank()).push(*span),
                    Onward::Done | Onward::Paused | Onward::Failed => {
                        done += span.rows.count;
                        self.table.vacate(in_flight.part, span.rows);
                    }
                }
                continue;
            }
            for row in 0..span.rows.count {
                let outcome = RowOutcome::of_row(outcomes, at);
                at += 1;
                emitted |= outcome.emitted;
                let onward = self.stages.onward(cell, outcome.next);
                if let Onward::To(next) = onward {
                    append(stage_of(going_on, next, || self.table.spare.blank()), span, row);
                    continue;
                }
                if onward == Onward::Paused {
                    append(self.paused.entry(request_ix).or_default(), span, row);
                    continue;
                }
                self.table.vacate(in_flight.part, span.rows.row(row));
                failed |= onward == Onward::Failed;
                if onward == Onward::Done {
                    done += 1;
                    // A row that is done before the last stage has taken an exit.
                    context.version.totals.early_exits += u64::from(!self.stages.is_last(cell));
                }
            }
        }
        if emitted {
            context.emit(request_ix);
        }
        if failed {
            self.end(context, request_ix, End::Failed);
            return;
        }
        let request = &mut context.ledger[request_ix];
        request.left -= done;
        if request.left == 0 {
            self.end(context, request_ix, End::Completed);
        }
    }

    /// Applies the outcomes of a task whose rows went on at launch. Only failed rows matter now.
    fn apply_outcomes_ahead(&mut self, context: &mut StepContext<'_>, in_flight: &BatchTask, outcomes: &[RowOutcome]) {
        let mut at = 0;
        for span in &in_flight.ahead {
            let rows = at..at + span.rows.count as usize;
            at = rows.end;
            let onward = |row| self.stages.onward(in_flight.cell, RowOutcome::of_row(outcomes, row).next);
            let failed = rows.map(onward).any(|onward| onward == Onward::Failed);
            if failed && context.ledger.is_aboard(span) {
                self.end(context, span.request_ix, End::Failed);
            }
        }
        self.release_leases(context.now);
    }

    // ## running => (queued again, in halves | failed)
    pub(crate) fn fail(&mut self, context: &mut StepContext<'_>, task: TaskId, may_retry: bool) {
        let Some(in_flight) = self.take_completed(context, task) else { return };
        let (in_flight, once_more) = (&in_flight, may_retry && in_flight.requests > 1);
        // If the part has already gone on and ended, its batch's number takes the place of its precedence.
        let place = self.table.find(in_flight.part).map_or(in_flight.batch_number, |part| part.precedence);
        let step = self.table.take_running(in_flight.part, in_flight.id);
        // Without a running step, the rows were passed on at launch (launched ahead), so later stages may already have
        // them.
        let ahead = step.is_none();
        let mut again: SmallVec<[Vec<BatchSpan>; 8]> = SmallVec::new();
        let rows = step.map_or_else(|| in_flight.ahead.clone(), |step| step.rows);
        for spans in rows.chunk_by(|one, other| one.rows.req == other.rows.req) {
            if !ahead {
                // The rows start again in a new batch, so their places in this one are free.
                spans.iter().for_each(|span| self.table.vacate(in_flight.part, span.rows));
            }
            let request_ix = spans[0].request_ix;
            if !context.ledger.is_aboard(&spans[0]) {
                continue;
            }
            if !once_more {
                self.end(context, request_ix, End::Failed);
            } else if ahead {
                // The rows have moved on meanwhile: collects them wherever they are.
                again.push(self.recall(context, spans[0]));
            } else {
                again.push(spans.to_vec());
            }
        }
        self.table.spare.recycle(rows);
        again.retain(|rows| !rows.is_empty());
        self.halve(context, place, &again);
        if !ahead {
            self.after_step(context, in_flight.part);
        }
        self.untidy = true;
    }

    /// Takes all unfinished rows of a request out of its batches, and returns them. The request's boarding number
    /// changes, which masks the spans that stay behind in running tasks.
    fn recall(&mut self, context: &mut StepContext<'_>, of: BatchSpan) -> Vec<BatchSpan> {
        // Compare ids, too: masked rows of an ended request that had the same ledger index may still run.
        let mine = |span: &&BatchSpan| span.rows.req == of.rows.req && span.boarding == of.boarding;
        let steps = self.table.parts().flat_map(|part| &part.steps);
        let mut rows: Vec<BatchSpan> = steps.flat_map(|step| step.rows.iter().filter(mine)).copied().collect();
        rows.sort_unstable_by_key(|span| span.rows.start);
        let request = &mut context.ledger[of.request_ix];
        request.boarding += 1;
        rows.iter_mut().for_each(|span| span.boarding = request.boarding);
        rows
    }

    /// Starts the requests of a failed task again in two parts, so that requests that fail alone are found by
    /// bisection.
    fn halve(&mut self, context: &mut StepContext<'_>, place: u64, requests: &[Vec<BatchSpan>]) {
        let (first, second) = requests.split_at(requests.len().div_ceil(2));
        for half in [first, second] {
            let rows: Vec<BatchSpan> = half.concat();
            let count: u32 = rows.iter().map(|span| span.rows.count).sum();
            // A request's rows that were in different parts are together again, and other rows may have filled their
            // places, so they can exceed the largest batch.
            if count > context.version.max_rows {
                self.halve(context, place, half);
            } else if count > 0 {
                context.version.totals.retries += 1;
                self.start_again(context, Some(place), rows);
            }
        }
    }

    // ## paused => queued, in a batch of their own
    pub(crate) fn resume(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx) {
        if let Some(rows) = self.paused.remove(&request_ix) {
            self.start_again(context, None, rows);
        }
    }

    /// Starts rows again in a sealed batch, at their level and, if given, an earlier precedence.
    fn start_again(&mut self, context: &mut StepContext<'_>, precedence: Option<u64>, rows: Vec<BatchSpan>) {
        let (class, level) = (longest(&rows, context.ledger), best_level(&rows, context.ledger));
        let (batch_key, order) = (BatchKey::default(), PartOrder::DepthFirst);
        let plan = Blueprint { batch_key, class, level, precedence, order, sealed: true };
        let part = self.table.new_batch(context.now, plan, self.stages.entry(), rows);
        self.table.enqueue(part);
    }

    /// Drops the rows of requests that have ended since the last boundary.
    pub(crate) fn tidy(&mut self, context: &mut StepContext<'_>) {
        if !std::mem::take(&mut self.untidy) {
            return;
        }
        let parts: SmallVec<[PartIx; 8]> = self.table.parts().map(|part| part.ix).collect();
        for part in parts {
            context.version.totals.merges += u64::from(self.table.tidy(part, context.ledger));
        }
        self.release_leases(context.now);
    }
}

/// Adds a row of a span to `spans`, extending the last one if the row continues it.
fn append(spans: &mut Vec<BatchSpan>, span: &BatchSpan, row: u32) {
    let rows = span.rows.row(row);
    match spans.last_mut() {
        Some(last)
            if last.request_ix == span.request_ix
                && last.rows.start + last.rows.count == rows.start
                && last.rows.at + last.rows.count == rows.at =>
        {
            last.rows.count += 1;
        }
        _ => spans.push(BatchSpan { rows, ..*span }),
    }
}

/// Returns the rows that go to `next`.
fn stage_of(going_on: &mut GoingOn, next: CellId, blank: impl FnOnce() -> Vec<BatchSpan>) -> &mut Vec<BatchSpan> {
    let at = going_on.iter().position(|&(stage, _)| stage == next).unwrap_or_else(|| {
        going_on.push((next, blank()));
        going_on.len() - 1
    });
    &mut going_on[at].1
}
