//! Traces as spans, exported over OTLP/HTTP by the batch processor of the OpenTelemetry SDK.
//!
//! The spans of a request are created from its record when it has ended. Only its root span is created at its start,
//! because the response to the client names it. Spans wait in a bounded queue, and are dropped and counted if it is
//! full.

mod client;
mod queue;
mod spans;

use std::{env, sync::Arc, time::Duration};

use http::Uri;
use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider},
};
use paternoster_observe::trace::{ExportedTrace, TraceExport, TraceHead, TraceStats, Transport};
use tokio::runtime::Handle;

use self::{
    client::CollectorClient,
    queue::{BoundedQueue, CountedExporter, Queue},
    spans::RootSpan,
};

/// Maximum number of waiting spans, the default of Triton and OpenTelemetry.
const MAX_QUEUE_SIZE: usize = 2048;

/// Default name of the service, as in Triton.
const SERVICE_NAME: &str = "triton-inference-server";

/// Where and how spans are exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtlpOptions {
    /// URL of the collector. Default: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or else `http://localhost:4318/v1/traces`.
    pub url: Option<Uri>,
    /// Attributes of the server on all spans, in addition to those of OTEL_RESOURCE_ATTRIBUTES.
    pub resource: Vec<(String, String)>,
    /// Maximum number of waiting spans, including the batch being exported. Default: OTEL_BSP_MAX_QUEUE_SIZE or 2,048.
    pub max_queue_size: Option<usize>,
    /// Maximum time between exports. Default: OTEL_BSP_SCHEDULE_DELAY or 5 s.
    pub schedule_delay: Option<Duration>,
    /// Maximum number of spans per export. Default: OTEL_BSP_MAX_EXPORT_BATCH_SIZE or 512.
    pub max_export_batch_size: Option<usize>,
}

/// Why spans cannot be exported: describes what is wrong with the options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot export spans: {0}")]
pub struct ExportError(String);

/// The export to the collector, a destination of a [`Tracer`](paternoster_observe::trace::Tracer).
#[derive(Debug)]
pub struct SpanExport {
    provider: SdkTracerProvider,
    /// The root spans of requests share it.
    tracer: Arc<SdkTracer>,
    stats: Arc<TraceStats>,
}

impl SpanExport {
    /// Starts the export, whose connections run on the calling runtime.
    ///
    /// # Errors
    /// If there is no runtime, or if the options are invalid.
    pub fn start(options: OtlpOptions) -> Result<Self, ExportError> {
        Self::try_start(options).map_err(ExportError)
    }

    fn try_start(options: OtlpOptions) -> Result<Self, String> {
        let stats = Arc::<TraceStats>::default();
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        let exporter = SpanExporter::builder().with_http().with_http_client(CollectorClient::new(runtime)?);
        let exporter = match &options.url {
            Some(url) => exporter.with_endpoint(url.to_string()),
            None => exporter,
        };
        let exporter = exporter.build().map_err(|error| error.to_string())?;

        let from_environment = || env::var("OTEL_BSP_MAX_QUEUE_SIZE").ok()?.parse().ok().filter(|&size| size > 0);
        let most = options.max_queue_size.or_else(from_environment).unwrap_or(MAX_QUEUE_SIZE);
        let queue = Arc::new(Queue::new(most, Arc::clone(&stats)));
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
            // Sampling is decided at the start of the request.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(BoundedQueue::new(processor, queue))
            .build();
        let tracer = Arc::new(provider.tracer("paternoster"));
        Ok(Self { provider, tracer, stats })
    }
}

impl TraceExport for SpanExport {
    fn stats(&self) -> &Arc<TraceStats> {
        &self.stats
    }

    fn begin(&self, head: &TraceHead, transport: Transport) -> Box<dyn ExportedTrace> {
        Box::new(RootSpan::begin(Arc::clone(&self.tracer), head, transport))
    }

    fn flush(&self) {
        // Failed exports are counted.
        let _ = self.provider.force_flush();
    }
}

/// Parses the URL of a collector.
///
/// # Errors
/// If it is not a URL of HTTP or HTTPS.
pub fn collector_url(given: &str) -> Result<Uri, String> {
    let url: Uri = given.parse().map_err(|_| format!("expected a URL, got '{given}'"))?;
    client::check(&url).map(|()| url)
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
