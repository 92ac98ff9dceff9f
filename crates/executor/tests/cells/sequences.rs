//! The expected state of a model's sequences, kept independently of the core: which requests belong together, whose
//! turn it is, what their state is, and which of them may hold a slot.

use std::collections::{BTreeMap, BTreeSet};

use paternoster_batching::{End, Instant, Rejection, SequenceKnobs, SequenceNo};
use paternoster_model::{CorrelationId, InSequence};

#[derive(Debug)]
struct Sequence {
    id: CorrelationId,
    /// In order of arrival.
    requests: Vec<u64>,
    live: BTreeSet<u64>,
    state: u64,
    /// Whether later requests do not belong to it.
    is_closed: bool,
    /// A request that left a step out, and how those behind it must end.
    dropped: Option<(u64, End)>,
    /// Whether a row of it was launched, so that it has a slot.
    has_slot: bool,
    idle_since: Instant,
}

/// The sequences of one model.
#[derive(Debug)]
pub(super) struct Sequences {
    knobs: SequenceKnobs,
    open: BTreeMap<CorrelationId, SequenceNo>,
    all: BTreeMap<SequenceNo, Sequence>,
    of: BTreeMap<u64, SequenceNo>,
    seen: BTreeSet<SequenceNo>,
    /// Counts of rare events.
    pub reclaimed: u64,
    pub superseded: u64,
    pub orphans: u64,
    pub waited_for_slot: u64,
}

impl Sequences {
    pub(super) fn new(knobs: SequenceKnobs) -> Self {
        Self {
            knobs,
            open: BTreeMap::new(),
            all: BTreeMap::new(),
            of: BTreeMap::new(),
            seen: BTreeSet::new(),
            reclaimed: 0,
            superseded: 0,
            orphans: 0,
            waited_for_slot: 0,
        }
    }

    /// Records that the core assigned a request that has just arrived to a sequence.
    pub(super) fn joined(
        &mut self,
        now: Instant,
        req: u64,
        request: &InSequence,
        number: SequenceNo,
    ) -> Result<(), String> {
        let open = self.open.get(&request.id).copied();
        match (open, request.starts) {
            (Some(open), false) if open == number => {}
            (_, true) if self.seen.insert(number) => {
                if let Some(open) = open.and_then(|open| self.all.get_mut(&open)) {
                    open.is_closed = true;
                    self.superseded += 1;
                }
                self.open.insert(request.id.clone(), number);
                let (requests, live) = (Vec::new(), BTreeSet::new());
                let sequence = Sequence {
                    id: request.id.clone(),
                    requests,
                    live,
                    state: 0,
                    is_closed: false,
                    dropped: None,
                    has_slot: false,
                    idle_since: now,
                };
                self.all.insert(number, sequence);
                let held = self.all.values().filter(|sequence| sequence.has_slot).count();
                self.waited_for_slot += u64::from(held >= self.knobs.max_sequences as usize);
            }
            _ => return Err(format!("{req} {request:?} joins {number:?} while {open:?} is open")),
        }
        let sequence = self.all.get_mut(&number).ok_or_else(|| format!("{number:?} is over"))?;
        sequence.requests.push(req);
        sequence.live.insert(req);
        if request.ends {
            sequence.is_closed = true;
            self.open.remove(&request.id);
        }
        self.of.insert(req, number);
        Ok(())
    }

    /// Records the launch of a request's row.
    pub(super) fn launched(&mut self, req: u64) -> Result<(), String> {
        let Some(sequence) = self.of.get(&req).and_then(|number| self.all.get_mut(number)) else { return Ok(()) };
        if let Some(before) = sequence.live.iter().find(|other| **other < req) {
            return Err(format!("{req} runs before {before}, which arrived before it in its sequence"));
        }
        if let Some((behind, _)) = sequence.dropped.filter(|(behind, _)| *behind < req) {
            return Err(format!("{req} runs on a state that lacks the step of {behind}"));
        }
        sequence.has_slot = true;
        let held = self.all.values().filter(|sequence| sequence.has_slot).count();
        if held > self.knobs.max_sequences as usize {
            return Err(format!("{held} sequences hold state, of {}", self.knobs.max_sequences));
        }
        Ok(())
    }

    /// Returns the state that a request reads from its sequence.
    pub(super) fn state(&self, req: u64) -> u64 {
        self.of.get(&req).and_then(|number| self.all.get(number)).map_or(0, |sequence| sequence.state)
    }

    /// Records the end of a request, with its state if it completed.
    pub(super) fn finished(
        &mut self,
        now: Instant,
        req: u64,
        request: &InSequence,
        end: End,
        left: u64,
    ) -> Result<(), String> {
        let Some(number) = self.of.get(&req).copied() else {
            let may_start = request.starts || self.open.contains_key(&request.id);
            return match end {
                End::Rejected(Rejection::NotStarted) if may_start => Err(format!("{req} is refused, but may join")),
                End::Rejected(Rejection::QueueFull | Rejection::NoMemory | Rejection::NotStarted) | End::Expired => {
                    Ok(())
                }
                _ => Err(format!("{req} ends {end:?} and joined no sequence")),
            };
        };
        let sequence = self.all.get_mut(&number).ok_or_else(|| format!("{req} ends behind its sequence"))?;
        if !sequence.live.remove(&req) {
            return Err(format!("{req} ends twice"));
        }
        sequence.idle_since = now;
        if let Some((behind, orphans_end)) = sequence.dropped {
            // Before its first run a sequence may end as a whole.
            let may_run = req < behind;
            if end == orphans_end && (!may_run || !sequence.has_slot) {
                self.orphans += 1;
                return Ok(());
            }
            if !may_run {
                return Err(format!("{req} ends {end:?} behind {behind}, expected {orphans_end:?}"));
            }
        }
        let is_first = sequence.requests.first() == Some(&req);
        let orphans_end = match end {
            End::Completed => {
                sequence.state = left;
                return Ok(());
            }
            End::Failed if !is_first => return Ok(()),
            End::Failed => End::Rejected(Rejection::NotStarted),
            End::Rejected(Rejection::NotStarted) => return Err(format!("{req} is refused, but its sequence began")),
            End::Rejected(_) => end,
            End::Cancelled | End::Expired => End::Cancelled,
        };
        sequence.dropped = Some((req, orphans_end));
        if !std::mem::replace(&mut sequence.is_closed, true) {
            self.open.remove(&sequence.id);
        }
        Ok(())
    }

    /// Records that the core ended a sequence.
    pub(super) fn over(&mut self, now: Instant, number: SequenceNo) -> Result<(), String> {
        let sequence = self.all.remove(&number).ok_or_else(|| format!("{number:?} is over twice"))?;
        // Requests behind one that left a step out end next.
        if sequence.dropped.is_none() && !sequence.live.is_empty() {
            return Err(format!("{number:?} is over with {:?} to go", sequence.live));
        }
        if sequence.dropped.is_some() {
            self.all.insert(number, Sequence { has_slot: false, ..sequence });
            return Ok(());
        }
        if !sequence.is_closed {
            let idle_ns = now.since(sequence.idle_since);
            if idle_ns < self.knobs.max_idle_ns {
                return Err(format!("{number:?} is over after {idle_ns} of {}", self.knobs.max_idle_ns));
            }
            self.reclaimed += 1;
            self.open.remove(&sequence.id);
        }
        Ok(())
    }

    /// Returns whether no sequence is left, as must be the case once no request has arrived for long.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.all.values().all(|sequence| sequence.dropped.is_some() && sequence.live.is_empty())
    }
}
