//! How long the parts of a request and of an execution took.

use std::ops::AddAssign;

/// Durations of one request in nanoseconds; queue + compute ≤ total if it completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimings {
    /// From admission to the reply.
    pub total_ns: u64,
    /// Waiting for a lane, including at stage boundaries.
    pub queue_ns: u64,
    /// Its executions.
    pub compute: ExecutionTimings,
}

/// Durations of one execution of a batch in nanoseconds, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutionTimings {
    /// Gathering inputs into the batch.
    pub compute_input_ns: u64,
    /// Running the model.
    pub compute_infer_ns: u64,
    /// Splitting the batch's outputs.
    pub compute_output_ns: u64,
}

impl ExecutionTimings {
    /// Returns the time for all of it.
    pub fn total_ns(&self) -> u64 {
        self.compute_input_ns + self.compute_infer_ns + self.compute_output_ns
    }
}

impl AddAssign for ExecutionTimings {
    fn add_assign(&mut self, other: Self) {
        self.compute_input_ns += other.compute_input_ns;
        self.compute_infer_ns += other.compute_infer_ns;
        self.compute_output_ns += other.compute_output_ns;
    }
}

/// A task that has run, as one of its requests sees it. Times are nanoseconds since the executor's epoch.
#[derive(Clone, Copy, Debug)]
pub struct TaskRun {
    /// The stage or cell, counted from 0.
    pub cell: u16,
    /// Start.
    pub started_ns: u64,
    /// Completion.
    pub ended_ns: u64,
    /// Its durations.
    pub timings: ExecutionTimings,
    /// Rows of all requests in the task.
    pub batch_rows: u32,
}
