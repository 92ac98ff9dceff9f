//! Predicted latencies per stage, row count and padded length; profiled, learned online, or both.
//!
//! Every policy asks [`Costs`] how long something takes, and the executor's measured times correct it. A `stage` rounds
//! rows up to the bucket that they run in, and has a `curve`: a monotone surface over rows and length. An `estimate` is
//! one known time of a curve. `law` predicts sizes that never ran, from padded tokens, and `steps` those of cells that
//! run several steps of each row. `parts` searches for the sizes in which a batch should run.

mod axis;
mod curve;
mod estimate;
mod law;
mod parts;
mod stage;
mod steps;

use paternoster_model::CellId;
use smallvec::SmallVec;

pub(super) use self::steps::StepTerms;
use self::{stage::Stage, steps::StepLaw};
use super::{Ns, ShapeClass};

/// Profiled latencies of a version's stages, as plain data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostTable {
    /// Measured points of each stage, in any order. A stage without points, or beyond the end of the list, starts
    /// without known times.
    pub stages: Vec<Vec<CostPoint>>,
}

/// One measured latency of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostPoint {
    /// Rows of the batch. A point with 0 rows is ignored.
    pub rows: u32,
    /// Product of the padded lengths, ignoring lengths of 0; both 0 and 1 stand for a model without lengths.
    pub length: u64,
    /// Duration of one run.
    pub took_ns: Ns,
}

/// Predicted latencies of one model version.
///
/// Times are linear between known sizes, never fall as rows or length grow ("the profiled table made monotone"), are
/// constant below the smallest known size, and proportional beyond the largest: after a single run of one row, n rows
/// are predicted to take n times as long. A length is the product of the padded lengths of a shape class.
///
/// A stage with buckets runs only these sizes, and each bucket has its own time. A query for n rows returns the time of
/// the bucket that runs them, so times are constant within a bucket, and the first row beyond it costs the next bucket.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    stages: Vec<Stage>,
}

/// The point of the distribution of run times that a query asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantile {
    /// The average.
    Mean,
    /// About 99 of 100 runs are shorter: the average times a factor that each stage learns from its own spread.
    P99,
}

impl Costs {
    /// Creates the costs of a version's stages from their profile. `buckets` lists the sizes of each, empty if it runs
    /// any size; batches have at most `max_rows` rows.
    pub(super) fn new(buckets: &[&[u32]], max_rows: u32, given: Option<&CostTable>) -> Self {
        let points = |stage: usize| given.and_then(|table| table.stages.get(stage)).map_or(&[][..], Vec::as_slice);
        let stage = |(number, buckets): (usize, &&[u32])| Stage::new(max_rows, buckets, points(number));
        Self { stages: buckets.iter().enumerate().map(stage).collect() }
    }

    /// Lets these cells have tasks of several steps; the steps are the length of the shape class.
    pub(super) fn with_chunks(mut self, is_chunked: impl Fn(usize) -> bool, given: Option<&CostTable>) -> Self {
        for (number, stage) in self.stages.iter_mut().enumerate().filter(|(number, _)| is_chunked(*number)) {
            let mut steps = StepLaw::default();
            for point in given.and_then(|table| table.stages.get(number)).into_iter().flatten() {
                steps.learn(point.rows, point.length, point.took_ns as f64);
            }
            stage.steps = Some(steps);
        }
        self
    }

    /// Returns the terms of the time of a cell whose tasks run several steps, if any has run.
    pub(super) fn step_terms(&self, cell: CellId) -> Option<StepTerms> {
        self.stages.get(usize::from(cell.0))?.steps.as_ref()?.terms()
    }

    /// Returns the shape class and the number of the tasks in which a row runs `steps` steps of a cell: a single one if
    /// its tasks run several steps.
    pub(super) fn tasks_of(&self, cell: CellId, steps: u32) -> (ShapeClass, u32) {
        let stage = self.stages.get(usize::from(cell.0));
        let is_chunked = stage.is_some_and(|stage| stage.steps.is_some());
        if is_chunked { (class_of(steps), steps.min(1)) } else { (ShapeClass::default(), steps) }
    }

    /// Returns the number of stages.
    pub(super) fn stages(&self) -> u16 {
        self.stages.len() as u16
    }

