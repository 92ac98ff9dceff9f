//! Measures the stages of a model within a time budget.

use std::time::Duration;

use super::{
    Size,
    table::{CutTable, Point},
};
use crate::batching::Ns;

/// After so many runs of a size nothing more is learned.
const RUNS_MAX: usize = 200;
/// So many runs are wanted at least.
const RUNS_MIN: usize = 15;
/// The spread of the middle half, by the square root of the runs, at which a median counts as known.
const SPREAD: f64 = 0.005;
/// Runs of a size at a time: short ones are repeated for so long, or so often.
const VISIT: Duration = Duration::from_millis(4);
const VISIT_RUNS: u32 = 8;

/// Steps between the quantiles of how runs scatter.
const QUANTILES: usize = 100;

/// Why nothing was measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// The model does not run; with the engine's reason.
    #[error("{0}")]
    Failed(String),
    /// The caller does not want it any more.
    #[error("the measurement was given up")]
    GivenUp,
}

/// One size, and what its runs took.
struct Sampled {
    size: Size,
    /// The first run, which sets things up.
    first: Vec<Ns>,
    /// By stage.
    runs: Vec<Vec<Ns>>,
    /// What all its runs took together.
    spent_ns: Ns,
}

impl Sampled {
    fn count(&self) -> usize {
        self.runs.first().map_or(0, Vec::len)
    }

    /// The shortest run so far: what the next one takes, and not what the first one took to set things up.
    fn shortest_ns(&self) -> Ns {
        let total = |run: usize| self.runs.iter().map(|stage| stage[run]).sum();
        (0..self.count()).map(total).min().unwrap_or_else(|| self.first.iter().sum())
    }

    fn is_settled(&self) -> bool {
        let count = self.count();
        count >= RUNS_MAX || (count >= RUNS_MIN && self.runs.iter().all(|stage| spread(stage) <= SPREAD))
    }

    fn point(&self, stage: usize) -> Point {
        let mut times = if self.count() == 0 { vec![self.first[stage]] } else { self.runs[stage].clone() };
        times.sort_unstable();
        let runs = times.len();
        let Size { rows, length } = self.size;
        let (median_ns, p99_ns) = (times[runs / 2].max(1), times[(runs * 99).div_ceil(100) - 1].max(1));
        Point { rows, length, median_ns, p99_ns: p99_ns.max(median_ns), runs: u32::try_from(runs).unwrap_or(u32::MAX) }
    }
}

/// How far the middle half of some times is apart, relative to their median, by the square root of their number.
fn spread(times: &[Ns]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = |part: usize| sorted[(sorted.len() * part / 4).min(sorted.len() - 1)] as f64;
    (at(3) - at(1)) / at(2).max(1.0) / (sorted.len() as f64).sqrt()
}

/// Measures a model of `stages` stages at `sizes`, which ascend.
///
/// `run` runs a batch and gives the time of each stage; `elapsed` is the time since the beginning, that must not go
/// much beyond `budget`. The first run of each size sets things up and is not counted, unless there is time for no
/// other; the others go round and round, so that a machine that becomes slower does so for all sizes alike, until each
/// median is known or the time is over. Each size has its share of the time, so that the largest do not take it all;
/// what some leave is shared among the others. A size that fails (a model may have a greatest length), and all larger
/// ones, are left out; so is what would take too long.
///
/// # Errors
/// When not even the smallest batch runs, or `run` gives up.
pub fn measure(
    stages: usize,
    sizes: &[Size],
    budget: Duration,
    elapsed: impl Fn() -> Duration,
    mut run: impl FnMut(Size) -> Result<Vec<Ns>, Halt>,
) -> Result<CutTable, Halt> {
    let fits = |took_ns: f64| elapsed().as_secs_f64() + took_ns / 1e9 <= budget.as_secs_f64();
    let mut sampled: Vec<Sampled> = Vec::with_capacity(sizes.len());
    let mut failed: Vec<Size> = Vec::new();
    for &size in sizes {
        if failed.iter().any(|smaller| smaller.is_within(size)) {
            continue;
        }
        if predicted_ns(&sampled, size).is_some_and(|took_ns| !fits(took_ns)) {
            continue;
        }
        match run(size) {
            Ok(first) => {
                let spent_ns = first.iter().sum();
                sampled.push(Sampled { size, first, runs: vec![Vec::new(); stages], spent_ns });
            }
            Err(Halt::Failed(_)) if !sampled.is_empty() => failed.push(size),
            Err(halt) => return Err(halt),
        }
    }
    let mut share = budget / u32::try_from(sampled.len().max(1)).unwrap_or(u32::MAX);
    while share <= budget.saturating_mul(2) {
        let mut has_run = false;
        for one in &mut sampled {
            let mut visited_ns: Ns = 0;
            for _ in 0..VISIT_RUNS {
                let had_its_share = u128::from(one.spent_ns) >= share.as_nanos();
                if had_its_share
                    || one.is_settled()
                    || !fits(one.shortest_ns() as f64)
                    || u128::from(visited_ns) > VISIT.as_nanos()
                {
                    break;
                }
                let times = run(one.size)?;
                let took_ns: Ns = times.iter().sum();
                visited_ns += took_ns;
                one.spent_ns += took_ns;
                one.runs.iter_mut().zip(times).for_each(|(stage, took_ns)| stage.push(took_ns));
                has_run = true;
            }
        }
        if !has_run {
            share *= 2;
        }
    }
    let points = |stage| sampled.iter().map(|one| one.point(stage)).collect();
    let scatter = scatter(&sampled);
    Ok(CutTable { at: Vec::new(), stages: (0..stages).map(points).collect(), scatter })
}

/// Quantiles of all runs in thousandths of the median of their stage and size. All sizes together: of one alone there
/// are too few runs to tell its longest.
fn scatter(sampled: &[Sampled]) -> Vec<u32> {
    let mut ratios: Vec<u32> = Vec::new();
    for one in sampled.iter().filter(|one| one.count() > 1) {
        for (stage, times) in one.runs.iter().enumerate() {
            let median_ns = u128::from(one.point(stage).median_ns);
            let ratio = |took_ns: &Ns| u32::try_from(u128::from(*took_ns) * 1000 / median_ns).unwrap_or(u32::MAX);
            ratios.extend(times.iter().map(ratio));
        }
    }
    ratios.sort_unstable();
    let Some(last) = ratios.len().checked_sub(1) else { return Vec::new() };
    let mut quantiles: Vec<u32> = (0..=QUANTILES).map(|part| ratios[last * part / QUANTILES]).collect();
    // A single run that took very long must not stand for half of the longest hundredth: that keeps its mean.
    let longest = &ratios[ratios.len() * (QUANTILES - 1) / QUANTILES..];
    let mean = longest.iter().copied().map(u64::from).sum::<u64>() / longest.len() as u64;
    let before = quantiles[QUANTILES - 1];
    quantiles[QUANTILES] =
        u32::try_from((2 * mean).saturating_sub(u64::from(before))).map_or(u32::MAX, |most| most.max(before));
    quantiles
}

/// At most what a run of this size takes, as far as smaller ones tell.
fn predicted_ns(sampled: &[Sampled], size: Size) -> Option<f64> {
    let smaller = sampled.iter().filter(|one| one.size.is_within(size));
    let scaled = smaller.map(|one| one.shortest_ns() as f64 * size.work() / one.size.work());
    scaled.min_by(f64::total_cmp)
}
