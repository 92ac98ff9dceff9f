//! Statistics of one loaded model version, as ModelStatistics and the metrics endpoint report them.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

use super::{
    histogram::Histogram,
    snapshot::{BatchStats, ResponseStats, StatsSnapshot},
};

/// Positions of decoupled responses that are told apart; later ones count at the last.
const MOST_STEPS: usize = 1024;

/// Batch sizes for which room is made ahead, so that recording them allocates nothing.
const MOST_RESERVED_SIZES: u32 = 1024;

/// Durations of one successful request in nanoseconds; queue + compute ≤ total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimings {
    /// From admission to the answer.
    pub total_ns: u64,
    /// Waiting for a lane (stage boundaries included).
    pub queue_ns: u64,
    /// Gathering inputs into the batch.
    pub compute_input_ns: u64,
    /// Running the model.
    pub compute_infer_ns: u64,
    /// Taking the outputs out of the batch.
    pub compute_output_ns: u64,
}

/// Durations of one execution of a batch in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutionTimings {
    /// Gathering inputs into the batch.
    pub compute_input_ns: u64,
    /// Running the model.
    pub compute_infer_ns: u64,
    /// Taking the outputs out of the batch.
    pub compute_output_ns: u64,
}

/// Why a request failed: the `reason` label of `nv_inference_request_failure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// Queue full or queue timeout.
    Rejected,
    /// The client gave up.
    Canceled,
    /// The client's deadline passed: CANCELED in Triton's counter, and a counter of our own.
    Expired,
    /// The engine.
    Backend,
    /// Anything else.
    Other,
}

/// Counters of one loaded version; a reload starts anew. All methods are cheap and may be called from any thread.
///
/// The totals share one short lock instead of an atomic each: a dozen plain additions under an uncontended lock cost
/// less than a dozen atomic ones, and every snapshot is consistent (queue + compute ≤ request time holds in each).
#[derive(Debug)]
pub struct ModelStats {
    pending: AtomicI64,
    totals: Mutex<Totals>,
}

#[derive(Clone, Debug)]
struct Totals {
    stats: StatsSnapshot,
    rejected: u64,
    canceled: u64,
    backend: u64,
    other: u64,
    expired: u64,
    request_duration: Histogram,
    queue_duration: Histogram,
}

/// All counters of one version at one instant, for the metrics endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionReading {
    /// What ModelStatistics answers.
    pub stats: StatsSnapshot,
    /// Requests admitted and neither launched nor ended.
    pub pending: u64,
    /// Failures with reason REJECTED.
    pub rejected: u64,
    /// Failures with reason CANCELED, expired ones included.
    pub canceled: u64,
    /// Failures with reason BACKEND.
    pub backend: u64,
    /// Failures with reason OTHER.
    pub other: u64,
    /// Requests whose client's deadline passed; part of `canceled`.
    pub expired: u64,
    /// Durations of answered requests in nanoseconds.
    pub request_duration: Histogram,
    /// Waiting times of answered requests in nanoseconds.
    pub queue_duration: Histogram,
}

impl Default for ModelStats {
    /// Counters for batches of one row; larger ones are counted as well.
    fn default() -> Self {
        Self::new(1)
    }
}

impl ModelStats {
    /// Counters at zero for a version whose batches hold up to `max_batch_rows` rows.
    pub fn new(max_batch_rows: u32) -> Self {
        let sizes = max_batch_rows.clamp(1, MOST_RESERVED_SIZES) as usize;
        let stats = StatsSnapshot { batch_stats: Vec::with_capacity(sizes), ..StatsSnapshot::default() };
        let totals = Totals {
            stats,
            rejected: 0,
            canceled: 0,
            backend: 0,
            other: 0,
            expired: 0,
            request_duration: Histogram::of_durations(),
            queue_duration: Histogram::of_durations(),
        };
        Self { pending: AtomicI64::new(0), totals: Mutex::new(totals) }
    }

