//! Statistics, Prometheus metrics and logging. May be used anywhere but in `batching`.

mod stats;

pub use stats::{ExecutionTimings, FailureReason, ModelStats, RequestTimings};
