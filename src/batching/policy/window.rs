//! `window`: Triton's dynamic batcher.
//!
//! The batch being formed in a line is its requests in boarding order, as many as the largest batch holds. When a lane
//! is offered,
//! - a batch of the largest preferred size that it can be cut to goes, unless its oldest request has waited the whole
//!   queue delay;
//! - a batch past that delay goes with all it has;
//! - a batch that the next request would take past the largest preferred size goes without it;
//! - any other waits for mates or for its delay; with delay 0 it goes at once.
//!
//! Until a lane takes it, a batch keeps growing. Triton stops forming a batch at the first request of another shape; here
//! that request stands in a line of its own, both batches go on forming, and of those that are ready the one goes whose
//! first request has the highest level and then came first. So no line starves another of its level.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::{Decision, Outlook, Passengers, View};
use crate::batching::{
    Knobs, Ns, WindowKnobs,
    ledger::Ledger,
    pending::{Line, LineIx, Pending, Rank},
};

/// In which set a line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Filed {
    /// In none: it is empty.
    #[default]
    Out,
    /// It has a batch to go.
    Ready(Rank),
    /// Its batch waits for mates until then.
    Waiting(Ns),
}

/// The batch that a line would form.
#[derive(Clone, Copy, Debug, Default)]
struct Forming {
    /// Requests up to the largest batch.
    requests: u32,
    /// Their rows.
    rows: u64,
    /// Arrival of the oldest of them.
    oldest: Ns,
    /// Requests up to the largest preferred size among the prefixes; short of one, up to where the next request would go
    /// past all preferred sizes.
    preferred: Option<u32>,
}

/// State of the policy for one group.
#[derive(Debug)]
pub(in crate::batching) struct Window {
    /// Ascending, never empty.
    preferred: SmallVec<[u32; 4]>,
    max_rows: u64,
    delay_ns: Ns,
    /// Requests may not be merged: each goes at once by itself.
    alone: bool,
    ready: BTreeSet<(Rank, LineIx)>,
    waiting: BTreeSet<(Ns, LineIx)>,
    /// By line.
    filed: Vec<Filed>,
}

impl Window {
    pub(super) fn new(knobs: &Knobs, window: &WindowKnobs) -> Self {
        let max_rows = knobs.max_batch_rows.max(1);
        let sizes = window.preferred_batch_sizes.iter().copied();
        let mut preferred: SmallVec<[u32; 4]> = sizes.filter(|size| (1..=max_rows).contains(size)).collect();
        preferred.sort_unstable();
        if preferred.is_empty() {
            preferred.push(max_rows);
        }
        Self {
            preferred,
            max_rows: u64::from(max_rows),
            delay_ns: window.max_queue_delay_ns,
            alone: !knobs.mergeable,
            ready: BTreeSet::new(),
            waiting: BTreeSet::new(),
            filed: Vec::new(),
        }
    }

    pub(super) fn touched(&mut self, line: LineIx, pending: &Pending, ledger: &Ledger) {
        let filed = pending.line(line).map_or(Filed::Out, |entry| self.place(entry, ledger));
        self.file(line, filed);
    }

