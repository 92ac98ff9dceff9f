//! Distributions of latencies.

use std::fmt;

use hdrhistogram::Histogram;

const LARGEST_NS: u64 = 36 * 3600 * 1_000_000_000;
const DIGITS: u8 = 3;

/// Latencies in nanoseconds, from a nanosecond to 36 hours, each kept to three digits: memory does not grow with their
/// number. The mean is exact.
#[derive(Clone)]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: u128,
}

impl Latencies {
    /// No latencies.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LARGEST_NS, DIGITS).expect("the bounds are in order");
        Self { histogram, sum_ns: 0 }
    }

    /// Counts one latency; one above the largest counts as that.
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.sum_ns += u128::from(ns);
    }

    /// Counts all of another's.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds, so that each value has a place.
        let merged = self.histogram.add(&other.histogram);
        debug_assert!(merged.is_ok(), "histograms of the same bounds add up");
        self.sum_ns += other.sum_ns;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Their mean in nanoseconds; 0 of none.
    pub fn mean_ns(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum_ns as f64 / self.count() as f64 }
    }

    /// The least latency that at least this share (0 to 1) of all do not exceed, in nanoseconds, at most 0.1 % too
    /// high; 0 of none.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        self.histogram.value_at_quantile(quantile)
    }

    /// How many do not exceed `limit_ns`, to the histogram's three digits.
    pub fn count_within(&self, limit_ns: u64) -> u64 {
        let within = self.histogram.iter_recorded().take_while(|step| step.value_iterated_to() <= limit_ns);
        within.map(|step| step.count_at_value()).sum()
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Latencies")
            .field("count", &self.count())
            .field("mean_ns", &self.mean_ns())
            .field("p50_ns", &self.quantile_ns(0.5))
            .field("p99_ns", &self.quantile_ns(0.99))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new();
        values.into_iter().for_each(|ns| latencies.record(ns));
        latencies
    }

    fn assert_close(got: u64, expected: u64) {
        let most = expected + expected / 1000;
        assert!((expected..=most).contains(&got), "{got} is not {expected} to three digits");
    }

    #[test]
    fn quantiles_are_right_to_three_digits_and_the_mean_exactly() {
        let latencies = of((1..=100_000).map(|step| step * 1000));
        assert_eq!(latencies.count(), 100_000);
        assert_eq!(latencies.mean_ns(), 50_000_500.0);
        for (quantile, expected) in [(0.5, 50_000_000), (0.99, 99_000_000), (0.999, 99_900_000), (1.0, 100_000_000)] {
            assert_close(latencies.quantile_ns(quantile), expected);
        }
    }

    #[test]
    fn merged_latencies_are_those_of_both() {
        let mut merged = of([1000, 2000]);
        merged.merge(&of([9000]));
        assert_eq!((merged.count(), merged.mean_ns()), (3, 4000.0));
        assert_close(merged.quantile_ns(1.0), 9000);
    }

    #[test]
    fn the_share_within_a_limit_is_counted() {
        let latencies = of([10_000, 20_000, 30_000_000]);
        assert_eq!([9_000, 15_000, 25_000, 40_000_000].map(|limit| latencies.count_within(limit)), [0, 1, 2, 3]);
    }

    #[test]
    fn none_and_too_long_ones_are_no_trouble() {
        let none = Latencies::new();
        assert_eq!((none.count(), none.mean_ns(), none.quantile_ns(0.99), none.count_within(u64::MAX)), (0, 0.0, 0, 0));
        let endless = of([0, u64::MAX]);
        assert_eq!(endless.count(), 2);
        assert!(endless.quantile_ns(1.0) >= LARGEST_NS);
    }
}
