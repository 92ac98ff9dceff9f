//! The load of the last minute, second by second, of each loaded version: differences of the counters that requests
//! maintain anyway, taken once a second. Times are passed in.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Weak},
    time::Instant,
};

use super::{
    histogram::Histogram,
    snapshot::Tally,
    stats::{LoadCounts, LoadedVersion, ModelStats},
};

/// Maximum number of versions with a trend. Each takes about 5 KB, so all together 2.6 MB.
pub const MOST_TRENDS: usize = 512;

/// Samples that are kept of each version.
pub const TREND_SAMPLES: usize = 60;

/// Samples over which [`RecentLoad`] is computed.
pub const RECENT_SAMPLES: usize = 10;

/// Trends of all versions. Versions beyond [`MOST_TRENDS`] have none until others are unloaded.
#[derive(Debug, Default)]
pub struct Trends {
    by_version: BTreeMap<(String, i64), Trend>,
    last_sample: Option<Instant>,
    /// Whether the last sample left versions out.
    has_left_out: bool,
}

/// The trend of one version. It outlives the version by as many samples as it has.
#[derive(Debug, Default)]
struct Trend {
    /// The counters that were read last: a version that is loaded again has new ones.
    stats: Weak<ModelStats>,
    /// Oldest first.
    samples: VecDeque<LoadSample>,
    /// Readings of `stats`, oldest first, at the ends of the last samples.
    readings: VecDeque<(Instant, LoadCounts)>,
    /// Samples since the version was unloaded.
    unloaded_for: usize,
}

/// The load of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadSample {
    /// Answered and failed requests per second.
    pub requests_per_second: f64,
    /// Median duration of answered requests in milliseconds, if there were any.
    pub p50_ms: Option<f64>,
    /// As `p50_ms`, for the 99th percentile.
    pub p99_ms: Option<f64>,
    /// Mean waiting time of answered requests in milliseconds.
    pub queue_ms: Option<f64>,
}

/// The load of the last [`RECENT_SAMPLES`] seconds, or since the version was loaded if that is less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecentLoad {
    /// The load as in one sample.
    pub load: LoadSample,
    /// Failed requests per second.
    pub failures_per_second: f64,
    /// Failed requests per second, but for those that their clients ended.
    pub faults_per_second: f64,
    /// Mean compute time of answered requests that ran, in milliseconds.
    pub compute_ms: Option<f64>,
    /// Mean rows of a batch, without padding.
    pub batch_rows: Option<f64>,
}

impl Trends {
    /// Takes a sample of the versions that are loaded at `now`.
    pub fn sample(&mut self, now: Instant, loaded: Vec<LoadedVersion>) {
        let since = self.last_sample.replace(now);
        self.by_version.values_mut().for_each(|trend| trend.unloaded_for += 1);
        let has_left_out = std::mem::take(&mut self.has_left_out);
        for LoadedVersion { name, version, stats } in loaded {
            let key = (name, version);
            if !self.by_version.contains_key(&key) && (self.has_left_out || !self.has_room()) {
                self.has_left_out = true;
                continue;
            }
            // What counted before anybody read it belongs to no second.
            let is_new = since.is_some() && !has_left_out;
            let trend = self.by_version.entry(key).or_default();
            trend.follow(&stats, since.filter(|_| is_new).unwrap_or(now), is_new);
            trend.add(now, stats.load_counts());
        }
        for trend in self.by_version.values_mut().filter(|trend| trend.unloaded_for > 0) {
            trend.readings.clear();
            trend.push(LoadSample::default());
        }
        self.by_version.retain(|_, trend| trend.unloaded_for < TREND_SAMPLES);
    }

    /// Returns whether there is room for another trend; drops that of an unloaded version if necessary.
    fn has_room(&mut self) -> bool {
        if self.by_version.len() < MOST_TRENDS {
            return true;
        }
        // A version that is loaded still has 1, or 0 if it was sampled already.
        let unloaded = self.by_version.iter().filter(|(_, trend)| trend.unloaded_for > 1);
        let oldest = unloaded.min_by_key(|(_, trend)| Reverse(trend.unloaded_for)).map(|(key, _)| key.clone());
        oldest.is_some_and(|key| self.by_version.remove(&key).is_some())
    }

    /// Returns the recent load of a version; `None` unless it is loaded and was sampled.
    pub fn recent(&self, name: &str, version: i64) -> Option<RecentLoad> {
        self.get(name, version)?.recent()
    }

    /// Returns the samples of a version, oldest first: at most [`TREND_SAMPLES`], and none if it had no requests.
    pub fn samples(&self, name: &str, version: i64) -> Vec<LoadSample> {
        let samples = self.get(name, version).map(|trend| &trend.samples);
        let busy = samples.filter(|samples| samples.iter().any(|sample| sample.requests_per_second > 0.0));
        busy.map(|samples| samples.iter().copied().collect()).unwrap_or_default()
    }

