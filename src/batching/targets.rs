//! Waiting requests by their targets. Clients choose shapes and deadlines, so neither who boards next nor how soon a
//! group must start may need a look at all requests or lines: each change costs O(log n), each question looks at a
//! few.

use std::collections::BTreeSet;

use super::{
    Ns,
    ledger::{Request, Slot},
    pending::LineIx,
    slack::SlackNs,
};

/// Where a request stands among those of its line: by level, fresh before delayed, by target, then in order of
/// arrival.
type Place = (LineIx, u64, bool, Ns, u64, Slot);

/// Waiting requests of each line, the earliest targets first.
#[derive(Debug)]
pub(super) struct Targets {
    objective_ns: Option<Ns>,
    places: BTreeSet<Place>,
}

impl Targets {
    pub(super) fn new(objective_ns: Option<Ns>) -> Self {
        Self { objective_ns, places: BTreeSet::new() }
    }

    fn place(&self, line: LineIx, slot: Slot, request: &Request, delayed: bool) -> Place {
        (line, request.level, delayed, request.target(self.objective_ns), request.seq, slot)
    }

    pub(super) fn insert(&mut self, line: LineIx, slot: Slot, request: &Request, delayed: bool) {
        self.places.insert(self.place(line, slot, request, delayed));
    }

    pub(super) fn remove(&mut self, line: LineIx, slot: Slot, request: &Request, delayed: bool) {
        self.places.remove(&self.place(line, slot, request, delayed));
    }

    /// The requests of a line.
    pub(super) fn of_line(&self, line: LineIx) -> impl Iterator<Item = Slot> + '_ {
        let from = (line, 0, false, 0, 0, 0);
        self.places.range(from..).take_while(move |place| place.0 == line).map(|place| place.5)
    }

    /// Whether a request is where it belongs, for checks.
    pub(super) fn holds(&self, line: LineIx, slot: Slot, request: &Request, delayed: bool) -> bool {
        self.places.contains(&self.place(line, slot, request, delayed))
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}

/// Lines that a question looks at, at most.
const LOOKED_AT: u32 = 16;

/// Of lines whose times are not known: they are looked at first.
const UNKNOWN: SlackNs = SlackNs::MIN;

/// The request of a line that has the earliest target, and when it must start at the latest, as far as that was known
/// when it was last looked at; none: it was late already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Filed {
    slot: Slot,
    seq: u64,
    latest: Option<SlackNs>,
}

/// Lines by when the first request of each must start to be in time: its target less its predicted time.
///
/// Predictions change as runs are learned. A line is filed by what was predicted when its first request came to its
/// head, and filed again when a question comes upon it. A line whose first request is late has no say until that has
/// left.
#[derive(Debug, Default)]
pub(super) struct LatestStarts {
    in_time: BTreeSet<(SlackNs, LineIx)>,
    /// By line.
    filed: Vec<Option<Filed>>,
}

impl LatestStarts {
    /// Files a line by its first request (slot and order of arrival), unless it is filed by that already.
    /// `latest_start` gives none where times are not known.
    pub(super) fn file(
        &mut self,
        line: LineIx,
        first: Option<(Slot, u64)>,
        latest_start: impl FnOnce(Slot) -> Option<SlackNs>,
    ) {
        let at = line as usize;
        if self.filed.len() <= at {
            self.filed.resize(at + 1, None);
        }
        if self.filed[at].map(|filed| (filed.slot, filed.seq)) == first {
            return;
        }
        let latest = first.map(|(slot, _)| latest_start(slot).unwrap_or(UNKNOWN));
        if let Some(old) = self.filed[at].and_then(|filed| filed.latest) {
            self.in_time.remove(&(old, line));
        }
        self.in_time.extend(latest.map(|latest| (latest, line)));
        self.filed[at] = first.map(|(slot, seq)| Filed { slot, seq, latest });
    }

    /// The request that must start first of those that can still be in time, and when at the latest; none without
    /// such, or where times are not known.
    pub(super) fn first(&mut self, now: Ns, latest_start: impl Fn(Slot) -> Option<SlackNs>) -> Option<(SlackNs, Slot)> {
        let now = SlackNs::try_from(now).unwrap_or(SlackNs::MAX);
        let mut first: Option<(SlackNs, Slot)> = None;
        for _ in 0..LOOKED_AT {
            let Some(&(filed_as, line)) = self.in_time.first() else { break };
            if first.is_some_and(|(latest, _)| latest <= filed_as) {
                break;
            }
            let Some(slot) = self.filed[line as usize].map(|filed| filed.slot) else { break };
            let Some(latest) = latest_start(slot) else { break };
            let in_time = (latest >= now).then_some(latest);
            self.file_as(line, filed_as, in_time);
            let Some(latest) = in_time else { continue };
            if first.is_none_or(|(other, _)| latest < other) {
                first = Some((latest, slot));
            }
        }
        first
    }

