//! How many of the waiting rows run as one batch, and in which parts a batch goes on: DVABatch's Policy II (section
//! 7.2) with cuts of any size. `auto` and `diversity` use it.

use std::collections::BTreeMap;

use paternoster_model::CellId;
use smallvec::SmallVec;

use super::{Decision, OperatorDiversity, View, candidate::CandidateBatch};
use crate::{Instant, Ns, ShapeClass, ids::SubQueueIx, queue::SubQueue, table::batch::Step};

/// Cache of parts, because the search is too slow to run at each boundary. Cleared when the latencies may have changed.
#[derive(Debug)]
pub(super) struct Sizes {
    /// Rows that have not started run in parts if the sum of completion times is then at most this share of what it is
    /// in one piece.
    worthwhile: f64,
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

/// The cache is cleared after this many runs, but not before this time: if runs take microseconds, a search takes
/// longer than many runs.
const RENEWED_AFTER: u64 = 64;
const KEPT_NS: Ns = 50_000_000;

/// Rows that a search looks at. It takes time in proportion to rows, of which clients may send as many as the largest
/// batch holds, and other models wait meanwhile.
const MOST_SEARCHED: u32 = 1_024;

impl Sizes {
    pub(super) fn new(worthwhile: f64) -> Self {
        Self { worthwhile, found: BTreeMap::new(), learned: 0, renewed: Instant::ZERO }
    }

    /// Forgets what was found if the latencies may have changed since.
    pub(super) fn renew(&mut self, view: &View<'_>) {
        if view.learned >= self.learned + RENEWED_AFTER && view.now >= self.renewed + KEPT_NS {
            (self.learned, self.renewed) = (view.learned, view.now);
            self.found.clear();
        }
    }

    /// Boards candidates, of which `within` (requests and rows) would fit. If the batch will be split later, only its
    /// first part boards now. The others stay in the queue, where they may find another lane.
    pub(super) fn board<'a>(
        &mut self,
        view: &View<'a>,
        operator: &OperatorDiversity,
        (sub_queue, entry): (SubQueueIx, &'a SubQueue),
        mut candidates: CandidateBatch<'a>,
        within: (u32, u32),
    ) -> Decision {
        let (mut requests, rows) = within;
        let bound = candidates.rounded_class(view);
        let mut accepts_newcomers = self.accepts_newcomers(view, operator, rows, &bound);
        if accepts_newcomers
            && requests > 1
            && let Some(part) = self.first_part(view, operator, rows, &bound)
        {
            let first_part = CandidateBatch::of(view, sub_queue, entry, part);
            let within = first_part.within(view, part);
            if within.1 > 0 {
                (candidates, requests) = (first_part, within.0);
                let bound = candidates.rounded_class(view);
                accepts_newcomers = self.accepts_newcomers(view, operator, within.1, &bound);
            }
        }
        Decision::New { sub_queue, selection: candidates.select(requests), accepts_newcomers }
    }

    /// Returns the rows of the first part if the requests would wait less on average in parts than in one batch. The
    /// other parts stay in the queue, where newcomers can still join them or another lane can take them.
    ///
    /// Of many rows, the first part of the first [`MOST_SEARCHED`]. Without a profile, sizes that have hardly run are
    /// tried first.
    pub(super) fn first_part(
        &mut self,
        view: &View<'_>,
        operator: &OperatorDiversity,
        rows: u32,
        class: &ShapeClass,
    ) -> Option<u32> {
        if operator.paper || rows < 2 {
            return None;
        }
        let rows = rows.min(MOST_SEARCHED);
        if let Some(size) = view.costs.size_to_try(rows, class) {
            return (size < rows).then_some(size);
        }
        let behind = behind(view, rows, class)?;
        self.parts(view, operator, behind, view.stages.entry(), rows, class)?.first().copied()
    }

    /// Whether newcomers may join a batch of `rows` rows. They may not if it will be split at a later stage (DVABatch
    /// section 5.2.2).
    pub(super) fn accepts_newcomers(
        &mut self,
        view: &View<'_>,
        operator: &OperatorDiversity,
        rows: u32,
        class: &ShapeClass,
    ) -> bool {
        let mut boundaries = 1..view.stages.count();
        let mut parts = |stage| self.parts(view, operator, Behind::NotAsked, CellId(stage), rows, class);
        !boundaries.any(|stage| parts(stage).is_some())
    }

    /// Splits the part that would run next, if its remaining time in one piece is at least its time in parts.
    pub(super) fn split(&mut self, view: &View<'_>, operator: &OperatorDiversity) -> Option<Decision> {
        let part = view.ready?;
        let [step] = part.steps.as_slice() else { return None };
        if step.next == view.stages.entry() || step.rows.len() < 2 {
            return None;
        }
        let class = &view.table.batches[part.ix.batch].class;
        let rows = self.parts(view, operator, Behind::NotAsked, step.next, step.row_count(), class)?;
        let before = cuts(step, &rows);
        (!before.is_empty()).then_some(Decision::Split { part: part.ix, before })
    }

    /// Returns the parts in which a batch should run from a stage on, or `None` if whole, as one of more than
    /// [`MOST_SEARCHED`] rows.
    fn parts(
        &mut self,
        view: &View<'_>,
        operator: &OperatorDiversity,
        behind: Behind,
        from: CellId,
        rows: u32,
        class: &ShapeClass,
    ) -> Option<Parts> {
        if rows > MOST_SEARCHED {
            return None;
        }
        let worthwhile = self.worthwhile;
        let search = || match behind {
            Behind::Rows(steps) => view.costs.best_parts(from, rows, class, Behind::rows(steps), worthwhile),
            Behind::NotAsked if operator.paper => view.costs.halves(from, rows, class),
            Behind::NotAsked => view.costs.best_split(from, rows, class, operator.threshold),
        };
        self.found.entry((from, rows, behind, class.clone())).or_insert_with(search).clone()
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

/// Returns how many rows wait for the end of a batch of `rows` rows: those queued behind it, and those that will arrive
/// before the device is idle again. At load ρ the device is busy for W / (1 − ρ), where W is the present work. With
/// several lanes, each delays its share of the rows.
fn behind(view: &View<'_>, rows: u32, class: &ShapeClass) -> Option<Behind> {
    let lanes = f64::from(view.lanes.max(1));
    let best = lanes * view.costs.best_throughput(view.max_rows, class)?;
    let whole_ns = f64::from(rows) / view.costs.throughput(rows, class)?;
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
