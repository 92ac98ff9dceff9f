//! Optional latency metrics (`--metrics-config`): summaries over the last minute, and a histogram of the time to the
//! first response of decoupled requests.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{
    histogram::Histogram,
    timings::{ExecutionTimings, RequestTimings},
};

/// Age limit of the values in a quantile. Like Triton's summaries, values older than a minute are dropped, a fifth of a
/// minute at a time.
const AGE: Duration = Duration::from_secs(60);
const AGE_BUCKETS: usize = 5;

/// Maximum latency that is recorded exactly, in microseconds: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// Decimal digits that are kept of a latency: quantiles are within 1 % of an observed value.
const DIGITS: u8 = 2;

/// Places among the summaries.
const REQUEST: usize = 0;
const QUEUE: usize = 1;
const CACHE_HIT: usize = 5;
const CACHE_MISS: usize = 6;

/// Name of the histogram of first responses, under which models configure their own bounds.
pub const FIRST_RESPONSE_HISTOGRAM: &str = "nv_inference_first_response_histogram_ms";

/// Default bounds of the time to the first response, in milliseconds.
const FIRST_RESPONSE_BOUNDS_MS: [f64; 4] = [100.0, 500.0, 2_000.0, 5_000.0];

/// Selection of latency metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyMetrics {
    /// Whether to export the counters `nv_inference_…_duration_us` (`counter_latencies`).
    pub counters: bool,
    /// Whether to export the summaries `nv_inference_…_summary_us` (`summary_latencies`).
    pub summaries: bool,
    /// Quantiles of the summaries, from 0 to 1 (`summary_quantiles`).
    pub quantiles: Vec<f64>,
    /// Whether to export the histogram `nv_inference_first_response_histogram_ms`
    /// (`histogram_latencies`).
    pub histograms: bool,
}

impl Default for LatencyMetrics {
    /// Triton's defaults.
    fn default() -> Self {
        Self { counters: true, summaries: false, quantiles: vec![0.5, 0.9, 0.95, 0.99, 0.999], histograms: false }
    }
}

/// Latencies of one version for the metrics.
#[derive(Debug)]
pub struct VersionLatencies {
    counters: bool,
    quantiles: Vec<f64>,
    /// In the order of [`RequestTimings`], then those of hits and of misses of the cache; `None` unless exported.
    summaries: Option<Mutex<[Summary; 7]>>,
    /// In milliseconds; `None` unless exported.
    first_response: Option<Mutex<Histogram<f64>>>,
}

/// The reading of a summary at one instant, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryReading {
    /// Number of latencies since the version was loaded.
    pub count: u64,
    /// Sum of the latencies.
    pub sum_us: f64,
    /// Quantiles of the last minute with their latencies; NaN if there were none.
    pub quantiles: Vec<(f64, f64)>,
}

/// The reading of [`VersionLatencies`] at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyReading {
    /// Whether the counters of durations are exported.
    pub counters: bool,
    /// In the order of [`RequestTimings`], then those of hits and of misses of the cache; empty unless exported.
    pub summaries: Vec<SummaryReading>,
    /// In milliseconds; `None` unless exported.
    pub first_response: Option<Histogram<f64>>,
}

impl Default for LatencyReading {
    fn default() -> Self {
        Self { counters: true, summaries: Vec::new(), first_response: None }
    }
}

impl VersionLatencies {
    /// Creates empty latencies. `bounds_ms` are the bounds for first responses in the version's configuration, if any.
    pub fn new(shown: &LatencyMetrics, bounds_ms: Option<&[f64]>) -> Self {
        Self {
            counters: shown.counters,
            quantiles: shown.quantiles.clone(),
            summaries: shown.summaries.then(|| Mutex::new(std::array::from_fn(|_| Summary::default()))),
            first_response: shown
                .histograms
                .then(|| Mutex::new(Histogram::over_configured(bounds_ms.unwrap_or(&FIRST_RESPONSE_BOUNDS_MS)))),
        }
    }

