//! `serial`: one request at a time, in order of arrival. What Triton does with a model that has no scheduler.

use super::{Decision, Outlook, Passengers, View};
use crate::batching::pending::{LineIx, Pending};

/// All requests of a serial model stand in one line, since none is to be batched with another.
#[derive(Debug, Default)]
pub(in crate::batching) struct Serial {
    waiting: Option<LineIx>,
}

impl Serial {
    pub(super) fn touched(&mut self, line: LineIx, pending: &Pending) {
        self.waiting = pending.line(line).filter(|entry| !entry.is_empty()).map(|_| line);
    }

    pub(super) fn decide(&self, view: &View<'_>) -> Decision {
        if let Some(batch) = view.goes_first() {
            return Decision::GoOn(batch);
        }
        match self.waiting.filter(|_| view.enterable) {
            Some(line) => Decision::New { line, passengers: Passengers::First(1), outlook: Outlook::Open },
            None => view.or_go_on(Decision::Nothing),
        }
    }
}
