//! A histogram over fixed bounds, in the form that Prometheus expects.
//!
//! Quantiles of counts per bound are estimates; the summaries of `latencies` keep HDR histograms for exact ones.

use std::{borrow::Cow, ops::AddAssign};

/// Upper bounds of durations in nanoseconds, 50 µs to 10 s.
const DURATION_BOUNDS_NS: &[u64] = &[
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Upper bounds of batch sizes in rows.
const ROW_BOUNDS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Maximum number of bounds that a model may configure; further ones are ignored.
const MOST_BOUNDS: usize = 1_000;

/// Number of observed values per upper bound, total number and sum. A value equal to a bound is in that bound's bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram<V: Copy + 'static = u64> {
    /// Ascending.
    bounds: Cow<'static, [V]>,
    counts: Box<[u64]>,
    count: u64,
    sum: V,
}

impl Histogram {
    /// Creates an empty histogram of durations in nanoseconds.
    pub fn of_durations() -> Self {
        Self::over(DURATION_BOUNDS_NS)
    }

    /// Creates an empty histogram of batch sizes in rows.
    pub fn of_rows() -> Self {
        Self::over(ROW_BOUNDS)
    }

    /// Records a value `times` times.
    pub fn record_many(&mut self, value: u64, times: u64) {
        self.add(value, times);
        self.sum += value.saturating_mul(times);
    }

    /// Returns the values recorded since `earlier`, a copy of this histogram at an earlier time.
    #[must_use]
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.saturating_sub(*then));
        Self {
            bounds: self.bounds.clone(),
            counts: counts.collect(),
            count: self.count.saturating_sub(earlier.count),
            sum: self.sum.saturating_sub(earlier.sum),
        }
    }

    /// Estimates the value that a share of the values, from 0 to 1, does not exceed: linearly within a bucket, as
    /// Prometheus' `histogram_quantile`. Returns the last bound if the value is above it, and `None` without values.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share * self.count as f64;
        let (mut low, mut below) = (0, 0);
        for (bound, up_to) in self.cumulative() {
            if up_to > below && up_to as f64 >= rank {
                let within = (rank - below as f64) / (up_to - below) as f64;
                return Some(low as f64 + (bound - low) as f64 * within);
            }
            (low, below) = (bound, up_to);
        }
        (self.count > 0).then_some(low as f64)
    }
}

impl Histogram<f64> {
    /// Creates an empty histogram over configured bounds, in any order. Infinite bounds, repeated ones and those beyond
    /// [`MOST_BOUNDS`] are left out.
    pub(super) fn over_configured(bounds: &[f64]) -> Self {
        let mut bounds: Vec<f64> = bounds.iter().copied().filter(|bound| bound.is_finite()).collect();
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        bounds.truncate(MOST_BOUNDS);
        Self::over(bounds)
    }
}

impl<V: Copy + Default + PartialOrd + AddAssign> Histogram<V> {
    fn over(bounds: impl Into<Cow<'static, [V]>>) -> Self {
        let bounds = bounds.into();
        // Reserved here, so that recording never allocates.
        let counts = vec![0; bounds.len()].into();
        Self { bounds, counts, count: 0, sum: V::default() }
    }

    /// Records a value.
    pub fn record(&mut self, value: V) {
        self.add(value, 1);
        self.sum += value;
    }

    fn add(&mut self, value: V, times: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += times;
        }
        self.count += times;
    }
}

impl<V: Copy> Histogram<V> {
    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of the values, in the recorded unit.
    pub fn sum(&self) -> V {
        self.sum
    }

    /// Returns each bound, ascending, with the number of values up to it. Values above the last bound are in none.
    pub fn cumulative(&self) -> impl Iterator<Item = (V, u64)> + '_ {
        self.bounds.iter().zip(&self.counts).scan(0, |below, (&bound, &count)| {
            *below += count;
            Some((bound, *below))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_at_its_bound_and_at_all_above() {
        let mut histogram = Histogram::of_rows();
        histogram.record(1);
        histogram.record_many(3, 2);
        histogram.record(4);
        histogram.record(5000);

        let cumulative: Vec<_> = histogram.cumulative().take(4).collect();
        assert_eq!(cumulative, [(1, 1), (2, 1), (4, 4), (8, 4)], "3 and 4 belong to the bucket up to 4");
        assert_eq!(histogram.cumulative().last(), Some((1024, 4)), "5000 is above every bound");
        assert_eq!(histogram.count(), 5, "values above the last bound count in the total");
        assert_eq!(histogram.sum(), 1 + 6 + 4 + 5000);
    }

    #[test]
    fn a_quantile_lies_between_the_bounds_of_its_bucket() {
        let mut histogram = Histogram::of_rows();
        assert_eq!(histogram.quantile(0.5), None, "there are no values");
        histogram.record_many(3, 8);
        histogram.record_many(7, 2);
        assert_eq!(histogram.quantile(0.5), Some(2.0 + 2.0 * 5.0 / 8.0), "the fifth of the eight up to 4");
        assert_eq!(histogram.quantile(0.9), Some(4.0 + 4.0 / 2.0), "the first of the two up to 8");
        let earlier = histogram.clone();
        histogram.record_many(5000, 3);
        assert_eq!(histogram.quantile(1.0), Some(1024.0), "above the last bound");
        let added = histogram.since(&earlier);
        assert_eq!((added.count(), added.sum(), added.quantile(0.1)), (3, 15_000, Some(1024.0)));
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [DURATION_BOUNDS_NS, ROW_BOUNDS] {
            assert!(bounds.is_sorted(), "bounds must ascend for the search");
        }
    }
}
