//! How long a sub-queue waits for a fuller batch, and how many of its requests form that batch: preferred sizes and the
//! queue delay of Triton's dynamic batcher. `window` and the newcomers of sequences use it.

use smallvec::SmallVec;

use super::WindowKnobs;
use crate::{Ns, ledger::Ledger, queue::SubQueue};

/// The preferred sizes and the delay.
#[derive(Debug)]
pub(crate) struct Filling {
    /// Preferred sizes, ascending, never empty.
    preferred: SmallVec<[u32; 4]>,
    max_rows: u64,
    delay_ns: Ns,
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

impl Filling {
    pub(crate) fn new(max_rows: u32, window: &WindowKnobs) -> Self {
        let max_rows = max_rows.max(1);
        let sizes = window.preferred_batch_sizes.iter().copied();
        let mut preferred: SmallVec<[u32; 4]> = sizes.filter(|size| (1..=max_rows).contains(size)).collect();
        preferred.sort_unstable();
        if preferred.is_empty() {
            preferred.push(max_rows);
        }
        Self { preferred, max_rows: u64::from(max_rows), delay_ns: window.max_queue_delay_ns }
    }

    /// Returns how many requests of a sub-queue form its batch now.
    pub(crate) fn cut(&self, now: Ns, sub_queue: &SubQueue, ledger: &Ledger) -> u32 {
        let forming = self.form(sub_queue, ledger);
        let delay_exceeded = self.delay_ns != 0 && now.saturating_sub(forming.oldest) >= self.delay_ns;
        match forming.preferred {
            Some(requests) if !delay_exceeded => requests,
            _ => forming.requests,
        }
    }

    /// Returns until when a sub-queue waits for more requests if no other request waits; `None`: its batch is launched
    /// at once.
    pub(crate) fn waits_until(&self, sub_queue: &SubQueue, ledger: &Ledger) -> Option<Ns> {
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
