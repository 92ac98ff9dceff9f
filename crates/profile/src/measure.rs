//! Measures the stages of a model within a time budget.

use std::time::Duration;

use paternoster_batching::Ns;

use super::{
    MeasuredSize,
    table::{CutTable, LatencyPoint},
};

/// Maximum runs of a size; more would not improve the median.
const RUNS_MAX: usize = 200;
/// Minimum runs of a size, if time allows.
const RUNS_MIN: usize = 15;
/// Interquartile range relative to the median, divided by the square root of the number of runs, below which a median
/// is considered accurate.
const SPREAD: f64 = 0.005;
/// Limits of one visit to a size, in time and runs: short runs are repeated until one of them is reached.
const VISIT: Duration = Duration::from_millis(4);
const VISIT_RUNS: u32 = 8;

/// Number of intervals between the quantiles of the scatter.
const QUANTILES: usize = 100;

/// Reasons why nothing was measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// The model failed to run, with the reason from the engine.
    #[error("{0}")]
    Failed(String),
    /// The caller cancelled the measurement.
    #[error("the measurement was cancelled")]
    GivenUp,
}

/// One size with its run times.
struct Sampled {
    size: MeasuredSize,
    /// The first run, which includes setup.
    first: Vec<Ns>,
    /// Run times by stage.
    runs: Vec<Vec<Ns>>,
    /// Total time of all its runs.
    spent_ns: Ns,
}

impl Sampled {
    fn count(&self) -> usize {
        self.runs.first().map_or(0, Vec::len)
    }

    /// Returns the time of the shortest run so far, an estimate of the next one that excludes the setup of the first.
    fn shortest_ns(&self) -> Ns {
        let total = |run: usize| self.runs.iter().map(|stage| stage[run]).sum();
        (0..self.count()).map(total).min().unwrap_or_else(|| self.first.iter().sum())
    }

    fn is_settled(&self) -> bool {
        let count = self.count();
        count >= RUNS_MAX || (count >= RUNS_MIN && self.runs.iter().all(|stage| spread(stage) <= SPREAD))
    }

    fn point(&self, stage: usize) -> LatencyPoint {
        let mut times = if self.count() == 0 { vec![self.first[stage]] } else { self.runs[stage].clone() };
        times.sort_unstable();
        let runs = times.len();
        let MeasuredSize { rows, length } = self.size;
        let (median_ns, p99_ns) = (times[runs / 2].max(1), times[(runs * 99).div_ceil(100) - 1].max(1));
        LatencyPoint {
            rows,
            length,
            median_ns,
            p99_ns: p99_ns.max(median_ns),
            runs: u32::try_from(runs).unwrap_or(u32::MAX),
        }
    }
}

/// Returns the interquartile range relative to the median, divided by the square root of the number of times.
fn spread(times: &[Ns]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = |part: usize| sorted[(sorted.len() * part / 4).min(sorted.len() - 1)] as f64;
    (at(3) - at(1)) / at(2).max(1.0) / (sorted.len() as f64).sqrt()
}

/// Measures a model of `stages` stages at `sizes`, which ascend.
///
/// `run` runs a batch and returns the time of each stage. `elapsed` returns the time since the start, which must not
/// exceed `budget` by much. The first run of each size performs setup and is not counted, unless there is no time for
/// another. Further runs cycle through the sizes, so that a slowdown of the machine affects all of them alike, until
/// each median is accurate or the time is over. Each size has its share of the time, so that the largest sizes cannot
/// take all of it; unused time is redistributed. If a size fails (a model may have a maximum length), it is omitted
/// together with all larger ones; so are sizes that would take too long.
///
/// # Errors
/// If not even the smallest batch runs, or `run` cancels.
pub fn measure(
    stages: usize,
    sizes: &[MeasuredSize],
    budget: Duration,
    elapsed: impl Fn() -> Duration,
    mut run: impl FnMut(MeasuredSize) -> Result<Vec<Ns>, Halt>,
) -> Result<CutTable, Halt> {
    let fits = |took_ns: f64| elapsed().as_secs_f64() + took_ns / 1e9 <= budget.as_secs_f64();
    let mut sampled: Vec<Sampled> = Vec::with_capacity(sizes.len());
    let mut failed: Vec<MeasuredSize> = Vec::new();
    for &size in sizes {
        // A size at least as large as one that failed would fail as well.
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
    let share = budget / u32::try_from(sampled.len().max(1)).unwrap_or(u32::MAX);
    // A share of nothing would not grow.
    let mut share = share.max(Duration::from_nanos(1));
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
        // All sizes have used their share or are accurate: distributes the time that some of them left.
        if !has_run {
            share *= 2;
        }
    }
    let points = |stage| sampled.iter().map(|one| one.point(stage)).collect();
    let scatter = scatter(&sampled);
    Ok(CutTable { at: Vec::new(), stages: (0..stages).map(points).collect(), scatter })
}

/// Returns the quantiles of all runs, in thousandths of the median of their stage and size. Combines all sizes, because
/// a single one has too few runs to estimate its tail.
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
    // Chooses the last quantile so that the mean of the slowest hundredth is preserved: with its maximum, a single very
    // slow run would represent half of that hundredth.
    let longest = &ratios[ratios.len() * (QUANTILES - 1) / QUANTILES..];
    let mean = longest.iter().copied().map(u64::from).sum::<u64>() / longest.len() as u64;
    let before = quantiles[QUANTILES - 1];
    quantiles[QUANTILES] =
        u32::try_from((2 * mean).saturating_sub(u64::from(before))).map_or(u32::MAX, |most| most.max(before));
    quantiles
}

/// Returns an upper bound on the duration of a run of this size, extrapolated from smaller ones.
fn predicted_ns(sampled: &[Sampled], size: MeasuredSize) -> Option<f64> {
    let smaller = sampled.iter().filter(|one| one.size.is_within(size));
    let scaled = smaller.map(|one| one.shortest_ns() as f64 * size.work() / one.size.work());
    scaled.min_by(f64::total_cmp)
}