    /// Records an answered request.
    pub(super) fn success(&self, now: Instant, timings: &RequestTimings) {
        let RequestTimings { total_ns, queue_ns, compute } = *timings;
        let ExecutionTimings { compute_input_ns, compute_infer_ns, compute_output_ns } = compute;
        let observed = [total_ns, queue_ns, compute_input_ns, compute_infer_ns, compute_output_ns];
        self.observe(now, observed.into_iter().enumerate());
    }

    /// Records a request that the cache answered.
    pub(super) fn cache_hit(&self, now: Instant, total_ns: u64, looked_up_ns: u64) {
        self.observe(now, [(REQUEST, total_ns), (QUEUE, 0), (CACHE_HIT, looked_up_ns)]);
    }

    /// Records that a request was not in the cache.
    pub(super) fn cache_miss(&self, now: Instant, ns: u64) {
        self.observe(now, [(CACHE_MISS, ns)]);
    }

    fn observe(&self, now: Instant, observed: impl IntoIterator<Item = (usize, u64)>) {
        let Some(summaries) = &self.summaries else { return };
        let mut summaries = summaries.lock();
        for (place, ns) in observed {
            summaries[place].observe(now, ns / 1_000);
        }
    }

    /// Records the first response to a request, sent after `ns`.
    pub(super) fn first_response(&self, ns: u64) {
        if let Some(histogram) = &self.first_response {
            histogram.lock().record(ns as f64 / 1e6);
        }
    }

    /// Returns the reading at `now`.
    pub(super) fn reading(&self, now: Instant) -> LatencyReading {
        let summaries = self.summaries.as_ref().map(|summaries| {
            summaries.lock().iter_mut().map(|summary| summary.reading(now, &self.quantiles)).collect()
        });
        LatencyReading {
            counters: self.counters,
            summaries: summaries.unwrap_or_default(),
            first_response: self.first_response.as_ref().map(|histogram| histogram.lock().clone()),
        }
    }
}

/// Latencies in microseconds: all are counted, and those of the last minute are kept for quantiles. Takes about 70 KB.
#[derive(Debug)]
struct Summary {
    count: u64,
    sum_us: u64,
    /// A ring of histograms, the newest at `head`. They keep 1 % of precision at any latency, as quantiles need.
    ages: [Option<hdrhistogram::Histogram<u32>>; AGE_BUCKETS],
    head: usize,
    /// When the next histogram of the ring is due; `None` before the first latency.
    turns_at: Option<Instant>,
}

impl Default for Summary {
    fn default() -> Self {
        Self { count: 0, sum_us: 0, ages: std::array::from_fn(|_| None), head: 0, turns_at: None }
    }
}

impl Summary {
    fn observe(&mut self, now: Instant, us: u64) {
        self.turn(now);
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        if self.ages[self.head].is_none() {
            // The bounds are constants that the histogram accepts.
            self.ages[self.head] = hdrhistogram::Histogram::new_with_bounds(1, LONGEST_US, DIGITS).ok();
        }
        if let Some(newest) = &mut self.ages[self.head] {
            newest.saturating_record(us);
        }
    }

    /// Drops values that are too old.
    fn turn(&mut self, now: Instant) {
        let share = AGE / AGE_BUCKETS as u32;
        let mut turns_at = *self.turns_at.get_or_insert(now + share);
        for _ in 0..AGE_BUCKETS {
            if now < turns_at {
                break;
            }
            self.head = (self.head + 1) % AGE_BUCKETS;
            self.ages[self.head] = None;
            turns_at += share;
        }
        // No value for longer than the whole ring covers.
        if now >= turns_at {
            turns_at = now + share;
        }
        self.turns_at = Some(turns_at);
    }

