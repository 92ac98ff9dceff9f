//! Identifiers of a device: streams, buffers, operations and tickets.

use std::fmt;

/// An in-order queue of a device: a CUDA stream, or a thread on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u16);

impl StreamId {
    /// Returns its index among the streams of a device.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "stream {}", self.0)
    }
}

/// A buffer of rows. Only [`Device::allocate`](super::Device::allocate) creates one. The identifier of a freed buffer
/// is not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl fmt::Display for BufferId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "buffer {}.{}", self.index, self.generation)
    }
}

/// A launch or copy. Identifies it in completions and errors; unlike a [`Ticket`], it cannot be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operation {
    /// Its stream.
    pub stream: StreamId,
    /// Its number among the operations of the stream, from 1.
    pub position: u64,
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "operation {} of {}", self.position, self.stream)
    }
}

/// A point in a stream, complete when everything issued to the stream before it is. Only
/// [`Device::record`](super::Device::record) creates one, so it is impossible to wait for an event that was never
/// recorded (on CUDA such a wait would silently do nothing).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(crate) stream: StreamId,
    /// The last operation that it covers; 0 before the first.
    pub(crate) position: u64,
}

impl Ticket {
    /// Creates the ticket of a device for the operations of a stream up to `position`; 0 is before the first.
    pub fn new(stream: StreamId, position: u64) -> Self {
        Self { stream, position }
    }

    /// Returns the position of the last operation that it covers; 0 before the first.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the stream that it was recorded on.
    pub fn stream(&self) -> StreamId {
        self.stream
    }
}
