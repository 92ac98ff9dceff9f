"""The server as a whole: health, metadata, probes, metrics, settings."""

import base64
import json
import re
import subprocess

import fetch
import grpc
import pytest
import tritonclient.grpc as triton
from clients import ROW, metric, raw_channel, refused, rows, tensor
from tritonclient.grpc import service_pb2, service_pb2_grpc

HEALTH = "/grpc.health.v1.Health"
SERVING = b"\x08\x01"
NV_FAMILIES = {
    "nv_inference_request_success": "counter",
    "nv_inference_request_failure": "counter",
    "nv_inference_count": "counter",
    "nv_inference_exec_count": "counter",
    "nv_inference_request_duration_us": "counter",
    "nv_inference_queue_duration_us": "counter",
    "nv_inference_compute_input_duration_us": "counter",
    "nv_inference_compute_infer_duration_us": "counter",
    "nv_inference_compute_output_duration_us": "counter",
    "nv_inference_pending_request_count": "gauge",
    "nv_model_load_duration_secs": "gauge",
    "nv_cpu_utilization": "gauge",
    "nv_cpu_memory_total_bytes": "gauge",
    "nv_cpu_memory_used_bytes": "gauge",
    "nv_pinned_memory_pool_total_bytes": "gauge",
    "nv_pinned_memory_pool_used_bytes": "gauge",
}


def test_server_and_models_are_ready(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("identity")
    assert client.is_model_ready("identity", "1")


@pytest.mark.parametrize("name, version", [("nobody", ""), ("identity", "9")])
def test_what_is_not_there_is_not_ready_and_no_error(client, name, version):
    assert not client.is_model_ready(name, version)


def test_readiness_of_a_version_that_is_no_number_is_an_error(client):
    with refused("INVALID_ARGUMENT", "one"):
        client.is_model_ready("identity", "one")


def test_a_unix_socket_is_served_over_grpc_and_removed_at_the_end(start, test_models, tmp_path):
    path = tmp_path / "grpc.sock"
    running = start(test_models, f"--grpc-address=unix:{path}", "--model-control-mode=explicit", "--load-model=identity")
    with triton.InferenceServerClient(f"unix:{path}") as connected:
        answer = connected.infer("identity", [tensor("INPUT0", [ROW])])
        assert answer.as_numpy("OUTPUT0").tolist() == [ROW.tolist()]
    assert f"Started GRPCInferenceService at unix:{path}" in running.log.read_text()
    assert running.stop() == 0
    assert not path.exists()


def test_libraries_are_not_destroyed_beside_threads_that_use_them(start, test_models, tmp_path):
    """A model that is compiled or measured at the end uses ONNX Runtime until the process is gone."""
    source, library = tmp_path / "destroyed.c", tmp_path / "destroyed.so"
    source.write_text("#include <stdlib.h>\n__attribute__((destructor)) static void destroyed(void) { abort(); }\n")
    compiler = fetch.debian_program("cc", "gcc")
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True, timeout=120)
    flags = ("--model-control-mode=explicit", "--load-model=identity")
    running = start(test_models, *flags, environment={"LD_PRELOAD": str(library)})
    assert running.stop() == 0, running.log_tail()


def test_server_metadata_lists_what_is_implemented(client):
    metadata = client.get_server_metadata()
    assert metadata.name == "triton", "official examples compare it"
    assert re.fullmatch(r"\d+\.\d+\.\d+", metadata.version)
    extensions = set(metadata.extensions)
    expected = {"statistics", "sequence", "model_repository", "model_configuration", "classification", "system_shared_memory"}
    assert expected <= extensions
    assert "cuda_shared_memory" not in extensions


def test_model_metadata_shows_the_batch_as_minus_one(client):
    metadata = client.get_model_metadata("addsub")
    assert metadata.name == "addsub"
    assert metadata.platform == "onnxruntime_onnx"
    assert list(metadata.versions) == ["1"]
    assert [(one.name, one.datatype, list(one.shape)) for one in metadata.inputs] == [
        ("INPUT0", "FP32", [-1, 16]),
        ("INPUT1", "FP32", [-1, 16]),
    ]
    assert [(one.name, one.datatype, list(one.shape)) for one in metadata.outputs] == [
        ("OUTPUT0", "FP32", [-1, 16]),
        ("OUTPUT1", "FP32", [-1, 16]),
    ]


