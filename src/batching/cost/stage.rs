//! One stage: how long its runs take, and in which sizes it is executed.

use smallvec::SmallVec;

use super::{CostPoint, curve::Curve};

/// The times of one stage by the size that is executed.
///
/// A device that captures graphs has them for a few sizes (buckets). Rows run in the cheapest bucket that holds them,
/// so the time is a staircase over rows. A larger bucket may take less time than a smaller one; then the smaller one is
/// not used, and more rows never take less time.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    curve: Curve,
    /// Ascending; empty: any size is executed as it is.
    buckets: SmallVec<[u32; 8]>,
}

impl Stage {
    /// A stage of batches of up to `max_rows`, with what was profiled of it.
    pub(super) fn new(max_rows: u32, buckets: &[u32], points: &[CostPoint]) -> Self {
        let mut buckets: SmallVec<[u32; 8]> = buckets.iter().copied().filter(|&bucket| bucket > 0).collect();
        buckets.sort_unstable();
        buckets.dedup();
        let curve = if buckets.is_empty() { Curve::new(max_rows) } else { Curve::of_buckets() };
        let usable = points.iter().filter(|point| point.rows > 0);
        let points = usable.map(|point| (point.rows, point.length.max(1), point.took_ns as f64)).collect();
        Self { curve: curve.profiled(points), buckets }
    }

    /// Whether it is executed in a few sizes only.
    pub(super) fn has_buckets(&self) -> bool {
        !self.buckets.is_empty()
    }

    pub(super) fn curve(&self) -> &Curve {
        &self.curve
    }

    /// Learns that a run of `rows`, executed in a `bucket`, took `took_ns`.
    pub(super) fn learn(&mut self, rows: u32, bucket: u32, length: u64, took_ns: f64) {
        self.curve.learn(rows, bucket, length, took_ns);
    }

    /// The size in which a batch of `rows` is executed: the cheapest bucket that holds it, and the smallest of several
    /// that take as long or have no known time. Without buckets, and where none is large enough, it is `rows`.
    pub(super) fn bucket(&self, rows: u32, length: u64) -> u32 {
        let holding = &self.buckets[self.buckets.partition_point(|&bucket| bucket < rows)..];
        match holding {
            [] => rows,
            &[only] => only,
            &[smallest, ..] => {
                let times = holding.iter().filter_map(|&bucket| Some((bucket, self.curve.predict(bucket, length)?)));
                times.min_by(|(_, one), (_, two)| one.total_cmp(two)).map_or(smallest, |(bucket, _)| bucket)
            }
        }
    }

    /// Predicted nanoseconds, or none when nothing is known. More rows than the largest bucket holds take in proportion
    /// to it.
    pub(super) fn predict(&self, rows: u32, length: u64) -> Option<f64> {
        let full = self.buckets.last().copied().filter(|&largest| rows > largest);
        let Some(largest) = full else { return self.curve.predict(self.bucket(rows, length), length) };
        self.curve.predict(largest, length).map(|ns| ns * f64::from(rows) / f64::from(largest))
    }

    /// Sizes between which times are linear or constant: those of which times are kept, or all buckets.
    pub(super) fn sizes(&self) -> SmallVec<[u32; 16]> {
        if !self.buckets.is_empty() {
            return self.buckets.iter().copied().collect();
        }
        self.curve.row_knots().flat_map(|at| [at.floor() as u32, at.ceil() as u32]).collect()
    }
}
