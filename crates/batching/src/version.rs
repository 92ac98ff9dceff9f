//! A loaded version without its work: limits, queue, response order, costs and counters. `VersionScheduler` owns it
//! next to the `Work`, which changes it through a [`StepContext`]; `responses` ends its requests.

use paternoster_model::CellId;

use super::{
    Action, Actions, Arrival, CostTable, Counters, Instant, ModelId, Ns, Policy, QueueingKnobs, RowSpan, ShapeClass,
    StageKnobs,
    cost::{Costs, Quantile},
    graph::{Graph, SlackNs},
    ids::{GroupIx, NOT_THEIR_TURN, RequestIx, SequenceIx, SubQueueIx},
    ledger::{BatchSpan, Ledger, Request, RequestState},
    policy::Requirements,
    queue::{
        BatchKey, ByLength, Change, IN_ORDER, LatestStarts, LengthBucketing, List, Pending, QueueRules, Sequences,
        Targets,
    },
    rate_limiter::RateLimiterKnobs,
    steps::PROBABLY,
    timers::Timers,
};

/// Settings of one model version.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    /// Largest batch in rows, at least 1. The largest bucket of each stage limits it further.
    pub max_batch_rows: u32,
    /// Whether requests may share a batch; false for models without a batch axis.
    pub mergeable: bool,
    /// Whether the rows of a request may run in different tasks. They do only if requests share batches too, and the
    /// request would hold the [last lane](super::Core::with_last_lane_limit) for too long.
    pub parts_requests: bool,
    /// Maximum number of tasks in flight per device (`instance_group.count`).
    pub max_in_flight: u32,
    /// The stages in order; at least one.
    pub stages: Vec<StageKnobs>,
    /// Number of buffers at each boundary between two stages (DVABatch section 6.1), at least 1. With 1, only one batch
    /// is between admission and the end of the last stage; with 2, stages overlap.
    pub buffer_pairs: u16,
    /// Latency objective, from arrival to end. It guides scheduling; a request that misses it still runs.
    pub objective_ns: Option<Ns>,
    /// Known latencies of the stages, if any. Measurements correct them online.
    pub latencies: Option<CostTable>,
    /// Weight of this model's share of the device, at least 1. The rate limiter's priority divides it.
    pub weight: u32,
    /// What the rate limiter asks of its tasks. Resources count only in a core with a rate limiter.
    pub rate_limiter: RateLimiterKnobs,
    /// Order, priorities and limits of the queue.
    pub queueing: QueueingKnobs,
    /// Batching policy.
    pub policy: Policy,
    /// Whether requests must stay on this core, because the version is not loaded on every device they could move to.
    pub stays: bool,
}

impl Default for Knobs {
    /// The `serial` policy with one stage and batches of one row.
    fn default() -> Self {
        Self {
            max_batch_rows: 1,
            mergeable: true,
            parts_requests: false,
            max_in_flight: 1,
            stages: vec![StageKnobs::default()],
            buffer_pairs: 2,
            objective_ns: None,
            latencies: None,
            weight: 1,
            rate_limiter: RateLimiterKnobs::default(),
            queueing: QueueingKnobs::default(),
            policy: Policy::Serial,
            stays: false,
        }
    }
}

impl Knobs {
    /// Whether all requests of the version must go to one core: either responses leave in arrival order, or nothing
    /// runs before a number of requests wait.
    pub fn is_bound(&self) -> bool {
        self.queueing.preserve_ordering || self.queueing.hold_until_waiting > 0
    }

    /// Returns the largest batch, in rows, that all stages can run.
    pub(super) fn max_rows(&self) -> u32 {
        let largest = self.stages.iter().filter_map(|stage| stage.buckets.iter().copied().max());
        largest.fold(self.max_batch_rows, u32::min).max(1)
    }
}

/// Weight of the moving average of device time per row or node.
const AVERAGED: Ns = 16;

/// Assumed device time per row or node until the first task has run.
const UNKNOWN_UNIT_NS: Ns = 100_000;

/// Slack of the request that must start first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tightest {
    pub(super) slack_ns: Ns,
    /// Average duration of one stage of that request.
    pub(super) stage_ns: Ns,
}

/// The part of a core step that concerns one version: the version plus the core's shared tables.
#[derive(Debug)]
pub(super) struct StepContext<'a> {
    pub(super) now: Instant,
    pub(super) version: &'a mut Version,
    pub(super) ledger: &'a mut Ledger,
    pub(super) timers: &'a mut Timers,
    pub(super) actions: &'a mut Actions,
}

