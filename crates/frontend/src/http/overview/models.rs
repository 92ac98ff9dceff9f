//! The models of the overview: their order, and what each shows.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use paternoster_observe::{BatchStats, LoadSample, ModelMemory, RecentLoad, Trends};
use paternoster_repository::{IndexEntry, ModelVersion};

use super::response::{Attention, BatchSize, History, ModelOverview};

/// Maximum number of model versions shown.
pub(super) const MOST_MODELS: usize = 512;

/// Maximum number of batch sizes shown per version; the most frequent ones are shown.
const MOST_SIZES: usize = 32;

/// Mean waiting time from which on a model needs attention.
const LONG_QUEUE_MS: f64 = 1_000.0;

/// Digits of a rate or a time.
const DIGITS: i32 = 4;

/// What is known of models beside their states.
pub(super) struct Sources<'s> {
    pub(super) loaded: &'s [Arc<ModelVersion>],
    pub(super) memory: &'s [ModelMemory],
    pub(super) trends: &'s Trends,
    /// Maximum length of a reason, in characters.
    pub(super) most_reason: usize,
}

/// Returns the models, those that need attention first, and how many there are beyond the limit.
pub(super) fn models(states: Vec<IndexEntry>, sources: &Sources<'_>) -> (Vec<ModelOverview>, usize) {
    let loaded: HashMap<(&str, i64), &Arc<ModelVersion>> = sources
        .loaded
        .iter()
        .map(|version| ((version.spec().name.as_str(), version.spec().version), version))
        .collect();
    let memory: HashMap<&str, &ModelMemory> =
        sources.memory.iter().map(|memory| (memory.name.as_str(), memory)).collect();
    let mut entries: Vec<_> = states
        .into_iter()
        .map(|entry| {
            let number = entry.version.parse().unwrap_or_default();
            let recent = sources.trends.recent(&entry.name, number);
            (attention(&entry, recent.as_ref()), number, recent, entry)
        })
        .collect();
    // A stable sort: states are by name and version.
    entries.sort_by_key(|(attention, .., entry)| (attention.is_none(), *attention, !entry.is_in_use()));
    let left_out = entries.len().saturating_sub(MOST_MODELS);
    entries.truncate(MOST_MODELS);
    let shown = entries.into_iter().map(|(attention, number, recent, entry)| {
        let samples = sources.trends.samples(&entry.name, number);
        let serving = loaded.get(&(entry.name.as_str(), number)).copied();
        let memory = memory.get(entry.name.as_str()).copied();
        let reason = cut(&entry.reason, sources.most_reason);
        let shown = ModelOverview { attention, reason, history: history(&samples), ..described(entry, serving) };
        with_memory(with_load(shown, recent.as_ref()), memory)
    });
    (shown.collect(), left_out)
}

fn attention(entry: &IndexEntry, recent: Option<&RecentLoad>) -> Option<Attention> {
    let fails = recent.is_some_and(|recent| recent.faults_per_second > 0.0);
    let waits = recent.and_then(|recent| recent.load.queue_ms).is_some_and(|queue_ms| queue_ms >= LONG_QUEUE_MS);
    match () {
        () if entry.is_failed() => Some(Attention::Unavailable),
        () if entry.is_in_use() && !entry.reason.is_empty() => Some(Attention::Reload),
        () if fails => Some(Attention::Failures),
        () if waits => Some(Attention::Queue),
        () => None,
    }
}

/// Returns what its state and its counters say of a version.
fn described(entry: IndexEntry, serving: Option<&Arc<ModelVersion>>) -> ModelOverview {
    let IndexEntry { name, version, state, .. } = entry;
    let shown = ModelOverview { name, version, state: state.into(), ..ModelOverview::default() };
    let Some(serving) = serving else { return shown };
    let read = serving.servable().stats().reading();
    let card_bytes = read.card_memory.iter().map(|card| card.bytes).sum();
    ModelOverview {
        policy: serving.servable().policy().into(),
        batch_sizes: sizes(read.stats.batch_stats),
        in_flight_requests: read.in_flight,
        pending_requests: read.pending,
        succeeded_requests: read.stats.inference_stats.success.count,
        failed_requests: read.stats.inference_stats.fail.count,
        card_memory_bytes: (!read.card_memory.is_empty()).then_some(card_bytes),
        ..shown
    }
}

fn with_load(shown: ModelOverview, recent: Option<&RecentLoad>) -> ModelOverview {
    let Some(recent) = recent else { return shown };
    ModelOverview {
        requests_per_second: Some(rounded(recent.load.requests_per_second)),
        failures_per_second: Some(rounded(recent.failures_per_second)),
        p50_ms: recent.load.p50_ms.map(rounded),
        p99_ms: recent.load.p99_ms.map(rounded),
        queue_ms: recent.load.queue_ms.map(rounded),
        compute_ms: recent.compute_ms.map(rounded),
        mean_batch_rows: recent.batch_rows.map(rounded),
        ..shown
    }
}

fn with_memory(shown: ModelOverview, memory: Option<&ModelMemory>) -> ModelOverview {
    ModelOverview {
        memory_estimated_bytes: memory.map(|memory| memory.estimated_bytes),
        memory_measured_bytes: memory.and_then(|memory| memory.measured_bytes),
        ..shown
    }
}

fn history(samples: &[LoadSample]) -> History {
    let times = |of: fn(&LoadSample) -> Option<f64>| samples.iter().map(|sample| of(sample).map(rounded)).collect();
    History {
        requests_per_second: samples.iter().map(|sample| rounded(sample.requests_per_second)).collect(),
        p50_ms: times(|sample| sample.p50_ms),
        p99_ms: times(|sample| sample.p99_ms),
        queue_ms: times(|sample| sample.queue_ms),
    }
}

