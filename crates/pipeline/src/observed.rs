//! The statistics of a pipeline's requests.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use paternoster_executor::InferError;
use paternoster_observe::{FailureReason, ModelStats, StepOf, StepTimings};

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
    responses: u32,
    has_ended: bool,
}

impl ObservedRun {
    pub(crate) fn begin(stats: &Arc<ModelStats>, counts_executions: bool, rows: u32, step_of: Option<StepOf>) -> Self {
        let (stats, steps, began) = (Arc::clone(stats), Arc::default(), Instant::now());
        Self { stats, counts_executions, rows, began, steps, step_of, responses: 0, has_ended: false }
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
            self.stats.response(self.responses, false, &self.steps.within(total_ns).compute);
        }
        self.responses = self.responses.saturating_add(1);
    }

    /// Records the end.
    pub(crate) fn ended(mut self, error: Option<&InferError>) {
        self.has_ended = true;
        let total_ns = self.elapsed_ns();
        if let Some(reason) = error.and_then(|error| error.end().failure()) {
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
            self.stats.failure(FailureReason::Canceled, self.elapsed_ns());
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
