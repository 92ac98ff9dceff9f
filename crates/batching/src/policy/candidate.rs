//! The requests that may board as one batch: of which lengths, and how many.
//!
//! Padding may cost more than a separate run, or nothing at all. Where requests of any lengths may share a batch
//! ([`LengthBucketing::Learned`](crate::queue::LengthBucketing)), those lengths do that the version's own runs have
//! shown to be faster together. All policies form their batches from these candidates.

use std::collections::BTreeSet;

use paternoster_model::Lengths;
use smallvec::SmallVec;

use super::{
    Selection, View,
    forecast::{Run, gain_ns},
};
use crate::{
    Instant, ShapeClass,
    cost::length_of,
    ids::{RequestIx, SubQueueIx},
    queue::{BoardingOrder, ByLength, SubQueue, first_within},
};

/// Number of lengths considered on each side.
const LOOKED_AT: u32 = 32;

/// Maximum load in estimates of the rows that will arrive; at 1 it would be infinite.
const MOST_LOAD: f64 = 0.99;

/// Requests that may board as one batch with the first of a sub-queue.
#[derive(Debug)]
pub(super) struct CandidateBatch<'a> {
    entry: &'a SubQueue,
    /// The requests whose lengths gain from a common batch; `None`: all of the sub-queue.
    gainers: Option<Gainers>,
}

/// Requests of one sub-queue, chosen by length.
#[derive(Debug)]
struct Gainers {
    /// In boarding order.
    request_ixs: Vec<RequestIx>,
    rows: u32,
    /// Longest length in each axis.
    class: ShapeClass,
    /// Whether requests that would have fitted stay behind.
    leaves_others: bool,
}

impl<'a> CandidateBatch<'a> {
    /// Returns the candidates of a sub-queue, at most `room` rows where their lengths matter.
    pub(super) fn of(view: &View<'a>, sub_queue: SubQueueIx, entry: &'a SubQueue, room: u32) -> Self {
        let first = if view.pending.by_length.as_ref().is_some_and(ByLength::follows_targets) {
            view.pending.by_target(sub_queue).next()
        } else {
            entry.iter(view.ledger).next()
        };
        Self::with(view, sub_queue, entry, first, room)
    }

    /// Returns the candidates that board with a request of a sub-queue.
    pub(super) fn with(
        view: &View<'a>,
        sub_queue: SubQueueIx,
        entry: &'a SubQueue,
        first: Option<RequestIx>,
        room: u32,
    ) -> Self {
        let by_length = view.pending.by_length.as_ref();
        let gainers =
            by_length.and_then(|by_length| Gainers::choose(view, by_length, sub_queue, (entry, first?), room));
        Self { entry, gainers }
    }

    /// Returns the candidates in boarding order.
    pub(super) fn iter(&self, view: &View<'a>) -> impl Iterator<Item = RequestIx> {
        let chosen = self.gainers.iter().flat_map(|gainers| gainers.request_ixs.iter().copied());
        let all = self.gainers.is_none().then(|| self.entry.iter(view.ledger));
        chosen.chain(all.into_iter().flatten())
    }

    /// Returns the candidates in the order of their targets, at most as many as the largest batch has rows. For
    /// policies whose version keeps targets.
    pub(super) fn by_target(self, view: &View<'_>, sub_queue: SubQueueIx) -> Vec<RequestIx> {
        match self.gainers {
            None => view.pending.by_target(sub_queue).take(view.max_rows as usize).collect(),
            // Groups of equal lengths are in the order of targets already, and so is what was merged from them.
            Some(gainers) => gainers.request_ixs,
        }
    }

    /// Removes those of these requests of the sub-queue that are no candidates.
    pub(super) fn retain_in(&self, request_ixs: &mut Vec<RequestIx>) {
        if let Some(gainers) = &self.gainers {
            let chosen: BTreeSet<RequestIx> = gainers.request_ixs.iter().copied().collect();
            request_ixs.retain(|request_ix| chosen.contains(request_ix));
        }
    }

    /// Returns the number of their rows.
    pub(super) fn rows(&self) -> u64 {
        self.gainers.as_ref().map_or(self.entry.rows, |gainers| u64::from(gainers.rows))
    }

    /// Whether requests of the sub-queue stay behind although there was room, because their lengths differ too much.
    pub(super) fn leaves_others(&self) -> bool {
        self.gainers.as_ref().is_some_and(|gainers| gainers.leaves_others)
    }

