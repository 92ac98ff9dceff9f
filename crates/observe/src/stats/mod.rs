//! Statistics of one loaded model version, for ModelStatistics and the metrics endpoint.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

use super::{
    end::{FailureCounts, FailureReason},
    histogram::Histogram,
    latencies::{LatencyReading, VersionLatencies},
    snapshot::{BatchStats, InferenceStats, ResponseStats, StatsSnapshot, Tally},
    stages::{MetaCounters, StageReading, StageStats},
    timings::{ExecutionTimings, RequestTimings},
};

/// Number of positions of decoupled responses that are counted separately; later ones count at the last.
const MOST_STEPS: usize = 1024;

/// Number of batch sizes for which memory is reserved, so that recording them does not allocate.
const MOST_RESERVED_SIZES: u32 = 1024;

/// One counted request in [`ModelStats::admitted`], above the bits of the pending ones.
const COUNTED: u64 = 1 << 32;

/// Counters of one loaded version, which start from zero at a reload. All methods are cheap and can be called from any
/// thread.
///
/// The totals share one short lock instead of using an atomic each: a dozen plain additions under an uncontended lock
/// cost less than a dozen atomic ones, and every snapshot is consistent (queue + compute ≤ request time holds in each).
#[derive(Debug)]
pub struct ModelStats {
    /// The upper half numbers the counted requests that were admitted, and wraps; the lower half is the number of
    /// pending requests. One word, so that an admission costs one addition.
    admitted: AtomicU64,
    totals: Mutex<Totals>,
    /// Empty for a version with one stage, whose totals suffice.
    stages: Vec<StageStats>,
    meta: Mutex<MetaCounters>,
    /// Optional latency metrics.
    latencies: OnceLock<VersionLatencies>,
    /// Duration of the load; unset until it has ended.
    load_ns: OnceLock<u64>,
    card_memory: Mutex<Vec<CardMemory>>,
    /// Set for a version whose responses are cached.
    is_cached: OnceLock<()>,
    /// Set for a version that answers requests of others for comparison.
    shadow: OnceLock<[AtomicU64; ShadowResult::ALL.len()]>,
}

/// What became of a request that a version was to answer for comparison with the version that answers the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowResult {
    /// The answers are equal, within the tolerance.
    Equal,
    /// They are not.
    Different,
    /// Only the client's request succeeded.
    Failed,
    /// It was not compared: too many were or waited, its tensors are in a card's memory, the client got no answer, or
    /// the copy was rejected or ended by the server.
    Skipped,
}

impl ShadowResult {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Equal, Self::Different, Self::Failed, Self::Skipped];

    /// Returns its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Different => "different",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// What a version has reserved of a card's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardMemory {
    /// The card's number in the driver.
    pub card: u16,
    /// Its identifier, such as `GPU-...`.
    pub uuid: String,
    /// Bytes that its load reserved.
    pub bytes: u64,
}

#[derive(Clone, Debug)]
struct Totals {
    stats: StatsSnapshot,
    failures: FailureCounts,
    request_duration: Histogram,
    queue_duration: Histogram,
    tokens: Option<TokenCounts>,
}

/// Positions along the first padded axis of executed batches: for texts, their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Those of requests.
    pub own: u64,
    /// Those that filled batches up to the longest row.
    pub padding: u64,
}

/// The counters of one version's load at one instant.
#[derive(Clone, Debug)]
pub(super) struct LoadCounts {
    /// Durations of answered requests in nanoseconds.
    pub(super) durations: Histogram,
    /// Failed requests.
    pub(super) failed: u64,
    /// Failed requests, but for those that their clients ended.
    pub(super) faults: u64,
    /// Waiting time of answered requests in nanoseconds.
    pub(super) queue_ns: u64,
    /// Answered requests that ran, and the time of their executions.
    pub(super) computed: Tally,
    /// Executions of a batch, and their rows.
    pub(super) executions: u64,
    pub(super) executed_rows: u64,
}

