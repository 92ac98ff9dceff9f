//! Counters of tracing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of traces and spans.
#[derive(Debug, Default)]
pub struct TraceStats {
    /// Traced requests.
    sampled: AtomicU64,
    /// Traces that were not written to a file, because too many were waiting or writing failed.
    dropped: AtomicU64,
    /// Spans that were not delivered to the collector, because too many were waiting or an export failed.
    dropped_spans: AtomicU64,
}

impl TraceStats {
    pub(super) fn sampled(&self) {
        self.sampled.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, traces: u64) {
        self.dropped.fetch_add(traces, Ordering::Relaxed);
    }

    /// Counts spans that were not delivered.
    pub fn dropped_spans(&self, spans: u64) {
        self.dropped_spans.fetch_add(spans, Ordering::Relaxed);
    }

    /// Returns the number of lost spans.
    pub fn spans_dropped(&self) -> u64 {
        self.dropped_spans.load(Ordering::Relaxed)
    }

    /// Returns the number of traced requests.
    pub fn sampled_requests(&self) -> u64 {
        self.sampled.load(Ordering::Relaxed)
    }

    /// Returns the number of lost traces.
    pub fn dropped_traces(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
