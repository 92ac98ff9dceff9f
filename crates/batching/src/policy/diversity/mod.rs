//! The policy `diversity` (DVABatch section 7). Policy I groups requests of similar length, Policy II splits batches
//! whose remaining stages run faster in parts, and Policy III lets newcomers join the newest batch.

mod knobs;

use std::collections::BTreeMap;

use paternoster_model::CellId;
use smallvec::SmallVec;

pub use self::knobs::{DiversityKnobs, InputDiversity, LoadDiversity, OperatorDiversity};
use super::{
    BatchPolicy, BatchView, Decision, Selection, View,
    candidate::CandidateBatch,
    gain::{class_of, is_gain, longest_wait_ns, may_pad, meets_at},
    lazy::{LOOKED_AT, stretchable},
};
use crate::{
    Instant, Ns, PartOrder, ShapeClass,
    cost::Quantile,
    ids::RequestIx,
    queue::SubQueue,
    table::batch::{Batch, Part, Step},
};

/// The policy with its state for one version.
#[derive(Debug)]
struct Diversity {
    knobs: DiversityKnobs,
    splits: Splits,
}

/// Cache of splits, because the search is too slow to run at each boundary. Cleared when the latencies may have
/// changed.
#[derive(Debug, Default)]
struct Splits {
    found: BTreeMap<(CellId, u32, Behind, ShapeClass), Option<Parts>>,
    /// Number of learned runs at the last clearing, and its time.
    learned: u64,
    renewed: Instant,
}

type Parts = SmallVec<[u32; 8]>;

/// Number of rows that wait for a batch to end, rounded to steps so that results can be cached. Between stages the
/// batch is already running and the threshold decides, so the number is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Behind {
    NotAsked,
    /// In steps of half an octave, from 1/16 of a row.
    Rows(u32),
}

/// Maximum load in estimates of delay; at 1 the delay would be infinite.
const MOST_LOAD: f64 = 0.99;

/// The cache of splits is cleared after this many runs, but not before this time: if runs take microseconds, a search
/// takes longer than many runs.
const RENEWED_AFTER: u64 = 64;
const KEPT_NS: Ns = 50_000_000;

impl BatchPolicy for Diversity {
    fn stretches(&self) -> bool {
        self.knobs.joins()
    }

    fn part_order(&self) -> PartOrder {
        self.knobs.operator.as_ref().map_or(PartOrder::DepthFirst, |operator| operator.order)
    }

    fn keeps_open(&self, now: Instant, BatchView { batch, stages }: BatchView<'_>) -> bool {
        let [part] = batch.parts.as_slice() else { return false };
        let Some(load) = &self.knobs.load else { return false };
        let young = load.max_age_ns.is_none_or(|max_age_ns| now.since(batch.created) <= max_age_ns);
        young && self.is_early(load, stages, part)
    }

    fn change(&mut self, view: &View<'_>) -> Option<Decision> {
        self.splits.renew(view);
        self.split(view).or_else(|| self.stretch(view))
    }

    // ## Policy I and new batches
    fn board(&mut self, view: &View<'_>) -> Decision {
        let mut due = Instant::NEVER;
        let room = self.room(view);
        let first = view.pending.in_order().find_map(|(sub_queue, entry)| {
            let candidates = CandidateBatch::of(view, sub_queue, entry, room);
            if let Some(then) = self.waits_until(view, &candidates) {
                due = due.min(then);
                return None;
            }
            let within = candidates.within(view, room);
            (within.1 > 0).then_some((sub_queue, entry, candidates, within))
        });
        if let Some((sub_queue, entry, mut candidates, (mut requests, mut rows))) = first {
            let bound = candidates.rounded_class(view);
            let mut accepts_newcomers = self.accepts_newcomers(view, rows, &bound);
            // If the batch will be split later, only its first part boards now. The others stay in the queue, where
            // they may find another lane.
            if accepts_newcomers && let Some(part) = self.first_part(view, rows, &bound) {
                let first_part = CandidateBatch::of(view, sub_queue, entry, part);
                let within = first_part.within(view, part);
                if within.1 > 0 {
                    (candidates, (requests, rows)) = (first_part, within);
                    accepts_newcomers = self.accepts_newcomers(view, rows, &candidates.rounded_class(view));
                }
            }
            return Decision::New { sub_queue, selection: candidates.select(requests), accepts_newcomers };
        }
        if due == Instant::NEVER { Decision::Nothing } else { Decision::Wait(due) }
    }
}

impl Diversity {
    fn new(knobs: &DiversityKnobs) -> Self {
        Self { knobs: knobs.clone(), splits: Splits::default() }
    }

