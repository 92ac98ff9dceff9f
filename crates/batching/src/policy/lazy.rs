//! The policy `lazy` (LazyBatching section IV): newcomers are pushed onto the batch in progress and catch up with it,
//! as long as the slack of every request stays non-negative. The paper's batch table is one batch here; the stack is
//! its staircase of steps.

use smallvec::SmallVec;

use super::{
    BatchLimits, BatchPolicy, BatchView, Decision, PolicyKnobs, Requirements, Selection, View,
    candidate::CandidateBatch,
    gain::{class_of, is_gain, longest_wait_ns, may_pad, meets_at},
    slack::{Entry, Predictor, SlackPredictor, Waiting},
};
use crate::{
    Instant, Ns, ShapeClass,
    cost::Quantile,
    ids::{RequestIx, SubQueueIx},
    queue::{SubQueue, first_within},
    table::batch::{Batch, Part, Step},
};

/// Number of requests considered per row of room. Many of them may be too long for the batch.
pub(super) const LOOKED_AT: usize = 4;

/// Parameters of LazyBatching (section IV).
#[derive(Clone, Debug, PartialEq)]
pub struct LazyKnobs {
    /// Predictor of remaining times.
    pub predictor: Predictor,
    /// Maximum number of entries in the batch table's stack; more would starve the bottom entry.
    pub max_depth: u32,
    /// Maximum total time that an entry waits for later ones to catch up. `None`: half the whole model's time for the
    /// largest batch.
    pub max_catch_up_ns: Option<Ns>,
    /// Reject requests that can no longer meet the objective instead of serving them late.
    pub reject_late: bool,
}

impl Default for LazyKnobs {
    fn default() -> Self {
        Self { predictor: Predictor::Table, max_depth: 4, max_catch_up_ns: None, reject_late: false }
    }
}

impl PolicyKnobs for LazyKnobs {
    fn start(&self, _: BatchLimits) -> Box<dyn BatchPolicy> {
        Box::new(Lazy::new(self))
    }

    fn requirements(&self) -> Requirements {
        let pads_any = self.predictor == Predictor::Paper;
        Requirements { targets: true, joins: true, pads_any, ..Requirements::default() }
    }
}

/// The policy.
#[derive(Debug)]
pub(super) struct Lazy {
    knobs: LazyKnobs,
}

impl BatchPolicy for Lazy {
    fn stretches(&self) -> bool {
        true
    }

    fn asks_for_neighbours(&self) -> bool {
        true
    }

    fn keeps_open(&self, _: Instant, _: BatchView<'_>) -> bool {
        true
    }

    fn change(&mut self, view: &View<'_>) -> Option<Decision> {
        self.knobs.reject_late.then(|| late(view)).flatten().map(Decision::Refuse).or_else(|| self.push(view))
    }

    fn board(&mut self, view: &View<'_>) -> Decision {
        let Some((sub_queue, entry)) = view.pending.in_order().next() else { return Decision::Nothing };
        let selection = Selection::Named(self.boarding(view, sub_queue, entry));
        Decision::New { sub_queue, selection, accepts_newcomers: true }
    }
}

impl Lazy {
    pub(super) fn new(knobs: &LazyKnobs) -> Self {
        Self { knobs: knobs.clone() }
    }

    /// Selects the requests of a new batch: as many as keep every one of them in time, or all, if that makes fewer
    /// requests late than leaving the rest to the next batch. Keeping batches small for the sake of a few requests
    /// would in the end make all of them late.
    ///
    /// The paper applies equation 2 to requests that join others in progress (section IV-B), not to the size of a new
    /// batch. Applied here, it would make batches smaller the longer requests wait.
    fn boarding(&self, view: &View<'_>, sub_queue: SubQueueIx, entry: &SubQueue) -> Vec<RequestIx> {
        let candidates = CandidateBatch::of(view, sub_queue, entry, view.max_rows);
        let class = candidates.class(view);
        let mut request_ixs = candidates.by_target(view, sub_queue);
        let count = self.in_time(view, &request_ixs, &[], &class, view.max_rows);
        let all = all_within(view, &request_ixs, view.max_rows);
        if self.knobs.predictor != Predictor::Paper && self.late_by(view, &request_ixs[..all], count, &class) <= Some(0)
        {
            request_ixs.truncate(count);
        } else {
            request_ixs.truncate(all);
        }
        request_ixs
    }

    /// Returns how many more of these requests are late if only the first `count` board now and the others in the next
    /// batch; `None` if times are unknown.
    fn late_by(&self, view: &View<'_>, request_ixs: &[RequestIx], count: usize, class: &ShapeClass) -> Option<i64> {
        let rows = |request_ixs: &[RequestIx]| request_ixs.iter().map(|&request_ix| view.ledger[request_ix].rows).sum();
        let time = |request_ixs: &[RequestIx]| match request_ixs {
            [] => Some(0),
            request_ixs => view.costs.whole(rows(request_ixs), class, Quantile::Mean),
        };
        let late = |request_ixs: &[RequestIx], end: Instant| {
            request_ixs.iter().filter(|&&request_ix| view.target(request_ix).is_some_and(|target| target < end)).count()
                as i64
        };
        let (first, others) = request_ixs.split_at(count);
        let first_ns = time(first)?;
        let wait_ns = if view.idle_besides > 0 { 0 } else { first_ns / Ns::from(view.lanes) };
        let apart = late(first, view.now + first_ns) + late(others, view.now + wait_ns + time(others)?);
        Some(apart - late(request_ixs, view.now + time(request_ixs)?))
    }

