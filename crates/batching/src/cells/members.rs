//! The subgraphs of a request's current segment. A tree has one subgraph per leaf, so work done per node must not
//! iterate over all of them.

use smallvec::SmallVec;

use super::queues::SubgraphIx;

/// Subgraphs queued together, and the number of them that are not complete.
#[derive(Debug, Default)]
pub(super) struct Members {
    all: SmallVec<[SubgraphIx; 1]>,
    open: u32,
    /// Number of subgraphs visited by iteration.
    #[cfg(test)]
    visited: std::cell::Cell<u64>,
}

impl Members {
    pub(super) fn push(&mut self, subgraph: SubgraphIx) {
        self.all.push(subgraph);
        self.open += 1;
    }

    /// Removes the subgraphs of the previous segment.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.open = 0;
    }

    /// Counts one subgraph as complete, and returns whether all are.
    pub(super) fn complete_one(&mut self) -> bool {
        self.open -= 1;
        self.open == 0
    }

    /// Returns the number of incomplete subgraphs.
    pub(super) fn open(&self) -> u32 {
        self.open
    }

    /// Returns the subgraph that was added first, complete or not.
    pub(super) fn first(&self) -> Option<SubgraphIx> {
        self.all.first().copied()
    }

    /// Returns all subgraphs. The index of a complete one may have been reused.
    pub(super) fn iter(&self) -> impl Iterator<Item = SubgraphIx> {
        #[cfg(test)]
        self.visited.set(self.visited.get() + self.all.len() as u64);
        self.all.iter().copied()
    }

    #[cfg(test)]
    pub(super) fn visited(&self) -> u64 {
        self.visited.get()
    }
}