def test_model_config_is_complete(client):
    config = client.get_model_config("addsub").config
    assert config.name == "addsub"
    assert config.backend == "onnxruntime"
    assert config.platform == "onnxruntime_onnx"
    assert config.max_batch_size > 0
    assert [(one.name, list(one.dims)) for one in config.input] == [("INPUT0", [16]), ("INPUT1", [16])]
    assert config.version_policy.latest.num_versions == 1
    assert config.default_model_filename == "model.onnx"


@pytest.mark.parametrize("ask", ["get_model_metadata", "get_model_config"])
def test_unknown_models_are_not_found(client, ask):
    with refused("NOT_FOUND", "nobody"):
        getattr(client, ask)("nobody")


def test_index_names_every_model_and_its_state(client):
    index = {model.name: model for model in client.get_model_repository_index().models}
    assert {"identity", "addsub", "minilm"} <= set(index)
    assert {(model.version, model.state, model.reason) for model in index.values()} == {("1", "READY", "")}


def test_health_service_checks_and_watches(server):
    with raw_channel(server) as channel:
        check = channel.unary_unary(f"{HEALTH}/Check")
        assert check(b"") == SERVING
        assert check(b"\x0a\x1einference.GRPCInferenceService") == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\x06nobody")
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        watching = channel.unary_stream(f"{HEALTH}/Watch")(b"")
        assert next(watching) == SERVING
        watching.cancel()


# HTTP and metrics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v2/health/live", b'{"live":true}'),
        ("/v2/health/ready", b'{"ready":true}'),
        ("/v2/models/identity/ready", b""),
        ("/v2/models/identity/versions/1/ready", b""),
    ],
)
def test_probes_answer_200(server, path, body):
    assert server.get(path) == (200, body)


@pytest.mark.parametrize("path", ["/v2/models/nobody/ready", "/v2/models/identity/versions/9/ready"])
def test_probes_of_what_is_not_ready_answer_400(server, path):
    assert server.get(path)[0] == 400


def test_http_shows_what_grpc_shows(server, client):
    assert json.loads(server.get("/v2")[1])["name"] == client.get_server_metadata().name
    assert json.loads(server.get("/v2")[1])["extensions"] == list(client.get_server_metadata().extensions)
    metadata = json.loads(server.get("/v2/models/addsub")[1])
    assert [one["name"] for one in metadata["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    assert json.loads(server.get("/v2/models/addsub/config")[1])["max_batch_size"] > 0
    (stats,) = json.loads(server.get("/v2/models/addsub/stats")[1])["model_stats"]
    assert (stats["name"], stats["version"]) == ("addsub", "1")


@pytest.mark.parametrize(
    ("path", "expected"), [("/v2/models/identity/infer", 405), ("/v2/repository/index", 405), ("/v2/nothing", 404)]
)
def test_a_wrong_method_and_an_unknown_route_are_told_apart(server, path, expected):
    status, answer = server.get(path)
    assert status == expected
    assert path in json.loads(answer)["error"]


def test_http_configuration_has_every_field(server):
    config = json.loads(server.get("/v2/models/addsub/config")[1])
    assert config["runtime"] == "" and config["batch_input"] == [] and config["metric_tags"] == {}
    fields = {"name", "data_type", "format", "dims", "is_shape_tensor", "allow_ragged_batch", "optional"}
    assert fields <= set(config["input"][0])
    assert config["input"][0]["format"] == "FORMAT_NONE" and config["input"][0]["optional"] is False
    assert {"label_filename", "is_shape_tensor"} <= set(config["output"][0])
    (group, *_) = config["instance_group"]
    assert (group["gpus"], group["passive"], group["host_policy"]) == ([], False, "")
    assert config["optimization"]["priority"] == "PRIORITY_DEFAULT"
    assert config["optimization"]["eager_batching"] is False
    assert "ensemble_scheduling" not in config and "sequence_batching" not in config, "what is not set is no choice"


def test_metrics_have_tritons_families(server):
    status, page = server.get("/metrics", port="metrics")
    assert status == 200
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page.decode(), re.MULTILINE))
    assert {name: types.get(name) for name in NV_FAMILIES} == NV_FAMILIES
    reasons = {"REJECTED", "CANCELED", "BACKEND", "OTHER"}
    assert {reason: metric(server, "nv_inference_request_failure", model="repeat", reason=reason) for reason in reasons}


def test_metrics_count_requests_and_rows(server, client):
    names = ["nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count"]
    before = [metric(server, name, model="identity") for name in names]
    client.infer("identity", [tensor("INPUT0", rows(1))])
    client.infer("identity", [tensor("INPUT0", rows(3))])
    after = [metric(server, name, model="identity") for name in names]
    assert [new - old for new, old in zip(after, before)] == [2, 4, 2]