/// The numbers of requests that must wait before anything runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    /// Requests, or of those in sequences the ones whose sequence has a slot.
    waiting: usize,
    /// Requests of sequences without a slot.
    backlog: usize,
}

impl Hold {
    fn of(knobs: &QueueingKnobs) -> Option<Self> {
        let (waiting, backlog) = (knobs.hold_until_waiting as usize, knobs.hold_until_backlog as usize);
        (waiting > 0).then_some(Self { waiting, backlog })
    }
}

/// State of one loaded version.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) model: ModelId,
    /// Index of its group in the core.
    pub(super) ix: GroupIx,
    pub(super) max_rows: u32,
    pub(super) max_in_flight: u32,
    pub(super) objective_ns: Option<Ns>,
    /// The stages or cells that requests run through.
    pub(super) graph: Graph,
    pub(super) costs: Costs,
    /// Average device time per row and stage, or per node; `None` until the first task has run.
    unit_ns: Option<Ns>,
    /// Whether all runs correct the costs, or only those of requests with lengths, which decide who shares a batch.
    pub(super) learns: bool,
    /// Number of runs that have corrected the costs.
    pub(super) learned: u64,
    /// Which lengths may share a batch; `None` if requests never share one.
    pub(super) merges: Option<LengthBucketing>,
    pub(super) pending: Pending,
    /// Latest start of each sub-queue of `pending`, kept if there is an objective.
    pub(super) latest_starts: LatestStarts,
    /// Open sequences, if requests belong to sequences.
    pub(super) sequences: Option<Sequences>,
    /// What must wait before anything runs; `None` once it has.
    pub(super) hold: Option<Hold>,
    /// All live requests in arrival order, if responses must leave in that order.
    pub(super) order: Option<List<IN_ORDER>>,
    /// Number of requests that have not ended.
    pub(super) live: usize,
    /// Number of tasks on lanes.
    pub(super) running: u32,
    pub(super) totals: Counters,
}

impl Version {
    pub(super) fn new(model: ModelId, ix: GroupIx, knobs: &Knobs) -> Self {
        let cellular = match &knobs.policy {
            Policy::Cellular(cellular) => Some(cellular),
            _ => None,
        };
        let buckets: Vec<&[u32]> = match cellular {
            Some(cellular) => cellular.cells.iter().map(|cell| &*cell.buckets).collect(),
            None => knobs.stages.iter().map(|stage| &*stage.buckets).collect(),
        };
        let graph = Graph::new(buckets.len(), cellular.map(|cellular| cellular.segments.as_slice()));
        let is_chunked = |cell: usize| {
            let cells = cellular.map_or(&[][..], |cellular| &cellular.cells);
            cells.get(cell).is_some_and(|cell| cell.chunks.is_some())
        };
        let sequences = cellular.and_then(|cellular| cellular.sequences).map(Sequences::new);
        let max_rows = knobs.max_rows();
        let Requirements { costs, targets, shares_batches, lengths, pads_any, .. } = knobs.policy.requirements();
        let keeps_targets = targets || knobs.objective_ns.is_some();
        let merges = (shares_batches && knobs.mergeable).then_some(match (lengths, knobs.queueing.bucket_width) {
            (Some(lengths), _) => lengths,
            (None, Some(0)) => LengthBucketing::Any,
            (None, Some(width)) => LengthBucketing::Width(width),
            (None, None) if pads_any => LengthBucketing::Any,
            (None, None) => LengthBucketing::Learned,
        });
        let by_length = matches!(merges, Some(LengthBucketing::Learned))
            .then(|| ByLength::new(targets.then_some(knobs.objective_ns)));
        let targets = keeps_targets.then(|| Targets::new(knobs.objective_ns));
        let may_leave = !knobs.is_bound() && !knobs.stays && sequences.is_none();
        Self {
            model,
            ix,
            max_rows,
            max_in_flight: knobs.max_in_flight.max(1),
            objective_ns: knobs.objective_ns,
            costs: Costs::new(&buckets, max_rows, knobs.latencies.as_ref())
                .with_chunks(is_chunked, knobs.latencies.as_ref()),
            graph,
            learns: costs || knobs.objective_ns.is_some() || buckets.iter().any(|sizes| !sizes.is_empty()),
            learned: 0,
            merges,
            pending: Pending::new(QueueRules::new(&knobs.queueing), targets, by_length, may_leave),
            unit_ns: None,
            latest_starts: LatestStarts::default(),
            // Sequences keep their own order already. Ordering across sequences could deadlock: a response that waits
            // for another sequence would keep its own sequence from ending.
            order: (knobs.queueing.preserve_ordering && sequences.is_none()).then(List::default),
            sequences,
            hold: Hold::of(&knobs.queueing),
            live: 0,
            running: 0,
            totals: Counters::default(),
        }
    }

