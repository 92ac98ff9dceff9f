//! How many runs an engine has in progress.
//!
//! A run that has the processor to itself is fastest on all threads. When several runs share the cores, the threads of
//! one wait for those of another at every operator, and each run is faster on fewer threads. Both engines fix a graph's
//! threads when they compile it, so they compile it twice, and each run chooses when it starts
//! (docs/decisions/0057-graphs-compiled-for-one-thread.md).

use std::sync::atomic::{AtomicUsize, Ordering};

/// Graphs with more bytes than this, weights included, are compiled for all threads only, because each compiled graph
/// keeps its own copy of the weights.
pub(super) const MAX_COPIED_BYTES: usize = 1 << 30;

/// The runs in progress, over all graphs of an engine.
#[derive(Debug, Default)]
pub(super) struct RunsInProgress(AtomicUsize);

/// A run in progress; it ends when this is dropped.
pub(super) struct RunInProgress<'a>(&'a RunsInProgress);

impl RunsInProgress {
    /// Counts a run until the guard is dropped. Returns also the number of runs in progress, with this one.
    pub(super) fn begin(&self) -> (RunInProgress<'_>, usize) {
        // The count only guides a choice that is right either way, so its order with other memory does not matter.
        let runs = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        (RunInProgress(self), runs)
    }
}

impl RunInProgress<'_> {
    /// Returns whether no other run is in progress.
    pub(super) fn is_only(&self) -> bool {
        self.0.0.load(Ordering::Relaxed) == 1
    }
}

impl Drop for RunInProgress<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_until_it_ends() {
        let running = RunsInProgress::default();
        let (first, one) = running.begin();
        assert!(first.is_only());
        let (second, two) = running.begin();
        assert!(!first.is_only());
        drop(first);
        let (third, again_two) = running.begin();
        assert_eq!((one, two, again_two), (1, 2, 2));
        drop((second, third));
        assert_eq!(running.begin().1, 1);
    }
}
