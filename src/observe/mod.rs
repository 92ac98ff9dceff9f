//! Statistics, Prometheus metrics and logging. May be used anywhere but in `batching`.
//!
//! Here lives what the server says about itself: [`ModelStats`] counts what happens to one loaded version,
//! [`PoolStats`] what the scheduler does, [`RepositoryStats`] what the repository's disk does, [`Metrics`] renders them
//! as Prometheus text at scrape time, [`timeline`] records requests and tasks one by one, [`trace`] what happens to
//! single requests, and [`Logging`] installs the log and changes its settings while the server runs. Here must not
//! live: anything that decides, and anything that knows the wire, the repository or the executor. The list of loaded
//! versions comes in as a closure.

mod cards;
mod histogram;
mod latencies;
mod log_fields;
mod log_format;
mod logging;
mod machine;
mod metrics;
mod pool;
mod repository;
mod snapshot;
mod stages;
mod stats;
pub mod timeline;
mod timings;
pub mod trace;

pub use cards::WatchedCards;
pub use histogram::Histogram;
pub use latencies::{FirstResponseReading, LatencyMetrics, LatencyReading, SummaryReading, VersionLatencies};
pub use log_format::LogFormat;
pub use logging::{LogOptions, LogSettingError, LogStartError, LogValue, Logging, MAX_VERBOSE_LEVEL};
pub use machine::{machine, memory_bytes, open_files_limit};
pub use metrics::{FIRST_RESPONSE_HISTOGRAM, LoadedVersion, MachineMetrics, Metrics};
pub use pool::{LaneCounts, PoolSnapshot, PoolStats};
pub use repository::RepositoryStats;
pub use snapshot::{BatchStats, InferenceStats, ResponseStats, StatsSnapshot, Tally};
pub use stages::{MetaCounters, StageReading, StageStats};
pub use stats::{FailureReason, ModelStats, VersionReading};
pub use timings::{ExecutionTimings, RequestTimings};
