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
        // Names all fields, so that the compiler reports one that is not added.
        *self = Self {
            pending_requests: self.pending_requests + more.pending_requests,
            pending_rows: self.pending_rows + more.pending_rows,
            live_requests: self.live_requests + more.live_requests,
            running_tasks: self.running_tasks + more.running_tasks,
            batches_formed: self.batches_formed + more.batches_formed,
            batches_parted_by_key: self.batches_parted_by_key + more.batches_parted_by_key,
            stretches: self.stretches + more.stretches,
            stretches_while_checking: self.stretches_while_checking + more.stretches_while_checking,
            splits: self.splits + more.splits,
            merges: self.merges + more.merges,
            preemptions: self.preemptions + more.preemptions,
            early_exits: self.early_exits + more.early_exits,
            slack_misses: self.slack_misses + more.slack_misses,
            tasks_launched: self.tasks_launched + more.tasks_launched,
            rows_launched: self.rows_launched + more.rows_launched,
            tasks_failed: self.tasks_failed + more.tasks_failed,
            retries: self.retries + more.retries,
            recalled: self.recalled + more.recalled,
            delayed: self.delayed + more.delayed,
            completed: self.completed + more.completed,
            failed: self.failed + more.failed,
            queue_full: self.queue_full + more.queue_full,
            queue_timeout: self.queue_timeout + more.queue_timeout,
            late: self.late + more.late,
            no_memory: self.no_memory + more.no_memory,
            not_started: self.not_started + more.not_started,
            expired: self.expired + more.expired,
            cancelled: self.cancelled + more.cancelled,
        };
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
}
