//! What a policy is: it sees a version as it is offered a lane, and decides. The work of the version carries the
//! decision out on queue and batch table. No policy owns a clock or changes a batch itself.

use std::fmt::Debug;

use smallvec::SmallVec;

use crate::batching::{
    Ns, PartOrder, ShapeClass,
    cost::Costs,
    ids::{PartIx, RequestIx, SubQueueIx},
    knob::{GivenKnobs, KnobEntry, KnobRefusal},
    ledger::{Ledger, NEVER, Request},
    queue::{LengthBucketing, Pending, SubQueue},
    table::{
        BatchTable,
        batch::{Batch, Part},
        pipeline::Pipeline,
    },
};

/// What a version does with a lane that it is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::batching) enum Decision {
    /// The foot of this part goes on.
    GoOn(PartIx),
    /// Requests of `sub_queue` board as a new batch, which is launched. Where it will be split it accepts no newcomers
    /// (DVABatch section 5.2.2).
    New { sub_queue: SubQueueIx, selection: Selection, accepts_newcomers: bool },
    /// Requests of `sub_queue` join the batch of which this is the only part, at its foot; then the policy decides
    /// again.
    Stretch { part: PartIx, sub_queue: SubQueueIx, selection: Selection, accepts_newcomers: bool },
    /// The only step of this part waits, and is cut before these of its spans; then the policy decides again.
    Split { part: PartIx, before: SmallVec<[usize; 8]> },
    /// A request is refused: it cannot meet its target any more; then the policy decides again.
    Refuse(RequestIx),
    /// Nothing is launched before this time unless something changes.
    Wait(Ns),
    /// There is nothing to launch.
    Nothing,
}

/// Which requests board: those of a sub-queue, or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::batching) enum Selection {
    /// So many from its head.
    First(u32),
    /// So many from the head of each of these sub-queues, of which it is one.
    Heads(SmallVec<[(SubQueueIx, u32); 4]>),
    /// These.
    Named(Vec<RequestIx>),
}

/// What a policy looks at.
#[derive(Debug)]
pub(in crate::batching) struct View<'a> {
    pub(in crate::batching) now: Ns,
    pub(in crate::batching) ledger: &'a Ledger,
    pub(in crate::batching) pending: &'a Pending,
    pub(in crate::batching) table: &'a BatchTable,
    pub(in crate::batching) pipeline: &'a Pipeline,
    pub(in crate::batching) costs: &'a Costs,
    /// Runs that the costs have been corrected by.
    pub(in crate::batching) learned: u64,
    pub(in crate::batching) max_rows: u32,
    pub(in crate::batching) objective_ns: Option<Ns>,
    /// Time that other models can spare before one of their targets is missed; none without targets, or if the policy
    /// does not ask.
    pub(in crate::batching) neighbours_slack_ns: Option<Ns>,
    /// The part of a batch whose foot may go on the lane now, the first in order.
    pub(in crate::batching) ready: Option<&'a Part>,
    /// Whether a new batch could be launched on the lane.
    pub(in crate::batching) enterable: bool,
    /// Whether the lane has nothing to do.
    pub(in crate::batching) lane_is_idle: bool,
    /// Lanes that the group may use at once.
    pub(in crate::batching) lanes: u32,
    /// Those beside this one that have nothing to do.
    pub(in crate::batching) idle_besides: u32,
}

