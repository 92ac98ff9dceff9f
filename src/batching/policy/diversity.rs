//! `diversity` (DVABatch section 7): Policy I groups requests of like length, Policy II splits batches where the rest runs
//! faster in parts, Policy III lets newcomers join the newest batch.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{
    Decision, Outlook, Passengers, View,
    gain::{is_gain, longest_wait_ns, meets_at},
    heads::Heads,
    lazy::stretchable,
    party::Party,
};
use crate::batching::{
    CellId, DiversityKnobs, LoadDiversity, Ns, OperatorDiversity, PartOrder, ShapeClass,
    batch::{Batch, BatchIx, Step},
    cost::Quantile,
    ledger::{Ledger, NEVER},
    lineage::Lineage,
    pending::{Line, LineIx, Pending},
    rate::Rate,
};

/// State of the policy for one group.
#[derive(Debug)]
pub(in crate::batching) struct Diversity {
    knobs: DiversityKnobs,
    heads: Heads,
    splits: Splits,
    rate: Rate,
}

/// Splits found since the latencies last changed much: the search is too long for each boundary.
#[derive(Debug, Default)]
struct Splits {
    found: BTreeMap<(CellId, u32, Spared, ShapeClass), Option<Parts>>,
    /// Runs that had been learned from, and when.
    learned: u64,
    renewed: Ns,
}

type Parts = SmallVec<[u32; 8]>;

/// By how much the threshold of Policy II is lowered, in whole steps, so that what is found can be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Spared(u32);

/// A batch is parted at the entry only into parts of at least this share of the best throughput, or where its own is below this share of
/// theirs.
const NEARLY_BEST: f64 = 0.98;

/// Most that the parts of a batch may take longer together than the batch, where the device has time to spare.
const MOST_SPARED: f64 = 0.1;

/// Time over which the rate of arrivals is averaged: the load of the next batches, not the latest burst.
const AVERAGE_NS: Ns = 1_000_000_000;

/// Runs after which splits are looked for anew, but not before this time: where runs take microseconds, the search takes longer than many.
const RENEWED_AFTER: u64 = 64;
const KEPT_NS: Ns = 50_000_000;

impl Diversity {
    pub(super) fn new(knobs: &DiversityKnobs) -> Self {
        Self {
            knobs: knobs.clone(),
            heads: Heads::default(),
            splits: Splits::default(),
            rate: Rate::averaged(AVERAGE_NS, 0),
        }
    }

    pub(super) fn arrived(&mut self, now: Ns, rows: u32) {
        self.rate.add(now, rows);
    }

    pub(super) fn touched(&mut self, line: LineIx, pending: &Pending, ledger: &Ledger) {
        self.heads.touched(line, pending, ledger);
    }

    /// Whether it lets newcomers join batches: not where parallel entry resolves load diversity already (section 7.2).
    pub(super) fn stretches(&self) -> bool {
        self.knobs.load.is_some() && self.knobs.input.is_none()
    }

    pub(super) fn part_order(&self) -> PartOrder {
        self.knobs.operator.as_ref().map_or(PartOrder::DepthFirst, |operator| operator.order)
    }

    pub(super) fn decide(&mut self, view: &View<'_>) -> Decision {
        self.splits.renew(view);
        if let Some(split) = self.split(view) {
            return split;
        }
        if let Some(stretch) = self.stretch(view) {
            return stretch;
        }
        if let Some(batch) = view.goes_first() {
            return Decision::GoOn(batch);
        }
        let boards = if view.enterable { self.board(view) } else { Decision::Nothing };
        view.or_go_on(boards)
    }

    // ## Policy I and new batches
    fn board(&mut self, view: &View<'_>) -> Decision {
        let mut due = NEVER;
        let first = self.heads.lines(view.pending).find_map(|(line, entry)| match self.room(view, entry) {
            Ok(room) => Some((line, entry, Party::of_line(view, line, entry, room))).filter(|first| first.2.rows > 0),
            Err(then) => {
                due = due.min(then);
                None
            }
        });
        if let Some((line, entry, party)) = first {
            let mut party = self.invite(view, party, view.max_rows);
            let mut outlook = self.outlook(view, party.rows, &party.bound);
            // What will be split on the way shares the stages before that.
            if outlook == Outlook::Open
                && let Some(rows) = self.first_part(view, &party)
            {
                let part = Party::of_line(view, line, entry, rows);
                if part.rows > 0 {
                    party = self.invite(view, part, rows);
                    outlook = self.outlook(view, party.rows, &party.bound);
                }
            }
            return Decision::New { line, passengers: Passengers::Heads(party.from), outlook };
        }
        if due == NEVER { Decision::Nothing } else { Decision::Wait(due) }
    }

    /// Lets those of other groups aboard that had better come along, up to so many rows.
    fn invite(&self, view: &View<'_>, party: Party, rows: u32) -> Party {
        match &self.knobs.input {
            Some(input) if !input.paper => party.invite(view, &self.heads, rows),
            _ => party,
        }
    }

