//! How long the parts of a request and of an execution took.

/// Durations of one successful request in nanoseconds; queue + compute ≤ total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimings {
    /// From admission to the reply.
    pub total_ns: u64,
    /// Waiting for a lane, including at stage boundaries.
    pub queue_ns: u64,
    /// Gathering inputs into the batch.
    pub compute_input_ns: u64,
    /// Running the model.
    pub compute_infer_ns: u64,
    /// Splitting the batch's outputs.
    pub compute_output_ns: u64,
}

/// Durations of one execution of a batch in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutionTimings {
    /// Gathering inputs into the batch.
    pub compute_input_ns: u64,
    /// Running the model.
    pub compute_infer_ns: u64,
    /// Splitting the batch's outputs.
    pub compute_output_ns: u64,
}
