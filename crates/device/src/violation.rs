//! Violations of the ordering rules that a device may detect, as the simulated one does.

use std::{fmt, ops::Range};

use super::{AccessKind, BufferId, Operation};

/// The origin of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accessor {
    /// A launch.
    Launch {
        /// The operation.
        operation: Operation,
        /// The program that it runs.
        program: u64,
    },
    /// A copy.
    Copy(Operation),
    /// The host, which reads a result or frees a buffer.
    Host,
}

impl fmt::Display for Accessor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launch { operation, program } => write!(formatter, "program {program} ({operation})"),
            Self::Copy(operation) => write!(formatter, "a copy ({operation})"),
            Self::Host => write!(formatter, "the host"),
        }
    }
}

/// A fault in a schedule, even if this run of it happened to give the right result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Two operations access rows, at least one writes them, and nothing orders the two.
    #[error(
        "race on rows {} to {} of {buffer}: {later} {} them, {earlier} {} them, and nothing orders the two",
        .rows.start, .rows.end, .later_kind.verb(), .earlier_kind.verb()
    )]
    Race {
        /// The buffer.
        buffer: BufferId,
        /// The first consecutive rows in conflict.
        rows: Range<u32>,
        /// The access that was issued first.
        earlier: Accessor,
        /// Its kind.
        earlier_kind: AccessKind,
        /// The access that was issued next and rejected.
        later: Accessor,
        /// Its kind.
        later_kind: AccessKind,
    },
    /// A row is read that was never written.
    #[error("{reader} reads row {row} of {buffer}, which was never written")]
    NeverWritten {
        /// The reader.
        reader: Accessor,
        /// The buffer.
        buffer: BufferId,
        /// The first such row.
        row: u32,
    },
    /// A row is read that has been freed.
    #[error("{reader} reads row {row} of {buffer}, which was poisoned when it was freed")]
    Poisoned {
        /// The reader.
        reader: Accessor,
        /// The buffer.
        buffer: BufferId,
        /// The first such row.
        row: u32,
    },
    /// The host reads a result row whose writer failed.
    #[error("the host reads row {row} of {buffer}, which is lost: {writer} failed")]
    Lost {
        /// The failed writer.
        writer: Accessor,
        /// The buffer.
        buffer: BufferId,
        /// The row.
        row: u32,
    },
}
