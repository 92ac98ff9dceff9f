//! The names a device gives out: streams, buffers, operations and tickets.

use std::fmt;

/// One in-order queue of a device: a CUDA stream, or a thread on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u16);

impl StreamId {
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "stream {}", self.0)
    }
}

/// A buffer of rows. Only [`Device::allocate`](super::Device::allocate) makes one; a freed buffer's name is not given
/// out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl fmt::Display for BufferId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "buffer {}.{}", self.index, self.generation)
    }
}

/// One launch or copy. Names it in completions and errors; unlike a [`Ticket`] it cannot be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operation {
    /// Where it runs.
    pub stream: StreamId,
    /// Its place among the stream's operations, from 1.
    pub position: u64,
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "operation {} of {}", self.position, self.stream)
    }
}

/// A point in a stream, complete once everything issued to the stream before it is. Only
/// [`Device::record`](super::Device::record) makes one, so there is no waiting for what was never recorded (on CUDA
/// that would silently be no wait at all).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(super) stream: StreamId,
    /// The last operation it stands for; 0 before the first.
    pub(super) position: u64,
}

impl Ticket {
    /// The stream it was recorded on.
    pub fn stream(&self) -> StreamId {
        self.stream
    }
}
