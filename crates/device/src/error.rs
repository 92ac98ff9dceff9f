//! Errors of device calls, and failures of work.

use super::{AccessKind, BufferId, NoMemory, StreamId, Violation};

/// Memory of a card that a load lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it needs at least {needed_bytes} bytes of the card's memory, where {reserved_bytes} of {most_bytes} bytes are \
     reserved"
)]
pub struct MemoryShortage {
    /// What the load needs at least: what it has reserved, and what it asked for last.
    pub needed_bytes: usize,
    /// What was reserved before the load.
    pub reserved_bytes: usize,
    /// The most that could be reserved: the bound of the card, or what the driver has.
    pub most_bytes: usize,
}

/// A rejected call. Nothing was issued, and the stream is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The device has no such stream.
    #[error("there is no {stream}: the device has {streams} streams")]
    UnknownStream {
        /// The requested stream.
        stream: StreamId,
        /// Number of streams.
        streams: u16,
    },
    /// The buffer belongs to another device or has been freed.
    #[error("{0} does not exist or has been freed")]
    UnknownBuffer(BufferId),
    /// The ticket was not recorded on this device.
    #[error("the ticket of {0} belongs to another device: nothing has been recorded there yet")]
    UnknownTicket(StreamId),
    /// The row is beyond the end of the buffer.
    #[error("row {row} is out of range: {buffer} has {capacity} rows")]
    OutOfRange {
        /// The buffer.
        buffer: BufferId,
        /// The largest row that was named.
        row: u32,
        /// Number of rows of the buffer.
        capacity: u32,
    },
    /// A launch writes a row and accesses it a second time.
    #[error("row {row} of {buffer} is written and accessed twice by one operation")]
    NamedTwice {
        /// The buffer.
        buffer: BufferId,
        /// The row.
        row: u32,
    },
    /// The regions of a copy differ in size.
    #[error("a copy of {from_rows} rows of {from_row_bytes} bytes cannot fill {to_rows} rows of {to_row_bytes} bytes")]
    CopySizes {
        /// Rows to read.
        from_rows: u32,
        /// Bytes in each.
        from_row_bytes: usize,
        /// Rows to write.
        to_rows: u32,
        /// Bytes in each.
        to_row_bytes: usize,
    },
    /// The memory would exceed the bound of the card.
    #[error("{0} (--cuda-memory-bytes)")]
    OverBound(MemoryShortage),
    /// The requested size exceeds the limit of a buffer.
    #[error("a buffer of {rows} rows of {row_bytes} bytes is larger than {most_bytes} bytes")]
    TooLarge {
        /// Requested rows.
        rows: u32,
        /// Bytes in each.
        row_bytes: usize,
        /// Maximum bytes of a buffer.
        most_bytes: usize,
    },
    /// The host has no memory for a buffer.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// The sources of symbolic work do not match its accesses.
    #[error("the work's sources do not fit its accesses: {0}")]
    MalformedWork(&'static str),
    /// The operation has more parameters than the device was opened for.
    #[error("an operation has {bytes} bytes of parameters, expected at most {most_bytes}")]
    TooManyParameters {
        /// Bytes of parameters.
        bytes: usize,
        /// Maximum bytes of parameters.
        most_bytes: usize,
    },
    /// The stream has the maximum number of operations in flight.
    #[error("{depth} operations of {stream} are in flight, and there is no room for more")]
    Full {
        /// The stream.
        stream: StreamId,
        /// Its maximum number of operations in flight.
        depth: u32,
    },
    /// The driver rejected the call; the device still works.
    #[error("{0}")]
    Driver(String),
    /// The device is lost: nothing runs on it any more.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// The device has been stopped.
    #[error("the device has been stopped")]
    Stopped,
    /// The operation violates the ordering rules. Only the simulated device detects this.
    #[error(transparent)]
    Violation(#[from] Box<Violation>),
}

/// Reasons why rows cannot be acquired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Another operation holds the rows and was not waited for: a wait is missing.
    #[error(
        "rows {} to {} are in use by an operation that {} them, and another {} rows {} to {}: no ticket orders the two",
        .held.start, .held.end, .held_by.verb(), .wanted_for.verb(), .wanted.start, .wanted.end
    )]
    Conflict {
        /// The requested rows.
        wanted: std::ops::Range<u32>,
        /// Requested access.
        wanted_for: AccessKind,
        /// The rows in use.
        held: std::ops::Range<u32>,
        /// Access that holds them.
        held_by: AccessKind,
    },
    /// The row holds nothing: it was never written, or its writer failed.
    #[error("row {row} holds nothing: it was never written, or its writer failed")]
    NotWritten {
        /// The first such row.
        row: u32,
    },
    /// The rows extend beyond the end of the buffer.
    #[error("rows up to {end} are out of range: the buffer has {capacity} rows")]
    OutOfRange {
        /// One more than the last requested row.
        end: u32,
        /// Number of rows of the buffer.
        capacity: u32,
    },
}

/// Reasons why an issued launch failed. The rows that it should have written are lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkFailure {
    /// The work returned an error.
    #[error("{0}")]
    Failed(String),
    /// The work panicked.
    #[error("the work panicked: {0}")]
    Panicked(String),
    /// Its rows could not be acquired.
    #[error(transparent)]
    Rows(#[from] RowError),
    /// The device was stopped before the work started.
    #[error("the device was stopped before the work began")]
    Stopped,
}
