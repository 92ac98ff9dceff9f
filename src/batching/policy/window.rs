//! `window`: Triton's dynamic batcher.
//!
//! The pending batch is that of the line whose first request boards next (its level, then the order of arrival): the
//! requests of that line in boarding order, as many as the largest batch holds. When a lane is offered,
//! - a batch of the largest preferred size that it can be cut to goes, unless its oldest request has waited the whole
//!   queue delay;
//! - a batch past that delay goes with all it has;
//! - a batch that the next request would take past the largest preferred size goes without it;
//! - a batch that a waiting request cannot join goes as it is;
//! - any other waits for mates or for its delay; with delay 0 it goes at once.
//!
//! Until a lane takes it, a batch keeps growing. Triton's batch ends at the first request that cannot join it. Here the
//! mates behind that request board too; for a request that is overtaken by them it counts that they came behind it, so
//! that its batch goes next and does not wait either.

use smallvec::SmallVec;

use super::{Decision, Outlook, Passengers, View, heads::Heads};
use crate::batching::{
    Knobs, Ns, WindowKnobs,
    ledger::Ledger,
    pending::{Line, LineIx, Pending},
};

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

/// The latest arrival, and the latest one in any other line than its own.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    line: LineIx,
    seq: Option<u64>,
    elsewhere: Option<u64>,
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
    heads: Heads,
    latest: Latest,
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
            heads: Heads::default(),
            latest: Latest::default(),
        }
    }

    pub(super) fn arrived(&mut self, line: LineIx, seq: u64) {
        self.latest.arrived(line, seq);
    }

    pub(super) fn touched(&mut self, line: LineIx, pending: &Pending, ledger: &Ledger) {
        self.heads.touched(line, pending, ledger);
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
    fn board(&self, now: Ns, pending: &Pending, ledger: &Ledger) -> Decision {
        let mut lines = self.heads.lines(pending);
        let Some((line, entry)) = lines.next() else { return Decision::Nothing };
        let is_closed = lines.next().is_some() || self.latest.is_behind(line, entry, ledger);
        if !is_closed
            && let Some(due) = self.waits_until(entry, ledger)
            && due > now
        {
            return Decision::Wait(due);
        }
        let passengers = Passengers::First(self.cut(now, entry, ledger));
        Decision::New { line, passengers, outlook: Outlook::Open }
    }

    /// How many requests of a line make its batch now.
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

    /// Until when a line waits for mates, if no other request waits; `None`: its batch goes at once.
    fn waits_until(&self, line: &Line, ledger: &Ledger) -> Option<Ns> {
        if self.alone || self.delay_ns == 0 || line.rows >= u64::from(self.largest_preferred()) {
            return None;
        }
        let may_hit_preferred = line.rows >= u64::from(self.preferred[0]);
        if may_hit_preferred && self.form(line, ledger).preferred.is_some() {
            return None;
        }
        // Short of the largest preferred size all of the line is in its batch, so that its oldest is the batch's oldest.
        let oldest = line.oldest(ledger).unwrap_or_default();
        Some(oldest.saturating_add(self.delay_ns))
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

    pub(super) fn check(&self, pending: &Pending, ledger: &Ledger) -> Result<(), String> {
        self.heads.check(pending, ledger)
    }
}

impl Latest {
    fn arrived(&mut self, line: LineIx, seq: u64) {
        if self.line != line {
            (self.line, self.elsewhere) = (line, self.seq);
        }
        self.seq = Some(seq);
    }

    /// Whether a request that cannot join a line came after the line's first, be it still there or not.
    fn is_behind(&self, line: LineIx, entry: &Line, ledger: &Ledger) -> bool {
        let latest = if self.line == line { self.elsewhere } else { self.seq };
        entry.rank(ledger).is_some_and(|(_, _, first)| latest > Some(first))
    }
}
