//! Triton's priority levels and queue policies: at which level a request waits, how long, and how many may.

use crate::batching::{Ns, QueueKnobs, QueueingKnobs, ledger::NEVER};

/// The rules of one version's pending queue. `Default` is one level without limits, as for a model without a dynamic
/// batcher.
#[derive(Debug)]
pub(in crate::batching) struct QueueRules {
    levels: u64,
    default_level: u64,
    default_queue: QueueKnobs,
    /// Sorted by level.
    level_queues: Vec<(u64, QueueKnobs)>,
}

impl Default for QueueRules {
    fn default() -> Self {
        Self::new(&QueueingKnobs::default())
    }
}

impl QueueRules {
    pub(in crate::batching) fn new(knobs: &QueueingKnobs) -> Self {
        let levels = knobs.priority_levels.max(1);
        let mut level_queues = knobs.level_queues.clone();
        level_queues.sort_by_key(|&(level, _)| level);
        Self {
            levels,
            default_level: knobs.default_priority_level.clamp(1, levels),
            default_queue: knobs.default_queue,
            level_queues,
        }
    }

    /// The level of a request with this priority: 0 and values out of range mean the default level.
    pub(in crate::batching) fn level_of(&self, priority: u64) -> u64 {
        if (1..=self.levels).contains(&priority) { priority } else { self.default_level }
    }

    /// The queue policy of a level.
    pub(in crate::batching) fn queue_of(&self, level: u64) -> &QueueKnobs {
        match self.level_queues.binary_search_by_key(&level, |&(level, _)| level) {
            Ok(at) => &self.level_queues[at].1,
            Err(_) => &self.default_queue,
        }
    }

    /// When a request that arrives now at `level` and asks for `asked` has waited long enough. An override may only
    /// shorten the default timeout. No default timeout counts as one without end, so that any override shortens it;
    /// Triton compares with the 0 that stands for it and drops the override.
    pub(in crate::batching) fn board_by(&self, level: u64, now: Ns, asked: Option<Ns>) -> Ns {
        let queue = self.queue_of(level);
        let default = match queue.default_timeout_ns {
            0 => NEVER,
            timeout_ns => now.saturating_add(timeout_ns),
        };
        match asked {
            Some(asked) if queue.allow_timeout_override => default.min(asked),
            _ => default,
        }
    }
}
