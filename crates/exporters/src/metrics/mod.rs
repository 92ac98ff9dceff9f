//! Prometheus metrics, computed from the counters of the loaded versions at every scrape.
//!
//! Nothing is kept between scrapes: the series of an unloaded version disappear with it, and every loaded version has
//! all its series from the start. Families named `nv_…` are Triton's, with its names, types and labels; ours start with
//! `paternoster_`. A family without samples (no model loaded) is omitted.

mod families;
mod machine;
mod residency;
mod resources;
mod samples;

pub use machine::MachineMetrics;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use paternoster_observe::{
    Histogram, LoadedVersion, PoolStats, RepositoryStats, ResidencyReading, ResourceReading, ShadowResult,
    StageReading, VersionReading, budget::Budgets, trace::TraceStats,
};
use prometheus::{
    Encoder, Registry, TextEncoder,
    core::{Collector, Desc},
    proto::{LabelPair, MetricFamily, MetricType},
};

use self::{
    families::{
        BATCH_ROWS, CACHE_BYTES, CACHE_LIMIT, CARD_MEMORY, CLIENT_WAITS, CLIENTS, FAILED_SCANS, FAILURES,
        FIRST_CACHE_SUMMARY, FIRST_RESPONSE, Family, LOAD_DURATION, META, PER_BUDGET, PER_CACHED, PER_POOL, PER_PORT,
        PER_STAGE, PER_TRACER, PER_VERSION, PORTS, PerTracer, QUEUE_DURATION, REASONS, REJECTION_TIME,
        REQUEST_DURATION, SHADOWED, STAGE_BATCH_SIZE, SUMMARIES, TOKENS, seconds,
    },
    machine::MachineCollector,
    residency::ResidencyCollector,
    resources::ResourceCollector,
    samples::{distribution, family_of, label, labels, number, quantiles, single},
};
/// Returns the versions that are loaded now.
type LoadedVersions = Box<dyn Fn() -> Vec<LoadedVersion> + Send + Sync>;

