//! The policy `serial`: one request at a time, in arrival order. Triton does the same for a model without a scheduler.

use super::{BatchPolicy, Decision, Requirements, Selection, View};

/// The policy; it has no state.
#[derive(Debug)]
pub(crate) struct Serial;

impl Serial {
    /// Returns what the policy requires of its version.
    pub(crate) fn requirements() -> Requirements {
        Requirements { costs: false, shares_batches: false, ..Requirements::default() }
    }
}

impl BatchPolicy for Serial {
    fn board(&mut self, view: &View<'_>) -> Decision {
        let Some((sub_queue, _)) = view.pending.in_order().next() else { return Decision::Nothing };
        Decision::New { sub_queue, selection: Selection::First(1), accepts_newcomers: true }
    }
}