    /// Returns the padded shape that the candidates would have as a batch. It is estimated from the first request if
    /// all of the sub-queue are candidates.
    pub(super) fn class(&self, view: &View<'_>) -> ShapeClass {
        self.gainers.as_ref().map_or_else(|| view.class_of(self.entry), |gainers| gainers.class.clone())
    }

    /// Returns the arrival time of the oldest candidate.
    pub(super) fn oldest(&self, view: &View<'_>) -> Option<Instant> {
        match &self.gainers {
            None => self.entry.oldest(view.ledger),
            Some(gainers) => gainers.request_ixs.iter().map(|&request_ix| view.ledger[request_ix].arrived).min(),
        }
    }

    /// Returns how many candidates, in boarding order, together have at most `room` rows, and their rows.
    pub(super) fn within(&self, view: &View<'a>, room: u32) -> (u32, u32) {
        let rows = || self.iter(view).map(|request_ix| view.ledger[request_ix].rows);
        let count = first_within(rows(), room);
        (count as u32, rows().take(count).sum())
    }

    /// Selects the first `requests` candidates.
    pub(super) fn select(self, requests: u32) -> Selection {
        match self.gainers {
            None => Selection::First(requests),
            Some(mut gainers) => {
                gainers.request_ixs.truncate(requests as usize);
                Selection::Named(gainers.request_ixs)
            }
        }
    }

    /// Returns the shape that stands for the candidates' in a cache: rounded up, so that there are few.
    pub(super) fn rounded_class(&self, view: &View<'_>) -> ShapeClass {
        let mut class = self.class(view);
        if self.gainers.is_some() {
            class.0.iter_mut().for_each(|length| *length = quarter_octave(*length));
        }
        class
    }
}

impl Gainers {
    /// Returns the requests of the first request's lengths, and those of other lengths that gain, nearest first. `None`
    /// if all requests of the sub-queue have equal lengths.
    fn choose(
        view: &View<'_>,
        by_length: &ByLength,
        sub_queue: SubQueueIx,
        (entry, first): (&SubQueue, RequestIx),
        room: u32,
    ) -> Option<Self> {
        let first = &view.ledger[first];
        // Requests whose queue timeout has passed wait in the order of their timeouts, and here in that of arrival. The
        // batch must have room for the one that is first here.
        let first = &view.ledger[by_length.of(sub_queue, &first.lengths).next()?.4];
        let mut sides = [ByLength::shorter, ByLength::longer].map(|next| Side::new(next, &first.lengths));
        if sides.iter().all(|side| side.peek(by_length, sub_queue).is_none()) {
            return None;
        }
        let room = room.max(first.rows);
        let mut taken = OfLengths::new(view, by_length.of(sub_queue, &first.lengths), &first.lengths, room);
        let behind = rows_behind(view, taken.rows);
        while taken.rows < room {
            let near = sides.iter_mut().filter_map(|side| {
                let candidates = side.candidates(view, by_length, sub_queue, first.level, room - taken.rows)?;
                Some((taken.padding(&candidates), side, candidates))
            });
            let Some((_, side, candidates)) = near.min_by_key(|near| near.0) else { break };
            if taken.gains_by(view, &candidates, behind) == Some(true) {
                side.pass(candidates.class.0.clone());
                taken.take_along(candidates);
            } else {
                // Lengths further away on the same side gain even less.
                side.left = 0;
            }
        }
        let OfLengths { mut orders, rows, class } = taken;
        orders.sort_unstable();
        let leaves_others = rows < room && u64::from(rows) < entry.rows;
        Some(Self { request_ixs: orders.into_iter().map(|order| order.4).collect(), rows, class, leaves_others })
    }
}

/// One side of the search, towards shorter or longer lengths.
struct Side {
    next: for<'q> fn(&'q ByLength, SubQueueIx, &Lengths) -> Option<&'q Lengths>,
    /// The lengths last passed.
    at: Lengths,
    /// Number of lengths still to be considered.
    left: u32,
}

impl Side {
    fn new(next: for<'q> fn(&'q ByLength, SubQueueIx, &Lengths) -> Option<&'q Lengths>, from: &Lengths) -> Self {
        Self { next, at: from.clone(), left: LOOKED_AT }
    }

    fn peek<'q>(&self, by_length: &'q ByLength, sub_queue: SubQueueIx) -> Option<&'q Lengths> {
        (self.next)(by_length, sub_queue, &self.at).filter(|_| self.left > 0)
    }

    fn pass(&mut self, lengths: Lengths) {
        self.at = lengths;
        self.left -= 1;
    }

    /// Returns the requests of the next lengths that are of this level and fit.
    fn candidates(
        &mut self,
        view: &View<'_>,
        by_length: &ByLength,
        sub_queue: SubQueueIx,
        level: u64,
        room: u32,
    ) -> Option<OfLengths> {
        loop {
            let lengths = self.peek(by_length, sub_queue)?;
            let of_level = by_length.of(sub_queue, lengths).take_while(|order| order.0 == level);
            let candidates = OfLengths::new(view, of_level, lengths, room);
            if candidates.rows > 0 {
                return Some(candidates);
            }
            self.pass(lengths.clone());
        }
    }
}

