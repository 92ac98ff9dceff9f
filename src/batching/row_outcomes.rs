//! The outcomes of a task, row by row.

use super::{Next, RowOutcome};

/// The outcomes of one request's rows within those of its task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcomes<'a> {
    all: &'a [RowOutcome],
    from: usize,
}

impl<'a> Outcomes<'a> {
    /// Those behind so many rows.
    pub(super) fn from(all: &'a [RowOutcome], from: usize) -> Self {
        Self { all, from }
    }

    /// Whether every row goes on.
    pub(super) fn all_go_on(&self) -> bool {
        self.all.is_empty()
    }

    /// Those of a task.
    pub(super) fn of_all(all: &'a [RowOutcome]) -> Self {
        Self { all, from: 0 }
    }

    /// The outcome of a row. No outcomes at all mean that every row goes on; a row left out of some failed.
    pub(super) fn get(&self, row: usize) -> RowOutcome {
        let missing = if self.all.is_empty() { Next::On } else { Next::Failed };
        self.all.get(self.from + row).copied().unwrap_or(RowOutcome { next: missing, emitted: false })
    }
}
