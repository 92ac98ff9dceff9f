//! How the requests of a version run: as batches through stages, or as cells. What is the same for both is decided here
//! once; everything behind belongs to one of them.

use super::{
    Arrival, CellId, End, Knobs, LaneId, Ns, RowOutcome, TaskId,
    arbiter::Lane,
    batches::Batches,
    cellular::Cellular,
    ids::{RequestIx, SubQueueIx},
    knobs,
    ledger::{InFlightTask, Ledger, Request},
    version::{StepContext, Tightest, Version},
};

/// What a version sees of the pool as it is offered a lane.
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

/// What a version makes of an offered lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It launched a task there, predicted to take so long.
    Launched(Option<Ns>),
    /// It has nothing to launch before this time.
    NotBefore(Ns),
    /// It has nothing to launch.
    Nothing,
}

/// The work of one version.
#[derive(Debug)]
pub(super) enum Work {
    /// Batches through stages.
    Batches(Batches),
    /// Graphs of cells.
    Cells(Cellular),
}

impl Work {
    pub(super) fn new(knobs: &Knobs) -> Self {
        match &knobs.policy {
            knobs::Policy::Cellular(cellular) => Self::Cells(Cellular::new(cellular)),
            _ => Self::Batches(Batches::new(knobs)),
        }
    }

    /// Why a request can never board.
    pub(super) fn refusal(&self, arrival: &Arrival) -> Option<End> {
        match self {
            Self::Batches(_) => None,
            Self::Cells(cells) => cells.refusal(arrival),
        }
    }

    /// Takes note of an arrival in a sub-queue.
    pub(super) fn arrived(&mut self, now: Ns, sub_queue: SubQueueIx, request: &Request) {
        if let Self::Batches(batches) = self {
            batches.policy.arrived(now, sub_queue, request);
        }
    }

    /// Whether there is anything to launch, be it bound to a lane.
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
    ) -> Answer {
        match self {
            Self::Batches(batches) => batches.offer(context, lane, id, pool),
            Self::Cells(cells) => cells.offer(context, lane, id, pool.brought),
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
            Self::Batches(batches) => batches.complete(context, in_flight.task, outcomes, took_ns),
            Self::Cells(cells) => cells.complete(context, in_flight, outcomes, took_ns),
        }
    }

    // ## running => (to run again, in halves | ended)
    pub(super) fn fail(&mut self, context: &mut StepContext<'_>, in_flight: &InFlightTask) {
        context.version.totals.tasks_failed += 1;
        match self {
            Self::Batches(batches) => batches.fail(context, in_flight.task),
            Self::Cells(cells) => cells.fail(context, in_flight),
        }
    }

    // ## running => ended
    /// The lane of a task hangs: its requests fail.
    pub(super) fn fail_lost(&mut self, context: &mut StepContext<'_>, in_flight: &InFlightTask) {
        context.version.totals.tasks_failed += 1;
        match self {
            Self::Batches(batches) => batches.fail_lost(context, in_flight.task),
            Self::Cells(cells) => cells.fail_lost(context, in_flight),
        }
    }

    // ## (pending | aboard) => ended
    pub(super) fn end(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx, end: End) {
        match self {
            Self::Batches(batches) => batches.end(context, request_ix, end),
            Self::Cells(cells) => cells.end(context, request_ix, end),
        }
    }

    /// The request aboard that must go on first, to be in time.
    pub(super) fn tightest(&self, version: &Version, now: Ns, ledger: &Ledger) -> Option<Tightest> {
        match self {
            Self::Batches(batches) => batches.tightest(version, now, ledger),
            Self::Cells(cells) => cells.tightest(version, now, ledger),
        }
    }

    /// A request whose rows paused goes on.
    pub(super) fn resume(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx) {
        if let Self::Batches(batches) = self {
            batches.resume(context, request_ix);
        }
    }

    /// Drops what has ended since the last boundary.
    pub(super) fn tidy(&mut self, context: &mut StepContext<'_>) {
        if let Self::Batches(batches) = self {
            batches.tidy(context);
        }
    }

    /// Whether its next decision depends on how much time other models can spare.
    pub(super) fn asks_for_neighbours(&self, version: &Version) -> bool {
        self.batches().is_some_and(|batches| batches.asks_for_neighbours(version))
    }

    /// Whether any node is ready that a lane may run.
    pub(super) fn has_ready_on(&self, lane: LaneId) -> bool {
        self.cells().is_some_and(|cells| cells.has_ready_on(lane))
    }

    pub(super) fn batches(&self) -> Option<&Batches> {
        match self {
            Self::Batches(batches) => Some(batches),
            Self::Cells(_) => None,
        }
    }

    pub(super) fn cells(&self) -> Option<&Cellular> {
        match self {
            Self::Batches(_) => None,
            Self::Cells(cells) => Some(cells),
        }
    }

    pub(super) fn cells_mut(&mut self) -> Option<&mut Cellular> {
        match self {
            Self::Batches(_) => None,
            Self::Cells(cells) => Some(cells),
        }
    }
}
