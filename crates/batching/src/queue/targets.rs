//! Waiting requests by target. Clients choose shapes and deadlines, so there may be many requests and sub-queues.
//! Finding the next request to board, or the latest start of a group, must not scan them all: each change costs O(log
//! n), and each query looks at a few.

use std::collections::BTreeSet;

use crate::{
    Instant, Ns,
    graph::SlackNs,
    ids::{NOT_THEIR_TURN, RequestIx, SubQueueIx},
    ledger::{Request, RequestState},
};

/// Position of a request: by sub-queue, then level, then fresh ones first, then target, then arrival order.
type Place = (SubQueueIx, u64, bool, Instant, u64, RequestIx);

/// Waiting requests of each sub-queue, earliest targets first.
#[derive(Debug)]
pub(crate) struct Targets {
    objective_ns: Option<Ns>,
    places: BTreeSet<Place>,
}

impl Targets {
    pub(crate) fn new(objective_ns: Option<Ns>) -> Self {
        Self { objective_ns, places: BTreeSet::new() }
    }

    /// Returns the position of a request; `None` unless it is queued and may board.
    fn place(&self, request_ix: RequestIx, request: &Request) -> Option<Place> {
        let RequestState::Queued { sub_queue, timed_out } = request.state else { return None };
        let place = (sub_queue, request.level, timed_out, request.target(self.objective_ns), request.seq, request_ix);
        (sub_queue != NOT_THEIR_TURN).then_some(place)
    }

    /// Files a request, if it may board.
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

    /// Returns the requests of a sub-queue, earliest targets first within each level.
    pub(crate) fn of_sub_queue(&self, sub_queue: SubQueueIx) -> impl Iterator<Item = RequestIx> + '_ {
        let from = (sub_queue, 0, false, Instant::ZERO, 0, RequestIx(0));
        self.places.range(from..).take_while(move |place| place.0 == sub_queue).map(|place| place.5)
    }

    /// Whether a request is filed correctly, for checks.
    pub(crate) fn holds(&self, request_ix: RequestIx, request: &Request) -> bool {
        self.place(request_ix, request).is_some_and(|place| self.places.contains(&place))
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}

/// Maximum number of sub-queues that a query looks at.
const LOOKED_AT: u32 = 16;

/// Latest start of sub-queues whose times are unknown. They are looked at first.
const UNKNOWN: SlackNs = SlackNs::MIN;

/// The request of a sub-queue with the earliest target, and its latest start when it was last computed; `None` if it
/// was already late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TargetEntry {
    request_ix: RequestIx,
    seq: u64,
    latest: Option<SlackNs>,
}

/// Sub-queues by the latest start of their first request: its target less its predicted time.
///
/// Predictions change as runs are learned. A sub-queue is filed by the prediction made when its first request reached
/// its head, and refiled when a query looks at it. A sub-queue whose first request is late is ignored until that
/// request has left.
#[derive(Debug, Default)]
pub(crate) struct LatestStarts {
    in_time: BTreeSet<(SlackNs, SubQueueIx)>,
    /// Indexed by sub-queue.
    filed: Vec<Option<TargetEntry>>,
}

impl LatestStarts {
    /// Files a sub-queue by its first request (ledger index and arrival number), unless it is filed by that request
    /// already. `latest_start` returns `None` if times are unknown.
    pub(crate) fn file(
        &mut self,
        sub_queue: SubQueueIx,
        first: Option<(RequestIx, u64)>,
        latest_start: impl FnOnce(RequestIx) -> Option<SlackNs>,
    ) {
        let at = sub_queue.at();
        if self.filed.len() <= at {
            self.filed.resize(at + 1, None);
        }
        if self.filed[at].map(|filed| (filed.request_ix, filed.seq)) == first {
            return;
        }
        let filed = first.map(|(request_ix, seq)| {
            let latest = Some(latest_start(request_ix).unwrap_or(UNKNOWN));
            TargetEntry { request_ix, seq, latest }
        });
        self.refile(sub_queue, filed);
    }

    /// Returns the earliest latest start of all requests that can still be in time, with its request; `None` if there
    /// is none or times are unknown.
    pub(crate) fn first(
        &mut self,
        now: Instant,
        latest_start: impl Fn(RequestIx) -> Option<SlackNs>,
    ) -> Option<(SlackNs, RequestIx)> {
        let now = SlackNs::try_from(now.as_ns()).unwrap_or(SlackNs::MAX);
        let mut first: Option<(SlackNs, RequestIx)> = None;
        for _ in 0..LOOKED_AT {
            let Some(&(filed_as, sub_queue)) = self.in_time.first() else { break };
            // Filed times may be outdated, but none of the rest was filed earlier than the best found.
            if first.is_some_and(|(latest, _)| latest <= filed_as) {
                break;
            }
            let Some(filed) = self.filed[sub_queue.at()] else { break };
            let Some(latest) = latest_start(filed.request_ix) else { break };
            let in_time = (latest >= now).then_some(latest);
            self.refile(sub_queue, Some(TargetEntry { latest: in_time, ..filed }));
            if in_time.is_some() && first.is_none_or(|(other, _)| latest < other) {
                first = Some((latest, filed.request_ix));
            }
        }
        first
    }

    fn refile(&mut self, sub_queue: SubQueueIx, filed: Option<TargetEntry>) {
        let latest = |filed: Option<TargetEntry>| filed.and_then(|filed| filed.latest);
        let before = latest(std::mem::replace(&mut self.filed[sub_queue.at()], filed));
        if before == latest(filed) {
            return;
        }
        if let Some(before) = before {
            self.in_time.remove(&(before, sub_queue));
        }
        self.in_time.extend(latest(filed).map(|latest| (latest, sub_queue)));
    }

