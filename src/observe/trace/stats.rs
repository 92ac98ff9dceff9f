//! Counters of tracing.

use std::sync::atomic::{AtomicU64, Ordering};

/// What became of traces.
#[derive(Debug, Default)]
pub struct TraceStats {
    /// Requests that were traced.
    sampled: AtomicU64,
    /// Traces that no file holds: too many waited to be written, or the file could not be.
    dropped: AtomicU64,
    /// Spans that no collector has: too many waited to be exported, or an export failed.
    dropped_spans: AtomicU64,
}

impl TraceStats {
    pub(super) fn sampled(&self) {
        self.sampled.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, traces: u64) {
        self.dropped.fetch_add(traces, Ordering::Relaxed);
    }

    pub(super) fn dropped_spans(&self, spans: u64) {
        self.dropped_spans.fetch_add(spans, Ordering::Relaxed);
    }

    /// Spans that were lost on their way to the collector so far.
    pub fn spans_dropped(&self) -> u64 {
        self.dropped_spans.load(Ordering::Relaxed)
    }

    /// Requests that were traced so far.
    pub fn sampled_requests(&self) -> u64 {
        self.sampled.load(Ordering::Relaxed)
    }

    /// Traces that were lost on their way to a file so far.
    pub fn dropped_traces(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
