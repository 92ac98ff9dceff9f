//! Vector clocks: which operations are ordered before others, independent of the times of a run.

use paternoster_device::{Operation, StreamId};
use smallvec::SmallVec;

/// The last operation of each stream that is ordered before a point.
#[derive(Clone, Debug)]
pub(super) struct Clock(SmallVec<[u64; 8]>);

impl Clock {
    /// Returns the clock before all operations.
    pub(super) fn zero(streams: u16) -> Self {
        Self(SmallVec::from_elem(0, usize::from(streams)))
    }

    /// Copies the clock, without the element-wise loop of the derived clone.
    pub(super) fn copied(&self) -> Self {
        Self(SmallVec::from_slice(&self.0))
    }

    /// Adds everything that is ordered before `other`.
    pub(super) fn join(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*other);
        }
    }

    /// Adds an operation of this stream.
    pub(super) fn tick(&mut self, operation: Operation) {
        self.0[operation.stream.index()] = operation.position;
    }

    /// Returns whether the stream's operation at `position` is ordered before this point.
    pub(super) fn covers(&self, stream: StreamId, position: u64) -> bool {
        self.0[stream.index()] >= position
    }
}
