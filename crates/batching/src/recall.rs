//! Recall of requests that have not boarded: they move to another core because its device is idle, or because their own
//! device is lost.

use std::mem;

use super::{
    Action, Arrival, End, FirstArrival, ids::RequestIx, ledger::RequestState, version::StepContext, work::Work,
};

/// Recalls half of the waiting requests, rounded up, and at most a largest batch of rows. Takes the requests that would
/// board next, since they have waited longest.
pub(super) fn recall_half(context: &mut StepContext<'_>) {
    let pending = &context.version.pending;
    if !pending.may_leave {
        return;
    }
    let mut room = context.version.max_rows;
    let waiting = pending.in_order().flat_map(|(_, sub_queue)| sub_queue.iter(context.ledger));
    let leaves = waiting.take(pending.requests.div_ceil(2)).take_while(|&request_ix| {
        let left = room.checked_sub(context.ledger[request_ix].rows);
        room = left.unwrap_or(room);
        left.is_some()
    });
    let leaves: Vec<RequestIx> = leaves.collect();
    leaves.into_iter().for_each(|request_ix| context.recall(request_ix));
}

/// Handles the loss of a request's device: recalls the request if it is queued and may move, and fails it otherwise.
pub(super) fn abandon(work: &mut Work, context: &mut StepContext<'_>, request_ix: RequestIx) {
    match context.ledger[request_ix].state {
        RequestState::Queued { .. } if context.version.pending.may_leave => context.recall(request_ix),
        RequestState::Queued { .. } | RequestState::Aboard => work.end(context, request_ix, End::Failed),
        // The request has run; only its response is held.
        RequestState::Held(_) | RequestState::Merged(_) => {}
    }
}

impl StepContext<'_> {
    /// Removes a waiting request from this core and passes it back as an arrival for another core.
    fn recall(&mut self, request_ix: RequestIx) {
        let RequestState::Queued { sub_queue, .. } = self.ledger[request_ix].state else { return };
        let sub_queue = self.version.pending.sub_queue(sub_queue);
        let key = sub_queue.map(|sub_queue| sub_queue.batch_key.key.clone()).unwrap_or_default();
        self.unqueue(request_ix);
        self.timers.disarm(self.ledger, request_ix);
        // The instants of the first arrival go along, because its age and timeouts count from there.
        let request = &mut self.ledger[request_ix];
        let arrival = Arrival {
            req: request.req,
            model: self.version.model,
            rows: request.rows,
            lengths: mem::take(&mut request.lengths),
            key,
            priority: request.level,
            queue_deadline: None,
            deadline: request.deadline.unless_never(),
            needed_after_ns: request.deadline.since(request.due),
            graph: mem::take(&mut request.graph),
            sequence: None,
            first: Some(FirstArrival { at: request.arrived, queue_deadline: request.queue_deadline.unless_never() }),
            memory: request.memory.take(),
        };
        self.ledger.remove(request_ix);
        self.version.live -= 1;
        self.version.totals.recalled += 1;
        self.actions.push(Action::Recalled(Box::new(arrival)));
    }
}
