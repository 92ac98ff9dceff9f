//! Policies: what happens at each boundary. A policy only decides; the group carries its decision out on the pending
//! queue and the batch table. No policy owns a clock or changes a batch itself.

mod adaptive;
mod candidate;
mod diversity;
mod gain;
mod lazy;
pub(super) mod monitor;
mod rate;
mod serial;
pub(super) mod slack;
mod window;

use smallvec::SmallVec;

use self::{adaptive::Adaptive, diversity::Diversity, lazy::Lazy, window::Window};
use super::{
    Knobs, Ns, PartOrder, ShapeClass,
    cost::Costs,
    ids::{BatchIx, RequestIx, SubQueueIx},
    knobs,
    ledger::{Ledger, NEVER, Request},
    queue::{Pending, SubQueue},
    table::{BatchTable, lineage::Lineage, pipeline::Pipeline},
};

/// What a group does with a lane that it is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The foot of this batch goes on.
    GoOn(BatchIx),
    /// Requests of `sub_queue` board as a new batch, which is launched. Where it will be split it accepts no newcomers
    /// (DVABatch section 5.2.2).
    New { sub_queue: SubQueueIx, selection: Selection, accepts_newcomers: bool },
    /// Requests of `sub_queue` join this batch at its foot; then the policy decides again.
    Stretch { batch: BatchIx, sub_queue: SubQueueIx, selection: Selection, accepts_newcomers: bool },
    /// The waiting step of this batch parts, before these of its spans; then the policy decides again.
    Split { batch: BatchIx, before: SmallVec<[usize; 8]> },
    /// A request is refused: it cannot meet its target any more; then the policy decides again.
    Refuse(RequestIx),
    /// Nothing is launched before this time unless something changes.
    Wait(Ns),
    /// There is nothing to launch.
    Nothing,
}

/// Which requests board: those of a sub-queue, or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// So many from its head.
    First(u32),
    /// So many from the head of each of these sub-queues, of which it is one.
    Heads(SmallVec<[(SubQueueIx, u32); 4]>),
    /// These.
    Named(Vec<RequestIx>),
}

/// What a policy looks at.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) now: Ns,
    pub(super) ledger: &'a Ledger,
    pub(super) pending: &'a Pending,
    pub(super) table: &'a BatchTable,
    pub(super) pipeline: &'a Pipeline,
    pub(super) costs: &'a Costs,
    /// Runs that the costs have been corrected by.
    pub(super) learned: u64,
    pub(super) max_rows: u32,
    pub(super) objective_ns: Option<Ns>,
    /// Time that other models can spare before one of their targets is missed; none without targets, or if the policy
    /// does not ask.
    pub(super) neighbours_slack_ns: Option<Ns>,
    /// The batch whose foot may go on the lane now, the first in order.
    pub(super) ready: Option<BatchIx>,
    /// Whether a new batch could be launched on the lane.
    pub(super) enterable: bool,
    /// Whether the lane has nothing to do.
    pub(super) lane_is_idle: bool,
    /// Lanes that the group may use at once.
    pub(super) lanes: u32,
    /// Those beside this one that have nothing to do.
    pub(super) idle_besides: u32,
}

impl View<'_> {
    /// The batch that goes on before another is formed: the first that is ready, unless a request of a higher level
    /// waits.
    fn goes_first(&self) -> Option<BatchIx> {
        let ready = self.ready?;
        let outranked =
            self.enterable && self.pending.best_level().is_some_and(|level| level < self.table.get(ready).level);
        (!outranked).then_some(ready)
    }

    /// What comes of a decision about the pending requests where a batch may be ready too.
    fn or_go_on(&self, decision: Decision) -> Decision {
        let Some(ready) = self.ready else { return decision };
        match decision {
            Decision::Wait(_) | Decision::Nothing => Decision::GoOn(ready),
            Decision::New { sub_queue, .. } if self.level_of(sub_queue) >= self.table.get(ready).level => {
                Decision::GoOn(ready)
            }
            decision => decision,
        }
    }

    /// When a request should be done; none where nobody said.
    fn target(&self, request_ix: RequestIx) -> Option<Ns> {
        let target = self.ledger[request_ix].target(self.objective_ns);
        (target != NEVER).then_some(target)
    }

    /// The padded shape that a sub-queue's requests would have as a batch, as far as it can be told from the first.
    fn class_of(&self, sub_queue: &SubQueue) -> ShapeClass {
        if !sub_queue.batch_key.class.0.is_empty() {
            return sub_queue.batch_key.class.clone();
        }
        let first = sub_queue.iter(self.ledger).next();
        first.map_or_else(ShapeClass::default, |request_ix| ShapeClass(self.ledger[request_ix].lengths.clone()))
    }

    /// The level of a sub-queue's first request.
    fn level_of(&self, sub_queue: SubQueueIx) -> u64 {
        let rank = self.pending.sub_queue(sub_queue).and_then(|sub_queue| sub_queue.rank(self.ledger));
        rank.map_or(u64::MAX, |(level, ..)| level)
    }
}

