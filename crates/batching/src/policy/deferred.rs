//! The policy `deferred` (deferred batch scheduling, as in Symphony, in one server): a batch starts once it is
//! efficient, or as late as its requests' targets allow, and a lane stays idle as long as another is enough. Where not
//! every request can be in time, those that cannot wait behind those that can.

use std::ops::Range;

use super::{
    BatchLimits, BatchPolicy, Decision, PolicyKnobs, Requirements, Selection, View,
    candidate::{CandidateBatch, load},
    lazy::{all_within, late},
    monitor::NEARLY_BEST,
    slack::{Predictor, SlackPredictor},
};
use crate::{
    Instant, Ns, ShapeClass,
    ids::{RequestIx, SubQueueIx},
    queue::SubQueue,
};

/// The margin, as a part of the time from a request's arrival to its target.
const MARGIN: Ns = 10;

/// Share of the lanes' time that requests may need for batches to wait.
const MOST_LOAD: f64 = 0.5;

/// Share of requests in time from which none is postponed.
const MOST_IN_TIME: f64 = 0.75;

/// A late request waits behind others until it has waited this many times longer than its target allowed.
const PATIENCE: Ns = 8;

/// The largest batch is the smallest whose throughput is at least this share of the best; a larger one would only make
/// others wait.
const BEST: f64 = 0.99;

/// Parameters of deferred batch scheduling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeferredKnobs {
    /// Time between the predicted end of a batch and the earliest target of its requests. `None`: a tenth of the time
    /// from a request's arrival to its target.
    pub margin_ns: Option<Ns>,
    /// Start batches as soon as a lane is idle; only late requests wait.
    pub eager: bool,
    /// Reject requests that can no longer meet the objective instead of serving them late.
    pub reject_late: bool,
}

impl PolicyKnobs for DeferredKnobs {
    fn start(&self, limits: BatchLimits) -> Box<dyn BatchPolicy> {
        Box::new(Deferred::new(self, limits))
    }

    fn requirements(&self) -> Requirements {
        Requirements { targets: true, ..Requirements::default() }
    }
}

/// The policy with its state for one version.
#[derive(Debug)]
pub(super) struct Deferred {
    knobs: DeferredKnobs,
    /// Whether responses leave in the order of arrival, so that a late request would delay all behind it.
    is_ordered: bool,
    /// Whether the latest batch was of late requests although others waited.
    served_late: bool,
    /// Whether the latest new batch may board in parts: none stayed behind so that others are in time.
    pub(super) may_be_parted: bool,
}

impl BatchPolicy for Deferred {
    fn change(&mut self, view: &View<'_>) -> Option<Decision> {
        let late = late(view)?;
        match self.knobs.reject_late {
            true => Some(Decision::Refuse(late)),
            false if self.is_ordered || view.ledger[late].is_behind() || !postponing_pays(view, late) => None,
            false => Some(Decision::Postpone(late)),
        }
    }

    fn board(&mut self, view: &View<'_>) -> Decision {
        let mut due = Instant::NEVER;
        for (sub_queue, entry) in view.pending.in_order() {
            let candidates = CandidateBatch::of(view, sub_queue, entry, view.max_rows);
            let class = candidates.class(view);
            let (behind, fresh): (Vec<_>, Vec<_>) =
                candidates.by_target(view, sub_queue).into_iter().partition(|&ix| view.ledger[ix].is_behind());
            let late = Late::of(view, entry);
            let serves_late = fresh.is_empty() || late.is_due && !self.served_late;
            self.may_be_parted = true;
            let request_ixs = if serves_late {
                late.batch(view, sub_queue, entry)
            } else {
                let batch = Batch { view, class: &class };
                let all = all_within(view, &fresh, view.max_rows);
                let in_time = batch.best_in_time(&fresh[..all]).unwrap_or(0..all);
                let start = self.latest_start(&batch, &fresh[..all], late.rows).filter(|&start| start > view.now);
                let waits = self.may_wait(view) && in_time == (0..all) && !batch.is_complete(&fresh[..all]);
                if let Some(start) = start.filter(|_| waits) {
                    due = due.min(start);
                    continue;
                }
                self.may_be_parted = in_time == (0..all);
                if in_time != (0..all) && !postponing_pays(view, fresh[0]) {
                    fresh[..all].to_vec()
                } else {
                    batch.with_late(fresh[in_time].to_vec(), &behind)
                }
            };
            self.served_late = serves_late;
            return Decision::New { sub_queue, selection: Selection::Named(request_ixs), accepts_newcomers: true };
        }
        if due == Instant::NEVER { Decision::Nothing } else { Decision::Wait(due) }
    }
}

