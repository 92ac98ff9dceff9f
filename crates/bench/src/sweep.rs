//! Sweeps the parameters of `window` to find its best configuration per load, the baseline that other policies are
//! compared with.

use std::sync::Arc;

use crate::{
    checked_requests::CheckedRequests,
    compare::LoadPoint,
    load::{self, LoadFigures, Timing},
    local::{Local, LocalError, Variant, VariantError},
};

const MAX_BATCHES: [u32; 5] = [4, 8, 16, 32, 64];
const DELAYS_US: [u64; 3] = [0, 1_000, 10_000];
const BUCKETS: [u32; 3] = [1, 10, 40];

/// Returns all `window` variants of the sweep: largest batches from 1 to 64, queue delays from 0, and length buckets if
/// lengths vary. With a largest batch of one row, delay and buckets have no effect and are not varied.
///
/// # Errors
/// Only if `window` lost one of these knobs.
pub fn windows(lengths_vary: bool) -> Result<Vec<Variant>, VariantError> {
    let buckets: &[Option<u32>] = if lengths_vary { &BUCKETS.map(Some) } else { &[None] };
    let mut texts = vec!["window, max_batch_size: 1".to_owned()];
    for rows in MAX_BATCHES {
        for delay_us in DELAYS_US {
            for width in buckets {
                let bucket = width.map_or(String::new(), |width| format!(", bucket_width: {width}"));
                texts.push(format!("window: {{ max_queue_delay_us: {delay_us}{bucket} }}, max_batch_size: {rows}"));
            }
        }
    }
    texts.iter().map(|text| Variant::parse(text)).collect()
}

/// Runs every variant once at every load. Returns for each load the variant with the lowest mean latency among those
/// whose throughput is at least 98 % of the highest. Calls `done` after each run.
///
/// # Errors
/// If a variant cannot be loaded.
pub async fn best(
    local: &Local,
    windows: &[Variant],
    work: &Arc<CheckedRequests>,
    points: &[LoadPoint],
    timing: Timing,
    seed: u64,
    mut done: impl FnMut(),
) -> Result<Vec<Variant>, LocalError> {
    let mut runs: Vec<Vec<LoadFigures>> = vec![Vec::new(); points.len()];
    for window in windows {
        let loaded = local.load(Some(window)).await?;
        for (figures, point) in runs.iter_mut().zip(points) {
            figures.push(load::run(&loaded.target, work, &point.load, timing, seed).await);
            done();
        }
        let variant = window.to_string();
        loaded.unload().await.map_err(|source| LocalError::Load { variant, source })?;
    }
    Ok(runs.iter().filter_map(|figures| windows.get(least(figures)?).cloned()).collect())
}

/// Returns the index of the figures with the lowest mean latency among those that keep up with the highest throughput.
fn least(figures: &[LoadFigures]) -> Option<usize> {
    let most = figures.iter().map(LoadFigures::throughput).fold(0.0, f64::max);
    let keeping_up = (0..figures.len()).filter(|&at| figures[at].throughput() >= 0.98 * most);
    keeping_up.min_by(|&one, &other| {
        let mean = |at: usize| figures[at].latencies.mean_ns();
        mean(one).total_cmp(&mean(other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(count: u64, latency_ns: u64) -> LoadFigures {
        let mut figures = LoadFigures { seconds: 1.0, ..LoadFigures::default() };
        (0..count).for_each(|_| figures.latencies.record(latency_ns));
        figures
    }

    #[test]
    fn the_sweep_has_all_combinations_once() {
        let names = |vary| windows(vary).expect("they are windows").iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(false).len(), 1 + 5 * 3);
        assert_eq!(names(true).len(), 1 + 5 * 3 * 3);
        assert!(
            names(true).contains(&"window: { max_queue_delay_us: 0, bucket_width: 10 }, max_batch_size: 32".to_owned())
        );
    }

    #[test]
    fn the_best_is_the_fastest_of_those_that_keep_up() {
        assert_eq!(least(&[figures(100, 5000), figures(99, 3000), figures(50, 100)]), Some(1));
        assert_eq!(least(&[]), None);
    }
}
