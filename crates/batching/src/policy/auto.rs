//! The policy `auto`: at each boundary, what shortens the waiting of all rows most. Its parts are those of the papers'
//! policies, each of which acts only where the known times say that it gains:
//!
//! - Requests board at once, with those lengths that are faster together ([`CandidateBatch`]), and as many as are
//!   faster in one batch than in parts while others wait behind them ([`Sizes`]; DVABatch's Policy II).
//! - Between stages a batch is split where its parts are as fast (Policy II again), and newcomers join it where that
//!   makes no row late and the mean no longer (LazyBatching section IV).
//! - With an objective, requests board in the order of their targets, and those that can no longer be in time wait
//!   behind the others (`deferred`, without its waits). None joins between stages: at 0.6 of the peak and more, that
//!   makes more rows late than it brings in time (docs/benchmarks/policies.md).

use super::{
    BatchLimits, BatchPolicy, BatchView, Decision, DeferredKnobs, LazyKnobs, OperatorDiversity, PolicyKnobs,
    Requirements, Selection, View,
    candidate::CandidateBatch,
    deferred::Deferred,
    gain::class_of,
    lazy::{Lazy, all_within},
    serial::Serial,
    sizes::Sizes,
};
use crate::Instant;

/// Times vary by a few per cent, and each part moves the rows behind it.
const WORTHWHILE: f64 = 0.98;

/// What `auto` takes into account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutoKnobs {
    /// Whether requests board in the order of their targets, and late ones wait behind the others: for a model with an
    /// objective.
    pub by_target: bool,
}

impl PolicyKnobs for AutoKnobs {
    fn start(&self, limits: BatchLimits) -> Box<dyn BatchPolicy> {
        let eager = DeferredKnobs { eager: true, ..DeferredKnobs::default() };
        if !limits.mergeable {
            return if self.by_target { eager.start(limits) } else { Box::new(Serial) };
        }
        Box::new(Auto {
            by_target: self.by_target.then(|| Deferred::new(&eager, limits)),
            joins: (limits.stages > 1 && !self.by_target).then(|| Lazy::new(&LazyKnobs::default())),
            operator: OperatorDiversity::default(),
            sizes: Sizes::new(WORTHWHILE),
        })
    }

    fn requirements(&self) -> Requirements {
        Requirements { targets: self.by_target, joins: !self.by_target, ..Requirements::default() }
    }
}

/// The policy with its state for one version.
#[derive(Debug)]
struct Auto {
    /// Chooses requests by their targets; `None`: they board in arrival order.
    by_target: Option<Deferred>,
    /// Lets newcomers join; `None` with one stage, which has no boundary.
    joins: Option<Lazy>,
    operator: OperatorDiversity,
    sizes: Sizes,
}

impl BatchPolicy for Auto {
    fn stretches(&self) -> bool {
        self.joins.is_some()
    }

    fn asks_for_neighbours(&self) -> bool {
        self.joins.is_some()
    }

    fn keeps_open(&self, _: Instant, _: BatchView<'_>) -> bool {
        self.joins.is_some()
    }

    fn change(&mut self, view: &View<'_>) -> Option<Decision> {
        self.sizes.renew(view);
        let late = self.by_target.as_mut().and_then(|deferred| deferred.change(view));
        let Some(joins) = &self.joins else { return late };
        late.or_else(|| self.sizes.split(view, &self.operator)).or_else(|| joins.push(view))
    }

    fn board(&mut self, view: &View<'_>) -> Decision {
        if let Some(deferred) = &mut self.by_target {
            let boards = deferred.board(view);
            return if deferred.may_be_parted { self.first_part(view, boards) } else { boards };
        }
        let Some((sub_queue, entry)) = view.pending.in_order().next() else { return Decision::Nothing };
        let candidates = CandidateBatch::of(view, sub_queue, entry, view.max_rows);
        let within = candidates.within(view, view.max_rows);
        self.sizes.board(view, &self.operator, (sub_queue, entry), candidates, within)
    }
}

impl Auto {
    /// Leaves those requests of a new batch in the queue that would not be in its first part.
    fn first_part(&mut self, view: &View<'_>, boards: Decision) -> Decision {
        let Decision::New { sub_queue, selection: Selection::Named(mut request_ixs), .. } = boards else {
            return boards;
        };
        let rows = request_ixs.iter().map(|&request_ix| view.ledger[request_ix].rows).sum();
        let class = class_of(view, &request_ixs);
        let mut accepts_newcomers = self.sizes.accepts_newcomers(view, &self.operator, rows, &class);
        if accepts_newcomers
            && request_ixs.len() > 1
            && let Some(part) = self.sizes.first_part(view, &self.operator, rows, &class)
        {
            request_ixs.truncate(all_within(view, &request_ixs, part).max(1));
            let rows = request_ixs.iter().map(|&request_ix| view.ledger[request_ix].rows).sum();
            accepts_newcomers = self.sizes.accepts_newcomers(view, &self.operator, rows, &class);
        }
        Decision::New { sub_queue, selection: Selection::Named(request_ixs), accepts_newcomers }
    }
}
