//! Statistics of the executor pool: the scheduler's work and its duration.

use std::{
    iter::Sum,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use super::histogram::Histogram;

/// Counters of one executor pool. All methods are cheap and can be called from any thread.
#[derive(Debug)]
pub struct PoolStats {
    steps: AtomicU64,
    step_ns: AtomicU64,
    tasks_started: AtomicU64,
    tasks_ended: AtomicU64,
    rejections: Mutex<Histogram>,
    lanes: Mutex<LaneCounts>,
    waiting_response_bytes: Arc<AtomicUsize>,
    responses_paused: AtomicU64,
    responses_refused: AtomicU64,
    moved: AtomicU64,
}

/// State of the lanes of a pool, and counts of tasks that were asked to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Lanes that are occupied by a task past its time limit, or lost to one.
    pub stuck: u64,
    /// Abandoned tasks that still run without a lane.
    pub abandoned: u64,
    /// Tasks asked to stop because all their requests had ended.
    pub unwanted: u64,
    /// Tasks asked to stop because they exceeded their time limit.
    pub overdue: u64,
    /// Times that a lane got a new thread because its task did not stop.
    pub replaced: u64,
}

impl Sum for LaneCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |one, other| Self {
            stuck: one.stuck + other.stuck,
            abandoned: one.abandoned + other.abandoned,
            unwanted: one.unwanted + other.unwanted,
            overdue: one.overdue + other.overdue,
            replaced: one.replaced + other.replaced,
        })
    }
}

/// A resource of the rate limiter and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceReading {
    /// Name of the resource.
    pub name: String,
    /// `cpu`, the number of a card, or `global`.
    pub device: String,
    /// Number of units.
    pub units: u32,
    /// Units that tasks hold.
    pub in_use: u32,
    /// Time that versions have waited for units, summed over versions and devices, in nanoseconds.
    pub waited_ns: u64,
}

/// The counters of a pool at approximately one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// Steps of the scheduler.
    pub steps: u64,
    /// Total time of these steps, in nanoseconds.
    pub step_ns: u64,
    /// Tasks given to a lane.
    pub tasks: u64,
    /// Tasks given to a lane that have not ended.
    pub tasks_running: u64,
    /// Time from admission to the response of rejected requests, in nanoseconds.
    pub rejections: Histogram,
    /// State of the lanes as of the last change.
    pub lanes: LaneCounts,
    /// Bytes of responses that wait for their clients.
    pub waiting_response_bytes: u64,
    /// Times that a request paused because its client left too many responses unread.
    pub responses_paused: u64,
    /// Replies that failed because their client left too many unread.
    pub responses_refused: u64,
    /// Requests that moved to another device before they ran.
    pub moved: u64,
}

impl Default for PoolStats {
    fn default() -> Self {
        Self {
            steps: AtomicU64::new(0),
            step_ns: AtomicU64::new(0),
            tasks_started: AtomicU64::new(0),
            tasks_ended: AtomicU64::new(0),
            rejections: Mutex::new(Histogram::of_durations()),
            lanes: Mutex::default(),
            waiting_response_bytes: Arc::default(),
            responses_paused: AtomicU64::new(0),
            responses_refused: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        }
    }
}

impl PoolStats {
    /// Records a step of the scheduler that took `ns` nanoseconds.
    pub fn stepped(&self, ns: u64) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.step_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Records a task given to a lane.
    pub fn task_started(&self) {
        self.tasks_started.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the end of a task, successful or not. Must be called once per started task.
    pub fn task_ended(&self) {
        self.tasks_ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a request rejected `ns` nanoseconds after its admission.
    pub fn rejected(&self, ns: u64) {
        self.rejections.lock().record(ns);
    }

    /// Sets the state of the lanes.
    pub fn set_lanes(&self, lanes: LaneCounts) {
        *self.lanes.lock() = lanes;
    }

    /// Returns the counter of waiting response bytes, for the code that counts them.
    pub fn waiting_response_bytes(&self) -> &Arc<AtomicUsize> {
        &self.waiting_response_bytes
    }

    /// Records a request that paused because its client left too many responses unread.
    pub fn response_paused(&self) {
        self.responses_paused.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a response that failed because its client left too many unread.
    pub fn response_refused(&self) {
        self.responses_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Records requests that moved to another device.
    pub fn moved(&self, requests: u64) {
        self.moved.fetch_add(requests, Ordering::Relaxed);
    }

    /// Returns the current counters.
    pub fn snapshot(&self) -> PoolSnapshot {
        // Ends are read before starts, so that a task that ends in between is not subtracted without having been
        // counted.
        let ended = self.tasks_ended.load(Ordering::Relaxed);
        let started = self.tasks_started.load(Ordering::Relaxed);
        PoolSnapshot {
            steps: self.steps.load(Ordering::Relaxed),
            step_ns: self.step_ns.load(Ordering::Relaxed),
            tasks: started,
            tasks_running: started.saturating_sub(ended),
            rejections: self.rejections.lock().clone(),
            lanes: *self.lanes.lock(),
            waiting_response_bytes: self.waiting_response_bytes.load(Ordering::Relaxed) as u64,
            responses_paused: self.responses_paused.load(Ordering::Relaxed),
            responses_refused: self.responses_refused.load(Ordering::Relaxed),
            moved: self.moved.load(Ordering::Relaxed),
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
        stats.waiting_response_bytes().fetch_add(7, Ordering::Relaxed);
        stats.response_paused();
        stats.response_refused();
        stats.response_refused();

        let read = stats.snapshot();
        assert_eq!((read.steps, read.step_ns), (2, 500));
        assert_eq!((read.tasks, read.tasks_running), (2, 1));
        assert_eq!((read.rejections.count(), read.rejections.sum()), (1, 60_000));
        assert_eq!((read.waiting_response_bytes, read.responses_paused, read.responses_refused), (7, 1, 2));
    }
}
