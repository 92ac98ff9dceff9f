//! Forming and launching batches: the meta operations *new* and *stretch* on queued requests, and the launch of a
//! part's last step. `Batches::offer` calls these after the policy has decided.

use paternoster_model::CellId;
use smallvec::SmallVec;

use super::{BatchTask, Batches};
use crate::{
    Action, Bucket, Ns, RowSpan, ShapeClass, Task, TaskId,
    arbiter::Lane,
    cost::{Costs, Quantile},
    ids::{PartIx, SubQueueIx},
    ledger::{BatchSpan, InFlightTask, Ledger},
    offer::PoolView,
    policy::{Decision, Selection, View},
    table::{
        Blueprint,
        batch::{Step, StepState},
        lay_out,
        stages::Access,
    },
    version::StepContext,
};

impl Batches {
    /// Asks the policy what to run on a lane.
    pub(crate) fn decide(&mut self, context: &StepContext<'_>, lane: &Lane, pool: PoolView<'_>) -> Decision {
        let version = &*context.version;
        let ready = self.table.queued().find(|part| self.admits(part, lane));
        let enterable = version.pending.requests > 0 && self.can_enter(lane);
        let most = version.max_in_flight;
        self.policy.decide(&View {
            now: context.now,
            ledger: context.ledger,
            pending: &version.pending,
            table: &self.table,
            stages: &self.stages,
            costs: &version.costs,
            learned: version.learned,
            max_rows: version.max_rows,
            objective_ns: version.objective_ns,
            neighbours_slack_ns: pool.neighbours_slack_ns,
            ready,
            enterable,
            lane_is_idle: lane.is_idle(),
            lanes: pool.lanes.min(most).max(1),
            idle_besides: pool.idle_besides.min(most.saturating_sub(version.running + 1)),
        })
    }

    /// Meta operation *new*.
    pub(crate) fn new_batch(
        &mut self,
        context: &mut StepContext<'_>,
        sub_queue: SubQueueIx,
        selection: &Selection,
        accepts_newcomers: bool,
    ) -> PartIx {
        // The new batch becomes the newest, so the previous one can no longer be stretched. Sealing it may return a
        // lease that this batch needs.
        if self.stages.boundaries() > 0 {
            if let Some((newest, _)) = self.table.newest() {
                self.table.batches[newest].sealed = true;
            }
            self.release_leases(context.now);
        }
        let rows = self.board(context, sub_queue, selection);
        debug_assert!(!rows.is_empty(), "the policy forms a batch of no requests");
        let boarded: u32 = rows.iter().map(|span| span.rows.count).sum();
        let version = &mut *context.version;
        if boarded < version.max_rows && version.others_wait(sub_queue) {
            version.totals.batches_parted_by_key += 1;
        }
        version.totals.batches_formed += 1;
        let entry = &version.pending.sub_queues[sub_queue.at()];
        let batch_key = entry.batch_key.clone();
        let sealed = !accepts_newcomers || !self.policy.stretches();
        let class = match self.stages.boundaries() {
            0 => ShapeClass::default(),
            // Newcomers may be as long as the class of the sub-queue, and boundary tensors keep the lengths of the
            // batch.
            _ if !sealed && !batch_key.class.0.is_empty() => batch_key.class.clone(),
            _ => longest(&rows, context.ledger),
        };
        let level = best_level(&rows, context.ledger);
        left(context, sub_queue);
        let plan = Blueprint { batch_key, class, level, precedence: None, order: self.policy.part_order(), sealed };
        self.table.new_batch(context.now, plan, self.stages.entry(), rows)
    }

    /// Meta operation *stretch*.
    pub(crate) fn stretch(
        &mut self,
        context: &mut StepContext<'_>,
        part: PartIx,
        sub_queue: SubQueueIx,
        selection: &Selection,
        accepts_newcomers: bool,
    ) {
        if self.table[part].foot().is_some_and(Step::is_queued) {
            context.version.totals.preemptions += 1;
            context.version.totals.stretches_while_checking += u64::from(self.is_checking(&self.table[part]));
        }
        let rows = self.board(context, sub_queue, selection);
        context.version.totals.stretches += 1;
        let level = best_level(&rows, context.ledger);
        left(context, sub_queue);
        let boarded = rows.iter().map(|span| span.rows.count).sum();
        self.count_wait(&context.version.costs, part, boarded);
        let merged = self.table.stretch(part, level, self.stages.entry(), rows);
        context.version.totals.merges += u64::from(merged);
        if !accepts_newcomers {
            self.table.batches[part.batch].sealed = true;
        }
    }

    /// Adds the time that the steps of a part will wait for `rows` newcomers to catch up.
    fn count_wait(&mut self, costs: &Costs, part: PartIx, rows: u32) {
        let class = self.table.batches[part.batch].class.clone();
        let entry = self.stages.entry();
        for step in &mut self.table[part].steps {
            let meets_at = CellId(step.next.0 + u16::from(!step.is_queued()));
            step.waits_ns += costs.between(entry, meets_at, rows, &class, Quantile::Mean).unwrap_or(0);
        }
    }

