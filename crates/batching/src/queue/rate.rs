//! The arrival rate λ: of a queue, and as the policy `adaptive` measures it.

use crate::Ns;

/// The window of Efficient Adaptive Batching, algorithm 1: one second.
const PAPER_WINDOW_NS: Ns = 1_000_000_000;

/// Counted arrivals enter the average after each such fraction of the averaging time.
const FOLDS: Ns = 8;

/// Averaging time by default. Long enough to measure the load of the next batches and not the latest burst.
const AVERAGE_NS: Ns = 1_000_000_000;

/// An exponential average over measured time, in which each row counts for 1 / `average_ns`; or, as published, the
/// count of the last whole second.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    /// Averaging time; `None`: as published.
    average_ns: Option<Ns>,
    /// Rows per nanosecond, as of `since`.
    per_ns: f64,
    since: Ns,
    /// Rows counted since `since`.
    count: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self::new(Some(AVERAGE_NS), 0)
    }
}

impl Rate {
    /// Creates an average over `average_ns` (`None`: the count of the last whole second), counting from `now` on.
    pub(crate) fn new(average_ns: Option<Ns>, now: Ns) -> Self {
        Self { average_ns: average_ns.map(|ns| ns.max(1)), per_ns: 0.0, since: now, count: 0 }
    }

    /// Counts `rows` arrived rows. Returns whether earlier rows entered the average first.
    pub(crate) fn add(&mut self, now: Ns, rows: u32) -> bool {
        let rolled = self.roll(now);
        self.count += u64::from(rows);
        rolled
    }

    /// Returns the rate in rows per nanosecond.
    pub(crate) fn at(&self, now: Ns) -> f64 {
        let Some(average_ns) = self.average_ns else { return self.per_ns };
        let (average, elapsed) = (average_ns as f64, now.saturating_sub(self.since) as f64);
        (average * self.per_ns + self.count as f64) / (average + elapsed)
    }

    /// Moves the count into the rate if it is time to, and returns whether it did.
    pub(crate) fn roll(&mut self, now: Ns) -> bool {
        let elapsed = now.saturating_sub(self.since);
        match self.average_ns {
            None => {
                let windows = elapsed / PAPER_WINDOW_NS;
                if windows == 0 {
                    return false;
                }
                self.per_ns = if windows == 1 { self.count as f64 / PAPER_WINDOW_NS as f64 } else { 0.0 };
                self.since += windows * PAPER_WINDOW_NS;
            }
            Some(average_ns) => {
                if elapsed < (average_ns / FOLDS).max(1) {
                    return false;
                }
                self.per_ns = self.at(now);
                self.since = now;
            }
        }
        self.count = 0;
        true
    }
}