    /// Returns the rows of the first part if the requests would wait less on average in parts than in one batch. The
    /// other parts stay in the queue, where newcomers can still join them or another lane can take them.
    fn first_part(&mut self, view: &View<'_>, rows: u32, bound: &ShapeClass) -> Option<u32> {
        let operator = self.knobs.operator.as_ref().filter(|operator| !operator.paper && rows > 1)?;
        let behind = behind(view, rows, bound)?;
        let parts = self.splits.parts(view, operator, behind, view.stages.entry(), rows, bound)?;
        parts.first().copied()
    }

    /// Returns how many rows may board now. In `paper` mode, groups together have at most a largest batch of rows in
    /// all stages.
    fn room(&self, view: &View<'_>) -> u32 {
        match &self.knobs.input {
            Some(input) if input.paper => view.max_rows.saturating_sub(view.table.rows_aboard()),
            _ => view.max_rows,
        }
    }

    /// Returns until when these candidates wait for more. In `paper` mode, groups wait for their window. Otherwise an
    /// idle lane takes a group at once, unless a window is configured.
    fn waits_until<'a>(&self, view: &View<'a>, candidates: &CandidateBatch<'a>) -> Option<Instant> {
        let input = self.knobs.input.as_ref()?;
        let idles = view.lane_is_idle && input.window_ns.is_none() && !input.paper;
        if candidates.rows() >= u64::from(view.max_rows) || idles {
            return None;
        }
        let class = candidates.class(view);
        let first_stage = || view.costs.predict(view.stages.entry(), view.max_rows, &class, Quantile::Mean);
        let window_ns = input.window_ns.or_else(first_stage).unwrap_or(0);
        let due = candidates.oldest(view).unwrap_or(view.now) + window_ns;
        (due > view.now).then_some(due)
    }

    // ## Policy II
    /// Splits the part that would run next, if its remaining time in one piece is at least its time in parts.
    fn split(&mut self, view: &View<'_>) -> Option<Decision> {
        let operator = self.knobs.operator.as_ref()?;
        let part = view.ready?;
        let [step] = part.steps.as_slice() else { return None };
        if step.next == view.stages.entry() || step.rows.len() < 2 {
            return None;
        }
        let class = &view.table.batches[part.ix.batch].class;
        let rows = self.splits.parts(view, operator, Behind::NotAsked, step.next, step.row_count(), class)?;
        let before = cuts(step, &rows);
        (!before.is_empty()).then_some(Decision::Split { part: part.ix, before })
    }

    /// Whether newcomers may join a batch of `rows` rows. They may not if it will be split at a later stage (section
    /// 5.2.2).
    fn accepts_newcomers(&mut self, view: &View<'_>, rows: u32, class: &ShapeClass) -> bool {
        let Some(operator) = &self.knobs.operator else { return true };
        let mut boundaries = 1..view.stages.count();
        let splits = &mut self.splits;
        let mut parts = |stage| splits.parts(view, operator, Behind::NotAsked, CellId(stage), rows, class);
        let split = boundaries.any(|stage| parts(stage).is_some());
        !split
    }

    // ## Policy III
    /// Lets newcomers join the newest batch if it is young enough, they can still catch up, and joining is a gain.
    fn stretch(&mut self, view: &View<'_>) -> Option<Decision> {
        let load = self.knobs.load.as_ref().filter(|_| self.knobs.joins())?;
        let (batch, part) = stretchable(view)?;
        if !self.is_early(load, view.stages.count(), part) || !is_young(load, view, batch, part) {
            return None;
        }
        let sub_queue = view.pending.waiting_with(&batch.batch_key)?;
        let waiting = view.pending.sub_queue(sub_queue)?;
        let request_ixs = joining(view, waiting, batch);
        let rows: u32 = request_ixs.iter().map(|&request_ix| view.ledger[request_ix].rows).sum();
        if rows == 0 || !load.paper && !is_gain(view, part, &batch.class, rows, &class_of(view, &request_ixs)) {
            return None;
        }
        let accepts_newcomers = self.accepts_newcomers(view, part.row_count() + rows, &batch.class);
        let selection = Selection::Named(request_ixs);
        Some(Decision::Stretch { part: part.ix, sub_queue, selection, accepts_newcomers })
    }

    /// Whether an unsplit batch has not passed the last stage at which newcomers may follow it.
    fn is_early(&self, load: &LoadDiversity, stages: u16, part: &Part) -> bool {
        let Some(first) = part.steps.first() else { return false };
        let limit = load.max_stage.unwrap_or(u16::MAX).min(stages - 1);
        meets_at(first).0 <= limit
    }
}

