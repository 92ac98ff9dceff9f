//! `lazy` (LazyBatching section IV): newcomers are pushed onto the batch under way and catch up with it, as long as nobody's
//! slack is used up by it. The batch table is one batch; its staircase is the paper's stack.

use smallvec::SmallVec;

use super::{
    Decision, Outlook, Passengers, View,
    gain::{is_gain, longest_wait_ns, meets_at},
    heads::Heads,
};
use crate::batching::{
    LazyKnobs, Ns, Predictor, ShapeClass,
    batch::{Batch, BatchIx, Step},
    cost::Quantile,
    ledger::{Ledger, NEVER, Slot},
    lineage::Lineage,
    pending::{Line, LineIx, Pending},
    slack::{self, Entry, SlackPredictor, Waiting},
};

/// Requests that are looked at for each row of room: those that are too long for a batch may be many.
const LOOKED_AT: usize = 4;

/// State of the policy for one group.
#[derive(Debug)]
pub(in crate::batching) struct Lazy {
    knobs: LazyKnobs,
    heads: Heads,
}

impl Lazy {
    pub(super) fn new(knobs: &LazyKnobs) -> Self {
        Self { knobs: knobs.clone(), heads: Heads::default() }
    }

    pub(super) fn touched(&mut self, line: LineIx, pending: &Pending, ledger: &Ledger) {
        self.heads.touched(line, pending, ledger);
    }

    pub(super) fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(late) = self.hopeless(view) {
            return Decision::Refuse(late);
        }
        if let Some(push) = self.push(view) {
            return push;
        }
        if let Some(batch) = view.goes_first() {
            return Decision::GoOn(batch);
        }
        if !view.enterable {
            return view.or_go_on(Decision::Nothing);
        }
        let Some((line, entry)) = self.heads.lines(view.pending).next() else {
            return view.or_go_on(Decision::Nothing);
        };
        let passengers = self.boarding(view, line, entry);
        view.or_go_on(Decision::New { line, passengers: Passengers::Named(passengers), outlook: Outlook::Open })
    }

    /// The request that would board next, if it cannot meet its target any more and such are refused.
    fn hopeless(&self, view: &View<'_>) -> Option<Slot> {
        if !self.knobs.reject_late {
            return None;
        }
        let (line, _) = self.heads.lines(view.pending).next()?;
        let first = view.pending.by_target(line).next()?;
        let class = ShapeClass(view.ledger[first].lengths.clone());
        let needs_ns = view.costs.whole(view.ledger[first].rows, &class, Quantile::Mean)?;
        view.target(first).is_some_and(|target| view.now.saturating_add(needs_ns) > target).then_some(first)
    }

    /// Who boards a new batch: so many that nobody among them is late by it; or all, where fewer are late then than
    /// if the others had to wait for the next batch. Batches that are kept small for the sake of a few make everybody
    /// late in the end. Equation 2 is asked whether requests may join others that run (section IV-B), not how many
    /// begin: it would keep batches the smaller, the longer requests wait.
    fn boarding(&self, view: &View<'_>, line: LineIx, entry: &Line) -> Vec<Slot> {
        let class = view.class_of(entry);
        let mut slots = by_target(view, line, view.max_rows, |_| true);
        let count = self.in_time(view, &slots, &[], &class, view.max_rows);
        let all = all_within(view, &slots, view.max_rows);
        if self.knobs.predictor != Predictor::Paper && self.late_by(view, &slots[..all], count, &class) <= Some(0) {
            slots.truncate(count);
        } else {
            slots.truncate(all);
        }
        slots
    }

    /// How many more of these requests are late if only the first `count` board, and the others in the next batch; none where times are not
    /// known.
    fn late_by(&self, view: &View<'_>, slots: &[Slot], count: usize, class: &ShapeClass) -> Option<i64> {
        let rows = |slots: &[Slot]| slots.iter().map(|&slot| view.ledger[slot].rows).sum();
        let time = |slots: &[Slot]| match slots {
            [] => Some(0),
            slots => view.costs.whole(rows(slots), class, Quantile::Mean),
        };
        let late = |slots: &[Slot], end: Ns| {
            slots.iter().filter(|&&slot| view.target(slot).is_some_and(|target| target < end)).count() as i64
        };
        let (first, others) = slots.split_at(count);
        let first_ns = time(first)?;
        let wait_ns = if view.idle_besides > 0 { 0 } else { first_ns / Ns::from(view.lanes) };
        let apart = late(first, view.now + first_ns) + late(others, view.now + wait_ns + time(others)?);
        Some(apart - late(slots, view.now + time(slots)?))
    }

    /// Pushes what may be pushed onto the newest batch.
    fn push(&self, view: &View<'_>) -> Option<Decision> {
        let (lineage, batch) = stretchable(view)?;
        let entry = view.table.get(batch);
        if entry.steps.len() >= self.knobs.max_depth.max(1) as usize {
            return None;
        }
        let line = view.pending.waiting_with(&lineage.mates)?;
        let stack = stack(view, entry);
        let is_short = |slot: Slot| {
            let lengths = &view.ledger[slot].lengths;
            lengths.iter().zip(&lineage.class.0).all(|(length, padded)| length <= padded)
        };
        let mut slots = by_target(view, line, lineage.places.free(), is_short);
        let in_time = self.in_time(view, &slots, &stack, &lineage.class, lineage.places.free());
        // The paper asks of all that wait together whether they may join, and pushes none of them otherwise (section
        // IV-B).
        if self.knobs.predictor == Predictor::Paper && in_time < all_within(view, &slots, lineage.places.free()) {
            return None;
        }
        slots.truncate(in_time);
        // Rows of one request need places in a row, and what is free may have gaps.
        let mut places = lineage.places.clone();
        let fits = slots.iter().take_while(|&&slot| places.take(view.ledger[slot].rows).is_some()).count();
        slots.truncate(fits);
        let rows: u32 = slots.iter().map(|&slot| view.ledger[slot].rows).sum();
        if rows == 0 || !self.is_worth(view, entry, &lineage.class, rows) {
            return None;
        }
        Some(Decision::Stretch { batch, line, passengers: Passengers::Named(slots), outlook: Outlook::Open })
    }

    /// Whether co-located models keep their slack (section VI-C), the wait of those below stays bounded, and the mean
    /// completion is not later for it. The paper's predictor asks for slack alone.
    fn is_worth(&self, view: &View<'_>, batch: &Batch, class: &ShapeClass, rows: u32) -> bool {
        let wait_ns = longest_wait_ns(view, batch, class, rows).unwrap_or(0);
        if view.neighbours_slack_ns.is_some_and(|slack_ns| wait_ns > slack_ns) {
            return false;
        }
        if self.knobs.predictor == Predictor::Paper {
            return true;
        }
        let half_ns = || Some(view.costs.whole(view.max_rows, class, Quantile::Mean)? / 2);
        let bound_ns = self.knobs.max_catch_up_ns.or_else(half_ns).unwrap_or(NEVER);
        wait_ns <= bound_ns && is_gain(view, batch, class, rows)
    }

    /// How many of these requests may be pushed onto a stack together without making anybody late.
    fn in_time(&self, view: &View<'_>, slots: &[Slot], stack: &[Entry], class: &ShapeClass, room: u32) -> usize {
        let waiting = |&slot: &Slot| Waiting { rows: view.ledger[slot].rows, target: view.target(slot) };
        let waiting: SmallVec<[Waiting; 32]> = slots.iter().map(waiting).collect();
        let predictor = SlackPredictor { costs: view.costs, class, predictor: self.predictor() };
        predictor.pushable(view.now, stack, view.pipeline.entry(), &waiting, room)
    }

    fn predictor(&self) -> slack::Predictor {
        match self.knobs.predictor {
            Predictor::Paper => slack::Predictor::Paper,
            Predictor::Table => slack::Predictor::Table,
            Predictor::Oracle => slack::Predictor::Oracle,
        }
    }

    pub(super) fn check(&self, pending: &Pending, ledger: &Ledger) -> Result<(), String> {
        self.heads.check(pending, ledger)
    }
}

