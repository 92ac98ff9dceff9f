//! Requests that wait before they run again because their program asked for it. They pause like requests whose clients
//! leave too many responses unread, and occupy no lane.

use std::{collections::BTreeSet, time::Duration};

use paternoster_batching::{Event, Instant, Ns, ReqId};
use paternoster_engine::RowDelay;
use paternoster_model::{Next, RowOutcome};

use super::{Effects, State};
use crate::record::Record;

/// Waiting requests by the time at which they go on.
#[derive(Debug, Default)]
pub(crate) struct Delays(BTreeSet<(Instant, ReqId)>);

impl Delays {
    pub(crate) fn insert(&mut self, until: Instant, req: ReqId) {
        self.0.insert((until, req));
    }

    /// Removes a request that has ended.
    pub(crate) fn remove(&mut self, until: Instant, req: ReqId) {
        self.0.remove(&(until, req));
    }

    /// Removes and returns a request that is due.
    fn pop_due(&mut self, now: Instant) -> Option<ReqId> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_first().map(|(_, req)| req)
    }

    /// Returns when the next request goes on.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|&(until, _)| until)
    }
}

impl Record {
    /// Pauses the rows that would run again for the first of the delays, and returns the end of the pause.
    ///
    /// All delays of a request together are limited like the run of a task; beyond the limit the rows fail.
    pub(crate) fn delay(&mut self, now: Instant, delay: &RowDelay, outcomes: &mut [RowOutcome]) -> Option<Instant> {
        let goes_on = |outcome: &RowOutcome| matches!(outcome.next, Next::Skip(_) | Next::Pause);
        if !outcomes.iter().any(goes_on) {
            return None;
        }
        self.delayed_ns = self.delayed_ns.saturating_add(nanos(delay.delay));
        let limit_ns = self.handle.loaded.limit_ns;
        let is_too_long = limit_ns.is_some_and(|limit_ns| self.delayed_ns > limit_ns);
        let next = if is_too_long { Next::Failed } else { Next::Pause };
        outcomes.iter_mut().filter(|outcome| goes_on(outcome)).for_each(|outcome| outcome.next = next);
        if let Some(limit_ns) = limit_ns.filter(|_| is_too_long) {
            let (asked, limit) = (Duration::from_nanos(self.delayed_ns), Duration::from_nanos(limit_ns));
            self.error =
                Some(format!("the request's delays add up to {asked:?}, expected at most its time limit of {limit:?}"));
            return None;
        }
        let until = now + nanos(delay.delay);
        self.delayed_until = Some(until);
        Some(until)
    }
}

impl State {
    /// Resumes requests whose delays are over, unless their clients still have to take responses.
    pub(crate) fn end_delays(&mut self, now: Instant, after: &mut Effects) {
        while let Some(req) = self.delays.pop_due(now) {
            let Some(record) = self.record(req) else { continue };
            record.delayed_until = None;
            record.observed.resumed(now.as_ns());
            if !record.awaits_client {
                self.step(now, Event::Resumed(req), after);
            }
        }
        after.resume_at = self.delays.next();
    }

    /// Resumes a request whose client has taken its responses, unless it also has a delay.
    pub(crate) fn client_has_read(&mut self, now: Instant, req: ReqId, after: &mut Effects) {
        let Some(record) = self.record(req) else { return };
        record.awaits_client = false;
        if record.delayed_until.is_none() {
            self.step(now, Event::Resumed(req), after);
        }
    }
}

fn nanos(delay: Duration) -> Ns {
    Ns::try_from(delay.as_nanos()).unwrap_or(Ns::MAX)
}

#[cfg(test)]
mod tests;
