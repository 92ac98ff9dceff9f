//! A model version's batching parameters as the core takes them; `repository` makes them from the configuration.

use super::Ns;

/// What the core knows of one model version.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    /// Largest batch in rows, at least 1.
    pub max_batch_rows: u32,
    /// Whether requests may share a batch at all (false for models without a batch axis).
    pub mergeable: bool,
    /// Most tasks in flight at once per device (`instance_group.count`).
    pub max_in_flight: u32,
    /// How batches are formed.
    pub policy: Policy,
}

/// The policy of a model version.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// One request at a time.
    Serial,
    /// Triton's dynamic batcher.
    Window(WindowKnobs),
}

/// Triton's `dynamic_batching`, times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowKnobs {
    /// Sizes in rows at which a batch goes at once, ascending. Sizes that no batch can have are passed over; with none left
    /// it is the largest batch.
    pub preferred_batch_sizes: Vec<u32>,
    /// How long the oldest request may wait for a preferred size.
    pub max_queue_delay_ns: Ns,
    /// Responses leave in the order of arrival, rejections and failures included. Cancelled and expired requests end at
    /// once, since nobody waits for their replies.
    pub preserve_ordering: bool,
    /// Number of priority levels; 0 or 1: one level.
    pub priority_levels: u32,
    /// Level of a request with priority 0, or one out of range.
    pub default_priority_level: u32,
    /// Queue policy of levels without one of their own.
    pub default_queue: QueueKnobs,
    /// Queue policies by level (1 = highest).
    pub level_queues: Vec<(u32, QueueKnobs)>,
    /// Width of the length buckets: requests share a batch when their lengths round up to the same multiple; 0: any
    /// lengths share one. A task's bucket is padded to the longest of its own rows only.
    pub bucket_width: u32,
}

/// Triton's `ModelQueuePolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueKnobs {
    /// What happens when the timeout passes.
    pub timeout_action: TimeoutAction,
    /// Timeout of requests that bring none; 0: none.
    pub default_timeout_ns: Ns,
    /// Whether a request's own timeout counts. It may shorten the default timeout, never lengthen it.
    pub allow_timeout_override: bool,
    /// Most requests waiting at the level, delayed ones included; 0: no limit.
    pub max_queue_size: u32,
}

/// Triton's `TimeoutAction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeoutAction {
    /// The request is rejected.
    #[default]
    Reject,
    /// The request goes behind all others of its level and waits there without a timeout.
    Delay,
}
