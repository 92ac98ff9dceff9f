//! Index types of the core's tables. An index is valid only for the table that returned it.

/// Index of a loaded version in the core.
pub(super) type GroupIx = usize;

/// Index of a live request in the ledger. Reused for another request once this one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestIx(pub(super) u32);

/// Index of a sub-queue in its version. Reused for another sub-queue once this one is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubQueueIx(pub(super) u32);

impl RequestIx {
    /// Returns the place of the request in a table by requests.
    pub(super) fn at(self) -> usize {
        self.0 as usize
    }
}

impl SubQueueIx {
    /// Returns the place of the sub-queue in a table by sub-queues.
    pub(super) fn at(self) -> usize {
        self.0 as usize
    }
}

/// The sub-queue of requests whose turn in their sequence has not come. None of them boards.
pub(super) const NOT_THEIR_TURN: SubQueueIx = SubQueueIx(u32::MAX);

/// Index of a batch in its table. Reused for another batch once this one is over.
pub(super) type BatchIx = usize;

/// A part of a batch. Never reused; the parts of one table are ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartIx {
    /// Ascends in order of creation. The first part of a batch has the batch's own number.
    pub(super) number: u64,
    pub(super) batch: BatchIx,
}

/// Index of a sequence in its version. Reused for another sequence once this one is over.
pub(super) type SequenceIx = u32;

/// Index of a version on one core in the rate limiter.
pub(super) type InstanceIx = usize;

/// Place in the order of the rate limiter: start tag of a task (start-time fair queueing), then order of arrival.
pub(super) type StartTag = (u64, u64);
