//! Traced requests as spans: what a collector receives over OTLP, and the W3C trace context of clients.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, routing::post};
use bytes::Bytes;
use http::Uri;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode as SpanStatus},
};
use paternoster_exporters::{OtlpOptions, SpanExport};
use paternoster_observe::trace::{TraceLevel, TraceOptions, TraceSettings};
use prost::Message;
use tokio::{
    net::TcpListener,
    sync::{Mutex, Semaphore},
};
use tokio_stream::StreamExt;
use tonic::{Request, metadata::MetadataMap};

use crate::grpc::{
    support::{Client, Server, eventually, request, soon},
    traces::infer_over_http,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Number of exports that the collector may answer without waiting.
const MANY: usize = 1000;

/// A collector that answers as many exports as it has permits for.
struct Collector {
    address: SocketAddr,
    exports: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    allowed: Arc<Semaphore>,
}

impl Collector {
    async fn start() -> Self {
        let exports = Arc::new(Mutex::new(Vec::new()));
        let allowed = Arc::new(Semaphore::new(MANY));
        let export = async |State((exports, allowed)): State<(Arc<Mutex<Vec<_>>>, Arc<Semaphore>)>, body: Bytes| {
            let _one = allowed.acquire().await.expect("it is open");
            let Ok(export) = ExportTraceServiceRequest::decode(body) else { return StatusCode::BAD_REQUEST };
            exports.lock().await.push(export);
            StatusCode::OK
        };
        let state = (Arc::clone(&exports), Arc::clone(&allowed));
        let routes = Router::new().route("/v1/traces", post(export)).with_state(state);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { address, exports, allowed }
    }

    fn options(&self) -> OtlpOptions {
        let url: Uri = format!("http://{}/v1/traces", self.address).parse().expect("a URL");
        OtlpOptions {
            url: Some(url),
            resource: vec![("service.name".to_owned(), "under test".to_owned())],
            schedule_delay: Some(Duration::from_millis(10)),
            ..OtlpOptions::default()
        }
    }

    /// Starts a server whose spans go to it, those of every `rate`-th request.
    async fn server(&self, rate: u32) -> Server {
        start(self.options(), rate).await
    }

    async fn spans(&self) -> Vec<Span> {
        let exports = self.exports.lock().await;
        let scopes = exports.iter().flat_map(|export| &export.resource_spans).flat_map(|spans| &spans.scope_spans);
        scopes.flat_map(|spans| spans.spans.clone()).collect()
    }

    /// Waits for the spans of `requests` requests. A request's own span is the last to arrive.
    async fn requests(&self, requests: usize) -> Vec<Span> {
        let wait = async {
            loop {
                let spans = self.spans().await;
                let roots = spans.iter().filter(|span| span.name == "InferRequest").count();
                if roots >= requests {
                    assert_eq!(roots, requests);
                    return spans;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon(wait).await
    }
}

async fn start(otlp: OtlpOptions, rate: u32) -> Server {
    let level = TraceLevel { timestamps: true, tensors: false };
    let settings = TraceSettings { level, rate, ..TraceSettings::default() };
    let export = SpanExport::start(otlp).expect("the options are valid");
    Server::start_traced(TraceOptions { settings, file: None, export: Some(Arc::new(export)) }).await
}

fn attribute(of: &[KeyValue], key: &str) -> Option<String> {
    let value = of.iter().find(|one| one.key == key)?.value.as_ref()?.value.as_ref()?;
    Some(match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

async fn infer(client: &mut Client, id: &str, traceparent: &str) -> MetadataMap {
    let mut asked = Request::new(request("identity", id, &[1.0]));
    if !traceparent.is_empty() {
        asked.metadata_mut().insert("traceparent", traceparent.parse().expect("ASCII"));
    }
    soon(client.model_infer(asked)).await.expect("OK").metadata().clone()
}

/// Checks that each span of a request lies within its parent. Returns the request's own span, and the others by name.
fn tree(spans: &[Span]) -> (Span, HashMap<String, Span>) {
    let root = spans.iter().find(|span| span.name == "InferRequest").expect("the request's").clone();
    let by_name: HashMap<String, Span> = spans.iter().map(|span| (span.name.clone(), span.clone())).collect();
    assert_eq!(by_name.len(), spans.len(), "no name comes twice");
    let mut names: Vec<&str> = by_name.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["InferRequest", "compute", "identity", "input", "output", "queue"]);
    let within = [("input", "InferRequest"), ("identity", "InferRequest"), ("output", "InferRequest")];
    for (inner, outer) in within.into_iter().chain([("queue", "identity"), ("compute", "identity")]) {
        let (inner, outer) = (&by_name[inner], &by_name[outer]);
        assert_eq!(inner.parent_span_id, outer.span_id, "{} is within {}", inner.name, outer.name);
        assert_eq!(inner.trace_id, root.trace_id);
        assert_eq!(inner.kind, SpanKind::Internal as i32);
        assert!(inner.start_time_unix_nano <= inner.end_time_unix_nano);
        assert!(root.start_time_unix_nano <= inner.start_time_unix_nano, "{}", inner.name);
        assert!(inner.end_time_unix_nano <= root.end_time_unix_nano, "{}", inner.name);
    }
    assert_eq!(root.kind, SpanKind::Server as i32);
    (root, by_name)
}

fn events(span: &Span) -> Vec<&str> {
    span.events.iter().map(|event| &*event.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_grpc_is_a_tree_of_spans_within_that_of_its_client() {
    let collector = Collector::start().await;
    let server = collector.server(0).await;
    let mut client = server.client().await;
    let metadata = infer(&mut client, "mine", &parent("01")).await;
    let spans = collector.requests(1).await;
    let (root, by_name) = tree(&spans);

    assert_eq!((hex(&root.trace_id), hex(&root.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    let told = metadata.get("traceresponse").expect("the response has the header").to_str().expect("ASCII").to_owned();
    assert_eq!(told, format!("00-{TRACE}-{}-01", hex(&root.span_id)));
    assert_eq!(attribute(&root.attributes, "rpc.system").as_deref(), Some("grpc"));
    let of_transport = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"];
    assert_eq!(events(&root), of_transport);

    let model = &by_name["identity"];
    for (key, value) in
        [("triton.model_name", "identity"), ("triton.model_version", "1"), ("triton.request_id", "mine")]
    {
        assert_eq!(attribute(&model.attributes, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(events(model), ["REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END"]);
    let compute = &by_name["compute"];
    assert_eq!(events(compute), ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]);
    for key in ["paternoster.tasks", "paternoster.batch_rows"] {
        assert_eq!(attribute(&compute.attributes, key).as_deref(), Some("1"), "{key}");
    }
    assert!(by_name["queue"].end_time_unix_nano <= compute.start_time_unix_nano);

    let exports = collector.exports.lock().await;
    let resource = exports[0].resource_spans[0].resource.as_ref().expect("a resource");
    assert_eq!(attribute(&resource.attributes, "service.name").as_deref(), Some("under test"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_http_is_a_tree_of_spans_too() {
    let collector = Collector::start().await;
    let server = collector.server(1).await;
    let head = infer_over_http(&server, "identity", &format!("traceparent: {}\r\n", parent("01"))).await;
    let (root, by_name) = tree(&collector.requests(1).await);
    assert_eq!((hex(&root.trace_id), hex(&root.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert!(head.contains(&format!("traceresponse: 00-{TRACE}-{}-01", hex(&root.span_id))), "{head}");
    assert_eq!(events(&root), ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]);
    assert_eq!(attribute(&by_name["identity"].attributes, "triton.request_id"), None, "it has none");

    let head = infer_over_http(&server, "identity", "").await;
    let spans = collector.requests(2).await;
    let own = spans.iter().find(|span| span.name == "InferRequest" && span.parent_span_id.is_empty());
    let own = own.expect("a client without a span begins a trace");
    assert_ne!(hex(&own.trace_id), TRACE);
    assert!(head.contains(&hex(&own.trace_id)), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_decide_for_their_own_traces_and_the_rate_for_all_others() {
    let collector = Collector::start().await;
    let server = collector.server(3).await;
    let mut client = server.client().await;
    // None of these requests counts towards the rate.
    for _ in 0..5 {
        let metadata = infer(&mut client, "not recorded", &parent("00")).await;
        assert!(metadata.get("traceresponse").is_none());
    }
    infer(&mut client, "recorded", &parent("01")).await;
    // An invalid context is ignored, so the rate decides.
    let long = "0".repeat(4000);
    let malformed = ["00-x-y-01", "ff-", "00-00000000000000000000000000000000-0000000000000000-01", &long, "-", "00"];
    for (number, header) in malformed.into_iter().enumerate() {
        let metadata = infer(&mut client, &format!("malformed {number}"), header).await;
        assert_eq!(metadata.get("traceresponse").is_some(), number % 3 == 2, "{header}");
    }
    let spans = collector.requests(3).await;
    let mut ids: Vec<String> =
        spans.iter().filter_map(|span| attribute(&span.attributes, "triton.request_id")).collect();
    ids.sort();
    assert_eq!(ids, ["malformed 2", "malformed 5", "recorded"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_of_a_stream_is_within_the_span_of_the_call() {
    let collector = Collector::start().await;
    let server = collector.server(0).await;
    let mut client = server.client().await;
    let asked = [request("identity", "first", &[1.0]), request("repeat", "second", &[2.0, 3.0])];
    let mut asked = Request::new(tokio_stream::iter(asked));
    asked.metadata_mut().insert("traceparent", parent("01").parse().expect("ASCII"));
    let mut answers = soon(client.model_stream_infer(asked)).await.expect("a stream").into_inner();
    while let Some(answer) = soon(answers.next()).await {
        assert_eq!(answer.expect("an answer").error_message, "");
    }
    let spans = collector.requests(2).await;
    for root in spans.iter().filter(|span| span.name == "InferRequest") {
        assert_eq!((hex(&root.trace_id), hex(&root.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    }
    assert!(spans.iter().any(|span| span.name == "repeat"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_given_up_has_a_span_that_says_so() {
    let collector = Collector::start().await;
    let mut server = collector.server(1).await;
    let mut client = server.client().await;
    let pending = tokio::spawn(async move { client.model_infer(request("gated", "given up", &[1.0])).await });
    server.gate.await_run().await;
    pending.abort();
    let spans = collector.requests(1).await;
    server.gate.let_pass(1);
    for name in ["InferRequest", "gated"] {
        let span = spans.iter().find(|span| span.name == name).expect(name);
        let status = span.status.as_ref().expect("a status");
        assert_eq!((status.code, &*status.message), (SpanStatus::Error as i32, "CANCELED"), "{name}");
    }
    assert!(spans.iter().all(|span| span.name != "output"), "nothing was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_beyond_the_queue_are_dropped_and_counted_and_requests_go_on() {
    const SPANS_OF_A_REQUEST: u64 = 6;

    let collector = Collector::start().await;
    let mut options = collector.options();
    options.max_queue_size = Some(8);
    options.max_export_batch_size = Some(1);
    // The collector does not answer yet.
    let held = collector.allowed.acquire_many(MANY as u32).await.expect("it is open");
    let server = start(options, 1).await;
    let mut client = server.client().await;
    for number in 0..20 {
        infer(&mut client, &number.to_string(), "").await;
    }
    let stats = Arc::clone(server.tracer.stats());
    eventually("all but the queue is lost", || stats.spans_dropped() == 20 * SPANS_OF_A_REQUEST - 8).await;
    drop(held);
    let wait = async {
        while collector.spans().await.len() < 8 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(wait).await;
    assert_eq!(stats.spans_dropped(), 20 * SPANS_OF_A_REQUEST - 8, "what waited is exported");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_requests_go_on_and_their_spans_are_counted() {
    let collector = Collector::start().await;
    let mut options = collector.options();
    // Nothing listens on this port: its listener has been closed.
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = gone.local_addr().expect("it is bound");
    drop(gone);
    options.url = Some(format!("http://{address}/v1/traces").parse().expect("a URL"));
    let server = start(options, 1).await;
    let mut client = server.client().await;
    infer(&mut client, "", "").await;
    let stats = Arc::clone(server.tracer.stats());
    eventually("its spans are lost", || stats.spans_dropped() == 6).await;
    assert_eq!(stats.sampled_requests(), 1);
}
