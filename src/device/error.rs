//! What devices refuse, and how work fails.

use super::{AccessKind, BufferId, StreamId, sim::Violation};

/// An operation that was refused. It was not issued: the stream goes on as if it had never been asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A stream that the device does not have.
    #[error("there is no {stream}: the device has {streams} streams")]
    UnknownStream {
        /// The stream asked for.
        stream: StreamId,
        /// How many there are.
        streams: u16,
    },
    /// A buffer of another device, or one that has been freed.
    #[error("{0} does not exist or has been freed")]
    UnknownBuffer(BufferId),
    /// A ticket that this device did not give.
    #[error("the ticket of {0} is another device's: nothing has been recorded there yet")]
    UnknownTicket(StreamId),
    /// A row beyond a buffer's end.
    #[error("row {row} of {buffer} was named, which has {capacity} rows")]
    OutOfRange {
        /// The buffer.
        buffer: BufferId,
        /// The largest row named.
        row: u32,
        /// How many rows it has.
        capacity: u32,
    },
    /// A launch writes a row and names it a second time.
    #[error("row {row} of {buffer} is written and named twice by one operation")]
    NamedTwice {
        /// The buffer.
        buffer: BufferId,
        /// The row.
        row: u32,
    },
    /// A copy between regions that do not match.
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
    /// More memory than a buffer can have.
    #[error("a buffer of {rows} rows of {row_bytes} bytes is larger than {most_bytes} bytes")]
    TooLarge {
        /// Rows asked for.
        rows: u32,
        /// Bytes in each.
        row_bytes: usize,
        /// The most one buffer may have.
        most_bytes: usize,
    },
    /// Symbolic work whose sources are not what its accesses need.
    #[error("the work's sources do not fit its accesses: {0}")]
    MalformedWork(&'static str),
    /// More parameters than the device was opened for.
    #[error("an operation has {bytes} bytes of parameters, expected at most {most_bytes}")]
    TooManyParameters {
        /// Bytes of parameters.
        bytes: usize,
        /// The most there may be.
        most_bytes: usize,
    },
    /// As many operations of a stream are in flight as there may be.
    #[error("{depth} operations of {stream} are in flight, and there is no room for more")]
    Full {
        /// The stream.
        stream: StreamId,
        /// How many it holds.
        depth: u32,
    },
    /// The driver refuses, and goes on.
    #[error("{0}")]
    Driver(String),
    /// The device is lost: nothing runs on it any more.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// The device has been stopped.
    #[error("the device has been stopped")]
    Stopped,
    /// The operation is wrong in itself; only the simulated device can tell.
    #[error(transparent)]
    Violation(#[from] Box<Violation>),
}

/// Why rows cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Somebody who was not waited for is using them: a wait is missing.
    #[error(
        "rows {} to {} are in use by one that {} them while another {} rows {} to {}: no ticket orders the two",
        .held.start, .held.end, .held_by.verb(), .wanted_for.verb(), .wanted.start, .wanted.end
    )]
    Conflict {
        /// The rows asked for.
        wanted: std::ops::Range<u32>,
        /// For what.
        wanted_for: AccessKind,
        /// The rows in use.
        held: std::ops::Range<u32>,
        /// For what.
        held_by: AccessKind,
    },
    /// The row holds nothing: it was never written, or what should have written it failed.
    #[error("row {row} holds nothing: it was never written, or its writer failed")]
    NotWritten {
        /// The first such row.
        row: u32,
    },
    /// The rows end beyond the buffer.
    #[error("rows up to {end} were asked for of a buffer of {capacity}")]
    OutOfRange {
        /// One more than the last row asked for.
        end: u32,
        /// How many rows there are.
        capacity: u32,
    },
}

/// Why a launch that was issued did not do its work. What it should have written is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkFailure {
    /// The work says so itself.
    #[error("{0}")]
    Failed(String),
    /// The work panicked.
    #[error("the work panicked: {0}")]
    Panicked(String),
    /// Its rows could not be had.
    #[error(transparent)]
    Rows(#[from] RowError),
    /// The device was stopped before the work began.
    #[error("the device was stopped before the work began")]
    Stopped,
}