    /// A request was admitted (pending until [`Self::left_queue`]).
    pub fn admitted(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// A request left the queue: launched, rejected, expired or cancelled. Called once per admitted request.
    pub fn left_queue(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// A request of `rows` rows was answered.
    pub fn success(&self, rows: u32, timings: &RequestTimings) {
        let compute_ns = timings.compute_input_ns + timings.compute_infer_ns + timings.compute_output_ns;
        debug_assert!(timings.queue_ns + compute_ns <= timings.total_ns, "parts exceed the whole: {timings:?}");

        let mut totals = self.totals.lock();
        totals.request_duration.record(timings.total_ns);
        totals.queue_duration.record(timings.queue_ns);
        totals.stats.inference_count += u64::from(rows);
        let requests = &mut totals.stats.inference_stats;
        requests.success.add(timings.total_ns);
        requests.queue.add(timings.queue_ns);
        requests.compute_input.add(timings.compute_input_ns);
        requests.compute_infer.add(timings.compute_infer_ns);
        requests.compute_output.add(timings.compute_output_ns);
    }

    /// A request failed after `total_ns`.
    pub fn failure(&self, reason: FailureReason, total_ns: u64) {
        let mut totals = self.totals.lock();
        totals.stats.inference_stats.fail.add(total_ns);
        match reason {
            FailureReason::Rejected => totals.rejected += 1,
            FailureReason::Canceled => totals.canceled += 1,
            FailureReason::Expired => {
                totals.canceled += 1;
                totals.expired += 1;
            }
            FailureReason::Backend => totals.backend += 1,
            FailureReason::Other => totals.other += 1,
        }
    }

    /// A batch of `rows` real rows ran.
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

    /// The `step`-th response of a decoupled request left, counted from 0 (`empty`: the final one without outputs).
    pub fn response(&self, step: u32, empty: bool, timings: &ExecutionTimings) {
        let position = (step as usize).min(MOST_STEPS - 1);
        let whole_ns = timings.compute_infer_ns + timings.compute_output_ns;

        let mut totals = self.totals.lock();
        let steps = &mut totals.stats.response_stats;
        if steps.len() <= position {
            steps.resize(position + 1, ResponseStats::default());
        }
        let response = &mut steps[position];
        if empty {
            response.empty_response.add(whole_ns);
        } else {
            response.compute_infer.add(timings.compute_infer_ns);
            response.compute_output.add(timings.compute_output_ns);
            response.success.add(whole_ns);
        }
    }

    /// What ModelStatistics answers, as of one instant.
    pub fn snapshot(&self) -> StatsSnapshot {
        self.totals.lock().stats.clone()
    }

    /// All counters, as of one instant (but for `pending`, which is read beside them).
    pub fn reading(&self) -> VersionReading {
        let Totals { stats, rejected, canceled, backend, other, expired, request_duration, queue_duration } =
            self.totals.lock().clone();
        let pending = u64::try_from(self.pending.load(Ordering::Relaxed)).unwrap_or(0);
        VersionReading { stats, pending, rejected, canceled, backend, other, expired, request_duration, queue_duration }
    }
}

fn unix_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{super::snapshot::Tally, *};

    const REQUEST: RequestTimings = RequestTimings {
        total_ns: 100,
        queue_ns: 20,
        compute_input_ns: 10,
        compute_infer_ns: 50,
        compute_output_ns: 5,
    };
    const EXECUTION: ExecutionTimings =
        ExecutionTimings { compute_input_ns: 10, compute_infer_ns: 50, compute_output_ns: 5 };

    #[test]
    fn requests_count_once_rows_count_all_and_executions_by_size() {
        let stats = ModelStats::new(4);
        for rows in [1, 1, 1, 4] {
            stats.execution(rows, &EXECUTION);
            stats.success(rows, &REQUEST);
        }

        let read = stats.snapshot();
        assert_eq!(read.inference_count, 7, "rows of three requests of 1 and one of 4");
        assert_eq!(read.execution_count, 4);
        assert_eq!(read.inference_stats.success, Tally { count: 4, ns: 400 });
        assert_eq!(read.inference_stats.queue, Tally { count: 4, ns: 80 });
        assert_eq!(read.inference_stats.compute_infer, Tally { count: 4, ns: 200 });
        assert_eq!(read.inference_stats.fail, Tally::default());
        assert_eq!(read.inference_stats.cache_hit, Tally::default());
        let sizes: Vec<_> = read.batch_stats.iter().map(|batch| (batch.batch_size, batch.compute_infer)).collect();
        assert_eq!(sizes, [(1, Tally { count: 3, ns: 150 }), (4, Tally { count: 1, ns: 50 })]);
    }

    #[test]
    fn one_execution_of_several_requests_counts_once() {
        let stats = ModelStats::new(8);
        stats.execution(3, &EXECUTION);
        for _ in 0..3 {
            stats.success(1, &REQUEST);
        }

        let read = stats.snapshot();
        assert_eq!((read.inference_count, read.execution_count), (3, 1));
        assert_eq!(read.inference_stats.compute_infer.count, 3, "compute counts per request");
        assert_eq!(read.batch_stats[0].compute_infer.count, 1, "batch statistics count per execution");
    }

    #[test]
    fn sizes_that_were_not_announced_are_counted_too_and_stay_sorted() {
        let stats = ModelStats::default();
        for rows in [9, 2, 9, 5] {
            stats.execution(rows, &EXECUTION);
        }
        let sizes: Vec<_> =
            stats.snapshot().batch_stats.iter().map(|batch| (batch.batch_size, batch.compute_input.count)).collect();
        assert_eq!(sizes, [(2, 1), (5, 1), (9, 2)]);
    }

    #[test]
    fn an_expired_request_is_cancelled_and_expired() {
        let stats = ModelStats::default();
        stats.failure(FailureReason::Expired, 7);
        stats.failure(FailureReason::Canceled, 1);
        stats.failure(FailureReason::Rejected, 1);
        stats.failure(FailureReason::Backend, 1);
        stats.failure(FailureReason::Other, 1);

        let read = stats.reading();
        assert_eq!(read.stats.inference_stats.fail, Tally { count: 5, ns: 11 });
        assert_eq!((read.rejected, read.canceled, read.backend, read.other), (1, 2, 1, 1));
        assert_eq!(read.expired, 1);
        assert_eq!(read.stats.inference_stats.success.count, 0, "a failed request is not answered");
        assert_eq!(read.request_duration.count(), 0, "histograms hold answered requests");
    }

    #[test]
    fn pending_is_what_was_admitted_and_has_not_left() {
        let stats = ModelStats::default();
        stats.admitted();
        stats.admitted();
        stats.left_queue();
        assert_eq!(stats.reading().pending, 1);
    }

    #[test]
    fn last_inference_is_the_wall_clock_of_the_last_execution() {
        let stats = ModelStats::default();
        assert_eq!(stats.snapshot().last_inference, 0, "nothing ran yet");
        let before = unix_ms();
        stats.execution(1, &EXECUTION);
        let last = stats.snapshot().last_inference;
        assert!((before..=unix_ms()).contains(&last), "{last} is not between the clock before and after");
    }

    #[test]
    fn responses_count_by_position_and_deep_ones_at_the_last() {
        let stats = ModelStats::default();
        stats.response(0, false, &EXECUTION);
        stats.response(1, true, &EXECUTION);
        stats.response(5_000_000, false, &EXECUTION);

        let steps = stats.snapshot().response_stats;
        assert_eq!(steps[0].success, Tally { count: 1, ns: 55 });
        assert_eq!(steps[0].empty_response, Tally::default());
        assert_eq!(steps[1].empty_response.count, 1);
        assert_eq!(steps[1].compute_infer.count, 0, "an empty response computed nothing");
        assert_eq!(steps.len(), MOST_STEPS, "the number of positions is bounded");
        assert_eq!(steps[MOST_STEPS - 1].success.count, 1);
    }

    #[test]
    fn every_snapshot_adds_up_while_threads_record() {
        const THREADS: u32 = 4;
        const REQUESTS: u32 = 2_000;
        let stats = ModelStats::new(4);
        thread::scope(|scope| {
            for worker in 1..=THREADS {
                let stats = &stats;
                scope.spawn(move || {
                    for _ in 0..REQUESTS {
                        stats.admitted();
                        stats.left_queue();
                        stats.execution(worker, &EXECUTION);
                        stats.success(worker, &REQUEST);
                    }
                });
            }
            for _ in 0..500 {
                let read = stats.snapshot();
                let requests = read.inference_stats;
                let parts = requests.queue.ns
                    + requests.compute_input.ns
                    + requests.compute_infer.ns
                    + requests.compute_output.ns;
                assert!(parts <= requests.success.ns, "queue and compute exceed request time: {requests:?}");
                assert_eq!(requests.success.count, requests.queue.count);
                let executions: u64 = read.batch_stats.iter().map(|batch| batch.compute_infer.count).sum();
                assert_eq!(executions, read.execution_count, "batch statistics and execution count disagree");
            }
        });

        let read = stats.reading();
        let requests = u64::from(THREADS * REQUESTS);
        assert_eq!(read.stats.inference_stats.success.count, requests);
        assert_eq!(read.stats.execution_count, requests);
        assert_eq!(read.stats.inference_count, u64::from((1..=THREADS).sum::<u32>() * REQUESTS));
        assert_eq!(read.pending, 0);
    }

    #[test]
    fn a_snapshot_serialises_as_tritons_http_endpoint_writes_it() {
        let stats = ModelStats::default();
        stats.response(0, false, &EXECUTION);
        stats.execution(2, &EXECUTION);
        let json = serde_json::to_value(stats.snapshot()).expect("plain data serialises");
        assert_eq!(json["response_stats"]["0"]["success"], serde_json::json!({ "count": 1, "ns": 55 }));
        assert_eq!(json["batch_stats"][0]["batch_size"], 2);
        assert_eq!(json["inference_stats"]["cache_miss"], serde_json::json!({ "count": 0, "ns": 0 }));
    }
}
