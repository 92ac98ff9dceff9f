//! A loaded version apart from how its requests run: limits, queue, order of replies, costs and counters. `Group` owns
//! it beside its `Work`, which changes it through a [`StepContext`]; `replies` ends its requests.

use super::{
    Action, Actions, Arrival, CellId, CostTable, Counters, End, ModelId, Ns, Policy, QueueingKnobs, Rejection, RowSpan,
    ShapeClass, StageKnobs,
    cost::{Costs, Quantile},
    graph::{Graph, SlackNs},
    ids::{GroupIx, NOT_THEIR_TURN, RequestIx, SequenceIx, SubQueueIx},
    ledger::{BatchSpan, Ledger, NEVER, Request, RequestState},
    policy::Requirements,
    queue::{BatchKey, Change, InOrder, LatestStarts, LengthBucketing, List, Pending, QueueRules, Sequences, Targets},
    timers::Timers,
};

/// What the core knows of one model version.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    /// Largest batch in rows, at least 1. No batch is larger than the largest bucket of any stage.
    pub max_batch_rows: u32,
    /// Whether requests may share a batch at all (false for models without a batch axis).
    pub mergeable: bool,
    /// Most tasks in flight at once per device (`instance_group.count`).
    pub max_in_flight: u32,
    /// The stages in order; at least one.
    pub stages: Vec<StageKnobs>,
    /// Buffers at each boundary between two stages (DVABatch section 6.1), at least 1: with 1, one batch is between
    /// admission and the last stage's end; with 2, stages overlap.
    pub buffer_pairs: u16,
    /// The latency that requests are to stay within, from arrival to end. Steers, never kills.
    pub objective_ns: Option<Ns>,
    /// Latencies of the stages as far as they are known beforehand; they are corrected online.
    pub latencies: Option<CostTable>,
    /// Share of the device against other models, at least 1.
    pub weight: u32,
    /// Order, priorities and limits of the queue.
    pub queueing: QueueingKnobs,
    /// How batches are formed.
    pub policy: Policy,
    /// Requests do not leave for another core: the version does not live wherever they could go.
    pub stays: bool,
}

impl Default for Knobs {
    /// `serial`, one stage, batches of one row.
    fn default() -> Self {
        Self {
            max_batch_rows: 1,
            mergeable: true,
            max_in_flight: 1,
            stages: vec![StageKnobs::default()],
            buffer_pairs: 2,
            objective_ns: None,
            latencies: None,
            weight: 1,
            queueing: QueueingKnobs::default(),
            policy: Policy::Serial,
            stays: false,
        }
    }
}

impl Knobs {
    /// Whether all requests of the version must go to one core: their replies leave in order, or nothing runs before a
    /// number of them wait.
    pub fn is_bound(&self) -> bool {
        self.queueing.preserve_ordering || self.queueing.hold_until_waiting > 0
    }

    /// Largest batch in rows that all stages can run.
    pub(super) fn max_rows(&self) -> u32 {
        let largest = self.stages.iter().filter_map(|stage| stage.buckets.iter().copied().max());
        largest.fold(self.max_batch_rows, u32::min).max(1)
    }
}

/// What a row or node takes is averaged over so many tasks.
const AVERAGED: Ns = 16;

/// What a row or node is expected to take before the first has run.
const UNKNOWN_UNIT_NS: Ns = 100_000;

/// Slack of the request that must start first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tightest {
    pub(super) slack_ns: Ns,
    /// What one stage takes of it, on average.
    pub(super) stage_ns: Ns,
}

/// One step of the core, as far as it concerns one version.
#[derive(Debug)]
pub(super) struct StepContext<'a> {
    pub(super) now: Ns,
    pub(super) version: &'a mut Version,
    pub(super) ledger: &'a mut Ledger,
    pub(super) timers: &'a mut Timers,
    pub(super) actions: &'a mut Actions,
}

