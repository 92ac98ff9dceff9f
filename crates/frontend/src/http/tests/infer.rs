//! Inference as JSON and as binary data.

use super::*;

const INFER: &str = "/v2/models/ident/infer";

fn row() -> Vec<f32> {
    (0_u8..16).map(f32::from).collect()
}

fn bytes(row: &[f32]) -> Vec<u8> {
    row.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Creates a request of one row with these additional fields.
fn request(more: Value) -> Value {
    let mut request = json!({
        "inputs": [{ "name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": row() }],
    });
    request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    request
}

/// Creates the JSON of a request whose input is binary data of this size.
fn binary_request(size: usize, parameters: &Value) -> Vec<u8> {
    let input =
        json!({ "name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "parameters": { "binary_data_size": size } });
    json!({ "inputs": [input], "parameters": parameters }).to_string().into_bytes()
}

async fn infer(server: &Started, request: &Value) -> Answer {
    post(server.address(), INFER, &[], request.to_string().as_bytes()).await
}

/// Posts JSON followed by binary data, with the length of the JSON in a header.
async fn infer_binary(server: &Started, json: &[u8], data: &[u8], more: &[(&str, &str)]) -> Answer {
    let length = json.len().to_string();
    let headers = [&[("Inference-Header-Content-Length", length.as_str())], more].concat();
    post(server.address(), INFER, &headers, &[json, data].concat()).await
}

#[tokio::test]
async fn a_request_in_json_is_answered_in_json() {
    let server = start().await;
    let answer = infer(&server, &request(json!({ "id": "a", "parameters": { "foo": 1.5 } }))).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(
        answer.json(),
        json!({
            "id": "a",
            "model_name": "ident",
            "model_version": "3",
            "outputs": [{ "name": "OUTPUT0", "datatype": "FP32", "shape": [1, 16], "data": row() }],
        })
    );
    let nested = json!([[0, 1, 2, 3, 4, 5, 6, 7], [[8, 9], 10, 11, 12, 13, 14, 15]]);
    let mut asked = request(json!({}));
    asked["inputs"][0]["data"] = nested;
    let of_version =
        post(server.address(), "/v2/models/ident/versions/1/infer", &[], asked.to_string().as_bytes()).await;
    assert_eq!(of_version.json()["model_version"], "1");
    assert_eq!(of_version.json()["outputs"][0]["data"], json!(row()));
    let stats = json_of(server.address(), "/v2/models/ident/versions/3/stats").await.1;
    assert_eq!(stats["model_stats"][0]["inference_stats"]["success"]["count"], 1, "it counts as over gRPC");
}

#[tokio::test]
async fn binary_data_come_and_go_behind_the_json() {
    let server = start().await;
    let json = binary_request(64, &json!({ "binary_data_output": true }));
    let answer = infer_binary(&server, &json, &bytes(&row()), &[]).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/octet-stream")));
    let length: usize =
        answer.header("inference-header-content-length").expect("there is data").parse().expect("a number");
    let (json, data) = answer.body.split_at(length);
    let json: Value = serde_json::from_slice(json).expect("JSON comes first");
    assert_eq!(json["outputs"][0]["parameters"], json!({ "binary_data_size": 64 }));
    assert_eq!(data, bytes(&row()));
}

#[tokio::test]
async fn each_output_has_the_form_that_is_asked_for() {
    let server = start().await;
    let outputs = json!([{ "name": "OUTPUT0", "parameters": { "binary_data": false } }]);
    let answer =
        infer(&server, &request(json!({ "outputs": outputs, "parameters": { "binary_data_output": true } }))).await;
    assert_eq!(answer.json()["outputs"][0]["data"], json!(row()), "the output's own word counts");
    let outputs = json!([{ "name": "OUTPUT0", "parameters": { "binary_data": true } }]);
    let answer = infer(&server, &request(json!({ "outputs": outputs }))).await;
    assert!(answer.body.ends_with(&bytes(&row())));
    let outputs = json!([{ "name": "OUTPUT0", "parameters": { "classification": 2 } }]);
    let answer = infer(&server, &request(json!({ "outputs": outputs }))).await;
    let output = &answer.json()["outputs"][0];
    assert_eq!((&output["datatype"], &output["shape"]), (&json!("BYTES"), &json!([1, 2])));
    assert_eq!(output["data"], json!(["15.000000:15", "14.000000:14"]));
}

#[tokio::test]
async fn a_body_without_json_is_the_one_input() {
    let server = start().await;
    let raw = [("Inference-Header-Content-Length", "0")];
    let answer = post(server.address(), INFER, &raw, &bytes(&row())).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.ends_with(&bytes(&row())), "the answer is binary too");
    let answer = post(server.address(), INFER, &raw, &[0; 60]).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("expected 64, got 60"), "{}", answer.error());
    let answer = post(server.address(), "/v2/models/half/infer", &raw, &[1, 2, 3, 4]).await;
    assert!(answer.body.ends_with(&[1, 2, 3, 4]), "the variable dimension follows from the length");
    let answer = post(server.address(), "/v2/models/text/infer", &raw, b"word").await;
    assert_eq!(answer.status, 400, "the number of strings is missing");
}

#[tokio::test]
async fn strings_are_text_in_json_and_anything_in_binary_data() {
    let server = start().await;
    let words = json!(["", "a\u{0}\"\\\n", "žluťoučký \u{1F40E}"]);
    let asked = json!({ "inputs": [{ "name": "INPUT0", "shape": [1, 3], "datatype": "BYTES", "data": words }] });
    let answer = post(server.address(), "/v2/models/text/infer", &[], asked.to_string().as_bytes()).await;
    assert_eq!(answer.json()["outputs"][0]["data"], words);

    let input =
        json!({ "name": "INPUT0", "shape": [1, 1], "datatype": "BYTES", "parameters": { "binary_data_size": 5 } });
    let json = json!({ "inputs": [input] }).to_string();
    let length = json.len().to_string();
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let body = [json.as_bytes(), &[1, 0, 0, 0, 0xff]].concat();
    let answer = post(server.address(), "/v2/models/text/infer", &headers, &body).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("is not UTF-8, ask for it as binary data"), "{}", answer.error());
}

