//! The arrival rate λ: of a queue, and as the policy `adaptive` measures it.

use crate::{Instant, Ns};

/// The window of Efficient Adaptive Batching, algorithm 1: one second.
const PAPER_WINDOW_NS: Ns = 1_000_000_000;

/// Counted arrivals enter the average after each such fraction of the averaging time.
const FOLDS: Ns = 8;

/// Averaging time by default. Long enough to measure the load of the next batches and not the latest burst.
const AVERAGE_NS: Ns = 1_000_000_000;

/// Time without rows, before the first, that counts at the start of a load: the rate of a few rows that come at once is
/// not without bound.
const BEFORE_NS: Ns = AVERAGE_NS / 100;

/// The row that ends such a pause starts a new load.
const PAUSE_NS: Ns = 4 * AVERAGE_NS;

/// An exponential average over measured time, in which each row counts for 1 / `average_ns`; or, as published, the
/// count of the last whole second.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    /// Averaging time; `None`: as published.
    average_ns: Option<Ns>,
    /// Whether it is measured from the start of a load, with the first row or the first after a pause. Otherwise the
    /// averaging time before `new` counts, as one without rows.
    is_of_load: bool,
    /// Rows per nanosecond, as of `since`.
    per_ns: f64,
    /// Time for which `per_ns` counts, at most `average_ns`; 0 before the first row of a load.
    known_ns: Ns,
    since: Instant,
    /// Rows counted since `since`.
    count: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { is_of_load: true, known_ns: 0, ..Self::new(Some(AVERAGE_NS), Instant::ZERO) }
    }
}

impl Rate {
    /// Creates an average over `average_ns` (`None`: the count of the last whole second), counting from `now` on.
    pub(crate) fn new(average_ns: Option<Ns>, now: Instant) -> Self {
        let average_ns = average_ns.map(|ns| ns.max(1));
        let known_ns = average_ns.unwrap_or(0);
        Self { average_ns, is_of_load: false, per_ns: 0.0, known_ns, since: now, count: 0 }
    }

    /// Counts `rows` arrived rows. Returns whether earlier rows entered the average first.
    pub(crate) fn add(&mut self, now: Instant, rows: u32) -> bool {
        let starts = self.known_ns == 0 || now.since(self.since) >= PAUSE_NS;
        if self.is_of_load && starts {
            // The first row tells when a load starts, and nothing of its rate.
            *self = Self { known_ns: BEFORE_NS, since: now, ..Self::default() };
            return true;
        }
        let rolled = self.roll(now);
        self.count += u64::from(rows);
        rolled
    }

    /// Returns the rate in rows per nanosecond.
    pub(crate) fn at(&self, now: Instant) -> f64 {
        if self.average_ns.is_none() || self.known_ns == 0 {
            return self.per_ns;
        }
        let (known, elapsed) = (self.known_ns as f64, now.since(self.since) as f64);
        (known * self.per_ns + self.count as f64) / (known + elapsed)
    }

    /// Moves the count into the rate if it is time to, and returns whether it did.
    pub(crate) fn roll(&mut self, now: Instant) -> bool {
        let elapsed = now.since(self.since);
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
                self.known_ns = self.known_ns.saturating_add(elapsed).min(average_ns);
                self.since = now;
            }
        }
        self.count = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    /// Returns the rate of a row each millisecond after `from`, as a share of what it is, after this time.
    fn share(rate: &mut Rate, from: Instant, after_ms: u64) -> f64 {
        for ms in 0..=after_ms {
            rate.add(from + ms * MS, 1);
        }
        rate.at(from + after_ms * MS) * MS as f64
    }

    #[test]
    fn a_load_has_its_rate_from_its_start_and_after_a_pause() {
        for after_ms in [90, 500, 3_000] {
            let mut rate = Rate::default();
            for from in [Instant::ZERO, Instant::from_ns(3_600_000 * MS)] {
                let share = share(&mut rate, from, after_ms);
                assert!((0.89..=1.0).contains(&share), "{after_ms} ms from {from:?} on: {share}");
            }
        }
    }

    #[test]
    fn an_average_that_counts_from_its_creation_on_rises_with_its_time() {
        let share = share(&mut Rate::new(Some(AVERAGE_NS), Instant::ZERO), Instant::ZERO, 90);
        assert!((0.08..0.1).contains(&share), "{share}");
    }

    #[test]
    fn rows_that_come_at_once_have_a_finite_rate() {
        let mut rate = Rate::default();
        assert_eq!(rate.at(Instant::from_ns(5 * MS)), 0.0);
        for _ in 0..65 {
            rate.add(Instant::from_ns(5 * MS), 1);
        }
        assert!((rate.at(Instant::from_ns(5 * MS)) * MS as f64 - 6.4).abs() < 1e-9, "{rate:?}");
    }

    #[test]
    fn a_short_gap_is_no_new_start() {
        let mut rate = Rate::default();
        share(&mut rate, Instant::ZERO, 2_000);
        let now = Instant::from_ns(3_000 * MS);
        rate.add(now, 1);
        let share = rate.at(now) * MS as f64;
        assert!((0.3..0.6).contains(&share), "{share}");
    }
}
