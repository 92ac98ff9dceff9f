//! The slack of boarded requests, which `lazy` over cells observes (LazyBatching section IV-C): the type of those that
//! cannot spare the time of another type's task is more likely to run next.

use paternoster_model::CellId;
use smallvec::SmallVec;

use super::{Cells, LOOKED_AT, unboarded};
use crate::{
    Ns,
    cost::Quantile,
    graph::{NodeCounts, time_of},
    ids::RequestIx,
    steps::PROBABLY,
    version::{StepContext, Version},
};

/// Number of urgent requests, by the type that they run next.
pub(super) type Urgent = SmallVec<[(CellId, u32); 4]>;

impl Cells {
    /// Counts, by the type that they run next, the requests that would become late by a task of another type: boarded
    /// ones, and the first of those that could board now, `waiting` in number. These are requests whose target can
    /// probably be met, but not if they wait for the longest task that could run instead. One that would miss its
    /// target anyway does not count, and takes no other's.
    pub(super) fn urgent(
        &self,
        context: &StepContext<'_>,
        waiting: u64,
        longest_of_others_ns: impl Fn(CellId) -> Ns,
    ) -> Urgent {
        let version = &*context.version;
        let aboard = self
            .first_targets()
            .filter_map(|request_ix| self.slack(context, request_ix, &self.nodes_left(version, request_ix)?));
        let unboarded = unboarded(version, context.ledger).take(LOOKED_AT.min(waiting as usize));
        let unboarded = unboarded.filter_map(|request_ix| {
            let nodes = version.graph.nodes(&context.ledger[request_ix].graph, 0, 0, PROBABLY)?;
            self.slack(context, request_ix, &nodes)
        });
        let mut urgent = Urgent::new();
        for (next, _) in aboard.chain(unboarded).filter(|&(next, slack_ns)| slack_ns < longest_of_others_ns(next)) {
            match urgent.iter_mut().find(|(cell, _)| *cell == next) {
                Some((_, requests)) => *requests += 1,
                None => urgent.push((next, 1)),
            }
        }
        urgent
    }

    /// Returns the type that a request runs next, and its slack with `left` nodes to run; `None` if there are none, if
    /// their times are unknown, or if it will probably miss its target.
    fn slack(&self, context: &StepContext<'_>, request_ix: RequestIx, left: &NodeCounts) -> Option<(CellId, Ns)> {
        let version = &*context.version;
        let until_ns = version.target(&context.ledger[request_ix]).checked_since(context.now)?;
        let (next, _) = *left.iter().find(|(_, nodes)| *nodes > 0)?;
        let rows = |cell: CellId| self.cells.under_way.min(self.most_rows(cell));
        let needs_ns = |quantile| time_of(&version.costs, left, rows, quantile);
        let can_be_met = needs_ns(Quantile::Mean)? <= until_ns;
        can_be_met.then_some((next, until_ns.saturating_sub(needs_ns(Quantile::P99)?)))
    }

    /// Counts, by type, the nodes that a boarded request will probably submit; `None` if that is unknown.
    pub(super) fn nodes_left(&self, version: &Version, request_ix: RequestIx) -> Option<NodeCounts> {
        let (graph, segment, submitted) = self.cells.progress(request_ix)?;
        version.graph.nodes(graph, segment, submitted, PROBABLY)
    }

    /// Whether a waiting request is rejected because it would probably miss its target: with the steps that all but a
    /// few like requests exceed.
    pub(super) fn is_late(&self, context: &StepContext<'_>, request_ix: RequestIx) -> bool {
        if !self.knobs.lazy.is_some_and(|lazy| lazy.reject_late) {
            return false;
        }
        let (version, request) = (&*context.version, &context.ledger[request_ix]);
        let needs_ns = version.graph.time_alone(&version.costs, request, Quantile::Mean, 1.0 - PROBABLY);
        needs_ns.is_some_and(|ns| context.now + ns > version.target(request))
    }
}
