//! Alarms of requests, queue timeouts and clients' deadlines; and when sequences have been idle for as long as they
//! may.
//!
//! A request has at most one armed alarm, kept in its ledger entry. Disarming leaves the heap's entry where it is;
//! stale entries are dropped at the top, and all at once when they are the greater part, so that they stay bounded.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

use super::{
    Ns, ReqId,
    ids::{GroupIx, RequestIx, SequenceIx},
    ledger::{Ledger, NEVER},
};

/// Stale entries that are always tolerated, so that small heaps are not rebuilt all the time.
const TOLERATED: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alarm {
    at: Ns,
    req: ReqId,
    request_ix: RequestIx,
}

impl Alarm {
    fn is_armed(&self, ledger: &Ledger) -> bool {
        ledger.same(self.request_ix, self.req).is_some_and(|request| request.alarm == self.at)
    }
}

/// A heap of alarms, earliest first; alarms of the same instant go off in the order of request ids.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<Alarm>>,
    /// How many alarms are armed. All other entries of the heap are stale, also those of an alarm that was disarmed and
    /// armed again for the same instant: such entries are alike.
    armed: usize,
    /// Idle sequences, by when they are over.
    idle: BTreeSet<(Ns, GroupIx, SequenceIx)>,
}

impl Timers {
    /// Arms the request's alarm, which must not be armed, for `at`; `NEVER` arms nothing.
    pub(super) fn arm(&mut self, ledger: &mut Ledger, request_ix: RequestIx, at: Ns) {
        let request = &mut ledger[request_ix];
        debug_assert_eq!(request.alarm, NEVER, "an alarm is armed once at a time");
        if at == NEVER {
            return;
        }
        request.alarm = at;
        self.armed += 1;
        let alarm = Alarm { at, req: request.req, request_ix };
        self.heap.push(Reverse(alarm));
    }

    /// Disarms the request's alarm, if any.
    pub(super) fn disarm(&mut self, ledger: &mut Ledger, request_ix: RequestIx) {
        if ledger[request_ix].alarm != NEVER {
            ledger[request_ix].alarm = NEVER;
            self.armed -= 1;
        }
    }

    /// The next request whose alarm is due, disarmed.
    pub(super) fn pop_due(&mut self, now: Ns, ledger: &mut Ledger) -> Option<RequestIx> {
        if self.earliest_alarm(ledger)? > now {
            return None;
        }
        let Reverse(alarm) = self.heap.pop()?;
        ledger[alarm.request_ix].alarm = NEVER;
        self.armed -= 1;
        Some(alarm.request_ix)
    }

    /// A sequence becomes idle, and is over at this time.
    pub(super) fn rest(&mut self, until: Ns, group: GroupIx, sequence: SequenceIx) {
        self.idle.insert((until, group, sequence));
    }

    /// A sequence is idle no more.
    pub(super) fn rouse(&mut self, until: Ns, group: GroupIx, sequence: SequenceIx) {
        self.idle.remove(&(until, group, sequence));
    }

    /// The next sequence that has been idle for long enough; it stays idle.
    pub(super) fn due_sequence(&self, now: Ns) -> Option<(GroupIx, SequenceIx)> {
        self.idle.first().filter(|(until, ..)| *until <= now).map(|&(_, group, sequence)| (group, sequence))
    }

    /// A group is gone, and its sequences with it.
    pub(super) fn forget(&mut self, group: GroupIx) {
        self.idle.retain(|(_, own, _)| *own != group);
    }

    /// Idle sequences of a group.
    pub(super) fn idle(&self, group: GroupIx) -> impl Iterator<Item = (Ns, SequenceIx)> + '_ {
        self.idle.iter().filter(move |(_, own, _)| *own == group).map(|&(until, _, sequence)| (until, sequence))
    }

    /// When the next alarm goes off, or the next sequence is over.
    pub(super) fn earliest(&mut self, ledger: &Ledger) -> Option<Ns> {
        let idle = self.idle.first().map(|&(until, ..)| until);
        self.earliest_alarm(ledger).into_iter().chain(idle).min()
    }

    fn earliest_alarm(&mut self, ledger: &Ledger) -> Option<Ns> {
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

    /// Rebuilds the heap without its stale entries once they are the greater part: O(log n) a disarmed alarm.
    pub(super) fn sweep(&mut self, ledger: &Ledger) {
        if self.stale() > TOLERATED && self.stale() > self.heap.len() / 2 {
            let mut alarms = std::mem::take(&mut self.heap).into_vec();
            alarms.retain(|Reverse(alarm)| alarm.is_armed(ledger));
            alarms.sort_unstable();
            alarms.dedup();
            self.heap = alarms.into();
        }
    }

    /// Entries in the heap, and how many of them are stale.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.heap.len(), self.stale())
    }

    /// The most entries a heap with `armed` armed alarms may hold after a sweep.
    pub(super) fn bound(armed: usize) -> usize {
        2 * armed + TOLERATED + 1
    }
}
