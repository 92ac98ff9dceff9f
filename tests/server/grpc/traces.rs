//! Traced requests over both protocols: which requests are traced, and the contents of their traces.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use bytes::Bytes;
use paternoster_observe::trace::{TraceLevel, TraceOptions, TraceSettings};
use paternoster_wire::pb::{ModelInferRequest, TraceSettingRequest, trace_setting_request::SettingValue};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};
use tokio_stream::StreamExt;

use crate::grpc::support::{
    Client, Server, eventually,
    raw::{RawBody, RawConnection, ending, frame, post as call},
    request, soon,
};

const TIMESTAMPS: TraceLevel = TraceLevel { timestamps: true, tensors: false };

/// Sends a request with these headers over HTTP, and returns the head and the body of the response.
async fn post(server: &Server, path: &str, headers: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(server.http_address()).await.expect("the server listens");
    let length = body.len();
    let text = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await.expect("the server reads");
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    (head.to_owned(), body.to_owned())
}

pub(crate) async fn infer_over_http(server: &Server, model: &str, headers: &str) -> String {
    let input = r#"{"name":"INPUT0","shape":[1,2],"datatype":"FP32","data":[1,2.5]}"#;
    let (head, _) =
        post(server, &format!("/v2/models/{model}/infer"), headers, &format!("{{\"inputs\":[{input}]}}")).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    head
}

async fn infer(client: &mut Client, request: ModelInferRequest) {
    soon(client.model_infer(request)).await.expect("OK");
}

fn to_file(folder: &TempDir, rate: u32) -> TraceOptions {
    TraceOptions {
        settings: TraceSettings { level: TIMESTAMPS, rate, ..TraceSettings::default() },
        file: Some(folder.path().join("trace.json")),
        ..TraceOptions::default()
    }
}

/// The traces of a file, by id: the model's name, the request's id, and its events in order.
type Read = BTreeMap<u64, (String, String, Vec<String>)>;

fn read(file: &Path) -> Read {
    let mut traces = Read::new();
    let Ok(text) = fs::read_to_string(file) else { return traces };
    let objects: Vec<Value> = serde_json::from_str(&text).expect("a JSON list at any time");
    for object in objects {
        let id = object["id"].as_u64().expect("an id");
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        if object.get("model_name").is_some() {
            traces.insert(id, (text("model_name"), text("request_id"), Vec::new()));
        }
        if let Some(stamp) = object["timestamps"].get(0) {
            let trace = traces.get_mut(&id).expect("its name comes first");
            trace.2.push(stamp["name"].as_str().expect("a name").to_owned());
        }
    }
    traces
}

/// Waits until a file has this many traces. The last one may end just after its client has the response.
async fn read_all(server: &Server, file: &Path, traces: usize) -> Read {
    let tracer = Arc::clone(&server.tracer);
    eventually("all traces are written", || {
        tracer.flush();
        read(file).len() >= traces
    })
    .await;
    let read = read(file);
    assert_eq!(read.len(), traces, "{read:?}");
    read
}

const EXECUTED: [&str; 8] = [
    "REQUEST_START",
    "QUEUE_START",
    "INFER_RESPONSE_COMPLETE",
    "REQUEST_END",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
];

fn stamps(of_transport: [&str; 4]) -> Vec<String> {
    of_transport.into_iter().chain(EXECUTED).map(str::to_owned).collect()
}

