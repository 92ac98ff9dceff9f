//! The interface between a policy and the core. When a version is offered a lane, the policy reads a [`View`] and
//! returns a [`Decision`], which `batches` carries out on the queue and the batch table. A policy has no clock and
//! never changes a batch itself.

use std::{fmt::Debug, sync::Arc};

use smallvec::SmallVec;

use super::view::{BatchView, RequestView};
use crate::{
    Instant, Ns, PartOrder, ShapeClass,
    cost::Costs,
    ids::{PartIx, RequestIx, SubQueueIx},
    ledger::Ledger,
    queue::{LengthBucketing, Pending, SubQueue},
    table::{BatchTable, batch::Part, stages::Stages},
};

/// A policy's decision about an offered lane. It may name only requests, sub-queues and parts of the [`View`] that it
/// was asked with: they mean others later, or none, and the core panics on those.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Launch the next step of this part.
    GoOn(PartIx),
    /// Board requests of `sub_queue` as a new batch, and launch it. The batch accepts no newcomers if it will be split
    /// later (DVABatch section 5.2.2).
    New {
        /// Where they wait.
        sub_queue: SubQueueIx,
        /// Which of them: at least one, and together at most [`View::max_rows()`] rows.
        selection: Selection,
        /// Whether others may join it later.
        accepts_newcomers: bool,
    },
    /// Let requests of `sub_queue` join the batch that has only this part, as a step at its foot. Then the policy
    /// decides again.
    Stretch {
        /// The part.
        part: PartIx,
        /// Where they wait.
        sub_queue: SubQueueIx,
        /// Which of them: at least one.
        selection: Selection,
        /// Whether others may join it later.
        accepts_newcomers: bool,
    },
    /// Cut the only step of this part, which waits, before each of these spans. Then the policy decides again.
    Split {
        /// The part.
        part: PartIx,
        /// The positions of the spans, ascending.
        before: SmallVec<[usize; 8]>,
    },
    /// Reject a request that can no longer meet its target. Then the policy decides again.
    Refuse(RequestIx),
    /// Put a request that can no longer meet its target behind the others of its level. Then the policy decides again.
    Postpone(RequestIx),
    /// Launch nothing before this time unless something changes.
    Wait(Instant),
    /// Launch nothing. Where requests wait and no task of the version runs, they would wait forever: decide
    /// [`Wait`](Self::Wait) then.
    Nothing,
}

/// The requests of a sub-queue that board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// This many from the head of the sub-queue.
    First(u32),
    /// Exactly these.
    Named(Vec<RequestIx>),
}

/// The state that a policy decides on. The policies of this crate read its tables, others its methods.
#[derive(Debug)]
pub struct View<'a> {
    pub(crate) now: Instant,
    pub(crate) ledger: &'a Ledger,
    pub(crate) pending: &'a Pending,
    pub(crate) table: &'a BatchTable,
    pub(crate) stages: &'a Stages,
    pub(crate) costs: &'a Costs,
    /// Number of runs that have corrected the costs.
    pub(crate) learned: u64,
    /// Rows of the version's largest batch.
    pub(crate) max_rows: u32,
    /// The latency objective, from arrival to completion. With a client's deadline it makes a request's
    /// [target](Self::target).
    pub(crate) objective_ns: Option<Ns>,
    /// Least slack of any other model; `None` without targets, or if the policy does not ask for it.
    pub(crate) neighbours_slack_ns: Option<Ns>,
    /// The first part, in order, whose foot can run on the lane now.
    pub(crate) ready: Option<&'a Part>,
    /// Whether a new batch could be launched on the lane.
    pub(crate) enterable: bool,
    /// Whether the lane has no task.
    pub(crate) lane_is_idle: bool,
    /// Number of lanes that the group may use at once.
    pub(crate) lanes: u32,
    /// Number of idle lanes besides this one.
    pub(crate) idle_besides: u32,
}

impl View<'_> {
    /// Returns the part that runs before a new batch is formed: the first ready part, unless a request of a higher
    /// level waits.
    fn goes_first(&self) -> Option<PartIx> {
        let ready = self.ready?;
        let outranked = self.enterable && self.pending.best_level().is_some_and(|level| level < ready.level);
        (!outranked).then_some(ready.ix)
    }

    /// Combines a decision about the pending requests with the ready part: the part runs instead if nothing boards, or
    /// if the boarding requests do not have a higher level.
    fn or_go_on(&self, decision: Decision) -> Decision {
        let Some(ready) = self.ready else { return decision };
        match decision {
            Decision::Wait(_) | Decision::Nothing => Decision::GoOn(ready.ix),
            Decision::New { sub_queue, .. } if self.level_of(sub_queue) >= ready.level => Decision::GoOn(ready.ix),
            decision => decision,
        }
    }

    /// Target completion time: the earlier of the arrival plus the objective, and the client's deadline less the time
    /// that is needed after the request; `None` without either.
    pub(super) fn target(&self, request_ix: RequestIx) -> Option<Instant> {
        self.ledger[request_ix].target(self.objective_ns).unless_never()
    }

    /// Returns the padded shape that a sub-queue's requests would have as a batch, estimated from the first request.
    pub(super) fn class_of(&self, sub_queue: &SubQueue) -> ShapeClass {
        if !sub_queue.batch_key.class.0.is_empty() {
            return sub_queue.batch_key.class.clone();
        }
        let first = sub_queue.iter(self.ledger).next();
        first.map_or_else(ShapeClass::default, |request_ix| ShapeClass(self.ledger[request_ix].lengths.clone()))
    }

    /// Returns the level of a sub-queue's first request.
    pub(super) fn level_of(&self, sub_queue: SubQueueIx) -> u64 {
        let rank = self.pending.sub_queue(sub_queue).and_then(|sub_queue| sub_queue.rank(self.ledger));
        rank.map_or(u64::MAX, |(level, ..)| level)
    }
}

