//! Merging of length groups into one batch (DVABatch, Policy I).
//!
//! Groups save padding, but each group is a separate run that the others wait for. If the engine gains more from a
//! larger batch than padding costs, neighbouring groups should share one. With profiled times there are few groups, and
//! they are tried in queue order. Without, each length is a group of its own, and the nearest lengths are tried first.

use std::{iter::Peekable, ops::Bound};

use smallvec::SmallVec;

use super::{
    View,
    forecast::{Run, gain_ns},
};
use crate::{
    Ns, ShapeClass,
    cost::{Quantile, length_of},
    ids::SubQueueIx,
    queue::{BatchKey, SubQueue},
};

/// Number of sub-queues considered, in queue order. With many keys there may be thousands.
const LOOKED_AT: usize = 9;

/// Number of lengths considered on each side.
const NEAR_LOOKED_AT: usize = 32;

/// Requests that board as one batch: a count from the head of each sub-queue, starting with the sub-queue that is next
/// in order.
#[derive(Debug)]
pub(super) struct CandidateBatch {
    pub(super) from: SmallVec<[(SubQueueIx, u32); 4]>,
    pub(super) rows: u32,
    /// Longest length of the requests, in each axis.
    class: ShapeClass,
    /// The same, rounded up to the bounds of their groups. There are few different bounds, so results for one can be
    /// cached.
    pub(super) bound: ShapeClass,
}

impl CandidateBatch {
    /// Takes the first requests of one sub-queue that together have at most `room` rows.
    pub(super) fn of_sub_queue(view: &View<'_>, sub_queue: SubQueueIx, entry: &SubQueue, room: u32) -> Self {
        let mut class = ShapeClass::default();
        let (mut requests, mut rows) = (0, 0);
        for request_ix in entry.iter(view.ledger) {
            let request = &view.ledger[request_ix];
            if request.rows > room - rows {
                break;
            }
            requests += 1;
            rows += request.rows;
            request.lengthen(&mut class);
        }
        Self { from: SmallVec::from_slice(&[(sub_queue, requests)]), rows, class, bound: view.class_of(entry) }
    }

    /// Adds requests of other groups with the same key and level, in queue order, as long as the sum of all completion
    /// times does not grow. Adds nothing if times are unknown.
    pub(super) fn try_merge(mut self, view: &View<'_>, room: u32) -> Self {
        let [(first, _)] = self.from[..] else { return self };
        let Some(host) = view.pending.sub_queue(first) else { return self };
        let level = view.level_of(first);
        for (sub_queue, entry) in view.pending.in_order().take(LOOKED_AT) {
            if self.rows >= room {
                break;
            }
            if sub_queue == first || entry.batch_key.key != host.batch_key.key || view.level_of(sub_queue) != level {
                continue;
            }
            let candidates = Self::of_sub_queue(view, sub_queue, entry, room - self.rows);
            if candidates.rows > 0 && self.gains_by(view, &candidates) == Some(true) {
                self.take_along(candidates);
            }
        }
        self
    }

    /// Adds requests of other lengths with the same key and level, nearest lengths first, as long as the mean
    /// completion time of all waiting requests does not grow: of these requests, the candidates, and the `behind` rows
    /// that wait behind them, from which the candidates are taken. Times are predicted from padded tokens; adds nothing
    /// if they are unknown.
    pub(super) fn try_merge_near(mut self, view: &View<'_>, room: u32, behind: f64) -> Self {
        let [(first, _)] = self.from[..] else { return self };
        let Some(host) = view.pending.sub_queue(first) else { return self };
        let level = view.level_of(first);
        let joins = |&(batch_key, &sub_queue): &(&BatchKey, &SubQueueIx)| {
            batch_key.key == host.batch_key.key && view.level_of(sub_queue) == level
        };
        let sub_queues = |from: Bound<&BatchKey>, to| view.pending.by_key.range::<BatchKey, _>((from, to));
        let of_key = |&(batch_key, _): &(&BatchKey, &SubQueueIx)| batch_key.key == host.batch_key.key;
        let shorter = sub_queues(Bound::Unbounded, Bound::Excluded(&host.batch_key)).rev().take_while(of_key);
        let longer = sub_queues(Bound::Excluded(&host.batch_key), Bound::Unbounded).take_while(of_key);
        let mut shorter = shorter.take(NEAR_LOOKED_AT).filter(joins).peekable();
        let mut longer = longer.take(NEAR_LOOKED_AT).filter(joins).peekable();
        let (mut asks_shorter, mut asks_longer) = (true, true);
        while self.rows < room {
            let below = asks_shorter.then(|| self.next_of(view, &mut shorter, room)).flatten();
            let above = asks_longer.then(|| self.next_of(view, &mut longer, room)).flatten();
            let takes_below = match (&below, &above) {
                (Some(below), Some(above)) => self.padding(below) <= self.padding(above),
                (below, _) => below.is_some(),
            };
            let Some(candidates) = (if takes_below { below } else { above }) else { break };
            let is_gain = self.gains_by_runs(view, &candidates, behind) == Some(true);
            if is_gain {
                self.take_along(candidates);
            }
            // If this length does not help, lengths further away on the same side help even less.
            if takes_below {
                shorter.next();
                asks_shorter = is_gain;
            } else {
                longer.next();
                asks_longer = is_gain;
            }
        }
        self
    }

