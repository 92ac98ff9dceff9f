//! Triton's priority levels and queue policies: the level at which a request waits, how long it may wait, and how many
//! may wait.

use crate::{Instant, QueueKnobs, QueueingKnobs};

/// The rules of one version's pending queue. The default is one level without limits, as for a model without a dynamic
/// batcher.
#[derive(Debug)]
pub(crate) struct QueueRules {
    /// With at least one level, and the queues of single levels sorted by level.
    knobs: QueueingKnobs,
}

impl Default for QueueRules {
    fn default() -> Self {
        Self::new(&QueueingKnobs::default())
    }
}

impl QueueRules {
    pub(crate) fn new(knobs: &QueueingKnobs) -> Self {
        let mut knobs = knobs.clone();
        knobs.priority_levels = knobs.priority_levels.max(1);
        knobs.default_priority_level = knobs.default_priority_level.clamp(1, knobs.priority_levels);
        knobs.level_queues.sort_by_key(|&(level, _)| level);
        Self { knobs }
    }

    /// Returns the level of a request with this priority. 0 and values out of range mean the default level.
    pub(crate) fn level_of(&self, priority: u64) -> u64 {
        let QueueingKnobs { priority_levels, default_priority_level, .. } = self.knobs;
        if (1..=priority_levels).contains(&priority) { priority } else { default_priority_level }
    }

    /// Returns the queue policy of a level.
    pub(crate) fn queue_of(&self, level: u64) -> &QueueKnobs {
        let QueueingKnobs { level_queues, default_queue, .. } = &self.knobs;
        let own = level_queues.binary_search_by_key(&level, |&(level, _)| level);
        own.map_or(default_queue, |at| &level_queues[at].1)
    }

    /// Returns when the queue timeout of a request ends that arrives now at `level` and asks for `requested`. An
    /// override can only shorten the default timeout. If there is no default timeout, any override applies; Triton
    /// would compare the override with 0 and ignore it.
    pub(crate) fn queue_deadline(&self, level: u64, now: Instant, requested: Option<Instant>) -> Instant {
        let queue = self.queue_of(level);
        let default = match queue.default_timeout_ns {
            0 => Instant::NEVER,
            timeout_ns => now + timeout_ns,
        };
        match requested {
            Some(requested) if queue.allow_timeout_override => default.min(requested),
            _ => default,
        }
    }
}
