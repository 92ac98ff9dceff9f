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
        let class = view.class_of(entry);
        let passengers = self.pushable(view, entry, &[], &class, view.max_rows);
        view.or_go_on(Decision::New { line, passengers: Passengers::Named(passengers), outlook: Outlook::Open })
    }

    /// The first request that cannot meet its target any more, where such are refused.
    fn hopeless(&self, view: &View<'_>) -> Option<Slot> {
        if !self.knobs.reject_late {
            return None;
        }
        let (_, line) = self.heads.lines(view.pending).next()?;
        let first = line.iter(view.ledger).next()?;
        let class = ShapeClass(view.ledger[first].lengths.clone());
        let needs_ns = view.costs.whole(view.ledger[first].rows, &class, Quantile::Mean)?;
        view.target(first).is_some_and(|target| view.now.saturating_add(needs_ns) > target).then_some(first)
    }

    /// Pushes what may be pushed onto the newest batch.
    fn push(&self, view: &View<'_>) -> Option<Decision> {
        let (lineage, batch) = stretchable(view)?;
        let entry = view.table.get(batch);
        if entry.steps.len() >= self.knobs.max_depth.max(1) as usize {
            return None;
        }
        let mut lines = self.heads.lines(view.pending);
        let (line, waiting) = lines.find(|(_, line)| line.mates == lineage.mates)?;
        let stack = stack(view, entry);
        let mut slots = self.pushable(view, waiting, &stack, &lineage.class, lineage.places.free());
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

    /// Whether the wait of those below stays bounded, other models keep their slack, and the mean completion is not later for it. The
    /// paper's predictor asks for slack alone.
    fn is_worth(&self, view: &View<'_>, batch: &Batch, class: &ShapeClass, rows: u32) -> bool {
        if self.knobs.predictor == Predictor::Paper {
            return true;
        }
        let half_ns = || Some(view.costs.whole(view.max_rows, class, Quantile::Mean)? / 2);
        let bound_ns = self.knobs.max_catch_up_ns.or_else(half_ns).unwrap_or(NEVER);
        let wait_ns = longest_wait_ns(view, batch, class, rows).unwrap_or(0);
        let neighbours = view.neighbours_slack_ns.is_none_or(|slack_ns| wait_ns <= slack_ns);
        wait_ns <= bound_ns && neighbours && is_gain(view, batch, class, rows)
    }

    /// Requests of a line, the earliest targets first, that may be pushed onto a stack together.
    fn pushable(&self, view: &View<'_>, line: &Line, stack: &[Entry], class: &ShapeClass, room: u32) -> Vec<Slot> {
        let fits = |slot: &Slot| {
            let lengths = &view.ledger[*slot].lengths;
            stack.is_empty() || lengths.iter().zip(&class.0).all(|(length, padded)| length <= padded)
        };
        // Each request has a row at least.
        let mut slots: Vec<Slot> = line.iter(view.ledger).filter(fits).take(room as usize).collect();
        let target = |slot: Slot| view.target(slot);
        slots.sort_by_key(|&slot| (view.ledger[slot].level, target(slot).unwrap_or(NEVER)));
        let waiting: SmallVec<[Waiting; 32]> =
            slots.iter().map(|&slot| Waiting { rows: view.ledger[slot].rows, target: target(slot) }).collect();
        let predictor = SlackPredictor { costs: view.costs, class, predictor: self.predictor() };
        let count = predictor.pushable(view.now, stack, view.pipeline.entry(), &waiting, room);
        slots.truncate(count);
        slots
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
