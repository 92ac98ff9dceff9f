//! All methods on the server and its models except inference.

use std::collections::HashMap;

use paternoster_wire::pb::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryStatusRequest, CudaSharedMemoryUnregisterRequest,
    LogSettingsRequest, ModelConfigRequest, ModelMetadataRequest, ModelReadyRequest, ModelStatisticsRequest,
    ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest, SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryStatusRequest, SystemSharedMemoryUnregisterRequest, TraceSettingRequest, log_settings_request,
    log_settings_response::setting_value::ParameterChoice as Shown, trace_setting_request,
};
use tonic::Code;

use crate::grpc::support::{
    Server,
    models::Models,
    raw::{RawBody, RawConnection, grpc_status, post},
    request, soon,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_all_its_models_is_live_and_ready() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    assert!(soon(client.server_live(ServerLiveRequest {})).await.expect("OK").get_ref().live);
    assert!(soon(client.server_ready(ServerReadyRequest {})).await.expect("OK").get_ref().ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_broken_model_is_live_but_not_ready() {
    let server = Server::start_with(Models::all().with_broken(), |_| {}).await;
    let mut client = server.client().await;
    assert!(soon(client.server_live(ServerLiveRequest {})).await.expect("OK").get_ref().live);
    assert!(!soon(client.server_ready(ServerReadyRequest {})).await.expect("OK").get_ref().ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metadata_name_what_is_implemented() {
    let server = Server::start(|_| {}).await;
    let metadata =
        soon(server.client().await.server_metadata(ServerMetadataRequest {})).await.expect("OK").into_inner();
    assert_eq!(metadata.name, "triton", "official examples compare it");
    assert_eq!(metadata.version, env!("CARGO_PKG_VERSION"));
    assert!(metadata.extensions.iter().any(|name| name == "statistics"), "perf_analyzer needs it");
    assert!(!metadata.extensions.iter().any(|name| name == "cuda_shared_memory"), "there is no card");
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_of_a_model_is_an_answer_and_a_bad_version_an_error() {
    let server = Server::start_with(Models::all().with_broken(), |_| {}).await;
    let mut client = server.client().await;
    let mut ready = async |name: &str, version: &str| {
        let request = ModelReadyRequest { name: name.to_owned(), version: version.to_owned() };
        soon(client.model_ready(request)).await.map(|response| response.into_inner().ready).map_err(|e| e.code())
    };
    assert_eq!(ready("identity", "").await, Ok(true));
    assert_eq!(ready("identity", "1").await, Ok(true));
    assert_eq!(ready("identity", "9").await, Ok(false));
    assert_eq!(ready("broken", "").await, Ok(false));
    assert_eq!(ready("nope", "").await, Ok(false));
    assert_eq!(ready("identity", "abc").await, Err(Code::InvalidArgument));
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_and_configuration_describe_a_model() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let request = ModelMetadataRequest { name: "identity".to_owned(), version: String::new() };
    let metadata = soon(client.model_metadata(request)).await.expect("OK").into_inner();
    assert_eq!((metadata.name.as_str(), metadata.versions.as_slice()), ("identity", &["1".to_owned()][..]));
    assert_eq!((metadata.inputs[0].datatype.as_str(), metadata.inputs[0].shape.as_slice()), ("FP32", &[-1, -1][..]));
    let request = ModelConfigRequest { name: "identity".to_owned(), version: "1".to_owned() };
    let config = soon(client.model_config(request)).await.expect("OK").into_inner().config.expect("a configuration");
    assert_eq!((config.name.as_str(), config.max_batch_size), ("identity", 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_and_configuration_of_what_is_not_there_are_not_found() {
    let server = Server::start_with(Models::all().with_broken(), |_| {}).await;
    let mut client = server.client().await;
    for (name, version, code) in [
        ("nope", "", Code::NotFound),
        ("", "", Code::NotFound),
        ("broken", "", Code::NotFound),
        ("identity", "9", Code::NotFound),
        ("identity", "abc", Code::InvalidArgument),
    ] {
        let request = ModelMetadataRequest { name: name.to_owned(), version: version.to_owned() };
        assert_eq!(soon(client.model_metadata(request)).await.expect_err("refused").code(), code, "{name}/{version}");
        let request = ModelConfigRequest { name: name.to_owned(), version: version.to_owned() };
        assert_eq!(soon(client.model_config(request)).await.expect_err("refused").code(), code, "{name}/{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_count_what_was_answered() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    for _ in 0..3 {
        soon(client.model_infer(request("identity", "", &[1.0]))).await.expect("OK");
    }
    let request = ModelStatisticsRequest { name: "identity".to_owned(), version: String::new() };
    let response = soon(client.model_statistics(request)).await.expect("OK").into_inner();
    let [model] = response.model_stats.as_slice() else { panic!("one version: {response:?}") };
    assert_eq!((model.name.as_str(), model.version.as_str(), model.inference_count), ("identity", "1", 3));
    let stats = model.inference_stats.as_ref().expect("there");
    let count = |part: &Option<paternoster_wire::pb::StatisticDuration>| part.as_ref().map(|part| part.count);
    assert_eq!(count(&stats.success), Some(3));
    assert_eq!(count(&stats.fail), Some(0));
    assert_eq!(count(&stats.queue), Some(3));
    let executed: u64 = model.batch_stats.iter().filter_map(|size| count(&size.compute_infer)).sum();
    assert_eq!(executed, model.execution_count, "every execution is under its batch size");
    let all = soon(client.model_statistics(ModelStatisticsRequest::default())).await.expect("OK").into_inner();
    assert_eq!(all.model_stats.len(), 3, "an empty name means all that are ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_of_what_is_not_there_are_an_invalid_argument() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    for (name, version) in [("nope", ""), ("nope", "1"), ("identity", "9"), ("identity", "abc")] {
        let request = ModelStatisticsRequest { name: name.to_owned(), version: version.to_owned() };
        let status = soon(client.model_statistics(request)).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{name}/{version}: {}", status.message());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn system_shared_memory_answers_without_regions() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let status = soon(client.system_shared_memory_status(SystemSharedMemoryStatusRequest::default())).await;
    assert!(status.expect("OK").get_ref().regions.is_empty());
    let named = SystemSharedMemoryStatusRequest { name: "nope".to_owned() };
    assert_eq!(soon(client.system_shared_memory_status(named)).await.expect_err("unknown").code(), Code::NotFound);
    let unregister = SystemSharedMemoryUnregisterRequest { name: "nope".to_owned() };
    soon(client.system_shared_memory_unregister(unregister)).await.expect("clients call it before anything else");
    let register = SystemSharedMemoryRegisterRequest {
        name: "region".to_owned(),
        key: "/paternoster-test-no-such-object".to_owned(),
        offset: 0,
        byte_size: 16,
    };
    let status = soon(client.system_shared_memory_register(register)).await.expect_err("no such object");
    assert_eq!(status.code(), Code::Internal, "{}", status.message());
    let tritons = "Unable to open shared memory region: '/paternoster-test-no-such-object'";
    assert!(status.message().starts_with(tritons), "{}", status.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn cuda_shared_memory_is_not_there_without_a_card_and_says_so() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let status = soon(client.cuda_shared_memory_status(CudaSharedMemoryStatusRequest::default())).await;
    assert!(status.expect("OK").get_ref().regions.is_empty());
    soon(client.cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest::default())).await.expect("OK");
    let unknown = CudaSharedMemoryStatusRequest { name: "region".to_owned() };
    assert_eq!(soon(client.cuda_shared_memory_status(unknown)).await.expect_err("unknown").code(), Code::NotFound);
    let register = CudaSharedMemoryRegisterRequest {
        name: "region".to_owned(),
        raw_handle: vec![0; 64],
        device_id: 0,
        byte_size: 64,
    };
    let status = soon(client.cuda_shared_memory_register(register)).await.expect_err("there is no card");
    assert_eq!(status.code(), Code::InvalidArgument, "{}", status.message());
    assert!(status.message().contains("this server uses no CUDA card"), "{}", status.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_settings_show_that_tracing_is_off() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let of = |model: &str| TraceSettingRequest { model_name: model.to_owned(), settings: HashMap::new() };
    let settings = soon(client.trace_setting(of("identity"))).await.expect("OK").into_inner().settings;
    assert_eq!(settings["trace_level"].value, ["OFF"]);
    assert_eq!(settings["trace_count"].value, ["-1"]);
    assert_eq!(settings.len(), 6);
    let status = soon(client.trace_setting(of("nope"))).await.expect_err("unknown model");
    assert_eq!(status.code(), Code::InvalidArgument);
    let value = trace_setting_request::SettingValue { value: vec!["TIMESTAMPS".to_owned()] };
    let change = TraceSettingRequest { settings: [("trace_level".to_owned(), value)].into(), ..of("") };
    let status = soon(client.trace_setting(change)).await.expect_err("there is no file");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("trace file name is not given"), "{}", status.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn log_settings_can_be_read_and_changed() {
    use log_settings_request::{SettingValue, setting_value::ParameterChoice as Given};

    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let settings = soon(client.log_settings(LogSettingsRequest::default())).await.expect("OK").into_inner().settings;
    let mut names: Vec<_> = settings.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["log_error", "log_file", "log_format", "log_info", "log_verbose_level", "log_warning"]);
    let set = |name: &str, choice| LogSettingsRequest {
        settings: [(name.to_owned(), SettingValue { parameter_choice: Some(choice) })].into(),
    };
    let changed =
        soon(client.log_settings(set("log_warning", Given::BoolParam(false)))).await.expect("OK").into_inner();
    assert_eq!(changed.settings["log_warning"].parameter_choice, Some(Shown::BoolParam(false)));
    soon(client.log_settings(set("log_warning", Given::BoolParam(true)))).await.expect("OK");
    let ignored = soon(client.log_settings(set("log_colour", Given::BoolParam(true)))).await.expect("OK").into_inner();
    assert_eq!(ignored.settings.len(), names.len(), "a name that is no setting adds none");
    for refused in [set("log_warning", Given::Uint32Param(1)), set("log_verbose_level", Given::Uint32Param(4))] {
        let status = soon(client.log_settings(refused)).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{}", status.message());
    }
    let file = set("log_file", Given::StringParam("elsewhere.log".to_owned()));
    let status = soon(client.log_settings(file)).await.expect_err("a client chooses no files");
    assert_eq!(status.code(), Code::Unimplemented, "{}", status.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_unimplemented() {
    let server = Server::start(|_| {}).await;
    let mut connection = RawConnection::open(server.address()).await;
    for path in
        ["/inference.GRPCInferenceService/ModelTrain", "/inference.Other/ModelInfer", "/", "/grpc.health.v1.Health/"]
    {
        let response = soon(connection.call(post(path, RawBody::whole(vec![0; 5])))).await.expect("a response");
        assert_eq!(grpc_status(&response), Some("12"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_not_grpc_are_turned_away() {
    let server = Server::start(|_| {}).await;
    let mut connection = RawConnection::open(server.address()).await;
    for (kind, is_served) in [
        ("application/json", false),
        ("application/grpc-web", false),
        ("application/grpc-web+proto", false),
        ("application/grpcx", false),
        ("application/grpc+json", false),
        ("application/grpc", true),
        ("application/grpc+proto", true),
        ("Application/gRPC ; a=b", true),
    ] {
        let mut call = post("/inference.GRPCInferenceService/ServerLive", RawBody::whole(vec![0; 5]));
        call.headers_mut().insert("content-type", kind.parse().expect("ASCII"));
        let response = soon(connection.call(call)).await.expect("a response");
        let expected = if is_served { http::StatusCode::OK } else { http::StatusCode::UNSUPPORTED_MEDIA_TYPE };
        assert_eq!(response.status(), expected, "{kind}");
    }
}
