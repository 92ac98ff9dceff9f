//! Sequences (Triton's sequence batcher). Requests of one sequence board one after the other in arrival order, and the
//! number of sequences that hold a state slot at once is limited.
//!
//! A sequence holds its slot from its first request until its last one has ended, or until it has been idle for too
//! long. If the first request does not complete, the sequence never started, and the requests that wait behind it end
//! with it. So do those behind a later request that was cancelled or rejected: they would run on a state that lacks one
//! step.

use std::collections::{BTreeMap, VecDeque};

use paternoster_model::{CorrelationId, InSequence};
use slab::Slab;
use smallvec::SmallVec;

use crate::{
    End, Instant, Rejection, SequenceKnobs, SequenceNo,
    hold::hold,
    ids::{RequestIx, SequenceIx},
};

#[derive(Debug)]
struct Sequence {
    id: CorrelationId,
    number: u64,
    has_slot: bool,
    /// Whether a request of the sequence has completed.
    is_begun: bool,
    /// Whether no further request can join it.
    is_closed: bool,
    /// The request that may board or has boarded.
    at_turn: Option<RequestIx>,
    /// Requests behind it, in arrival order.
    waiting: VecDeque<RequestIx>,
    /// When an idle sequence is closed.
    idle_until: Option<Instant>,
}

/// The effects of a change, for [`StepContext::apply`](crate::version::StepContext) to carry out.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Requests that may board now.
    pub(crate) ready: SmallVec<[RequestIx; 2]>,
    /// Requests that cannot run without one that ended before them, and how they end.
    pub(crate) stranded: Option<(VecDeque<RequestIx>, End)>,
    /// Sequences that are over.
    pub(crate) over: SmallVec<[SequenceNo; 1]>,
    /// Sequences that became idle, and those that no longer are, with the time at which each is or was to be closed.
    pub(crate) became_idle: SmallVec<[(Instant, SequenceIx); 1]>,
    pub(crate) no_longer_idle: SmallVec<[(Instant, SequenceIx); 1]>,
}

/// The sequences of one version.
#[derive(Debug)]
pub(crate) struct Sequences {
    knobs: SequenceKnobs,
    all: Slab<Sequence>,
    /// Sequences that requests can join.
    open: BTreeMap<CorrelationId, SequenceIx>,
    /// Sequences with requests but without a slot, in the order in which they started.
    backlog: BTreeMap<u64, SequenceIx>,
    free_slots: u32,
    made: u64,
}

/// Returns how the requests behind one that ended so must end, or `None` if they may run. If the engine fails a later
/// request, the state stays as it was, and its client knows of it.
fn end_of_followers(end: End, is_first: bool) -> Option<End> {
    match end {
        End::Completed => None,
        End::Failed => is_first.then_some(End::Rejected(Rejection::NotStarted)),
        End::Rejected(_) => Some(end),
        End::Expired | End::Cancelled => Some(End::Cancelled),
    }
}

impl Sequences {
    pub(crate) fn new(knobs: SequenceKnobs) -> Self {
        let free_slots = knobs.max_sequences.max(1);
        Self { knobs, all: Slab::new(), open: BTreeMap::new(), backlog: BTreeMap::new(), free_slots, made: 0 }
    }

    /// Whether a request finds its sequence or starts one.
    pub(crate) fn admits(&self, request: &InSequence) -> bool {
        request.starts || self.open.contains_key(&request.id)
    }

    /// Adds an admitted request to its sequence. If it starts a sequence whose id is still open, the open one ends
    /// after the requests that it has.
    pub(crate) fn join(
        &mut self,
        now: Instant,
        request_ix: RequestIx,
        request: &InSequence,
    ) -> (SequenceIx, SequenceNo, Change) {
        let mut change = Change::default();
        let found = self.open.get(&request.id).copied();
        let ix = match found.filter(|_| !request.starts) {
            Some(ix) => ix,
            None => {
                if let Some(previous) = found {
                    self.close(previous);
                    self.advance(now, previous, &mut change);
                }
                self.begin(request.id.clone())
            }
        };
        let sequence = &mut self.all[ix as usize];
        let number = SequenceNo(sequence.number);
        sequence.waiting.push_back(request_ix);
        if request.ends {
            self.close(ix);
        }
        self.advance(now, ix, &mut change);
        (ix, number, change)
    }

    /// Removes a request that has ended, in whatever state it was.
    pub(crate) fn left(&mut self, now: Instant, ix: SequenceIx, request_ix: RequestIx, end: End) -> Change {
        let mut change = Change::default();
        let sequence = &mut self.all[ix as usize];
        let mut behind = if sequence.at_turn == Some(request_ix) {
            sequence.at_turn = None;
            0
        } else {
            let at = sequence.waiting.iter().position(|other| *other == request_ix).unwrap_or(sequence.waiting.len());
            sequence.waiting.remove(at);
            at
        };
        sequence.is_begun |= end == End::Completed;
        // Before its first run a sequence ends as a whole, as Triton's backlog does.
        if !sequence.has_slot {
            behind = 0;
        }
        let is_first = behind == 0 && sequence.at_turn.is_none() && !sequence.is_begun;
        if let Some(orphans_end) = end_of_followers(end, is_first) {
            change.stranded = Some((sequence.waiting.split_off(behind), orphans_end));
            self.close(ix);
        }
        self.advance(now, ix, &mut change);
        change
    }