    /// Returns the requests of the next sub-queue that fit.
    fn next_of<'m>(
        &self,
        view: &View<'_>,
        sub_queues: &mut Peekable<impl Iterator<Item = (&'m BatchKey, &'m SubQueueIx)>>,
        room: u32,
    ) -> Option<Self> {
        loop {
            let &(_, &sub_queue) = sub_queues.peek()?;
            let candidates = view
                .pending
                .sub_queue(sub_queue)
                .map(|entry| Self::of_sub_queue(view, sub_queue, entry, room - self.rows));
            match candidates.filter(|candidates| candidates.rows > 0) {
                Some(candidates) => return Some(candidates),
                None => sub_queues.next(),
            };
        }
    }

    /// Returns the elements of padding that a joint batch adds to the two separate ones.
    fn padding(&self, candidates: &Self) -> u64 {
        let tokens = |rows: u32, class: &ShapeClass| u64::from(rows).saturating_mul(length_of(class));
        let joint = tokens(self.rows + candidates.rows, &joint(&self.class, &candidates.class));
        joint.saturating_sub(tokens(self.rows, &self.class)).saturating_sub(tokens(candidates.rows, &candidates.class))
    }

    /// Whether the mean completion time of all rows, including the `behind` rows, does not grow if the candidates join
    /// now instead of running later; compare [`Self::gains_by`]. Candidates that run later share a batch as well, so
    /// only their share of its fixed time counts.
    fn gains_by_runs(&self, view: &View<'_>, candidates: &Self, behind: f64) -> Option<bool> {
        let own_ns = view.costs.by_tokens(self.rows, &self.class)?;
        let candidates_ns = view.costs.share_by_tokens(candidates.rows, &candidates.class)?;
        let joint_ns = view.costs.by_tokens(self.rows + candidates.rows, &joint(&self.class, &candidates.class))?;
        let lanes = f64::from(view.lanes.max(1));
        let wait_ns = if view.idle_besides > 0 { 0.0 } else { own_ns / lanes };
        let (own, others) = (Run { rows: self.rows, ns: own_ns }, Run { rows: candidates.rows, ns: candidates_ns });
        Some(gain_ns(own, others, wait_ns, joint_ns, behind / lanes) >= 0.0)
    }

    fn take_along(&mut self, candidates: Self) {
        self.class = joint(&self.class, &candidates.class);
        self.bound = joint(&self.bound, &candidates.bound);
        self.rows += candidates.rows;
        self.from.extend(candidates.from);
    }

    /// Whether the mean completion time does not grow if both run as one batch instead of two. The second batch starts
    /// at once if another lane is idle, or else when the first lane becomes free.
    fn gains_by(&self, view: &View<'_>, candidates: &Self) -> Option<bool> {
        let whole = |rows, class| view.costs.whole(rows, class, Quantile::Mean);
        let own_ns = whole(self.rows, &self.class)?;
        let candidates_ns = whole(candidates.rows, &candidates.class)?;
        let joint_ns = whole(self.rows + candidates.rows, &joint(&self.class, &candidates.class))?;
        let wait_ns = if view.idle_besides > 0 { 0 } else { own_ns / Ns::from(view.lanes) };
        let own = Run { rows: self.rows, ns: own_ns as f64 };
        let others = Run { rows: candidates.rows, ns: candidates_ns as f64 };
        Some(gain_ns(own, others, wait_ns as f64, joint_ns as f64, 0.0) >= 0.0)
    }
}

/// Returns the shape that holds both.
fn joint(one: &ShapeClass, two: &ShapeClass) -> ShapeClass {
    let axes = one.0.len().max(two.0.len());
    let length = |class: &ShapeClass, axis: usize| class.0.get(axis).copied().unwrap_or(0);
    ShapeClass((0..axes).map(|axis| length(one, axis).max(length(two, axis))).collect())
}
