//! The generate extension.

use super::*;

const IDENT: &str = "/v2/models/ident/generate";
const REPEAT: &str = "/v2/models/repeat/generate_stream";

fn row() -> Vec<f32> {
    (0_u8..16).map(f32::from).collect()
}

async fn ask(server: &Started, path: &str, body: &Value) -> Answer {
    post(server.address(), path, &[], body.to_string().as_bytes()).await
}

/// Returns the data of the events in a chunked answer.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let mut rest = str::from_utf8(&answer.body).expect("text");
    let mut text = String::new();
    while let Some((length, behind)) = rest.split_once("\r\n") {
        let (chunk, behind) = behind.split_at(usize::from_str_radix(length, 16).expect("a length"));
        text += chunk;
        rest = behind.trim_start_matches("\r\n");
    }
    let events = text.split("\n\n").filter(|event| !event.is_empty());
    events.map(|event| serde_json::from_str(event.strip_prefix("data: ").expect("an event")).expect("JSON")).collect()
}

#[tokio::test]
async fn fields_are_inputs_or_parameters_and_the_answer_has_the_outputs() {
    let server = start().await;
    let answer =
        ask(&server, IDENT, &json!({ "id": "a", "INPUT0": row(), "foo": true, "parameters": { "bar": 1 } })).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let expected = json!({ "id": "a", "model_name": "ident", "model_version": "3", "OUTPUT0": row() });
    assert_eq!(answer.json(), expected);
    let answer = ask(&server, IDENT, &json!({ "parameters": { "INPUT0": row() } })).await;
    assert_eq!(answer.json()["OUTPUT0"], json!(row()), "parameters hold inputs, too");
    for (words, expected) in [(json!("word"), json!("word")), (json!(["a", "b"]), json!(["a", "b"]))] {
        let answer = ask(&server, "/v2/models/text/versions/1/generate", &json!({ "INPUT0": words })).await;
        assert_eq!(answer.json()["OUTPUT0"], expected);
    }
}

#[tokio::test]
async fn numbers_that_are_not_finite_can_be_sent_as_they_are_answered() {
    let server = start().await;
    let body = "{\"INPUT0\": [1, -Infinity, NaN], \"parameter\": Infinity}";
    let answer = post(server.address(), "/v2/models/repeat/generate", &[], body.as_bytes()).await;
    let text = String::from_utf8_lossy(&answer.body);
    assert!(answer.status == 200 && text.contains("\"OUTPUT0\":[1.0,-Infinity,NaN]"), "{text}");
    let lone = post(server.address(), REPEAT, &[], b"{\"INPUT0\": NaN}").await;
    assert_ne!(lone.status, 400, "it was read: {}", String::from_utf8_lossy(&lone.body));
    for body in ["{\"INPUT0\": \"NaN\"}", "{\"INPUT0\": [NaN, null]}"] {
        assert_eq!(post(server.address(), REPEAT, &[], body.as_bytes()).await.status, 400, "{body}");
    }
}

#[tokio::test]
async fn each_response_of_a_model_is_an_event() {
    let server = start().await;
    let answer = ask(&server, REPEAT, &json!({ "INPUT0": [3, 0.5] })).await;
    assert_eq!(answer.status, 200);
    let found: Vec<Value> = events(&answer).iter().map(|event| event["OUTPUT0"].clone()).collect();
    assert_eq!(found, [json!([3.0, 0.5]), json!([4.0, 1.5]), json!([5.0, 2.5])]);
    let answer = ask(&server, REPEAT, &json!({ "INPUT0": [0] })).await;
    assert_eq!((answer.status, events(&answer)), (200, Vec::new()), "a model may say nothing");
    let answer = ask(&server, "/v2/models/ident/generate_stream", &json!({ "INPUT0": row() })).await;
    assert_eq!(events(&answer).len(), 1, "an ordinary model answers once");
}

#[tokio::test]
async fn generate_wants_exactly_one_response() {
    let server = start().await;
    let answer = ask(&server, "/v2/models/repeat/generate", &json!({ "INPUT0": 1 })).await;
    assert_eq!((answer.status, &answer.json()["OUTPUT0"]), (200, &json!(1.0)));
    for count in [0, 2] {
        let answer = ask(&server, "/v2/models/repeat/generate", &json!({ "INPUT0": count })).await;
        assert_eq!(answer.status, 400);
        assert!(answer.error().contains("exactly 1 response"), "{}", answer.error());
    }
}

#[tokio::test]
async fn a_failure_before_the_first_response_is_the_status_and_an_event() {
    let server = start().await;
    let answer = ask(&server, REPEAT, &json!({ "INPUT0": [-1] })).await;
    assert_eq!(answer.status, 500);
    let events = events(&answer);
    assert_eq!(events.len(), 1);
    assert!(events[0]["error"].is_string(), "{}", events[0]);
}

#[tokio::test]
async fn what_is_wrong_is_told_as_json_before_anything_runs() {
    let server = start().await;
    let cases = [
        ("[]", "a request to generate"),
        ("{", "failed to parse the request JSON"),
        ("{}", "expected 1 inputs but got 0"),
        ("{\"INPUT0\":1,\"INPUT0\":1}", "input 'INPUT0' already exists in request"),
        ("{\"INPUT0\":\"a\"}", "value 'a' at index 0 does not fit the datatype"),
        ("{\"INPUT0\":{\"a\":1}}", "value {…} at index 0 does not fit the datatype, expected a number"),
        ("{\"INPUT0\":[1,2]}", "expected 16, got 2"),
        ("{\"foo\":[1]}", "parameter 'foo' to be a number, a boolean or a string"),
        ("{\"parameters\":1}", "parameters: an object"),
        ("{\"parameters\":{\"parameters\":{}}}", "parameter 'parameters' to be"),
        ("{\"id\":1}", "invalid type: integer"),
    ];
    for (body, expected) in cases {
        for path in [IDENT, "/v2/models/ident/generate_stream"] {
            let answer = post(server.address(), path, &[], body.as_bytes()).await;
            assert_eq!((answer.status, answer.header("content-type")), (400, Some("application/json")), "{body}");
            assert!(answer.error().contains(expected), "{body}: {}", answer.error());
        }
    }
    assert_eq!(ask(&server, "/v2/models/nope/generate", &json!({})).await.status, 404);
    let half = ask(&server, "/v2/models/half/generate", &json!({ "INPUT0": 1 })).await;
    assert_eq!(half.status, 400);
    assert!(half.error().contains("FP16 data via JSON is not supported"), "{}", half.error());
    assert_eq!(server.fixture.services.budgets.bytes.used(), 0, "nothing is held any more");
    assert_eq!(server.fixture.services.budgets.requests.used(), 0);
}