    /// How many rows board where the whole model runs as fast in parts: those of the first one. The others stay in the queue, where
    /// they may still be joined, or find another lane. Only parts that use the device nearly as well as any batch: what is not
    /// aboard now may gather more.
    fn first_part(&mut self, view: &View<'_>, party: &Party) -> Option<u32> {
        let operator = self.knobs.operator.as_ref().filter(|operator| !operator.paper)?;
        let best = view.costs.best_throughput(view.max_rows, &party.bound)?;
        let spared = self.spared(view, party, best);
        let parts = self.splits.parts(view, operator, spared, view.pipeline.entry(), party.rows, &party.bound)?;
        let rows = parts.first().copied()?;
        let throughput = |rows| view.costs.throughput(rows, &party.bound);
        let (part, whole) = (throughput(rows)?, throughput(party.rows)?);
        (part >= NEARLY_BEST.min(1.0 - spared.share()) * best || whole <= NEARLY_BEST * part).then_some(rows)
    }

    /// By how much of their time parts may take longer than the whole, since the device is not needed for it. Under a load of ρ requests wait
    /// for ρ / 2(1 − ρ) runs (M/D/1), and runs longer by ε make that ε / (1 − ρ) more; to complete one after the other and not together
    /// saves the first of two half a run, and about ρ / 2 of all requests are such. Nothing, where others wait still.
    fn spared(&self, view: &View<'_>, party: &Party, best: f64) -> Spared {
        if view.pending.rows > u64::from(party.rows) {
            return Spared::default();
        }
        let idle = (1.0 - self.rate.at(view.now) / best).max(0.0);
        Spared::of((idle * idle / 2.0).min(MOST_SPARED))
    }

    /// How many rows of a line may board now; else when to look again. In `paper` mode groups of like length wait for their window, and
    /// have at most a largest batch of rows in the pipeline together. Otherwise a lane that has nothing to do is not kept waiting, unless
    /// a window was asked for.
    fn room(&self, view: &View<'_>, line: &Line) -> Result<u32, Ns> {
        let Some(input) = &self.knobs.input else { return Ok(view.max_rows) };
        let room = match input.paper {
            true => view.max_rows.saturating_sub(view.table.rows_aboard()),
            false => view.max_rows,
        };
        let idles = view.lane_is_idle && input.window_ns.is_none() && !input.paper;
        if line.rows >= u64::from(view.max_rows) || idles {
            return Ok(room);
        }
        let first_stage =
            || view.costs.predict(view.pipeline.entry(), view.max_rows, &view.class_of(line), Quantile::Mean);
        let window_ns = input.window_ns.or_else(first_stage).unwrap_or(0);
        let due = line.oldest(view.ledger).unwrap_or(view.now).saturating_add(window_ns);
        if due <= view.now { Ok(room) } else { Err(due) }
    }

    // ## Policy II
    /// Splits the batch that is to go on, where its rest takes at least as long in one piece as in parts.
    fn split(&mut self, view: &View<'_>) -> Option<Decision> {
        let operator = self.knobs.operator.as_ref()?;
        let batch = view.ready?;
        let entry = view.table.get(batch);
        let [step] = entry.steps.as_slice() else { return None };
        if step.next == view.pipeline.entry() || step.rows.len() < 2 {
            return None;
        }
        let class = &view.table.lineage_of(batch).class;
        let rows = self.splits.parts(view, operator, Spared::default(), step.next, step.row_count(), class)?;
        let before = cuts(step, &rows);
        (!before.is_empty()).then_some(Decision::Split { batch, before })
    }

    /// Whether a batch of so many rows will be split at a later stage: then nobody joins it (section 5.2.2).
    fn outlook(&mut self, view: &View<'_>, rows: u32, class: &ShapeClass) -> Outlook {
        let Some(operator) = &self.knobs.operator else { return Outlook::Open };
        let mut boundaries = 1..view.pipeline.stages();
        let (splits, none) = (&mut self.splits, Spared::default());
        let split = boundaries.any(|stage| splits.parts(view, operator, none, CellId(stage), rows, class).is_some());
        if split { Outlook::Split } else { Outlook::Open }
    }

    // ## Policy III
    /// Lets newcomers join the newest batch, if it is young enough, they can still catch up, and it helps.
    fn stretch(&mut self, view: &View<'_>) -> Option<Decision> {
        let load = self.knobs.load.as_ref().filter(|_| self.stretches())?;
        let (lineage, batch) = stretchable(view)?;
        let entry = view.table.get(batch);
        if !self.is_early(load, view.pipeline.stages(), entry) || !is_young(load, view, lineage, batch) {
            return None;
        }
        let (line, waiting) = self.heads.lines(view.pending).find(|(_, line)| line.mates == lineage.mates)?;
        let requests = joining(view, waiting, lineage);
        let rows: u32 = waiting.iter(view.ledger).take(requests as usize).map(|slot| view.ledger[slot].rows).sum();
        if rows == 0 || !load.paper && !is_gain(view, entry, &lineage.class, rows) {
            return None;
        }
        let outlook = self.outlook(view, entry.row_count() + rows, &lineage.class);
        Some(Decision::Stretch { batch, line, passengers: Passengers::First(requests), outlook })
    }