    /// Whether one more task may be in flight.
    pub(super) fn may_run(&self) -> bool {
        self.hold.is_none() && self.running < self.max_in_flight
    }

    /// Ends the hold if enough requests wait. It applies once and never returns.
    pub(super) fn release_hold(&mut self) {
        let Some(hold) = self.hold else { return };
        let (waiting, backlog) = match &self.sequences {
            Some(sequences) => sequences.waiting(),
            None => (self.pending.requests, 0),
        };
        if waiting >= hold.waiting && backlog >= hold.backlog {
            self.hold = None;
        }
    }

    /// Whether requests wait that cannot share a batch with this sub-queue.
    pub(super) fn others_wait(&self, sub_queue: SubQueueIx) -> bool {
        self.merges.is_some() && self.pending.rows > self.pending.sub_queues[sub_queue.at()].rows
    }

    /// Corrects the costs by one run of `rows` rows of a stage or cell, executed in a bucket.
    pub(super) fn learn(&mut self, cell: CellId, rows: u32, bucket: u32, class: &ShapeClass, took_ns: Ns) {
        if self.learns || !class.0.is_empty() {
            self.costs.learn(cell, rows, bucket, class, took_ns);
            self.learned += 1;
        }
    }

    /// Updates the average device time per row by a task of `units` rows in one stage, or `units` nodes.
    pub(super) fn ran(&mut self, units: u32, used_ns: Ns) {
        // The division costs about as much as the rest of this function, so a single row skips it.
        let own_ns = if units > 1 { used_ns / Ns::from(units) } else { used_ns };
        let unit_ns = self.unit_ns.get_or_insert(own_ns);
        *unit_ns = unit_ns.saturating_mul(AVERAGED - 1).saturating_add(own_ns) / AVERAGED;
    }

    /// Returns the device time that a request is expected to need.
    pub(super) fn expected_ns(&self, arrival: &Arrival) -> Ns {
        let units = match &self.graph {
            Graph::Stages(stages) => u64::from(arrival.rows) * u64::from(*stages),
            Graph::Cells(..) => arrival.graph.iter().map(|segment| u64::from(segment.nodes())).sum(),
        };
        units.saturating_mul(self.unit_ns.unwrap_or(UNKNOWN_UNIT_NS))
    }

    /// Returns the target completion time of a request, `NEVER` without a deadline or objective.
    pub(super) fn target(&self, request: &Request) -> Instant {
        request.target(self.objective_ns)
    }

    /// Returns the latest start of a waiting request: its target less its execution time alone.
    pub(super) fn latest_start(&self, request: &Request) -> Option<SlackNs> {
        let needs_ns = self.graph.time_alone(&self.costs, request, Quantile::P99, PROBABLY)?;
        let target = SlackNs::try_from(self.target(request).as_ns()).unwrap_or(SlackNs::MAX);
        Some(target.saturating_sub_unsigned(needs_ns))
    }

    /// Returns the average duration of one stage for a batch of this size and shape.
    pub(super) fn stage_ns(&self, rows: u32, class: &ShapeClass) -> Option<Ns> {
        let whole_ns = self.costs.whole(rows, class, Quantile::P99)?;
        Some(whole_ns / Ns::from(self.graph.stages()))
    }

    /// Returns the waiting request with the least slack. Considers only the first request by target of each sub-queue,
    /// since the others start later in any case.
    pub(super) fn tightest_waiting(&mut self, now: Instant, ledger: &Ledger) -> Option<Tightest> {
        let mut latest_starts = std::mem::take(&mut self.latest_starts);
        let first = latest_starts.first(now, |request_ix| self.latest_start(&ledger[request_ix]));
        self.latest_starts = latest_starts;
        let (latest, request_ix) = first?;
        let slack_ns = Ns::try_from(latest).ok()?.checked_sub(now.as_ns())?;
        Some(Tightest { slack_ns, stage_ns: self.stage_ns_of(&ledger[request_ix])? })
    }