/// A policy over batches, with its state for one version.
pub trait BatchPolicy: Debug + Send {
    /// Decides what to run on a lane. A batch under way runs before new batches of its level.
    fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(change) = self.change(view) {
            return change;
        }
        if let Some(part) = view.goes_first() {
            return Decision::GoOn(part);
        }
        let boards = if view.enterable { self.board(view) } else { Decision::Nothing };
        view.or_go_on(boards)
    }

    /// Changes a batch under way or rejects a request, if the policy would do so before anything runs.
    fn change(&mut self, _view: &View<'_>) -> Option<Decision> {
        None
    }

    /// Selects waiting requests for a new batch, when one could be launched.
    fn board(&mut self, view: &View<'_>) -> Decision;

    /// Notes an arrival in a sub-queue. Some policies measure the rate of rows, others the order of arrivals.
    fn arrived(&mut self, _now: Instant, _sub_queue: SubQueueIx, _request: RequestView<'_>) {}

    /// Whether the policy ever stretches a batch.
    fn stretches(&self) -> bool {
        false
    }

    /// Whether the policy uses the slack of other models.
    fn asks_for_neighbours(&self) -> bool {
        false
    }

    /// Returns the order in which the parts of a split batch run.
    fn part_order(&self) -> PartOrder {
        PartOrder::DepthFirst
    }

    /// Whether newcomers may still join a batch of this age and progress.
    fn keeps_open(&self, _now: Instant, _batch: BatchView<'_>) -> bool {
        false
    }
}

/// The knobs of a policy over batches, from which it is started for each version.
pub trait PolicyKnobs: Debug + Send + Sync {
    /// Returns the knobs of a configuration that gives none, for a model of one stage without padding.
    fn plain() -> Self
    where
        Self: Default,
    {
        Self::default()
    }

    /// Creates the policy for one version.
    fn start(&self, limits: BatchLimits) -> Box<dyn BatchPolicy>;

    /// Returns what the policy requires of its version.
    fn requirements(&self) -> Requirements {
        Requirements::default()
    }
}

/// A policy over batches that another crate implements.
#[derive(Clone, Debug)]
pub struct CustomPolicy {
    name: &'static str,
    knobs: Arc<dyn PolicyKnobs>,
}

impl CustomPolicy {
    /// Creates a policy with its knobs. Configurations and reports use its name.
    pub fn new(name: &'static str, knobs: impl PolicyKnobs + 'static) -> Self {
        Self { name, knobs: Arc::new(knobs) }
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns its knobs.
    pub(super) fn knobs(&self) -> &dyn PolicyKnobs {
        &*self.knobs
    }
}

/// Equal are shares of the same.
impl PartialEq for CustomPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.knobs, &other.knobs)
    }
}

impl Eq for CustomPolicy {}

/// Limits of the batches that a version can run.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Rows of the version's largest batch: the same as [`View::max_rows()`], for what a policy prepares at its start.
    pub max_rows: u32,
    /// Whether requests may share a batch.
    pub mergeable: bool,
    /// Whether responses leave in the order of arrival.
    pub is_ordered: bool,
    /// Number of the version's stages, at least 1.
    pub stages: u16,
}

/// A policy's requirements on its version's queue and costs.
#[derive(Debug)]
pub struct Requirements {
    /// Whether it asks how long batches take. If not, runs of a version without an objective, sizes and lengths are
    /// learned only where lanes look ahead or have a [limit](crate::Core::with_last_lane_limit). To learn a run takes a
    /// tenth of the core's time for it.
    pub costs: bool,
    /// Whether requests board in the order of their targets.
    pub targets: bool,
    /// Whether requests may share a batch, if the model allows it.
    pub shares_batches: bool,
    /// Whether newcomers may join a batch between its stages.
    pub joins: bool,
    /// Which lengths may share a batch; `None`: as the queue's `bucket_width` says.
    pub lengths: Option<LengthBucketing>,
    /// Whether requests of any lengths share a batch, as in the papers, if the queue has no `bucket_width`. Otherwise
    /// run times decide.
    pub pads_any: bool,
}

impl Default for Requirements {
    fn default() -> Self {
        Self { costs: true, targets: false, shares_batches: true, joins: false, lengths: None, pads_any: false }
    }
}
