//! What a profile tells of a model: preferred batch sizes, and which of DVABatch's diversities there are (section 3).

use serde::Serialize;

use super::{CutTable, Point, Profile};
use crate::batching::Ns;

/// A batch size is preferred where its throughput is within this of the best (DVABatch section 7.2).
const NEAR_BEST: f64 = 0.95;
/// Preferred batch sizes that differ by this factor make a model's operators diverse.
const OPERATOR_FACTOR: u32 = 2;
/// Batches of different sizes pay where a row in stages, each at the batch size that suits it, takes at most this share
/// of a row in the whole model at its best: less is noise, and boundaries.
const PAYS: f64 = 0.95;
/// Runs of a size from which its median counts for that.
const TRUSTED_RUNS: u32 = 5;
/// Joining pays where a row in a batch of eight takes at most this share of a row alone.
pub const JOINING_PAYS: f64 = 0.7;
/// Rows of the batch that a lone row is compared with, if the model has batches so large.
const TOGETHER: u32 = 8;

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// The length of padded axes that all else is said of; 0 where there are none.
    pub length: u32,
    /// T(1) of the whole model.
    pub alone_ns: Ns,
    /// Rows of the batch that a lone row is compared with: 8, or fewer where the largest batch is smaller.
    pub together_rows: u32,
    /// T(n)/n of the whole model for that n.
    pub together_row_ns: f64,
    /// For each cut that was measured, by its number of stages: the preferred batch size of each stage.
    pub preferred_rows: Vec<Vec<u32>>,
    /// The preferred batch size of the whole model while every lane runs it; `None` where that was not measured for
    /// several.
    pub preferred_side_by_side: Option<u32>,
    /// Requests differ in length: an axis is padded.
    pub input_diversity: bool,
    /// In some cut a stage's preferred batch size is at least twice another's, and running each at its own makes rows
    /// cheaper.
    pub operator_diversity: bool,
    /// Joining pays: T(8)/8 ≤ 0.7 · T(1).
    pub load_diversity: bool,
}

impl Findings {
    /// What a profile tells; `None` if the whole model was not measured for one row.
    ///
    /// Said of the middle one of the lengths measured, and of the largest batch measured of at most eight rows.
    pub fn of(profile: &Profile) -> Option<Self> {
        let whole = profile.whole()?;
        let length = whole.middle_length()?;
        let alone_ns = whole.total_ns(1, length)?;
        let measured = whole.rows().into_iter().filter(|&rows| rows <= TOGETHER);
        let (together_rows, together_ns) =
            measured.rev().find_map(|rows| Some((rows, whole.total_ns(rows, length)?)))?;
        let together_row_ns = together_ns as f64 / f64::from(together_rows);
        let preferred_rows: Vec<Vec<u32>> = profile.cuts.iter().map(|cut| preferred(cut, length)).collect();
        let side_by_side = profile.side_by_side.iter().map(rate).collect::<Vec<_>>();
        Some(Self {
            length,
            alone_ns,
            together_rows,
            together_row_ns,
            input_diversity: profile.padded_axes > 0,
            operator_diversity: profile.cuts.iter().any(|cut| are_diverse(profile, cut, length)),
            load_diversity: together_rows > 1 && together_row_ns <= JOINING_PAYS * alone_ns as f64,
            preferred_rows,
            preferred_side_by_side: (side_by_side.len() > 1).then(|| smallest_near_best(&side_by_side)),
        })
    }

    /// Whether lanes that all run the model do best with one row each: they share the device already.
    pub fn runs_best_one_by_one(&self) -> bool {
        self.preferred_side_by_side == Some(1)
    }

    /// T(n)/n as a share of T(1).
    pub fn together_share(&self) -> f64 {
        self.together_row_ns / self.alone_ns as f64
    }
}

/// Whether it pays to run the stages of a cut with batches of different sizes.
pub(super) fn are_diverse(profile: &Profile, cut: &CutTable, length: u32) -> bool {
    let Some(whole) = profile.whole() else { return false };
    let best_row_ns = |cut: &CutTable, stage| {
        let trusted = rates(cut, stage, length, TRUSTED_RUNS);
        (!trusted.is_empty()).then(|| 1.0 / best(&trusted))
    };
    let staged: Option<f64> = (0..cut.stages.len()).map(|stage| best_row_ns(cut, stage)).sum();
    let pays = staged.zip(best_row_ns(whole, 0)).is_some_and(|(staged, whole)| staged <= PAYS * whole);
    let preferred = preferred(cut, length);
    let least = preferred.iter().min().copied().unwrap_or(0);
    let most = preferred.iter().max().copied().unwrap_or(0);
    pays && most >= OPERATOR_FACTOR * least.max(1)
}

/// By rows, ascending: a stage's throughput, of sizes with at least so many runs.
fn rates(cut: &CutTable, stage: usize, length: u32, runs: u32) -> Vec<(u32, f64)> {
    let point = |rows| cut.point(stage, rows, length).filter(|point| point.runs >= runs);
    cut.rows().into_iter().filter_map(|rows| point(rows).map(rate)).collect()
}

fn rate(point: &Point) -> (u32, f64) {
    (point.rows, f64::from(point.rows) / point.median_ns as f64)
}

fn best(rates: &[(u32, f64)]) -> f64 {
    rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
}

/// By stage: the smallest batch size whose throughput is within 5 % of the best.
pub(super) fn preferred(cut: &CutTable, length: u32) -> Vec<u32> {
    (0..cut.stages.len()).map(|stage| smallest_near_best(&rates(cut, stage, length, 1))).collect()
}

fn smallest_near_best(rates: &[(u32, f64)]) -> u32 {
    let best = best(rates);
    rates.iter().find(|(_, rate)| *rate >= NEAR_BEST * best).map_or(1, |(rows, _)| *rows)
}
