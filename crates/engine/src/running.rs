//! How many runs an engine has in progress.
//!
//! A run that has the processor to itself is fastest on all threads. When several runs share the cores, the threads of
//! one wait for those of another at every operator, and each run is faster on fewer threads. Both engines fix a graph's
//! threads when they compile it, so they compile it twice, and each run chooses when it starts
//! (docs/decisions/0057-graphs-compiled-for-one-thread.md).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Graphs with more bytes than this, weights included, are compiled for all threads only, because each compiled graph
/// keeps its own copy of the weights.
pub(super) const MAX_COPIED_BYTES: usize = 1 << 30;

/// The runs in progress, over all graphs of an engine, and what may have freed memory.
#[derive(Debug, Default)]
pub(super) struct RunsInProgress {
    runs: AtomicUsize,
    changes: AtomicUsize,
}

/// What an engine does, and has done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    /// Runs in progress.
    pub(super) runs: usize,
    /// Runs that have ended, and graphs that were compiled or dropped. It starts again at 0 after the largest number.
    pub(super) changes: usize,
}

/// A run in progress; it ends when this is dropped.
pub(super) struct RunInProgress<'a>(&'a RunsInProgress);

impl RunsInProgress {
    /// Counts a run until the guard is dropped. Returns also the number of runs in progress, with this one.
    pub(super) fn begin(&self) -> (RunInProgress<'_>, usize) {
        // The count only guides a choice that is right either way, so its order with other memory does not matter.
        let runs = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        (RunInProgress(self), runs)
    }

    fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn activity(&self) -> Activity {
        Activity { runs: self.runs.load(Ordering::Relaxed), changes: self.changes.load(Ordering::Relaxed) }
    }
}

impl RunInProgress<'_> {
    /// Returns whether no other run is in progress.
    pub(super) fn is_only(&self) -> bool {
        self.0.runs.load(Ordering::Relaxed) == 1
    }
}

/// Counts that a graph has been compiled and, when it is dropped, that its memory has been freed. Must be the graph's
/// last field.
pub(super) struct CountedGraph(Arc<RunsInProgress>);

impl CountedGraph {
    pub(super) fn new(runs: &Arc<RunsInProgress>) -> Self {
        runs.count_change();
        Self(Arc::clone(runs))
    }
}

impl Drop for CountedGraph {
    fn drop(&mut self) {
        self.0.count_change();
    }
}

impl Drop for RunInProgress<'_> {
    fn drop(&mut self) {
        self.0.runs.fetch_sub(1, Ordering::Relaxed);
        self.0.count_change();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_until_it_ends() {
        let running = Arc::<RunsInProgress>::default();
        let (first, one) = running.begin();
        assert!(first.is_only());
        let (second, two) = running.begin();
        assert!(!first.is_only());
        drop(first);
        let (third, again_two) = running.begin();
        assert_eq!((one, two, again_two), (1, 2, 2));
        drop((second, third));
        assert_eq!(running.begin().1, 1);
        let Activity { runs, changes } = running.activity();
        assert_eq!((runs, changes), (0, 4), "all runs have ended");
        let graph = CountedGraph::new(&running);
        assert_eq!(running.activity().changes, 5);
        drop(graph);
        assert_eq!(running.activity().changes, 6);
    }
}
