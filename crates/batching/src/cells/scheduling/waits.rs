//! How long each cell type has waited, and the bound on that.
//!
//! The gain of waiting for a fuller batch assumes that requests keep coming. Where none follow, the rows of one type
//! could wait until nearly all others are done, for thousands of their steps. So a type that has waited for
//! [`MOST_ROUNDS`] rounds runs next, where a round is one task of every type with ready rows. Types that usually wait
//! for less never meet the bound, and the tasks that it starts take at most one part in [`MOST_ROUNDS`] of the model's
//! time on the device, however many types there are.

use smallvec::SmallVec;

use crate::{CellId, Ns};

/// Number of rounds after which a type runs next.
const MOST_ROUNDS: u64 = 20;

/// How long the rows of each type have waited. What counts is the time of the tasks that the model launches meanwhile:
/// other models' tasks say nothing about which of its types should run.
#[derive(Debug)]
pub(super) struct Waits {
    /// Sum of the durations of all tasks launched so far, as predicted.
    launched_ns: Ns,
    /// By type: this sum when it was first found to have ready rows after its last task; `None` if it has none.
    since_ns: Box<[Option<Ns>]>,
}

impl Waits {
    pub(super) fn new(cells: usize) -> Self {
        Self { launched_ns: 0, since_ns: (0..cells).map(|_| None).collect() }
    }

    /// Notes whether a type has ready rows.
    pub(super) fn note(&mut self, cell: CellId, is_ready: bool) {
        let since_ns = &mut self.since_ns[usize::from(cell.0)];
        *since_ns = is_ready.then(|| since_ns.unwrap_or(self.launched_ns));
    }

    /// Notes that a task of a type is launched. Rows that it leaves wait for the next.
    pub(super) fn launched(&mut self, cell: CellId, duration_ns: Ns) {
        self.launched_ns = self.launched_ns.saturating_add(duration_ns);
        self.since_ns[usize::from(cell.0)] = None;
    }

    /// Returns the type that has waited longest, if that is too long. `ready` has the types that could run, and the
    /// duration of a task of each; nothing is too long until all are known.
    pub(super) fn overdue(&self, ready: &[(CellId, Option<Ns>)]) -> Option<CellId> {
        let durations: SmallVec<[Ns; 4]> = ready.iter().map(|(_, duration_ns)| *duration_ns).collect::<Option<_>>()?;
        let round_ns = durations.into_iter().fold(0, Ns::saturating_add);
        let waits = ready.iter().filter_map(|&(cell, _)| Some((self.since_ns[usize::from(cell.0)]?, cell)));
        let (since_ns, cell) = waits.min()?;
        (self.launched_ns - since_ns > round_ns.saturating_mul(MOST_ROUNDS)).then_some(cell)
    }
}
