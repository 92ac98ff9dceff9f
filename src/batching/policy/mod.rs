//! Policies: what happens at each boundary. A policy only decides; the group carries its decision out on the pending queue
//! and the batch table. No policy owns a clock or changes a batch itself.

mod adaptive;
mod diversity;
mod gain;
mod heads;
mod lazy;
mod party;
mod serial;
mod window;

use smallvec::SmallVec;

use self::{adaptive::Adaptive, diversity::Diversity, lazy::Lazy, serial::Serial, window::Window};
use super::{
    Knobs, Ns, PartOrder, ShapeClass,
    batch::BatchIx,
    cost::Costs,
    knobs,
    ledger::{Ledger, NEVER, Request, Slot},
    lineage::Lineage,
    pending::{Line, LineIx, Pending},
    pipeline::Pipeline,
    table::BatchTable,
};

/// What a group does with a lane that it is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The foot of this batch goes on.
    GoOn(BatchIx),
    /// Requests of `line` board as a new batch, which is launched.
    New { line: LineIx, passengers: Passengers, outlook: Outlook },
    /// Requests of `line` join this batch at its foot; then the policy decides again.
    Stretch { batch: BatchIx, line: LineIx, passengers: Passengers, outlook: Outlook },
    /// The waiting step of this batch parts, before these of its seats; then the policy decides again.
    Split { batch: BatchIx, before: SmallVec<[usize; 8]> },
    /// A request is refused: it cannot meet its target any more; then the policy decides again.
    Refuse(Slot),
    /// Nothing is launched before this time unless something changes.
    Wait(Ns),
    /// There is nothing to launch.
    Nothing,
}

/// Which requests board: those of a line, or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Passengers {
    /// So many from its head.
    First(u32),
    /// So many from the head of each of these lines, of which it is one.
    Heads(SmallVec<[(LineIx, u32); 4]>),
    /// These.
    Named(Vec<Slot>),
}

/// What is foreseen for a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Newcomers may join it, if the policy stretches batches at all.
    #[default]
    Open,
    /// It will be split: nobody joins any more (DVABatch section 5.2.2).
    Split,
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
    /// The batch that goes on before another is formed: the first that is ready, unless a request of a higher level waits.
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
            Decision::New { line, .. } if self.level_of(line) >= self.table.get(ready).level => Decision::GoOn(ready),
            decision => decision,
        }
    }

    /// When a request should be done; none where nobody said.
    fn target(&self, slot: Slot) -> Option<Ns> {
        let target = self.ledger[slot].target(self.objective_ns);
        (target != NEVER).then_some(target)
    }

    /// The padded shape that a line's requests would have as a batch, as far as it can be told from the first.
    fn class_of(&self, line: &Line) -> ShapeClass {
        if !line.mates.class.0.is_empty() {
            return line.mates.class.clone();
        }
        let first = line.iter(self.ledger).next();
        first.map_or_else(ShapeClass::default, |slot| ShapeClass(self.ledger[slot].lengths.clone()))
    }

    /// The level of a line's first request.
    fn level_of(&self, line: LineIx) -> u64 {
        let rank = self.pending.line(line).and_then(|line| line.rank(self.ledger));
        rank.map_or(u64::MAX, |(level, ..)| level)
    }
}

/// The policy of a group.
#[derive(Debug)]
pub(super) enum Policy {
    /// One request at a time.
    Serial(Serial),
    /// Triton's dynamic batcher.
    Window(Window),
    /// Batch sizes follow the request rate.
    Adaptive(Adaptive),
    /// Newcomers catch up while the slack allows it.
    Lazy(Lazy),
    /// New, stretch and split.
    Diversity(Diversity),
    /// Requests unfold into cells: there are no batches to decide about.
    Cellular,
}

impl Policy {
    pub(super) fn new(knobs: &Knobs) -> Self {
        match &knobs.policy {
            knobs::Policy::Serial => Self::Serial(Serial::default()),
            knobs::Policy::Window(window) => Self::Window(Window::new(knobs, window)),
            knobs::Policy::Adaptive(adaptive) => Self::Adaptive(Adaptive::new(adaptive)),
            knobs::Policy::Lazy(lazy) => Self::Lazy(Lazy::new(lazy)),
            knobs::Policy::Diversity(diversity) => Self::Diversity(Diversity::new(diversity)),
            knobs::Policy::Cellular(_) => Self::Cellular,
        }
    }

    /// Takes note of an arrival in a line: of its rows, for those that measure the rate, and of its order.
    pub(super) fn arrived(&mut self, now: Ns, line: LineIx, request: &Request) {
        match self {
            Self::Window(window) => window.arrived(line, request.seq),
            Self::Adaptive(adaptive) => adaptive.arrived(now, request.rows),
            Self::Diversity(diversity) => diversity.arrived(now, request.rows),
            Self::Serial(_) | Self::Lazy(_) | Self::Cellular => {}
        }
    }

    /// Takes note of a change in a line: an arrival, a departure or a delay. Called before an empty line is retired.
    pub(super) fn touched(&mut self, line: LineIx, pending: &Pending, ledger: &Ledger) {
        match self {
            Self::Serial(serial) => serial.touched(line, pending),
            Self::Window(window) => window.touched(line, pending, ledger),
            Self::Adaptive(adaptive) => adaptive.touched(line, pending, ledger),
            Self::Lazy(lazy) => lazy.touched(line, pending, ledger),
            Self::Diversity(diversity) => diversity.touched(line, pending, ledger),
            Self::Cellular => {}
        }
    }

    /// What to do with a lane.
    pub(super) fn decide(&mut self, view: &View<'_>) -> Decision {
        match self {
            Self::Serial(serial) => serial.decide(view),
            Self::Window(window) => window.decide(view),
            Self::Adaptive(adaptive) => adaptive.decide(view),
            Self::Lazy(lazy) => lazy.decide(view),
            Self::Diversity(diversity) => diversity.decide(view),
            Self::Cellular => Decision::Nothing,
        }
    }

    /// Whether it ever stretches a batch.
    pub(super) fn stretches(&self) -> bool {
        match self {
            Self::Serial(_) | Self::Window(_) | Self::Adaptive(_) | Self::Cellular => false,
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
            Self::Serial(_) | Self::Window(_) | Self::Adaptive(_) | Self::Cellular => false,
            Self::Lazy(_) => true,
            Self::Diversity(diversity) => match lineage.parts.as_slice() {
                &[batch] => diversity.keeps_open(now, lineage, table.get(batch), stages),
                _ => false,
            },
        }
    }

    /// Whether what the policy remembers of the lines is what they are.
    pub(super) fn check(&self, pending: &Pending, ledger: &Ledger) -> Result<(), String> {
        match self {
            Self::Serial(_) | Self::Cellular => Ok(()),
            Self::Window(window) => window.check(pending, ledger),
            Self::Adaptive(adaptive) => adaptive.check(pending, ledger),
            Self::Lazy(lazy) => lazy.check(pending, ledger),
            Self::Diversity(diversity) => diversity.check(pending, ledger),
        }
    }
}
