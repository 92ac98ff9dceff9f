//! Alarms for queue timeouts and client deadlines of requests, and for the idle limit of sequences.
//!
//! A request has at most one armed alarm, stored in its ledger entry. Disarming leaves the heap entry in place. A stale
//! entry is dropped when it reaches the top, and all are dropped when they are the majority, so their number stays
//! bounded.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

use super::{
    Instant, ReqId,
    ids::{GroupIx, RequestIx, SequenceIx},
    ledger::Ledger,
};

/// Number of stale entries that is always tolerated, so that small heaps are not rebuilt constantly.
const TOLERATED: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alarm {
    at: Instant,
    req: ReqId,
    request_ix: RequestIx,
}

impl Alarm {
    fn is_armed(&self, ledger: &Ledger) -> bool {
        ledger.same(self.request_ix, self.req).is_some_and(|request| request.alarm == self.at)
    }
}

/// A heap of alarms, earliest first. Alarms of the same instant are ordered by request id.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<Alarm>>,
    /// Number of armed alarms. All other heap entries are stale. If an alarm is disarmed and armed again for the same
    /// instant, its two entries are equal, and one counts as stale.
    armed: usize,
    /// Idle sequences, ordered by the time at which they are closed.
    idle: BTreeSet<(Instant, GroupIx, SequenceIx)>,
}

impl Timers {
    /// Arms the request's alarm for `at`; `NEVER` arms nothing. The alarm must not be armed.
    pub(super) fn arm(&mut self, ledger: &mut Ledger, request_ix: RequestIx, at: Instant) {
        let request = &mut ledger[request_ix];
        debug_assert_eq!(request.alarm, Instant::NEVER, "an alarm is armed once at a time");
        if at == Instant::NEVER {
            return;
        }
        request.alarm = at;
        self.armed += 1;
        let alarm = Alarm { at, req: request.req, request_ix };
        self.heap.push(Reverse(alarm));
    }

    /// Disarms the request's alarm, if it is armed.
    pub(super) fn disarm(&mut self, ledger: &mut Ledger, request_ix: RequestIx) {
        if ledger[request_ix].alarm != Instant::NEVER {
            ledger[request_ix].alarm = Instant::NEVER;
            self.armed -= 1;
        }
    }

    /// Removes and returns the next request whose alarm is due.
    pub(super) fn pop_due(&mut self, now: Instant, ledger: &mut Ledger) -> Option<RequestIx> {
        if self.earliest_alarm(ledger)? > now {
            return None;
        }
        let Reverse(alarm) = self.heap.pop()?;
        ledger[alarm.request_ix].alarm = Instant::NEVER;
        self.armed -= 1;
        Some(alarm.request_ix)
    }

    /// Records that a sequence became idle and is closed at `until`.
    pub(super) fn idle_until(&mut self, until: Instant, group: GroupIx, sequence: SequenceIx) {
        self.idle.insert((until, group, sequence));
    }

    /// Records that an idle sequence is active again.
    pub(super) fn not_idle(&mut self, until: Instant, group: GroupIx, sequence: SequenceIx) {
        self.idle.remove(&(until, group, sequence));
    }

    /// Returns the next sequence whose idle time is over. It stays recorded as idle.
    pub(super) fn due_sequence(&self, now: Instant) -> Option<(GroupIx, SequenceIx)> {
        self.idle.first().filter(|(until, ..)| *until <= now).map(|&(_, group, sequence)| (group, sequence))
    }

    /// Removes the idle sequences of a group that is removed.
    pub(super) fn forget(&mut self, group: GroupIx) {
        self.idle.retain(|(_, own, _)| *own != group);
    }

    /// Returns the idle sequences of a group.
    pub(super) fn idle(&self, group: GroupIx) -> impl Iterator<Item = (Instant, SequenceIx)> + '_ {
        self.idle.iter().filter(move |(_, own, _)| *own == group).map(|&(until, _, sequence)| (until, sequence))
    }

    /// Returns the time of the next alarm or of the next closing sequence.
    pub(super) fn earliest(&mut self, ledger: &Ledger) -> Option<Instant> {
        let idle = self.idle.first().map(|&(until, ..)| until);
        self.earliest_alarm(ledger).into_iter().chain(idle).min()
    }

    fn earliest_alarm(&mut self, ledger: &Ledger) -> Option<Instant> {
        loop {
            let Reverse(alarm) = self.heap.peek()?;
            if alarm.is_armed(ledger) {
                return Some(alarm.at);
            }
            self.heap.pop();
        }
    }

    fn stale(&self) -> usize {
        self.heap.len() - self.armed
    }

    /// Rebuilds the heap without stale entries once they are the majority: amortized O(log n) per disarmed alarm.
    pub(super) fn sweep(&mut self, ledger: &Ledger) {
        if self.stale() > TOLERATED && self.stale() > self.heap.len() / 2 {
            let mut alarms = std::mem::take(&mut self.heap).into_vec();
            alarms.retain(|Reverse(alarm)| alarm.is_armed(ledger));
            alarms.sort_unstable();
            alarms.dedup();
            self.heap = alarms.into();
        }
    }

    /// Returns the number of heap entries and how many of them are stale.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.heap.len(), self.stale())
    }

    /// Returns the maximum heap size after a sweep with `armed` armed alarms.
    pub(super) fn bound(armed: usize) -> usize {
        2 * armed + TOLERATED + 1
    }
}
