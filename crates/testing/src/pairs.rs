//! A batching policy that knows no more than the public interface of `paternoster-batching`.

use paternoster_batching::{BatchLimits, BatchPolicy, Decision, Ns, PolicyKnobs, View};

/// Time that a request waits for another: an hour.
const PATIENCE_NS: Ns = 3_600_000_000_000;

/// Launches two requests together, and one alone only after a long wait.
#[derive(Clone, Copy, Debug)]
pub struct Pairs;

impl PolicyKnobs for Pairs {
    fn start(&self, _: BatchLimits) -> Box<dyn BatchPolicy> {
        Box::new(*self)
    }
}

impl BatchPolicy for Pairs {
    fn board(&mut self, view: &View<'_>) -> Decision {
        let Some(waiting) = view.sub_queues().next() else { return Decision::Nothing };
        let due = waiting.oldest_arrival().map_or(0, |arrived| arrived + PATIENCE_NS);
        if waiting.requests().nth(1).is_none() && view.now() < due {
            return Decision::Wait(due);
        }
        waiting.candidates().launch(2)
    }
}
