//! Policies: which pending requests board next, and when. A policy only decides; the group carries its decision out on
//! the pending queue and the batch table. No policy owns a clock or changes a batch itself.

mod serial;
mod window;

use self::{serial::Serial, window::Window};
use super::{
    Knobs, Ns, knobs,
    ledger::Ledger,
    pending::{LineIx, Pending},
};

/// What a group does with a lane that it is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The first `requests` requests of `line` board as a new batch.
    Board { line: LineIx, requests: u32 },
    /// Nothing boards before this time unless something changes.
    Wait(Ns),
    /// Nothing is pending.
    Nothing,
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

    /// What to do with an idle lane.
    pub(super) fn decide(&mut self, now: Ns, pending: &Pending, ledger: &Ledger) -> Decision {
        match self {
            Self::Serial(serial) => serial.decide(),
            Self::Window(window) => window.decide(now, pending, ledger),
        }
    }

    /// Whether what the policy remembers of the lines is what they are.
    pub(super) fn check(&self, pending: &Pending, ledger: &Ledger) -> Result<(), String> {
        match self {
            Self::Serial(_) => Ok(()),
            Self::Window(window) => window.check(pending, ledger),
        }
    }
}