/// State of one loaded version.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) model: ModelId,
    /// Where its group stands among those of the core.
    pub(super) ix: GroupIx,
    pub(super) max_rows: u32,
    pub(super) max_in_flight: u32,
    pub(super) objective_ns: Option<Ns>,
    /// What requests run through.
    pub(super) graph: Graph,
    pub(super) costs: Costs,
    /// Device time that one row takes in one stage, or one node, on average; none before the first has run.
    unit_ns: Option<Ns>,
    /// Runs that the costs have been corrected by.
    pub(super) learned: u64,
    /// Whether anything asks for the costs.
    learns: bool,
    /// How lengths are rounded, when requests of equal keys may share a batch.
    pub(super) merges: Option<LengthBucketing>,
    pub(super) pending: Pending,
    /// Where there is an objective: when the sub-queues of `pending` must start.
    pub(super) latest_starts: LatestStarts,
    /// Where requests belong to sequences.
    pub(super) sequences: Option<Sequences>,
    /// Nothing runs before this many requests wait; 0 once they did.
    pub(super) hold_until_waiting: u32,
    /// All live requests in order of arrival, when replies are to leave in that order.
    pub(super) order: Option<List<InOrder>>,
    /// Requests that have not ended.
    pub(super) live: usize,
    /// Tasks on lanes.
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
        let has_buckets = buckets.iter().any(|buckets| !buckets.is_empty());
        let graph = Graph::new(buckets.len(), cellular.map(|cellular| cellular.segments.as_slice()));
        let sequences = cellular.and_then(|cellular| cellular.sequences).map(Sequences::new);
        let max_rows = knobs.max_rows();
        let Requirements { costs, targets, shares_batches, lengths, .. } = knobs.policy.requirements();
        let keeps_targets = targets || knobs.objective_ns.is_some();
        let targets = keeps_targets.then(|| Targets::new(knobs.objective_ns));
        let lengths = lengths.unwrap_or(match knobs.queueing.bucket_width {
            0 => LengthBucketing::Any,
            width => LengthBucketing::Width(width),
        });
        let may_leave = !knobs.is_bound() && !knobs.stays && sequences.is_none();
        Self {
            model,
            ix,
            max_rows,
            max_in_flight: knobs.max_in_flight.max(1),
            objective_ns: knobs.objective_ns,
            costs: Costs::new(&buckets, max_rows, knobs.latencies.as_ref()),
            graph,
            learned: 0,
            learns: costs || knobs.objective_ns.is_some() || has_buckets,
            merges: (shares_batches && knobs.mergeable).then_some(lengths),
            pending: Pending::new(QueueRules::new(&knobs.queueing), targets, may_leave),
            unit_ns: None,
            latest_starts: LatestStarts::default(),
            // Each sequence is in order anyway; a reply that waits for another sequence would keep its own from ending.
            order: (knobs.queueing.preserve_ordering && sequences.is_none()).then(List::new),
            sequences,
            hold_until_waiting: knobs.queueing.hold_until_waiting,
            live: 0,
            running: 0,
            totals: Counters::default(),
        }
    }

    /// Whether it may have one more task in flight.
    pub(super) fn may_run(&self) -> bool {
        self.hold_until_waiting == 0 && self.running < self.max_in_flight
    }

    /// Whether other requests wait that could not share a batch with those of a sub-queue.
    pub(super) fn others_wait(&self, sub_queue: SubQueueIx) -> bool {
        self.merges.is_some() && self.pending.rows > self.pending.sub_queues[sub_queue as usize].rows
    }

    /// A run of so many rows of a stage or cell, executed in a bucket, took so long.
    pub(super) fn learn(&mut self, cell: CellId, rows: u32, bucket: u32, class: &ShapeClass, took_ns: Ns) {
        if self.learns {
            self.costs.learn(cell, rows, bucket, class, took_ns);
            self.learned += 1;
        }
    }

    /// A task of so many rows in one stage, or nodes, took so long.
    pub(super) fn ran(&mut self, units: u32, used_ns: Ns) {
        // Dividing costs about as much as the rest of this.
        let own_ns = if units > 1 { used_ns / Ns::from(units) } else { used_ns };
        let unit_ns = self.unit_ns.get_or_insert(own_ns);
        *unit_ns = unit_ns.saturating_mul(AVERAGED - 1).saturating_add(own_ns) / AVERAGED;
    }

    /// Device time that a request is expected to take.
    pub(super) fn expected_ns(&self, arrival: &Arrival) -> Ns {
        let units = match &self.graph {
            Graph::Stages(stages) => u64::from(arrival.rows) * u64::from(*stages),
            Graph::Cells(..) => arrival.graph.iter().map(|segment| u64::from(segment.nodes())).sum(),
        };
        units.saturating_mul(self.unit_ns.unwrap_or(UNKNOWN_UNIT_NS))
    }

    /// Target completion time of a request, `NEVER` without a deadline or objective.
    pub(super) fn target(&self, request: &Request) -> Ns {
        request.target(self.objective_ns)
    }

    /// When a request that waits must start at the latest: its target less what it takes alone.
    pub(super) fn latest_start(&self, request: &Request) -> Option<SlackNs> {
        let needs_ns = self.graph.time_alone(&self.costs, request, Quantile::P99)?;
        let target = SlackNs::try_from(self.target(request)).unwrap_or(SlackNs::MAX);
        Some(target.saturating_sub_unsigned(needs_ns))
    }

    /// What one of the stages takes, on average.
    pub(super) fn stage_ns(&self, rows: u32, class: &ShapeClass) -> Option<Ns> {
        let whole_ns = self.costs.whole(rows, class, Quantile::P99)?;
        Some(whole_ns / Ns::from(self.graph.stages()))
    }

    /// Of requests that wait, the one that must start first. Only the first of each sub-queue counts, by target: the
    /// others go behind it.
    pub(super) fn tightest_waiting(&mut self, now: Ns, ledger: &Ledger) -> Option<Tightest> {
        let mut latest_starts = std::mem::take(&mut self.latest_starts);
        let first = latest_starts.first(now, |request_ix| self.latest_start(&ledger[request_ix]));
        self.latest_starts = latest_starts;
        let (latest, request_ix) = first?;
        let slack_ns = Ns::try_from(latest).ok()?.checked_sub(now)?;
        Some(Tightest { slack_ns, stage_ns: self.stage_ns_of(&ledger[request_ix])? })
    }

    fn stage_ns_of(&self, request: &Request) -> Option<Ns> {
        match &self.graph {
            Graph::Stages(_) => self.stage_ns(request.rows, &ShapeClass(request.lengths.clone())),
            Graph::Cells(..) => self.stage_ns(1, &ShapeClass::default()),
        }
    }

    /// A sub-queue has changed: a request came, left or was delayed. Called before an empty sub-queue is retired.
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
    /// Takes a request out of the queue and lets it board.
    pub(super) fn board(&mut self, request_ix: RequestIx) -> BatchSpan {
        self.unqueue(request_ix);
        board_request(self.now, self.ledger, self.timers, request_ix)
    }

    /// Takes a request out of the queue, if it waits there.
    pub(super) fn unqueue(&mut self, request_ix: RequestIx) {
        let RequestState::Queued { sub_queue, .. } = self.ledger[request_ix].state else { return };
        self.version.pending.remove(self.ledger, request_ix);
        self.version.touched(self.ledger, sub_queue);
        self.version.pending.retire(sub_queue);
    }

    /// Carries out what has come of a change of sequences.
    pub(super) fn apply(&mut self, change: Change) {
        let (group, model) = (self.version.ix, self.version.model);
        change.rouses.iter().for_each(|&(until, ix)| self.timers.rouse(until, group, ix));
        change.rests.iter().for_each(|&(until, ix)| self.timers.rest(until, group, ix));
        for sequence in change.over {
            self.actions.push(Action::SequenceOver { model, sequence });
        }
        for request_ix in change.ready {
            let is_delayed = matches!(self.ledger[request_ix].state, RequestState::Queued { delayed: true, .. });
            let pending = &mut self.version.pending;
            pending.remove(self.ledger, request_ix);
            let sub_queue = pending.sub_queue_for(BatchKey::default());
            pending.push(self.ledger, request_ix, sub_queue);
            if is_delayed {
                pending.delay(self.ledger, request_ix, sub_queue);
            }
            self.version.touched(self.ledger, sub_queue);
        }
        for request_ix in change.orphans {
            self.ledger[request_ix].sequence = None;
            self.end(request_ix, End::Rejected(Rejection::NotStarted));
        }
    }

    /// A sequence has been idle for as long as it may.
    pub(super) fn reclaim(&mut self, sequence: SequenceIx) {
        let now = self.now;
        let change = self.version.sequences.as_mut().map(|sequences| sequences.reclaim(now, sequence));
        change.into_iter().for_each(|change| self.apply(change));
    }
}

/// Lets a request board that has left the queue; its deadline still counts, its queue timeout no longer does.
pub(super) fn board_request(now: Ns, ledger: &mut Ledger, timers: &mut Timers, request_ix: RequestIx) -> BatchSpan {
    let request = &mut ledger[request_ix];
    request.state = RequestState::Aboard;
    request.boarding += 1;
    request.boarded = now;
    let rows = RowSpan { req: request.req, start: 0, count: request.rows, at: 0, slot: RowSpan::NO_SLOT };
    let boarding = request.boarding;
    if request.expiry == NEVER {
        timers.disarm(ledger, request_ix);
    }
    BatchSpan { request_ix, boarding, rows }
}
