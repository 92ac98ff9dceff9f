//! Sequences (Triton's sequence batcher): requests of one board one after the other, in order of arrival, and only so
//! many sequences hold a slot for their state at once.
//!
//! A slot is held from the sequence's first request until its last has ended, or it has been idle for too long; no
//! other sequence gets it before. A sequence whose first request does not complete was never begun: what waits behind
//! that is refused.

use std::collections::{BTreeMap, VecDeque};

use slab::Slab;
use smallvec::SmallVec;

use crate::{
    batching::{
        Ns, SequenceKnobs, SequenceNo,
        ids::{RequestIx, SequenceIx},
    },
    model::{CorrelationId, InSequence},
};

#[derive(Debug)]
struct Sequence {
    id: CorrelationId,
    number: u64,
    has_slot: bool,
    /// Its first request has completed.
    is_begun: bool,
    /// No further request joins it.
    is_closed: bool,
    /// The request that may board, or has.
    at_turn: Option<RequestIx>,
    /// Those behind it, in order of arrival.
    waiting: VecDeque<RequestIx>,
    /// When it is over, if no request comes before.
    idle_until: Option<Ns>,
}

/// What has come of a change, for the version to carry out.
#[derive(Debug, Default)]
pub(in crate::batching) struct Change {
    /// Requests that may board now.
    pub(in crate::batching) ready: SmallVec<[RequestIx; 2]>,
    /// Requests of a sequence that never began.
    pub(in crate::batching) orphans: VecDeque<RequestIx>,
    /// Sequences that are over.
    pub(in crate::batching) over: SmallVec<[SequenceNo; 1]>,
    /// Sequences that have become idle until then, or are not any more.
    pub(in crate::batching) rests: SmallVec<[(Ns, SequenceIx); 1]>,
    pub(in crate::batching) rouses: SmallVec<[(Ns, SequenceIx); 1]>,
}

/// The sequences of one version.
#[derive(Debug)]
pub(in crate::batching) struct Sequences {
    knobs: SequenceKnobs,
    all: Slab<Sequence>,
    /// Those that requests may join.
    open: BTreeMap<CorrelationId, SequenceIx>,
    /// Those with requests and without a slot, in the order in which they began.
    backlog: BTreeMap<u64, SequenceIx>,
    free_slots: u32,
    made: u64,
}

impl Sequences {
    pub(in crate::batching) fn new(knobs: SequenceKnobs) -> Self {
        let free_slots = knobs.max_sequences.max(1);
        Self { knobs, all: Slab::new(), open: BTreeMap::new(), backlog: BTreeMap::new(), free_slots, made: 0 }
    }

    /// Whether a request finds its sequence, or starts it.
    pub(in crate::batching) fn admits(&self, request: &InSequence) -> bool {
        request.starts || self.open.contains_key(&request.id)
    }

    /// A request that is admitted joins its sequence. Where it starts one whose id is still open, that one ends behind
    /// the requests that it has.
    pub(in crate::batching) fn join(
        &mut self,
        now: Ns,
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

    /// A request of a sequence has ended, wherever it was.
    pub(in crate::batching) fn left(
        &mut self,
        now: Ns,
        ix: SequenceIx,
        request_ix: RequestIx,
        completed: bool,
    ) -> Change {
        let mut change = Change::default();
        let sequence = &mut self.all[ix as usize];
        let is_first = if sequence.at_turn == Some(request_ix) {
            sequence.at_turn = None;
            true
        } else {
            let at = sequence.waiting.iter().position(|other| *other == request_ix);
            at.is_some_and(|at| sequence.waiting.remove(at).is_some() && at == 0 && sequence.at_turn.is_none())
        };
        if completed {
            sequence.is_begun = true;
        } else if is_first && !sequence.is_begun {
            change.orphans = std::mem::take(&mut sequence.waiting);
            self.close(ix);
        }
        self.advance(now, ix, &mut change);
        change
    }

    /// A sequence has been idle for as long as it may.
    pub(in crate::batching) fn reclaim(&mut self, now: Ns, ix: SequenceIx) -> Change {
        let mut change = Change::default();
        self.close(ix);
        self.advance(now, ix, &mut change);
        change
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

    /// Lets the next request of a sequence have its turn, if there is a slot for it; ends the sequence or lets it rest
    /// where there is none.
    fn advance(&mut self, now: Ns, ix: SequenceIx, change: &mut Change) {
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
            change.rouses.push((until, ix));
        }
        if !sequence.has_slot {
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

    /// A sequence has no request.
    fn rest(&mut self, now: Ns, ix: SequenceIx, change: &mut Change) {
        let sequence = &mut self.all[ix as usize];
        if !sequence.is_closed {
            if sequence.idle_until.is_none() {
                let until = now.saturating_add(self.knobs.max_idle_ns);
                sequence.idle_until = Some(until);
                change.rests.push((until, ix));
            }
            return;
        }
        if let Some(until) = sequence.idle_until.take() {
            change.rouses.push((until, ix));
        }
        change.over.push(SequenceNo(sequence.number));
        if self.all.remove(ix as usize).has_slot {
            self.free_slots += 1;
            if let Some((_, &next)) = self.backlog.first_key_value() {
                self.advance(now, next, change);
            }
        }
    }

    /// What holds between two steps. `is_ready` tells of a request whether it may board or has, `None` where it is
    /// gone.
    pub(in crate::batching) fn check(&self, is_ready: impl Fn(RequestIx) -> Option<bool>) -> Result<(), String> {
        let held = self.all.iter().filter(|(_, sequence)| sequence.has_slot).count();
        let most = self.knobs.max_sequences.max(1);
        if held + self.free_slots as usize != most as usize {
            return Err(format!("{held} sequences hold slots and {} are free, of {most}", self.free_slots));
        }
        if self.free_slots > 0 && !self.backlog.is_empty() {
            return Err(format!("{} sequences wait for a slot while one is free", self.backlog.len()));
        }
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
            if let Some((_, fault)) = sound.iter().find(|(holds, _)| !holds) {
                return Err(format!("the sequence '{id}' {fault}: {sequence:?}"));
            }
        }
        Ok(())
    }

    /// When sequences are over for idleness, by index.
    pub(in crate::batching) fn idle(&self) -> impl Iterator<Item = (Ns, SequenceIx)> + '_ {
        self.all.iter().filter_map(|(ix, sequence)| Some((sequence.idle_until?, ix as SequenceIx)))
    }
}
