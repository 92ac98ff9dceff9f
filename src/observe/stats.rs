//! Statistics of one loaded model version, as ModelStatistics and the metrics endpoint report them.

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
#[derive(Debug, Default)]
pub struct ModelStats {}

impl ModelStats {
    /// A request was admitted (pending until [`Self::left_queue`]).
    pub fn admitted(&self) {}

    /// A request left the queue: launched, rejected, expired or cancelled. Called once per admitted request.
    pub fn left_queue(&self) {}

    /// A request of `rows` rows was answered.
    pub fn success(&self, rows: u32, timings: &RequestTimings) {
        let _ = (rows, timings);
    }

    /// A request failed after `total_ns`.
    pub fn failure(&self, reason: FailureReason, total_ns: u64) {
        let _ = (reason, total_ns);
    }

    /// A batch of `rows` real rows ran.
    pub fn execution(&self, rows: u32, timings: &ExecutionTimings) {
        let _ = (rows, timings);
    }

    /// The `step`-th response of a decoupled request left (`empty`: the final one without outputs).
    pub fn response(&self, step: u32, empty: bool, timings: &ExecutionTimings) {
        let _ = (step, empty, timings);
    }
}
