//! What a run says of each row, and what rows are told apart by.

use smallvec::SmallVec;

/// A stage of a version, or a type of its cells, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CellId(pub u16);

/// A request's own length along each padded symbol of its model, in the order of the model's symbols.
pub type Lengths = SmallVec<[u32; 2]>;

/// The outcome of a row, as the engine evaluated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowOutcome {
    /// Where the row goes next.
    pub next: Next,
    /// Whether the task produced a response for the row's request (decoupled models).
    pub emitted: bool,
}

impl RowOutcome {
    /// Returns the outcome of a row of a task. An empty slice means that every row goes on; a row beyond a non-empty
    /// slice failed.
    pub fn of_row(all: &[Self], row: usize) -> Self {
        let missing = if all.is_empty() { Next::On } else { Next::Failed };
        all.get(row).copied().unwrap_or(Self { next: missing, emitted: false })
    }
}

/// Where a row goes after a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// To the following stage; a row of the last stage is done.
    On,
    /// The row is done, even if stages are left.
    Done,
    /// To the named stage, which may be the same stage or an earlier one.
    Skip(CellId),
    /// To the same stage again, but only after the client has taken its pending responses . Only
    /// versions with one stage, whose rows hold no buffers, have rows that pause. All rows of a request pause together.
    Pause,
    /// The row failed alone; the other rows of its task did not.
    Failed,
}
