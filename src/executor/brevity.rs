//! Whether a program's runs are so short that handing one to a lane costs more than the run.

use std::sync::atomic::{AtomicU64, Ordering};

/// Runs up to this long may happen on a thread that serves connections: within what an asynchronous task may take
/// between two awaits without harm to others.
const SHORT_NS: u64 = 50_000;

/// A run not known to be short.
const UNKNOWN: u64 = u64::MAX;

/// The longest of the recent runs of one program: it rises at once, and falls by a sixteenth a run.
#[derive(Debug)]
pub(super) struct Brevity {
    longest_ns: AtomicU64,
    /// Whether past runs tell anything of the next.
    steady: bool,
}

impl Brevity {
    pub(super) fn new(steady: bool) -> Self {
        Self { longest_ns: AtomicU64::new(UNKNOWN), steady }
    }

    /// Takes note of a run.
    pub(super) fn ran(&self, ns: u64) {
        let before = self.longest_ns.load(Ordering::Relaxed);
        let longest = if before == UNKNOWN { ns } else { ns.max(before - before / 16) };
        // Lanes may lose each other's note; the next run makes it again.
        self.longest_ns.store(longest, Ordering::Relaxed);
    }

    /// Whether the next run can be expected to be short.
    pub(super) fn is_short(&self) -> bool {
        self.steady && self.longest_ns.load(Ordering::Relaxed) <= SHORT_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_steady_programs_with_short_runs_are_short() {
        let (steady, unsteady) = (Brevity::new(true), Brevity::new(false));
        assert!(!steady.is_short(), "nothing is known before the first run");
        for brevity in [&steady, &unsteady] {
            brevity.ran(10_000);
        }
        assert!(steady.is_short() && !unsteady.is_short());
    }

    #[test]
    fn one_long_run_counts_for_a_while() {
        let brevity = Brevity::new(true);
        brevity.ran(200_000);
        brevity.ran(10_000);
        assert!(!brevity.is_short(), "the long run was just now");
        for _ in 0..30 {
            brevity.ran(10_000);
        }
        assert!(brevity.is_short());
    }
}