    fn stage_ns_of(&self, request: &Request) -> Option<Ns> {
        match &self.graph {
            Graph::Stages(_) => self.stage_ns(request.rows, &ShapeClass(request.lengths.clone())),
            Graph::Cells(..) => self.stage_ns(1, &ShapeClass::default()),
        }
    }

    /// Refiles a sub-queue after a request came, left or was delayed. Must be called before an empty sub-queue is
    /// retired.
    pub(super) fn touched(&mut self, ledger: &Ledger, sub_queue: SubQueueIx) {
        if self.objective_ns.is_none() || sub_queue == NOT_THEIR_TURN {
            return;
        }
        let first = self.pending.by_target(sub_queue).next().map(|request_ix| (request_ix, ledger[request_ix].seq));
        let mut latest_starts = std::mem::take(&mut self.latest_starts);
        latest_starts.file(sub_queue, first, |request_ix| self.latest_start(&ledger[request_ix]));
        self.latest_starts = latest_starts;
    }
}

impl StepContext<'_> {
    // ## pending => aboard
    /// Removes a request from the queue and boards it.
    pub(super) fn board(&mut self, request_ix: RequestIx) -> BatchSpan {
        self.unqueue(request_ix);
        board_request(self.now, self.ledger, self.timers, request_ix)
    }

    /// Removes a request from the queue, if it is queued.
    pub(super) fn unqueue(&mut self, request_ix: RequestIx) {
        let RequestState::Queued { sub_queue, .. } = self.ledger[request_ix].state else { return };
        self.version.pending.remove(self.ledger, request_ix);
        self.version.touched(self.ledger, sub_queue);
        self.version.pending.retire(sub_queue);
    }

    /// Puts a fresh request behind the others of its level. Its queue timeout and deadline still count.
    pub(super) fn postpone(&mut self, request_ix: RequestIx) {
        let RequestState::Queued { sub_queue, timed_out: false } = self.ledger[request_ix].state else { return };
        self.version.pending.delay(self.ledger, request_ix, sub_queue);
        self.version.touched(self.ledger, sub_queue);
    }

    /// Applies a change of sequences: timers, ended sequences, requests whose turn has come, and orphaned requests.
    pub(super) fn apply(&mut self, change: Change) {
        let (group, model) = (self.version.ix, self.version.model);
        change.no_longer_idle.iter().for_each(|&(until, ix)| self.timers.not_idle(until, group, ix));
        change.became_idle.iter().for_each(|&(until, ix)| self.timers.idle_until(until, group, ix));
        for sequence in change.over {
            self.actions.push(Action::SequenceOver { model, sequence });
        }
        for request_ix in change.ready {
            let has_timed_out = matches!(self.ledger[request_ix].state, RequestState::Queued { timed_out: true, .. });
            let pending = &mut self.version.pending;
            pending.remove(self.ledger, request_ix);
            let sub_queue = pending.sub_queue_for(BatchKey::default());
            pending.push(self.ledger, request_ix, sub_queue);
            if has_timed_out {
                pending.delay(self.ledger, request_ix, sub_queue);
            }
            self.version.touched(self.ledger, sub_queue);
        }
        let Some((stranded, end)) = change.stranded else { return };
        for request_ix in stranded {
            self.ledger[request_ix].sequence = None;
            self.end(request_ix, end);
        }
    }

    /// Closes a sequence that has been idle for its maximum idle time.
    pub(super) fn reclaim(&mut self, sequence: SequenceIx) {
        let now = self.now;
        let change = self.version.sequences.as_mut().map(|sequences| sequences.reclaim(now, sequence));
        change.into_iter().for_each(|change| self.apply(change));
    }
}

/// Boards a request that has left the queue. Its deadline still counts; its queue timeout no longer does.
pub(super) fn board_request(
    now: Instant,
    ledger: &mut Ledger,
    timers: &mut Timers,
    request_ix: RequestIx,
) -> BatchSpan {
    let request = &mut ledger[request_ix];
    request.state = RequestState::Aboard;
    request.boarding += 1;
    request.boarded = now;
    let rows = RowSpan { req: request.req, start: 0, count: request.rows, at: 0, slot: RowSpan::NO_SLOT };
    let boarding = request.boarding;
    if request.deadline == Instant::NEVER {
        timers.disarm(ledger, request_ix);
    }
    BatchSpan { request_ix, boarding, rows }
}
