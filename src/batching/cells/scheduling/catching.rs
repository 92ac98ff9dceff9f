//! `lazy` over cells (LazyBatching section IV): newcomers run their first cells until they have caught up with those
//! that are further on, as long as these can spare the time; else the furthest goes on. Weights are shared between
//! steps, so requests need not meet at the same step, only at the same type.

use smallvec::SmallVec;

use super::Cells;
use crate::{
    batching::{
        CellId, LaneId, LazyCellKnobs, Ns, ShapeClass,
        cells::graphs::CellGraphs,
        cost::Quantile,
        graph::{NodeCounts, time_of},
        ids::RequestIx,
        version::StepContext,
    },
    model::unfold::Unfolded,
};

/// What `lazy` remembers of a version.
#[derive(Debug)]
pub(in crate::batching) struct Catching {
    knobs: LazyCellKnobs,
    /// Time that those who are further on may still wait for others; all that they may before anything has run. It
    /// comes back as they run, so that a request waits for no longer in all.
    credit_ns: Option<Ns>,
    /// Nodes of the request that boarded last, by type.
    latest: NodeCounts,
}

impl Catching {
    pub(in crate::batching) fn new(knobs: LazyCellKnobs) -> Self {
        Self { knobs, credit_ns: None, latest: NodeCounts::new() }
    }

    pub(in crate::batching) fn boarded(&mut self, cells: &CellGraphs, graph: &[Unfolded]) {
        self.latest = cells.all_nodes(graph);
    }

    /// A type runs; `whole_ns` is what a request takes, 0 while that is not known.
    fn runs(&mut self, task_ns: Ns, whole_ns: Ns, is_furthest: bool) {
        if whole_ns == 0 {
            return;
        }
        let most_ns = self.most_ns(whole_ns);
        let credit_ns = self.credit_ns.unwrap_or(most_ns);
        self.credit_ns = Some(match is_furthest {
            true => {
                let earned_ns = u128::from(task_ns) * u128::from(most_ns) / u128::from(whole_ns);
                credit_ns.saturating_add(Ns::try_from(earned_ns).unwrap_or(Ns::MAX)).min(most_ns)
            }
            false => credit_ns.saturating_sub(task_ns),
        });
    }

    /// Longest time in all that a request waits for others: by default half of what one takes whose cells run in their
    /// largest batches.
    fn most_ns(&self, whole_ns: Ns) -> Ns {
        self.knobs.max_catch_up_ns.unwrap_or(whole_ns / 2)
    }
}

impl Cells {
    /// The type that a lane runs next: that of rows that are to run again, else the first whose requests may catch up
    /// with the furthest, or the furthest. `waiting` are requests that may board.
    pub(in crate::batching) fn choose_lazily(
        &mut self,
        context: &StepContext<'_>,
        lane: LaneId,
        waiting: u64,
    ) -> Option<CellId> {
        let catching = self.catching.as_ref()?;
        let costs = &context.version.costs;
        if let Some(cell) = self.cells.first_retry(lane) {
            return Some(cell);
        }
        let ready = |cell: CellId| {
            let joined = if cell == self.cells.first() { waiting } else { 0 };
            self.cells.ready(cell, lane) + joined
        };
        let most_rows = |cell: CellId| self.most_rows(cell);
        let ready_types: SmallVec<[CellId; 4]> = self.types().filter(|cell| ready(*cell) > 0).collect();
        let (&furthest, behind) = ready_types.split_last()?;
        let whole_ns = time_of(costs, &catching.latest, most_rows, Quantile::Mean).unwrap_or(0);
        let credit_ns = catching.credit_ns.unwrap_or(catching.most_ns(whole_ns));
        let task_ns = |cell: CellId, quantile| {
            let rows = ready(cell).min(u64::from(most_rows(cell))) as u32;
            costs.predict(cell, rows, &ShapeClass::default(), quantile)
        };
        let may_run = |cell: &&CellId| {
            let (Some(mean_ns), Some(p99_ns)) = (task_ns(**cell, Quantile::Mean), task_ns(**cell, Quantile::P99))
            else {
                return false;
            };
            mean_ns <= credit_ns && self.spare_ns(context, **cell).is_none_or(|spare_ns| p99_ns <= spare_ns)
        };
        let chosen = *behind.iter().find(may_run).unwrap_or(&furthest);
        let chosen_ns = task_ns(chosen, Quantile::Mean).unwrap_or(0);
        if let Some(catching) = &mut self.catching {
            catching.runs(chosen_ns, whole_ns, chosen == furthest);
        }
        Some(chosen)
    }

    /// Time that the request aboard whose target comes first can spare for a task of a type; none where it needs that
    /// type itself, or has no target that can still be met.
    fn spare_ns(&self, context: &StepContext<'_>, cell: CellId) -> Option<Ns> {
        let request_ix = self.first_target()?;
        let left = self.cells.nodes_left(request_ix);
        if left.iter().any(|&(own, nodes)| own == cell && nodes > 0) {
            return None;
        }
        let version = &*context.version;
        let needs_ns = |quantile| time_of(&version.costs, &left, |cell| self.most_rows(cell), quantile);
        let until_ns = version.target(&context.ledger[request_ix]).checked_sub(context.now)?;
        let can_be_met = needs_ns(Quantile::Mean)? <= until_ns;
        can_be_met.then_some(until_ns.saturating_sub(needs_ns(Quantile::P99)?))
    }

    /// Whether a request that waits is refused because it cannot meet its target any more.
    pub(in crate::batching) fn is_late(&self, context: &StepContext<'_>, request_ix: RequestIx) -> bool {
        if !self.catching.as_ref().is_some_and(|catching| catching.knobs.reject_late) {
            return false;
        }
        let (version, request) = (&*context.version, &context.ledger[request_ix]);
        let needs_ns = version.graph.time_alone(&version.costs, request, Quantile::Mean);
        needs_ns.is_some_and(|ns| context.now.saturating_add(ns) > version.target(request))
    }
}