/// Returns the time of an event of the request with this id, in nanoseconds.
fn time_of(file: &Path, id: &str, event: &str) -> u64 {
    let text = fs::read_to_string(file).expect("a file");
    let objects: Vec<Value> = serde_json::from_str(&text).expect("a JSON list");
    let named = objects.iter().find(|object| object["request_id"] == id).expect("it is traced");
    let of_request = objects.iter().filter(|object| object["id"] == named["id"]);
    let mut stamps = of_request.filter_map(|object| object["timestamps"].get(0));
    stamps.find(|stamp| stamp["name"] == event).expect("it has happened")["ns"].as_u64().expect("a time")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_arrived_with_its_headers_and_not_with_its_last_byte() {
    let folder = TempDir::new().expect("a folder");
    let options = to_file(&folder, 1);
    let file = options.file.clone().expect("a file");
    let server = Server::start_traced(options).await;
    let mut client = server.client().await;
    let mut peer = RawConnection::open(server.address()).await;
    let mut slow = Bytes::from(frame(&request("identity", "slow", &[1.0])));
    let (rest, arrives) = oneshot::channel();
    let body = RawBody::in_two(slow.split_to(10), arrives);
    let answer = tokio::spawn(peer.sender.send_request(call("/inference.GRPCInferenceService/ModelInfer", body)));
    eventually("its first bytes are there", || server.budgets.bytes.used() > 0).await;
    infer(&mut client, request("identity", "quick", &[1.0])).await;
    rest.send(slow).expect("the peer waits");
    let answer = soon(answer).await.expect("no panic").expect("an answer");
    assert_eq!(ending(answer).await.status.as_deref(), Some("0"));
    read_all(&server, &file, 2).await;
    let time = |id, event| time_of(&file, id, event);
    assert!(time("slow", "GRPC_WAITREAD_START") < time("quick", "GRPC_WAITREAD_START"));
    assert!(time("slow", "GRPC_WAITREAD_END") > time("quick", "GRPC_WAITREAD_END"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_holds_the_life_of_requests_of_all_protocols() {
    let folder = TempDir::new().expect("a folder");
    let server = Server::start_traced(to_file(&folder, 1)).await;
    let mut client = server.client().await;
    infer(&mut client, request("identity", "first", &[1.0])).await;
    infer_over_http(&server, "identity", "").await;
    let asked = tokio_stream::iter([request("identity", "third", &[1.0]), request("repeat", "fourth", &[2.0, 3.0])]);
    let mut answers = soon(client.model_stream_infer(asked)).await.expect("a stream").into_inner();
    while let Some(answer) = soon(answers.next()).await {
        assert_eq!(answer.expect("an answer").error_message, "");
    }
    let body = r#"{"INPUT0":[1,2.5]}"#;
    let (head, _) = post(&server, "/v2/models/identity/generate", "", body).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");

    let read = read_all(&server, &folder.path().join("trace.json"), 5).await;
    let grpc = stamps(["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"]);
    let http = stamps(["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]);
    let of = |model: &str, id: &str, stamps: &[String]| (model.to_owned(), id.to_owned(), stamps.to_vec());
    let mut found: Vec<_> = read.into_values().collect();
    found.sort();
    let mut expected = vec![
        of("identity", "first", &grpc),
        of("identity", "", &http),
        of("identity", "third", &grpc),
        of("repeat", "fourth", &grpc),
        of("identity", "", &http),
    ];
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_changed_over_grpc_for_all_models_and_for_one() {
    let folder = TempDir::new().expect("a folder");
    let options = TraceOptions { settings: TraceSettings::default(), ..to_file(&folder, 1) };
    let server = Server::start_traced(options).await;
    let mut client = server.client().await;
    infer(&mut client, request("identity", "before", &[1.0])).await;

    let asked = |model: &str, settings: &[(&str, &[&str])]| TraceSettingRequest {
        model_name: model.to_owned(),
        settings: settings
            .iter()
            .map(|(name, values)| {
                let value = values.iter().map(|&value| value.to_owned()).collect();
                ((*name).to_owned(), SettingValue { value })
            })
            .collect(),
    };
    let on: &[(&str, &[&str])] = &[("trace_level", &["TIMESTAMPS"]), ("trace_rate", &["2"])];
    soon(client.trace_setting(asked("", on))).await.expect("OK");
    let own = soon(client.trace_setting(asked("identity", &[("trace_count", &["1"]), ("trace_rate", &["1"])]))).await;
    let own = own.expect("OK").into_inner().settings;
    assert_eq!(
        (&*own["trace_rate"].value, &*own["trace_level"].value),
        (&["1".to_owned()][..], &["TIMESTAMPS".to_owned()][..])
    );
    for number in 0..4 {
        infer(&mut client, request("identity", &format!("identity {number}"), &[1.0])).await;
    }
    let asked_repeats = (0..4).map(|number| request("repeat", &format!("repeat {number}"), &[1.0])).collect::<Vec<_>>();
    let answers = soon(client.model_stream_infer(tokio_stream::iter(asked_repeats))).await.expect("a stream");
    let mut answers = answers.into_inner();
    while let Some(answer) = soon(answers.next()).await {
        assert_eq!(answer.expect("an answer").error_message, "");
    }
    let read = read_all(&server, &folder.path().join("trace.json"), 3).await;
    let mut ids: Vec<String> = read.into_values().map(|(_, id, _)| id).collect();
    ids.sort();
    assert_eq!(ids, ["identity 0", "repeat 1", "repeat 3"]);

    for (settings, code) in [
        (("trace_file", "/etc/passwd"), tonic::Code::Unimplemented),
        (("trace_mode", "opentelemetry"), tonic::Code::Unimplemented),
        (("trace_rate", "-1"), tonic::Code::InvalidArgument),
        (("trace_level", "LOUD"), tonic::Code::InvalidArgument),
        (("colour", "red"), tonic::Code::InvalidArgument),
    ] {
        let (name, value) = settings;
        let status = soon(client.trace_setting(asked("", &[(name, &[value])]))).await.expect_err(name);
        assert_eq!(status.code(), code, "{status:?}");
    }
    let status = soon(client.trace_setting(asked("nope", &[]))).await.expect_err("there is no such model");
    assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, "Request for unknown model : nope"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_its_client_gives_up_is_traced_to_its_end() {
    let folder = TempDir::new().expect("a folder");
    let mut server = Server::start_traced(to_file(&folder, 1)).await;
    let mut client = server.client().await;
    let pending = tokio::spawn(async move { client.model_infer(request("gated", "given up", &[1.0])).await });
    server.gate.await_run().await;
    pending.abort();
    let read = async {
        let file = folder.path().join("trace.json");
        read_all(&server, &file, 1).await.remove(&1).expect("it is traced")
    };
    let (_, id, stamps) = read.await;
    assert_eq!(id, "given up");
    assert!(stamps.contains(&"REQUEST_END".to_owned()), "{stamps:?}");
    assert!(!stamps.iter().any(|name| name.starts_with("GRPC_SEND")), "nothing was sent: {stamps:?}");
    server.gate.let_pass(1);
}
