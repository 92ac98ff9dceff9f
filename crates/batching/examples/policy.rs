//! Two requests share a batch under a policy of this file: `cargo run -p paternoster-batching --example policy`.

use paternoster_batching::{
    Arrival, BatchLimits, BatchPolicy, Core, CustomPolicy, Decision, Event, Instant, Knobs, LaneId, LaneKnobs, ModelId,
    Policy, PolicyKnobs, ReqId, View,
};

/// Launches two requests together, and one alone after 1000 ns.
#[derive(Clone, Copy, Debug)]
struct Pairs;

impl PolicyKnobs for Pairs {
    fn start(&self, _: BatchLimits) -> Box<dyn BatchPolicy> {
        Box::new(*self)
    }
}

impl BatchPolicy for Pairs {
    fn board(&mut self, view: &View<'_>) -> Decision {
        let Some(waiting) = view.sub_queues().next() else { return Decision::Nothing };
        let due = waiting.oldest_arrival().map_or(Instant::ZERO, |arrived| arrived + 1000);
        if waiting.requests().nth(1).is_none() && view.now() < due {
            return Decision::Wait(due);
        }
        waiting.candidates().launch(2)
    }
}

fn main() {
    let policy = Policy::Custom(CustomPolicy::new("pairs", Pairs));
    let mut core = Core::new();
    core.step(Instant::ZERO, Event::LaneUp(LaneId(0), LaneKnobs::default()));
    core.step(
        Instant::ZERO,
        Event::ModelUp(ModelId(0), Box::new(Knobs { max_batch_rows: 8, policy, ..Knobs::default() })),
    );
    for req in 0..2 {
        let actions = core.step(Instant::from_ns(10 * req), Event::Arrived(Arrival::new(ReqId(req), ModelId(0), 1)));
        println!("request {req}: {actions:?}");
    }
}