#[tokio::test]
async fn numbers_that_are_not_finite_are_written_as_triton_writes_them() {
    let server = start().await;
    let mut values = row();
    values[..3].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    let json = binary_request(64, &json!({}));
    let answer = infer_binary(&server, &json, &bytes(&values), &[]).await;
    let text = String::from_utf8(answer.body).expect("text");
    assert!(text.contains("\"data\":[NaN,Infinity,-Infinity,3.0,"), "{text}");
}

#[tokio::test]
async fn an_answer_can_be_sent_back() {
    let server = start().await;
    let mut values = row();
    values[..3].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    let json = binary_request(64, &json!({}));
    let answer = infer_binary(&server, &json, &bytes(&values), &[]).await;
    let text = String::from_utf8(answer.body).expect("text");
    let outputs = &text[text.find("\"outputs\"").expect("outputs")..];
    let inputs = outputs.replace("outputs", "inputs").replace("OUTPUT0", "INPUT0");
    // Small bodies are read by the I/O thread, large ones by a worker.
    for spaces in [0, 100_000] {
        let body = format!("{{{}{inputs}", " ".repeat(spaces));
        let again = post(server.address(), INFER, &[], body.as_bytes()).await;
        assert_eq!((again.status, String::from_utf8(again.body).expect("text")), (200, text.clone()));
    }
}

