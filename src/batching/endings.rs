//! Responses and ends of requests. They leave at once, or in the order of arrival where the version preserves it: then
//! what a later request has to say is held until the earlier ones have ended.

use super::{
    Action, End,
    cellular::Cellular,
    group::{Group, StepContext},
    ids::RequestIx,
    ledger::{Request, RequestState},
    list::List,
};

impl Group {
    /// A task made a response of a request.
    pub(super) fn emit(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx) {
        if self.is_behind_another(request_ix) {
            context.ledger[request_ix].unsent += 1;
        } else {
            emit_next(context, request_ix);
        }
    }

    /// Ends a request wherever it is. Its reply may be held for order; a client that gave up or whose deadline passed
    /// waits for none.
    pub(super) fn end(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx, end: End) {
        if let RequestState::Queued { sub_queue, .. } = context.ledger[request_ix].state {
            self.pending.remove(context.ledger, request_ix);
            self.touched(context.ledger, sub_queue);
            self.pending.retire(sub_queue);
        }
        self.paused.remove(&request_ix);
        let mut is_merged = false;
        if let (RequestState::Aboard, Some(cellular)) = (context.ledger[request_ix].state, &mut self.cellular) {
            cellular.left(request_ix, context.ledger[request_ix].target(self.objective_ns));
            is_merged = end == End::Completed && cellular.keep_reply(request_ix);
        }
        self.untidy |= end != End::Completed && context.ledger[request_ix].state == RequestState::Aboard;
        let in_order = matches!(end, End::Completed | End::Failed | End::Rejected(_));
        if is_merged || (in_order && self.is_behind_another(request_ix)) {
            self.hold(context, request_ix, end);
        } else {
            self.finish(context, request_ix, end);
        }
        self.release_merged(context);
        self.release_replies(context);
    }

    fn hold(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx, end: End) {
        context.ledger[request_ix].state = RequestState::Held(end);
        // The client's deadline still counts, a queue timeout no longer does.
        let expiry = context.ledger[request_ix].expiry;
        if context.ledger[request_ix].alarm != expiry {
            context.timers.disarm(context.ledger, request_ix);
            context.timers.arm(context.ledger, request_ix, expiry);
        }
    }

    /// Whether the reply of a request has to wait for an earlier one.
    fn is_behind_another(&self, request_ix: RequestIx) -> bool {
        self.order.as_ref().is_some_and(|order| order.head() != Some(request_ix))
    }

    /// Lets out what was held for the last of the requests that were merged, unless it has to wait for an earlier one.
    fn release_merged(&mut self, context: &mut StepContext<'_>) {
        let merged = self.cellular.as_mut().map(Cellular::merged_replies).unwrap_or_default();
        for request_ix in merged {
            if let RequestState::Held(end) = context.ledger[request_ix].state
                && !self.is_behind_another(request_ix)
            {
                self.finish(context, request_ix, end);
            }
        }
    }

    /// Lets out what was held for the requests that are now the first.
    fn release_replies(&mut self, context: &mut StepContext<'_>) {
        while let Some(request_ix) = self.order.as_ref().and_then(List::head) {
            while context.ledger[request_ix].unsent > 0 {
                context.ledger[request_ix].unsent -= 1;
                emit_next(context, request_ix);
            }
            let RequestState::Held(end) = context.ledger[request_ix].state else { return };
            if self.cellular.as_ref().is_some_and(|cellular| cellular.keeps_reply(request_ix)) {
                return;
            }
            self.finish(context, request_ix, end);
        }
    }

    fn finish(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx, end: End) {
        if let Some(order) = &mut self.order {
            order.remove(context.ledger, request_ix);
        }
        if let Some(cellular) = &mut self.cellular {
            cellular.reply_left(request_ix);
        }
        context.timers.disarm(context.ledger, request_ix);
        if end == End::Completed && context.ledger[request_ix].target(self.objective_ns) < context.now {
            self.totals.slack_misses += 1;
        }
        let Request { req, group, sequence, .. } = context.ledger.remove(request_ix);
        self.live -= 1;
        self.totals.count_end(end);
        context.actions.push(Action::Finish { req, end });
        if let (Some(sequences), Some(sequence)) = (&mut self.sequences, sequence) {
            let change = sequences.left(context.now, sequence, request_ix, end == End::Completed);
            self.apply(context, group, change);
        }
    }
}

fn emit_next(context: &mut StepContext<'_>, request_ix: RequestIx) {
    let request = &mut context.ledger[request_ix];
    let (req, step) = (request.req, request.emitted);
    request.emitted += 1;
    context.actions.push(Action::Emit { req, step });
}