/// Rounds to as many digits as anybody reads, so that the response stays short.
fn rounded(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let scale = 10_f64.powi(DIGITS - 1 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// Returns a text with at most as many characters, the last of which is `…` if some were cut.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// Returns the most frequent sizes, ascending.
fn sizes(mut ran: Vec<BatchStats>) -> Vec<BatchSize> {
    ran.sort_by_key(|size| Reverse(size.compute_infer.count));
    ran.truncate(MOST_SIZES);
    ran.sort_by_key(|size| size.batch_size);
    ran.iter().map(|size| BatchSize { rows: size.batch_size, executions: size.compute_infer.count }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use paternoster_observe::{FailureReason, LoadedVersion, ModelStats, RequestTimings, Tally};

    use super::*;

    fn entry(name: &str, version: &str, state: &'static str, reason: &str) -> IndexEntry {
        IndexEntry { name: name.to_owned(), version: version.to_owned(), state, reason: reason.to_owned() }
    }

    /// Returns the overview of models that are in these states and have these trends.
    fn shown(states: Vec<IndexEntry>, trends: &Trends) -> (Vec<ModelOverview>, usize) {
        models(states, &Sources { loaded: &[], memory: &[], trends, most_reason: 300 })
    }

    #[test]
    fn those_that_need_attention_come_first_and_those_that_rest_last() {
        let (mut trends, now) = (Trends::default(), Instant::now());
        let stats = [Arc::new(ModelStats::default()), Arc::new(ModelStats::default()), Arc::new(ModelStats::default())];
        let loaded = |name: &str, stats: &Arc<ModelStats>| {
            let (name, stats) = (name.to_owned(), Arc::clone(stats));
            LoadedVersion { name, version: 1, stats }
        };
        let all = || vec![loaded("cancels", &stats[0]), loaded("fails", &stats[1]), loaded("waits", &stats[2])];
        trends.sample(now, all());
        stats[0].failure(FailureReason::Canceled, 1);
        stats[1].failure(FailureReason::Backend, 1);
        let timings = RequestTimings { total_ns: 2_000_000_000, queue_ns: 1_500_000_000, ..RequestTimings::default() };
        stats[2].success(1, &timings);
        trends.sample(now + Duration::from_secs(1), all());

        let states = vec![
            entry("broken", "1", "UNAVAILABLE", "no protobuf"),
            entry("cancels", "1", "READY", ""),
            entry("fails", "1", "READY", ""),
            entry("gone", "1", "UNAVAILABLE", "unloaded"),
            entry("idle", "", "ON_DEMAND", ""),
            entry("loads", "1", "LOADING", ""),
            entry("old", "1", "READY", "the last reload failed: no protobuf"),
            entry("waits", "1", "READY", ""),
        ];
        let (models, left_out) = shown(states, &trends);
        let order: Vec<_> = models.iter().map(|model| (model.name.as_str(), model.attention)).collect();
        let expected = [
            ("broken", Some(Attention::Unavailable)),
            ("old", Some(Attention::Reload)),
            ("fails", Some(Attention::Failures)),
            ("waits", Some(Attention::Queue)),
            ("cancels", None),
            ("loads", None),
            ("gone", None),
            ("idle", None),
        ];
        assert_eq!((order, left_out), (expected.to_vec(), 0));
        assert_eq!((models[3].requests_per_second, models[3].queue_ms), (Some(1.0), Some(1500.0)));
        assert_eq!(models[3].history.requests_per_second, [1.0]);
        assert_eq!((models[2].failures_per_second, models[2].p50_ms), (Some(1.0), None));
    }

    #[test]
    fn models_and_reasons_beyond_the_bounds_are_left_out() {
        let broken = |number: usize| entry(&format!("m{number}"), "1", "UNAVAILABLE", &"ü".repeat(1000));
        let mut states: Vec<IndexEntry> = (0..MOST_MODELS + 7).map(broken).collect();
        states[0] = entry("a", "1", "READY", "");
        let (models, left_out) = shown(states, &Trends::default());
        assert_eq!((models.len(), left_out), (MOST_MODELS, 7));
        assert!(models.iter().all(|model| model.reason == format!("{}…", "ü".repeat(299))), "the one that serves last");
        assert_eq!(cut("üü", 2), "üü");
    }

    #[test]
    fn the_sizes_that_ran_most_often_are_shown_in_order() {
        let ran = (1..=100).map(|rows| BatchStats {
            batch_size: rows,
            compute_infer: Tally { count: if rows % 3 == 0 { 100 } else { 1 }, ns: 1 },
            ..BatchStats::default()
        });
        let shown = sizes(ran.collect());
        assert_eq!(shown.len(), MOST_SIZES);
        assert_eq!(shown[0], BatchSize { rows: 3, executions: 100 });
        assert!(shown.iter().all(|size| size.rows % 3 == 0) && shown.is_sorted_by_key(|size| size.rows));
    }

    #[test]
    fn figures_have_four_digits() {
        let rounds = [(0.0, 0.0), (0.000_123_456, 0.000_123_5), (9_999.6, 10_000.0), (123_456.7, 123_500.0)];
        for (value, expected) in rounds {
            assert_eq!(rounded(value), expected, "{value}");
        }
        assert_eq!(serde_json::to_string(&rounded(1.0 / 3.0)).expect("a number"), "0.3333");
    }
}
