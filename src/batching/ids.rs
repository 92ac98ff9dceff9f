//! Where things are kept: the index types of the core. They mean something only together with the table that gave them.

/// A loaded version among those of the core.
pub(super) type GroupIx = usize;

/// A live request in the ledger. It is given to another request once this one has ended.
pub(super) type RequestIx = u32;

/// A sub-queue among those of its version.
pub(super) type SubQueueIx = u32;

/// The sub-queue of requests whose turn in their sequence has not come: none of them boards.
pub(super) const NOT_THEIR_TURN: SubQueueIx = SubQueueIx::MAX;

/// A batch in its table. It is given to another batch once this one is over.
pub(super) type BatchIx = usize;

/// A part of a batch. It is never given to another; those of one table are ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartIx {
    /// Ascending in order of creation; that of a batch's first part is the batch's own.
    pub(super) number: u64,
    pub(super) batch: BatchIx,
}

/// A sequence among those of its version. It is given to another sequence once this one is over.
pub(super) type SequenceIx = u32;
