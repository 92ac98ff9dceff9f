//! The statistics and traces of a pipeline's requests. In a trace, the steps are what cells are in other models: parts
//! that ran one after the other or side by side.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use paternoster_executor::InferError;
use paternoster_observe::{
    ExecutionTimings, ModelStats, RequestEnd, StepOf, StepTimings, TaskRun,
    trace::{Parts, RequestTrace},
};

use super::Pipeline;

/// The record of a request in flight. Dropped before its end, it counts as cancelled.
#[derive(Debug)]
pub(crate) struct ObservedRun {
    stats: Arc<ModelStats>,
    /// Whether a request counts as an execution: its steps count for other models alone.
    counts_executions: bool,
    rows: u32,
    began: Instant,
    pub(crate) steps: Arc<StepTimings>,
    /// The request of another pipeline that it is a step of.
    step_of: Option<StepOf>,
    trace: Option<Arc<RequestTrace>>,
    responses: u32,
    has_ended: bool,
}

impl ObservedRun {
    pub(crate) fn begin(
        pipeline: &Pipeline,
        rows: u32,
        step_of: Option<StepOf>,
        trace: Option<Arc<RequestTrace>>,
    ) -> Self {
        let began = Instant::now();
        if let Some(trace) = &trace {
            trace.submitted(began, Parts::Cells(Arc::clone(&pipeline.step_names)));
        }
        Self {
            stats: Arc::clone(&pipeline.stats),
            counts_executions: !pipeline.shares_stats,
            rows,
            began,
            steps: Arc::default(),
            step_of,
            trace,
            responses: 0,
            has_ended: false,
        }
    }

    /// Records a step that ran from `started` until now.
    pub(crate) fn ran(&self, step: usize, started: Instant) {
        let Some(trace) = &self.trace else { return };
        let (started_ns, ended_ns) = (nanoseconds(started - self.began), self.elapsed_ns());
        let timings = ExecutionTimings { compute_infer_ns: ended_ns - started_ns, ..ExecutionTimings::default() };
        let cell = u16::try_from(step).unwrap_or(u16::MAX);
        trace.ran(&TaskRun { cell, started_ns, ended_ns, timings, batch_rows: self.rows });
    }

    fn elapsed_ns(&self) -> u64 {
        nanoseconds(self.began.elapsed())
    }

    /// Records a response. `is_stream`: there may be several.
    pub(crate) fn responded(&mut self, is_stream: bool) {
        let total_ns = self.elapsed_ns();
        if self.responses == 0 {
            self.stats.first_response(total_ns);
        }
        if is_stream {
            self.stats.response(self.responses, &self.steps.within(total_ns).compute);
        }
        self.responses = self.responses.saturating_add(1);
    }

    /// Records the end.
    pub(crate) fn ended(mut self, error: Option<&InferError>) {
        self.end(error.map_or(RequestEnd::Completed, InferError::end));
    }

    fn end(&mut self, end: RequestEnd) {
        self.has_ended = true;
        let total_ns = self.elapsed_ns();
        if let Some(trace) = &self.trace {
            trace.ended(0, total_ns, end);
        }
        if let Some(reason) = end.failure() {
            self.stats.failure(reason, total_ns);
            return;
        }
        let timings = self.steps.within(total_ns);
        if let Some(StepOf { timings: outer, .. }) = &self.step_of {
            outer.add(&timings);
        }
        if self.counts_executions {
            self.stats.execution(self.rows, &timings.compute);
        }
        self.stats.success(self.rows, &timings);
    }
}

impl Drop for ObservedRun {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(RequestEnd::Cancelled);
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
