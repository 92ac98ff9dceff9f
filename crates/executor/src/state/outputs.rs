//! Outputs that the host takes after their task has completed: responses that the core has released meanwhile wait for
//! them.

use paternoster_batching::{End, Event, Instant, ReqId};

use super::{Effects, State, place};
use crate::{
    job::Job,
    job::Outputs,
    record::{Record, Sink},
};

impl State {
    /// Handles a request that the core has ended. A completed request waits for its outputs. If responses leave in
    /// order, all requests wait for those before them, except cancelled and expired ones.
    pub(super) fn ended(&mut self, now: Instant, req: ReqId, end: End, after: &mut Effects) {
        let Some(record) = self.requests.get_mut(place(req)).filter(|record| record.req == req) else { return };
        let order = self.models.get_mut(&record.handle.id).and_then(|version| version.waiting.as_mut());
        let waits = end == End::Completed && !record.unread_outputs.is_empty();
        match order {
            Some(order) if waits || !order.is_empty() && !matches!(end, End::Cancelled | End::Expired) => {
                order.push_back(req);
            }
            _ if waits => {}
            _ => return self.leave(now, req, end, after),
        }
        record.ended = Some(end);
    }

    /// Handles outputs that the host has taken, or that are lost.
    pub(crate) fn taken(&mut self, now: Instant, job: &Job, outputs: Result<Outputs, String>, after: &mut Effects) {
        let Outputs { responses, pieces, streamed, failures } = outputs.unwrap_or_else(|fault| {
            let failures = (0..job.members.len()).map(|part| (part, fault.clone())).collect();
            Outputs { failures, ..Outputs::default() }
        });
        self.lose_outputs(job, failures);
        self.take_pieces(job, pieces);
        for (part, response) in streamed {
            if let Some(record) = job.members.get(part).and_then(|member| self.record(member.span.req)) {
                record.is_lost |= !record.take_streamed(response);
            }
        }
        let mut responses = responses.into_iter();
        for member in &job.members {
            let response = responses.next();
            let Some(record) = self.record(member.span.req) else { continue };
            let emitted = record.unread_outputs.pop_front().unwrap_or_default();
            if let Some(response) = response
                && (emitted || matches!(record.sink, Sink::Once(_)))
            {
                record.take(response, member.span.start..member.span.start + member.span.count);
            }
            record.emit_due(now);
            self.taken_of(now, member.span.req, after);
        }
    }

    /// Handles outputs of these parts that are unavailable: their requests fail.
    pub(super) fn lose_outputs(&mut self, job: &Job, failures: Vec<(usize, String)>) {
        for (part, fault) in failures {
            if let Some(record) = job.members.get(part).and_then(|member| self.record(member.span.req)) {
                record.error.get_or_insert(fault);
                record.is_lost = true;
            }
        }
    }

    /// Continues a request that waits for fewer outputs than before.
    fn taken_of(&mut self, now: Instant, req: ReqId, after: &mut Effects) {
        let Some(record) = self.record(req) else { return };
        let (model, is_taken) = (record.handle.id, record.unread_outputs.is_empty());
        let Some(end) = record.ended else {
            // If outputs are lost, the request fails in its turn, after the requests before it.
            if record.unread.is_some() {
                self.step(now, Event::Cancelled(req), after);
            }
            return;
        };
        if !is_taken {
            return;
        }
        let Some(order) = self.models.get_mut(&model).and_then(|version| version.waiting.take()) else {
            return self.leave(now, req, end, after);
        };
        let mut order = order;
        while let Some(&first) = order.front() {
            match self.record(first).map(|record| (record.unread_outputs.is_empty(), record.ended)) {
                Some((true, Some(end))) => self.leave(now, first, end, after),
                Some(_) => break,
                // It was cancelled meanwhile.
                None => {}
            }
            order.pop_front();
        }
        if let Some(version) = self.models.get_mut(&model) {
            version.waiting = Some(order);
        }
    }

    /// Removes a request, to be answered.
    fn leave(&mut self, now: Instant, req: ReqId, end: End, after: &mut Effects) {
        if self.record(req).is_none() {
            return;
        }
        let mut record = self.requests.remove(place(req));
        let mut end = match end {
            End::Completed if record.is_lost => End::Failed,
            End::Cancelled if record.unread.is_some() => End::Failed,
            end => end,
        };
        if let Some(until) = record.delayed_until {
            self.delays.remove(until, req);
        }
        if let (End::Completed, Some(unfolded_state)) = (end, &record.unfolded_state) {
            // Only a completed request changes the state of its sequence.
            if let Err(full) = unfolded_state.commit() {
                (record.no_state, end) = (Some(full), End::Failed);
            }
        }
        if let Some(unfolded_state) = &record.unfolded_state {
            unfolded_state.leave_sequence();
        }
        record.observed.finished(now.as_ns());
        let model = record.handle.id;
        after.ended.push((record, end));
        self.left(model, after);
    }

    /// Returns the requests that the core has ended and that wait for outputs.
    pub(super) fn take_ended(&mut self) -> Vec<Record> {
        let waiting = self.requests.iter().filter(|(_, record)| record.ended.is_some()).map(|(at, _)| at);
        let waiting: Vec<usize> = waiting.collect();
        waiting.into_iter().map(|at| self.requests.remove(at)).collect()
    }
}
