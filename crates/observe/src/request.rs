//! The record of a request: what happens to it, from its admission to its end, is reported here once, and passed on to
//! the statistics, to the timeline, and to its trace if it has one.
//!
//! The executor calls this on the thread that has the event. Nothing is queued or allocated: an event costs a few
//! additions and what its sinks cost. A timeline that is off costs a branch, and a request without a trace another. The
//! events of tasks, which have several requests, go to the timeline and to [`ModelStats`] directly; so do the sending
//! of responses and their contents to the trace, which only the front end knows.

use std::{sync::Arc, time::Instant};

use super::{
    end::RequestEnd,
    pool::PoolStats,
    stats::ModelStats,
    timeline::Timeline,
    timings::{RequestTimings, StepTimings, TaskRun},
    trace::{Parts, RequestTrace},
};

/// A loaded version, as the records of its requests need it: its name for them and their sinks.
#[derive(Clone, Debug)]
pub struct ObservedVersion {
    /// The number that the timeline knows it by.
    pub model: u32,
    /// Its counters.
    pub stats: Arc<ModelStats>,
    /// The counters of its pool.
    pub pool: Arc<PoolStats>,
    /// The timeline of its pool.
    pub timeline: Arc<Timeline>,
    /// The epoch of all times.
    pub epoch: Instant,
    /// What its tasks run.
    pub parts: Parts,
}

/// The record of a request in flight. Times are nanoseconds since the executor's epoch.
#[derive(Debug)]
pub struct ObservedRequest {
    /// Its id in the timeline.
    req: u64,
    rows: u32,
    arrived_ns: u64,
    /// Time since which it waits for a lane.
    waiting_since_ns: u64,
    /// Whether it has not run yet.
    is_queued: bool,
    timings: RequestTimings,
    /// When the scheduler finished it.
    finished_ns: Option<u64>,
    trace: Option<Arc<RequestTrace>>,
    /// Where its times count too, if it is a step of another request.
    step_of: Option<StepOf>,
    /// How long the response cache was searched, which did not have its response.
    missed_ns: Option<u64>,
}

/// The request that a request is a step of.
#[derive(Clone, Debug)]
pub struct StepOf {
    /// Its times.
    pub timings: Arc<StepTimings>,
    /// Whether clients know the step's version by its name. If not, its requests do not count: only those of the
    /// version that it belongs to do.
    pub is_served: bool,
    /// How many requests it is within, at least 1.
    pub depth: usize,
}

impl StepOf {
    /// Whether a request counts by itself, which may be a step.
    pub(crate) fn counts(step_of: Option<&Self>) -> bool {
        step_of.is_none_or(|step_of| step_of.is_served)
    }
}

impl ObservedRequest {
    /// Creates the record of a request of `rows` rows that was not admitted yet. `missed_ns` is how long the response
    /// cache was searched, which did not have its response; `None` if it was not searched.
    pub fn new(rows: u32, trace: Option<Arc<RequestTrace>>, step_of: Option<StepOf>, missed_ns: Option<u64>) -> Self {
        Self {
            req: 0,
            rows,
            arrived_ns: 0,
            waiting_since_ns: 0,
            is_queued: true,
            timings: RequestTimings::default(),
            finished_ns: None,
            trace,
            step_of,
            missed_ns,
        }
    }

    /// Records that it was admitted as `req`, which is never reused.
    pub fn arrived(&mut self, version: &ObservedVersion, now_ns: u64, req: u64) {
        version.stats.admitted(StepOf::counts(self.step_of.as_ref()));
        version.timeline.arrived(now_ns, req, version.model, self.rows);
        if let Some(trace) = &self.trace {
            trace.submitted(version.epoch, version.parts.clone());
        }
        (self.req, self.arrived_ns, self.waiting_since_ns) = (req, now_ns, now_ns);
    }

    /// Records that it leaves its device before it has run, for another one.
    pub fn moved_out(&self, version: &ObservedVersion, now_ns: u64) {
        version.timeline.ended(now_ns, self.req, RequestEnd::Moved);
    }

    /// Records that it arrived at another device as `req`.
    pub fn moved_in(&mut self, version: &ObservedVersion, now_ns: u64, req: u64) {
        self.req = req;
        version.timeline.arrived(now_ns, req, version.model, self.rows);
    }

    /// Records that some of its rows were given to a lane.
    pub fn launched(&mut self, version: &ObservedVersion) {
        if std::mem::take(&mut self.is_queued) {
            version.stats.left_queue();
        }
    }

    /// Records that one of its tasks ran, and returns how long it had waited for it. If parts of a split request run in
    /// parallel, only the one that ends first is counted: the times of a request are those of a single path through the
    /// stages and never exceed its total time.
    pub fn ran(&mut self, run: &TaskRun) -> u64 {
        if let Some(trace) = &self.trace {
            trace.ran(run);
        }
        let Some(waited_ns) = run.started_ns.checked_sub(self.waiting_since_ns) else { return 0 };
        self.timings.queue_ns += waited_ns;
        self.timings.compute += run.timings;
        self.waiting_since_ns = run.ended_ns;
        waited_ns
    }

