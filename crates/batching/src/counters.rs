//! Counters of the core, as exported to `observe`.

use std::ops::AddAssign;

use super::{End, Rejection};

/// Defines the counters from one list, so that none is left out of a sum.
macro_rules! counters {
    ($($(#[$doc:meta])+ $counter:ident,)+) => {
        /// Counters of one loaded version. Totals count from `ModelUp`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])+ pub $counter: u64,)+
        }

        /// Sums the counters of several cores or versions.
        impl AddAssign<&Self> for Counters {
            fn add_assign(&mut self, more: &Self) {
                $(self.$counter += more.$counter;)+
            }
        }
    };
}

counters! {
    /// Requests in the queue, including those past their queue timeout, excluding those in a batch.
    pending_requests,
    /// Rows of these requests.
    pending_rows,
    /// Requests that have not ended: pending, in a batch, or over with their response held for order.
    live_requests,
    /// Tasks on lanes.
    running_tasks,
    /// Batches formed from the queue (total).
    batches_formed,
    /// Of these, batches below the largest size although requests of another key or length class waited, which could
    /// not join (total).
    batches_parted_by_key,
    /// Stretch operations: newcomers joined a batch in progress (meta operation *stretch*) (total).
    stretches,
    /// Of these, joined while the batch's next step was ready but waited for a buffer, that is, while its executor was
    /// *checking* (DVABatch section 6.2) (total).
    stretches_while_checking,
    /// Batches split by the meta operation *split* (total).
    splits,
    /// Steps that caught up with the step before and merged with it (total).
    merges,
    /// Times that a batch that could have run was left waiting for newcomers or for requests of a higher level (total).
    preemptions,
    /// Rows done before the last stage (total).
    early_exits,
    /// Requests that completed after their latency objective or deadline (total).
    slack_misses,
    /// Tasks launched (total).
    tasks_launched,
    /// Rows launched (total).
    rows_launched,
    /// Tasks failed by the engine (total).
    tasks_failed,
    /// Retries of parts of failed tasks, isolated from other work (total). A task of several requests or nodes gives
    /// one retry per half.
    retries,
    /// Requests that moved to another core before boarding (total).
    recalled,
    /// Requests moved behind the others by the timeout action `DELAY` (total).
    delayed,
    /// Requests ended `Completed` (total).
    completed,
    /// Requests ended `Failed` (total).
    failed,
    /// Requests ended `Rejected(QueueFull)` (total).
    queue_full,
    /// Requests ended `Rejected(QueueTimeout)` (total).
    queue_timeout,
    /// Requests ended `Rejected(Late)` (total).
    late,
    /// Requests ended `Rejected(NoMemory)` (total).
    no_memory,
    /// Requests ended `Rejected(NotStarted)` (total).
    not_started,
    /// Requests ended `Expired` (total).
    expired,
    /// Requests ended `Cancelled` (total).
    cancelled,
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
