//! The rate of arrivals λ, as the policies measure it.

use crate::batching::Ns;

/// The window of Efficient Adaptive Batching, algorithm 1: one second.
const PAPER_WINDOW_NS: Ns = 1_000_000_000;

/// Parts of the averaging time after which counted arrivals enter the average.
const FOLDS: Ns = 8;

/// An exponential average over measured time, in which each row counts for one `average_ns`-th; or, as published, the
/// count of the last whole second.
#[derive(Clone, Debug)]
pub(in crate::batching) struct Rate {
    /// None: as published.
    average_ns: Option<Ns>,
    /// Rows per nanosecond, as of `since`.
    per_ns: f64,
    since: Ns,
    /// Rows since then.
    count: u64,
}

impl Rate {
    /// An average over so long, from `now` on.
    pub(in crate::batching) fn averaged(average_ns: Ns, now: Ns) -> Self {
        Self { average_ns: Some(average_ns.max(1)), per_ns: 0.0, since: now, count: 0 }
    }

    /// The count of the last whole second.
    pub(in crate::batching) fn of_seconds(now: Ns) -> Self {
        Self { average_ns: None, per_ns: 0.0, since: now, count: 0 }
    }

    /// So many rows have arrived. Whether earlier ones have entered the average for it.
    pub(in crate::batching) fn add(&mut self, now: Ns, rows: u32) -> bool {
        let rolled = self.roll(now);
        self.count += u64::from(rows);
        rolled
    }

    /// Rows per nanosecond.
    pub(in crate::batching) fn at(&self, now: Ns) -> f64 {
        let Some(average_ns) = self.average_ns else { return self.per_ns };
        let (average, elapsed) = (average_ns as f64, now.saturating_sub(self.since) as f64);
        (average * self.per_ns + self.count as f64) / (average + elapsed)
    }

    /// Takes the count into the rate and zeroes it, in one step, where it is time; whether it was.
    pub(in crate::batching) fn roll(&mut self, now: Ns) -> bool {
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
