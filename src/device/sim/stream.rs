//! One simulated stream: when its operations begin and end, known as soon as they are issued.

use std::collections::VecDeque;

use super::clock::Clock;
use crate::device::{Operation, StreamId, WorkFailure};

/// The end of what never ends.
pub(super) const NEVER_NS: u64 = u64::MAX;

/// An in-order queue in virtual time.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    id: StreamId,
    /// What its next operation is ordered after.
    pub(super) clock: Clock,
    issued: u64,
    /// When the last operation ends, and when the last wait is over.
    free_at_ns: u64,
    /// Whether something has been waited for since the last operation.
    waited: bool,
    /// What the host does not know to be complete; the front is the oldest.
    pending: VecDeque<Pending>,
    /// How many of these have ended. Nobody is told of them, so the host does not know: a clock that moves on orders
    /// nothing.
    unnoticed: usize,
    /// The last operation that the host knows to be complete.
    known: u64,
    pub(super) slowness: u32,
    pub(super) hung: bool,
}

/// An operation that was issued.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Its place among all operations of the device.
    pub(super) sequence: u64,
    pub(super) operation: Operation,
    pub(super) started_ns: u64,
    pub(super) ended_ns: u64,
    /// What is ordered before its end, itself included.
    pub(super) clock: Clock,
    /// Of a launch. Nobody is told of copies, nor of what only stands for waits.
    pub(super) outcome: Option<Result<(), WorkFailure>>,
}

impl Stream {
    pub(super) fn new(id: StreamId, streams: u16) -> Self {
        Self {
            id,
            clock: Clock::zero(streams),
            issued: 0,
            free_at_ns: 0,
            waited: false,
            pending: VecDeque::new(),
            unnoticed: 0,
            known: 0,
            slowness: 1,
            hung: false,
        }
    }

    /// The last operation's position.
    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    /// What the next operation will be called.
    pub(super) fn next(&self) -> Operation {
        Operation { stream: self.id, position: self.issued + 1 }
    }

    /// Issues an operation at `now_ns` that takes `duration_ns` at the stream's normal speed.
    pub(super) fn issue(
        &mut self,
        now_ns: u64,
        sequence: u64,
        duration_ns: u64,
        outcome: Option<Result<(), WorkFailure>>,
    ) -> Operation {
        let operation = self.next();
        self.issued = operation.position;
        self.waited = false;
        self.clock.tick(operation);
        let started_ns = self.free_at_ns.max(now_ns);
        let taken_ns = if self.hung { NEVER_NS } else { duration_ns.saturating_mul(u64::from(self.slowness)) };
        let ended_ns = started_ns.saturating_add(taken_ns);
        self.free_at_ns = ended_ns;
        let clock = self.clock.copied();
        self.pending.push_back(Pending { sequence, operation, started_ns, ended_ns, clock, outcome });
        operation
    }

    /// Makes the next operation begin after another stream's, which the host does not know to be complete.
    pub(super) fn wait(&mut self, awaited: &Clock, until_ns: u64) {
        self.clock.join(awaited);
        self.free_at_ns = self.free_at_ns.max(until_ns);
        self.waited = true;
    }

    /// Whether a ticket now stands for more than the last operation.
    pub(super) fn has_waited(&self) -> bool {
        self.waited
    }

    /// The operation at `position`, unless the host knows it to be complete or it was abandoned.
    pub(super) fn pending(&self, position: u64) -> Option<&Pending> {
        let place = position.checked_sub(self.known + 1)?;
        self.pending.get(usize::try_from(place).ok()?)
    }

    /// Whether the host knows the operation at `position` to be complete.
    pub(super) fn is_known(&self, position: u64) -> bool {
        position <= self.known
    }

    /// The next operation that will end.
    pub(super) fn oldest(&self) -> Option<&Pending> {
        self.pending.get(self.unnoticed).filter(|oldest| oldest.ended_ns != NEVER_NS)
    }

    /// Lets the oldest operation end. A launch is told, and with it the host knows of all before; anything else ends
    /// unnoticed.
    pub(super) fn end_oldest(&mut self) -> Option<Pending> {
        self.unnoticed += 1;
        self.pending.get(self.unnoticed - 1)?.outcome.as_ref()?;
        let told = self.pending.drain(..self.unnoticed).next_back();
        self.known += std::mem::take(&mut self.unnoticed) as u64;
        told
    }

    /// Adds what the host knows to what the next operation is ordered after, and forgets what that makes superfluous.
    pub(super) fn learn(&mut self, host: &Clock) {
        self.clock.join(host);
        while self.unnoticed > 0 && host.covers(self.id, self.known + 1) {
            self.pending.pop_front();
            self.unnoticed -= 1;
            self.known += 1;
        }
    }

    /// Operations that the host does not know to be complete.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = &Pending> {
        self.pending.iter()
    }

    /// Forgets what has not ended at `now_ns`; returns what was ordered before its end.
    pub(super) fn give_up(&mut self, now_ns: u64) -> Clock {
        self.pending.clear();
        self.unnoticed = 0;
        self.known = self.issued;
        self.free_at_ns = now_ns;
        self.waited = false;
        self.hung = false;
        self.clock.copied()
    }

    /// Takes what has not begun at `now_ns`.
    pub(super) fn abandon(&mut self, now_ns: u64) -> VecDeque<Pending> {
        let begun = self.pending.partition_point(|pending| pending.started_ns <= now_ns);
        self.pending.split_off(begun)
    }
}