/// All counters of one version at one instant, for the metrics endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionReading {
    /// The content of ModelStatistics.
    pub stats: StatsSnapshot,
    /// Admitted requests that are neither launched nor ended.
    pub pending: u64,
    /// Admitted requests that have not ended, pending ones included.
    pub in_flight: u64,
    /// Failed requests.
    pub failures: FailureCounts,
    /// Durations of answered requests in nanoseconds.
    pub request_duration: Histogram,
    /// Waiting times of answered requests in nanoseconds.
    pub queue_duration: Histogram,
    /// `None` for a version without padded axes.
    pub tokens: Option<TokenCounts>,
    /// By stage; empty for a version with one stage.
    pub stages: Vec<StageReading>,
    /// The policy's batch operations, as of the last [`ModelStats::set_meta`].
    pub meta: MetaCounters,
    /// Optional latency metrics.
    pub latencies: LatencyReading,
    /// Duration of the load in nanoseconds, if it has ended.
    pub load_ns: Option<u64>,
    /// What it has reserved on each of its cards.
    pub card_memory: Vec<CardMemory>,
    /// Whether its responses are cached.
    pub is_cached: bool,
    /// Requests answered for comparison, in the order of [`ShadowResult::ALL`]; `None` for other versions.
    pub shadow: Option<[u64; ShadowResult::ALL.len()]>,
}

/// One loaded version, as metrics and trends see it.
#[derive(Clone, Debug)]
pub struct LoadedVersion {
    /// Name of the model.
    pub name: String,
    /// Version number.
    pub version: i64,
    /// Its counters.
    pub stats: Arc<ModelStats>,
}

impl Default for ModelStats {
    /// Counters for batches of one row; larger ones are counted too.
    fn default() -> Self {
        Self::new(1)
    }
}

impl ModelStats {
    /// Creates counters for a version with one stage and batches of up to `max_batch_rows` rows.
    pub fn new(max_batch_rows: u32) -> Self {
        Self::with_stages(max_batch_rows, 1)
    }

    /// Creates counters for a version with `stages` stages and batches of up to `max_batch_rows` rows.
    pub fn with_stages(max_batch_rows: u32, stages: usize) -> Self {
        let sizes = max_batch_rows.clamp(1, MOST_RESERVED_SIZES) as usize;
        let stats = StatsSnapshot { batch_stats: Vec::with_capacity(sizes), ..StatsSnapshot::default() };
        let totals = Totals {
            stats,
            failures: FailureCounts::default(),
            request_duration: Histogram::of_durations(),
            queue_duration: Histogram::of_durations(),
            tokens: None,
        };
        let counted_apart = if stages > 1 { stages } else { 0 };
        Self {
            admitted: AtomicU64::new(0),
            totals: Mutex::new(totals),
            stages: (0..counted_apart).map(|_| StageStats::new(max_batch_rows)).collect(),
            meta: Mutex::default(),
            latencies: OnceLock::new(),
            load_ns: OnceLock::new(),
            card_memory: Mutex::default(),
            is_cached: OnceLock::new(),
            shadow: OnceLock::new(),
        }
    }

    /// Counts the positions of batches along a padded axis, too.
    #[must_use]
    pub fn with_tokens(self) -> Self {
        self.totals.lock().tokens = Some(TokenCounts::default());
        self
    }

    /// Enables latency metrics. Only the first call has an effect.
    pub fn keep_latencies(&self, latencies: VersionLatencies) {
        let _ = self.latencies.set(latencies);
    }

    /// Marks a version whose responses are cached: it has metrics of the cache.
    pub fn keep_cache_counts(&self) {
        let _ = self.is_cached.set(());
    }

    /// Marks a version that answers requests of others for comparison.
    pub fn keep_shadow_counts(&self) {
        let _ = self.shadow.set(Default::default());
    }

