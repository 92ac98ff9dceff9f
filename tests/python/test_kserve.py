"""KServe: the runtimes' arguments start a server that answers where KServe expects it, and so do the arguments of
KServe's own Triton runtimes."""

import copy
import json

import pytest
import tritonclient.grpc as triton
from clients import ROW, eventually, tensor
from manifests import CHART, DEPLOY, read

FOLDER = DEPLOY / "kserve"
RUNTIMES = {one["metadata"]["name"]: one for path in FOLDER.glob("paternoster-*.yaml") for one in read(path)}
SERVICES = [one for path in sorted(FOLDER.glob("inferenceservice-*.yaml")) for one in read(path)]
#: Kubernetes' default grace period of a pod; a serving runtime cannot change it.
DEFAULT_GRACE_S = 30
#: Arguments of the Triton runtimes of KServe, and of its ModelMesh, which loads many models into one server.
TRITON = {
    "kserve": ["tritonserver", "--model-store=/mnt/models", "--grpc-port=9000", "--http-port=8080", "--allow-grpc=true",
               "--allow-http=true"],
    "modelmesh": ["tritonserver", "--model-repository=/mnt/models", "--model-control-mode=explicit",
                  "--strict-model-config=false", "--strict-readiness=false", "--allow-http=true", "--allow-sagemaker=false"],
}  # fmt: skip


def server_of(runtime):
    (one,) = RUNTIMES[runtime]["spec"]["containers"]
    return one


@pytest.fixture
def run(start, made_models):
    """Starts a server with KServe's arguments, on its own ports and with the test's models."""
    repository = made_models("tests", "--only", "identity")

    def run_with(arguments):
        command, *flags = arguments
        assert command in ("serve", "tritonserver")
        moved = ("--grpc-port", "--http-port", "--metrics-port", "--profile-directory")
        flags = [flag for flag in flags if flag.split("=")[0] not in moved]
        assert [flag for flag in flags if flag.endswith("=/mnt/models")], "the models are mounted there"
        flags = [flag.replace("/mnt/models", str(repository)) for flag in flags]
        return start(repository, *flags, "--drain-delay-secs=0")

    return run_with


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_serves_by_its_arguments(run, runtime):
    server = run(server_of(runtime)["args"])
    with triton.InferenceServerClient(server.grpc) as client:
        assert client.infer("identity", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0")[0, 3] == ROW[3]
    assert server.get("/v2/health/ready")[0] == 200


@pytest.mark.parametrize("runtime", TRITON)
def test_tritons_arguments_serve_too(run, runtime):
    server = run(TRITON[runtime])
    with triton.InferenceServerClient(server.grpc) as client:
        if runtime == "modelmesh":
            assert not client.is_model_ready("identity"), "models are loaded by request"
            client.load_model("identity")
        assert client.infer("identity", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0")[0, 3] == ROW[3]


def test_kserves_own_client_learns_that_the_server_is_live_and_ready(run):
    """KServe's InferenceRESTClient takes the answers from the body: `response.json().get("live")`."""
    server = run(server_of("paternoster-http")["args"])
    for state in ("live", "ready"):
        status, body = server.get(f"/v2/health/{state}")
        assert (status, json.loads(body)) == (200, {state: True})


def test_what_a_service_adds_goes_before_the_runtimes_arguments(run):
    (service,) = [one for one in SERVICES if "args" in one["spec"]["predictor"]["model"]]
    model = service["spec"]["predictor"]["model"]
    runtime = {"v2": "paternoster-http", "grpc-v2": "paternoster-grpc"}[model["protocolVersion"]]
    added = [flag for flag in model["args"] if not flag.startswith("--load-model")] + ["--load-model=identity"]
    assert len(added) < len(model["args"])
    server = run([*server_of(runtime)["args"], "--model-control-mode=none", *added])
    with triton.InferenceServerClient(server.grpc) as client:
        client.unload_model("identity")
        eventually("unloaded", lambda: not client.is_model_ready("identity"))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_protocol_has_the_port_that_is_exposed(runtime):
    """A serverless predictor receives its requests at the only port of the container."""
    spec = RUNTIMES[runtime]["spec"]
    arguments = dict(one.split("=") for one in server_of(runtime)["args"][1:])
    (port,) = server_of(runtime)["ports"]
    (protocol,) = spec["protocolVersions"]
    flag, name = {"grpc-v2": ("--grpc-port", "h2c"), "v2": ("--http-port", "http1")}[protocol]
    assert (port["name"], str(port["containerPort"])) == (name, arguments[flag])
    probe = server_of(runtime)["readinessProbe"]
    assert (probe.get("grpc") or probe["httpGet"])["port"] == port["containerPort"]
    assert spec["annotations"]["prometheus.kserve.io/port"] == arguments["--metrics-port"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_ends_within_the_time_that_its_pod_has(runtime):
    arguments = dict(one.split("=") for one in server_of(runtime)["args"][1:])
    assert int(arguments["--drain-delay-secs"]) + int(arguments["--exit-timeout-secs"]) + 6 < DEFAULT_GRACE_S


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_only_its_own_format_is_selected_automatically(runtime):
    """Models of the formats "onnx" and "triton" keep their existing runtime."""
    formats = RUNTIMES[runtime]["spec"]["supportedModelFormats"]
    assert [one["name"] for one in formats if one.get("autoSelect")] == ["paternoster"]
    assert {"onnx", "triton"} <= {one["name"] for one in formats}


def test_the_runtimes_and_the_chart_are_of_one_image_and_user():
    values = read(CHART / "values.yaml")[0]
    for runtime in RUNTIMES:
        one = server_of(runtime)
        assert one["name"] == "kserve-container"
        assert one["image"] == f"{values['image']['repository']}:{read(CHART / 'Chart.yaml')[0]['appVersion']}"
        expected = {**values["securityContext"], "runAsUser": values["podSecurityContext"]["runAsUser"]}
        assert one["securityContext"] == {**expected, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("manifest", [*RUNTIMES.values(), *SERVICES], ids=lambda one: one["metadata"]["name"])
def test_kserve_takes_the_manifests(schemas, manifest):
    assert schemas.faults(manifest) == []


def test_the_schemas_refuse_what_kserve_would(schemas):
    manifest = copy.deepcopy(RUNTIMES["paternoster-grpc"])
    manifest["spec"]["protocolVersion"] = "v2"
    manifest["spec"]["supportedModelFormats"][0]["autoSelect"] = "yes"
    manifest["spec"]["containers"][0]["args"] = "serve"
    found = "".join(schemas.faults(manifest))
    assert all(fact in found for fact in ("'protocolVersion'", "'yes'", "'serve'"))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_volume_is_mounted(runtime):
    mounts = {one["name"] for one in server_of(runtime)["volumeMounts"]}
    assert {one["name"] for one in RUNTIMES[runtime]["spec"]["volumes"]} == mounts


@pytest.mark.parametrize("service", SERVICES, ids=lambda one: one["metadata"]["name"])
def test_a_service_finds_exactly_one_runtime(service):
    model = service["spec"]["predictor"]["model"]
    able = [
        name
        for name, runtime in RUNTIMES.items()
        if model["protocolVersion"] in runtime["spec"]["protocolVersions"]
        and any(
            one["name"] == model["modelFormat"]["name"] and (one.get("autoSelect") or model.get("runtime") == name)
            for one in runtime["spec"]["supportedModelFormats"]
        )
    ]
    assert len(able) == 1 and model.get("runtime") in (None, able[0])