impl Deferred {
    pub(super) fn new(knobs: &DeferredKnobs, limits: BatchLimits) -> Self {
        Self { knobs: knobs.clone(), is_ordered: limits.is_ordered, served_late: false, may_be_parted: true }
    }

    /// Whether batches may wait at all. Where requests need more than half of the lanes' time, those that arrive while
    /// a late batch runs would find no other lane.
    fn may_wait(&self, view: &View<'_>) -> bool {
        !self.knobs.eager && load(view).is_none_or(|load| load <= MOST_LOAD)
    }

    /// Returns the latest time at which a batch of these requests may start so that all are in time, by a margin, even
    /// with one more row (later, none could join) and behind what else waits in time. A request must also start before
    /// its queue timeout. `None` without any target, or if times are unknown.
    fn latest_start(&self, batch: &Batch<'_>, request_ixs: &[RequestIx], late_rows: u32) -> Option<Instant> {
        let view = batch.view;
        let before = |until: Instant, arrived: Instant| {
            let margin_ns = self.knobs.margin_ns.unwrap_or(until.since(arrived) / MARGIN);
            until - margin_ns
        };
        let requests = || request_ixs.iter().map(|&ix| (view.target(ix), &view.ledger[ix]));
        let targets = requests().filter_map(|(target, request)| Some(before(target?, request.arrived)));
        let latest = targets.min()? - batch.with_one_more_ns(request_ixs)?;
        let others = view.pending.rows.saturating_sub(u64::from(batch.rows(request_ixs)) + u64::from(late_rows));
        let others_ns = others as f64 * view.costs.lately_per_row()? / f64::from(view.lanes);
        let timeouts = requests().filter(|(_, request)| request.queue_deadline != Instant::NEVER);
        let timeouts = timeouts.map(|(_, request)| before(request.queue_deadline, request.arrived));
        timeouts.chain([latest - others_ns as Ns]).min()
    }
}

/// Batches of requests in the order of their targets, padded to one shape.
struct Batch<'a> {
    view: &'a View<'a>,
    class: &'a ShapeClass,
}