/// The content of the metrics endpoint.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// Creates metrics of the versions that `loaded` returns at each scrape, of one pool, and of the budgets.
    ///
    /// # Errors
    /// If two families have the same name.
    pub fn new(
        loaded: impl Fn() -> Vec<LoadedVersion> + Send + Sync + 'static,
        pool: Arc<PoolStats>,
        budgets: Budgets,
    ) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(ServerCollector::new(Box::new(loaded), pool, budgets)?))?;
        Ok(Self { registry })
    }

    /// Adds the counters of a model repository, and what `residency` returns at each scrape.
    ///
    /// # Errors
    /// If they have been added already.
    pub fn with_repository(
        self,
        stats: Arc<RepositoryStats>,
        residency: impl Fn() -> ResidencyReading + Send + Sync + 'static,
    ) -> Result<Self, prometheus::Error> {
        self.registry.register(Box::new(ResidencyCollector::new(Arc::clone(&stats), Box::new(residency))?))?;
        let Family { name, help, .. } = FAILED_SCANS;
        let desc = Desc::new(name.to_owned(), help.to_owned(), Vec::new(), Default::default())?;
        self.registry.register(Box::new(RepositoryCollector { stats, desc }))?;
        Ok(self)
    }

    /// Adds the bytes that the response cache takes, and those that it may take.
    ///
    /// # Errors
    /// If they have been added already.
    pub fn with_response_cache(
        self,
        bytes: impl Fn() -> u64 + Send + Sync + 'static,
        limit_bytes: u64,
    ) -> Result<Self, prometheus::Error> {
        let bytes = Number { family: CACHE_BYTES, value: Box::new(move || bytes() as f64) };
        let limit = Number { family: CACHE_LIMIT, value: Box::new(move || limit_bytes as f64) };
        self.with_numbers(vec![bytes, limit])
    }

    /// Adds how many clients have calls in progress, and how many calls have waited for the limit of their client.
    ///
    /// # Errors
    /// If they have been added already.
    pub fn with_clients(
        self,
        present: impl Fn() -> usize + Send + Sync + 'static,
        waits: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Self, prometheus::Error> {
        let present = Number { family: CLIENTS, value: Box::new(move || present() as f64) };
        let waits = Number { family: CLIENT_WAITS, value: Box::new(move || waits() as f64) };
        self.with_numbers(vec![present, waits])
    }

    fn with_numbers(self, numbers: Vec<Number>) -> Result<Self, prometheus::Error> {
        let descs = numbers.iter().map(|Number { family: Family { name, help, .. }, .. }| {
            Desc::new((*name).to_owned(), (*help).to_owned(), Vec::new(), Default::default())
        });
        let descs = descs.collect::<Result<_, _>>()?;
        self.registry.register(Box::new(NumberCollector { numbers, descs }))?;
        Ok(self)
    }

    /// Adds the counters of tracing.
    ///
    /// # Errors
    /// If they have been added already.
    pub fn with_traces(self, stats: &Arc<TraceStats>) -> Result<Self, prometheus::Error> {
        let descs = PER_TRACER.iter().map(|PerTracer { family: Family { name, help, .. }, .. }| {
            Desc::new((*name).to_owned(), (*help).to_owned(), Vec::new(), Default::default())
        });
        let descs = descs.collect::<Result<_, _>>()?;
        self.registry.register(Box::new(TraceCollector { stats: Arc::clone(stats), descs }))?;
        Ok(self)
    }

    /// Adds the resources of the rate limiter, which `read` returns at each scrape.
    ///
    /// # Errors
    /// If they have been added already.
    pub fn with_rate_limiter(
        self,
        read: impl Fn() -> Vec<ResourceReading> + Send + Sync + 'static,
    ) -> Result<Self, prometheus::Error> {
        self.registry.register(Box::new(ResourceCollector::new(Box::new(read))?))?;
        Ok(self)
    }

    /// Adds the machine's metrics.
    ///
    /// # Errors
    /// If they have been added already.
    pub fn with_machine(self, shown: MachineMetrics) -> Result<Self, prometheus::Error> {
        self.registry.register(Box::new(MachineCollector::new(shown)?))?;
        Ok(self)
    }

    /// Returns the current metrics in the text exposition format, version 0.0.4.
    ///
    /// # Errors
    /// If a family violates the format.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::with_capacity(16 << 10);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

/// Computes all families when metrics are collected.
struct ServerCollector {
    loaded: LoadedVersions,
    pool: Arc<PoolStats>,
    budgets: Budgets,
    descs: Vec<Desc>,
}

impl fmt::Debug for ServerCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ServerCollector").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl ServerCollector {
    fn new(loaded: LoadedVersions, pool: Arc<PoolStats>, budgets: Budgets) -> Result<Self, prometheus::Error> {
        let per_version = PER_VERSION.iter().chain(&PER_CACHED).map(|one| &one.family);
        let per_version = per_version.chain(META.iter().map(|one| &one.family));
        let per_version = per_version.chain(TOKENS.iter().map(|one| &one.family));
        let per_version = per_version.chain([&LOAD_DURATION]).map(|family| (family, &["model", "version"][..]));
        let per_stage = PER_STAGE.iter().map(|one| &one.family).chain([&STAGE_BATCH_SIZE]);
        let per_stage = per_stage.map(|family| (family, &["model", "stage", "version"][..]));
        let card_memory = [(&CARD_MEMORY, &["gpu_uuid", "model", "version"][..])];
        let failures = [(&FAILURES, &["model", "reason", "version"][..])];
        let shadowed = [(&SHADOWED, &["model", "result", "version"][..])];
        let histograms =
            [&REQUEST_DURATION, &QUEUE_DURATION, &BATCH_ROWS, &FIRST_RESPONSE].into_iter().chain(&SUMMARIES);
        let histograms = histograms.map(|family| (family, &["model", "version"][..]));
        let per_pool = PER_POOL.iter().map(|one| (&one.family, &[][..]));
        let rejections = [(&REJECTION_TIME, &[][..])];
        let per_budget = PER_BUDGET.iter().flat_map(|one| [&one.used, &one.limit, &one.refused]);
        let per_budget = per_budget.map(|family| (family, &[][..]));
        let per_port = PER_PORT.iter().map(|one| (&one.family, &["port"][..]));

        let of_versions =
            per_version.chain(per_stage).chain(card_memory).chain(failures).chain(shadowed).chain(histograms);
        let of_the_server = per_pool.chain(rejections).chain(per_budget).chain(per_port);
        let descs = of_versions.chain(of_the_server).map(|(family, labels): (&Family, &[&str])| {
            let labels = labels.iter().map(|&label| label.to_owned()).collect();
            Desc::new(family.name.to_owned(), family.help.to_owned(), labels, Default::default())
        });
        Ok(Self { descs: descs.collect::<Result<_, _>>()?, loaded, pool, budgets })
    }

    fn version_families(&self) -> Vec<MetricFamily> {
        let read: Vec<(Vec<LabelPair>, VersionReading)> = (self.loaded)()
            .into_iter()
            .map(|loaded| {
                let version = loaded.version.to_string();
                (labels(&[("model", &loaded.name), ("version", &version)]), loaded.stats.reading())
            })
            .collect();

        let mut families = Vec::new();
        let of_all = PER_VERSION.iter().map(|one| (one, false));
        for (one, is_of_cached) in of_all.chain(PER_CACHED.iter().map(|one| (one, true))) {
            let kind = one.family.kind;
            let shown = read.iter().filter(|(_, read)| {
                (read.latencies.counters || !one.is_latency()) && (read.is_cached || !is_of_cached)
            });
            let samples = shown.map(|(labels, read)| number(labels.clone(), kind, (one.value)(read) as f64));
            families.push(family_of(&one.family, samples.collect()));
        }
        for one in &TOKENS {
            let counted = read.iter().filter_map(|(labels, read)| Some((labels, read.tokens?)));
            let samples =
                counted.map(|(labels, read)| number(labels.clone(), one.family.kind, (one.value)(&read) as f64));
            families.push(family_of(&one.family, samples.collect()));
        }
        let loads = read
            .iter()
            .filter_map(|(labels, read)| Some(number(labels.clone(), LOAD_DURATION.kind, seconds(read.load_ns?))));
        families.push(family_of(&LOAD_DURATION, loads.collect()));
        let card_memory = read.iter().flat_map(|(labels, read)| {
            read.card_memory.iter().map(move |memory| {
                let labels = [label("gpu_uuid", &memory.uuid)].into_iter().chain(labels.iter().cloned()).collect();
                number(labels, CARD_MEMORY.kind, memory.bytes as f64)
            })
        });
        families.push(family_of(&CARD_MEMORY, card_memory.collect()));
        for (at, family) in SUMMARIES.iter().enumerate() {
            let of_family = |(labels, read): &(Vec<LabelPair>, VersionReading)| {
                if at >= FIRST_CACHE_SUMMARY && !read.is_cached {
                    return None;
                }
                read.latencies.summaries.get(at).map(|read| quantiles(labels, read))
            };
            families.push(family_of(family, read.iter().filter_map(of_family).collect()));
        }
        let first = read.iter().filter_map(|(labels, read)| {
            read.latencies.first_response.as_ref().map(|read| distribution(labels, read, |ms| ms))
        });
        families.push(family_of(&FIRST_RESPONSE, first.collect()));

        let failures = read.iter().flat_map(|(labels, read)| {
            REASONS.iter().map(move |reason| {
                let mut labels = labels.clone();
                labels.insert(1, label("reason", reason.label));
                number(labels, MetricType::COUNTER, (reason.value)(read) as f64)
            })
        });
        families.push(family_of(&FAILURES, failures.collect()));

        let shadowed = read.iter().flat_map(|(labels, read)| {
            let counts = read.shadow.into_iter().flatten().zip(ShadowResult::ALL);
            counts.map(move |(count, result)| {
                let mut labels = labels.clone();
                labels.insert(1, label("result", result.name()));
                number(labels, SHADOWED.kind, count as f64)
            })
        });
        families.push(family_of(&SHADOWED, shadowed.collect()));

        let request = read.iter().map(|(labels, read)| distribution(labels, &read.request_duration, seconds));
        families.push(family_of(&REQUEST_DURATION, request.collect()));
        let queue = read.iter().map(|(labels, read)| distribution(labels, &read.queue_duration, seconds));
        families.push(family_of(&QUEUE_DURATION, queue.collect()));
        let rows = read.iter().map(|(labels, read)| distribution(labels, &rows_of(read), |rows| rows as f64));
        families.push(family_of(&BATCH_ROWS, rows.collect()));
        families.extend(stage_families(&read));
        families
    }

    fn pool_families(&self) -> Vec<MetricFamily> {
        let read = self.pool.snapshot();
        let mut families: Vec<MetricFamily> =
            PER_POOL.iter().map(|one| single(&one.family, (one.value)(&read))).collect();
        families.push(family_of(&REJECTION_TIME, vec![distribution(&[], &read.rejections, seconds)]));
        families
    }

    fn budget_families(&self) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        for one in &PER_BUDGET {
            let budget = (one.budget)(&self.budgets);
            families.push(single(&one.used, budget.used() as f64));
            families.push(single(&one.limit, budget.capacity() as f64));
            families.push(single(&one.refused, budget.refused() as f64));
        }
        for one in &PER_PORT {
            let samples = PORTS.iter().map(|port| {
                let value = (one.value)((port.budget)(&self.budgets));
                number(labels(&[("port", port.label)]), one.family.kind, value)
            });
            families.push(family_of(&one.family, samples.collect()));
        }
        families
    }
}

