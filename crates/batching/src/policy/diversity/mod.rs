//! The policy `diversity` (DVABatch section 7). Policy I groups requests of similar length, Policy II splits batches
//! whose remaining stages run faster in parts, and Policy III lets newcomers join the newest batch.

mod knobs;

use paternoster_model::CellId;

pub use self::knobs::{DiversityKnobs, InputDiversity, LoadDiversity, OperatorDiversity};
use super::{
    BatchPolicy, BatchView, Decision, Selection, View,
    candidate::CandidateBatch,
    gain::{class_of, is_gain, longest_wait_ns, may_pad, meets_at},
    lazy::{LOOKED_AT, stretchable},
    sizes::Sizes,
};
use crate::{
    Instant, PartOrder,
    cost::Quantile,
    ids::RequestIx,
    queue::SubQueue,
    table::batch::{Batch, Part},
};

/// The policy with its state for one version.
#[derive(Debug)]
struct Diversity {
    knobs: DiversityKnobs,
    sizes: Sizes,
}

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
        self.sizes.renew(view);
        let split = self.knobs.operator.as_ref().and_then(|operator| self.sizes.split(view, operator));
        split.or_else(|| self.stretch(view))
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
        if let Some((sub_queue, entry, candidates, within)) = first {
            let Some(operator) = &self.knobs.operator else {
                let selection = candidates.select(within.0);
                return Decision::New { sub_queue, selection, accepts_newcomers: true };
            };
            return self.sizes.board(view, operator, (sub_queue, entry), candidates, within);
        }
        if due == Instant::NEVER { Decision::Nothing } else { Decision::Wait(due) }
    }
}

impl Diversity {
    fn new(knobs: &DiversityKnobs) -> Self {
        Self { knobs: knobs.clone(), sizes: Sizes::new(1.0) }
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
        let rows = part.row_count() + rows;
        let accepts_newcomers = self
            .knobs
            .operator
            .as_ref()
            .is_none_or(|operator| self.sizes.accepts_newcomers(view, operator, rows, &batch.class));
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