# Settings ------------------------------------------------------------------------------------------------------------


def test_log_settings_are_read_and_changed(client):
    def current():
        settings = client.get_log_settings().settings
        return settings["log_verbose_level"].uint32_param, settings["log_info"].bool_param

    assert current() == (0, True)
    try:
        client.update_log_settings({"log_verbose_level": 1, "log_info": False})
        assert current() == (1, False)
    finally:
        client.update_log_settings({"log_verbose_level": 0, "log_info": True})
    assert current() == (0, True)


def test_log_settings_that_do_not_exist_are_ignored_as_on_triton(client):
    before = client.get_log_settings()
    assert client.update_log_settings({"log_colour": True}) == before


def test_the_log_is_no_more_verbose_than_there_are_levels(client):
    before = client.get_log_settings()
    with refused("INVALID_ARGUMENT", "log_verbose_level", "from 0 to 3", "got 4"):
        client.update_log_settings({"log_verbose_level": 4})
    assert client.get_log_settings() == before


@pytest.fixture
def empty(start, tmp_path):
    """Returns a function that starts servers without models, with a test's own flags."""
    return lambda *flags: start(tmp_path, "--model-control-mode=explicit", *flags)


def test_the_log_is_restricted_like_other_groups(empty):
    server = empty("--grpc-restricted-protocol=logging,model-repository:admin=secret")
    allowed, header = {"triton-grpc-protocol-admin": "secret"}, "triton-grpc-protocol-admin"
    with triton.InferenceServerClient(server.grpc) as client:
        for ask in (
            client.get_log_settings,
            lambda **more: client.update_log_settings({"log_info": False}, **more),
            client.get_model_repository_index,
        ):
            with refused("UNAVAILABLE", header):
                ask()
            with refused("UNAVAILABLE", header):
                ask(headers={header: "guess"})
        assert client.get_log_settings(headers=allowed).settings["log_info"].bool_param is True
        assert client.update_log_settings({"log_info": False}, headers=allowed).settings["log_info"].bool_param is False
        assert client.is_server_live() and client.get_trace_settings(), "other groups are open"


@pytest.mark.parametrize("form", ["default", "json"])
def test_a_refused_call_is_logged_with_its_reason(empty, form):
    server = empty("--log-verbose=1", f"--log-format={form}")
    with triton.InferenceServerClient(server.grpc) as client, refused("NOT_FOUND"):
        client.get_model_metadata("nobody")
    reason = "Request for unknown model: 'nobody' is not found"
    (line,) = [line for line in server.log.read_text().splitlines() if "call refused" in line]
    if form == "json":
        record = json.loads(line)
        assert (record["message"], record["reason"], record["code"]) == ("call refused", reason, "NotFound")
    else:
        assert line.endswith(f'] call refused code=NotFound reason="{reason}"')


def test_cuda_shared_memory_is_not_there_without_a_card(client):
    assert not client.get_cuda_shared_memory_status().regions
    client.unregister_cuda_shared_memory()
    with refused("INVALID_ARGUMENT", "'region'", "this server uses no CUDA card"):
        client.register_cuda_shared_memory("region", base64.b64encode(b"handle"), 0, 64)


def test_load_and_unload_need_explicit_mode(client):
    with refused("UNAVAILABLE"):
        client.load_model("identity")
    with refused("UNAVAILABLE"):
        client.unload_model("identity")


def test_an_unknown_method_is_unimplemented(server):
    with raw_channel(server) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelDream")(b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_bytes_that_are_no_message_do_no_harm(server, client):
    with raw_channel(server) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff" * 64)
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert (client.infer("identity", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0") == ROW).all()


def test_the_methods_are_those_of_the_published_service(server):
    """Every method of the client's own service description is served."""
    with raw_channel(server) as channel:
        for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            if method.client_streaming:
                continue
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method.name}")
            try:
                call(b"", timeout=120)
            except grpc.RpcError as answer:
                assert answer.code() != grpc.StatusCode.UNIMPLEMENTED, method.name
        assert service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(service_pb2.ServerLiveRequest()).live


def test_clients_share_a_server(server):
    clients = [triton.InferenceServerClient(server.grpc) for _ in range(20)]
    assert all(one.is_server_live() for one in clients)
    for one in clients:
        one.close()
