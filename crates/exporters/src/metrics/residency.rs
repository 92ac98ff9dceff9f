//! Metrics of models that are loaded on demand, of the memory of models, and of what is kept of them across restarts.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use paternoster_observe::{ModelMemory, RepositoryStats, ResidencyReading, ResidencyStats, StartCacheReading};
use prometheus::{
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{
    families::{Family, counter, gauge},
    samples::{family_of, labels, number, single},
};

const HITS: Family = counter("paternoster_on_demand_hits_total", "Requests that found their model loaded");
const MISSES: Family = counter("paternoster_on_demand_misses_total", "Requests that found their model not loaded");
const LOADS: Family = counter("paternoster_on_demand_loads_total", "Loads that requests began");
const FAILED_LOADS: Family =
    counter("paternoster_on_demand_failed_loads_total", "Loads that requests began and failed");
const WAITING: Family = gauge("paternoster_on_demand_waiting_requests", "Requests that wait for their model's load");
const REFUSED: Family =
    counter("paternoster_on_demand_refused_total", "Requests refused because their model was not loaded, by reason");
const UNLOADED: Family =
    counter("paternoster_on_demand_unloaded_total", "Models unloaded without a client's request, by reason");
const MEMORY: Family = gauge("paternoster_models_memory_bytes", "Bytes that models take or have reserved");
const MEMORY_LIMIT: Family = gauge("paternoster_models_memory_bytes_limit", "Most bytes that models may take");
const ESTIMATED: Family =
    gauge("paternoster_model_memory_estimated_bytes", "Bytes that the model takes as estimated from its files");
const MEASURED: Family =
    gauge("paternoster_model_memory_measured_bytes", "Bytes that the model takes as measured when it was loaded");

const START_CACHE_HITS: Family =
    counter("paternoster_start_cache_hits_total", "Programs that opened in a process of their own at an earlier load");
const START_CACHE_MISSES: Family =
    counter("paternoster_start_cache_misses_total", "Programs that were not known to open in a process of their own");

/// Label of families by reason.
const REASON: &str = "reason";

/// A counter with the value of its label.
type Counted = (&'static str, fn(&ResidencyStats) -> &AtomicU64);

const REFUSALS: [Counted; 4] = [
    ("failed", |stats| &stats.refused_failed),
    ("memory", |stats| &stats.refused_memory),
    ("timeout", |stats| &stats.refused_time),
    ("waiting", |stats| &stats.refused_waiting),
];

const UNLOADS: [Counted; 2] = [("idle", |stats| &stats.unloaded_idle), ("memory", |stats| &stats.unloaded_for_room)];

type Read = Box<dyn Fn() -> ResidencyReading + Send + Sync>;

/// Reads them when metrics are collected. What does not apply to the server's mode is left out.
pub(super) struct ResidencyCollector {
    stats: Arc<RepositoryStats>,
    read: Read,
    descs: Vec<Desc>,
}

impl ResidencyCollector {
    pub(super) fn new(stats: Arc<RepositoryStats>, read: Read) -> Result<Self, prometheus::Error> {
        let plain = [&HITS, &MISSES, &LOADS, &FAILED_LOADS, &WAITING, &MEMORY, &MEMORY_LIMIT];
        let kept = [&START_CACHE_HITS, &START_CACHE_MISSES];
        let plain = plain.into_iter().chain(kept).map(|family| (family, None));
        let labelled = [
            (&REFUSED, Some(REASON)),
            (&UNLOADED, Some(REASON)),
            (&ESTIMATED, Some("model")),
            (&MEASURED, Some("model")),
        ];
        let descs = plain.chain(labelled).map(|(family, label)| {
            let labels = label.iter().map(|&label| label.to_owned()).collect();
            Desc::new(family.name.to_owned(), family.help.to_owned(), labels, Default::default())
        });
        Ok(Self { descs: descs.collect::<Result<_, _>>()?, stats, read })
    }

    fn on_demand(&self, read: &ResidencyReading) -> Vec<MetricFamily> {
        let stats = &self.stats.residency;
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let by_reason = |family: &Family, counters: &[Counted]| {
            let sample =
                |(reason, counter): &Counted| number(labels(&[(REASON, reason)]), family.kind, value(counter(stats)));
            family_of(family, counters.iter().map(sample).collect())
        };
        vec![
            single(&HITS, read.hits as f64),
            single(&MISSES, value(&stats.misses)),
            single(&LOADS, value(&stats.loads)),
            single(&FAILED_LOADS, value(&stats.failed_loads)),
            single(&WAITING, read.waiting as f64),
            by_reason(&REFUSED, &REFUSALS),
            by_reason(&UNLOADED, &UNLOADS),
        ]
    }
}

impl Collector for ResidencyCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let read = (self.read)();
        let mut families = if read.is_on_demand { self.on_demand(&read) } else { Vec::new() };
        if let Some((used, limit)) = read.memory {
            families.push(single(&MEMORY, used as f64));
            families.extend((limit < usize::MAX).then(|| single(&MEMORY_LIMIT, limit as f64)));
        }
        let of_models = |family: &Family, bytes: fn(&ModelMemory) -> Option<usize>| {
            let samples = read
                .models
                .iter()
                .filter_map(|model| Some(number(labels(&[("model", &model.name)]), family.kind, bytes(model)? as f64)));
            family_of(family, samples.collect())
        };
        families.push(of_models(&ESTIMATED, |model| Some(model.estimated_bytes)));
        families.push(of_models(&MEASURED, |model| model.measured_bytes));
        if let Some(StartCacheReading { hits, misses }) = read.start_cache {
            families.extend([single(&START_CACHE_HITS, hits as f64), single(&START_CACHE_MISSES, misses as f64)]);
        }
        families
    }
}

impl fmt::Debug for ResidencyCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ResidencyCollector").field("stats", &self.stats).finish_non_exhaustive()
    }
}