    /// Returns the size in which a batch of `rows` is executed: the cheapest bucket that holds it; the smallest one if
    /// several take equally long or have no known time. Without buckets it is `rows`.
    pub(super) fn bucket(&self, stage: CellId, rows: u32, class: &ShapeClass) -> u32 {
        self.stages.get(usize::from(stage.0)).map_or(rows, |stage| stage.bucket(rows, length_of(class)))
    }

    /// Corrects a stage's costs by one run of `rows` rows, executed in a `bucket`, that took `took_ns`.
    ///
    /// Averages are kept for each profiled size or bucket, or else for groups of rows (powers of two, and the largest
    /// batch) and lengths (quarters of an octave), created as sizes occur. A drift is followed within 20 runs; a single
    /// outlier moves an average by an eighth at most.
    pub(super) fn learn(&mut self, stage: CellId, rows: u32, bucket: u32, class: &ShapeClass, took_ns: Ns) {
        if let Some(stage) = self.stages.get_mut(usize::from(stage.0)) {
            stage.learn(rows, bucket, length_of(class), took_ns as f64);
        }
    }

    /// Returns the duration of a run of one stage, or `None` if the stage has no known time.
    pub(super) fn predict(&self, stage: CellId, rows: u32, class: &ShapeClass, quantile: Quantile) -> Option<Ns> {
        self.stage_ns(self.stages.get(usize::from(stage.0))?, rows, length_of(class), quantile).map(whole_ns)
    }

    /// Returns how many of at most `most` rows a run of one stage is predicted to finish within a time, in about 99 of
    /// 100 runs; 0 if not even one, or if the stage has no known time.
    pub(super) fn rows_within(&self, stage: CellId, most: u32, class: &ShapeClass, ns: Ns) -> u32 {
        let fits = |rows: u32| self.predict(stage, rows, class, Quantile::P99).is_some_and(|needs_ns| needs_ns <= ns);
        if fits(most) {
            return most;
        }
        let (mut fitting, mut beyond) = (0, most);
        while beyond - fitting > 1 {
            let rows = fitting.midpoint(beyond);
            if fits(rows) { fitting = rows } else { beyond = rows }
        }
        fitting
    }

    /// Returns the part of a stage's time that does not grow with rows. It is the smaller of two estimates: how much
    /// less the second row of a batch takes than the first, and the line through the latest runs ([`law`]). `None`
    /// before the first run; a few per cent of the time after runs of one size.
    pub(super) fn fixed(&self, stage: CellId, class: &ShapeClass) -> Option<Ns> {
        self.stages.get(usize::from(stage.0))?.fixed_ns(length_of(class)).map(whole_ns)
    }

    /// Returns the duration of the stages from `from` up to but excluding `before`, one after another.
    pub(super) fn between(
        &self,
        from: CellId,
        before: CellId,
        rows: u32,
        class: &ShapeClass,
        quantile: Quantile,
    ) -> Option<Ns> {
        let end = usize::from(before.0).min(self.stages.len());
        let stages = self.stages.get(usize::from(from.0)..end).unwrap_or_default();
        self.sum_ns(stages, rows, length_of(class), quantile).map(whole_ns)
    }

    /// Returns the duration of the stages from `from` to the last: DVABatch's T_remain (section 7.2).
    pub(super) fn remaining(&self, from: CellId, rows: u32, class: &ShapeClass, quantile: Quantile) -> Option<Ns> {
        self.between(from, CellId(u16::MAX), rows, class, quantile)
    }

    /// Returns the duration of all stages: T(B) of adaptive batching, DVABatch's T_total.
    pub(super) fn whole(&self, rows: u32, class: &ShapeClass, quantile: Quantile) -> Option<Ns> {
        self.remaining(CellId(0), rows, class, quantile)
    }

