//! What a profile holds, as plain data.

use serde::{Deserialize, Serialize};

use crate::batching::{CostPoint, CostTable, Ns};

/// Measured latencies of one model on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The model's name.
    pub model: String,
    /// Largest batch in rows; 0 for a model without a batch axis.
    pub max_rows: u32,
    /// How many axes vary and are padded within a batch.
    pub padded_axes: u32,
    /// The whole model first, then the model cut into stages, by ascending number of them.
    pub cuts: Vec<CutTable>,
    /// The whole model, by ascending rows, while every other lane runs batches of the same size; empty where that was
    /// not measured.
    pub side_by_side: Vec<Point>,
}

/// Latencies of a model cut in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CutTable {
    /// The tensors that it is cut at; empty where it is whole, or cut into stages of even time.
    pub at: Vec<String>,
    /// By stage: its points, by ascending rows, then length. The same sizes in all stages.
    pub stages: Vec<Vec<Point>>,
    /// How runs scatter: quantiles of a stage's time in thousandths of the median of its size, from the least to the
    /// most in even steps, over all stages and sizes (the last such that the mean of the longest hundredth is kept);
    /// empty where no size ran twice.
    pub scatter: Vec<u32>,
}

/// The latency of a stage for batches of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Rows of the batch.
    pub rows: u32,
    /// Length of every padded axis; 0 where there is none.
    pub length: u32,
    /// The time that half of the runs stayed within.
    pub median_ns: Ns,
    /// The time that 99 of 100 runs stayed within; of fewer runs, the longest.
    pub p99_ns: Ns,
    /// How many runs were timed.
    pub runs: u32,
}

impl Profile {
    /// The model as it runs without cuts.
    pub fn whole(&self) -> Option<&CutTable> {
        self.cuts.iter().find(|cut| cut.stages.len() == 1)
    }

    /// The model cut into so many stages.
    pub fn cut(&self, stages: usize) -> Option<&CutTable> {
        self.cuts.iter().find(|cut| cut.stages.len() == stages)
    }

    /// Latencies of a cut, as the core takes them.
    pub fn costs(&self, cut: &CutTable) -> CostTable {
        let point = |point: &Point| CostPoint {
            rows: point.rows,
            length: u64::from(point.length).saturating_pow(self.padded_axes),
            took_ns: point.median_ns,
        };
        CostTable { stages: cut.stages.iter().map(|points| points.iter().map(point).collect()).collect() }
    }

    /// Whether it is what measuring gives: a file may hold anything.
    pub fn is_sound(&self) -> bool {
        let point = |point: &Point| point.rows > 0 && point.median_ns > 0 && point.median_ns <= point.p99_ns;
        let stage = |points: &Vec<Point>| !points.is_empty() && points.iter().all(point);
        let cut = |cut: &CutTable| !cut.stages.is_empty() && cut.stages.iter().all(stage) && cut.scatter.is_sorted();
        self.whole().is_some() && self.cuts.iter().all(cut) && self.side_by_side.iter().all(point)
    }
}

impl CutTable {
    /// Rows that were measured, ascending.
    pub fn rows(&self) -> Vec<u32> {
        self.distinct(|point| point.rows)
    }

    /// Lengths that were measured, ascending; 0 alone for a model without padded axes.
    pub fn lengths(&self) -> Vec<u32> {
        self.distinct(|point| point.length)
    }

    /// The middle one of the lengths that were measured, the shorter of two.
    pub fn middle_length(&self) -> Option<u32> {
        let lengths = self.lengths();
        lengths.get(lengths.len().checked_sub(1)? / 2).copied()
    }

    /// The shortest, the middle and the longest of the lengths that were measured: enough for stages, of which there
    /// are many.
    pub fn few_lengths(&self) -> Vec<u32> {
        let lengths = self.lengths();
        let mut few: Vec<u32> = lengths.first().copied().into_iter().chain(self.middle_length()).collect();
        few.extend(lengths.last());
        few.dedup();
        few
    }

    /// The time of a run through all stages, if a batch of this size was measured.
    pub fn total_ns(&self, rows: u32, length: u32) -> Option<Ns> {
        (0..self.stages.len()).map(|stage| self.point(stage, rows, length).map(|point| point.median_ns)).sum()
    }

    /// A stage's point for batches of this size.
    pub fn point(&self, stage: usize, rows: u32, length: u32) -> Option<&Point> {
        self.stages.get(stage)?.iter().find(|point| (point.rows, point.length) == (rows, length))
    }

    fn distinct(&self, of: impl Fn(&Point) -> u32) -> Vec<u32> {
        let mut values: Vec<u32> = self.stages.iter().flatten().map(of).collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}
