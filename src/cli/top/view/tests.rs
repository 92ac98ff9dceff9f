//! What fits which terminal, in which order, and that nothing in it is obeyed.

use std::borrow::Cow;

use paternoster_frontend::http::overview_response::{
    History, LimitedResource, ModelsMemory, OnDemandState, ServerLoad, ServerState,
};

use super::*;

fn url() -> Url {
    Url::parse("http://localhost:8000/").expect("an address")
}

fn answer(models: Vec<ModelOverview>) -> OverviewResponse {
    let usage = Usage { used: 3, limit: 2048 };
    OverviewResponse {
        server: ServerState { name: "triton".to_owned(), version: "1.2.3".to_owned(), live: true, ready: false },
        load: ServerLoad {
            pending_requests: usage,
            pending_bytes: usage,
            grpc_connections: usage,
            http_connections: usage,
        },
        memory: None,
        on_demand: None,
        resources: Vec::new(),
        recent_seconds: 10,
        models,
        models_left_out: 0,
    }
}

fn ready(name: &str) -> ModelOverview {
    ModelOverview {
        name: name.to_owned(),
        version: "1".to_owned(),
        state: "READY".into(),
        policy: "window".into(),
        requests_per_second: Some(12.34),
        failures_per_second: Some(0.0),
        p50_ms: Some(1.234),
        p99_ms: Some(10_000.0),
        in_flight_requests: 5,
        memory_estimated_bytes: Some(3 << 20),
        ..ModelOverview::default()
    }
}

fn broken(name: &str, reason: &str) -> ModelOverview {
    ModelOverview {
        name: name.to_owned(),
        version: "1".to_owned(),
        state: Cow::Borrowed("UNAVAILABLE"),
        reason: reason.to_owned(),
        attention: Some(Attention::Unavailable),
        ..ModelOverview::default()
    }
}

fn shown(answer: &OverviewResponse, order: Order, size: (usize, usize)) -> Vec<Line> {
    View { url: &url(), order, model: None }.on_screen(Some(answer), None, Duration::ZERO, size)
}

fn plain(answer: OverviewResponse, order: Order) -> String {
    View { url: &url(), order, model: None }.plain(&Ok(answer)).join("\n")
}

#[test]
fn everything_is_printed_where_there_is_no_terminal() {
    let reason = "no protobuf ".repeat(30);
    let answer = OverviewResponse {
        memory: Some(ModelsMemory { used_bytes: 3 << 20, limit_bytes: Some(1 << 30) }),
        on_demand: Some(OnDemandState {
            waiting_requests: 1,
            loads: 9,
            failed_loads: 2,
            unloaded_for_memory: 4,
            unloaded_idle: 0,
        }),
        resources: [("cores", "cpu"), ("disk\u{7}", "global")]
            .map(|(name, device)| LimitedResource {
                name: name.to_owned(),
                device: device.to_owned(),
                units: Usage { used: 1, limit: 4 },
            })
            .to_vec(),
        ..answer(vec![broken("a", reason.trim()), ready("long-name")])
    };
    let expected = format!(
        "\
http://localhost:8000/: live, not ready, version 1.2.3
requests 3 of 2048, 3 B of 2.0 KiB; connections gRPC 3 of 2048, HTTP 3 of 2048
memory of models 3.0 MiB of 1.0 GiB; requests that wait for a model 1; loads 9, failed 2; models left for others 4, \
         idle 0
resources cores (cpu) 1 of 4, disk\u{fffd} (global) 1 of 4
1 of 2 need attention: 1 READY, 1 UNAVAILABLE
MODEL      VER  STATE        REQ/S  FAIL/S  P50MS    P99MS  QUEUEMS  COMPMS  INFLIGHT  WAIT  ROWS    MEMORY  POLICY  \
         REQ/S, LAST MINUTE
a          1    UNAVAILABLE
  {}
long-name  1    READY         12.3     0.0   1.23  >=10000                          5     0        ~3.0 MiB  window
",
        reason.trim()
    );
    assert_eq!(plain(answer, Order::Attention), expected);
}