impl View<'_> {
    /// The part that goes on before a batch is formed: the first that is ready, unless a request of a higher level
    /// waits.
    pub(super) fn goes_first(&self) -> Option<PartIx> {
        let ready = self.ready?;
        let outranked = self.enterable && self.pending.best_level().is_some_and(|level| level < ready.level);
        (!outranked).then_some(ready.ix)
    }

    /// What comes of a decision about the pending requests where a part may be ready too.
    pub(super) fn or_go_on(&self, decision: Decision) -> Decision {
        let Some(ready) = self.ready else { return decision };
        match decision {
            Decision::Wait(_) | Decision::Nothing => Decision::GoOn(ready.ix),
            Decision::New { sub_queue, .. } if self.level_of(sub_queue) >= ready.level => Decision::GoOn(ready.ix),
            decision => decision,
        }
    }

    /// When a request should be done; none where nobody said.
    pub(super) fn target(&self, request_ix: RequestIx) -> Option<Ns> {
        let target = self.ledger[request_ix].target(self.objective_ns);
        (target != NEVER).then_some(target)
    }

    /// The padded shape that a sub-queue's requests would have as a batch, as far as it can be told from the first.
    pub(super) fn class_of(&self, sub_queue: &SubQueue) -> ShapeClass {
        if !sub_queue.batch_key.class.0.is_empty() {
            return sub_queue.batch_key.class.clone();
        }
        let first = sub_queue.iter(self.ledger).next();
        first.map_or_else(ShapeClass::default, |request_ix| ShapeClass(self.ledger[request_ix].lengths.clone()))
    }

    /// The level of a sub-queue's first request.
    pub(super) fn level_of(&self, sub_queue: SubQueueIx) -> u64 {
        let rank = self.pending.sub_queue(sub_queue).and_then(|sub_queue| sub_queue.rank(self.ledger));
        rank.map_or(u64::MAX, |(level, ..)| level)
    }
}

/// A policy over batches, with what it remembers of its version.
pub(in crate::batching) trait BatchPolicy: Debug + Send {
    /// What to do with a lane.
    fn decide(&mut self, view: &View<'_>) -> Decision;

    /// Takes note of an arrival in a sub-queue: of its rows, for those that measure the rate, and of its order.
    fn arrived(&mut self, _now: Ns, _sub_queue: SubQueueIx, _request: &Request) {}

    /// Whether it ever stretches a batch.
    fn stretches(&self) -> bool {
        false
    }

    /// Whether it looks at how much time other models can spare.
    fn asks_for_neighbours(&self) -> bool {
        false
    }

    /// In which order the parts of a split batch run.
    fn part_order(&self) -> PartOrder {
        PartOrder::DepthFirst
    }

    /// Whether newcomers may still join a batch, as far as its age and its progress go.
    fn keeps_open(&self, _now: Ns, _batch: &Batch, _stages: u16) -> bool {
        false
    }
}

/// The knobs of a policy over batches.
pub(in crate::batching) trait PolicyKnobs: Sized {
    /// Its name in configurations.
    const NAME: &'static str;

    /// Its knobs in configurations, with the forms of their values.
    const KNOBS: &'static [KnobEntry];

    /// Reads them from a configuration.
    ///
    /// # Errors
    /// When a knob is not of its form or contradicts another.
    fn read(given: &GivenKnobs<'_>) -> Result<Self, KnobRefusal>;

    /// The policy at work.
    fn start(&self, limits: BatchLimits) -> Box<dyn BatchPolicy>;

    /// What the policy asks of its version.
    fn requirements(&self) -> Requirements {
        Requirements::default()
    }
}

/// Which batches a version can run.
#[derive(Clone, Copy, Debug)]
pub(in crate::batching) struct BatchLimits {
    /// Rows of the largest batch.
    pub(in crate::batching) max_rows: u32,
    /// Whether requests may share a batch.
    pub(in crate::batching) mergeable: bool,
}

/// What a policy asks of its version's queue and costs.
#[derive(Debug)]
pub(in crate::batching) struct Requirements {
    /// It asks how long stages take, so that costs are learned.
    pub(in crate::batching) costs: bool,
    /// Requests board in the order of their targets.
    pub(in crate::batching) targets: bool,
    /// Requests may share a batch, if the model allows it.
    pub(in crate::batching) shares_batches: bool,
    /// Newcomers may join a batch between its stages.
    pub(in crate::batching) joins: bool,
    /// How lengths are rounded; none: as the queue's `bucket_width` says.
    pub(in crate::batching) lengths: Option<LengthBucketing>,
}

impl Default for Requirements {
    fn default() -> Self {
        Self { costs: true, targets: false, shares_batches: true, joins: false, lengths: None }
    }
}