    /// Whether a sub-queue is filed by this request, or not filed if there is none, for checks.
    pub(crate) fn is_filed(&self, sub_queue: SubQueueIx, first: Option<(RequestIx, u64)>) -> bool {
        let filed = self.filed.get(sub_queue.at()).copied().flatten();
        let is_there = |latest: SlackNs| self.in_time.contains(&(latest, sub_queue));
        filed.map(|filed| (filed.request_ix, filed.seq)) == first
            && filed.and_then(|filed| filed.latest).is_none_or(is_there)
    }

    /// Returns the number of filed sub-queues, of those in time, and of entries in the order.
    pub(crate) fn sub_queues(&self) -> (usize, usize, usize) {
        let filed = self.filed.iter().flatten();
        let in_time = filed.clone().filter(|filed| filed.latest.is_some()).count();
        (filed.count(), in_time, self.in_time.len())
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeMap};

    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// A change of a sub-queue: a request with this target and need becomes its first, or its first leaves; or time
    /// passes.
    #[derive(Clone, Debug)]
    enum Change {
        Comes { sub_queue: SubQueueIx, target: Ns, needs: Ns },
        Leaves { sub_queue: SubQueueIx },
        Passes(Ns),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let comes = (0..12_u32, 0..400_u64, 0..60_u64);
        let comes = comes.prop_map(|(at, target, needs)| Change::Comes { sub_queue: SubQueueIx(at), target, needs });
        let leaves = (0..12_u32).prop_map(|at| Change::Leaves { sub_queue: SubQueueIx(at) });
        let passes = (0..20_u64).prop_map(Change::Passes);
        vec(prop_oneof![4 => comes, 2 => leaves, 1 => passes], 1..150)
    }

    proptest! {
        #[test]
        fn the_first_start_is_that_of_a_full_scan(changes in changes()) {
            let mut starts = LatestStarts::default();
            // By sub-queue: the first request and its latest start.
            let mut heads: BTreeMap<SubQueueIx, (RequestIx, SlackNs)> = BTreeMap::new();
            let (mut now, mut request_ixs) = (0, 0_u32);
            for change in changes {
                match change {
                    Change::Comes { sub_queue, target, needs } => {
                        request_ixs += 1;
                        heads.insert(sub_queue, (RequestIx(request_ixs), (now + target) as SlackNs - needs as SlackNs));
                    }
                    Change::Leaves { sub_queue } => {
                        heads.remove(&sub_queue);
                    }
                    Change::Passes(ns) => now += ns,
                }
                let latest =
                    |first: RequestIx| heads.values().find(|head| head.0 == first).map(|head| head.1);
                for sub_queue in (0..12).map(SubQueueIx) {
                    starts.file(sub_queue, heads.get(&sub_queue).map(|head| (head.0, u64::from(head.0.0))), latest);
                }
                let scan = heads.values().map(|head| head.1).filter(|&latest| latest >= now as SlackNs).min();
                prop_assert_eq!(starts.first(Instant::from_ns(now), latest).map(|first| first.0), scan, "at {}", now);
                let (filed, own, in_time) = starts.sub_queues();
                prop_assert_eq!((filed, own), (heads.len(), in_time));
            }
        }
    }

    #[test]
    fn a_question_looks_at_few_of_100_000_sub_queues() {
        const LINES: u32 = 100_000;
        let mut starts = LatestStarts::default();
        let latest = |request_ix: RequestIx| Some(1_000 + SlackNs::from(request_ix.0.wrapping_mul(7_919) % LINES));
        (0..LINES).for_each(|at| starts.file(SubQueueIx(at), Some((RequestIx(at), u64::from(at))), latest));
        let looks = Cell::new(0);
        let counted = |request_ix: RequestIx| {
            looks.set(looks.get() + 1);
            latest(request_ix)
        };
        assert_eq!(starts.first(Instant::ZERO, counted), Some((1_000, RequestIx(0))));
        assert_eq!(looks.take(), 1);
        // The first sixteen are late; each is looked at once and then ignored.
        assert_eq!(starts.first(Instant::from_ns(1_016), counted), None);
        assert_eq!(looks.take(), LOOKED_AT);
        assert_eq!(starts.first(Instant::from_ns(1_016), counted).map(|first| first.0), Some(1_016));
        assert_eq!(looks.take(), 1);
        // Every run now takes longer than before.
        let slower = |request_ix: RequestIx| counted(request_ix).map(|latest| latest - 10);
        assert_eq!(
            starts.first(Instant::from_ns(1_016), slower).map(|first| first.0),
            Some(1_016),
            "ten more are late"
        );
        assert_eq!(looks.take(), 11);
    }

    #[test]
    fn sub_queues_are_looked_at_again_once_times_are_known() {
        let mut starts = LatestStarts::default();
        (0..40).for_each(|at| starts.file(SubQueueIx(at), Some((RequestIx(at), 0)), |_| None));
        assert_eq!(starts.first(Instant::ZERO, |_| None), None);
        let latest = |request_ix: RequestIx| Some(100 - SlackNs::from(request_ix.0));
        let found: Vec<_> = (0..3).map(|_| starts.first(Instant::ZERO, latest).map(|first| first.0)).collect();
        assert_eq!(found, [Some(85), Some(69), Some(61)], "a few at a time");
        assert_eq!(starts.first(Instant::ZERO, latest), Some((61, RequestIx(39))));
    }
}
