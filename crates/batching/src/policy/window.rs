//! The policy `window`: Triton's dynamic batcher.
//!
//! The pending batch belongs to the sub-queue whose first request boards next (by level, then by arrival). It has the
//! requests of that sub-queue in boarding order, as many as the largest batch holds. Where lengths differ, it has those
//! that gain from a common batch ([`CandidateBatch`]). When a lane is offered,
//! - a batch is cut to the largest preferred size that it reaches and launched, unless its oldest request has waited
//!   the whole queue delay;
//! - a batch past that delay is launched with all its requests;
//! - a batch that the next request would take past the largest preferred size is launched without it;
//! - a batch that a waiting request cannot join is launched as it is;
//! - any other batch waits for more requests or for its delay; with delay 0 it is launched at once.
//!
//! A batch keeps growing until a lane takes it. Triton's batch ends at the first request that cannot join it. Here,
//! later requests that can join board too. A request that they overtake counts as if they came behind it: its batch is
//! launched next and does not wait either.

use super::{
    BatchLimits, BatchPolicy, Decision, PolicyKnobs, RequestView, Requirements, View, candidate::CandidateBatch,
    queue_delay::QueueDelay, serial::Serial,
};
use crate::{Instant, Ns, ids::SubQueueIx, ledger::Ledger, queue::SubQueue};

/// Triton's `dynamic_batching`, with times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowKnobs {
    /// Batch sizes in rows that are launched at once, ascending. Sizes that no batch can have are ignored; if none is
    /// left, the largest batch is the only preferred size.
    pub preferred_batch_sizes: Vec<u32>,
    /// Maximum time that the oldest request waits for a preferred size.
    pub max_queue_delay_ns: Ns,
}

impl PolicyKnobs for WindowKnobs {
    fn start(&self, limits: BatchLimits) -> Box<dyn BatchPolicy> {
        // Requests that cannot be merged are launched at once, each by itself.
        if limits.mergeable {
            Box::new(Window { queue_delay: QueueDelay::new(limits.max_rows, self), latest: Latest::default() })
        } else {
            Box::new(Serial)
        }
    }

    fn requirements(&self) -> Requirements {
        Requirements { costs: false, ..Requirements::default() }
    }
}

/// The latest arrival, and the latest arrival in any other sub-queue.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    sub_queue: SubQueueIx,
    seq: Option<u64>,
    elsewhere: Option<u64>,
}

/// The policy with its state for one version.
#[derive(Debug)]
struct Window {
    queue_delay: QueueDelay,
    latest: Latest,
}

impl BatchPolicy for Window {
    fn arrived(&mut self, _: Instant, sub_queue: SubQueueIx, request: RequestView<'_>) {
        self.latest.arrived(sub_queue, request.request.seq);
    }

    fn board(&mut self, view: &View<'_>) -> Decision {
        let View { now, pending, ledger, .. } = *view;
        let mut sub_queues = pending.in_order();
        let Some((sub_queue, entry)) = sub_queues.next() else { return Decision::Nothing };
        let candidates = CandidateBatch::of(view, sub_queue, entry, view.max_rows);
        let others_wait = candidates.leaves_others() || sub_queues.next().is_some();
        let is_closed = others_wait || self.latest.is_behind(sub_queue, entry, ledger);
        if !is_closed
            && let Some(due) = self.queue_delay.waits_until(candidates.rows(), candidates.iter(view), ledger)
            && due > now
        {
            return Decision::Wait(due);
        }
        let requests = self.queue_delay.cut(now, candidates.iter(view), ledger);
        let selection = candidates.select(requests);
        Decision::New { sub_queue, selection, accepts_newcomers: true }
    }
}

impl Latest {
    fn arrived(&mut self, sub_queue: SubQueueIx, seq: u64) {
        if self.sub_queue != sub_queue {
            (self.sub_queue, self.elsewhere) = (sub_queue, self.seq);
        }
        self.seq = Some(seq);
    }

    /// Whether a request that cannot join this sub-queue arrived after the sub-queue's first request, even if it has
    /// left the queue since.
    fn is_behind(&self, sub_queue: SubQueueIx, entry: &SubQueue, ledger: &Ledger) -> bool {
        let latest = if self.sub_queue == sub_queue { self.elsewhere } else { self.seq };
        entry.rank(ledger).is_some_and(|(_, _, first)| latest > Some(first))
    }
}