impl Batch<'_> {
    fn rows(&self, request_ixs: &[RequestIx]) -> u32 {
        request_ixs.iter().map(|&request_ix| self.view.ledger[request_ix].rows).sum()
    }

    /// Returns how long a batch of this many rows takes, by the slack predictor's quantile.
    fn takes_ns(&self, rows: u32) -> Option<Ns> {
        let View { costs, stages, .. } = *self.view;
        SlackPredictor { costs, class: self.class, predictor: Predictor::Table }.new_batch_ns(stages.entry(), rows)
    }

    /// Returns how long a batch of these requests takes if one more row joins.
    fn with_one_more_ns(&self, request_ixs: &[RequestIx]) -> Option<Ns> {
        self.takes_ns(self.rows(request_ixs).saturating_add(1).min(self.view.max_rows))
    }

    /// Returns the test of whether a batch of a number of rows is short: it has at most the best size, or takes at most
    /// half of the time from arrival to target. The best size alone is not enough: while only small batches run, larger
    /// ones are not known to be better.
    fn is_short(&self, half_ns: Ns) -> impl Fn(u32) -> bool + '_ {
        let best = best_size(self.view, self.class);
        move |rows| rows <= self.view.max_rows && (rows <= best || self.takes_ns(rows).is_some_and(|ns| ns <= half_ns))
    }

    /// Returns those of these requests that should run now: as many as are in time together, up to a short batch. The
    /// requests with the earliest targets are left behind if others can then form a larger batch that serves more of
    /// them in the same time; those with the latest targets, because they have time. `None` if times are unknown.
    fn best_in_time(&self, request_ixs: &[RequestIx]) -> Option<Range<usize>> {
        let View { now, ledger, .. } = *self.view;
        let left_ns = |at: usize| self.view.target(request_ixs[at]).map_or(Ns::MAX, |target| target.since(now));
        let is_short = self.is_short(self.half_ns(request_ixs));
        let (mut end, mut rows, mut best): (usize, u32, Option<(f64, Range<usize>)>) = (0, 0, None);
        for start in 0..request_ixs.len() {
            // The later its target, the more can run with the first request.
            while end < request_ixs.len() {
                let grown = rows + ledger[request_ixs[end]].rows;
                if end > start && (self.takes_ns(grown)? > left_ns(start) || !is_short(grown)) {
                    break;
                }
                (end, rows) = (end + 1, grown);
            }
            let rate = f64::from(rows) / self.takes_ns(rows)?.max(1) as f64;
            if best.as_ref().is_none_or(|(best, _)| rate * NEARLY_BEST > *best) {
                best = Some((rate, start..end));
            }
            if end == request_ixs.len() {
                break;
            }
            rows -= ledger[request_ixs[start]].rows;
        }
        best.map(|(_, range)| range)
    }

    /// Adds late requests to a batch as long as all others in it stay in time, since a run of few rows costs more for
    /// each row. The batch takes no more than half of the time from arrival to target: the other half is for requests
    /// that arrive while it runs.
    fn with_late(&self, mut request_ixs: Vec<RequestIx>, behind: &[RequestIx]) -> Vec<RequestIx> {
        let View { now, ledger, .. } = *self.view;
        let left = request_ixs.iter().filter_map(|&ix| Some(self.view.target(ix)?.since(now))).min();
        let longest_ns = left.unwrap_or(Ns::MAX).min(self.half_ns(&request_ixs));
        let mut rows = self.rows(&request_ixs);
        for &request_ix in behind {
            let grown = rows.saturating_add(ledger[request_ix].rows);
            if grown > self.view.max_rows || self.takes_ns(grown).is_none_or(|ns| ns > longest_ns) {
                break;
            }
            rows = grown;
            request_ixs.push(request_ix);
        }
        request_ixs
    }

    /// Whether a batch need not wait for more: it is efficient, or with one more row it would take more than half of
    /// the time from arrival to target. The other half is for requests that arrive while it runs. It does wait while
    /// another lane runs a batch, after which there may still be time.
    fn is_complete(&self, request_ixs: &[RequestIx]) -> bool {
        let view = self.view;
        let mut steps = view.table.batches.iter().flat_map(|(_, batch)| batch.steps());
        if view.lane_is_idle && steps.any(|step| !step.is_queued()) {
            return false;
        }
        let efficient = view.costs.efficient_rows(view.max_rows, self.class, NEARLY_BEST);
        efficient.is_some_and(|efficient| self.rows(request_ixs) >= efficient)
            || self.with_one_more_ns(request_ixs).is_some_and(|ns| ns > self.half_ns(request_ixs))
    }

    /// Returns half of the shortest time from arrival to target of these requests; `Ns::MAX` without a target.
    fn half_ns(&self, request_ixs: &[RequestIx]) -> Ns {
        let allowed = request_ixs.iter().filter_map(|&request_ix| allowed_ns(self.view, request_ix));
        allowed.min().map_or(Ns::MAX, |allowed_ns| allowed_ns / 2)
    }
}

/// The requests of a sub-queue's best level that wait behind the others: at most as many as the largest batch holds.
struct Late {
    request_ixs: Vec<RequestIx>,
    rows: u32,
    /// Whether they fill a largest batch, and that saves time because batches of others are shorter.
    are_many: bool,
    /// Whether they need not wait any longer: they are many, or have waited too long.
    is_due: bool,
}

