//! Sizes of the batches that are measured.

/// Lengths of padded axes that are measured: between two of them latencies are close to a line.
pub const LENGTHS: [u32; 6] = [8, 16, 32, 64, 128, 256];

/// A batch to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows.
    pub rows: u32,
    /// Length of every padded axis; 0 for a model that has none.
    pub length: u32,
}

impl Size {
    /// Whether the other is as large or larger in every respect.
    pub(super) fn is_within(self, other: Self) -> bool {
        self.rows <= other.rows && self.length <= other.length
    }

    /// Elements of the batch along the axes that vary.
    pub(super) fn work(self) -> f64 {
        f64::from(self.rows) * f64::from(self.length.max(1))
    }
}

/// Rows of the batches that are measured, ascending: the powers of two up to the largest batch, and that. One row for a
/// model without a batch axis, whose largest batch is 0.
pub fn row_buckets(max_rows: u32) -> Vec<u32> {
    let largest = max_rows.max(1);
    let powers = (0..u32::BITS).map(|power| 1_u32 << power).take_while(|&rows| rows < largest);
    powers.chain([largest]).collect()
}

/// The sizes that are measured of a model, smaller ones first: all these rows at each of these lengths, or at none.
pub fn sizes(max_rows: u32, lengths: &[u32]) -> Vec<Size> {
    let lengths = if lengths.is_empty() { &[0] } else { lengths };
    let rows = row_buckets(max_rows);
    rows.iter().flat_map(|&rows| lengths.iter().map(move |&length| Size { rows, length })).collect()
}
