//! The subgraphs of the segment that a request is in. A tree has as many as leaves, so nothing that happens for each of
//! its nodes goes through them all.

use smallvec::SmallVec;

use super::queues::SubgraphIx;

/// Subgraphs that entered together, and how many of them are not complete.
#[derive(Debug, Default)]
pub(super) struct Members {
    all: SmallVec<[SubgraphIx; 1]>,
    open: u32,
    /// How many were gone through, one by one.
    #[cfg(test)]
    visited: std::cell::Cell<u64>,
}

impl Members {
    pub(super) fn push(&mut self, subgraph: SubgraphIx) {
        self.all.push(subgraph);
        self.open += 1;
    }

    /// Forgets those of the segment before.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.open = 0;
    }

    /// One of them is complete; whether all are.
    pub(super) fn complete_one(&mut self) -> bool {
        self.open -= 1;
        self.open == 0
    }

    /// Those that are not complete.
    pub(super) fn open(&self) -> u32 {
        self.open
    }

    /// The one that entered first, complete or not.
    pub(super) fn first(&self) -> Option<SubgraphIx> {
        self.all.first().copied()
    }

    /// All that entered. The indices of those that are complete may be another's by now.
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
