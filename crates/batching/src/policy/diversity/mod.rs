//! The policy `diversity` (DVABatch section 7). Policy I groups requests of similar length, Policy II splits batches
//! whose remaining stages run faster in parts, and Policy III lets newcomers join the newest batch.

mod knobs;

use std::collections::BTreeMap;

use smallvec::SmallVec;

pub use self::knobs::{
    DiversityKnobs, DiversitySettings, InputDiversity, InputSettings, LoadDiversity, LoadSettings, OperatorDiversity,
    OperatorSettings,
};
use super::{
    BatchPolicy, Decision, Selection, View,
    candidate::CandidateBatch,
    gain::{is_gain, longest_wait_ns, meets_at},
    lazy::stretchable,
    rate::Rate,
};
use crate::{
    CellId, Ns, PartOrder, ShapeClass,
    cost::Quantile,
    ids::SubQueueIx,
    ledger::{NEVER, Request},
    queue::SubQueue,
    table::batch::{Batch, Part, Step},
};

/// The policy with its state for one version.
#[derive(Debug)]
struct Diversity {
    knobs: DiversityKnobs,
    splits: Splits,
    rate: Rate,
}

/// Cache of splits, because the search is too slow to run at each boundary. Cleared when the latencies may have
/// changed.
#[derive(Debug, Default)]
struct Splits {
    found: BTreeMap<(CellId, u32, Behind, ShapeClass), Option<Parts>>,
    /// Number of learned runs at the last clearing, and its time.
    learned: u64,
    renewed: Ns,
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

/// Averaging time of the arrival rate. Long enough to measure the load of the next batches and not the latest burst.
const AVERAGE_NS: Ns = 1_000_000_000;

/// The cache of splits is cleared after this many runs, but not before this time: if runs take microseconds, a search
/// takes longer than many runs.
const RENEWED_AFTER: u64 = 64;
const KEPT_NS: Ns = 50_000_000;

impl BatchPolicy for Diversity {
    fn arrived(&mut self, now: Ns, _: SubQueueIx, request: &Request) {
        self.rate.add(now, request.rows);
    }

    fn stretches(&self) -> bool {
        self.knobs.joins()
    }

    fn part_order(&self) -> PartOrder {
        self.knobs.operator.as_ref().map_or(PartOrder::DepthFirst, |operator| operator.order)
    }

    fn keeps_open(&self, now: Ns, batch: &Batch, stages: u16) -> bool {
        let [part] = batch.parts.as_slice() else { return false };
        let Some(load) = &self.knobs.load else { return false };
        let young = load.max_age_ns.is_none_or(|max_age_ns| now.saturating_sub(batch.created) <= max_age_ns);
        young && self.is_early(load, stages, part)
    }

    fn change(&mut self, view: &View<'_>) -> Option<Decision> {
        self.splits.renew(view);
        self.split(view).or_else(|| self.stretch(view))
    }

    // ## Policy I and new batches
    fn board(&mut self, view: &View<'_>) -> Decision {
        let mut due = NEVER;
        let first = view.pending.in_order().find_map(|(sub_queue, entry)| match self.room(view, entry) {
            Ok(room) => Some((sub_queue, entry, CandidateBatch::of_sub_queue(view, sub_queue, entry, room)))
                .filter(|first| first.2.rows > 0),
            Err(then) => {
                due = due.min(then);
                None
            }
        });
        if let Some((sub_queue, entry, candidate)) = first {
            let mut candidate = self.try_merge(view, candidate, view.max_rows);
            let mut accepts_newcomers = self.accepts_newcomers(view, candidate.rows, &candidate.bound);
            // If the batch will be split later, only its first part boards now. The others stay in the queue, where
            // they may find another lane.
            if accepts_newcomers && let Some(rows) = self.first_part(view, &candidate) {
                let part = CandidateBatch::of_sub_queue(view, sub_queue, entry, rows);
                if part.rows > 0 {
                    candidate = self.try_merge(view, part, rows);
                    accepts_newcomers = self.accepts_newcomers(view, candidate.rows, &candidate.bound);
                }
            }
            return Decision::New { sub_queue, selection: Selection::Heads(candidate.from), accepts_newcomers };
        }
        if due == NEVER { Decision::Nothing } else { Decision::Wait(due) }
    }
}

impl Diversity {
    fn new(knobs: &DiversityKnobs) -> Self {
        Self { knobs: knobs.clone(), splits: Splits::default(), rate: Rate::new(Some(AVERAGE_NS), 0) }
    }

    /// Adds requests of other groups if that does not increase the mean completion time, up to `rows` rows.
    fn try_merge(&self, view: &View<'_>, candidate: CandidateBatch, rows: u32) -> CandidateBatch {
        match &self.knobs.input {
            Some(input) if input.by_runs => {
                let behind = self.behind_by_runs(view, &candidate);
                candidate.try_merge_near(view, rows, behind)
            }
            Some(input) if !input.paper => candidate.try_merge(view, rows),
            _ => candidate,
        }
    }

