//! Detects programs whose runs are so short that handing one to a lane costs more than the run.

use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum run time on a thread that serves connections. An asynchronous task may take this long between two awaits
/// without harming others.
const SHORT_NS: u64 = 50_000;

/// Marks a run that is not known to be short.
const UNKNOWN: u64 = u64::MAX;

/// Size of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rows: u32,
    pub(crate) input_bytes: usize,
}

/// The longest recent run of one program, which rises at once and decays by a sixteenth per run; and the largest size
/// whose run was short. Nothing is known about larger sizes.
#[derive(Debug)]
pub(crate) struct ShortRunDetector {
    longest_ns: AtomicU64,
    /// Rows in the upper half, bytes of inputs in the lower; 0 before the first short run.
    largest_short: AtomicU64,
    /// Whether past runs predict the next one.
    steady: bool,
}

impl ShortRunDetector {
    pub(crate) fn new(steady: bool) -> Self {
        Self { longest_ns: AtomicU64::new(UNKNOWN), largest_short: AtomicU64::new(0), steady }
    }

    /// Records a run.
    pub(crate) fn ran(&self, size: impl FnOnce() -> Size, ns: u64) {
        if !self.steady {
            return;
        }
        let before = self.longest_ns.load(Ordering::Relaxed);
        let longest = if before == UNKNOWN { ns } else { ns.max(before - before / 16) };
        // Lanes may overwrite each other's value; the next run corrects it.
        self.longest_ns.store(longest, Ordering::Relaxed);
        let largest = self.largest_short.load(Ordering::Relaxed);
        let size = size();
        match packed(size) {
            Some(ran) if ns <= SHORT_NS && covers(ran, largest) => self.largest_short.store(ran, Ordering::Relaxed),
            // A size that was short is no longer short, so learning starts over.
            Some(ran) if ns > SHORT_NS && covers(largest, ran) => self.largest_short.store(0, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Whether the next run is expected to be short at this size.
    pub(crate) fn is_short(&self, size: impl FnOnce() -> Size) -> bool {
        self.steady
            && self.longest_ns.load(Ordering::Relaxed) <= SHORT_NS
            && packed(size()).is_some_and(|size| covers(self.largest_short.load(Ordering::Relaxed), size))
    }
}

/// Packs a size into one number; `None` if it does not fit, which is never short.
fn packed(Size { rows, input_bytes }: Size) -> Option<u64> {
    u32::try_from(input_bytes).ok().map(|bytes| u64::from(rows) << 32 | u64::from(bytes))
}

/// Whether neither the rows nor the bytes of the second exceed those of the first.
fn covers(first: u64, second: u64) -> bool {
    let (rows, bytes) = (|size: u64| size >> 32, |size: u64| size & u64::from(u32::MAX));
    rows(second) <= rows(first) && bytes(second) <= bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn rows(rows: u32) -> Size {
        Size { rows, input_bytes: rows as usize * 64 }
    }

    #[test]
    fn only_steady_programs_with_short_runs_are_short() {
        let (steady, unsteady) = (ShortRunDetector::new(true), ShortRunDetector::new(false));
        assert!(!steady.is_short(|| rows(1)), "nothing is known before the first run");
        for short_runs in [&steady, &unsteady] {
            short_runs.ran(|| rows(1), 10_000);
        }
        assert!(steady.is_short(|| rows(1)) && !unsteady.is_short(|| rows(1)));
    }

    #[test]
    fn one_long_run_counts_for_a_while() {
        let short_runs = ShortRunDetector::new(true);
        short_runs.ran(|| rows(1), 200_000);
        short_runs.ran(|| rows(1), 10_000);
        assert!(!short_runs.is_short(|| rows(1)), "the long run was just now");
        for _ in 0..30 {
            short_runs.ran(|| rows(1), 10_000);
        }
        assert!(short_runs.is_short(|| rows(1)));
    }

    #[test]
    fn nothing_is_known_of_more_rows_or_bytes_than_were_short() {
        let short_runs = ShortRunDetector::new(true);
        short_runs.ran(|| rows(4), 10_000);
        assert!(short_runs.is_short(|| rows(4)) && short_runs.is_short(|| rows(1)));
        assert!(!short_runs.is_short(|| rows(5)));
        assert!(!short_runs.is_short(|| Size { rows: 1, input_bytes: 4 * 64 + 1 }), "one row may bring long strings");
        short_runs.ran(|| Size { rows: 1, input_bytes: 1 << 20 }, 10_000);
        assert!(!short_runs.is_short(|| Size { rows: 4, input_bytes: 1 << 20 }), "no run had as much of both");
        assert!(!short_runs.is_short(|| Size { rows: 1, input_bytes: 1 << 32 }));
        short_runs.ran(|| rows(8), 10_000);
        assert!(short_runs.is_short(|| rows(8)));
    }

    #[test]
    fn a_size_whose_runs_become_long_is_not_short_again_until_it_was_seen_so() {
        let short_runs = ShortRunDetector::new(true);
        short_runs.ran(|| rows(8), 10_000);
        short_runs.ran(|| rows(8), 60_000);
        for _ in 0..30 {
            short_runs.ran(|| rows(1), 10_000);
        }
        assert!(short_runs.is_short(|| rows(1)) && !short_runs.is_short(|| rows(8)));
    }
}