impl Collector for ServerCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.version_families();
        families.extend(self.pool_families());
        families.extend(self.budget_families());
        families
    }
}

/// Reads the repository's counters when metrics are collected.
struct RepositoryCollector {
    stats: Arc<RepositoryStats>,
    desc: Desc,
}

impl Collector for RepositoryCollector {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        vec![single(&FAILED_SCANS, self.stats.failed_scans.load(Ordering::Relaxed) as f64)]
    }
}

/// A family of one number.
struct Number {
    family: Family,
    value: Box<dyn Fn() -> f64 + Send + Sync>,
}

/// Reads numbers when metrics are collected.
struct NumberCollector {
    numbers: Vec<Number>,
    descs: Vec<Desc>,
}

impl Collector for NumberCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.numbers.iter().map(|number| single(&number.family, (number.value)())).collect()
    }
}

/// Reads the counters of tracing when metrics are collected.
struct TraceCollector {
    stats: Arc<TraceStats>,
    descs: Vec<Desc>,
}

impl Collector for TraceCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        PER_TRACER.iter().map(|one| single(&one.family, (one.value)(&self.stats) as f64)).collect()
    }
}

/// Returns the families of stages. A version with one stage has none, because they would repeat its totals.
fn stage_families(read: &[(Vec<LabelPair>, VersionReading)]) -> Vec<MetricFamily> {
    let mut families = Vec::new();
    for one in &META {
        let cut = read.iter().filter(|(_, read)| !read.stages.is_empty());
        let samples = cut.map(|(labels, read)| number(labels.clone(), one.family.kind, (one.value)(&read.meta) as f64));
        families.push(family_of(&one.family, samples.collect()));
    }

    let stages: Vec<(Vec<LabelPair>, &StageReading)> = read
        .iter()
        .flat_map(|(labels, read)| {
            read.stages.iter().enumerate().map(move |(stage, read)| {
                let mut labels = labels.clone();
                labels.insert(1, label("stage", &stage.to_string()));
                (labels, read)
            })
        })
        .collect();
    for one in &PER_STAGE {
        let samples = stages.iter().map(|(labels, read)| number(labels.clone(), one.family.kind, (one.value)(read)));
        families.push(family_of(&one.family, samples.collect()));
    }
    let sizes = stages.iter().map(|(labels, read)| {
        let mut sizes = Histogram::of_rows();
        for &(rows, tasks) in &read.batch_sizes {
            sizes.record_many(u64::from(rows), tasks);
        }
        distribution(labels, &sizes, |rows| rows as f64)
    });
    families.push(family_of(&STAGE_BATCH_SIZE, sizes.collect()));
    families
}

fn rows_of(read: &VersionReading) -> Histogram {
    let mut rows = Histogram::of_rows();
    for batch in &read.stats.batch_stats {
        rows.record_many(batch.batch_size, batch.compute_infer.count);
    }
    rows
}

#[cfg(test)]
mod tests;