    fn reading(&mut self, now: Instant, quantiles: &[f64]) -> SummaryReading {
        self.turn(now);
        let mut all: Option<hdrhistogram::Histogram<u32>> = None;
        for age in self.ages.iter().flatten() {
            match &mut all {
                None => all = Some(age.clone()),
                // All histograms have the same bounds.
                Some(all) => _ = all.add(age),
            }
        }
        let value = |quantile| all.as_ref().map_or(f64::NAN, |all| all.value_at_quantile(quantile) as f64);
        SummaryReading {
            count: self.count,
            sum_us: self.sum_us as f64,
            quantiles: quantiles.iter().map(|&quantile| (quantile, value(quantile))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> RequestTimings {
        RequestTimings { total_ns: us * 1_000, queue_ns: us * 500, ..RequestTimings::default() }
    }

    fn summarised(quantiles: &[f64]) -> VersionLatencies {
        let shown = LatencyMetrics { summaries: true, quantiles: quantiles.to_vec(), ..LatencyMetrics::default() };
        VersionLatencies::new(&shown, None)
    }

    #[test]
    fn quantiles_are_within_a_hundredth_of_what_was_observed() {
        let (latencies, now) = (summarised(&[0.0, 0.5, 0.99, 1.0]), Instant::now());
        for number in 1..=1_000 {
            latencies.success(now, &us(number * 100));
        }
        let read = latencies.reading(now).summaries;
        assert_eq!((read[0].count, read[0].sum_us), (1_000, 50_050_000.0));
        assert_eq!(read[1].sum_us, 25_025_000.0, "the queue's part is a summary of its own");
        for (&(quantile, found), expected) in read[0].quantiles.iter().zip([100.0, 50_000.0, 99_000.0, 100_000.0]) {
            assert!((found - expected).abs() <= expected * 0.01, "quantile {quantile} is {found}, not {expected}");
        }
    }

    #[test]
    fn quantiles_forget_after_a_minute_and_counts_do_not() {
        let (latencies, begin) = (summarised(&[0.5]), Instant::now());
        let median = |secs| latencies.reading(begin + Duration::from_secs(secs)).summaries[0].quantiles[0].1;
        assert!(median(0).is_nan(), "nothing was observed");
        latencies.success(begin, &us(100));
        assert_eq!(median(47), 100.0);
        latencies.success(begin + Duration::from_secs(50), &us(200));
        latencies.success(begin + Duration::from_secs(50), &us(200));
        assert_eq!(median(61), 200.0);
        assert!(median(500).is_nan(), "all of it is older than a minute");
        assert_eq!(latencies.reading(begin + Duration::from_secs(500)).summaries[0].count, 3);
        latencies.success(begin + Duration::from_secs(501), &us(7));
        assert_eq!(median(501), 7.0);
    }

    #[test]
    fn a_latency_longer_than_any_counts_as_the_longest() {
        let (latencies, now) = (summarised(&[1.0]), Instant::now());
        latencies.success(now, &RequestTimings { total_ns: u64::MAX, ..RequestTimings::default() });
        let (_, longest) = latencies.reading(now).summaries[0].quantiles[0];
        assert!(longest >= LONGEST_US as f64 * 0.99, "{longest}");
    }

    fn first_responses(bounds_ms: Option<&[f64]>) -> Histogram<f64> {
        let shown = LatencyMetrics { histograms: true, ..LatencyMetrics::default() };
        let latencies = VersionLatencies::new(&shown, bounds_ms);
        for ms in [0, 100, 101, 6_000] {
            latencies.first_response(ms * 1_000_000);
        }
        latencies.reading(Instant::now()).first_response.expect("it is asked for")
    }

    #[test]
    fn first_responses_are_counted_by_tritons_bounds_or_the_models_own() {
        let tritons = first_responses(None);
        let by_bound: Vec<_> = tritons.cumulative().collect();
        assert_eq!(by_bound, [(100.0, 2), (500.0, 3), (2_000.0, 3), (5_000.0, 3)]);
        assert_eq!((tritons.count(), tritons.sum()), (4, 6_201.0));
        let own = first_responses(Some(&[2.5, -1.0, 1.0, f64::NAN, 1.0]));
        assert_eq!(own.cumulative().collect::<Vec<_>>(), [(-1.0, 0), (1.0, 1), (2.5, 1)]);
    }

    #[test]
    fn nothing_but_counters_is_kept_unless_it_is_asked_for() {
        let latencies = VersionLatencies::new(&LatencyMetrics::default(), None);
        latencies.success(Instant::now(), &us(1));
        latencies.first_response(1);
        assert_eq!(latencies.reading(Instant::now()), LatencyReading::default());
    }
}