/// Of those with the earliest targets in a line the ones that fit: as many as may have room, each with a row at
/// least.
fn by_target(view: &View<'_>, line: LineIx, room: u32, fits: impl Fn(Slot) -> bool) -> Vec<Slot> {
    let looked_at = view.pending.by_target(line).take(LOOKED_AT * room as usize);
    looked_at.filter(|&slot| fits(slot)).take(room as usize).collect()
}

/// How many of these requests have at most so many rows together.
fn all_within(view: &View<'_>, slots: &[Slot], room: u32) -> usize {
    let sums = slots.iter().scan(0, |rows, &slot| {
        *rows += view.ledger[slot].rows;
        Some(*rows)
    });
    sums.take_while(|&rows| rows <= room).count()
}

/// The newest lineage and its batch, if newcomers may join it and it has room.
pub(super) fn stretchable<'a>(view: &View<'a>) -> Option<(&'a Lineage, BatchIx)> {
    let (_, lineage) = view.table.newest()?;
    let &[batch] = lineage.parts.as_slice() else { return None };
    (!lineage.sealed && lineage.places.free() > 0).then_some((lineage, batch))
}

/// A batch as the slack predictor sees it.
fn stack(view: &View<'_>, batch: &Batch) -> SmallVec<[Entry; 5]> {
    batch.steps.iter().map(|step| entry(view, step)).collect()
}

fn entry(view: &View<'_>, step: &Step) -> Entry {
    let live = || step.rows.iter().filter(|seat| view.ledger.is_aboard(seat)).map(|seat| seat.slot);
    let target = live().filter_map(|slot| view.target(slot)).min();
    let allowance = |slot: Slot| Some(view.target(slot)?.saturating_sub(view.ledger[slot].boarded));
    Entry {
        next: meets_at(step),
        rows: step.row_count(),
        target,
        allowance_ns: live().filter_map(allowance).min(),
        late: target.is_some_and(|target: Ns| target <= view.now),
    }
}