#[tokio::test]
async fn requests_that_are_wrong_are_told_what_was_expected() {
    let server = start().await;
    let input = |change: Value| {
        let mut asked = request(json!({ "id": "a" }));
        asked["inputs"][0].as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        asked.to_string()
    };
    let sixteen = |value: Value| json!({ "data": vec![value; 16] });
    let cases = [
        ("{".to_owned(), "failed to parse the request JSON"),
        ("[]".to_owned(), "an inference request"),
        ("{} {}".to_owned(), "trailing characters"),
        ("{\"inputs\": [{}]}".to_owned(), "'inputs[0]': missing field `name`"),
        ("{\"inputs\": 1}".to_owned(), "'inputs': invalid type: integer `1`, expected a list of inputs"),
        ("{\"id\": 1}".to_owned(), "'id': invalid type: integer `1`, expected a string"),
        (input(json!({ "name": null })), "'inputs[0].name': invalid type: null, expected a string"),
        (input(json!({ "shape": [1, 1.5] })), "'inputs[0].shape[1]': invalid type: floating point `1.5`, expected i64"),
        (input(json!({ "parameters": [] })), "'inputs[0].parameters': invalid type: sequence, expected parameters"),
        ("{}".to_owned(), "expected 1 inputs but got 0"),
        (input(json!({ "name": "X" })), "unexpected inference input 'X' for model 'ident'"),
        (input(json!({ "datatype": "FP99" })), "data-type is 'FP99', but the model expects 'FP32'"),
        (input(json!({ "datatype": "INT32" })), "unable to parse 'data' as INT32: value 0.0 at index 0 does not fit"),
        (input(json!({ "datatype": "FP16" })), "receiving FP16 data via JSON is not supported"),
        (input(json!({ "shape": [1, 15] })), "expected 15, got 16"),
        (input(json!({ "shape": [1, -16] })), "negative dimension"),
        (input(json!({ "shape": [1, 1_i64 << 40, 1_i64 << 40] })), "more elements than can be counted"),
        (input(json!({ "shape": ["1"] })), "invalid type: string"),
        (input(json!({ "shape": [2, 8] })), "unexpected shape, expected [-1,16], got [2,8]"),
        (input(json!({ "shape": [5, 16], "data": [row(), row(), row(), row(), row()] })), "must be <= 4, got 5"),
        (input(json!({ "data": 1 })), "expected a list, got 1"),
        (input(sixteen(json!("1"))), "value '1' at index 0 does not fit the datatype"),
        (input(sixteen(json!(1e300))), "does not fit the datatype"),
        (
            input(sixteen(json!({}))),
            "input 'INPUT0': unable to parse 'data' as FP32: value {…} at index 0 does not fit",
        ),
        (input(sixteen(json!(null))), "value null at index 0 does not fit the datatype, expected a number up to"),
        (input(json!({ "parameters": { "binary_data_size": 64 } })), "got more than one"),
        (input(json!({ "parameters": { "binary_data_size": [1] } })), "invalid value type for 'binary_data_size'"),
        (request(json!({ "parameters": { "timeout": { "x": 1 } } })).to_string(), "invalid value type for 'timeout'"),
        (
            "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[1,16],\"datatype\":\"FP32\"}]}".to_owned(),
            "expected one of 'data', the parameter 'binary_data_size', or shared memory, got none",
        ),
        (request(json!({ "outputs": [{ "name": "Y" }] })).to_string(), "unexpected inference output 'Y'"),
        (request(json!({ "parameters": { "timeout": "1" } })).to_string(), "invalid value type for 'timeout'"),
        (request(json!({ "parameters": { "triton_x": 1 } })).to_string(), "'triton_x' is reserved"),
        (request(json!({ "parameters": { "binary_data_output": 1 } })).to_string(), "'binary_data_output' parameter"),
    ];
    let mut wrong = Vec::new();
    for (body, expected) in cases {
        let answer = post(server.address(), INFER, &[], body.as_bytes()).await;
        assert_eq!((answer.status, answer.header("content-type")), (400, Some("application/json")), "{body}");
        if !answer.error().contains(expected) {
            wrong.push((expected, answer.error()));
        }
    }
    assert_eq!(wrong, [], "expected, and the text instead");
    let deep = |member: &str, depth: usize| {
        let lists = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        input(json!({ (member): "lists" })).replace("\"lists\"", &lists)
    };
    let answer = post(server.address(), INFER, &[], deep("x", 100).as_bytes()).await;
    assert!(answer.error().contains("nesting depth"), "{}", answer.error());
    let allowed = post(server.address(), INFER, &[], deep("data", 99).as_bytes()).await;
    assert!(allowed.error().contains("expected 16, got 0"), "{}", allowed.error());
    let answer = post(server.address(), INFER, &[], deep("data", 100).as_bytes()).await;
    let expected = "JSON nesting depth exceeds maximum allowed limit (100)";
    assert_eq!((answer.status, answer.error().as_str()), (400, expected));
}