    fn file_as(&mut self, line: LineIx, before: SlackNs, latest: Option<SlackNs>) {
        if latest == Some(before) {
            return;
        }
        self.in_time.remove(&(before, line));
        self.in_time.extend(latest.map(|latest| (latest, line)));
        if let Some(filed) = &mut self.filed[line as usize] {
            filed.latest = latest;
        }
    }

    /// Whether a line is filed by this request, or not at all where there is none.
    pub(super) fn is_filed(&self, line: LineIx, first: Option<(Slot, u64)>) -> bool {
        let filed = self.filed.get(line as usize).copied().flatten();
        let is_there = |latest: SlackNs| self.in_time.contains(&(latest, line));
        filed.map(|filed| (filed.slot, filed.seq)) == first && filed.and_then(|filed| filed.latest).is_none_or(is_there)
    }

    /// Lines that are filed, and those of them that are in time.
    pub(super) fn lines(&self) -> (usize, usize, usize) {
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

    /// What happens to a line: a request with this target and need comes first, or its first leaves; then so much
    /// time passes.
    #[derive(Clone, Debug)]
    enum Change {
        Comes { line: LineIx, target: Ns, needs: Ns },
        Leaves { line: LineIx },
        Passes(Ns),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let comes = (0..12_u32, 0..400_u64, 0..60_u64);
        let comes = comes.prop_map(|(line, target, needs)| Change::Comes { line, target, needs });
        let leaves = (0..12_u32).prop_map(|line| Change::Leaves { line });
        let passes = (0..20_u64).prop_map(Change::Passes);
        vec(prop_oneof![4 => comes, 2 => leaves, 1 => passes], 1..150)
    }

    proptest! {
        #[test]
        fn the_first_start_is_that_of_a_full_scan(changes in changes()) {
            let mut starts = LatestStarts::default();
            // By line: first request, its target and need.
            let mut heads: BTreeMap<LineIx, (Slot, SlackNs)> = BTreeMap::new();
            let (mut now, mut slots) = (0, 0);
            for change in changes {
                match change {
                    Change::Comes { line, target, needs } => {
                        slots += 1;
                        heads.insert(line, (slots, (now + target) as SlackNs - needs as SlackNs));
                    }
                    Change::Leaves { line } => {
                        heads.remove(&line);
                    }
                    Change::Passes(ns) => now += ns,
                }
                let latest = |slot: Slot| heads.values().find(|head| head.0 == slot).map(|head| head.1);
                for line in 0..12 {
                    starts.file(line, heads.get(&line).map(|head| (head.0, u64::from(head.0))), latest);
                }
                let scan = heads.values().map(|head| head.1).filter(|&latest| latest >= now as SlackNs).min();
                prop_assert_eq!(starts.first(now, latest).map(|first| first.0), scan, "at {}", now);
                let (filed, own, in_time) = starts.lines();
                prop_assert_eq!((filed, own), (heads.len(), in_time));
            }
        }
    }

    #[test]
    fn a_question_looks_at_few_of_100_000_lines() {
        const LINES: u32 = 100_000;
        let mut starts = LatestStarts::default();
        let latest = |slot: Slot| Some(1_000 + SlackNs::from(slot.wrapping_mul(7_919) % LINES));
        (0..LINES).for_each(|line| starts.file(line, Some((line, u64::from(line))), latest));
        let looks = Cell::new(0);
        let counted = |slot: Slot| {
            looks.set(looks.get() + 1);
            latest(slot)
        };
        assert_eq!(starts.first(0, counted), Some((1_000, 0)));
        assert_eq!(looks.take(), 1);
        // The first sixteen are late, and are looked at once and for all.
        assert_eq!(starts.first(1_016, counted), None);
        assert_eq!(looks.take(), LOOKED_AT);
        assert_eq!(starts.first(1_016, counted).map(|first| first.0), Some(1_016));
        assert_eq!(looks.take(), 1);
        // All take longer than they did.
        let slower = |slot: Slot| counted(slot).map(|latest| latest - 10);
        assert_eq!(starts.first(1_016, slower).map(|first| first.0), Some(1_016), "ten more are late");
        assert_eq!(looks.take(), 11);
    }

    #[test]
    fn lines_are_looked_at_again_once_times_are_known() {
        let mut starts = LatestStarts::default();
        (0..40).for_each(|line| starts.file(line, Some((line, 0)), |_| None));
        assert_eq!(starts.first(0, |_| None), None);
        let latest = |slot: Slot| Some(100 - SlackNs::from(slot));
        let found: Vec<_> = (0..3).map(|_| starts.first(0, latest).map(|first| first.0)).collect();
        assert_eq!(found, [Some(85), Some(69), Some(61)], "a few at a time");
        assert_eq!(starts.first(0, latest), Some((61, 39)));
    }
}
