//! The policy `window`: Triton's dynamic batcher.
//!
//! The pending batch belongs to the sub-queue whose first request boards next (by level, then by arrival). It has the
//! requests of that sub-queue in boarding order, as many as the largest batch holds. When a lane is offered,
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

use smallvec::SmallVec;

use super::{BatchLimits, BatchPolicy, Decision, PolicyKnobs, Requirements, Selection, View, serial::Serial};
use crate::batching::{
    Ns,
    ids::SubQueueIx,
    ledger::{Ledger, Request},
    queue::SubQueue,
};

/// Triton's `dynamic_batching`, with times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowKnobs {
    /// Batch sizes in rows that are launched at once, ascending. Sizes that no batch can have are ignored; if none is
    /// left, the largest batch is the only preferred size.
    pub preferred_batch_sizes: Vec<u32>,
    /// Maximum time that the oldest request waits for a preferred size.
    pub max_queue_delay_ns: Ns,
}

impl PolicyKnobs for WindowKnobs {
    const NAME: &'static str = "window";

    fn start(&self, limits: BatchLimits) -> Box<dyn BatchPolicy> {
        // Requests that cannot be merged are launched at once, each by itself.
        if limits.mergeable { Box::new(Window::new(limits.max_rows, self)) } else { Box::new(Serial) }
    }

    fn requirements(&self) -> Requirements {
        Requirements { costs: false, ..Requirements::default() }
    }
}

/// The batch that a sub-queue would form.
#[derive(Clone, Copy, Debug, Default)]
struct Forming {
    /// Number of requests up to the largest batch.
    requests: u32,
    /// Rows of these requests.
    rows: u64,
    /// Arrival time of the oldest of them.
    oldest: Ns,
    /// Number of requests up to the largest preferred size that a prefix reaches exactly. If no prefix does, the number
    /// of requests before the one that would exceed all preferred sizes.
    preferred: Option<u32>,
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
    /// Preferred sizes, ascending, never empty.
    preferred: SmallVec<[u32; 4]>,
    max_rows: u64,
    delay_ns: Ns,
    latest: Latest,
}

impl BatchPolicy for Window {
    fn arrived(&mut self, _: Ns, sub_queue: SubQueueIx, request: &Request) {
        self.latest.arrived(sub_queue, request.seq);
    }

    fn board(&mut self, view: &View<'_>) -> Decision {
        let View { now, pending, ledger, .. } = *view;
        let mut sub_queues = pending.in_order();
        let Some((sub_queue, entry)) = sub_queues.next() else { return Decision::Nothing };
        let is_closed = sub_queues.next().is_some() || self.latest.is_behind(sub_queue, entry, ledger);
        if !is_closed
            && let Some(due) = self.waits_until(entry, ledger)
            && due > now
        {
            return Decision::Wait(due);
        }
        let selection = Selection::First(self.cut(now, entry, ledger));
        Decision::New { sub_queue, selection, accepts_newcomers: true }
    }
}

impl Window {
    fn new(max_rows: u32, window: &WindowKnobs) -> Self {
        let max_rows = max_rows.max(1);
        let sizes = window.preferred_batch_sizes.iter().copied();
        let mut preferred: SmallVec<[u32; 4]> = sizes.filter(|size| (1..=max_rows).contains(size)).collect();
        preferred.sort_unstable();
        if preferred.is_empty() {
            preferred.push(max_rows);
        }
        Self {
            preferred,
            max_rows: u64::from(max_rows),
            delay_ns: window.max_queue_delay_ns,
            latest: Latest::default(),
        }
    }

    /// Returns how many requests of a sub-queue form its batch now.
    fn cut(&self, now: Ns, sub_queue: &SubQueue, ledger: &Ledger) -> u32 {
        let forming = self.form(sub_queue, ledger);
        let delay_exceeded = self.delay_ns != 0 && now.saturating_sub(forming.oldest) >= self.delay_ns;
        match forming.preferred {
            Some(requests) if !delay_exceeded => requests,
            _ => forming.requests,
        }
    }

    /// Returns until when a sub-queue waits for more requests if no other request waits; `None`: its batch is launched
    /// at once.
    fn waits_until(&self, sub_queue: &SubQueue, ledger: &Ledger) -> Option<Ns> {
        if self.delay_ns == 0 || sub_queue.rows >= u64::from(self.largest_preferred()) {
            return None;
        }
        let may_hit_preferred = sub_queue.rows >= u64::from(self.preferred[0]);
        if may_hit_preferred && self.form(sub_queue, ledger).preferred.is_some() {
            return None;
        }
        // Below the largest preferred size, the batch contains the whole sub-queue, so both have the same oldest
        // request.
        let oldest = sub_queue.oldest(ledger).unwrap_or_default();
        Some(oldest.saturating_add(self.delay_ns))
    }

    fn form(&self, sub_queue: &SubQueue, ledger: &Ledger) -> Forming {
        let mut forming = Forming { oldest: Ns::MAX, ..Forming::default() };
        for request_ix in sub_queue.iter(ledger) {
            let request = &ledger[request_ix];
            let grown = forming.rows + u64::from(request.rows);
            if forming.requests > 0 {
                // No preferred size was hit exactly, and the next request would exceed the largest: as in Triton, the
                // batch is ready as it is.
                if grown > u64::from(self.largest_preferred()) && forming.preferred.is_none() {
                    forming.preferred = Some(forming.requests);
                }
                if grown > self.max_rows {
                    break;
                }
            }
            forming.requests += 1;
            forming.rows = grown;
            forming.oldest = forming.oldest.min(request.arrived);
            if self.preferred.iter().any(|&size| u64::from(size) == grown) {
                forming.preferred = Some(forming.requests);
            }
        }
        forming
    }

    fn largest_preferred(&self) -> u32 {
        self.preferred[self.preferred.len() - 1]
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
