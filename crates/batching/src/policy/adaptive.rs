//! The policy `adaptive`: the batch size follows the request rate (Efficient Adaptive Batching, section III). The
//! monitor chooses how many rows to collect, the dispatcher how long a batch waits for them.

use super::{
    BatchLimits, BatchPolicy, Decision, PolicyKnobs, RequestView, Requirements, View,
    candidate::CandidateBatch,
    monitor::{AdaptiveKnobs, Demand, Dispatch, Monitor, Queue},
};
use crate::{Instant, cost::Quantile, ids::SubQueueIx};

impl PolicyKnobs for AdaptiveKnobs {
    fn start(&self, _: BatchLimits) -> Box<dyn BatchPolicy> {
        Box::new(Adaptive { monitor: Monitor::new(self.clone(), Instant::ZERO) })
    }

    fn requirements(&self) -> Requirements {
        Requirements { pads_any: self.paper, ..Requirements::default() }
    }
}

/// The policy with its state for one version.
#[derive(Debug)]
struct Adaptive {
    monitor: Monitor,
}

impl BatchPolicy for Adaptive {
    fn arrived(&mut self, now: Instant, _: SubQueueIx, request: RequestView<'_>) {
        self.monitor.arrived(now, request.rows());
    }

    fn board(&mut self, view: &View<'_>) -> Decision {
        let mut due = Instant::NEVER;
        for (sub_queue, entry) in view.pending.in_order() {
            let candidates = CandidateBatch::of(view, sub_queue, entry, view.max_rows);
            match dispatch(&mut self.monitor, view, &candidates) {
                Dispatch::Go(rows) => {
                    let candidates = CandidateBatch::of(view, sub_queue, entry, rows);
                    let requests = candidates.within(view, rows).0.max(1);
                    let selection = candidates.select(requests);
                    return Decision::New { sub_queue, selection, accepts_newcomers: true };
                }
                Dispatch::Until(then) => due = due.min(then),
            }
        }
        if due == Instant::NEVER { Decision::Nothing } else { Decision::Wait(due) }
    }
}

/// Returns the dispatcher's decision for the candidates of a sub-queue.
fn dispatch<'a>(monitor: &mut Monitor, view: &View<'a>, candidates: &CandidateBatch<'a>) -> Dispatch {
    let Some(first) = candidates.iter(view).next() else { return Dispatch::Until(Instant::NEVER) };
    let class = candidates.class(view);
    let View { costs, max_rows, objective_ns, lanes, .. } = *view;
    let demand = Demand { costs, class: &class, max_rows, objective_ns, lanes };
    let waiting = u32::try_from(view.pending.rows).unwrap_or(u32::MAX);
    let preferred = monitor.preferred(view.now, waiting, &demand);
    let rows = u32::try_from(candidates.rows()).unwrap_or(u32::MAX);
    let oldest_arrival = candidates.oldest(view).unwrap_or(view.now);
    let oldest_slack_ns = view.target(first).map(|target| {
        let needs_ns = view.costs.whole(rows.min(view.max_rows), &class, Quantile::P99).unwrap_or(0);
        target.since(view.now + needs_ns)
    });
    let queue = Queue { rows, oldest_arrival, oldest_slack_ns, lane_is_left: view.idle_besides > 0 };
    monitor.dispatch(view.now, &queue, preferred, view.lane_is_idle, &demand)
}