    /// Returns the rows of the first part if the requests would wait less on average in parts than in one batch. The
    /// other parts stay in the queue, where newcomers can still join them or another lane can take them.
    fn first_part(&mut self, view: &View<'_>, candidate: &CandidateBatch) -> Option<u32> {
        let operator = self.knobs.operator.as_ref().filter(|operator| !operator.paper && candidate.rows > 1)?;
        let behind = self.behind(view, candidate)?;
        let parts =
            self.splits.parts(view, operator, behind, view.pipeline.entry(), candidate.rows, &candidate.bound)?;
        parts.first().copied()
    }

    /// Returns how many rows wait for the end of this batch: those queued behind it, and those that will arrive before
    /// the device is idle again. At load ρ the device is busy for W / (1 − ρ), where W is the present work. With
    /// several lanes, each delays its share of the rows.
    fn behind(&self, view: &View<'_>, candidate: &CandidateBatch) -> Option<Behind> {
        let lanes = f64::from(view.lanes.max(1));
        let best = lanes * view.costs.best_throughput(view.max_rows, &candidate.bound)?;
        let whole_ns = f64::from(candidate.rows) / view.costs.throughput(candidate.rows, &candidate.bound)?;
        let queued = view.pending.rows.saturating_sub(u64::from(candidate.rows)) as f64;
        let rate = self.rate.at(view.now);
        let load = (rate / best).min(MOST_LOAD);
        Some(Behind::of((queued + rate * (whole_ns + queued / best) / (1.0 - load)) / lanes))
    }

    /// The same, computed from the model's measured runs, for models without profiled times.
    fn behind_by_runs(&self, view: &View<'_>, candidate: &CandidateBatch) -> f64 {
        let queued = view.pending.rows.saturating_sub(u64::from(candidate.rows)) as f64;
        let Some(row_ns) = view.costs.lately_per_row() else { return queued };
        let lanes = f64::from(view.lanes.max(1));
        let rate = self.rate.at(view.now);
        let load = (rate * row_ns / lanes).min(MOST_LOAD);
        let work_ns = (queued + f64::from(candidate.rows)) * row_ns / lanes;
        queued + rate * work_ns / (1.0 - load)
    }

    /// Returns how many rows of a sub-queue may board now, or else when to check again. In `paper` mode, groups wait
    /// for their window, and together have at most a largest batch of rows in the pipeline. Otherwise an idle lane
    /// takes a group at once, unless a window is configured.
    fn room(&self, view: &View<'_>, sub_queue: &SubQueue) -> Result<u32, Ns> {
        let Some(input) = &self.knobs.input else { return Ok(view.max_rows) };
        let room = match input.paper {
            true => view.max_rows.saturating_sub(view.table.rows_aboard()),
            false => view.max_rows,
        };
        let idles = view.lane_is_idle && input.window_ns.is_none() && !input.paper;
        if sub_queue.rows >= u64::from(view.max_rows) || idles {
            return Ok(room);
        }
        let first_stage =
            || view.costs.predict(view.pipeline.entry(), view.max_rows, &view.class_of(sub_queue), Quantile::Mean);
        let window_ns = input.window_ns.or_else(first_stage).unwrap_or(0);
        let due = sub_queue.oldest(view.ledger).unwrap_or(view.now).saturating_add(window_ns);
        if due <= view.now { Ok(room) } else { Err(due) }
    }

    // ## Policy II
    /// Splits the part that would run next, if its remaining time in one piece is at least its time in parts.
    fn split(&mut self, view: &View<'_>) -> Option<Decision> {
        let operator = self.knobs.operator.as_ref()?;
        let part = view.ready?;
        let [step] = part.steps.as_slice() else { return None };
        if step.next == view.pipeline.entry() || step.rows.len() < 2 {
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
        let mut boundaries = 1..view.pipeline.stages();
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
        if !self.is_early(load, view.pipeline.stages(), part) || !is_young(load, view, batch, part) {
            return None;
        }
        let sub_queue = view.pending.waiting_with(&batch.batch_key)?;
        let waiting = view.pending.sub_queue(sub_queue)?;
        let requests = joining(view, waiting, batch);
        let rows: u32 =
            waiting.iter(view.ledger).take(requests as usize).map(|request_ix| view.ledger[request_ix].rows).sum();
        if rows == 0 || !load.paper && !is_gain(view, part, &batch.class, rows) {
            return None;
        }
        let accepts_newcomers = self.accepts_newcomers(view, part.row_count() + rows, &batch.class);
        let selection = Selection::First(requests);
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
        if view.learned >= self.learned + RENEWED_AFTER && view.now >= self.renewed.saturating_add(KEPT_NS) {
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
    let age_ns = view.now.saturating_sub(batch.created);
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

/// Returns how many requests from the head of a sub-queue fit into a batch's free places and padded shape.
fn joining(view: &View<'_>, sub_queue: &SubQueue, batch: &Batch) -> u32 {
    let mut places = batch.places.clone();
    let fits = sub_queue.iter(view.ledger).take_while(|&request_ix| {
        let request = &view.ledger[request_ix];
        let fits = request.lengths.iter().zip(&batch.class.0).all(|(length, padded)| length <= padded);
        fits && places.take(request.rows).is_some()
    });
    fits.count() as u32
}