    /// Pushes as many requests as allowed onto the newest batch.
    pub(super) fn push(&self, view: &View<'_>) -> Option<Decision> {
        let (batch, part) = stretchable(view)?;
        if part.steps.len() >= self.knobs.max_depth.max(1) as usize {
            return None;
        }
        let sub_queue = view.pending.waiting_with(&batch.batch_key)?;
        let stack: SmallVec<[Entry; 5]> = part.steps.iter().map(|step| entry(view, step)).collect();
        let looked_at = LOOKED_AT * batch.places.free() as usize;
        let waiting = view.pending.by_target_or_arrival(view.ledger, sub_queue).take(looked_at);
        let fitting = waiting.filter(|&request_ix| may_pad(view, &view.ledger[request_ix], &batch.class));
        let mut request_ixs: Vec<RequestIx> = fitting.take(batch.places.free() as usize).collect();
        let in_time = self.in_time(view, &request_ixs, &stack, &batch.class, batch.places.free());
        // The paper checks all waiting requests together, and pushes either all of them or none (section IV-B).
        if self.knobs.predictor == Predictor::Paper && in_time < all_within(view, &request_ixs, batch.places.free()) {
            return None;
        }
        request_ixs.truncate(in_time);
        // The rows of one request need consecutive places, and the free places may have gaps.
        let mut places = batch.places.clone();
        let fits =
            request_ixs.iter().take_while(|&&request_ix| places.take(view.ledger[request_ix].rows).is_some()).count();
        request_ixs.truncate(fits);
        let rows: u32 = request_ixs.iter().map(|&request_ix| view.ledger[request_ix].rows).sum();
        if rows == 0 || !self.is_worth(view, batch, part, rows, &class_of(view, &request_ixs)) {
            return None;
        }
        Some(Decision::Stretch {
            part: part.ix,
            sub_queue,
            selection: Selection::Named(request_ixs),
            accepts_newcomers: true,
        })
    }

    /// Whether the push leaves co-located models their slack (section VI-C), keeps the wait of the entries below
    /// bounded, and does not increase the mean completion time. The paper's predictor checks slack only.
    fn is_worth(&self, view: &View<'_>, batch: &Batch, part: &Part, rows: u32, own: &ShapeClass) -> bool {
        let class = &batch.class;
        let wait_ns = longest_wait_ns(view, part, class, rows).unwrap_or(0);
        if view.neighbours_slack_ns.is_some_and(|slack_ns| wait_ns > slack_ns) {
            return false;
        }
        if self.knobs.predictor == Predictor::Paper {
            return true;
        }
        let half_ns = || Some(view.costs.whole(view.max_rows, class, Quantile::Mean)? / 2);
        let bound_ns = self.knobs.max_catch_up_ns.or_else(half_ns).unwrap_or(Ns::MAX);
        wait_ns <= bound_ns && is_gain(view, part, class, rows, own)
    }

    /// Returns how many of these requests can be pushed onto a stack together without making any request late.
    fn in_time(
        &self,
        view: &View<'_>,
        request_ixs: &[RequestIx],
        stack: &[Entry],
        class: &ShapeClass,
        room: u32,
    ) -> usize {
        let waiting =
            |&request_ix: &RequestIx| Waiting { rows: view.ledger[request_ix].rows, target: view.target(request_ix) };
        let waiting: SmallVec<[Waiting; 32]> = request_ixs.iter().map(waiting).collect();
        let predictor = SlackPredictor { costs: view.costs, class, predictor: self.knobs.predictor };
        predictor.pushable(view.now, stack, view.stages.entry(), &waiting, room)
    }
}

/// Returns the request that would board next, if it can no longer meet its target.
pub(super) fn late(view: &View<'_>) -> Option<RequestIx> {
    let (sub_queue, _) = view.pending.in_order().next()?;
    let first = view.pending.by_target(sub_queue).next()?;
    let class = ShapeClass(view.ledger[first].lengths.clone());
    let needs_ns = view.costs.whole(view.ledger[first].rows, &class, Quantile::Mean)?;
    view.target(first).is_some_and(|target| view.now + needs_ns > target).then_some(first)
}

/// Returns how many of these requests together have at most `room` rows.
pub(super) fn all_within(view: &View<'_>, request_ixs: &[RequestIx], room: u32) -> usize {
    first_within(request_ixs.iter().map(|&request_ix| view.ledger[request_ix].rows), room)
}

/// Returns the newest batch and its only part, if the batch accepts newcomers and has room.
pub(super) fn stretchable<'a>(view: &View<'a>) -> Option<(&'a Batch, &'a Part)> {
    let (_, batch) = view.table.newest()?;
    let [part] = batch.parts.as_slice() else { return None };
    (!batch.sealed && batch.places.free() > 0).then_some((batch, part))
}

/// Converts a step to an entry of the stack that the slack predictor takes.
fn entry(view: &View<'_>, step: &Step) -> Entry {
    let live = || step.rows.iter().filter(|span| view.ledger.is_aboard(span)).map(|span| span.request_ix);
    let target = live().filter_map(|request_ix| view.target(request_ix)).min();
    let allowance = |request_ix: RequestIx| Some(view.target(request_ix)?.since(view.ledger[request_ix].boarded));
    Entry {
        next: meets_at(step),
        rows: step.row_count(),
        target,
        allowance_ns: live().filter_map(allowance).min(),
        late: target.is_some_and(|target: Instant| target <= view.now),
    }
}