    /// Records that it goes on after a delay that its program asked for: the delay is no waiting for a lane.
    pub fn resumed(&mut self, now_ns: u64) {
        self.waiting_since_ns = now_ns;
    }

    /// Records the `step`-th response of a decoupled request, counted from 0.
    pub fn responded(&self, version: &ObservedVersion, now_ns: u64, step: u32) {
        if step == 0 {
            self.answered(version, now_ns);
        }
        if StepOf::counts(self.step_of.as_ref()) {
            version.stats.response(step, &self.timings.compute);
        }
    }

    /// Records the first response of a request, or its only one.
    pub fn answered(&self, version: &ObservedVersion, now_ns: u64) {
        if StepOf::counts(self.step_of.as_ref()) {
            version.stats.first_response(now_ns.saturating_sub(self.arrived_ns));
        }
    }

    /// Records that the scheduler has finished it. Its client is answered later.
    pub fn finished(&mut self, now_ns: u64) {
        self.finished_ns = Some(now_ns);
    }

    /// Records how it ended, as its client is about to be answered. Releases its trace, so that the response's sender
    /// is the one who ends the trace.
    pub fn ended(self, version: &ObservedVersion, now_ns: u64, end: RequestEnd) {
        let Self { req, rows, arrived_ns, is_queued, mut timings, finished_ns, trace, step_of, missed_ns, .. } = self;
        version.timeline.ended(finished_ns.unwrap_or(now_ns), req, end);
        if let Some(trace) = trace {
            trace.ended(arrived_ns, now_ns, end);
        }
        if is_queued {
            version.stats.left_queue();
        }
        timings.total_ns = now_ns.saturating_sub(arrived_ns);
        if end.is_rejection() {
            version.pool.rejected(timings.total_ns);
        }
        if let Some(StepOf { timings: steps, .. }) = &step_of {
            steps.add(&timings);
        }
        if !StepOf::counts(step_of.as_ref()) {
            return;
        }
        match end.failure() {
            None => version.stats.answered(rows, &timings, missed_ns),
            Some(reason) => version.stats.failure(reason, timings.total_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ExecutionTimings, FailureCounts, ObservedSteps,
        latencies::{LatencyMetrics, VersionLatencies},
        snapshot::Tally,
        timeline::Record,
    };

    fn version() -> ObservedVersion {
        ObservedVersion {
            model: 3,
            stats: Arc::default(),
            pool: Arc::default(),
            timeline: Arc::new(Timeline::on(100)),
            epoch: Instant::now(),
            parts: Parts::Whole,
        }
    }

    fn arrived(
        version: &ObservedVersion,
        now_ns: u64,
        req: u64,
        rows: u32,
        step_of: Option<StepOf>,
    ) -> ObservedRequest {
        let mut request = ObservedRequest::new(rows, None, step_of, None);
        request.arrived(version, now_ns, req);
        request
    }

    fn run(started_ns: u64, ended_ns: u64, compute_infer_ns: u64) -> TaskRun {
        let timings = ExecutionTimings { compute_infer_ns, ..ExecutionTimings::default() };
        TaskRun { cell: 0, started_ns, ended_ns, timings, batch_rows: 2 }
    }

    fn recorded(version: &ObservedVersion) -> Vec<Record> {
        version.timeline.recording().expect("it is on").records
    }

    #[test]
    fn a_request_that_completes_counts_its_waits_its_runs_and_its_whole_time() {
        let version = version();
        let mut request = arrived(&version, 100, 7, 2, None);
        assert_eq!(version.stats.pending(), 1);
        request.launched(&version);
        request.launched(&version);
        let read = version.stats.reading();
        assert_eq!((read.pending, read.in_flight), (0, 1), "it leaves the queue once");
        assert_eq!(request.ran(&run(130, 200, 60)), 30);
        assert_eq!(request.ran(&run(150, 210, 60)), 0, "the other part ran in parallel");
        request.resumed(300);
        assert_eq!(request.ran(&run(305, 400, 90)), 5);
        request.finished(400);
        request.answered(&version, 450);
        request.ended(&version, 450, RequestEnd::Completed);

        let read = version.stats.reading();
        assert_eq!((read.pending, read.stats.inference_count, read.failures), (0, 2, FailureCounts::default()));
        assert_eq!(read.in_flight, 0);
        let requests = read.stats.inference_stats;
        assert_eq!(requests.success, Tally { count: 1, ns: 350 }, "until it was answered");
        assert_eq!((requests.queue.ns, requests.compute_infer.ns), (35, 150));
        let expected = [
            Record::Arrived { at_ns: 100, req: 7, number: 1, model: 3, rows: 2 },
            Record::Ended { at_ns: 400, req: 7, how: RequestEnd::Completed },
        ];
        assert_eq!(recorded(&version), expected);
    }

    #[test]
    fn a_request_that_moves_ends_and_arrives_in_the_timeline_and_counts_once() {
        let version = version();
        let mut request = arrived(&version, 1, 7, 2, None);
        request.moved_out(&version, 2);
        request.moved_in(&version, 3, 8);
        request.ended(&version, 4, RequestEnd::Expired);

        let read = version.stats.reading();
        assert_eq!((read.pending, read.stats.inference_stats.fail), (0, Tally { count: 1, ns: 3 }));
        let expected = [
            Record::Arrived { at_ns: 1, req: 7, number: 1, model: 3, rows: 2 },
            Record::Ended { at_ns: 2, req: 7, how: RequestEnd::Moved },
            Record::Arrived { at_ns: 3, req: 8, number: 2, model: 3, rows: 2 },
            Record::Ended { at_ns: 4, req: 8, how: RequestEnd::Expired },
        ];
        assert_eq!(recorded(&version), expected);
    }

    /// Returns the numbers of first responses, of successes and of failures.
    fn counted(version: &ObservedVersion) -> (u64, u64, u64) {
        let read = version.stats.reading();
        let first_responses = read.latencies.first_response.expect("it is asked for").count();
        (first_responses, read.stats.inference_stats.success.count, read.stats.inference_stats.fail.count)
    }

    #[test]
    fn a_step_counts_for_the_version_that_clients_know_once() {
        for (is_served, end, expected_outer, expected_inner) in [
            (false, RequestEnd::Completed, (1, 1, 0), (0, 0, 0)),
            (true, RequestEnd::Completed, (1, 1, 0), (3, 3, 0)),
            (false, RequestEnd::Failed, (1, 0, 1), (0, 0, 0)),
            (true, RequestEnd::Failed, (1, 0, 1), (3, 0, 3)),
        ] {
            let (outer, inner) = (version(), version());
            for version in [&outer, &inner] {
                let shown = LatencyMetrics { histograms: true, ..LatencyMetrics::default() };
                version.stats.keep_latencies(VersionLatencies::new(&shown, None));
            }
            let mut whole = ObservedSteps::begin(&outer.stats, 2, None);
            // Its rows run apart.
            let mut rows = ObservedSteps::begin(&inner.stats, 2, Some(whole.step(is_served)));
            let row = arrived(&inner, 0, 1, 1, Some(rows.step(false)));
            row.answered(&inner, 0);
            row.ended(&inner, 0, end);
            rows.responded(false);
            rows.ended(end);
            let once = arrived(&inner, 0, 2, 1, Some(whole.step(is_served)));
            once.answered(&inner, 0);
            once.ended(&inner, 0, end);
            let streamed = arrived(&inner, 0, 3, 1, Some(whole.step(is_served)));
            streamed.responded(&inner, 0, 0);
            streamed.responded(&inner, 0, 1);
            streamed.ended(&inner, 0, end);
            let in_flight = [&outer, &inner].map(|version| version.stats.reading().in_flight);
            assert_eq!(in_flight, [1, 0], "steps have ended: {is_served}, {end:?}");
            whole.responded(false);
            whole.ended(end);
            let in_flight = [&outer, &inner].map(|version| version.stats.reading().in_flight);
            assert_eq!(in_flight, [0, 0], "{is_served}, {end:?}");
            assert_eq!(counted(&outer), expected_outer, "{is_served}, {end:?}");
            assert_eq!(counted(&inner), expected_inner, "{is_served}, {end:?}");
        }
    }

    #[test]
    fn every_end_is_the_same_to_all_that_show_it() {
        let none = FailureCounts::default();
        let rejected = FailureCounts { rejected: 1, ..none };
        let expected = [
            (RequestEnd::Failed, "failed", FailureCounts { backend: 1, ..none }, 0),
            (RequestEnd::Rejected, "rejected", rejected, 1),
            (RequestEnd::Invalid, "rejected", FailureCounts { invalid: 1, ..none }, 1),
            (RequestEnd::NoRoom, "failed", rejected, 0),
            (RequestEnd::Lost, "failed", FailureCounts { other: 1, ..none }, 0),
            (RequestEnd::Expired, "expired", FailureCounts { expired: 1, canceled: 1, ..none }, 0),
            (RequestEnd::Cancelled, "cancelled", FailureCounts { canceled: 1, ..none }, 0),
        ];
        for (end, word, failures, rejections) in expected {
            let version = version();
            arrived(&version, 10, 7, 1, None).ended(&version, 30, end);
            let read = version.stats.reading();
            assert_eq!(read.failures, failures, "{end:?}");
            let failed = if end == RequestEnd::Invalid { Tally::default() } else { Tally { count: 1, ns: 20 } };
            assert_eq!((read.pending, read.in_flight), (0, 0), "{end:?}");
            assert_eq!(read.stats.inference_stats.fail, failed, "{end:?}");
            assert_eq!(version.pool.snapshot().rejections.count(), rejections, "{end:?}");
            let Some(Record::Ended { how, .. }) = recorded(&version).pop() else { panic!("{end:?} is not recorded") };
            assert_eq!(how.to_string(), word);
        }
    }
}
