//! Counters of the core, as exported to `observe`.

use std::ops::AddAssign;

use super::{End, Rejection};

/// Counters of one loaded version. Totals count from `ModelUp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests in the queue, including delayed ones, excluding those in a batch.
    pub pending_requests: u64,
    /// Rows of these requests.
    pub pending_rows: u64,
    /// Requests that have not ended: pending, in a batch, or over with their reply held for order.
    pub live_requests: u64,
    /// Tasks on lanes.
    pub running_tasks: u64,
    /// Batches formed from the queue (total).
    pub batches_formed: u64,
    /// Of these, batches below the largest size although requests of another key or length class waited, which could
    /// not join (total).
    pub batches_parted_by_key: u64,
    /// Stretch operations: newcomers joined a batch in progress (meta operation *stretch*) (total).
    pub stretches: u64,
    /// Of these, joined while the batch's next step was ready but waited for a buffer, that is, while its executor was
    /// *checking* (DVABatch section 6.2) (total).
    pub stretches_while_checking: u64,
    /// Batches split by the meta operation *split* (total).
    pub splits: u64,
    /// Steps that caught up with the step before and merged with it (total).
    pub merges: u64,
    /// Times that a batch that could have run was left waiting for newcomers or for requests of a higher level (total).
    pub preemptions: u64,
    /// Rows done before the last stage (total).
    pub early_exits: u64,
    /// Requests that completed after their latency objective or deadline (total).
    pub slack_misses: u64,
    /// Tasks launched (total).
    pub tasks_launched: u64,
    /// Rows launched (total).
    pub rows_launched: u64,
    /// Tasks failed by the engine (total).
    pub tasks_failed: u64,
    /// Retries of parts of failed tasks, isolated from other work (total). A task of several requests or nodes gives
    /// one retry per half.
    pub retries: u64,
    /// Requests that moved to another core before boarding (total).
    pub recalled: u64,
    /// Requests moved behind the others by the timeout action `DELAY` (total).
    pub delayed: u64,
    /// Requests ended `Completed` (total).
    pub completed: u64,
    /// Requests ended `Failed` (total).
    pub failed: u64,
    /// Requests ended `Rejected(QueueFull)` (total).
    pub queue_full: u64,
    /// Requests ended `Rejected(QueueTimeout)` (total).
    pub queue_timeout: u64,
    /// Requests ended `Rejected(Late)` (total).
    pub late: u64,
    /// Requests ended `Rejected(NoMemory)` (total).
    pub no_memory: u64,
    /// Requests ended `Rejected(NotStarted)` (total).
    pub not_started: u64,
    /// Requests ended `Expired` (total).
    pub expired: u64,
    /// Requests ended `Cancelled` (total).
    pub cancelled: u64,
}

/// Sums the counters of several cores or versions.
impl AddAssign<&Self> for Counters {
    fn add_assign(&mut self, more: &Self) {
        // Destructures all fields, so that the compiler reports one that is not added.
        let Self {
            pending_requests,
            pending_rows,
            live_requests,
            running_tasks,
            batches_formed,
            batches_parted_by_key,
            stretches,
            stretches_while_checking,
            splits,
            merges,
            preemptions,
            early_exits,
            slack_misses,
            tasks_launched,
            rows_launched,
            tasks_failed,
            retries,
            recalled,
            delayed,
            completed,
            failed,
            queue_full,
            queue_timeout,
            late,
            no_memory,
            not_started,
            expired,
            cancelled,
        } = more;
        self.pending_requests += pending_requests;
        self.pending_rows += pending_rows;
        self.live_requests += live_requests;
        self.running_tasks += running_tasks;
        self.batches_formed += batches_formed;
        self.batches_parted_by_key += batches_parted_by_key;
        self.stretches += stretches;
        self.stretches_while_checking += stretches_while_checking;
        self.splits += splits;
        self.merges += merges;
        self.preemptions += preemptions;
        self.early_exits += early_exits;
        self.slack_misses += slack_misses;
        self.tasks_launched += tasks_launched;
        self.rows_launched += rows_launched;
        self.tasks_failed += tasks_failed;
        self.retries += retries;
        self.recalled += recalled;
        self.delayed += delayed;
        self.completed += completed;
        self.failed += failed;
        self.queue_full += queue_full;
        self.queue_timeout += queue_timeout;
        self.late += late;
        self.no_memory += no_memory;
        self.not_started += not_started;
        self.expired += expired;
        self.cancelled += cancelled;
    }
}

impl Counters {
    pub(super) fn count_end(&mut self, end: End) {
        *match end {
            End::Completed => &mut self.completed,
            End::Failed => &mut self.failed,
            End::Rejected(Rejection::QueueFull) => &mut self.queue_full,
            End::Rejected(Rejection::QueueTimeout) => &mut self.queue_timeout,
            End::Rejected(Rejection::Late) => &mut self.late,
            End::Rejected(Rejection::NoMemory) => &mut self.no_memory,
            End::Rejected(Rejection::NotStarted) => &mut self.not_started,
            End::Expired => &mut self.expired,
            End::Cancelled => &mut self.cancelled,
        } += 1;
    }

    /// Returns the number of requests that have ended, in any way.
    pub fn ended(&self) -> u64 {
        self.completed
            + self.failed
            + self.queue_full
            + self.queue_timeout
            + self.late
            + self.no_memory
            + self.not_started
            + self.expired
            + self.cancelled
    }
}
