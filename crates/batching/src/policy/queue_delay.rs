//! How long requests wait for a fuller batch, and how many of them form that batch: preferred sizes and the
//! queue delay of Triton's dynamic batcher. `window` and the newcomers of sequences use it.

use smallvec::SmallVec;

use super::WindowKnobs;
use crate::{Instant, Ns, ids::RequestIx, ledger::Ledger};

/// The preferred sizes and the delay.
#[derive(Debug)]
pub(crate) struct QueueDelay {
    /// Preferred sizes, ascending, never empty.
    preferred: SmallVec<[u32; 4]>,
    max_rows: u64,
    delay_ns: Ns,
}

/// The batch that waiting requests would form.
#[derive(Clone, Copy, Debug, Default)]
struct Forming {
    /// Number of requests up to the largest batch.
    requests: u32,
    /// Rows of these requests.
    rows: u64,
    /// Arrival time of the oldest of them.
    oldest: Instant,
    /// Number of requests up to the largest preferred size that a prefix reaches exactly. If no prefix does, the number
    /// of requests before the one that would exceed all preferred sizes.
    preferred: Option<u32>,
}

impl QueueDelay {
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

    /// Returns how many of the waiting requests, in boarding order, form a batch now.
    pub(crate) fn cut(&self, now: Instant, waiting: impl Iterator<Item = RequestIx>, ledger: &Ledger) -> u32 {
        let forming = self.form(waiting, ledger);
        let delay_exceeded = self.delay_ns != 0 && now.since(forming.oldest) >= self.delay_ns;
        match forming.preferred {
            Some(requests) if !delay_exceeded => requests,
            _ => forming.requests,
        }
    }

    /// Returns until when the waiting requests, of `rows` rows, wait for more if no other request waits; `None`: they
    /// are launched at once.
    pub(crate) fn waits_until(
        &self,
        rows: u64,
        waiting: impl Iterator<Item = RequestIx>,
        ledger: &Ledger,
    ) -> Option<Instant> {
        if self.delay_ns == 0 || rows >= u64::from(self.largest_preferred()) {
            return None;
        }
        let forming = self.form(waiting, ledger);
        forming.preferred.is_none().then(|| forming.oldest + self.delay_ns)
    }

    fn form(&self, waiting: impl Iterator<Item = RequestIx>, ledger: &Ledger) -> Forming {
        let mut forming = Forming { oldest: Instant::NEVER, ..Forming::default() };
        for request_ix in waiting {
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