    /// Returns the time until a staircase of steps is done. The steps are given as stages and rows, the least advanced
    /// first: each catches up with the next, merges with it, and goes on with it to the last stage.
    pub(super) fn staircase(
        &self,
        steps: impl IntoIterator<Item = (CellId, u32)>,
        class: &ShapeClass,
        quantile: Quantile,
    ) -> Option<Ns> {
        let (mut elapsed, mut active) = (0, None);
        for (stage, own) in steps {
            let mut rows: u32 = own;
            if let Some((from, behind)) = active {
                debug_assert!(from <= stage, "a step is more advanced than the one above it");
                elapsed += self.between(from, stage, behind, class, quantile)?;
                rows = rows.saturating_add(behind);
            }
            active = Some((stage, rows));
        }
        let Some((from, rows)) = active else { return Some(elapsed) };
        Some(elapsed.saturating_add(self.remaining(from, rows, class, quantile)?))
    }

    /// Returns the duration of all stages, for a choice between sizes of which most may never have run: by the profile,
    /// or by the padded tokens of the batch ([`law`]). `None` until every stage has run or was profiled.
    pub(super) fn run_ns(&self, rows: u32, class: &ShapeClass) -> Option<f64> {
        let length = length_of(class);
        self.stages.iter().map(|stage| stage.run_ns(rows, length)).sum()
    }

    /// Returns the part of it that `rows` rows add to a batch, without any share of the fixed time.
    pub(super) fn added_ns(&self, rows: u32, class: &ShapeClass) -> Option<f64> {
        let length = length_of(class);
        self.stages.iter().map(|stage| stage.added_ns(rows, length)).sum()
    }

    /// Returns what `rows` rows add to batches that they share as recent rows did, with their share of the fixed time.
    pub(super) fn share_ns(&self, rows: u32, class: &ShapeClass) -> Option<f64> {
        let length = length_of(class);
        self.stages.iter().map(|stage| stage.share_ns(rows, length)).sum()
    }

    /// Returns the recent average time per row through all stages, with a batch's time shared among its rows.
    pub(super) fn lately_per_row(&self) -> Option<f64> {
        self.stages.iter().map(|stage| stage.curve.law.row_ns()).sum()
    }

    /// Returns how many of the waiting `rows` should run so that the time of their number becomes known: all of them,
    /// or else the largest power of two below, unless runs have confirmed it. `None` if all are known. Where requests
    /// have lengths, there are too many sizes to try without a profile: it is always all of them.
    pub(super) fn size_to_try(&self, rows: u32, class: &ShapeClass) -> Option<u32> {
        let mut unprofiled = self.stages.iter().filter(|stage| !stage.curve.is_profiled).peekable();
        unprofiled.peek()?;
        if length_of(class) > 1 {
            return Some(rows);
        }
        let is_known = |rows: u32| self.stages.iter().all(|stage| stage.curve.is_confirmed(stage.bucket(rows, 1)));
        let smaller = (0..rows.max(2).next_power_of_two().ilog2()).rev().map(|power| 1 << power);
        std::iter::once(rows).chain(smaller).find(|&size| !is_known(size))
    }

    /// Returns the throughput B / T(B), in rows per nanosecond, of batches of this size run one after another.
    pub(super) fn throughput(&self, rows: u32, class: &ShapeClass) -> Option<f64> {
        self.remaining_ns(CellId(0), rows, length_of(class)).map(|ns| f64::from(rows) / ns)
    }

    /// Returns the best throughput of any batch of at most `max_rows` rows. Times are linear between known sizes and
    /// constant within a bucket, so the best is at a known size.
    pub(super) fn best_throughput(&self, max_rows: u32, class: &ShapeClass) -> Option<f64> {
        let sizes = self.known_rows(CellId(0)).into_iter().filter(|&size| size < max_rows).chain([1, max_rows]);
        sizes.map(|size| self.throughput(size, class)).try_fold(0.0_f64, |best, rate| Some(best.max(rate?)))
    }

    /// Returns the smallest known size of at most `max_rows` rows whose throughput is at least this share of the best,
    /// `None` if times are unknown. Beyond it, larger batches hardly save time.
    pub(super) fn efficient_rows(&self, max_rows: u32, class: &ShapeClass, share: f64) -> Option<u32> {
        let sizes = || self.known_rows(CellId(0)).into_iter().filter(|&size| size < max_rows).chain([max_rows]);
        let rate = |size: u32| Some(f64::from(size) / self.run_ns(size, class)?);
        let best = sizes().map(rate).try_fold(0.0_f64, |best, rate| Some(best.max(rate?)))?;
        sizes().find(|&size| rate(size).is_some_and(|rate| rate >= share * best))
    }