impl Behind {
    /// Returns the step nearest to this many rows.
    fn of(rows: f64) -> Self {
        Self::Rows((2.0 * (16.0 * rows).max(1.0).log2()).round() as u32)
    }

    fn rows(steps: u32) -> f64 {
        (f64::from(steps) / 2.0).exp2() / 16.0
    }
}

impl Splits {
    fn renew(&mut self, view: &View<'_>) {
        if view.learned >= self.learned + RENEWED_AFTER && view.now >= self.renewed + KEPT_NS {
            (self.learned, self.renewed) = (view.learned, view.now);
            self.found.clear();
        }
    }

    /// Returns the parts in which a batch should run from a stage on, or `None` if whole.
    fn parts(
        &mut self,
        view: &View<'_>,
        operator: &OperatorDiversity,
        behind: Behind,
        from: CellId,
        rows: u32,
        class: &ShapeClass,
    ) -> Option<Parts> {
        let search = || match behind {
            Behind::Rows(steps) => view.costs.best_parts(from, rows, class, Behind::rows(steps)),
            Behind::NotAsked if operator.paper => view.costs.halves(from, rows, class),
            Behind::NotAsked => view.costs.best_split(from, rows, class, operator.threshold),
        };
        self.found.entry((from, rows, behind, class.clone())).or_insert_with(search).clone()
    }
}

/// Returns how many rows wait for the end of a batch of `rows` rows: those queued behind it, and those that will arrive
/// before the device is idle again. At load ρ the device is busy for W / (1 − ρ), where W is the present work. With
/// several lanes, each delays its share of the rows.
fn behind(view: &View<'_>, rows: u32, bound: &ShapeClass) -> Option<Behind> {
    let lanes = f64::from(view.lanes.max(1));
    let best = lanes * view.costs.best_throughput(view.max_rows, bound)?;
    let whole_ns = f64::from(rows) / view.costs.throughput(rows, bound)?;
    let queued = view.pending.rows.saturating_sub(u64::from(rows)) as f64;
    let rate = view.pending.rate.at(view.now);
    let load = (rate / best).min(MOST_LOAD);
    Some(Behind::of((queued + rate * (whole_ns + queued / best) / (1.0 - load)) / lanes))
}

/// Returns the spans before which a step must be cut to form parts of these sizes. A span is never cut, so rows of one
/// request in consecutive places stay together.
fn cuts(step: &Step, parts: &[u32]) -> SmallVec<[usize; 8]> {
    let mut cuts = SmallVec::new();
    let (mut wanted, mut rows) = (0_u32, 0_u32);
    let mut parts = parts.iter();
    for (at, span) in step.rows.iter().enumerate() {
        if rows >= wanted {
            if at > 0 {
                cuts.push(at);
            }
            wanted = rows.saturating_add(parts.next().copied().unwrap_or(u32::MAX));
        }
        rows += span.rows.count;
    }
    cuts
}

/// Whether a batch is younger than T_comp_wait, and its earliest target leaves time for newcomers to catch up.
fn is_young(load: &LoadDiversity, view: &View<'_>, batch: &Batch, part: &Part) -> bool {
    let age_ns = view.now.since(batch.created);
    let class = &batch.class;
    if let Some(max_age_ns) = load.max_age_ns {
        return age_ns <= max_age_ns;
    }
    let Some(total_ns) = view.costs.whole(view.max_rows, class, Quantile::Mean) else { return true };
    let catch_up_ns = longest_wait_ns(view, part, class, batch.places.free()).unwrap_or(0);
    let from = part.steps.first().map_or(CellId(0), meets_at);
    let remaining_ns = view.costs.remaining(from, view.max_rows, class, Quantile::P99).unwrap_or(0);
    let targets = part.steps.iter().flat_map(|step| &step.rows).filter(|span| view.ledger.is_aboard(span));
    // Requests that are already late have no veto.
    let target = targets.filter_map(|span| view.target(span.request_ix)).filter(|&target| target > view.now).min();
    let in_time = target.is_none_or(|target| target >= view.now + remaining_ns + catch_up_ns);
    in_time && age_ns <= total_ns / 2
}

/// Returns the first requests of a sub-queue that fit into a batch's free places and padded shape.
fn joining(view: &View<'_>, sub_queue: &SubQueue, batch: &Batch) -> Vec<RequestIx> {
    let mut places = batch.places.clone();
    let looked_at = sub_queue.iter(view.ledger).take(LOOKED_AT * places.free() as usize);
    let fitting = looked_at.filter(|&request_ix| may_pad(view, &view.ledger[request_ix], &batch.class));
    fitting.take_while(|&request_ix| places.take(view.ledger[request_ix].rows).is_some()).collect()
}
