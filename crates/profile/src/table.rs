//! The data of a profile.

use paternoster_batching::{CostPoint, CostTable, Ns};
use serde::{Deserialize, Serialize};

use super::{CellSegment, CellTable};

/// Measured latencies of a model on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name of the model.
    pub model: String,
    /// Largest batch in rows; 0 for a model without a batch axis.
    pub max_rows: u32,
    /// Number of axes that vary and are padded within a batch.
    pub padded_axes: u32,
    /// The whole model first, then cuts by ascending number of stages; empty for a model of cells.
    pub cuts: Vec<CutTable>,
    /// The whole model by ascending rows, while every other lane runs batches of the same size; empty if not measured.
    pub side_by_side: Vec<LatencyPoint>,
    /// The model in ranges of operators of about equal time, cut at all tensors between them; `None` if not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges: Option<CutTable>,
    /// The model cut where the preferred batches of its ranges change, if that was weighed to gain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_operators: Option<CutTable>,
    /// The cells of a model of cells, in their order; empty for other models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<CellTable>,
    /// What requests of a model of cells unfold into, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfold: Vec<CellSegment>,
}

/// Latencies of a model with one cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CutTable {
    /// Names of the tensors that it is cut at; empty if it is whole, or cut into stages of equal time.
    pub at: Vec<String>,
    /// Points of each stage, by ascending rows, then length. All stages have the same sizes.
    pub stages: Vec<Vec<LatencyPoint>>,
    /// Scatter of runs: quantiles of a stage's time in thousandths of the median of its size, from minimum to maximum
    /// in equal steps, over all stages and sizes. The last quantile is chosen to preserve the mean of the slowest
    /// hundredth. Empty if no size ran twice.
    pub scatter: Vec<u32>,
}

/// Latency of a stage for batches of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyPoint {
    /// Rows of the batch.
    pub rows: u32,
    /// Length of every padded axis; 0 if there is none.
    pub length: u32,
    /// Median time.
    pub median_ns: Ns,
    /// 99th percentile; the maximum if there are fewer than 100 runs.
    pub p99_ns: Ns,
    /// Number of timed runs.
    pub runs: u32,
}

impl Profile {
    /// Returns the uncut model.
    pub fn whole(&self) -> Option<&CutTable> {
        self.cuts.iter().find(|cut| cut.stages.len() == 1)
    }

    /// Returns the cut with this number of stages.
    pub fn cut(&self, stages: usize) -> Option<&CutTable> {
        self.cuts.iter().find(|cut| cut.stages.len() == stages)
    }

    /// Returns the cut at these tensors.
    pub fn cut_at(&self, tensors: &[String]) -> Option<&CutTable> {
        self.cuts.iter().chain(&self.by_operators).find(|cut| cut.at == tensors)
    }

    /// Returns the latencies of a cut as a cost table for the core.
    pub fn costs(&self, cut: &CutTable) -> CostTable {
        let point = |point: &LatencyPoint| CostPoint {
            rows: point.rows,
            length: u64::from(point.length).saturating_pow(self.padded_axes),
            took_ns: point.median_ns,
        };
        CostTable { stages: cut.stages.iter().map(|points| points.iter().map(point).collect()).collect() }
    }

    /// Returns whether the data is what a measurement can produce. A file can contain anything.
    pub fn is_sound(&self) -> bool {
        let point = |point: &LatencyPoint| point.rows > 0 && point.median_ns > 0 && point.median_ns <= point.p99_ns;
        let stage = |points: &Vec<LatencyPoint>| !points.is_empty() && points.iter().all(point);
        let cut = |cut: &CutTable| !cut.stages.is_empty() && cut.stages.iter().all(stage) && cut.scatter.is_sorted();
        let tables = self.cuts.iter().chain(&self.ranges).chain(&self.by_operators);
        let mut tables = tables.chain(self.cells.iter().map(|cell| &cell.times));
        let is_named = |cut: &CutTable| cut.at.len() + 1 == cut.stages.len();
        (self.whole().is_some() || !self.cells.is_empty())
            && tables.all(cut)
            && self.ranges.iter().chain(&self.by_operators).all(is_named)
            && self.cells.iter().all(CellTable::is_sound)
            && self.side_by_side.iter().all(point)
    }
}

impl CutTable {
    /// Returns the measured rows, ascending.
    pub fn rows(&self) -> Vec<u32> {
        self.distinct(|point| point.rows)
    }

    /// Returns the measured lengths, ascending; just 0 for a model without padded axes.
    pub fn lengths(&self) -> Vec<u32> {
        self.distinct(|point| point.length)
    }

    /// Returns the middle of the measured lengths, the shorter of two.
    pub fn middle_length(&self) -> Option<u32> {
        let lengths = self.lengths();
        lengths.get(lengths.len().checked_sub(1)? / 2).copied()
    }

    /// Returns the shortest, middle and longest of the measured lengths: enough for stages, of which there are many.
    pub fn few_lengths(&self) -> Vec<u32> {
        let lengths = self.lengths();
        let mut few: Vec<u32> = lengths.first().copied().into_iter().chain(self.middle_length()).collect();
        few.extend(lengths.last());
        few.dedup();
        few
    }

    /// Returns the time of a run through all stages, if a batch of this size was measured.
    pub fn total_ns(&self, rows: u32, length: u32) -> Option<Ns> {
        (0..self.stages.len()).map(|stage| self.point(stage, rows, length).map(|point| point.median_ns)).sum()
    }

    /// Returns the point of a stage for batches of this size.
    pub fn point(&self, stage: usize, rows: u32, length: u32) -> Option<&LatencyPoint> {
        self.stages.get(stage)?.iter().find(|point| (point.rows, point.length) == (rows, length))
    }

    fn distinct(&self, of: impl Fn(&LatencyPoint) -> u32) -> Vec<u32> {
        let mut values: Vec<u32> = self.stages.iter().flatten().map(of).collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}
