//! Vector clocks: what is ordered before what, whatever the times of one run.

use smallvec::SmallVec;

use crate::device::{Operation, StreamId};

/// For each stream, the last of its operations that is ordered before a point.
#[derive(Clone, Debug)]
pub(super) struct Clock(SmallVec<[u64; 8]>);

impl Clock {
    /// Before everything.
    pub(super) fn zero(streams: u16) -> Self {
        Self(SmallVec::from_elem(0, usize::from(streams)))
    }

    /// A copy, without the element-wise loop of the derived clone.
    pub(super) fn copied(&self) -> Self {
        Self(SmallVec::from_slice(&self.0))
    }

    /// After this point, also everything before `other`'s is ordered before.
    pub(super) fn join(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*other);
        }
    }

    /// The operation itself is before what follows it.
    pub(super) fn tick(&mut self, operation: Operation) {
        self.0[operation.stream.index()] = operation.position;
    }

    /// Whether the stream's operation at `position` is ordered before this point.
    pub(super) fn covers(&self, stream: StreamId, position: u64) -> bool {
        self.0[stream.index()] >= position
    }
}
