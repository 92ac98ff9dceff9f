//! The policy `serial`: one request at a time, in arrival order. Triton does the same for a model without a scheduler.

use super::{BatchPolicy, Decision, Requirements, Selection, View};

/// The policy; it has no state.
#[derive(Debug)]
pub(in crate::batching) struct Serial;

impl Serial {
    /// Returns what the policy requires of its version.
    pub(in crate::batching) fn requirements() -> Requirements {
        Requirements { costs: false, shares_batches: false, ..Requirements::default() }
    }
}

impl BatchPolicy for Serial {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(part) = view.goes_first() {
            return Decision::GoOn(part);
        }
        match view.pending.in_order().next().filter(|_| view.enterable) {
            Some((sub_queue, _)) => {
                Decision::New { sub_queue, selection: Selection::First(1), accepts_newcomers: true }
            }
            None => view.or_go_on(Decision::Nothing),
        }
    }
}