/// The policy of a group.
#[derive(Debug)]
pub(super) enum Policy {
    /// One request at a time.
    Serial,
    /// Triton's dynamic batcher.
    Window(Window),
    /// Batch sizes follow the request rate.
    Adaptive(Adaptive),
    /// Newcomers catch up while the slack allows it.
    Lazy(Lazy),
    /// New, stretch and split.
    Diversity(Diversity),
}

impl Policy {
    pub(super) fn new(knobs: &Knobs) -> Self {
        match &knobs.policy {
            knobs::Policy::Window(window) => Self::Window(Window::new(knobs, window)),
            knobs::Policy::Adaptive(adaptive) => Self::Adaptive(Adaptive::new(adaptive)),
            knobs::Policy::Lazy(lazy) => Self::Lazy(Lazy::new(lazy)),
            knobs::Policy::Diversity(diversity) => Self::Diversity(Diversity::new(diversity)),
            // Cells have no batches to decide about.
            knobs::Policy::Serial | knobs::Policy::Cellular(_) => Self::Serial,
        }
    }

    /// Takes note of an arrival in a sub-queue: of its rows, for those that measure the rate, and of its order.
    pub(super) fn arrived(&mut self, now: Ns, sub_queue: SubQueueIx, request: &Request) {
        match self {
            Self::Window(window) => window.arrived(sub_queue, request.seq),
            Self::Adaptive(adaptive) => adaptive.arrived(now, request.rows),
            Self::Diversity(diversity) => diversity.arrived(now, request.rows),
            Self::Serial | Self::Lazy(_) => {}
        }
    }

    /// What to do with a lane.
    pub(super) fn decide(&mut self, view: &View<'_>) -> Decision {
        match self {
            Self::Serial => serial::decide(view),
            Self::Window(window) => window.decide(view),
            Self::Adaptive(adaptive) => adaptive.decide(view),
            Self::Lazy(lazy) => lazy.decide(view),
            Self::Diversity(diversity) => diversity.decide(view),
        }
    }

    /// Whether it ever stretches a batch.
    pub(super) fn stretches(&self) -> bool {
        match self {
            Self::Serial | Self::Window(_) | Self::Adaptive(_) => false,
            Self::Lazy(_) => true,
            Self::Diversity(diversity) => diversity.stretches(),
        }
    }

    /// Whether it looks at how much time other models can spare.
    pub(super) fn asks_for_neighbours(&self) -> bool {
        matches!(self, Self::Lazy(_))
    }

    /// In which order the parts of a split batch run.
    pub(super) fn part_order(&self) -> PartOrder {
        match self {
            Self::Diversity(diversity) => diversity.part_order(),
            _ => PartOrder::DepthFirst,
        }
    }

    /// Whether newcomers may still join a batch, as far as its age and its progress go.
    pub(super) fn keeps_open(&self, now: Ns, lineage: &Lineage, table: &BatchTable, stages: u16) -> bool {
        match self {
            Self::Serial | Self::Window(_) | Self::Adaptive(_) => false,
            Self::Lazy(_) => true,
            Self::Diversity(diversity) => match lineage.parts.as_slice() {
                &[batch] => diversity.keeps_open(now, lineage, table.get(batch), stages),
                _ => false,
            },
        }
    }
}
