//! Sizes of the batches to measure.

/// Lengths of padded axes to measure. Latency is nearly linear between two of them.
pub const LENGTHS: [u32; 6] = [8, 16, 32, 64, 128, 256];

/// A batch to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredSize {
    /// Rows.
    pub rows: u32,
    /// Length of every padded axis; 0 for a model without any.
    pub length: u32,
}

impl MeasuredSize {
    /// Returns whether neither rows nor length exceed those of `other`.
    pub(super) fn is_within(self, other: Self) -> bool {
        self.rows <= other.rows && self.length <= other.length
    }

    /// Returns the elements of the batch along the varying axes.
    pub(super) fn work(self) -> f64 {
        f64::from(self.rows) * f64::from(self.length.max(1))
    }
}

/// Returns the rows of the batches to measure, ascending: the powers of two below the largest batch, and the largest
/// batch. One row for a model without a batch axis, whose largest batch is 0.
pub fn row_buckets(max_rows: u32) -> Vec<u32> {
    let largest = max_rows.max(1);
    let powers = (0..u32::BITS).map(|power| 1_u32 << power).take_while(|&rows| rows < largest);
    powers.chain([largest]).collect()
}

/// Returns the sizes to measure, smaller ones first: all row counts at each of these lengths, or without lengths.
pub fn sizes(max_rows: u32, lengths: &[u32]) -> Vec<MeasuredSize> {
    let lengths = if lengths.is_empty() { &[0] } else { lengths };
    let rows = row_buckets(max_rows);
    rows.iter().flat_map(|&rows| lengths.iter().map(move |&length| MeasuredSize { rows, length })).collect()
}