    pub(super) fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(batch) = view.goes_first() {
            return Decision::GoOn(batch);
        }
        if !view.enterable {
            return view.or_go_on(Decision::Nothing);
        }
        view.or_go_on(self.board(view.now, view.pending, view.ledger))
    }

    /// Which requests board now.
    fn board(&mut self, now: Ns, pending: &Pending, ledger: &Ledger) -> Decision {
        while let Some(&(due, line)) = self.waiting.first() {
            if due > now {
                break;
            }
            let rank = pending.line(line).and_then(|entry| entry.rank(ledger));
            self.file(line, rank.map_or(Filed::Out, Filed::Ready));
        }
        if let Some(&(_, line)) = self.ready.first()
            && let Some(entry) = pending.line(line)
        {
            let passengers = Passengers::First(self.cut(now, entry, ledger));
            return Decision::New { line, passengers, outlook: Outlook::Open };
        }
        match self.waiting.first() {
            Some(&(due, _)) => Decision::Wait(due),
            None => Decision::Nothing,
        }
    }

    /// How many requests of a ready line make its batch now.
    fn cut(&self, now: Ns, line: &Line, ledger: &Ledger) -> u32 {
        if self.alone {
            return 1;
        }
        let forming = self.form(line, ledger);
        let delay_exceeded = self.delay_ns != 0 && now.saturating_sub(forming.oldest) >= self.delay_ns;
        match forming.preferred {
            Some(requests) if !delay_exceeded => requests,
            _ => forming.requests,
        }
    }

    /// The set to which a line belongs, the time left aside: a line that waits becomes ready at its due time.
    fn place(&self, line: &Line, ledger: &Ledger) -> Filed {
        let Some(rank) = line.rank(ledger) else { return Filed::Out };
        if self.alone || self.delay_ns == 0 || line.rows >= u64::from(self.largest_preferred()) {
            return Filed::Ready(rank);
        }
        let may_hit_preferred = line.rows >= u64::from(self.preferred[0]);
        if may_hit_preferred && self.form(line, ledger).preferred.is_some() {
            return Filed::Ready(rank);
        }
        // Short of the largest preferred size all of the line is in its batch, so that its oldest is the batch's oldest.
        let oldest = line.oldest(ledger).unwrap_or_default();
        Filed::Waiting(oldest.saturating_add(self.delay_ns))
    }

    fn form(&self, line: &Line, ledger: &Ledger) -> Forming {
        let mut forming = Forming { oldest: Ns::MAX, ..Forming::default() };
        for slot in line.iter(ledger) {
            let request = &ledger[slot];
            let grown = forming.rows + u64::from(request.rows);
            if forming.requests > 0 {
                if grown > u64::from(self.largest_preferred()) && forming.preferred.is_none() {
                    forming.preferred = Some(forming.requests);
                }
                if grown > self.max_rows {
                    break;
                }
            }
            forming.requests += 1;
            forming.rows = grown;
            forming.oldest = forming.oldest.min(request.arrived);
            if self.preferred.iter().any(|&size| u64::from(size) == grown) {
                forming.preferred = Some(forming.requests);
            }
        }
        forming
    }

    fn largest_preferred(&self) -> u32 {
        self.preferred[self.preferred.len() - 1]
    }

    fn file(&mut self, line: LineIx, filed: Filed) {
        let at = line as usize;
        if self.filed.len() <= at {
            self.filed.resize(at + 1, Filed::Out);
        }
        if self.filed[at] == filed {
            return;
        }
        match std::mem::replace(&mut self.filed[at], filed) {
            Filed::Out => {}
            Filed::Ready(rank) => {
                self.ready.remove(&(rank, line));
            }
            Filed::Waiting(due) => {
                self.waiting.remove(&(due, line));
            }
        }
        match filed {
            Filed::Out => {}
            Filed::Ready(rank) => {
                self.ready.insert((rank, line));
            }
            Filed::Waiting(due) => {
                self.waiting.insert((due, line));
            }
        }
    }

    pub(super) fn check(&self, pending: &Pending, ledger: &Ledger) -> Result<(), String> {
        for (at, line) in &pending.lines {
            let filed = self.filed.get(at).copied().unwrap_or_default();
            let right = match filed {
                Filed::Out => line.is_empty(),
                Filed::Ready(rank) => line.rank(ledger) == Some(rank) && self.ready.contains(&(rank, at as LineIx)),
                Filed::Waiting(due) => filed == self.place(line, ledger) && self.waiting.contains(&(due, at as LineIx)),
            };
            if !right {
                return Err(format!("line {at} is filed as {filed:?}, which it is not"));
            }
        }
        let filed = self.filed.iter().filter(|&&filed| filed != Filed::Out).count();
        if filed != self.ready.len() + self.waiting.len() {
            return Err(format!("{filed} lines are filed, in sets of {} and {}", self.ready.len(), self.waiting.len()));
        }
        Ok(())
    }
}
