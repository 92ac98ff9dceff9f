//! Traces as spans, exported over OTLP/HTTP by the batch processor of the OpenTelemetry SDK.
//!
//! The spans of a request are created from its record when it has ended. Only its root span is created at its start,
//! because the reply to the client names it. Spans wait in a bounded queue, and are dropped and counted if it is full.

mod client;
mod queue;
mod spans;

use std::{
    env,
    sync::Arc,
    time::{Duration, Instant},
};

use http::Uri;
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
    record::{TraceRecord, Transport},
    stats::TraceStats,
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

/// The export to the collector.
#[derive(Debug)]
pub(super) struct SpanExport {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl SpanExport {
    /// Starts the export, whose connections run on the calling runtime.
    ///
    /// # Errors
    /// Describes what is wrong with the options.
    pub(super) fn start(options: OtlpOptions, stats: &Arc<TraceStats>) -> Result<Self, String> {
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        let exporter = SpanExporter::builder().with_http().with_http_client(CollectorClient::new(runtime)?);
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
            // Sampling is decided at the start of the request.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(BoundedQueue::new(processor, queue))
            .build();
        let tracer = provider.tracer("paternoster");
        Ok(Self { provider, tracer })
    }

    /// Starts the root span of a request.
    pub(super) fn begin(&self, head: &TraceHead, transport: Transport) -> RootSpan {
        RootSpan::begin(&self.tracer, head, transport)
    }

    /// Ends the root span of a request and creates the spans within it.
    pub(super) fn take(&self, record: &TraceRecord, root: Option<RootSpan>) {
        let ended = Instant::now();
        if let Some(root) = root {
            root.end(&self.tracer, record, ended);
        }
    }

    /// Returns once all previous spans are exported or lost.
    pub(super) fn flush(&self) {
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
