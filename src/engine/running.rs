//! How many runs an engine has in progress, and so whether a run should use all threads or one.
//!
//! A run that has the processor to itself is fastest on all threads. When several runs share the cores, the threads of
//! one wait for those of another at every operator, and each run is faster on a single thread
//! (docs/decisions/0057-graphs-compiled-for-one-thread.md). Both engines fix a graph's threads when they compile it, so
//! they compile it twice, and each run chooses when it starts.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Graphs with more bytes than this, weights included, are not compiled for one thread, because each compiled graph
/// keeps its own copy of the weights.
pub(super) const MAX_COPIED_BYTES: usize = 1 << 30;

/// The runs in progress, over all graphs of an engine.
#[derive(Debug)]
pub(super) struct RunsInProgress {
    count: AtomicUsize,
    threads: usize,
}

/// A run in progress; it ends when this is dropped.
pub(super) struct RunInProgress<'a>(&'a RunsInProgress);

impl RunsInProgress {
    /// Counts runs that share `threads` threads.
    pub(super) fn new(threads: usize) -> Self {
        Self { count: AtomicUsize::new(0), threads }
    }

    /// Counts a run until the guard is dropped. Returns also whether the run should use its own thread alone: it should
    /// if the runs in progress, one thread each, occupy more than half of the threads.
    pub(super) fn begin(&self) -> (RunInProgress<'_>, bool) {
        // The count only guides a choice that is right either way, so its order with other memory does not matter.
        let running = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        (RunInProgress(self), running > 1 && 2 * running > self.threads)
    }
}

impl Drop for RunInProgress<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone_of(threads: usize, runs: usize) -> Vec<bool> {
        let running = RunsInProgress::new(threads);
        let begun: Vec<_> = (0..runs).map(|_| running.begin()).collect();
        let alone = begun.iter().map(|(_, alone)| *alone).collect();
        drop(begun);
        assert_eq!(running.count.load(Ordering::Relaxed), 0, "every run ended");
        alone
    }

    #[test]
    fn a_run_that_shares_the_cores_uses_its_own_thread() {
        assert_eq!(alone_of(2, 3), [false, true, true]);
        assert_eq!(alone_of(8, 6), [false, false, false, false, true, true]);
    }

    #[test]
    fn a_single_run_uses_all_threads() {
        assert_eq!(alone_of(1, 1), [false]);
        assert_eq!(alone_of(16, 1), [false]);
    }
}
