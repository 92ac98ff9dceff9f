//! How long the parts of a request and of an execution took.

use std::{
    ops::AddAssign,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Durations of one request in nanoseconds; queue + compute ≤ total if it completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimings {
    /// From admission to the response.
    pub total_ns: u64,
    /// Waiting for a lane, including at stage boundaries.
    pub queue_ns: u64,
    /// Its executions.
    pub compute: ExecutionTimings,
}

impl RequestTimings {
    /// Returns the times of work that did not wait.
    pub fn of_work(took: Duration) -> Self {
        let total_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let compute = ExecutionTimings { compute_infer_ns: total_ns, ..ExecutionTimings::default() };
        Self { total_ns, queue_ns: 0, compute }
    }
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

/// The times of the requests that one request is made of, such as the steps of a pipeline.
#[derive(Debug, Default)]
pub struct StepTimings {
    queue_ns: AtomicU64,
    compute_input_ns: AtomicU64,
    compute_infer_ns: AtomicU64,
    compute_output_ns: AtomicU64,
    /// Those that these are a part of.
    part_of: Option<Arc<StepTimings>>,
}

impl StepTimings {
    /// Creates times that count in others too.
    pub fn part_of(other: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { part_of: Some(Arc::clone(other)), ..Self::default() })
    }

    /// Returns the time of all executions.
    pub fn compute_ns(&self) -> u64 {
        let parts = [&self.compute_input_ns, &self.compute_infer_ns, &self.compute_output_ns];
        parts.into_iter().map(|part| part.load(Ordering::Relaxed)).sum()
    }

    /// Adds the times of a step that completed.
    pub fn add(&self, timings: &RequestTimings) {
        if let Some(other) = &self.part_of {
            other.add(timings);
        }
        let ExecutionTimings { compute_input_ns, compute_infer_ns, compute_output_ns } = timings.compute;
        self.queue_ns.fetch_add(timings.queue_ns, Ordering::Relaxed);
        self.compute_input_ns.fetch_add(compute_input_ns, Ordering::Relaxed);
        self.compute_infer_ns.fetch_add(compute_infer_ns, Ordering::Relaxed);
        self.compute_output_ns.fetch_add(compute_output_ns, Ordering::Relaxed);
    }

    /// Returns the times of a request that took `total_ns`. Steps that ran side by side may take longer in sum; then
    /// all times count in proportion.
    pub fn within(&self, total_ns: u64) -> RequestTimings {
        let queue_ns = self.queue_ns.load(Ordering::Relaxed);
        let compute = ExecutionTimings {
            compute_input_ns: self.compute_input_ns.load(Ordering::Relaxed),
            compute_infer_ns: self.compute_infer_ns.load(Ordering::Relaxed),
            compute_output_ns: self.compute_output_ns.load(Ordering::Relaxed),
        };
        let sum = queue_ns.saturating_add(compute.total_ns());
        let share = |ns: u64| {
            if sum <= total_ns {
                return ns;
            }
            // At most `total_ns`, which is a u64.
            (u128::from(ns) * u128::from(total_ns) / u128::from(sum)) as u64
        };
        let compute = ExecutionTimings {
            compute_input_ns: share(compute.compute_input_ns),
            compute_infer_ns: share(compute.compute_infer_ns),
            compute_output_ns: share(compute.compute_output_ns),
        };
        RequestTimings { total_ns, queue_ns: share(queue_ns), compute }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_side_by_side_count_in_proportion() {
        let steps = StepTimings::default();
        let compute = ExecutionTimings { compute_input_ns: 10, compute_infer_ns: 70, compute_output_ns: 0 };
        let step = RequestTimings { total_ns: 100, queue_ns: 20, compute };
        steps.add(&step);
        assert_eq!(steps.within(120), RequestTimings { total_ns: 120, ..step });
        steps.add(&step);
        assert_eq!(steps.within(100), step, "200 ns within 100");
    }

    #[test]
    fn the_times_of_a_part_count_in_the_whole() {
        let whole = Arc::new(StepTimings::default());
        let parts = [StepTimings::part_of(&whole), StepTimings::part_of(&whole)];
        let compute = ExecutionTimings { compute_input_ns: 10, compute_infer_ns: 70, compute_output_ns: 5 };
        parts[0].add(&RequestTimings { total_ns: 100, queue_ns: 15, compute });
        parts[1].add(&RequestTimings { total_ns: 100, queue_ns: 15, compute });
        assert_eq!((parts[0].compute_ns(), whole.compute_ns()), (85, 170));
        assert_eq!(whole.within(1_000).queue_ns, 30);
    }
}
