//! Responses and ends of requests. They leave at once, or in the order of arrival where the version preserves it: then
//! what a later request has to say is held until the earlier ones have ended.

use super::{
    Action, End,
    cellular::Cellular,
    group::{Group, Turn},
    ledger::{Request, Slot, Stand},
    list::List,
};

impl Group {
    /// A task made a response of a request.
    pub(super) fn emit(&mut self, turn: &mut Turn<'_>, slot: Slot) {
        if self.is_behind_another(slot) {
            turn.ledger[slot].unsent += 1;
        } else {
            emit_next(turn, slot);
        }
    }

    /// Ends a request wherever it is. Its reply may be held for order; a client that gave up or whose deadline passed
    /// waits for none.
    pub(super) fn end(&mut self, turn: &mut Turn<'_>, slot: Slot, end: End) {
        if let Stand::Queued { line, .. } = turn.ledger[slot].stand {
            self.pending.remove(turn.ledger, slot);
            self.touched(turn.ledger, line);
            self.pending.retire(line);
        }
        self.paused.remove(&slot);
        let mut is_merged = false;
        if let (Stand::Aboard, Some(cellular)) = (turn.ledger[slot].stand, &mut self.cellular) {
            cellular.left(slot, turn.ledger[slot].target(self.objective_ns));
            is_merged = end == End::Completed && cellular.keep_reply(slot);
        }
        self.untidy |= end != End::Completed && turn.ledger[slot].stand == Stand::Aboard;
        let in_order = matches!(end, End::Completed | End::Failed | End::Rejected(_));
        if is_merged || (in_order && self.is_behind_another(slot)) {
            self.hold(turn, slot, end);
        } else {
            self.finish(turn, slot, end);
        }
        self.release_merged(turn);
        self.release_replies(turn);
    }

    fn hold(&mut self, turn: &mut Turn<'_>, slot: Slot, end: End) {
        turn.ledger[slot].stand = Stand::Held(end);
        // The client's deadline still counts, a queue timeout no longer does.
        let expiry = turn.ledger[slot].expiry;
        if turn.ledger[slot].alarm != expiry {
            turn.timers.disarm(turn.ledger, slot);
            turn.timers.arm(turn.ledger, slot, expiry);
        }
    }

    /// Whether the reply of a request has to wait for an earlier one.
    fn is_behind_another(&self, slot: Slot) -> bool {
        self.order.as_ref().is_some_and(|order| order.head() != Some(slot))
    }

    /// Lets out what was held for the last of the requests that were merged, unless it has to wait for an earlier one.
    fn release_merged(&mut self, turn: &mut Turn<'_>) {
        let merged = self.cellular.as_mut().map(Cellular::merged_replies).unwrap_or_default();
        for slot in merged {
            if let Stand::Held(end) = turn.ledger[slot].stand
                && !self.is_behind_another(slot)
            {
                self.finish(turn, slot, end);
            }
        }
    }

    /// Lets out what was held for the requests that are now the first.
    fn release_replies(&mut self, turn: &mut Turn<'_>) {
        while let Some(slot) = self.order.as_ref().and_then(List::head) {
            while turn.ledger[slot].unsent > 0 {
                turn.ledger[slot].unsent -= 1;
                emit_next(turn, slot);
            }
            let Stand::Held(end) = turn.ledger[slot].stand else { return };
            if self.cellular.as_ref().is_some_and(|cellular| cellular.keeps_reply(slot)) {
                return;
            }
            self.finish(turn, slot, end);
        }
    }

    fn finish(&mut self, turn: &mut Turn<'_>, slot: Slot, end: End) {
        if let Some(order) = &mut self.order {
            order.remove(turn.ledger, slot);
        }
        if let Some(cellular) = &mut self.cellular {
            cellular.reply_left(slot);
        }
        turn.timers.disarm(turn.ledger, slot);
        if end == End::Completed && turn.ledger[slot].target(self.objective_ns) < turn.now {
            self.totals.slack_misses += 1;
        }
        let Request { req, group, sequence, .. } = turn.ledger.remove(slot);
        self.live -= 1;
        self.totals.count_end(end);
        turn.actions.push(Action::Finish { req, end });
        if let (Some(sequences), Some(sequence)) = (&mut self.sequences, sequence) {
            let change = sequences.left(turn.now, sequence, slot, end == End::Completed);
            self.apply(turn, group, change);
        }
    }
}

fn emit_next(turn: &mut Turn<'_>, slot: Slot) {
    let request = &mut turn.ledger[slot];
    let (req, step) = (request.req, request.emitted);
    request.emitted += 1;
    turn.actions.push(Action::Emit { req, step });
}
