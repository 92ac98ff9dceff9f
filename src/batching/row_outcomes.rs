//! The outcomes of a task, row by row.

use super::{Next, RowOutcome};

/// The outcomes of one request's rows within the outcomes of its task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcomes<'a> {
    all: &'a [RowOutcome],
    from: usize,
}

impl<'a> Outcomes<'a> {
    /// Returns the outcomes from row `from` on.
    pub(super) fn from(all: &'a [RowOutcome], from: usize) -> Self {
        Self { all, from }
    }

    /// Whether every row goes on.
    pub(super) fn all_go_on(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns all outcomes of a task.
    pub(super) fn of_all(all: &'a [RowOutcome]) -> Self {
        Self { all, from: 0 }
    }

    /// Returns the outcome of a row. An empty slice means that every row goes on; a row beyond a non-empty slice
    /// failed.
    pub(super) fn get(&self, row: usize) -> RowOutcome {
        let missing = if self.all.is_empty() { Next::On } else { Next::Failed };
        self.all.get(self.from + row).copied().unwrap_or(RowOutcome { next: missing, emitted: false })
    }
}