    /// Whether a batch has come no further than newcomers may follow it.
    fn is_early(&self, load: &LoadDiversity, stages: u16, batch: &Batch) -> bool {
        let Some(first) = batch.steps.first() else { return false };
        let limit = load.max_stage.unwrap_or(u16::MAX).min(stages - 1);
        meets_at(first).0 <= limit
    }

    /// Whether newcomers may still join, as far as age and progress go.
    pub(super) fn keeps_open(&self, now: Ns, lineage: &Lineage, batch: &Batch, stages: u16) -> bool {
        let Some(load) = &self.knobs.load else { return false };
        let young = load.max_age_ns.is_none_or(|max_age_ns| now.saturating_sub(lineage.created) <= max_age_ns);
        young && self.is_early(load, stages, batch)
    }

    pub(super) fn check(&self, pending: &Pending, ledger: &Ledger) -> Result<(), String> {
        self.heads.check(pending, ledger)
    }
}

impl Spared {
    /// Steps from 0 to 1.
    const STEPS: f64 = 64.0;

    /// The next step below.
    fn of(share: f64) -> Self {
        Self((share * Self::STEPS) as u32)
    }

    fn share(self) -> f64 {
        f64::from(self.0) / Self::STEPS
    }
}

impl Splits {
    fn renew(&mut self, view: &View<'_>) {
        if view.learned >= self.learned + RENEWED_AFTER && view.now >= self.renewed.saturating_add(KEPT_NS) {
            (self.learned, self.renewed) = (view.learned, view.now);
            self.found.clear();
        }
    }

    /// The parts in which a batch is better run from a stage on.
    fn parts(
        &mut self,
        view: &View<'_>,
        operator: &OperatorDiversity,
        spared: Spared,
        from: CellId,
        rows: u32,
        class: &ShapeClass,
    ) -> Option<Parts> {
        let search = || match operator.paper {
            true => view.costs.halves(from, rows, class),
            false => view.costs.best_split(from, rows, class, operator.threshold - spared.share()),
        };
        self.found.entry((from, rows, spared, class.clone())).or_insert_with(search).clone()
    }
}

/// The seats of a step before which it is to be cut into parts of so many rows, as far as rows of one request that sit together
/// stay together.
fn cuts(step: &Step, parts: &[u32]) -> SmallVec<[usize; 8]> {
    let mut cuts = SmallVec::new();
    let (mut wanted, mut rows) = (0_u32, 0_u32);
    let mut parts = parts.iter();
    for (at, seat) in step.rows.iter().enumerate() {
        if rows >= wanted {
            if at > 0 {
                cuts.push(at);
            }
            wanted = rows.saturating_add(parts.next().copied().unwrap_or(u32::MAX));
        }
        rows += seat.span.count;
    }
    cuts
}

/// Whether a batch is younger than T_comp_wait, and its oldest target leaves time for newcomers to catch up.
fn is_young(load: &LoadDiversity, view: &View<'_>, lineage: &Lineage, batch: BatchIx) -> bool {
    let age_ns = view.now.saturating_sub(lineage.created);
    let class = &lineage.class;
    if let Some(max_age_ns) = load.max_age_ns {
        return age_ns <= max_age_ns;
    }
    let Some(total_ns) = view.costs.whole(view.max_rows, class, Quantile::Mean) else { return true };
    let entry = view.table.get(batch);
    let catch_up_ns = longest_wait_ns(view, entry, class, lineage.places.free()).unwrap_or(0);
    let from = entry.steps.first().map_or(CellId(0), meets_at);
    let remaining_ns = view.costs.remaining(from, view.max_rows, class, Quantile::P99).unwrap_or(0);
    let targets = entry.steps.iter().flat_map(|step| &step.rows).filter(|seat| view.ledger.is_aboard(seat));
    // Who is late already has no veto.
    let target = targets.filter_map(|seat| view.target(seat.slot)).filter(|&target| target > view.now).min();
    let in_time = target.is_none_or(|target| target >= view.now + remaining_ns + catch_up_ns);
    in_time && age_ns <= total_ns / 2
}

/// How many requests from the head of a line fit into a batch: its room and its padded shape.
fn joining(view: &View<'_>, line: &Line, lineage: &Lineage) -> u32 {
    let mut places = lineage.places.clone();
    let fits = line.iter(view.ledger).take_while(|&slot| {
        let request = &view.ledger[slot];
        let fits = request.lengths.iter().zip(&lineage.class.0).all(|(length, padded)| length <= padded);
        fits && places.take(request.rows).is_some()
    });
    fits.count() as u32
}
