//! How soon a group must start (LazyBatching section IV-C): what other models may take before one of its targets is
//! missed, and whether it goes before them.

use super::{
    Ns, ShapeClass,
    batch::{Batch, Step},
    cells_lazy::time_of,
    cost::Quantile,
    group::Group,
    ids::{NOT_THEIR_TURN, RequestIx, SubQueueIx},
    ledger::{Ledger, Request},
    slack::SlackNs,
};

/// Slack of the request that must start first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tightest {
    slack_ns: Ns,
    /// What one stage takes of it, on average.
    stage_ns: Ns,
}

impl Group {
    /// A sub-queue has changed: a request came, left or was delayed. Called before an empty sub-queue is retired.
    pub(super) fn touched(&mut self, ledger: &Ledger, sub_queue: SubQueueIx) {
        if self.objective_ns.is_none() || sub_queue == NOT_THEIR_TURN {
            return;
        }
        let first = self.pending.by_target(sub_queue).next().map(|request_ix| (request_ix, ledger[request_ix].seq));
        let mut latest_starts = std::mem::take(&mut self.latest_starts);
        latest_starts.file(sub_queue, first, |request_ix| self.latest_start(&ledger[request_ix]));
        self.latest_starts = latest_starts;
    }

    /// Time that the group can spare before a target is missed that can still be met; none without such.
    pub(super) fn slack_ns(&mut self, now: Ns, ledger: &Ledger) -> Option<Ns> {
        self.tightest(now, ledger).map(|tightest| tightest.slack_ns)
    }

    /// Whether a target is missed unless the group goes first: its slack is below one stage.
    pub(super) fn is_urgent(&mut self, now: Ns, ledger: &Ledger) -> bool {
        self.tightest(now, ledger).is_some_and(|tightest| tightest.slack_ns < tightest.stage_ns)
    }

    /// Of requests that wait only the first of each sub-queue counts, by target: the others go behind it.
    fn tightest(&mut self, now: Ns, ledger: &Ledger) -> Option<Tightest> {
        self.objective_ns?;
        let mut latest_starts = std::mem::take(&mut self.latest_starts);
        let first = latest_starts.first(now, |request_ix| self.latest_start(&ledger[request_ix]));
        self.latest_starts = latest_starts;
        let waiting = first.and_then(|(latest, request_ix)| {
            let slack_ns = Ns::try_from(latest).ok()?.checked_sub(now)?;
            Some(Tightest { slack_ns, stage_ns: self.stage_ns_of(&ledger[request_ix])? })
        });
        let aboard = match &self.cellular {
            Some(_) => self.tightest_of_cells(now, ledger),
            None => {
                let steps = self.table.iter().flat_map(|(_, batch)| batch.steps.iter().map(move |step| (batch, step)));
                steps.filter_map(|(batch, step)| self.tightest_of_step(now, ledger, batch, step)).min_by_key(slack)
            }
        };
        waiting.into_iter().chain(aboard).min_by_key(slack)
    }

    /// When a request that waits must start at the latest: its target less what its own rows, or nodes, take alone.
    fn latest_start(&self, request: &Request) -> Option<SlackNs> {
        let needs_ns = match &self.cellular {
            Some(cellular) => time_of(&self.costs, &cellular.cells.all_nodes(&request.graph), |_| 1, Quantile::P99)?,
            None => {
                let class = ShapeClass(request.lengths.clone());
                self.costs.remaining(self.pipeline.entry(), request.rows, &class, Quantile::P99)?
            }
        };
        let target = SlackNs::try_from(request.target(self.objective_ns)).unwrap_or(SlackNs::MAX);
        Some(target.saturating_sub_unsigned(needs_ns))
    }

    fn stage_ns_of(&self, request: &Request) -> Option<Ns> {
        match &self.cellular {
            Some(_) => self.stage_ns(1, &ShapeClass::default()),
            None => self.stage_ns(request.rows, &ShapeClass(request.lengths.clone())),
        }
    }

    /// What one of the stages takes, on average.
    fn stage_ns(&self, rows: u32, class: &ShapeClass) -> Option<Ns> {
        let whole_ns = self.costs.whole(rows, class, Quantile::P99)?;
        Some(whole_ns / Ns::from(self.pipeline.stages()))
    }

    /// The rows of a step end together, so that only the earliest target that can still be met counts.
    fn tightest_of_step(&self, now: Ns, ledger: &Ledger, batch: &Batch, step: &Step) -> Option<Tightest> {
        let live = || step.rows.iter().filter(|span| ledger.is_aboard(span)).map(|span| &ledger[span.request_ix]);
        let mut class = self.table.lineages[batch.lineage].class.clone();
        if self.pipeline.boundaries() == 0 {
            live().for_each(|request| request.lengthen(&mut class));
        }
        let rows = step.row_count();
        let ends = now.saturating_add(self.costs.remaining(step.next, rows, &class, Quantile::P99)?);
        let targets = live().map(|request| request.target(self.objective_ns));
        let target = targets.filter(|&target| target >= ends).min()?;
        Some(Tightest { slack_ns: target - ends, stage_ns: self.stage_ns(rows, &class)? })
    }

    /// Of requests whose cells run only the one with the earliest target counts: a row alone for each node that is
    /// left.
    fn tightest_of_cells(&self, now: Ns, ledger: &Ledger) -> Option<Tightest> {
        let cellular = self.cellular.as_ref()?;
        let request_ix: RequestIx = cellular.first_target()?;
        let needs_ns = time_of(&self.costs, &cellular.cells.nodes_left(request_ix), |_| 1, Quantile::P99)?;
        let slack_ns = ledger[request_ix].target(self.objective_ns).checked_sub(now.saturating_add(needs_ns))?;
        Some(Tightest { slack_ns, stage_ns: self.stage_ns(1, &ShapeClass::default())? })
    }
}

fn slack(tightest: &Tightest) -> Ns {
    tightest.slack_ns
}
