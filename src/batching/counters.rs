//! What `observe` may ask of the core.

use std::ops::AddAssign;

use super::{End, Rejection};

/// Figures of one loaded version. Totals count from `ModelUp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests in the queue, delayed ones included; not those in a batch.
    pub pending_requests: u64,
    /// Their rows.
    pub pending_rows: u64,
    /// Requests that have not ended: pending, in a batch, or over with their reply held for order.
    pub live_requests: u64,
    /// Tasks on lanes.
    pub running_tasks: u64,
    /// Batches formed out of the queue (total).
    pub batches_formed: u64,
    /// Of those, batches below the largest size while requests of another key or length class waited, which could not
    /// join (total).
    pub batches_parted_by_key: u64,
    /// Requests that joined a batch under way count once for each time (total): meta operation *stretch*.
    pub stretches: u64,
    /// Of those, joined while the batch's foot was ready and waited for a buffer: its executor was *checking* (DVABatch
    /// section 6.2) (total).
    pub stretches_while_checking: u64,
    /// Batches split (total): meta operation *split*.
    pub splits: u64,
    /// Steps that caught up with the one before and merged with it (total).
    pub merges: u64,
    /// Times that a batch which could have gone on was left waiting for newcomers, or for requests of a higher level
    /// (total).
    pub preemptions: u64,
    /// Rows that were done before the last stage (total).
    pub early_exits: u64,
    /// Requests that completed after the latency objective or their deadline (total).
    pub slack_misses: u64,
    /// Tasks launched (total).
    pub tasks_launched: u64,
    /// Rows launched (total).
    pub rows_launched: u64,
    /// Tasks that the engine failed (total).
    pub tasks_failed: u64,
    /// Parts of failed tasks that were put aside to run again, apart from all others (total): of a task of several
    /// requests, or nodes, one half each.
    pub retries: u64,
    /// Requests that left for another core before they boarded (total).
    pub recalled: u64,
    /// Requests put behind the others by `DELAY` (total).
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

/// Figures of several cores, or of several versions, add up.
impl AddAssign<&Self> for Counters {
    fn add_assign(&mut self, more: &Self) {
        // All fields, so that none is forgotten.
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

    /// Requests that have ended, however they did.
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
