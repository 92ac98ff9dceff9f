//! Single nodes that wait for company. A stage, such as the product of all tokens with the input weights, costs a fixed
//! time for each task, which delays the rows of all other requests. Newcomers that wait during a few tasks of the
//! others share that time.

use super::Cells;
use crate::batching::{
    CellId, LaneId, SegmentKnobs, ShapeClass,
    cost::{Costs, Quantile},
};

/// Most tasks of others that nodes wait for, whatever a wait would save the others.
const MOST_TASKS: u8 = 8;

/// For each type, the wait of its ready nodes for more of them. `None` for types that do not wait.
#[derive(Debug)]
pub(super) struct Company {
    waits: Box<[Option<Wait>]>,
}

/// What the nodes of a type have waited since its last task.
#[derive(Clone, Copy, Debug, Default)]
struct Wait {
    /// The sum over nodes in nanoseconds.
    ns: u128,
    /// Tasks of others that ran meanwhile.
    tasks: u8,
}

impl Company {
    /// Types that only stages have may wait: a request has one such node, so that a wait delays it once.
    pub(super) fn new(cells: usize, segments: &[SegmentKnobs]) -> Self {
        let waits = |cell: CellId| {
            let is_other = |segment: &SegmentKnobs| match *segment {
                SegmentKnobs::Stage { .. } => false,
                SegmentKnobs::Steps { cell: own } => own == cell,
                SegmentKnobs::Tree { leaf, inner } => leaf == cell || inner == cell,
            };
            segments.contains(&SegmentKnobs::Stage { cell }) && !segments.iter().any(is_other)
        };
        Self { waits: (0..cells).map(|cell| waits(CellId(cell as u16)).then(Wait::default)).collect() }
    }
}

/// A type that a lane could run next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) cell: CellId,
    /// Rows of its task.
    pub(super) rows: u64,
}

impl Cells {
    /// Whether the nodes of a type may wait for more of them: its next task is neither full nor a retry.
    pub(super) fn may_wait(&self, candidate: Candidate, lane: LaneId) -> bool {
        let Candidate { cell, rows } = candidate;
        self.company.waits[usize::from(cell.0)].is_some()
            && rows < u64::from(self.most_rows(cell))
            && !self.cells.queues.has_retry(cell, lane)
    }

    /// Whether nodes wait while a lane runs a task of another type instead. Otherwise they run, and the next ones start
    /// to wait from 0.
    ///
    /// This is the choice between renting and buying. A task of the nodes delays each row of the other type by the
    /// task's fixed time. Until the nodes together have waited as long, more of them may share that time. Nodes run at
    /// once as long as the times are unknown.
    pub(super) fn waits(&mut self, costs: &Costs, nodes: Candidate, other: Candidate) -> bool {
        let Some(wait) = &mut self.company.waits[usize::from(nodes.cell.0)] else { return false };
        let rows = u32::try_from(other.rows).unwrap_or(u32::MAX);
        let other_ns = costs.predict(other.cell, rows, &ShapeClass::default(), Quantile::Mean);
        let fixed_ns = costs.fixed(nodes.cell, &ShapeClass::default());
        let would_wait_ns = other_ns.map(|other_ns| wait.ns + u128::from(other_ns) * u128::from(nodes.rows));
        let delay_ns = fixed_ns.map(|fixed_ns| u128::from(fixed_ns) * u128::from(other.rows));
        match would_wait_ns.zip(delay_ns) {
            Some((would_wait_ns, delay_ns)) if would_wait_ns < delay_ns && wait.tasks < MOST_TASKS => {
                *wait = Wait { ns: would_wait_ns, tasks: wait.tasks + 1 };
                true
            }
            _ => {
                *wait = Wait::default();
                false
            }
        }
    }
}
