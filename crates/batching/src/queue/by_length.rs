//! Waiting requests by length, where run times decide which lengths share a batch. Clients choose lengths, so there may
//! be many: each change costs O(log n), and so does each step to the next length.

use std::{
    collections::BTreeSet,
    ops::Bound::{Excluded, Included, Unbounded},
};

use paternoster_model::Lengths;

use crate::{
    Instant, Ns,
    ids::{NOT_THEIR_TURN, RequestIx, SubQueueIx},
    ledger::{Request, RequestState},
};

/// Boarding order of a request: by level, those within their queue timeout first, then target (the epoch where targets
/// do not count), then arrival order.
pub(crate) type BoardingOrder = (u64, bool, Instant, u64, RequestIx);

/// The waiting requests of each sub-queue, grouped by equal lengths, in boarding order within a group.
#[derive(Debug)]
pub(crate) struct ByLength {
    /// Whether requests board in the order of their targets, and the objective that targets follow from.
    targets: Option<Option<Ns>>,
    places: BTreeSet<(SubQueueIx, Lengths, BoardingOrder)>,
}

const FIRST: BoardingOrder = (0, false, Instant::ZERO, 0, RequestIx(0));
const LAST: BoardingOrder = (u64::MAX, true, Instant::NEVER, u64::MAX, RequestIx(u32::MAX));

impl ByLength {
    /// Creates an empty index. With `targets`, requests of one length are ordered by their targets, given the
    /// objective.
    pub(crate) fn new(targets: Option<Option<Ns>>) -> Self {
        Self { targets, places: BTreeSet::new() }
    }

    /// Whether requests of equal lengths are in the order of their targets.
    pub(crate) fn follows_targets(&self) -> bool {
        self.targets.is_some()
    }

    /// Returns the position of a request; `None` unless it is queued, may board and has lengths.
    fn place(&self, request_ix: RequestIx, request: &Request) -> Option<(SubQueueIx, Lengths, BoardingOrder)> {
        let RequestState::Queued { sub_queue, timed_out } = request.state else { return None };
        let target = self.targets.map_or(Instant::ZERO, |objective_ns| request.target(objective_ns));
        let order = (request.level, timed_out, target, request.seq, request_ix);
        let is_there = sub_queue != NOT_THEIR_TURN && !request.lengths.is_empty();
        is_there.then(|| (sub_queue, request.lengths.clone(), order))
    }

    /// Files a request, if it may board and has lengths.
    pub(crate) fn insert(&mut self, request_ix: RequestIx, request: &Request) {
        let place = self.place(request_ix, request);
        self.places.extend(place);
    }

    /// Removes a request, before its state changes.
    pub(crate) fn remove(&mut self, request_ix: RequestIx, request: &Request) {
        if let Some(place) = self.place(request_ix, request) {
            self.places.remove(&place);
        }
    }

    /// Returns the requests of these lengths in boarding order.
    pub(crate) fn of(&self, sub_queue: SubQueueIx, lengths: &Lengths) -> impl Iterator<Item = BoardingOrder> + '_ {
        let bound = |order| Included((sub_queue, lengths.clone(), order));
        self.places.range((bound(FIRST), bound(LAST))).map(|&(_, _, order)| order)
    }

    /// Returns the next shorter lengths in a sub-queue. Several axes are compared one after another.
    pub(crate) fn shorter(&self, sub_queue: SubQueueIx, lengths: &Lengths) -> Option<&Lengths> {
        let from = Included((sub_queue, Lengths::new(), FIRST));
        let before = Excluded((sub_queue, lengths.clone(), FIRST));
        self.places.range((from, before)).next_back().map(|(_, shorter, _)| shorter)
    }

    /// Returns the next longer lengths in a sub-queue.
    pub(crate) fn longer(&self, sub_queue: SubQueueIx, lengths: &Lengths) -> Option<&Lengths> {
        let next = self.places.range((Excluded((sub_queue, lengths.clone(), LAST)), Unbounded)).next()?;
        (next.0 == sub_queue).then_some(&next.1)
    }

    /// Whether a request is filed correctly, for checks. One without lengths is not filed.
    pub(crate) fn holds(&self, request_ix: RequestIx, request: &Request) -> bool {
        self.place(request_ix, request).is_none_or(|place| self.places.contains(&place))
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}