/// Requests of one length, or of those that share a batch.
struct OfLengths {
    orders: SmallVec<[BoardingOrder; 8]>,
    rows: u32,
    /// Longest length in each axis.
    class: ShapeClass,
}

impl OfLengths {
    /// Takes requests of these lengths, in order, that together have at most `room` rows.
    fn new(view: &View<'_>, orders: impl Iterator<Item = BoardingOrder>, lengths: &Lengths, room: u32) -> Self {
        let mut found = Self { orders: SmallVec::new(), rows: 0, class: ShapeClass(lengths.clone()) };
        for order in orders {
            let rows = view.ledger[order.4].rows;
            if rows > room - found.rows {
                break;
            }
            found.orders.push(order);
            found.rows += rows;
        }
        found
    }

    fn take_along(&mut self, candidates: Self) {
        self.class = joint(&self.class, &candidates.class);
        self.rows += candidates.rows;
        self.orders.extend(candidates.orders);
    }

    /// Returns the elements of padding that a joint batch adds to the two separate ones.
    fn padding(&self, candidates: &Self) -> u64 {
        let tokens = |rows: u32, class: &ShapeClass| u64::from(rows).saturating_mul(length_of(class));
        let joint = tokens(self.rows + candidates.rows, &joint(&self.class, &candidates.class));
        joint.saturating_sub(tokens(self.rows, &self.class)).saturating_sub(tokens(candidates.rows, &candidates.class))
    }

    /// Whether the mean completion time of all waiting rows, including the `behind` rows, from which the candidates are
    /// taken, does not grow if the candidates join now instead of running later. Candidates that run later share a
    /// batch as well, so only their share of its fixed time counts. `None` if times are
    /// unknown.
    fn gains_by(&self, view: &View<'_>, candidates: &Self, behind: f64) -> Option<bool> {
        let own_ns = view.costs.run_ns(self.rows, &self.class)?;
        let candidates_ns = view.costs.share_ns(candidates.rows, &candidates.class)?;
        let joint_ns = view.costs.run_ns(self.rows + candidates.rows, &joint(&self.class, &candidates.class))?;
        let lanes = f64::from(view.lanes.max(1));
        let wait_ns = if view.idle_besides > 0 { 0.0 } else { own_ns / lanes };
        let (own, others) = (Run { rows: self.rows, ns: own_ns }, Run { rows: candidates.rows, ns: candidates_ns });
        Some(gain_ns(own, others, wait_ns, joint_ns, behind / lanes) >= 0.0)
    }
}

/// Returns how many rows wait for a batch of `rows` rows to end: those queued behind it, and those that will arrive
/// before the device is idle again. Run times of the model's latest runs stand for those to come.
fn rows_behind(view: &View<'_>, rows: u32) -> f64 {
    let queued = view.pending.rows.saturating_sub(u64::from(rows)) as f64;
    let Some((row_ns, load)) = view.costs.lately_per_row().zip(load(view)) else { return queued };
    let work_ns = (queued + f64::from(rows)) * row_ns / f64::from(view.lanes.max(1));
    queued + view.pending.rate.at(view.now) * work_ns / (1.0 - load.min(MOST_LOAD))
}

/// Returns the share of the lanes' time that the arriving rows need, if they take as long as the latest ones.
pub(super) fn load(view: &View<'_>) -> Option<f64> {
    Some(view.pending.rate.at(view.now) * view.costs.lately_per_row()? / f64::from(view.lanes.max(1)))
}

/// Returns the shape that holds both.
fn joint(one: &ShapeClass, two: &ShapeClass) -> ShapeClass {
    let axes = one.0.len().max(two.0.len());
    let length = |class: &ShapeClass, axis: usize| class.0.get(axis).copied().unwrap_or(0);
    ShapeClass((0..axes).map(|axis| length(one, axis).max(length(two, axis))).collect())
}

/// Rounds a length up to a quarter of an octave.
fn quarter_octave(length: u32) -> u32 {
    let step = 1 << length.max(1).ilog2().saturating_sub(2);
    length.div_ceil(step).saturating_mul(step)
}
