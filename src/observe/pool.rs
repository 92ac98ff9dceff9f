//! Statistics of the executor pool: how much the scheduler does and how long it takes.

use std::{
    iter::Sum,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

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
    lanes: Mutex<LaneCounts>,
    waiting_reply_bytes: Arc<AtomicUsize>,
    replies_paused: AtomicU64,
    replies_refused: AtomicU64,
    moved: AtomicU64,
}

/// How the lanes of a pool are, and what became of tasks that were told to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Lanes that a task holds whose time is over, or that are lost to one.
    pub stuck: u64,
    /// Tasks that did not stop and run on beside the lanes.
    pub abandoned: u64,
    /// Tasks that were told to stop because all their requests had ended.
    pub unwanted: u64,
    /// Tasks that were told to stop because their time was over.
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
    /// The lanes, as of the last change.
    pub lanes: LaneCounts,
    /// Bytes of replies that wait for their clients.
    pub waiting_reply_bytes: u64,
    /// Times that a request paused because its client left too many responses unread.
    pub replies_paused: u64,
    /// Replies that failed because their client left too many unread.
    pub replies_refused: u64,
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
            waiting_reply_bytes: Arc::default(),
            replies_paused: AtomicU64::new(0),
            replies_refused: AtomicU64::new(0),
            moved: AtomicU64::new(0),
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

    /// The lanes changed; `lanes` replaces what was said before.
    pub fn set_lanes(&self, lanes: LaneCounts) {
        *self.lanes.lock() = lanes;
    }

    /// Bytes of replies that wait for their clients, for who counts them.
    pub fn waiting_reply_bytes(&self) -> &Arc<AtomicUsize> {
        &self.waiting_reply_bytes
    }

    /// A request paused because its client left too many responses unread.
    pub fn reply_paused(&self) {
        self.replies_paused.fetch_add(1, Ordering::Relaxed);
    }

    /// A reply failed because its client left too many unread.
    pub fn reply_refused(&self) {
        self.replies_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// So many requests moved to another device.
    pub fn moved(&self, requests: u64) {
        self.moved.fetch_add(requests, Ordering::Relaxed);
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
            lanes: *self.lanes.lock(),
            waiting_reply_bytes: self.waiting_reply_bytes.load(Ordering::Relaxed) as u64,
            replies_paused: self.replies_paused.load(Ordering::Relaxed),
            replies_refused: self.replies_refused.load(Ordering::Relaxed),
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
        stats.waiting_reply_bytes().fetch_add(7, Ordering::Relaxed);
        stats.reply_paused();
        stats.reply_refused();
        stats.reply_refused();

        let read = stats.snapshot();
        assert_eq!((read.steps, read.step_ns), (2, 500));
        assert_eq!((read.tasks, read.tasks_running), (2, 1));
        assert_eq!((read.rejections.count(), read.rejections.sum()), (1, 60_000));
        assert_eq!((read.waiting_reply_bytes, read.replies_paused, read.replies_refused), (7, 1, 2));
    }
}
