//! Sharing of tasks among cells of the same kind, across versions (BatchMaker section 4.2). Each version keeps its own
//! queues. The version that is granted the lane leads the task; the room left in it goes to the other versions, in the
//! order in which they were loaded.

use std::collections::BTreeMap;

use paternoster_model::CellId;
use smallvec::SmallVec;

use super::{Core, limiting::may_join};
use crate::{
    Action, Actions, CellKind, LaneId, Ns,
    arbiter::Lane,
    cells::{Place, longest, predict},
    cost::class_of,
    group::VersionScheduler,
    ids::GroupIx,
    offer::TimeLimit,
};

/// Maps each cell kind to the versions that have cells of it.
#[derive(Debug, Default)]
pub(crate) struct SharedCells {
    by_kind: BTreeMap<CellKind, Vec<(GroupIx, CellId)>>,
    /// Whether any kind is used by more than one version's cells.
    are_there: bool,
}

impl SharedCells {
    pub(crate) fn came_up(&mut self, group: GroupIx, entry: &VersionScheduler) {
        let Some(cellular) = entry.work.cells() else { return };
        for cell in cellular.types() {
            if let Some(kind) = cellular.kind(cell) {
                let shared_cells = self.by_kind.entry(kind).or_default();
                shared_cells.push((group, cell));
                self.are_there |= shared_cells.len() > 1;
            }
        }
    }

    pub(crate) fn forget(&mut self, group: GroupIx) {
        self.by_kind.retain(|_, shared_cells| {
            shared_cells.retain(|(own, _)| *own != group);
            !shared_cells.is_empty()
        });
        self.are_there = self.by_kind.values().any(|shared_cells| shared_cells.len() > 1);
    }

    /// Returns the other cells that may share a task of this group's cell.
    fn of<'a>(
        &'a self,
        group: GroupIx,
        entry: &VersionScheduler,
        cell: CellId,
    ) -> impl Iterator<Item = (GroupIx, CellId)> + 'a {
        let cellular = entry.work.cells().filter(|_| self.are_there);
        let kind = cellular.and_then(|cellular| cellular.kind(cell));
        let shared_cells = kind.and_then(|kind| self.by_kind.get(&kind));
        shared_cells.into_iter().flatten().copied().filter(move |own| *own != (group, cell))
    }
}

impl Core {
    /// Returns, for each cell of the group, how many nodes other versions could add to a task on this lane. Cells with
    /// none are left out.
    pub(crate) fn brought(&self, group: GroupIx, lane: LaneId) -> SmallVec<[(CellId, u64); 2]> {
        let entry = &self.groups[group];
        let types = entry.work.cells().filter(|_| self.shared_cells.are_there).map(|cellular| cellular.types());
        let brought = types.into_iter().flatten().map(|cell| {
            let others = self.shared_cells.of(group, entry, cell);
            let nodes = others.filter_map(|(other, cell)| {
                let VersionScheduler { version, work, .. } = &self.groups[other];
                if !may_join(entry, &self.groups[other]) {
                    return None;
                }
                Some(work.cells()?.would_bring(version, &self.ledger, cell, lane))
            });
            (cell, nodes.sum())
        });
        brought.filter(|(_, nodes)| *nodes > 0).collect()
    }

    /// Fills the room left in the task that the group has just launched with nodes of other versions, and returns the
    /// task's new predicted duration.
    pub(crate) fn fill_up(
        &mut self,
        group: GroupIx,
        lane: Lane,
        limit: Option<TimeLimit>,
        predicted_ns: Option<Ns>,
        actions: &mut Actions,
    ) -> Option<Ns> {
        let Some(Action::Launch(task)) = actions.last() else { return predicted_ns };
        let (id, cell, at, own) = (task.id, task.cell, actions.len() - 1, task.row_count());
        let steps = longest(&task.rows);
        let entry = &self.groups[group];
        // A retry runs sealed: after a failure it must not take in requests that did not fail.
        let is_sealed = entry.work.cells().is_some_and(|cells| cells.is_retry(id));
        let shared_cells = self.shared_cells.of(group, entry, cell).filter(|_| !is_sealed);
        let shared_cells = shared_cells.filter(|(other, _)| may_join(entry, &self.groups[*other]));
        let shared_cells: SmallVec<[(GroupIx, CellId); 2]> = shared_cells.collect();
        let most = entry.work.cells().map_or(own, |cellular| cellular.most_rows(cell));
        let class = class_of(steps);
        let mut most = limit.map_or(most, |limit| entry.version.costs.rows_within(cell, most, &class, limit.most_ns));
        let (mut rows, mut candidates) = (own, Vec::new());
        for (other, cell) in shared_cells {
            let entry = &mut self.groups[other];
            let largest = entry.work.cells().map_or(0, |cellular| cellular.most_rows(cell));
            // Skip if the task is full, or if the other version is at its own limit of tasks in flight. The leading
            // group may always add more, since the task counts once for it.
            if rows >= most.min(largest) || !(other == group || entry.version.may_run()) {
                continue;
            }
            let (work, mut context) = entry.at(self.now, &mut self.ledger, &mut self.timers, actions);
            let Some(cells) = work.cells_mut() else { continue };
            let place = Place { lane: lane.id, task: id, at: rows, steps: Some(steps), most_ns: None };
            let joined = cells.add_to_task(&mut context, place, cell, most.min(largest) - rows, &[]);
            if !joined.is_empty() {
                most = most.min(largest);
                rows += joined.len() as u32;
                candidates.extend(joined);
                // It may have waited for units to run these nodes itself.
                if other != group && !self.groups[other].wants_lane() {
                    self.withdraw_units(other);
                }
            }
        }
        if candidates.is_empty() {
            return predicted_ns;
        }
        let bucket = self.groups[group].version.costs.bucket(cell, rows, &class);
        self.ledger.shared(id, rows, bucket);
        if let Some(Action::Launch(task)) = actions.get_mut(at) {
            task.rows.extend(candidates);
            task.bucket.rows = bucket;
        }
        predict(&self.groups[group].version, cell, rows, steps)
    }
}
