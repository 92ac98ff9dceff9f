//! Policy `lazy` over cells (LazyBatching section IV). Newcomers run their first cells until they catch up with more
//! advanced requests, as long as those can spare the time; otherwise the most advanced type runs. Steps share weights,
//! so requests need to meet only at the same type, not at the same step.

use smallvec::SmallVec;

use super::Cells;
use crate::{
    CellId, LaneId, LazyCellKnobs, Ns, ShapeClass,
    cost::Quantile,
    graph::{NodeCounts, time_of},
    ids::RequestIx,
    ledger::Ledger,
    steps::PROBABLY,
    version::{StepContext, Version},
};

/// The state of `lazy` for one version.
#[derive(Debug)]
pub(crate) struct Catching {
    knobs: LazyCellKnobs,
    /// Time that more advanced requests may still wait for others; `None` until the first task has run, meaning the
    /// maximum. It recovers as they run, which bounds the total wait of a request.
    credit_ns: Option<Ns>,
    /// Nodes of the request that boarded last, by type.
    latest: NodeCounts,
}

impl Catching {
    pub(crate) fn new(knobs: LazyCellKnobs) -> Self {
        Self { knobs, credit_ns: None, latest: NodeCounts::new() }
    }

    /// Notes the nodes of a request that boards, if they are known.
    pub(crate) fn boarded(&mut self, nodes: Option<NodeCounts>) {
        self.latest = nodes.unwrap_or_else(|| std::mem::take(&mut self.latest));
    }

    /// Updates the credit for a task of a type. `whole_ns` is the execution time of a request, 0 if unknown.
    fn runs(&mut self, task_ns: Ns, whole_ns: Ns, is_furthest: bool) {
        if whole_ns == 0 {
            return;
        }
        let most_ns = self.most_ns(whole_ns);
        let credit_ns = self.credit_ns.unwrap_or(most_ns);
        self.credit_ns = Some(if is_furthest {
            let earned_ns = u128::from(task_ns) * u128::from(most_ns) / u128::from(whole_ns);
            credit_ns.saturating_add(Ns::try_from(earned_ns).unwrap_or(Ns::MAX)).min(most_ns)
        } else {
            credit_ns.saturating_sub(task_ns)
        });
    }

    /// Returns the maximum total time that a request waits for others. By default half the execution time of a request
    /// whose cells run in their largest batches.
    fn most_ns(&self, whole_ns: Ns) -> Ns {
        self.knobs.max_catch_up_ns.unwrap_or(whole_ns / 2)
    }
}

impl Cells {
    /// Returns the type that a lane runs next: the type of a retry; or else the first type whose requests may catch up
    /// with the most advanced one; or else the most advanced type. `waiting` is the number of requests that may board.
    pub(crate) fn choose_lazily(&mut self, context: &StepContext<'_>, lane: LaneId, waiting: u64) -> Option<CellId> {
        let catching = self.catching.as_ref()?;
        let costs = &context.version.costs;
        if let Some(cell) = self.cells.queues.first_retry(lane) {
            return Some(cell);
        }
        let ready = |cell: CellId| {
            // Waiting requests start with the first type, so they count as ready there.
            let joined = if cell == self.cells.first() { waiting } else { 0 };
            self.cells.queues.ready(cell, lane) + joined
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
        // A type without a predicted time cannot be checked against the credit, so it may not run ahead of the others.
        let may_run = |cell: &&CellId| {
            let (Some(mean_ns), Some(p99_ns)) = (task_ns(**cell, Quantile::Mean), task_ns(**cell, Quantile::P99))
            else {
                return false;
            };
            mean_ns <= credit_ns
                && self.spare_ns(context.version, context.now, context.ledger, **cell).is_none_or(|ns| p99_ns <= ns)
        };
        let chosen = *behind.iter().find(may_run).unwrap_or(&furthest);
        let chosen_ns = task_ns(chosen, Quantile::Mean).unwrap_or(0);
        if let Some(catching) = &mut self.catching {
            catching.runs(chosen_ns, whole_ns, chosen == furthest);
        }
        Some(chosen)
    }

    /// Returns the time that the boarded requests can spare for a task of this type: the least slack of those whose
    /// target can probably be met, and which do not need this type themselves; `None` without any. One that would miss
    /// its target anyway has no veto, and takes no other's.
    fn spare_ns(&self, version: &Version, now: Ns, ledger: &Ledger, cell: CellId) -> Option<Ns> {
        let rows = |cell: CellId| self.cells.under_way.min(self.most_rows(cell));
        let spare = self.first_targets().filter_map(|request_ix| {
            let until_ns = version.target(&ledger[request_ix]).checked_sub(now)?;
            let left = self.nodes_left(version, request_ix)?;
            let needs_ns = |quantile| time_of(&version.costs, &left, rows, quantile);
            let needs_it = left.iter().any(|&(own, nodes)| own == cell && nodes > 0);
            let can_be_met = !needs_it && needs_ns(Quantile::Mean)? <= until_ns;
            can_be_met.then_some(until_ns.saturating_sub(needs_ns(Quantile::P99)?))
        });
        spare.min()
    }

    /// Counts, by type, the nodes that a boarded request will probably submit; `None` if that is unknown.
    pub(super) fn nodes_left(&self, version: &Version, request_ix: RequestIx) -> Option<NodeCounts> {
        let (graph, segment, submitted) = self.cells.progress(request_ix)?;
        version.graph.nodes(graph, segment, submitted, PROBABLY)
    }

    /// Whether a waiting request is rejected because it would probably miss its target: with the steps that all but a
    /// few like requests exceed.
    pub(crate) fn is_late(&self, context: &StepContext<'_>, request_ix: RequestIx) -> bool {
        if !self.catching.as_ref().is_some_and(|catching| catching.knobs.reject_late) {
            return false;
        }
        let (version, request) = (&*context.version, &context.ledger[request_ix]);
        let needs_ns = version.graph.time_alone(&version.costs, request, Quantile::Mean, 1.0 - PROBABLY);
        needs_ns.is_some_and(|ns| context.now.saturating_add(ns) > version.target(request))
    }
}