    /// Returns the least number of rows, at most `max_rows`, whose batches carry a rate in rows per nanosecond. `None`
    /// if none does, or if times are unknown. Between two known sizes times lie on a line, so one number divides those
    /// that carry it from those that do not.
    pub(super) fn fewest_rows(&self, rate: f64, max_rows: u32, class: &ShapeClass) -> Option<u32> {
        let carries = |rows: u32| self.run_ns(rows, class).is_some_and(|ns| f64::from(rows) >= rate * ns);
        let known = self.known_rows(CellId(0)).into_iter().filter(|&size| (1..max_rows).contains(&size));
        let mut too_few = 0;
        for size in known.chain([max_rows]) {
            if carries(size) {
                let mut enough = size;
                while enough - too_few > 1 {
                    let middle = too_few.midpoint(enough);
                    if carries(middle) { enough = middle } else { too_few = middle }
                }
                return Some(enough);
            }
            too_few = size;
        }
        None
    }

    /// Returns the line `T = a + c·B`, in nanoseconds, through the known batch sizes by least squares (adaptive
    /// batching, section III.A). With one known size the line passes through the origin; with none, returns `None`.
    pub(super) fn regression(&self, class: &ShapeClass) -> Option<(f64, f64)> {
        let length = length_of(class);
        let sizes = self.known_rows(CellId(0));
        let mut points: SmallVec<[(f64, f64); 16]> = SmallVec::new();
        for &rows in &sizes {
            points.push((f64::from(rows), self.remaining_ns(CellId(0), rows, length)?));
        }
        let count = points.len() as f64;
        let mean_rows = points.iter().map(|(rows, _)| rows).sum::<f64>() / count;
        let mean_ns = points.iter().map(|(_, ns)| ns).sum::<f64>() / count;
        let spread: f64 = points.iter().map(|(rows, _)| (rows - mean_rows) * (rows - mean_rows)).sum();
        match points.len() {
            0 => None,
            1 => Some((0.0, mean_ns / mean_rows)),
            _ => {
                let joint: f64 = points.iter().map(|(rows, ns)| (rows - mean_rows) * (ns - mean_ns)).sum();
                let slope = joint / spread;
                Some((mean_ns - slope * mean_rows, slope))
            }
        }
    }

    /// Returns the row counts for which any stage from `from` on has a time or a bucket, ascending.
    fn known_rows(&self, from: CellId) -> SmallVec<[u32; 16]> {
        let mut sizes = SmallVec::new();
        for stage in self.stages.get(usize::from(from.0)..).unwrap_or_default() {
            for rows in stage.sizes() {
                if let Err(place) = sizes.binary_search(&rows) {
                    sizes.insert(place, rows);
                }
            }
        }
        sizes
    }

    fn remaining_ns(&self, from: CellId, rows: u32, length: u64) -> Option<f64> {
        self.sum_ns(self.stages.get(usize::from(from.0)..).unwrap_or_default(), rows, length, Quantile::Mean)
    }

    fn sum_ns(&self, stages: &[Stage], rows: u32, length: u64, quantile: Quantile) -> Option<f64> {
        stages.iter().map(|stage| self.stage_ns(stage, rows, length, quantile)).sum()
    }

    fn stage_ns(&self, stage: &Stage, rows: u32, length: u64, quantile: Quantile) -> Option<f64> {
        let mean = stage.predict(rows, length)?;
        Some(match quantile {
            Quantile::Mean => mean,
            Quantile::P99 => mean * stage.curve.spread.factor,
        })
    }
}

/// Returns the length of a shape class: the product of its padded lengths, 1 if it has none.
pub(super) fn length_of(class: &ShapeClass) -> u64 {
    class.0.iter().fold(1_u64, |product, &length| product.saturating_mul(u64::from(length.max(1))))
}

/// Returns the shape class of a task that runs `steps` steps of each row.
pub(super) fn class_of(steps: u32) -> ShapeClass {
    ShapeClass((steps > 1).then_some(steps).into_iter().collect())
}

fn whole_ns(ns: f64) -> Ns {
    ns.round() as Ns
}