impl Late {
    fn of(view: &View<'_>, entry: &SubQueue) -> Self {
        let mut request_ixs: Vec<RequestIx> = entry.behind(view.ledger).take(view.max_rows as usize).collect();
        let rows = |request_ixs: &[RequestIx]| request_ixs.iter().map(|&request_ix| view.ledger[request_ix].rows).sum();
        let fill_a_batch: bool = rows(&request_ixs) >= view.max_rows;
        request_ixs.truncate(all_within(view, &request_ixs, view.max_rows));
        let first = request_ixs.first().copied();
        let saves_time = |first: RequestIx| {
            let class = ShapeClass(view.ledger[first].lengths.clone());
            let batch = Batch { view, class: &class };
            let largest_ns = batch.takes_ns(view.max_rows).unwrap_or(Ns::MAX);
            best_size(view, &class) > 1 && largest_ns > batch.half_ns(&[first])
        };
        let are_many = fill_a_batch && first.is_some_and(saves_time);
        let has_waited = first.is_some_and(|first| {
            let allowed_ns = allowed_ns(view, first).unwrap_or(0);
            view.now >= view.ledger[first].arrived + allowed_ns.saturating_mul(PATIENCE)
        });
        Self { rows: rows(&request_ixs), request_ixs, are_many, is_due: are_many || has_waited }
    }

    /// Returns those that share a batch with the one that has waited longest. A few run as a short batch, so that those
    /// that arrive meanwhile can be in time. Many run as `auto` runs them, because more requests arrive than short
    /// batches serve, and the late ones would become more and more.
    fn batch(self, view: &View<'_>, sub_queue: SubQueueIx, entry: &SubQueue) -> Vec<RequestIx> {
        let Self { mut request_ixs, are_many, .. } = self;
        let first = request_ixs.first().copied();
        let candidates = CandidateBatch::with(view, sub_queue, entry, first, view.max_rows);
        let class = candidates.class(view);
        candidates.retain_in(&mut request_ixs);
        let count = if are_many {
            all_within(view, &request_ixs, view.max_rows)
        } else {
            let batch = Batch { view, class: &class };
            let is_short = batch.is_short(batch.half_ns(first.as_slice()));
            let rows = request_ixs.iter().scan(0_u32, |rows, &request_ix| {
                *rows = rows.saturating_add(view.ledger[request_ix].rows);
                Some(*rows)
            });
            rows.take_while(|&rows| is_short(rows)).count()
        };
        request_ixs.truncate(count.max(1));
        // It may be no candidate itself, where others of its lengths fill the batch.
        if request_ixs.is_empty() {
            request_ixs.extend(first);
        }
        request_ixs
    }
}

/// Whether requests that are late, or would be in a common batch, should wait behind the others. Not where short
/// batches carry less than the present rate, while batches that do carry it keep most requests in time: the late ones
/// would come back as batches that make others late.
fn postponing_pays(view: &View<'_>, first: RequestIx) -> bool {
    let View { costs, lanes, max_rows, .. } = *view;
    let class = ShapeClass(view.ledger[first].lengths.clone());
    let rate = view.pending.rate.at(view.now) / f64::from(lanes.max(1));
    let batch_ns = costs.fewest_rows(rate, max_rows, &class).and_then(|rows| costs.run_ns(rows, &class));
    let Some((batch_ns, allowed_ns)) = batch_ns.zip(allowed_ns(view, first)) else { return true };
    let allowed_ns = allowed_ns as f64;
    // A request waits for up to one such batch before its own.
    2.0 * batch_ns <= allowed_ns || allowed_ns - batch_ns < MOST_IN_TIME * batch_ns
}

/// Returns the time from a request's arrival to its target, if it has one.
fn allowed_ns(view: &View<'_>, request_ix: RequestIx) -> Option<Ns> {
    Some(view.target(request_ix)?.since(view.ledger[request_ix].arrived))
}

fn best_size(view: &View<'_>, class: &ShapeClass) -> u32 {
    view.costs.efficient_rows(view.max_rows, class, BEST).unwrap_or(view.max_rows)
}
