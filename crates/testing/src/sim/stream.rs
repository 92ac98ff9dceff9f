//! One simulated stream. The start and end of its operations are known when they are issued.

use std::collections::VecDeque;

use paternoster_device::{Operation, StreamId, WorkFailure};

use super::clock::Clock;

/// End time of operations that never end.
pub(super) const NEVER_NS: u64 = u64::MAX;

/// An in-order queue in virtual time.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    id: StreamId,
    /// Everything that the next operation is ordered after.
    pub(super) clock: Clock,
    issued: u64,
    /// When the last operation ends and the last wait is over.
    free_at_ns: u64,
    /// Whether there was a wait since the last operation.
    waited: bool,
    /// Operations that the host does not know to be complete, oldest first.
    pending: VecDeque<Pending>,
    /// How many of these have ended without being reported. The host does not know of them, so they order nothing.
    unnoticed: usize,
    /// The last operation that the host knows to be complete.
    known: u64,
    pub(super) slowness: u32,
    pub(super) hung: bool,
}

/// An issued operation.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Its number among all operations of the device.
    pub(super) sequence: u64,
    pub(super) operation: Operation,
    pub(super) started_ns: u64,
    pub(super) ended_ns: u64,
    /// Everything ordered before its end, including itself.
    pub(super) clock: Clock,
    /// Outcome of a launch; `None` for copies and marks, which are not reported.
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

    /// Returns the position of the last operation.
    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    /// Returns the identifier of the next operation.
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

    /// Makes the next operation start after an operation of another stream that the host does not know to be complete.
    pub(super) fn wait(&mut self, awaited: &Clock, until_ns: u64) {
        self.clock.join(awaited);
        self.free_at_ns = self.free_at_ns.max(until_ns);
        self.waited = true;
    }

    /// Returns whether a ticket recorded now covers more than the last operation.
    pub(super) fn has_waited(&self) -> bool {
        self.waited
    }

    /// Returns the operation at `position`, unless the host knows it to be complete or it was abandoned.
    pub(super) fn pending(&self, position: u64) -> Option<&Pending> {
        let place = position.checked_sub(self.known + 1)?;
        self.pending.get(usize::try_from(place).ok()?)
    }

    /// Returns whether the host knows the operation at `position` to be complete.
    pub(super) fn is_known(&self, position: u64) -> bool {
        position <= self.known
    }

    /// Returns the operation that ends next.
    pub(super) fn oldest(&self) -> Option<&Pending> {
        self.pending.get(self.unnoticed).filter(|oldest| oldest.ended_ns != NEVER_NS)
    }

    /// Ends the oldest operation. If it is a launch, returns it, and the host knows that everything before it is
    /// complete. Other operations end unreported.
    pub(super) fn end_oldest(&mut self) -> Option<Pending> {
        self.unnoticed += 1;
        self.pending.get(self.unnoticed - 1)?.outcome.as_ref()?;
        let ended = self.pending.drain(..self.unnoticed).next_back();
        self.known += std::mem::take(&mut self.unnoticed) as u64;
        ended
    }

    /// Orders the next operation after everything that the host knows, and drops entries that this makes redundant.
    pub(super) fn learn(&mut self, host: &Clock) {
        self.clock.join(host);
        while self.unnoticed > 0 && host.covers(self.id, self.known + 1) {
            self.pending.pop_front();
            self.unnoticed -= 1;
            self.known += 1;
        }
    }

    /// Iterates over the operations that the host does not know to be complete.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = &Pending> {
        self.pending.iter()
    }

    /// Drops all pending operations at `now_ns`. Returns the clock of the stream.
    pub(super) fn give_up(&mut self, now_ns: u64) -> Clock {
        self.pending.clear();
        self.unnoticed = 0;
        self.known = self.issued;
        self.free_at_ns = now_ns;
        self.waited = false;
        self.hung = false;
        self.clock.copied()
    }

    /// Takes the operations that have not started at `now_ns`.
    pub(super) fn abandon(&mut self, now_ns: u64) -> VecDeque<Pending> {
        let begun = self.pending.partition_point(|pending| pending.started_ns <= now_ns);
        self.pending.split_off(begun)
    }
}
