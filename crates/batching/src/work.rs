//! How the requests of a version run: as batches through stages, or as graphs of cells. `VersionScheduler` calls this
//! type, which dispatches to `batches` or `cells`; no other code distinguishes the two.

use paternoster_model::RowOutcome;

use super::{
    Arrival, End, Instant, Knobs, Ns, Policy, TaskId,
    arbiter::Lane,
    batches::Batches,
    cells::Cells,
    ids::{RequestIx, SubQueueIx},
    ledger::{InFlightTask, Ledger},
    offer::{OfferOutcome, PoolView},
    policy::RequestView,
    version::{StepContext, Tightest, Version},
};

/// The work of one version.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a loaded version has one")]
pub(super) enum Work {
    /// Batches that run through stages.
    Batches(Batches),
    /// Requests that unfold into graphs of cells.
    Cells(Cells),
}

impl Work {
    pub(super) fn new(knobs: &Knobs) -> Self {
        match &knobs.policy {
            Policy::Cellular(cellular) => Self::Cells(Cells::new(cellular)),
            _ => Self::Batches(Batches::new(knobs)),
        }
    }

    /// Returns why a request can never board, if so.
    pub(super) fn refusal(&self, arrival: &Arrival) -> Option<End> {
        match self {
            Self::Batches(_) => None,
            Self::Cells(cells) => cells.refusal(arrival),
        }
    }

    /// Notifies the policy of an arrival in a sub-queue.
    pub(super) fn arrived(&mut self, now: Instant, sub_queue: SubQueueIx, request: RequestView<'_>) {
        match self {
            Self::Batches(batches) => batches.policy.arrived(now, sub_queue, request),
            Self::Cells(cells) => cells.arrived(),
        }
    }

    /// Whether any work is ready to launch, including work that is pinned to a lane.
    pub(super) fn has_ready(&self) -> bool {
        match self {
            Self::Batches(batches) => batches.table.has_queued(),
            Self::Cells(cells) => cells.has_ready(),
        }
    }

    // ## open lane => task
    pub(super) fn offer(
        &mut self,
        context: &mut StepContext<'_>,
        lane: &Lane,
        id: TaskId,
        pool: PoolView<'_>,
    ) -> OfferOutcome {
        match self {
            Self::Batches(batches) => batches.offer(context, lane, id, pool),
            Self::Cells(cells) => cells.offer(context, lane, id, pool),
        }
    }

    // ## running => (queued again | ready again | ended), row by row
    pub(super) fn complete(
        &mut self,
        context: &mut StepContext<'_>,
        in_flight: &InFlightTask,
        outcomes: &[RowOutcome],
        took_ns: Ns,
    ) {
        match self {
            Self::Batches(batches) => batches.complete(context, in_flight, outcomes, took_ns),
            Self::Cells(cells) => cells.complete(context, in_flight, outcomes, took_ns),
        }
    }

    // ## running => (to run again, in halves | ended)
    /// Handles the failure of a task. Its requests may run again unless its lane hangs.
    pub(super) fn fail(&mut self, context: &mut StepContext<'_>, in_flight: &InFlightTask, may_retry: bool) {
        context.version.totals.tasks_failed += 1;
        match self {
            Self::Batches(batches) => batches.fail(context, in_flight.task, may_retry),
            Self::Cells(cells) => cells.fail(context, in_flight, may_retry),
        }
    }

    // ## (pending | aboard) => ended
    pub(super) fn end(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx, end: End) {
        match self {
            Self::Batches(batches) => batches.end(context, request_ix, end),
            Self::Cells(cells) => cells.end(context, request_ix, end),
        }
    }

    /// Returns the boarded request with the least slack.
    pub(super) fn tightest(&self, version: &Version, now: Instant, ledger: &Ledger) -> Option<Tightest> {
        match self {
            Self::Batches(batches) => batches.tightest(version, now, ledger),
            Self::Cells(cells) => cells.tightest(version, now, ledger),
        }
    }

    /// Resumes a request whose rows are paused.
    pub(super) fn resume(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx) {
        if let Self::Batches(batches) = self {
            batches.resume(context, request_ix);
        }
    }

    /// Removes rows that have ended since the last boundary.
    pub(super) fn tidy(&mut self, context: &mut StepContext<'_>) {
        if let Self::Batches(batches) = self {
            batches.tidy(context);
        }
    }

    pub(super) fn batches(&self) -> Option<&Batches> {
        match self {
            Self::Batches(batches) => Some(batches),
            Self::Cells(_) => None,
        }
    }

    pub(super) fn cells(&self) -> Option<&Cells> {
        match self {
            Self::Batches(_) => None,
            Self::Cells(cells) => Some(cells),
        }
    }

    pub(super) fn cells_mut(&mut self) -> Option<&mut Cells> {
        match self {
            Self::Batches(_) => None,
            Self::Cells(cells) => Some(cells),
        }
    }
}
