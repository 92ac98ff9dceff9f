//! Requests that run as batches through stages (DVABatch section 5). Carries out the policy's decisions on the queue
//! and the batch table. `launching` and `leasing` form and launch batches, `limiting` cuts them; `outcomes` applies the
//! outcomes of their tasks.

mod launching;
mod leasing;
mod limiting;
mod outcomes;

use std::collections::BTreeMap;

use paternoster_model::CellId;

use super::{
    End, Instant, Knobs, Rejection, ShapeClass, TaskId,
    arbiter::Lane,
    cost::Quantile,
    ids::{PartIx, RequestIx, SubQueueIx},
    ledger::{BatchSpan, Ledger, RequestState},
    offer::{OfferOutcome, PoolView},
    policy::{BatchLimits, BatchPolicy, Decision, Selection},
    table::{
        BatchTable,
        batch::{Batch, Step},
        stages::Stages,
    },
    version::{StepContext, Tightest, Version, board_request},
};

/// The batches of one version.
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) policy: Box<dyn BatchPolicy>,
    pub(crate) table: BatchTable,
    pub(crate) stages: Stages,
    /// Rows of requests whose clients must first take their responses. They are in no batch.
    pub(crate) paused: BTreeMap<RequestIx, Vec<BatchSpan>>,
    /// Whether a request has ended while its rows were in batches.
    pub(crate) untidy: bool,
    /// Tasks in flight.
    pub(crate) tasks: Vec<BatchTask>,
    /// Whether rows of a request may run in different tasks.
    parts_requests: bool,
}

/// One task in flight.
#[derive(Debug)]
pub(crate) struct BatchTask {
    pub(crate) id: TaskId,
    pub(crate) part: PartIx,
    /// Number of the part's batch.
    pub(crate) batch_number: u64,
    pub(crate) cell: CellId,
    /// Number of requests and rows at launch.
    pub(crate) requests: u32,
    pub(crate) rows: u32,
    pub(crate) class: ShapeClass,
    /// Its rows, if they went on to the next stage at launch; empty if they wait for its end.
    pub(crate) ahead: Vec<BatchSpan>,
}

impl Batches {
    pub(crate) fn new(knobs: &Knobs) -> Self {
        let stages = Stages::new(&knobs.stages, knobs.buffer_pairs);
        let max_rows = knobs.max_rows();
        Self {
            policy: knobs.policy.start(BatchLimits {
                max_rows,
                mergeable: knobs.mergeable,
                is_ordered: knobs.queueing.preserve_ordering,
                stages: stages.count(),
            }),
            table: BatchTable::new(stages.count(), max_rows),
            stages,
            paused: BTreeMap::new(),
            untidy: false,
            tasks: Vec::new(),
            // Where requests share no batch, the rows of one may depend on each other.
            parts_requests: knobs.parts_requests && knobs.mergeable && knobs.policy.requirements().shares_batches,
        }
    }

    /// Whether the policy's next decision depends on the slack of other models.
    pub(crate) fn asks_for_neighbours(&self, version: &Version) -> bool {
        self.policy.asks_for_neighbours() && version.pending.ready() > 0 && self.table.newest().is_some()
    }