#[tokio::test]
async fn parameters_that_mean_nothing_here_do_no_harm() {
    let server = start().await;
    let nested = json!({ "content_type": "np", "headers": { "a": ["b", null] }, "x": null, "y": [1, { "z": 2 }] });
    let mut asked = request(json!({ "parameters": nested, "outputs": [{ "name": "OUTPUT0", "parameters": nested }] }));
    asked["inputs"][0]["parameters"] = nested;
    let answer = infer(&server, &asked).await;
    assert_eq!((answer.status, &answer.json()["outputs"][0]["data"]), (200, &json!(row())));
}

#[tokio::test]
async fn binary_data_that_do_not_fit_their_sizes_are_refused() {
    let server = start().await;
    let json = |size: i64| {
        let parameters = json!({ "binary_data_size": size });
        let input = json!({ "name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "parameters": parameters });
        json!({ "inputs": [input] }).to_string().into_bytes()
    };
    for (size, data, expected) in [
        (64, 63, "'binary_data_size' is 64, but 63 bytes of binary data are left"),
        (64, 65, "1 bytes of binary data follow those of the inputs, expected none"),
        (-1, 64, "'binary_data_size' is -1"),
        (i64::MAX, 64, "bytes of binary data are left"),
        (60, 60, "input byte size mismatch, expected 64, got 60"),
    ] {
        let answer = infer_binary(&server, &json(size), &vec![0; data], &[]).await;
        assert_eq!(answer.status, 400, "{size} of {data}");
        assert!(answer.error().contains(expected), "{size} of {data}: {}", answer.error());
    }
    for (length, expected) in
        [("x", "expected a number of bytes"), ("-1", "expected"), ("1000000", "the body has 2 bytes")]
    {
        let answer = post(server.address(), INFER, &[("Inference-Header-Content-Length", length)], b"{}").await;
        assert_eq!(answer.status, 400, "{length}");
        assert!(answer.error().contains(expected), "{length}: {}", answer.error());
    }
}

#[tokio::test]
async fn what_cannot_be_called_here_has_tritons_status() {
    let server = start().await;
    let ask = async |path: &str| {
        let answer = post(server.address(), path, &[], request(json!({})).to_string().as_bytes()).await;
        (answer.status, answer.error())
    };
    let (status, error) = ask("/v2/models/nope/infer").await;
    assert_eq!(status, 404);
    assert!(error.contains("'nope' is not found"), "{error}");
    assert_eq!(ask("/v2/models/ident/versions/9/infer").await.0, 404);
    assert_eq!(ask("/v2/models/ident/versions/x/infer").await.0, 400);
    let (status, error) = ask("/v2/models/repeat/infer").await;
    assert_eq!(status, 501);
    assert!(error.contains("decoupled"), "{error}");
    let half =
        json!({ "name": "INPUT0", "shape": [1, 1], "datatype": "FP16", "parameters": { "binary_data_size": 2 } });
    let json = json!({ "inputs": [half] }).to_string();
    let length = json.len().to_string();
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let body = [json.as_bytes(), &[0, 0]].concat();
    let answer = post(server.address(), "/v2/models/half/infer", &headers, &body).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("sending FP16 data via JSON is not supported"), "{}", answer.error());
}

#[tokio::test]
async fn more_requests_than_may_be_pending_are_refused() {
    let budgets = Budgets { requests: Budget::of(0), ..Budgets::default() };
    let server = start_with(budgets, HttpConfig::default(), Timeline::off()).await;
    let answer = infer(&server, &request(json!({}))).await;
    assert_eq!((answer.status, answer.error().as_str()), (503, "the server has 0 pending requests, its limit"));
}
