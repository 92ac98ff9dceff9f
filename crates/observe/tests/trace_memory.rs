//! Records and tracing allocate nothing for requests that are not traced.

use std::{sync::Arc, time::Instant};

use http::HeaderMap;
use paternoster_observe::{
    ExecutionTimings, ObservedRequest, ObservedVersion, RequestEnd, TaskRun,
    timeline::Timeline,
    trace::{
        ExportedTrace, Parts, TraceExport, TraceHead, TraceLevel, TraceOptions, TraceSettings, TraceStats,
        TracedRequest, Tracer, Transport,
    },
};
use tempfile::TempDir;

/// A destination of spans that no traced request reaches.
#[derive(Debug, Default)]
struct Unreached(Arc<TraceStats>);

impl TraceExport for Unreached {
    fn stats(&self) -> &Arc<TraceStats> {
        &self.0
    }

    fn begin(&self, _: &TraceHead, _: Transport) -> Box<dyn ExportedTrace> {
        panic!("a request is traced");
    }

    fn flush(&self) {}
}

/// Returns whether a request of a model is traced.
fn ask(tracer: &Tracer, model: &str, headers: &HeaderMap) -> bool {
    let Some(head) = tracer.head(headers) else { return false };
    let (transport, received, id) = (Transport::Grpc, Instant::now(), "an id");
    tracer.begin(&TracedRequest { transport, head, received, model, version: 1, id }).is_some()
}

fn tracer(folder: &TempDir, export: Option<Arc<dyn TraceExport>>, rate: u32) -> Tracer {
    let level = TraceLevel { timestamps: true, tensors: true };
    let settings = TraceSettings { level, rate, ..TraceSettings::default() };
    let file = Some(folder.path().join("trace.json"));
    Tracer::start(TraceOptions { settings, file, export }).expect("a thread")
}

#[test]
fn a_request_that_is_not_traced_allocates_nothing() {
    let folder = TempDir::new().expect("a folder");
    let mut headers = HeaderMap::new();
    let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    headers.insert("traceparent", unsampled.parse().expect("ASCII"));
    headers.insert("tracestate", "vendor=value".parse().expect("ASCII"));
    for export in [None, Some(Arc::new(Unreached::default()) as Arc<dyn TraceExport>)] {
        let (destination, tracer) = (format!("{export:?}"), tracer(&folder, export, u32::MAX));
        let own = ["9".to_owned()];
        tracer.change(Some("other"), [("trace_rate", &own[..])]).expect("a rate");
        assert!(!ask(&tracer, "model", &headers));
        let allocated = allocation_counter::measure(|| {
            for _ in 0..100 {
                assert!(!ask(&tracer, "model", &headers));
            }
        });
        assert_eq!(allocated.count_total, 0, "{destination}");
    }
}

#[test]
fn one_that_is_traced_is_seen_to_allocate() {
    let folder = TempDir::new().expect("a folder");
    let tracer = tracer(&folder, None, 1);
    let allocated = allocation_counter::measure(|| assert!(ask(&tracer, "model", &HeaderMap::new())));
    assert!(allocated.count_total > 0);
}

#[test]
fn the_record_of_a_request_that_is_not_traced_allocates_nothing() {
    for timeline in [Timeline::off(), Timeline::on(10)] {
        let version = ObservedVersion {
            model: 0,
            stats: Arc::default(),
            pool: Arc::default(),
            timeline: Arc::new(timeline),
            epoch: Instant::now(),
            parts: Parts::Cells(["gru".to_owned()].into()),
        };
        let timings = ExecutionTimings::default();
        let allocated = allocation_counter::measure(|| {
            for end in [RequestEnd::Completed, RequestEnd::Rejected, RequestEnd::Failed] {
                let mut request = ObservedRequest::new(2, None, None, None);
                request.arrived(&version, 1, 7);
                request.launched(&version);
                request.ran(&TaskRun { cell: 0, started_ns: 2, ended_ns: 3, timings, batch_rows: 2 });
                request.finished(3);
                request.answered(&version, 4);
                request.ended(&version, 4, end);
            }
        });
        assert_eq!(allocated.count_total, 0);
    }
}
