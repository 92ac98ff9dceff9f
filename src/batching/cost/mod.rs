//! Predicted latencies: per stage, rows and padded length; profiled, learned online, or both.
//!
//! Every policy asks here how long something will take, and the executor's measured times come back here. A `stage`
//! rounds rows up to the bucket that they run in, and has a `curve`: a monotone surface over rows and length; an
//! `estimate` is one of its known times; `law` foretells
//! from padded tokens what was never run; `parts` searches the sizes that a batch is best run in.

mod axis;
mod curve;
mod estimate;
mod law;
mod parts;
mod stage;

use smallvec::SmallVec;

use self::stage::Stage;
use super::{CellId, Ns, ShapeClass};

/// Profiled latencies of a pipeline, as plain data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostTable {
    /// Measured points of each stage, in any order. A stage without points, or past the end of the list, starts
    /// unknown.
    pub stages: Vec<Vec<CostPoint>>,
}

/// One measured latency of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostPoint {
    /// Rows of the batch. A point of 0 rows is passed over.
    pub rows: u32,
    /// Product of the padded lengths, those of 0 left out; 0 and 1 both stand for a model that has none.
    pub length: u64,
    /// Time of one run.
    pub took_ns: Ns,
}

/// Predicted latencies of one model version.
///
/// Times rise linearly between known sizes, never fall as rows or length grow ("the profiled table made monotone"), are
/// constant below the smallest known size and proportional beyond the largest: after one run of one row, n rows are
/// predicted to take n times as long. A length is the product of the padded lengths of a class.
///
/// A stage with buckets is executed in these sizes alone, and each bucket has its own time. A question about n rows is
/// answered with the time of the bucket that runs them. So times are constant within a bucket, and one row more costs
/// the next bucket.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    stages: Vec<Stage>,
}

/// Which point of the distribution of run times is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantile {
    /// The average.
    Mean,
    /// About 99 of 100 runs are shorter: the average times a factor that each stage learns from its own spread.
    P99,
}

impl Costs {
    /// A pipeline of stages with these buckets, none where any size is executed as it is, and batches of up to
    /// `max_rows`, with what was profiled of it.
    pub(super) fn new(buckets: &[&[u32]], max_rows: u32, given: Option<&CostTable>) -> Self {
        let points = |stage: usize| given.and_then(|table| table.stages.get(stage)).map_or(&[][..], Vec::as_slice);
        let stage = |(number, buckets): (usize, &&[u32])| Stage::new(max_rows, buckets, points(number));
        Self { stages: buckets.iter().enumerate().map(stage).collect() }
    }

    /// How many stages there are.
    pub(super) fn stages(&self) -> u16 {
        self.stages.len() as u16
    }

    /// The size in which a batch of `rows` is executed: the cheapest bucket that holds it, and the smallest of several
    /// that take as long or have no known time. Without buckets it is `rows`.
    pub(super) fn bucket(&self, stage: CellId, rows: u32, class: &ShapeClass) -> u32 {
        let stage = self.stages.get(usize::from(stage.0));
        let stage = stage.filter(|stage| stage.has_buckets());
        stage.map_or(rows, |stage| stage.bucket(rows, length_of(class)))
    }

    /// Learns that a run of `rows` of a stage, executed in a `bucket`, took `took_ns`.
    ///
    /// Averages are kept for each profiled size or bucket, or else for groups of rows (powers of two, and the largest
    /// batch) and lengths (quarters of an octave), as sizes are met. A drift is followed within 20 runs; one odd run
    /// moves an average by an eighth at most.
    pub(super) fn learn(&mut self, stage: CellId, rows: u32, bucket: u32, class: &ShapeClass, took_ns: Ns) {
        if let Some(stage) = self.stages.get_mut(usize::from(stage.0)) {
            stage.learn(rows, bucket, length_of(class), took_ns as f64);
        }
    }

    /// How long a run of a stage takes, or none when nothing is known of the stage.
    pub(super) fn predict(&self, stage: CellId, rows: u32, class: &ShapeClass, quantile: Quantile) -> Option<Ns> {
        self.stage_ns(self.stages.get(usize::from(stage.0))?, rows, length_of(class), quantile).map(whole_ns)
    }

    /// How long the stages `from` to `before` (not included, cut to the last) take, one after another.
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

    /// How long the stages from `from` to the last take: DVABatch's T_remain (section 7.2).
    pub(super) fn remaining(&self, from: CellId, rows: u32, class: &ShapeClass, quantile: Quantile) -> Option<Ns> {
        self.between(from, CellId(u16::MAX), rows, class, quantile)
    }

    /// How long all stages take: T(B) of adaptive batching, DVABatch's T_total.
    pub(super) fn whole(&self, rows: u32, class: &ShapeClass, quantile: Quantile) -> Option<Ns> {
        self.remaining(CellId(0), rows, class, quantile)
    }

    /// How long all stages take by the padded tokens of the batch, [`law`]: sizes that never ran are as good as
    /// those that did. None before every stage has run or was profiled.
    pub(super) fn by_tokens(&self, rows: u32, class: &ShapeClass) -> Option<f64> {
        let length = length_of(class);
        self.stages.iter().map(|stage| stage.curve().law().predict(stage.bucket(rows, length), length)).sum()
    }

    /// What some rows add to the time of batches that they share as rows have done lately, through all stages.
    pub(super) fn share_by_tokens(&self, rows: u32, class: &ShapeClass) -> Option<f64> {
        let length = length_of(class);
        self.stages.iter().map(|stage| stage.curve().law().share(rows, length)).sum()
    }

    /// How long a row has taken lately through all stages, as its batches shared their time among their rows.
    pub(super) fn lately_per_row(&self) -> Option<f64> {
        self.stages.iter().map(|stage| stage.curve().law().row_ns()).sum()
    }

    /// Rows per nanosecond of batches of so many rows that run one after another: B / T(B).
    pub(super) fn throughput(&self, rows: u32, class: &ShapeClass) -> Option<f64> {
        self.remaining_ns(CellId(0), rows, length_of(class)).map(|ns| f64::from(rows) / ns)
    }

    /// The best throughput of any batch of at most `max_rows` rows. Between two known sizes times are linear, and up to
    /// a bucket constant, so it is that of one of them.
    pub(super) fn best_throughput(&self, max_rows: u32, class: &ShapeClass) -> Option<f64> {
        let sizes = self.known_rows(CellId(0)).into_iter().filter(|&size| size < max_rows).chain([1, max_rows]);
        sizes.map(|size| self.throughput(size, class)).try_fold(0.0_f64, |best, rate| Some(best.max(rate?)))
    }

    /// The line `T = a + c·B` in nanoseconds through the known batch sizes, by least squares (adaptive batching,
    /// section III.A). With one known size it goes through the origin; with none there is no line.
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

    /// Rows for which any stage from `from` on has a time or a bucket, ascending.
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
            Quantile::P99 => mean * stage.curve().p99_factor(),
        })
    }
}

/// The length that a class counts as: the product of its padded lengths, 1 where it has none.
pub(super) fn length_of(class: &ShapeClass) -> u64 {
    class.0.iter().fold(1_u64, |product, &length| product.saturating_mul(u64::from(length.max(1))))
}

fn whole_ns(ns: f64) -> Ns {
    ns.round() as Ns
}
