//! Traces as spans, exported over OTLP/HTTP by the batch processor of the OpenTelemetry SDK.
//!
//! A request's spans are made when it has ended, from what was recorded of it; only its own span begins with it, so
//! that the client can be told which it is. Spans wait in a queue that is bounded, and are dropped and counted where it
//! is full.

mod client;
mod queue;
mod spans;

use std::{
    env,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderValue, Uri};
use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider},
};
use tokio::runtime::Handle;

pub(super) use self::spans::RootSpan;
use self::{
    client::CollectorClient,
    queue::{BoundedQueue, CountedExporter, Queue},
};
use super::{
    context::TraceHead,
    request::{RequestTrace, Transport},
    stats::TraceStats,
};

/// Spans that may wait, by Triton's default and that of OpenTelemetry.
const MAX_QUEUE_SIZE: usize = 2048;

/// The name of the service where nothing gives it another, as on Triton.
const SERVICE_NAME: &str = "triton-inference-server";

/// Where spans are exported to, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtlpOptions {
    /// The collector; OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or else `http://localhost:4318/v1/traces`, where not given.
    pub url: Option<Uri>,
    /// Attributes of the server that all spans share, beside those of OTEL_RESOURCE_ATTRIBUTES.
    pub resource: Vec<(String, String)>,
    /// Most spans that wait, those of the batch on its way included; OTEL_BSP_MAX_QUEUE_SIZE or 2,048 where not given.
    pub max_queue_size: Option<usize>,
    /// Most time between exports; OTEL_BSP_SCHEDULE_DELAY or 5 s where not given.
    pub schedule_delay: Option<Duration>,
    /// Most spans of one export; OTEL_BSP_MAX_EXPORT_BATCH_SIZE or 512 where not given.
    pub max_export_batch_size: Option<usize>,
}

/// The way to the collector.
#[derive(Debug)]
pub(super) struct SpanExport {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl SpanExport {
    /// Starts the export, whose connections run on the runtime that this is called in.
    ///
    /// # Errors
    /// Says what is wrong with the options.
    pub(super) fn start(options: OtlpOptions, stats: &Arc<TraceStats>) -> Result<Self, String> {
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        let exporter = SpanExporter::builder().with_http().with_http_client(CollectorClient::new(runtime));
        let exporter = match &options.url {
            Some(url) => exporter.with_endpoint(url.to_string()),
            None => exporter,
        };
        let exporter = exporter.build().map_err(|error| error.to_string())?;

        let from_environment = || env::var("OTEL_BSP_MAX_QUEUE_SIZE").ok()?.parse().ok().filter(|&size| size > 0);
        let most = options.max_queue_size.or_else(from_environment).unwrap_or(MAX_QUEUE_SIZE);
        let queue = Arc::new(Queue::new(most, Arc::clone(stats)));
        let mut config = BatchConfigBuilder::default().with_max_queue_size(most);
        if let Some(delay) = options.schedule_delay {
            config = config.with_scheduled_delay(delay);
        }
        if let Some(size) = options.max_export_batch_size {
            config = config.with_max_export_batch_size(size);
        }
        let exporter = CountedExporter::new(exporter, Arc::clone(&queue));
        let processor = BatchSpanProcessor::new(exporter, config.build());
        let provider = SdkTracerProvider::builder()
            .with_resource(resource(options.resource))
            // What is sampled was decided at the head of the request.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(BoundedQueue::new(processor, queue))
            .build();
        let tracer = provider.tracer("paternoster");
        Ok(Self { provider, tracer })
    }

    /// Begins the span of a request.
    pub(super) fn begin(&self, head: &TraceHead, transport: Transport) -> RootSpan {
        RootSpan::begin(&self.tracer, head, transport)
    }

    /// Ends the span of a request and makes those within it.
    pub(super) fn take(&self, trace: &mut RequestTrace) {
        let ended = Instant::now();
        if let Some(root) = trace.root.take() {
            root.end(&self.tracer, trace, ended);
        }
    }

    /// Returns once all spans so far are exported, or lost.
    pub(super) fn flush(&self) {
        // What could not be exported is counted.
        let _ = self.provider.force_flush();
    }
}

/// Reads the URL of a collector.
///
/// # Errors
/// When it is not one of plain HTTP.
pub fn collector_url(given: &str) -> Result<Uri, String> {
    let url: Uri = given.parse().map_err(|_| format!("expected a URL, got '{given}'"))?;
    client::address(&url).map(|_| url)
}

fn resource(given: Vec<(String, String)>) -> Resource {
    let is_named = |resource: &Resource| {
        let name = resource.get(&"service.name".into());
        name.is_some_and(|name| !name.as_str().starts_with("unknown_service"))
    };
    let mut builder = Resource::builder();
    if !is_named(&Resource::builder().build()) {
        builder = builder.with_service_name(SERVICE_NAME);
    }
    builder.with_attributes(given.into_iter().map(|(key, value)| KeyValue::new(key, value))).build()
}

impl RequestTrace {
    /// What the reply says in [`TRACE_RESPONSE`](super::TRACE_RESPONSE), where the request is a span.
    pub fn response_header(&self) -> Option<HeaderValue> {
        let root = self.root.as_ref()?;
        HeaderValue::try_from(root.header()).ok()
    }
}
