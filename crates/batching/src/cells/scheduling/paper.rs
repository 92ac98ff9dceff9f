//! Algorithm 1 of BatchMaker (section 4.3): rounds of tasks of one type, which priorities and full batches decide.

use paternoster_model::CellId;

use super::Cells;
use crate::{LaneId, arbiter::Lane};

/// Consecutive tasks of one type given to a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    lane: LaneId,
    cell: CellId,
    tasks: u16,
}

impl Cells {
    /// Returns the type that a lane runs now: the type of its current round if that continues, or else the choice of
    /// algorithm 1. `waiting` is the number of requests that may board, each with at least one node of the first type.
    /// `brought` counts nodes of other versions that could share a task, by type.
    pub(super) fn choose_by_priority(
        &mut self,
        lane: &Lane,
        waiting: u64,
        brought: &[(CellId, u64)],
    ) -> Option<CellId> {
        let first = self.cells.first();
        let at = self.rounds.iter().position(|round| round.lane == lane.id).unwrap_or_else(|| {
            self.rounds.push(Round { lane: lane.id, cell: first, tasks: 0 });
            self.rounds.len() - 1
        });
        let round = self.rounds[at];
        let enough = u64::from(self.knobs.cells[usize::from(round.cell.0)].min_followup.max(1));
        // Rounds exist for submitting tasks ahead, so an idle lane is always scheduled again.
        if !lane.is_idle()
            && (1..self.knobs.max_tasks).contains(&round.tasks)
            && self.rows(round.cell, lane.id, waiting, &[]) > 0
            && self.rows(round.cell, lane.id, waiting, brought) >= enough
        {
            self.rounds[at].tasks += 1;
            return Some(round.cell);
        }
        // On a lane that takes one task at a time, no type is ever running when the next is chosen. Counting the last
        // type as running keeps it from always going first.
        let last = (lane.is_idle() && round.tasks > 0).then_some(round.cell);
        let joined = |cell: CellId| if cell == first { waiting } else { 0 };
        let brought = |cell: CellId| brought.iter().find(|(own, _)| *own == cell).map_or(0, |(_, nodes)| *nodes);
        let cell = self.cells.queues.choose(lane.id, last, joined, brought)?;
        self.rounds[at] = Round { lane: lane.id, cell, tasks: 1 };
        Some(cell)
    }
}