    // ## open lane => task
    pub(crate) fn offer(
        &mut self,
        context: &mut StepContext<'_>,
        lane: &Lane,
        id: TaskId,
        pool: PoolView<'_>,
    ) -> OfferOutcome {
        loop {
            let (part, waiting) = match self.decide(context, lane, pool) {
                Decision::GoOn(part) => (part, None),
                Decision::New { sub_queue, selection, accepts_newcomers } => {
                    let selection = match self.shorten(context, sub_queue, selection, pool.limit) {
                        Ok(selection) => selection,
                        Err(from) => return OfferOutcome::NotBefore(from),
                    };
                    let waiting = self.table.has_queued();
                    (self.new_batch(context, sub_queue, &selection, accepts_newcomers), Some(waiting))
                }
                Decision::Stretch { part, sub_queue, selection, accepts_newcomers } => {
                    self.stretch(context, part, sub_queue, &selection, accepts_newcomers);
                    continue;
                }
                Decision::Split { part, before } => {
                    self.table.split(part, &before);
                    context.version.totals.splits += 1;
                    continue;
                }
                // The policy decides again after each change to the table, until it launches a task or has nothing to
                // do.
                Decision::Refuse(request_ix) => {
                    self.end(context, request_ix, End::Rejected(Rejection::Late));
                    continue;
                }
                Decision::Postpone(request_ix) => {
                    context.postpone(request_ix);
                    continue;
                }
                Decision::Wait(due) => return OfferOutcome::NotBefore(due),
                Decision::Nothing => return OfferOutcome::Nothing,
            };
            if let Some(from) = self.cut(context, part, pool.limit) {
                self.table.enqueue(part);
                return OfferOutcome::NotBefore(from);
            }
            if waiting == Some(true) {
                context.version.totals.preemptions += 1;
            }
            return OfferOutcome::Launched(self.launch(context, lane, id, part));
        }
    }

    /// Removes requests from their sub-queues and boards them.
    pub(crate) fn board(
        &mut self,
        context: &mut StepContext<'_>,
        sub_queue: SubQueueIx,
        selection: &Selection,
    ) -> Vec<BatchSpan> {
        let mut spans = self.table.spare.blank();
        let StepContext { now, version, ledger, timers, .. } = context;
        let mut pop = |sub_queue, requests: u32| {
            spans.reserve(requests as usize);
            version.pending.pop(ledger, sub_queue, requests, |ledger, request_ix| {
                spans.push(board_request(*now, ledger, timers, request_ix))
            });
        };
        match selection {
            Selection::First(requests) => pop(sub_queue, *requests),
            Selection::Named(request_ixs) => {
                for &request_ix in request_ixs {
                    version.pending.remove(ledger, request_ix);
                    spans.push(board_request(*now, ledger, timers, request_ix));
                }
            }
        }
        spans
    }

    // ## (pending | aboard) => ended
    pub(crate) fn end(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx, end: End) {
        if context.ledger[request_ix].state == RequestState::Aboard {
            self.paused.remove(&request_ix);
            self.untidy |= end != End::Completed;
        }
        context.end(request_ix, end);
    }

    // ## slack
    /// Returns the least slack of any step, with its stage time.
    pub(crate) fn tightest(&self, version: &Version, now: Instant, ledger: &Ledger) -> Option<Tightest> {
        let batches = self.table.batches.iter().map(|(_, batch)| batch);
        let steps = batches.flat_map(|batch| batch.steps().map(move |step| (batch, step)));
        let slacks = steps.filter_map(|(batch, step)| self.tightest_of_step(version, now, ledger, batch, step));
        slacks.min_by_key(|tightest| tightest.slack_ns)
    }

    /// Returns the slack of a step. All its rows end together, so only the earliest target that can still be met
    /// counts.
    fn tightest_of_step(
        &self,
        version: &Version,
        now: Instant,
        ledger: &Ledger,
        batch: &Batch,
        step: &Step,
    ) -> Option<Tightest> {
        let live = || step.rows.iter().filter(|span| ledger.is_aboard(span)).map(|span| &ledger[span.request_ix]);
        let mut class = batch.class.clone();
        if self.stages.boundaries() == 0 {
            live().for_each(|request| request.lengthen(&mut class));
        }
        let rows = step.row_count();
        let ends = now + version.costs.remaining(step.next, rows, &class, Quantile::P99)?;
        let target = live().map(|request| version.target(request)).filter(|&target| target >= ends).min()?;
        Some(Tightest { slack_ns: target.since(ends), stage_ns: version.stage_ns(rows, &class)? })
    }
}