    fn get(&self, name: &str, version: i64) -> Option<&Trend> {
        self.by_version.get(&(name.to_owned(), version))
    }
}

impl Trend {
    /// Begins to read other counters if they are not those read before: from zero at `since` if they are of a version
    /// that was loaded then.
    fn follow(&mut self, stats: &Arc<ModelStats>, since: Instant, is_new: bool) {
        self.unloaded_for = 0;
        let is_same = std::ptr::eq(self.stats.as_ptr(), Arc::as_ptr(stats));
        if is_same && !self.readings.is_empty() {
            return;
        }
        self.stats = Arc::downgrade(stats);
        self.readings.clear();
        let first = if is_new && !is_same { LoadCounts::zero() } else { stats.load_counts() };
        self.readings.push_back((since, first));
    }

    fn add(&mut self, now: Instant, counts: LoadCounts) {
        if let Some((then, before)) = self.readings.back()
            && let Some(load) = RecentLoad::between(*then, before, now, &counts)
        {
            self.push(load.load);
            self.readings.push_back((now, counts));
        }
        if self.readings.len() > RECENT_SAMPLES + 1 {
            self.readings.pop_front();
        }
    }

    fn push(&mut self, sample: LoadSample) {
        if self.samples.len() == TREND_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    fn recent(&self) -> Option<RecentLoad> {
        let ((then, before), (now, counts)) = (self.readings.front()?, self.readings.back()?);
        RecentLoad::between(*then, before, *now, counts)
    }
}

impl RecentLoad {
    /// Returns the load between two readings of the same counters; `None` if no time passed.
    fn between(then: Instant, before: &LoadCounts, now: Instant, counts: &LoadCounts) -> Option<Self> {
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let change = |read: fn(&LoadCounts) -> u64| read(counts).saturating_sub(read(before));
        let mean = |sum: u64, count: u64| (count > 0).then(|| sum as f64 / count as f64);
        let milliseconds = |ns: f64| ns / 1e6;
        let durations = counts.durations.since(&before.durations);
        let failed = change(|read| read.failed);
        let load = LoadSample {
            requests_per_second: (durations.count() + failed) as f64 / seconds,
            p50_ms: durations.quantile(0.5).map(milliseconds),
            p99_ms: durations.quantile(0.99).map(milliseconds),
            queue_ms: mean(change(|read| read.queue_ns), durations.count()).map(milliseconds),
        };
        let compute_ms = mean(change(|read| read.computed.ns), change(|read| read.computed.count)).map(milliseconds);
        Some(Self {
            load,
            failures_per_second: failed as f64 / seconds,
            faults_per_second: change(|read| read.faults) as f64 / seconds,
            compute_ms,
            batch_rows: mean(change(|read| read.executed_rows), change(|read| read.executions)),
        })
    }
}

impl LoadCounts {
    fn zero() -> Self {
        Self {
            durations: Histogram::of_durations(),
            failed: 0,
            faults: 0,
            queue_ns: 0,
            computed: Tally::default(),
            executions: 0,
            executed_rows: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ExecutionTimings, FailureReason, RequestTimings};

    /// Trends that are sampled in virtual time.
    struct Clock {
        trends: Trends,
        now: Instant,
    }

    impl Clock {
        fn start() -> Self {
            Self { trends: Trends::default(), now: Instant::now() }
        }

        fn sample(&mut self, loaded: &[LoadedVersion]) {
            self.now += Duration::from_secs(1);
            self.trends.sample(self.now, loaded.to_vec());
        }

        fn rates(&self, name: &str) -> Vec<f64> {
            self.trends.samples(name, 1).iter().map(|sample| sample.requests_per_second).collect()
        }
    }

    fn loaded(name: &str) -> LoadedVersion {
        LoadedVersion { name: name.to_owned(), version: 1, stats: Arc::default() }
    }

    fn answer(version: &LoadedVersion, total_ms: u64, queue_ms: u64) {
        let compute = ExecutionTimings { compute_infer_ns: 1_000_000, ..ExecutionTimings::default() };
        let (total_ns, queue_ns) = (total_ms * 1_000_000, queue_ms * 1_000_000);
        version.stats.success(1, &RequestTimings { total_ns, queue_ns, compute });
    }

    #[test]
    fn a_second_has_the_rate_and_the_times_of_its_requests() {
        let (mut clock, model) = (Clock::start(), loaded("m"));
        clock.sample(std::slice::from_ref(&model));
        for _ in 0..3 {
            answer(&model, 4, 2);
        }
        model.stats.failure(FailureReason::Backend, 1);
        model.stats.failure(FailureReason::Canceled, 1);
        model.stats.execution(3, &ExecutionTimings::default());
        clock.sample(std::slice::from_ref(&model));
        clock.sample(std::slice::from_ref(&model));

        let samples = clock.trends.samples("m", 1);
        assert_eq!(samples.len(), 2, "the first reading begins the first second");
        assert_eq!((samples[0].requests_per_second, samples[0].queue_ms), (5.0, Some(2.0)));
        let (p50, p99) = (samples[0].p50_ms.expect("answers"), samples[0].p99_ms.expect("answers"));
        assert!((2.5..=5.0).contains(&p50) && p50 < p99 && p99 <= 5.0, "the bucket of 4 ms: {p50}, {p99}");
        assert_eq!(samples[1], LoadSample::default(), "nothing ended in it");

        let recent = clock.trends.recent("m", 1).expect("it is loaded");
        assert_eq!((recent.load.requests_per_second, recent.load.p50_ms), (2.5, Some(p50)), "over two seconds");
        assert_eq!((recent.failures_per_second, recent.faults_per_second), (1.0, 0.5));
        assert_eq!((recent.compute_ms, recent.batch_rows), (Some(1.0), Some(3.0)));
    }

    #[test]
    fn a_minute_is_kept_and_recent_load_forgets_sooner() {
        let (mut clock, model) = (Clock::start(), loaded("m"));
        clock.sample(std::slice::from_ref(&model));
        answer(&model, 1, 0);
        for second in 0..TREND_SAMPLES {
            clock.sample(std::slice::from_ref(&model));
            let expected = if second < RECENT_SAMPLES { 1.0 / (second + 1) as f64 } else { 0.0 };
            let recent = clock.trends.recent("m", 1).expect("it is loaded");
            assert_eq!(recent.load.requests_per_second, expected, "{second}");
        }
        assert_eq!((clock.rates("m").len(), clock.rates("m")[0]), (TREND_SAMPLES, 1.0));
        clock.sample(std::slice::from_ref(&model));
        assert_eq!(clock.rates("m"), [0.0; 0], "without requests there is nothing to show");
    }

    #[test]
    fn counters_of_a_version_that_is_loaded_again_begin_at_zero() {
        let (mut clock, first) = (Clock::start(), loaded("m"));
        clock.sample(std::slice::from_ref(&first));
        (0..7).for_each(|_| answer(&first, 1, 0));
        clock.sample(std::slice::from_ref(&first));
        let second = loaded("m");
        (0..2).for_each(|_| answer(&second, 1, 0));
        clock.sample(std::slice::from_ref(&second));
        assert_eq!(clock.rates("m"), [7.0, 2.0]);
        assert_eq!(clock.trends.recent("m", 1).expect("it is loaded").load.requests_per_second, 2.0);

        clock.sample(&[]);
        assert_eq!(clock.rates("m"), [7.0, 2.0, 0.0]);
        assert_eq!(clock.trends.recent("m", 1), None, "it is unloaded");
        clock.sample(std::slice::from_ref(&second));
        assert_eq!(clock.rates("m"), [7.0, 2.0, 0.0, 0.0], "it is loaded again, and counts what it did");
        for _ in 0..TREND_SAMPLES {
            clock.sample(&[]);
        }
        assert!(clock.trends.by_version.is_empty(), "what is unloaded for a minute is forgotten");
    }

    #[test]
    fn counts_from_before_the_first_sample_are_in_no_second() {
        let (mut clock, model) = (Clock::start(), loaded("m"));
        (0..1000).for_each(|_| answer(&model, 1, 0));
        clock.sample(std::slice::from_ref(&model));
        answer(&model, 1, 0);
        clock.sample(std::slice::from_ref(&model));
        assert_eq!(clock.rates("m"), [1.0]);
    }

    #[test]
    fn no_more_versions_than_the_bound_have_a_trend_and_unloaded_ones_make_room() {
        let (mut clock, mut all) = (Clock::start(), Vec::new());
        all.extend((0..MOST_TRENDS + 3).map(|number| loaded(&format!("m{number:04}"))));
        let last = all[MOST_TRENDS + 2].clone();
        for _ in 0..3 {
            clock.sample(&all);
            answer(&last, 1, 0);
        }
        assert_eq!(clock.trends.by_version.len(), MOST_TRENDS);
        assert_eq!(clock.trends.recent(&last.name, 1), None, "it came last");
        all.drain(..10);
        for _ in 0..3 {
            clock.sample(&all);
            answer(&last, 1, 0);
        }
        assert_eq!(clock.trends.by_version.len(), MOST_TRENDS);
        assert!(clock.rates(&last.name).iter().all(|&rate| rate <= 1.0), "what it counted before is in no second");
        assert!(clock.trends.recent(&last.name, 1).is_some());
        assert_eq!(clock.trends.recent("m0000", 1), None);
    }
}
