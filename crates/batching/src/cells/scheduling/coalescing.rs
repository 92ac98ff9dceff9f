//! Stages that coalesce newcomers. A stage, such as the product of all tokens with the input weights, costs a fixed
//! time for each task, which delays the rows of all other requests. Newcomers that wait during a few tasks of the
//! others share that time.

use super::Cells;
use crate::{
    CellId, LaneId, SegmentKnobs, ShapeClass,
    cost::{Costs, Quantile},
};

/// Maximum tasks of others that nodes wait for.
const MOST_TASKS: u8 = 8;

/// The waits of nodes for more of their type.
#[derive(Debug)]
pub(super) struct Coalescing {
    /// By type; `None` for types that do not wait.
    waits: Box<[Option<Wait>]>,
}

/// How long the nodes of a type have waited since its last task.
#[derive(Clone, Copy, Debug, Default)]
struct Wait {
    /// The sum over nodes in nanoseconds.
    ns: u128,
    /// Tasks of others that they waited for.
    tasks: u8,
}

impl Coalescing {
    /// Types that only stages have may wait. A stage is a single node, so a wait delays its request once.
    pub(super) fn new(cells: usize, segments: &[SegmentKnobs]) -> Self {
        let waits = |cell: CellId| {
            let is_other = |segment: &SegmentKnobs| match *segment {
                SegmentKnobs::Stage { .. } => false,
                SegmentKnobs::Steps { cell: own } | SegmentKnobs::Decode { cell: own, .. } => own == cell,
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
        self.coalescing.waits[usize::from(cell.0)].is_some()
            && rows < u64::from(self.most_rows(cell))
            && !self.cells.queues.has_retry(cell, lane)
    }

    /// Decides whether nodes wait while a lane runs a task of another type instead. If not, they run, and the wait of
    /// the next ones starts at 0.
    ///
    /// This is the rule of ski rental: nodes wait until the sum of their waits would reach the delay that their task
    /// causes, which is its fixed time for each row of the other type. Nodes do not wait while times are unknown.
    pub(super) fn waits(&mut self, costs: &Costs, nodes: Candidate, other: Candidate) -> bool {
        let Some(wait) = &mut self.coalescing.waits[usize::from(nodes.cell.0)] else { return false };
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
