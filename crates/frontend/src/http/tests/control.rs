//! Repository control, shared memory, log and trace settings over HTTP.

use super::*;

async fn ask(server: &Started, path: &str, body: &str) -> (u16, Value) {
    let answer = post(server.address(), path, &[], body.as_bytes()).await;
    let json = if answer.body.is_empty() { Value::Null } else { answer.json() };
    (answer.status, json)
}

#[tokio::test]
async fn the_index_lists_models_with_what_is_known_of_them() {
    let server = start().await;
    for body in ["", "{}", "{\"ready\":true}"] {
        let (status, index) = ask(&server, "/v2/repository/index", body).await;
        assert_eq!(status, 200, "{body}");
        let expected = json!({ "name": "ident", "version": "3", "state": "READY" });
        assert!(index.as_array().is_some_and(|entries| entries.contains(&expected)), "{index}");
    }
    for wrong in ["{\"ready\":1}", "[]", "[true]", "true"] {
        assert_eq!(ask(&server, "/v2/repository/index", wrong).await.0, 400, "{wrong}");
    }
    let (status, answer) = ask(&server, "/v2/repository/other/index", "").await;
    assert_eq!(status, 501, "{answer}");
}

#[tokio::test]
async fn models_are_controlled_in_explicit_mode_alone() {
    let server = start().await;
    for verb in ["load", "unload"] {
        let (status, answer) = ask(&server, &format!("/v2/repository/models/ident/{verb}"), "").await;
        assert_eq!(status, 503, "{answer}");
    }
    let load = "/v2/repository/models/ident/load";
    let (status, answer) = ask(&server, load, "{\"parameters\":{\"file:1/model.onnx\":\"%%%\"}}").await;
    assert_eq!(status, 400);
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("is no base64")), "{answer}");
    assert_eq!(ask(&server, load, "{\"parameters\":[]}").await.0, 400);
    let (status, answer) = ask(&server, load, "{\"parameters\":{\"x\":{}}}").await;
    let expected = "expected parameter 'x' to be a number, a boolean or a string";
    assert_eq!((status, answer["error"].as_str()), (400, Some(expected)));
}

#[tokio::test]
async fn shared_memory_answers_as_over_grpc() {
    let server = start().await;
    for kind in ["systemsharedmemory", "cudasharedmemory"] {
        assert_eq!(json_of(server.address(), &format!("/v2/{kind}/status")).await, (200, json!([])));
        assert_eq!(json_of(server.address(), &format!("/v2/{kind}/region/r/status")).await.0, 404);
        assert_eq!(ask(&server, &format!("/v2/{kind}/unregister"), "").await, (200, Value::Null));
        assert_eq!(ask(&server, &format!("/v2/{kind}/region/r/unregister"), "").await, (200, Value::Null));
    }
    let (status, answer) =
        ask(&server, "/v2/systemsharedmemory/region/r/register", "{\"key\":\"/k\",\"byte_size\":4}").await;
    assert_eq!(status, 501, "{answer}");
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("--allow-client-shm")), "{answer}");
    let (status, answer) = ask(&server, "/v2/systemsharedmemory/region/r/register", "{\"key\":\"/k\"}").await;
    assert_eq!(status, 400);
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("missing field `byte_size`")), "{answer}");
    assert_eq!(ask(&server, "/v2/systemsharedmemory/region/r/register", "[\"/k\",0,4]").await.0, 400);
    let register = "/v2/cudasharedmemory/region/r/register";
    for (body, status, fact) in [
        ("{}", 400, "missing field `raw_handle`"),
        ("{\"raw_handle\":{\"b64\":\"%\"},\"device_id\":0,\"byte_size\":4}", 400, "is no base64"),
        ("{\"raw_handle\":{\"b64\":\"AAAA\"},\"device_id\":0,\"byte_size\":4}", 501, "--allow-client-shm"),
    ] {
        let (answered, answer) = ask(&server, register, body).await;
        assert_eq!(answered, status, "{answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(fact)), "{answer}");
    }
}

#[tokio::test]
async fn the_log_is_read_and_changed() {
    let server = start().await;
    let (status, settings) = json_of(server.address(), "/v2/logging").await;
    assert_eq!((status, &settings["log_verbose_level"]), (200, &json!(0)));
    let (status, settings) = ask(&server, "/v2/logging", "{\"log_verbose_level\":1,\"log_info\":false}").await;
    assert_eq!(status, 200);
    assert_eq!((&settings["log_verbose_level"], &settings["log_info"]), (&json!(1), &json!(false)));
    for wrong in
        ["{\"log_verbose_level\":-1}", "{\"log_verbose_level\":true}", "{\"log_info\":[]}", "[]", "{\"log_info\":1}"]
    {
        assert_eq!(ask(&server, "/v2/logging", wrong).await.0, 400, "{wrong}");
    }
    assert_eq!(json_of(server.address(), "/v2/logging").await.1["log_verbose_level"], 1, "nothing changed");
}

#[tokio::test]
async fn trace_settings_are_read_and_changed() {
    let server = start().await;
    for path in ["/v2/trace/setting", "/v2/models/ident/trace/setting"] {
        let (status, settings) = json_of(server.address(), path).await;
        assert_eq!(status, 200);
        assert_eq!((&settings["trace_level"], &settings["trace_rate"]), (&json!(["OFF"]), &json!("1000")));
        let (status, settings) = ask(&server, path, "{\"trace_rate\":\"7\",\"trace_count\":9}").await;
        assert_eq!((status, &settings["trace_rate"], &settings["trace_count"]), (200, &json!("7"), &json!("9")));
        let (status, settings) = ask(&server, path, "{\"trace_rate\":null,\"trace_count\":null}").await;
        assert_eq!((status, &settings["trace_rate"], &settings["trace_count"]), (200, &json!("1000"), &json!("-1")));

        assert_eq!(ask(&server, path, "{\"trace_file\":\"/etc/passwd\"}").await.0, 501, "clients name no files");
        for refused in ["{\"trace_rate\":\"often\"}", "{\"colour\":\"red\"}", "{\"trace_level\":[\"TIMESTAMPS\"]}"] {
            let (status, answer) = ask(&server, path, refused).await;
            assert_eq!(status, 400, "{refused}: {answer}");
        }
        assert_eq!(json_of(server.address(), path).await.1["trace_rate"], "1000");
    }
    assert_eq!(json_of(server.address(), "/v2/models/nope/trace/setting").await.0, 400);
}
