//! How the records of `observe` reach other programs: Prometheus metrics, and spans over OTLP.
//!
//! [`Metrics`] renders the counters as Prometheus text at scrape time, with those of the machine and of its CUDA cards
//! ([`WatchedCards`]). [`SpanExport`] sends the traces of requests to a collector; a
//! [`Tracer`](paternoster_observe::trace::Tracer) takes it as its destination. Only what serves uses this crate, since
//! its dependencies take long to compile. It makes no decisions, counts nothing but spans that are lost, and does not
//! know the wire, the repository or the executor; the list of loaded versions is passed in as a closure.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod cards;
mod metrics;
mod otlp;

pub use cards::WatchedCards;
pub use metrics::{MachineMetrics, Metrics};
pub use otlp::{ExportError, OtlpOptions, SpanExport, collector_url};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
