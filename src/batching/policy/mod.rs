//! Policies: what happens at each boundary. A policy only decides; the group carries its decision out on the pending queue
//! and the batch table. No policy owns a clock or changes a batch itself.

mod serial;
mod window;

use smallvec::SmallVec;

use self::{serial::Serial, window::Window};
use super::{
    Knobs, Ns, PartOrder, knobs,
    ledger::{Ledger, Slot},
    lineage::Lineage,
    pending::{LineIx, Pending},
    pipeline::Pipeline,
    table::{BatchIx, BatchTable},
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
    /// The waiting step of this batch parts into so many rows each; then the policy decides again.
    Split { batch: BatchIx, rows: SmallVec<[u32; 8]> },
    /// A request is refused: it cannot meet its target any more; then the policy decides again.
    Refuse(Slot),
    /// Nothing is launched before this time unless something changes.
    Wait(Ns),
    /// There is nothing to launch.
    Nothing,
}

/// Which requests of a line board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Passengers {
    /// So many from its head.
    First(u32),
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
    /// The batch whose foot may go on the lane now, the first in order.
    pub(super) ready: Option<BatchIx>,
    /// Whether a new batch could be launched on the lane.
    pub(super) enterable: bool,
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

    /// The level of a line's first request.
    fn level_of(&self, line: LineIx) -> u32 {
        let rank = self.pending.line(line).and_then(|line| line.rank(self.ledger));
        rank.map_or(u32::MAX, |(level, ..)| level)
    }
}

/// The policy of a group.
#[derive(Debug)]
pub(super) enum Policy {
    /// One request at a time.
    Serial(Serial),
    /// Triton's dynamic batcher.
    Window(Window),
}

impl Policy {
    pub(super) fn new(knobs: &Knobs) -> Self {
        match &knobs.policy {
            knobs::Policy::Serial => Self::Serial(Serial::default()),
            knobs::Policy::Window(window) => Self::Window(Window::new(knobs, window)),
            _ => Self::Window(Window::new(knobs, &knobs::WindowKnobs::default())),
        }
    }

    /// Takes note of a change in a line: an arrival, a departure or a delay. Called before an empty line is retired.
    pub(super) fn touched(&mut self, line: LineIx, pending: &Pending, ledger: &Ledger) {
        match self {
            Self::Serial(serial) => serial.touched(line, pending),
            Self::Window(window) => window.touched(line, pending, ledger),
        }
    }

    /// What to do with a lane.
    pub(super) fn decide(&mut self, view: &View<'_>) -> Decision {
        match self {
            Self::Serial(serial) => serial.decide(view),
            Self::Window(window) => window.decide(view),
        }
    }

    /// Whether it ever stretches a batch.
    pub(super) fn stretches(&self) -> bool {
        false
    }

    /// In which order the parts of a split batch run.
    pub(super) fn part_order(&self) -> PartOrder {
        PartOrder::DepthFirst
    }

    /// Whether newcomers may still join a batch, as far as its age and its progress go.
    pub(super) fn keeps_open(&self, _now: Ns, _lineage: &Lineage, _table: &BatchTable) -> bool {
        false
    }

    /// Whether what the policy remembers of the lines is what they are.
    pub(super) fn check(&self, pending: &Pending, ledger: &Ledger) -> Result<(), String> {
        match self {
            Self::Serial(_) => Ok(()),
            Self::Window(window) => window.check(pending, ledger),
        }
    }
}
