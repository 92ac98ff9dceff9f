//! `lazy` over cells (LazyBatching section IV): newcomers run their first cells until they have caught up with those that are further on, as
//! long as these can spare the time; else the furthest goes on. Weights are shared between steps, so requests need not meet at the same
//! step, only at the same type.

use smallvec::SmallVec;

use super::{
    CellId, LaneId, LazyCellKnobs, Ns, ShapeClass,
    cells::Cells,
    cost::{Costs, Quantile},
    group::Group,
    ledger::{Ledger, Slot},
    slack::single_input_exec_time,
};
use crate::model::unfold::Unfolded;

/// What `lazy` remembers of a group.
#[derive(Debug)]
pub(super) struct Catching {
    knobs: LazyCellKnobs,
    /// By type: when it last ran.
    ran: Vec<Ns>,
    /// Nodes of the request that boarded last, by type.
    latest: SmallVec<[(CellId, u32); 4]>,
}

impl Catching {
    pub(super) fn new(knobs: LazyCellKnobs, cells: usize) -> Self {
        Self { knobs, ran: vec![0; cells], latest: SmallVec::new() }
    }

    pub(super) fn boarded(&mut self, cells: &Cells, graph: &[Unfolded]) {
        self.latest = cells.all_nodes(graph);
    }

    pub(super) fn launched(&mut self, cell: CellId, now: Ns) {
        if let Some(ran) = self.ran.get_mut(usize::from(cell.0)) {
            *ran = now;
        }
    }

    /// Longest time that the furthest type waits for others: by default half of what a request takes whose cells run in their largest batches.
    fn most_ns(&self, costs: &Costs, most_rows: impl Fn(CellId) -> u32) -> Option<Ns> {
        self.knobs.max_catch_up_ns.or_else(|| Some(time_of(costs, &self.latest, most_rows, Quantile::Mean)? / 2))
    }
}

/// What a request takes (LazyBatching, algorithm 1) whose nodes run in tasks of so many rows.
pub(super) fn time_of(
    costs: &Costs,
    nodes: &[(CellId, u32)],
    rows: impl Fn(CellId) -> u32,
    quantile: Quantile,
) -> Option<Ns> {
    let nodes = nodes.iter().map(|&(cell, times)| {
        let latency_ns = costs.predict(cell, rows(cell).max(1), &ShapeClass::default(), quantile)?;
        Some((latency_ns, times))
    });
    nodes.collect::<Option<SmallVec<[(Ns, u32); 4]>>>().map(single_input_exec_time)
}

impl Group {
    /// The type that a lane runs next: the first whose requests may catch up with the furthest, or the furthest. `waiting` are requests that may
    /// board.
    pub(super) fn choose_lazily(&self, now: Ns, ledger: &Ledger, lane: LaneId, waiting: u64) -> Option<CellId> {
        let cellular = self.cellular.as_ref()?;
        let catching = cellular.catching.as_ref()?;
        let ready = |cell: CellId| {
            let joined = if cell == cellular.cells.first() { waiting } else { 0 };
            cellular.cells.ready(cell, lane) + joined
        };
        let most_rows = |cell: CellId| cellular.most_rows(cell);
        let types = (0..catching.ran.len()).map(|cell| CellId(cell as u16));
        let ready_types: SmallVec<[CellId; 4]> = types.filter(|cell| ready(*cell) > 0).collect();
        let (&furthest, behind) = ready_types.split_last()?;
        let waited_ns = now - catching.ran[usize::from(furthest.0)];
        let may_run = |cell: &&CellId| {
            let rows = ready(**cell).min(u64::from(most_rows(**cell))) as u32;
            let task_ns = self.costs.predict(**cell, rows, &ShapeClass::default(), Quantile::P99);
            let Some((task_ns, most_ns)) = task_ns.zip(catching.most_ns(&self.costs, most_rows)) else { return false };
            let spare_ns = self.spare_ns(now, ledger, **cell);
            waited_ns.saturating_add(task_ns) <= most_ns && spare_ns.is_none_or(|spare_ns| task_ns <= spare_ns)
        };
        Some(*behind.iter().find(may_run).unwrap_or(&furthest))
    }

    /// Time that the request aboard whose target comes first can spare for a task of another type; none where it has no node of another type
    /// before one of this, no target, or none that can still be met.
    fn spare_ns(&self, now: Ns, ledger: &Ledger, cell: CellId) -> Option<Ns> {
        let cellular = self.cellular.as_ref()?;
        let slot = cellular.first_target()?;
        let left = cellular.cells.nodes_left(slot);
        if left.iter().any(|&(own, nodes)| own == cell && nodes > 0) {
            return None;
        }
        let needs_ns = |quantile| time_of(&self.costs, &left, |cell| cellular.most_rows(cell), quantile);
        let until_ns = ledger[slot].target(self.objective_ns).checked_sub(now)?;
        let can_be_met = needs_ns(Quantile::Mean)? <= until_ns;
        can_be_met.then_some(until_ns.saturating_sub(needs_ns(Quantile::P99)?))
    }

    /// Whether a request that waits is refused because it cannot meet its target any more.
    pub(super) fn is_late(&self, now: Ns, ledger: &Ledger, slot: Slot) -> bool {
        let Some(cellular) = self.cellular.as_ref() else { return false };
        let rejects = cellular.catching.as_ref().is_some_and(|catching| catching.knobs.reject_late);
        let needs_ns = || time_of(&self.costs, &cellular.cells.all_nodes(&ledger[slot].graph), |_| 1, Quantile::Mean);
        rejects && needs_ns().is_some_and(|ns| now.saturating_add(ns) > ledger[slot].target(self.objective_ns))
    }
}
