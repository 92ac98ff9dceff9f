//! The record of a request that is made of other requests. It counts once, with the times of all of them. In its trace,
//! they are what cells are in other models: parts that ran one after the other or side by side. In a file of traces,
//! those of models that clients know have traces of their own in their place.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    end::RequestEnd,
    request::StepOf,
    stats::ModelStats,
    timings::{ExecutionTimings, StepTimings, TaskRun},
    trace::{Parts, RequestTrace},
};

/// The record of a request in flight that is made of other requests: of a pipeline's steps, or of its own rows. Dropped
/// before its end, it counts as cancelled.
#[derive(Debug)]
pub struct ObservedSteps {
    stats: Arc<ModelStats>,
    /// Whether a request counts as an execution: its steps count for other models alone.
    counts_executions: bool,
    rows: u32,
    began: Instant,
    timings: Arc<StepTimings>,
    /// The request that it is itself a step of.
    step_of: Option<StepOf>,
    trace: Option<Arc<RequestTrace>>,
    /// How long the response cache was searched, which did not have its response.
    missed_ns: Option<u64>,
    responses: u32,
    has_ended: bool,
}

impl ObservedSteps {
    /// Records a request of `rows` rows that begins now. `step_of` is the request that it is itself a step of.
    pub fn begin(stats: &Arc<ModelStats>, rows: u32, step_of: Option<StepOf>) -> Self {
        if StepOf::counts(step_of.as_ref()) {
            stats.began();
        }
        Self {
            stats: Arc::clone(stats),
            counts_executions: false,
            rows,
            began: Instant::now(),
            timings: Arc::default(),
            step_of,
            trace: None,
            missed_ns: None,
            responses: 0,
            has_ended: false,
        }
    }

    /// Counts it as a miss of the response cache once it is answered; see [`ObservedRequest::new`].
    ///
    /// [`ObservedRequest::new`]: super::ObservedRequest::new
    #[must_use]
    pub fn missed(mut self, missed_ns: Option<u64>) -> Self {
        self.missed_ns = missed_ns;
        self
    }

    /// Counts the request as an execution too, since its steps count for other versions alone.
    #[must_use]
    pub fn counted_as_execution(mut self) -> Self {
        self.counts_executions = true;
        self
    }

    /// Records the steps, which have these names, in the request's trace, if it is traced.
    #[must_use]
    pub fn traced(mut self, trace: Option<Arc<RequestTrace>>, names: &Arc<[String]>) -> Self {
        if let Some(trace) = &trace {
            trace.submitted(self.began, Parts::Cells(Arc::clone(names)));
        }
        self.trace = trace;
        self
    }

    /// Returns what a request needs that is a step of this one. `is_served`: see [`StepOf`].
    pub fn step(&self, is_served: bool) -> StepOf {
        StepOf { timings: Arc::clone(&self.timings), is_served, depth: self.depth() + 1 }
    }

    /// As [`Self::step`], for the requests of one step, whose times are known apart from those of others.
    pub fn step_apart(&self, is_served: bool) -> StepOf {
        StepOf { timings: StepTimings::part_of(&self.timings), ..self.step(is_served) }
    }

    /// Starts the trace of a request to this version of a model, which is a step of this one, if that is traced.
    pub fn step_trace(&self, model: &str, version: i64) -> Option<Arc<RequestTrace>> {
        self.trace.as_ref()?.step(model, version)
    }

    /// Returns how many requests it is within.
    pub fn depth(&self) -> usize {
        self.step_of.as_ref().map_or(0, |step_of| step_of.depth)
    }

    /// Records a step that ran from `started` until now.
    pub fn ran(&self, step: usize, started: Instant) {
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
    pub fn responded(&mut self, is_stream: bool) {
        if !StepOf::counts(self.step_of.as_ref()) {
            return;
        }
        let total_ns = self.elapsed_ns();
        if self.responses == 0 {
            self.stats.first_response(total_ns);
        }
        if is_stream {
            self.stats.response(self.responses, &self.timings.within(total_ns).compute);
        }
        self.responses = self.responses.saturating_add(1);
    }

    /// Records how it ended.
    pub fn ended(mut self, end: RequestEnd) {
        self.end(end);
    }

    /// Counts the request nowhere: it was refused before it was admitted.
    pub fn refused(mut self) {
        self.has_ended = true;
        if StepOf::counts(self.step_of.as_ref()) {
            self.stats.refused();
        }
    }

    fn end(&mut self, end: RequestEnd) {
        self.has_ended = true;
        let total_ns = self.elapsed_ns();
        if let Some(trace) = &self.trace {
            trace.ended(0, total_ns, end);
        }
        let counts = StepOf::counts(self.step_of.as_ref());
        if let Some(reason) = end.failure() {
            if counts {
                self.stats.failure(reason, total_ns);
            }
            return;
        }
        let timings = self.timings.within(total_ns);
        if let Some(StepOf { timings: outer, .. }) = &self.step_of {
            outer.add(&timings);
        }
        if self.counts_executions {
            self.stats.execution(self.rows, &timings.compute);
        }
        if counts {
            self.stats.answered(self.rows, &timings, self.missed_ns);
        }
    }
}

impl Drop for ObservedSteps {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(RequestEnd::Cancelled);
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