    /// Counts a request that the version was to answer for comparison, if it is marked.
    pub fn shadowed(&self, result: ShadowResult) {
        if let Some(counts) = self.shadow.get() {
            counts[result as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records the duration of the load. Only the first call has an effect.
    pub fn loaded_in(&self, took: Duration) {
        let _ = self.load_ns.set(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records what the version has reserved on a card.
    pub fn reserved_on_card(&self, memory: CardMemory) {
        self.card_memory.lock().push(memory);
    }

    /// Records that the version has left all cards.
    pub fn left_cards(&self) {
        self.card_memory.lock().clear();
    }

    /// Returns what the version has reserved on each of its cards.
    pub fn card_memory(&self) -> Vec<CardMemory> {
        self.card_memory.lock().clone()
    }

    /// Records an admitted request (pending until [`Self::left_queue`]). If it `counts`, its end is recorded as an
    /// answer or a failure.
    pub fn admitted(&self, counts: bool) {
        let counted = if counts { COUNTED } else { 0 };
        self.admitted.fetch_add(1 + counted, Ordering::Relaxed);
    }

    /// Records a request that counts and never waits itself, such as a pipeline's.
    pub(super) fn began(&self) {
        self.admitted.fetch_add(COUNTED, Ordering::Relaxed);
    }

    /// Takes back [`Self::began`] for a request that was refused.
    pub(super) fn refused(&self) {
        self.admitted.fetch_sub(COUNTED, Ordering::Relaxed);
    }

    /// Records that a request left the queue: launched, rejected, expired or cancelled. Must be called once per
    /// admitted request.
    pub fn left_queue(&self) {
        self.admitted.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records an answered request of `rows` rows.
    pub fn success(&self, rows: u32, timings: &RequestTimings) {
        self.answered(rows, timings, None);
    }

    /// Records an answered request of `rows` rows. If the cache was searched and did not have its response,
    /// `missed_ns` is how long: it counts as a miss at the same instant. As in Triton, its total time grows by that.
    pub fn answered(&self, rows: u32, timings: &RequestTimings, missed_ns: Option<u64>) {
        let RequestTimings { total_ns, queue_ns, compute } = *timings;
        debug_assert!(queue_ns + compute.total_ns() <= total_ns, "parts exceed the whole: {timings:?}");
        if let Some(latencies) = self.latencies.get() {
            latencies.success(Instant::now(), timings);
        }

        let mut totals = self.totals.lock();
        totals.request_duration.record(total_ns);
        totals.queue_duration.record(queue_ns);
        totals.stats.inference_count += u64::from(rows);
        let requests = &mut totals.stats.inference_stats;
        requests.success.add(total_ns);
        requests.queue.add(queue_ns);
        requests.compute_input.add(compute.compute_input_ns);
        requests.compute_infer.add(compute.compute_infer_ns);
        requests.compute_output.add(compute.compute_output_ns);
        if let Some(missed_ns) = missed_ns {
            requests.success.ns += missed_ns;
            requests.cache_miss.add(missed_ns);
        }
    }

    /// Records a request that the cache answered after `total_ns`, of which finding the response took `looked_up_ns`.
    /// As in Triton, its rows do not count: they were not computed.
    pub fn cache_hit(&self, total_ns: u64, looked_up_ns: u64) {
        if let Some(latencies) = self.latencies.get() {
            latencies.cache_hit(Instant::now(), total_ns, looked_up_ns);
        }
        let mut totals = self.totals.lock();
        totals.request_duration.record(total_ns);
        totals.queue_duration.record(0);
        let requests = &mut totals.stats.inference_stats;
        requests.success.add(total_ns);
        requests.queue.add(0);
        requests.cache_hit.add(looked_up_ns);
    }

    /// Records that the response to a request that counted as a miss was kept, which took `kept_ns` after `missed_ns`
    /// of looking for it.
    pub fn cache_kept(&self, missed_ns: u64, kept_ns: u64) {
        if let Some(latencies) = self.latencies.get() {
            latencies.cache_miss(Instant::now(), missed_ns + kept_ns);
        }
        let mut totals = self.totals.lock();
        let requests = &mut totals.stats.inference_stats;
        requests.success.ns += kept_ns;
        requests.cache_miss.ns += kept_ns;
    }

    /// Records a request that failed after `total_ns`.
    pub fn failure(&self, reason: FailureReason, total_ns: u64) {
        let mut totals = self.totals.lock();
        if reason != FailureReason::Invalid {
            totals.stats.inference_stats.fail.add(total_ns);
        }
        totals.failures.add(reason);
    }

    /// Records the execution of a batch of `rows` rows without padding.
    pub fn execution(&self, rows: u32, timings: &ExecutionTimings) {
        let now_ms = unix_ms();
        let batch_size = u64::from(rows);

        let mut totals = self.totals.lock();
        let stats = &mut totals.stats;
        stats.execution_count += 1;
        stats.last_inference = stats.last_inference.max(now_ms);
        let position = match stats.batch_stats.binary_search_by_key(&batch_size, |entry| entry.batch_size) {
            Ok(position) => position,
            Err(position) => {
                stats.batch_stats.insert(position, BatchStats { batch_size, ..BatchStats::default() });
                position
            }
        };
        let batch = &mut stats.batch_stats[position];
        batch.compute_input.add(timings.compute_input_ns);
        batch.compute_infer.add(timings.compute_infer_ns);
        batch.compute_output.add(timings.compute_output_ns);
    }

    /// Records the positions of an executed batch, if they are counted.
    pub fn tokens(&self, batch: TokenCounts) {
        if let Some(tokens) = &mut self.totals.lock().tokens {
            tokens.own += batch.own;
            tokens.padding += batch.padding;
        }
    }

    /// Returns the counters of a stage; `None` for a version with one stage, whose totals suffice.
    pub fn stage(&self, stage: u16) -> Option<&StageStats> {
        self.stages.get(usize::from(stage))
    }

    /// Sets the batching core's counters since the version was loaded. Called before the counters are read.
    pub fn set_meta(&self, meta: MetaCounters) {
        *self.meta.lock() = meta;
    }

    /// Records the `step`-th response of a decoupled request, counted from 0. The flag that ends a stream is none, even
    /// where it is sent by itself, as with Triton's backend `repeat`.
    pub fn response(&self, step: u32, timings: &ExecutionTimings) {
        let position = (step as usize).min(MOST_STEPS - 1);

        let mut totals = self.totals.lock();
        let steps = &mut totals.stats.response_stats;
        if steps.len() <= position {
            steps.resize(position + 1, ResponseStats::default());
        }
        let response = &mut steps[position];
        response.compute_infer.add(timings.compute_infer_ns);
        response.compute_output.add(timings.compute_output_ns);
        response.success.add(timings.compute_infer_ns + timings.compute_output_ns);
    }

    /// Records the first response of a request, `ns` after its admission.
    pub fn first_response(&self, ns: u64) {
        if let Some(latencies) = self.latencies.get() {
            latencies.first_response(ns);
        }
    }

    /// Returns the number of admitted requests that are neither launched nor ended.
    pub fn pending(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed) % COUNTED
    }

    /// Returns the counters of the load as of one instant.
    pub(super) fn load_counts(&self) -> LoadCounts {
        let totals = self.totals.lock();
        let requests = &totals.stats.inference_stats;
        let compute_ns = requests.compute_input.ns + requests.compute_infer.ns + requests.compute_output.ns;
        let batches = &totals.stats.batch_stats;
        LoadCounts {
            durations: totals.request_duration.clone(),
            failed: requests.fail.count,
            faults: requests.fail.count.saturating_sub(totals.failures.canceled),
            queue_ns: requests.queue.ns,
            computed: Tally { count: requests.compute_infer.count, ns: compute_ns },
            executions: totals.stats.execution_count,
            executed_rows: batches.iter().map(|batch| batch.batch_size * batch.compute_infer.count).sum(),
        }
    }

    /// Returns the content of ModelStatistics as of one instant.
    pub fn snapshot(&self) -> StatsSnapshot {
        self.totals.lock().stats.clone()
    }

    /// Returns all counters as of one instant, except `pending` and `in_flight`, which are read afterwards.
    pub fn reading(&self) -> VersionReading {
        let Totals { stats, failures, request_duration, queue_duration, tokens } = self.totals.lock().clone();
        let admitted = self.admitted.load(Ordering::Relaxed);
        let InferenceStats { success, fail, cache_hit, .. } = stats.inference_stats;
        // What the cache answered was not admitted. The difference is right although both numbers wrap.
        let ended = (success.count + fail.count + failures.invalid).saturating_sub(cache_hit.count) as u32;
        let in_flight = ((admitted >> 32) as u32).wrapping_sub(ended).cast_signed();
        VersionReading {
            stats,
            pending: admitted % COUNTED,
            in_flight: u64::try_from(in_flight).unwrap_or(0),
            failures,
            request_duration,
            queue_duration,
            tokens,
            stages: self.stages.iter().map(StageStats::reading).collect(),
            meta: *self.meta.lock(),
            load_ns: self.load_ns.get().copied(),
            card_memory: self.card_memory(),
            is_cached: self.is_cached.get().is_some(),
            shadow: self.shadow.get().map(|counts| counts.each_ref().map(|count| count.load(Ordering::Relaxed))),
            latencies: self.latencies.get().map(|latencies| latencies.reading(Instant::now())).unwrap_or_default(),
        }
    }
}

fn unix_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
