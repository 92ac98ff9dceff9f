//! Vectors of rows that are kept for reuse: no boundary allocates one where another has become free.

use crate::batching::ledger::BatchSpan;

/// Vectors that are kept.
const KEPT: usize = 8;

/// Empty vectors for rows.
#[derive(Debug, Default)]
pub(in crate::batching) struct SpareRows(Vec<Vec<BatchSpan>>);

impl SpareRows {
    /// An empty vector for rows, reused if possible.
    pub(in crate::batching) fn blank(&mut self) -> Vec<BatchSpan> {
        self.0.pop().unwrap_or_default()
    }

    pub(in crate::batching) fn recycle(&mut self, mut rows: Vec<BatchSpan>) {
        if rows.capacity() > 0 && self.0.len() < KEPT {
            rows.clear();
            self.0.push(rows);
        }
    }
}
