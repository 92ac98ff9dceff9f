//! Bounds the number of waiting spans, and counts lost ones.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use opentelemetry::Context;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor},
};
use paternoster_observe::trace::TraceStats;
use tracing::{info, warn};

/// Spans that have not been exported, including the batch being exported.
#[derive(Debug)]
pub(super) struct Queue {
    most: usize,
    waiting: AtomicUsize,
    stats: Arc<TraceStats>,
}

impl Queue {
    pub(super) fn new(most: usize, stats: Arc<TraceStats>) -> Self {
        Self { most, waiting: AtomicUsize::new(0), stats }
    }

    /// Takes a place for one more span, and returns whether there was one.
    fn enter(&self) -> bool {
        let one_more = |waiting: usize| (waiting < self.most).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }
}

/// Passes spans to the batch processor as long as there is room.
#[derive(Debug)]
pub(super) struct BoundedQueue {
    batches: BatchSpanProcessor,
    queue: Arc<Queue>,
}

impl BoundedQueue {
    pub(super) fn new(batches: BatchSpanProcessor, queue: Arc<Queue>) -> Self {
        Self { batches, queue }
    }
}

impl SpanProcessor for BoundedQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.queue.enter() {
            self.batches.on_end(span);
        } else {
            self.queue.stats.dropped_spans(1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Exports spans, and counts failures.
#[derive(Debug)]
pub(super) struct CountedExporter<E> {
    exporter: E,
    queue: Arc<Queue>,
    /// Whether the latest export failed.
    has_failed: AtomicBool,
}

impl<E> CountedExporter<E> {
    pub(super) fn new(exporter: E, queue: Arc<Queue>) -> Self {
        Self { exporter, queue, has_failed: AtomicBool::new(false) }
    }
}

impl<E: SpanExporter> SpanExporter for CountedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.exporter.export(batch).await;
        self.queue.waiting.fetch_sub(spans, Ordering::Relaxed);
        let had_failed = self.has_failed.swap(exported.is_err(), Ordering::Relaxed);
        match &exported {
            Ok(()) if had_failed => info!("spans are exported again"),
            Ok(()) => {}
            Err(error) => {
                self.queue.stats.dropped_spans(spans as u64);
                if !had_failed {
                    warn!(%error, "cannot export spans; they are dropped");
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
