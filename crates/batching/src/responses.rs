//! Responses and ends of requests. Both leave at once, or in arrival order if the version preserves it: then the
//! responses and the end of a later request are held until all earlier requests have ended.

use super::{
    Action, End,
    ids::RequestIx,
    ledger::{Request, RequestState},
    queue::List,
    version::{StepContext, Version},
};

impl StepContext<'_> {
    /// Sends a response that a task made for a request, or holds it for order.
    pub(super) fn emit(&mut self, request_ix: RequestIx) {
        if self.version.is_behind_another(request_ix) {
            self.ledger[request_ix].unsent += 1;
        } else {
            self.emit_next(request_ix);
        }
    }

    /// Ends a request that has no work left. Its response may be held for order; a cancelled or expired request ends at
    /// once, since its client no longer waits.
    pub(super) fn end(&mut self, request_ix: RequestIx, end: End) {
        self.unqueue(request_ix);
        let in_order = matches!(end, End::Completed | End::Failed | End::Rejected(_));
        if in_order && self.version.is_behind_another(request_ix) {
            self.hold(request_ix, RequestState::Held(end));
        } else {
            self.finish(request_ix, end);
        }
        self.release_responses();
    }

    /// Marks a request as over and holds its response in `state`.
    pub(super) fn hold(&mut self, request_ix: RequestIx, state: RequestState) {
        self.ledger[request_ix].state = state;
        // The client's deadline still counts; the queue timeout no longer does.
        let deadline = self.ledger[request_ix].deadline;
        if self.ledger[request_ix].alarm != deadline {
            self.timers.disarm(self.ledger, request_ix);
            self.timers.arm(self.ledger, request_ix, deadline);
        }
    }

    /// Releases the responses of merged requests, after all requests of the merge have run. A response may still be
    /// held for an earlier request.
    pub(super) fn release_merged(&mut self, merged: impl IntoIterator<Item = RequestIx>) {
        for request_ix in merged {
            let RequestState::Merged(end) = self.ledger[request_ix].state else { continue };
            if self.version.is_behind_another(request_ix) {
                self.ledger[request_ix].state = RequestState::Held(end);
            } else {
                self.finish(request_ix, end);
            }
        }
        self.release_responses();
    }

    /// Releases held responses until the first request in order has no held end.
    fn release_responses(&mut self) {
        while let Some(request_ix) = self.version.order.as_ref().and_then(List::head) {
            while self.ledger[request_ix].unsent > 0 {
                self.ledger[request_ix].unsent -= 1;
                self.emit_next(request_ix);
            }
            let RequestState::Held(end) = self.ledger[request_ix].state else { return };
            self.finish(request_ix, end);
        }
    }

    fn finish(&mut self, request_ix: RequestIx, end: End) {
        if let Some(order) = &mut self.version.order {
            order.remove(self.ledger, request_ix);
        }
        self.timers.disarm(self.ledger, request_ix);
        if end == End::Completed && self.ledger[request_ix].is_missed(self.version.objective_ns, self.now) {
            self.version.totals.slack_misses += 1;
        }
        let Request { req, sequence, .. } = self.ledger[request_ix];
        self.ledger.remove(request_ix);
        self.version.live -= 1;
        self.version.totals.count_end(end);
        self.actions.push(Action::Finish { req, end });
        if let (Some(sequences), Some(sequence)) = (&mut self.version.sequences, sequence) {
            let change = sequences.left(self.now, sequence, request_ix, end);
            self.apply(change);
        }
    }

    fn emit_next(&mut self, request_ix: RequestIx) {
        let request = &mut self.ledger[request_ix];
        let (req, step) = (request.req, request.emitted);
        request.emitted += 1;
        self.actions.push(Action::Emit { req, step });
    }
}

impl Version {
    /// Whether the response of a request must wait for an earlier request.
    fn is_behind_another(&self, request_ix: RequestIx) -> bool {
        self.order.as_ref().is_some_and(|order| order.head() != Some(request_ix))
    }
}
