//! Statistics, timelines, traces, logging and budgets. Any crate may use it but `batching`.
//!
//! [`ObservedRequest`] is the record of one request: each event of its life is reported there, and goes to statistics,
//! timeline and trace. [`RequestEnd`] says how it ended, in the words of all three, and which counter that is: a
//! client's fault has one of its own, and a message that cannot be read is never counted here. [`ModelStats`] counts
//! the requests of a loaded version, [`PoolStats`] the scheduler's work, [`RepositoryStats`] the repository's disk
//! accesses and loads on demand. [`Trends`] keeps the load of the last minute. [`timeline`] records requests and tasks
//! one by one, [`trace`] the course of single requests, and [`Logging`] installs the log and changes its settings at
//! run time. [`budget`] limits what all clients hold together; [`Charge`] is the account of one request and what is
//! derived from it. This crate makes no decisions, and does not know the wire, the repository or the executor.
//! `exporters` passes its counters on as metrics, and traces as spans.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod budget;
mod charge;
mod end;
mod histogram;
mod hit;
mod latencies;
mod log_fields;
mod log_format;
mod logging;
mod machine;
mod pool;
mod repository;
mod request;
mod snapshot;
mod stages;
mod stats;
mod steps;
pub mod timeline;
mod timings;
pub mod trace;
mod trends;

pub use charge::{Charge, MAX_STEPS_WITHIN, RequestBudgets, TooManySteps};
pub use end::{FailureCounts, FailureReason, RequestEnd};
pub use histogram::Histogram;
pub use hit::ObservedHit;
pub use latencies::{FIRST_RESPONSE_HISTOGRAM, LatencyMetrics, LatencyReading, SummaryReading, VersionLatencies};
pub use log_format::LogFormat;
pub use logging::{LogOptions, LogSettingError, LogStartError, LogValue, Logging, MAX_VERBOSE_LEVEL};
pub use machine::{Machine, MachineMemory, instructions, machine, memory_bytes, open_files_limit};
pub use pool::{LaneCounts, PoolSnapshot, PoolStats, ResourceReading};
pub use repository::{ModelMemory, RepositoryStats, ResidencyReading, ResidencyStats, StartCacheReading};
pub use request::{ObservedRequest, ObservedVersion, StepOf};
pub use snapshot::{BatchStats, InferenceStats, ResponseStats, StatsSnapshot, Tally};
pub use stages::{MetaCounters, StageReading, StageStats};
pub use stats::{CardMemory, LoadedVersion, ModelStats, ShadowResult, TokenCounts, VersionReading};
pub use steps::ObservedSteps;
pub use timings::{ExecutionTimings, RequestTimings, StepTimings, TaskRun};
pub use trends::{LoadSample, MOST_TRENDS, RECENT_SAMPLES, RecentLoad, TREND_SAMPLES, Trends};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
