//! What the simulated device finds wrong with a schedule.

use std::{fmt, ops::Range};

use crate::device::{AccessKind, BufferId, Operation};

/// Who touched rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accessor {
    /// A launch.
    Launch {
        /// Which one.
        operation: Operation,
        /// What it runs.
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

/// A schedule that is wrong, though this run of it may have gone well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Two operations touch rows, at least one writes, and nothing orders them.
    #[error(
        "race on rows {} to {} of {buffer}: {later} {} them, {earlier} {} them, and nothing orders the two",
        .rows.start, .rows.end, .later_kind.verb(), .earlier_kind.verb()
    )]
    Race {
        /// Where.
        buffer: BufferId,
        /// The first rows in conflict that follow one another.
        rows: Range<u32>,
        /// Who was issued first.
        earlier: Accessor,
        /// What it does to the rows.
        earlier_kind: AccessKind,
        /// Who was issued next, and was refused.
        later: Accessor,
        /// What it would do to the rows.
        later_kind: AccessKind,
    },
    /// A row is read that nobody has written.
    #[error("{reader} reads row {row} of {buffer}, which was never written")]
    NeverWritten {
        /// Who.
        reader: Accessor,
        /// Where.
        buffer: BufferId,
        /// The first such row.
        row: u32,
    },
    /// A row is read that has been freed.
    #[error("{reader} reads row {row} of {buffer}, which was poisoned when it was freed")]
    Poisoned {
        /// Who.
        reader: Accessor,
        /// Where.
        buffer: BufferId,
        /// The first such row.
        row: u32,
    },
    /// The host takes a row as a result whose writer failed.
    #[error("the host reads row {row} of {buffer}, which is lost: {writer} failed")]
    Lost {
        /// Who should have written it.
        writer: Accessor,
        /// Where.
        buffer: BufferId,
        /// The row.
        row: u32,
    },
}
