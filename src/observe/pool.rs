//! Statistics of the executor pool: how much the scheduler does and how long it takes.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::histogram::Histogram;

/// Counters of one executor pool. All methods are cheap and may be called from any thread.
#[derive(Debug)]
pub struct PoolStats {
    steps: AtomicU64,
    step_ns: AtomicU64,
    tasks_started: AtomicU64,
    tasks_ended: AtomicU64,
    rejections: Mutex<Histogram>,
}

/// The counters of a pool at about one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// Steps of the scheduler.
    pub steps: u64,
    /// Time spent in them, in nanoseconds.
    pub step_ns: u64,
    /// Tasks handed to a lane.
    pub tasks: u64,
    /// Tasks handed to a lane that have not ended.
    pub tasks_running: u64,
    /// From admission to the answer of rejected requests, in nanoseconds.
    pub rejections: Histogram,
}

impl Default for PoolStats {
    fn default() -> Self {
        Self {
            steps: AtomicU64::new(0),
            step_ns: AtomicU64::new(0),
            tasks_started: AtomicU64::new(0),
            tasks_ended: AtomicU64::new(0),
            rejections: Mutex::new(Histogram::of_durations()),
        }
    }
}

impl PoolStats {
    /// The scheduler made one step, which took `ns` nanoseconds.
    pub fn stepped(&self, ns: u64) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.step_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// A task went to a lane.
    pub fn task_started(&self) {
        self.tasks_started.fetch_add(1, Ordering::Relaxed);
    }

    /// A task ended, well or not. Called once per started task.
    pub fn task_ended(&self) {
        self.tasks_ended.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was rejected `ns` nanoseconds after its admission.
    pub fn rejected(&self, ns: u64) {
        self.rejections.lock().record(ns);
    }

    /// The counters now.
    pub fn snapshot(&self) -> PoolSnapshot {
        // Ends are read before starts, so that a task that ends in between is never subtracted without being counted.
        let ended = self.tasks_ended.load(Ordering::Relaxed);
        let started = self.tasks_started.load(Ordering::Relaxed);
        PoolSnapshot {
            steps: self.steps.load(Ordering::Relaxed),
            step_ns: self.step_ns.load(Ordering::Relaxed),
            tasks: started,
            tasks_running: started.saturating_sub(ended),
            rejections: self.rejections.lock().clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_counts_steps_tasks_and_rejections() {
        let stats = PoolStats::default();
        stats.stepped(300);
        stats.stepped(200);
        stats.task_started();
        stats.task_started();
        stats.task_ended();
        stats.rejected(60_000);

        let read = stats.snapshot();
        assert_eq!((read.steps, read.step_ns), (2, 500));
        assert_eq!((read.tasks, read.tasks_running), (2, 1));
        assert_eq!((read.rejections.count(), read.rejections.sum()), (1, 60_000));
    }
}