    // ## queued => running
    pub(crate) fn launch(&mut self, context: &mut StepContext<'_>, lane: &Lane, id: TaskId, ix: PartIx) -> Option<Ns> {
        let staged = self.stages.boundaries() > 0;
        let part = &mut self.table[ix];
        let foot_at = part.foot_at()?;
        if !staged {
            // Without boundaries no buffer fixes the places, so rows are packed without gaps.
            lay_out(&mut part.steps[foot_at].rows);
        }
        let (batch, step) = (&self.table.batches[ix.batch], &self.table[ix].steps[foot_at]);
        let (batch_number, cell) = (batch.number, step.next);
        let rows = step.row_count();
        let requests = step.rows.chunk_by(|one, other| one.rows.req == other.rows.req).count() as u32;
        let spans: Vec<RowSpan> = step.rows.iter().map(|span| span.rows).collect();
        let (from, to) = span_of(&step.rows);
        // Buffers fix the padding of a staged batch; otherwise the task is padded only to its own longest row.
        let class = if staged { batch.class.clone() } else { longest(&step.rows, context.ledger) };
        let access = self.stages.access(batch, cell, from, to).unwrap_or_default();
        let after = if lane.looks_ahead() { self.stages.hazards(&access, lane.id) } else { SmallVec::new() };
        self.stages.launched(id, lane.id, &access, &mut self.table.batches[ix.batch]);
        // Rows may go on at launch only if no outcome can redirect them.
        let ahead = lane.looks_ahead() && !self.stages.decides(cell) && !self.stages.is_last(cell);
        let ahead = self.pass_on(context, ix, foot_at, id, ahead);
        context.version.running += 1;
        context.version.totals.tasks_launched += 1;
        context.version.totals.rows_launched += u64::from(rows);
        let task = BatchTask { id, part: ix, batch_number, cell, requests, rows, class: class.clone(), ahead };
        self.tasks.push(task);
        let bucket = context.version.costs.bucket(cell, rows, &class);
        context.ledger.launched(InFlightTask::new(id, lane.id, context.version.ix, rows, bucket, context.now));
        let predicted_ns = context.version.costs.predict(cell, rows, &class, Quantile::Mean);
        let Access { reads, writes, .. } = access;
        let bucket = Bucket { rows: bucket, class };
        let task = Box::new(Task {
            id,
            model: context.version.model,
            cell,
            bucket,
            lane: lane.id,
            batch: batch_number,
            rows: spans,
            reads,
            writes,
            after,
        });
        context.actions.push(Action::Launch(task));
        self.release_leases(context.now);
        predicted_ns
    }

    /// Moves the launched step: it waits for the task's end, or goes on to the next stage `ahead` of the task's end. In
    /// the second case its spans are returned, for the task to keep.
    fn pass_on(
        &mut self,
        context: &mut StepContext<'_>,
        ix: PartIx,
        foot_at: usize,
        id: TaskId,
        ahead: bool,
    ) -> Vec<BatchSpan> {
        let part = &mut self.table[ix];
        let mut spans = Vec::new();
        if !ahead {
            part.steps[foot_at].state = StepState::Running(id);
        } else {
            let Step { next, rows, waits_ns, .. } = part.steps.remove(foot_at);
            spans.clone_from(&rows);
            part.insert_step(CellId(next.0 + 1), rows, waits_ns);
        }
        context.version.totals.merges += u64::from(self.table.enqueue(ix));
        spans
    }
}

/// Updates a sub-queue after some of its requests have boarded.
fn left(context: &mut StepContext<'_>, sub_queue: SubQueueIx) {
    context.version.touched(context.ledger, sub_queue);
    context.version.pending.retire(sub_queue);
}

/// Returns the place of the first row and the place after the last.
pub(crate) fn span_of(rows: &[BatchSpan]) -> (u32, u32) {
    let from = rows.first().map_or(0, |span| span.rows.at);
    let to = rows.last().map_or(0, |span| span.rows.at + span.rows.count);
    (from, to)
}

/// Returns the padded shape that holds all these rows.
pub(crate) fn longest(rows: &[BatchSpan], ledger: &Ledger) -> ShapeClass {
    let mut class = ShapeClass::default();
    for span in rows {
        ledger[span.request_ix].lengthen(&mut class);
    }
    class
}

/// Returns the best priority level among the live requests of these rows.
pub(crate) fn best_level(rows: &[BatchSpan], ledger: &Ledger) -> u64 {
    let aboard = rows.iter().filter(|span| ledger.is_aboard(span));
    aboard.map(|span| ledger[span.request_ix].level).min().unwrap_or(u64::MAX)
}
