//! `adaptive`: the batch size follows the request rate (Efficient Adaptive Batching, section III). The monitor says how
//! many rows to collect, the dispatcher how long a batch may wait for them.

use super::{
    Decision, Selection, View,
    monitor::{Demand, Dispatch, Monitor, MonitorKnobs, Queue},
};
use crate::batching::{AdaptiveKnobs, Ns, ShapeClass, cost::Quantile, queue::SubQueue};

/// State of the policy for one group.
#[derive(Debug)]
pub(in crate::batching) struct Adaptive {
    monitor: Monitor,
}

impl Adaptive {
    pub(super) fn new(knobs: &AdaptiveKnobs) -> Self {
        let AdaptiveKnobs { headroom, average_ns, max_queue_delay_ns, paper } = *knobs;
        let monitor = Monitor::new(MonitorKnobs { headroom, average_ns, cap_ns: max_queue_delay_ns, paper }, 0);
        Self { monitor }
    }

    pub(super) fn arrived(&mut self, now: Ns, rows: u32) {
        self.monitor.arrived(now, rows);
    }

    pub(super) fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(batch) = view.goes_first() {
            return Decision::GoOn(batch);
        }
        if !view.enterable {
            return view.or_go_on(Decision::Nothing);
        }
        let mut due = Ns::MAX;
        for (sub_queue, entry) in view.pending.in_order() {
            match dispatch(&mut self.monitor, view, entry) {
                Dispatch::Go(rows) => {
                    let selection = Selection::First(entry.first_within(rows, view.ledger).max(1));
                    return view.or_go_on(Decision::New { sub_queue, selection, accepts_newcomers: true });
                }
                Dispatch::Until(then) => due = due.min(then),
            }
        }
        view.or_go_on(if due == Ns::MAX { Decision::Nothing } else { Decision::Wait(due) })
    }
}

/// What the dispatcher does with a sub-queue.
fn dispatch(monitor: &mut Monitor, view: &View<'_>, sub_queue: &SubQueue) -> Dispatch {
    let Some(first) = sub_queue.iter(view.ledger).next() else { return Dispatch::Until(Ns::MAX) };
    let class = ShapeClass(view.ledger[first].lengths.clone());
    let View { costs, max_rows, objective_ns, lanes, .. } = *view;
    let demand = Demand { costs, class: &class, max_rows, objective_ns, lanes };
    let waiting = u32::try_from(view.pending.rows).unwrap_or(u32::MAX);
    let preferred = monitor.preferred(view.now, waiting, &demand);
    let rows = u32::try_from(sub_queue.rows).unwrap_or(u32::MAX);
    let oldest_arrival = sub_queue.oldest(view.ledger).unwrap_or(view.now);
    let oldest_slack_ns = view.target(first).map(|target| {
        let needs_ns = view.costs.whole(rows.min(view.max_rows), &class, Quantile::P99).unwrap_or(0);
        target.saturating_sub(view.now).saturating_sub(needs_ns)
    });
    let queue = Queue { rows, oldest_arrival, oldest_slack_ns, lane_is_left: view.idle_besides > 0 };
    monitor.dispatch(view.now, &queue, preferred, view.lane_is_idle, &demand)
}