#[test]
fn no_line_is_wider_and_there_are_no_more_than_the_terminal_has() {
    let mut models: Vec<ModelOverview> = (0..300).map(|number| ready(&format!("模型-{number:03}"))).collect();
    models[0] = broken(&"very-long-name".repeat(20), &"no protobuf ".repeat(50));
    let answer = answer(models);
    for width in [1, 5, 20, 40, 80, 100, 137, 400] {
        for height in [1, 4, 6, 10, 24, 1000] {
            let lines = shown(&answer, Order::Attention, (width, height));
            assert!(lines.len() <= height, "{} lines of {height}", lines.len());
            assert!(lines.iter().all(|line| line.text.width() <= width), "{width}: {lines:?}");
            assert!(height < 1000 || lines.len() == 3 + 1 + 300 + 1, "all of them are there: {}", lines.len());
        }
    }
    let lines = shown(&answer, Order::Attention, (80, 10));
    assert_eq!(lines[3].style, Some(Style::Heading));
    assert_eq!(lines[3].text, "MODEL               STATE        REQ/S  FAIL/S    P99MS  QUEUEMS  INFLIGHT  WAIT");
    assert!(lines[4].text.starts_with("very-long-name") && lines[4].text.contains("…  UNAVAILABLE"), "{lines:?}");
    assert_eq!((lines[4].style, lines[5].style, lines[6].style), (Some(Style::Alert), Some(Style::Alert), None));
    assert!(lines[5].text.starts_with("  no protobuf") && lines[5].text.ends_with('…'));
    assert_eq!(lines[9].text, "… 300 models in all: a higher terminal or --model shows others");
}

#[test]
fn models_are_in_the_order_that_was_asked_for() {
    let sized = |name: &str, rate: f64, p99_ms: Option<f64>, memory: Option<usize>| ModelOverview {
        requests_per_second: Some(rate),
        p99_ms,
        memory_measured_bytes: memory,
        memory_estimated_bytes: None,
        ..ready(name)
    };
    let models = vec![
        broken("z", "no protobuf"),
        sized("b", 1.0, Some(5.0), None),
        sized("a", 3.0, None, Some(7)),
        sized("c", 2.0, Some(9.0), Some(5)),
    ];
    let answer = answer(models);
    for (order, expected) in [
        (Order::Attention, "zbac"),
        (Order::Name, "abcz"),
        (Order::Requests, "acbz"),
        (Order::P99, "cbza"),
        (Order::Memory, "aczb"),
    ] {
        let view = View { url: &url(), order, model: None };
        let names: String = view.sorted(&answer).iter().map(|model| model.name.as_str()).collect();
        assert_eq!(names, expected, "{order:?}");
    }
}

#[test]
fn a_terminal_obeys_no_name_and_no_reason() {
    let answer = answer(vec![broken("\x1b[2J\r\nname\u{202e}\u{9b}", "first\n\x1b]0;title\x07second")]);
    for line in shown(&answer, Order::Name, (100, 20)) {
        assert!(!line.text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{line:?}");
    }
    let text = plain(answer, Order::Name);
    assert!(text.contains("\u{fffd}[2J\u{fffd}\u{fffd}name\u{fffd}\u{fffd}"), "{text:?}");
    assert!(text.contains("first\u{fffd}\u{fffd}]0;title\u{fffd}second"), "{text:?}");
}

#[test]
fn a_server_that_does_not_answer_leaves_its_last_figures() {
    let (url, answer) = (url(), answer(vec![ready("m")]));
    let view = View { url: &url, order: Order::Name, model: None };
    let fault = ClientError::Unreachable { url: url.clone(), reason: "connection refused".to_owned() };
    let lines = view.on_screen(Some(&answer), Some(&fault), Duration::from_secs(7), (200, 20));
    let expected = "http://localhost:8000/ cannot be asked: connection refused; it is asked on. \
                    These figures are 7 s old";
    assert_eq!(lines[3], alert(expected.to_owned()));
    assert!(lines.iter().any(|line| line.text.starts_with("m  ")));
    let lines = view.on_screen(None, Some(&fault), Duration::ZERO, (200, 20));
    assert_eq!(lines, [alert(format!("{fault}; it is asked on"))]);
    assert_eq!(view.plain(&Err(fault)), ["http://localhost:8000/ cannot be asked: connection refused"]);
}

#[test]
fn a_model_that_the_server_does_not_know_is_named() {
    let view = View { url: &url(), order: Order::Name, model: Some("unknown") };
    let lines = view.plain(&Ok(answer(Vec::new())));
    assert_eq!(lines[2], "the server knows no model 'unknown'");
}

#[test]
fn the_line_of_a_minute_ends_now_and_is_as_high_as_its_peak() {
    let drawn = |rates: &[f64]| {
        let history = History { requests_per_second: rates.to_vec(), ..History::default() };
        minute(&ModelOverview { history, ..ready("m") })
    };
    assert_eq!(drawn(&[]), "");
    assert_eq!(drawn(&[0.0; 60]), "");
    assert_eq!(drawn(&[1.0, 0.0, 0.0, 8.0, 4.0]), format!("{}▁█", " ".repeat(18)));
    let mut rates = vec![0.0; 57];
    rates.extend([2.0, 1.0, 1.0]);
    assert_eq!(drawn(&rates), format!("{}█", " ".repeat(19)));
    assert_eq!(drawn(&(1..=60).map(f64::from).collect::<Vec<_>>()).chars().count(), MINUTE_COLUMNS);
}
