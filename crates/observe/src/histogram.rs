//! A histogram over fixed bounds, in the form that Prometheus expects.

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

/// Maximum number of bounds of any histogram here. Fixed, so that recording never allocates.
const MOST_BOUNDS: usize = 17;

/// Number of observed values per upper bound, total number and sum. A value equal to a bound is in that bound's bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    bounds: &'static [u64],
    counts: [u64; MOST_BOUNDS],
    count: u64,
    sum: u64,
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

    fn over(bounds: &'static [u64]) -> Self {
        debug_assert!(bounds.len() <= MOST_BOUNDS, "{} bounds do not fit", bounds.len());
        Self { bounds, counts: [0; MOST_BOUNDS], count: 0, sum: 0 }
    }

    /// Records a value.
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Records a value `times` times.
    pub fn record_many(&mut self, value: u64, times: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        if bucket < self.bounds.len() {
            self.counts[bucket] += times;
        }
        self.count += times;
        self.sum += value.saturating_mul(times);
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of the values, in the recorded unit.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns each bound, ascending, with the number of values up to it. Values above the last bound are in none.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
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
    fn bounds_ascend_and_fit() {
        for bounds in [DURATION_BOUNDS_NS, ROW_BOUNDS] {
            assert!(bounds.is_sorted(), "bounds must ascend for the search");
            assert!(bounds.len() <= MOST_BOUNDS);
        }
    }
}
