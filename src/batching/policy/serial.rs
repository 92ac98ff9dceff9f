//! `serial`: one request at a time, in order of arrival. What Triton does with a model that has no scheduler.

use super::Decision;
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

    pub(super) fn decide(&self) -> Decision {
        match self.waiting {
            Some(line) => Decision::Board { line, requests: 1 },
            None => Decision::Nothing,
        }
    }
}
