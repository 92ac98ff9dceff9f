//! Row vectors kept for reuse, so that a stage boundary rarely allocates.

use crate::ledger::BatchSpan;

/// Maximum number of vectors kept.
const KEPT: usize = 8;

/// Empty row vectors.
#[derive(Debug, Default)]
pub(crate) struct SpareRows(Vec<Vec<BatchSpan>>);

impl SpareRows {
    /// Returns an empty row vector, reused if possible.
    pub(crate) fn blank(&mut self) -> Vec<BatchSpan> {
        self.0.pop().unwrap_or_default()
    }

    pub(crate) fn recycle(&mut self, mut rows: Vec<BatchSpan>) {
        if rows.capacity() > 0 && self.0.len() < KEPT {
            rows.clear();
            self.0.push(rows);
        }
    }
}
