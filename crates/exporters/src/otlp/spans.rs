//! The spans of one request.
//!
//! ```text
//! InferRequest                     from its arrival to the last byte of its response
//! ├─ input                         until it was read, decoded and checked
//! ├─ <model>                       while it was in the executor
//! │  ├─ queue                      until its first task started
//! │  └─ compute | stage N | cell C one for each interval of tasks
//! └─ output                        from when its response is complete to its last byte
//! ```

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Instant, SystemTime},
};

use opentelemetry::{
    Context, KeyValue,
    trace::{
        Event, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
        TraceState, Tracer,
    },
};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use paternoster_observe::{
    TaskRun,
    trace::{ExportedTrace, Interval, Milestone, Parts, TraceHead, TraceProgress, TraceRecord, Transport, at},
};

/// The root span of a request in progress.
#[derive(Debug)]
pub(super) struct RootSpan {
    tracer: Arc<SdkTracer>,
    span: Span,
    /// One instant on both clocks, because spans have wall-clock times.
    clock: (Instant, SystemTime),
}

impl RootSpan {
    /// Starts it, as a child of the client's span if there is one.
    pub(super) fn begin(tracer: Arc<SdkTracer>, head: &TraceHead, transport: Transport) -> Self {
        let clock = (Instant::now(), SystemTime::now());
        let context = match head.parent {
            None => Context::new(),
            Some(parent) => Context::new().with_remote_span_context(SpanContext::new(
                TraceId::from_bytes(parent.trace_id),
                SpanId::from_bytes(parent.span_id),
                TraceFlags::SAMPLED,
                true,
                TraceState::NONE,
            )),
        };
        let system = match transport {
            Transport::Grpc => KeyValue::new("rpc.system", "grpc"),
            Transport::Http => KeyValue::new("http.request.method", "POST"),
        };
        let builder = SpanBuilder::from_name("InferRequest")
            .with_kind(SpanKind::Server)
            .with_start_time(wall(clock, head.came))
            .with_attributes([system]);
        Self { span: tracer.build_with_context(builder, &context), tracer, clock }
    }
}

impl ExportedTrace for RootSpan {
    /// Formats the span as a `traceparent` of version 00.
    fn header(&self) -> String {
        let context = self.span.span_context();
        format!("00-{}-{}-01", context.trace_id(), context.span_id())
    }

    /// Ends it, and creates the spans within it.
    fn end(mut self: Box<Self>, trace: &TraceRecord, progress: &TraceProgress) {
        let ended = Instant::now();
        let within = Within { tracer: &self.tracer, clock: self.clock, context: context_of(&self.span) };
        within.span("input", (trace.head.came, trace.admitted), Vec::new(), &[]);
        within.model(trace, progress, ended);
        if let Some(responded) = progress.responded {
            let sent = progress.sent.map_or(ended, |(_, sent)| sent);
            within.span("output", (responded, sent), Vec::new(), &[]);
        }
        for (name, instant) in trace.of_transport(progress) {
            self.span.add_event_with_timestamp(name, wall(self.clock, instant), Vec::new());
        }
        if let Some(failure) = progress.end.and_then(|end| end.how.failure()) {
            self.span.set_status(Status::error(failure.name()));
        }
        self.span.end_with_timestamp(wall(self.clock, ended));
    }
}

fn context_of(span: &Span) -> Context {
    Context::new().with_remote_span_context(span.span_context().clone())
}

/// Converts an instant to wall-clock time.
fn wall((instant, time): (Instant, SystemTime), at: Instant) -> SystemTime {
    match at.checked_duration_since(instant) {
        Some(since) => time + since,
        None => time - instant.duration_since(at),
    }
}

/// Creates spans within another span.
struct Within<'a> {
    tracer: &'a SdkTracer,
    clock: (Instant, SystemTime),
    context: Context,
}

impl Within<'_> {
    fn begin(&self, name: impl Into<Cow<'static, str>>, began: Instant, of: Vec<KeyValue>, at: &[Milestone]) -> Span {
        let event = |&(name, instant): &Milestone| Event::new(name, wall(self.clock, instant), Vec::new(), 0);
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(wall(self.clock, began))
            .with_attributes(of)
            .with_events(at.iter().map(event).collect());
        self.tracer.build_with_context(builder, &self.context)
    }

    /// Creates a span without children.
    fn span(
        &self,
        name: impl Into<Cow<'static, str>>,
        (began, ended): (Instant, Instant),
        attributes: Vec<KeyValue>,
        milestones: &[Milestone],
    ) {
        let mut span = self.begin(name, began, attributes, milestones);
        span.end_with_timestamp(wall(self.clock, ended.max(began)));
    }

    /// Creates the span of a request in the executor, and the spans within it.
    fn model(&self, trace: &TraceRecord, progress: &TraceProgress, ended: Instant) {
        let (Some(epoch), Some(end)) = (progress.epoch, progress.end) else { return };
        let mut attributes = vec![
            KeyValue::new("triton.model_name", trace.model.clone()),
            KeyValue::new("triton.model_version", trace.version),
        ];
        if !trace.request_id.is_empty() {
            attributes.push(KeyValue::new("triton.request_id", trace.request_id.clone()));
        }
        let left = at(epoch, end.ended_ns).min(ended);
        let milestones = trace.of_request(progress);
        let mut span = self.begin(trace.model.clone(), trace.admitted, attributes, &milestones);
        let within = Within { tracer: self.tracer, clock: self.clock, context: context_of(&span) };
        let began = progress.first.map_or(left, |first| at(epoch, first.started_ns));
        within.span("queue", (at(epoch, end.arrived_ns), began), Vec::new(), &[]);
        let of_compute = trace.of_compute(progress);
        let is_one = progress.intervals.len() == 1;
        for interval in &progress.intervals {
            let name = name_of(&progress.parts, interval.run.cell);
            let times = (at(epoch, interval.run.started_ns), at(epoch, interval.run.ended_ns));
            within.span(name, times, attributes_of(interval), if is_one { &of_compute } else { &[] });
        }
        if let Some(failure) = end.how.failure() {
            span.set_status(Status::error(failure.name()));
        }
        span.end_with_timestamp(wall(self.clock, left.max(trace.admitted)));
    }
}

fn name_of(parts: &Parts, cell: u16) -> Cow<'static, str> {
    match parts {
        Parts::Whole => "compute".into(),
        Parts::Stages => format!("stage {cell}").into(),
        Parts::Cells(names) => match names.get(usize::from(cell)) {
            Some(name) => format!("cell {name}").into(),
            None => format!("cell {cell}").into(),
        },
    }
}

fn attributes_of(Interval { tasks, run: TaskRun { timings, batch_rows, .. } }: &Interval) -> Vec<KeyValue> {
    let ns = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    vec![
        KeyValue::new("paternoster.tasks", i64::from(*tasks)),
        KeyValue::new("paternoster.batch_rows", i64::from(*batch_rows)),
        KeyValue::new("paternoster.input_ns", ns(timings.compute_input_ns)),
        KeyValue::new("paternoster.infer_ns", ns(timings.compute_infer_ns)),
        KeyValue::new("paternoster.output_ns", ns(timings.compute_output_ns)),
    ]
}