    /// Closes a sequence that has been idle for the maximum time.
    pub(crate) fn reclaim(&mut self, now: Instant, ix: SequenceIx) -> Change {
        let mut change = Change::default();
        self.close(ix);
        self.advance(now, ix, &mut change);
        change
    }

    /// Returns how many requests wait in sequences with a slot, and in the others, while nothing runs.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        self.all.iter().fold((0, 0), |(with_slot, backlog), (_, sequence)| {
            let own = sequence.waiting.len() + usize::from(sequence.at_turn.is_some());
            if sequence.has_slot { (with_slot + own, backlog) } else { (with_slot, backlog + own) }
        })
    }

    fn begin(&mut self, id: CorrelationId) -> SequenceIx {
        let number = self.made;
        self.made += 1;
        let ix = self.all.insert(Sequence {
            id: id.clone(),
            number,
            has_slot: false,
            is_begun: false,
            is_closed: false,
            at_turn: None,
            waiting: VecDeque::new(),
            idle_until: None,
        }) as SequenceIx;
        self.open.insert(id, ix);
        ix
    }

    fn close(&mut self, ix: SequenceIx) {
        let sequence = &mut self.all[ix as usize];
        if !std::mem::replace(&mut sequence.is_closed, true) {
            self.open.remove(&sequence.id);
        }
    }

    /// Gives the next request of a sequence its turn if a slot is available. Without requests, closes the sequence or
    /// makes it idle.
    fn advance(&mut self, now: Instant, ix: SequenceIx, change: &mut Change) {
        let sequence = &mut self.all[ix as usize];
        if sequence.at_turn.is_some() {
            return;
        }
        if sequence.waiting.is_empty() {
            self.backlog.remove(&sequence.number);
            self.rest(now, ix, change);
            return;
        }
        if let Some(until) = sequence.idle_until.take() {
            change.no_longer_idle.push((until, ix));
        }
        if !sequence.has_slot {
            // Slots are assigned in the order in which sequences started, so a newcomer must not overtake the backlog.
            let is_next = self.backlog.keys().next().is_none_or(|first| *first >= sequence.number);
            if self.free_slots == 0 || !is_next {
                self.backlog.insert(sequence.number, ix);
                return;
            }
            self.backlog.remove(&sequence.number);
            self.free_slots -= 1;
            sequence.has_slot = true;
        }
        sequence.at_turn = sequence.waiting.pop_front();
        change.ready.extend(sequence.at_turn);
    }

    /// Handles a sequence without requests: it becomes idle, or is over if it is closed.
    fn rest(&mut self, now: Instant, ix: SequenceIx, change: &mut Change) {
        let sequence = &mut self.all[ix as usize];
        if !sequence.is_closed {
            if sequence.idle_until.is_none() {
                let until = now + self.knobs.max_idle_ns;
                sequence.idle_until = Some(until);
                change.became_idle.push((until, ix));
            }
            return;
        }
        if let Some(until) = sequence.idle_until.take() {
            change.no_longer_idle.push((until, ix));
        }
        change.over.push(SequenceNo(sequence.number));
        if self.all.remove(ix as usize).has_slot {
            self.free_slots += 1;
            if let Some((_, &next)) = self.backlog.first_key_value() {
                self.advance(now, next, change);
            }
        }
    }

    /// Checks the invariants between two steps. `is_ready` returns whether a request may board or has boarded, `None`
    /// if it is gone.
    pub(crate) fn check(&self, is_ready: impl Fn(RequestIx) -> Option<bool>) -> Result<(), String> {
        let held = self.all.iter().filter(|(_, sequence)| sequence.has_slot).count();
        let most = self.knobs.max_sequences.max(1);
        let (free, waiting) = (self.free_slots, self.backlog.len());
        hold!(held + free as usize == most as usize, "{held} sequences hold slots and {free} are free, of {most}");
        hold!(free == 0 || waiting == 0, "{waiting} sequences wait for a slot while one is free");
        for (ix, sequence) in &self.all {
            let Sequence { id, number, .. } = sequence;
            let is_open = self.open.get(id) == Some(&(ix as SequenceIx));
            let waits = self.backlog.contains_key(number);
            let is_empty = sequence.at_turn.is_none() && sequence.waiting.is_empty();
            let turn_is_ready = sequence.at_turn.is_none_or(|request_ix| is_ready(request_ix) == Some(true));
            let others_wait = sequence.waiting.iter().all(|request_ix| is_ready(*request_ix) == Some(false));
            let sound = [
                (is_open != sequence.is_closed, "is open and closed"),
                (waits == (!sequence.has_slot && !is_empty), "waits for a slot without need, or does not"),
                (sequence.has_slot || sequence.at_turn.is_none(), "runs without a slot"),
                (!sequence.has_slot || is_empty || sequence.at_turn.is_some(), "waits with its slot"),
                (is_empty == sequence.idle_until.is_some(), "is idle with requests, or has none and is not"),
                (!is_empty || !sequence.is_closed, "is over and still there"),
                (turn_is_ready, "has a request at its turn that cannot board"),
                (others_wait, "has a request that may board before its turn"),
            ];
            for (holds, fault) in sound {
                hold!(holds, "the sequence '{id}' {fault}: {sequence:?}");
            }
        }
        Ok(())
    }

    /// Returns when idle sequences are closed, by index.
    pub(crate) fn idle(&self) -> impl Iterator<Item = (Instant, SequenceIx)> + '_ {
        self.all.iter().filter_map(|(ix, sequence)| Some((sequence.idle_until?, ix as SequenceIx)))
    }
}
