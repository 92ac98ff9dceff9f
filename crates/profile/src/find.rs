//! Findings from a profile: preferred batch sizes, and which of DVABatch's diversities exist (section 3).

use paternoster_batching::Ns;
use serde::Serialize;

use super::{CutTable, LatencyPoint, Profile};

/// Fraction of the best throughput that makes a batch size preferred; the smallest such size counts (DVABatch section
/// 7.2).
const NEAR_BEST: f64 = 0.95;
/// Factor between the preferred batch sizes of two stages that makes a model's operators diverse.
const OPERATOR_FACTOR: u32 = 2;
/// Running stages with batches of different sizes pays off if a row then takes at most this fraction of its time in the
/// whole model at its best batch size. A smaller gain is lost to noise and boundaries.
const PAYS: f64 = 0.95;
/// Minimum runs of a size for its median to count here.
const TRUSTED_RUNS: u32 = 5;
/// Joining pays off if a row in a batch of eight takes at most this fraction of the time of a row alone.
pub const JOINING_PAYS: f64 = 0.7;
/// Rows of the batch that a single row is compared with, if the model allows batches of this size.
const TOGETHER: u32 = 8;

/// The findings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// Length of padded axes that the other values refer to; 0 if there are none.
    pub length: u32,
    /// T(1) of the whole model.
    pub alone_ns: Ns,
    /// Rows `n` of the batch that a single row is compared with: 8, or fewer if the largest batch is smaller.
    pub together_rows: u32,
    /// T(n)/n of the whole model for that `n`.
    pub together_row_ns: f64,
    /// For each measured cut, by number of stages: the preferred batch size of each stage.
    pub preferred_rows: Vec<Vec<u32>>,
    /// Preferred batch size of the whole model while every lane runs it; `None` if that was not measured for several
    /// sizes.
    pub preferred_side_by_side: Option<u32>,
    /// Input diversity: requests differ in length, because an axis is padded.
    pub input_diversity: bool,
    /// Operator diversity: in some cut the preferred batch size of one stage is at least twice that of another, and
    /// running each at its own size makes rows cheaper.
    pub operator_diversity: bool,
    /// Load diversity, that is, joining pays off: T(8)/8 ≤ 0.7 · T(1).
    pub load_diversity: bool,
}

impl Findings {
    /// Derives the findings from a profile; `None` if the whole model was not measured for one row.
    ///
    /// They refer to the middle one of the measured lengths, and to the largest measured batch of at most eight rows.
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

    /// Returns whether lanes that all run the model are fastest with one row each, because they already share the
    /// device.
    pub fn runs_best_one_by_one(&self) -> bool {
        self.preferred_side_by_side == Some(1)
    }

    /// Returns T(n)/n as a fraction of T(1).
    pub fn together_share(&self) -> f64 {
        self.together_row_ns / self.alone_ns as f64
    }
}

/// Returns whether running the stages of a cut with batches of different sizes pays off.
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

/// Returns the throughput of a stage by rows, ascending, for sizes with at least `runs` runs.
fn rates(cut: &CutTable, stage: usize, length: u32, runs: u32) -> Vec<(u32, f64)> {
    let point = |rows| cut.point(stage, rows, length).filter(|point| point.runs >= runs);
    cut.rows().into_iter().filter_map(|rows| point(rows).map(rate)).collect()
}

fn rate(point: &LatencyPoint) -> (u32, f64) {
    (point.rows, f64::from(point.rows) / point.median_ns as f64)
}

fn best(rates: &[(u32, f64)]) -> f64 {
    rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
}

/// Returns for each stage the smallest batch size whose throughput is within 5 % of the best.
pub(super) fn preferred(cut: &CutTable, length: u32) -> Vec<u32> {
    (0..cut.stages.len()).map(|stage| smallest_near_best(&rates(cut, stage, length, 1))).collect()
}

fn smallest_near_best(rates: &[(u32, f64)]) -> u32 {
    let best = best(rates);
    rates.iter().find(|(_, rate)| *rate >= NEAR_BEST * best).map_or(1, |(rows, _)| *rows)
}
