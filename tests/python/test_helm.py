"""The Helm chart: it renders with every set of values that it contains, Kubernetes accepts the result, and invalid
values are rejected."""

import copy
import re
import subprocess

import pytest
import yaml
from manifests import CHART, NEWEST, OLDEST, WITHOUT_SCHEMA, Refused, container, only, render

VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
#: Image volumes were added to Kubernetes after the oldest release that the chart allows.
RELEASES = [(one, release) for one in VALUES for release in (OLDEST, NEWEST) if release == NEWEST or "image" not in one.name]
PVC = "modelRepository.pvc.claimName=models"


@pytest.fixture(scope="module")
def rendered(helm):
    """Returns a function from a values file's name to the rendered chart."""
    made = {}

    def of(name):
        return made.setdefault(name, render(helm, CHART / "ci" / f"{name}-values.yaml"))

    return of


@pytest.mark.parametrize("values", [CHART / "values.yaml", *VALUES], ids=lambda one: one.stem)
def test_helm_lints(helm, values):
    command = [helm, "lint", "--strict", "--kube-version", NEWEST, "--values", values, CHART]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values, release", RELEASES, ids=lambda one: one if isinstance(one, str) else one.stem)
def test_kubernetes_takes_what_the_chart_renders(helm, schemas, values, release):
    known = [one for one in render(helm, values, release=release) if one["kind"] not in WITHOUT_SCHEMA]
    assert len(known) >= 3
    assert [(one["kind"], fault) for one in known for fault in schemas.faults(one, release)] == []


def test_the_schemas_refuse_what_kubernetes_would(helm, schemas):
    deployment = only(render(helm, settings=[PVC]), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    deployment["spec"]["replicas"] = "two"
    found = schemas.faults(deployment)
    assert len(found) == 2 and "imagePullPolice" in "".join(found) and "'two'" in "".join(found)


@pytest.mark.parametrize("name, kind", [("image-gpu", "ScaledObject"), ("init-container", "ServiceMonitor")])
def test_the_schemas_of_extensions_refuse_what_they_would(rendered, schemas, name, kind):
    manifest = copy.deepcopy(only(rendered(name), kind))
    assert schemas.faults(manifest) == []
    manifest["spec"]["selektor"] = {}
    manifest["metadata"]["labels"]["number"] = 1
    found = "".join(schemas.faults(manifest))
    assert "selektor" in found and "1 is not of type" in found


@pytest.mark.parametrize(
    "settings, fact",
    [
        ([], "modelRepository.pvc.claimName:"),
        (["modelRepository.source=image"], "modelRepository.image.reference:"),
        (["modelRepository.source=initContainer"], "modelRepository.initContainer.image:"),
        (["modelRepository.source=objectStore"], "modelRepository.objectStore.url:"),
        (["modelRepository.source=objectStore", "modelRepository.objectStore.url=/models"], "modelRepository.objectStore.url:"),
        (["modelRepository.source=volume"], "modelRepository.volume:"),
        (["modelRepository.source=s3"], "modelRepository.source:"),
        ([PVC, "replicas=2"], "property replicas is not allowed"),
        ([PVC, "server.port=1"], "server: Additional property port is not allowed"),
        ([PVC, "server.ports.grpc=70000"], "server.ports.grpc:"),
        ([PVC, "server.exitTimeoutSecs=soon"], "server.exitTimeoutSecs:"),
        ([PVC, "server.loadModels={one}"], "server.modelControlMode:"),
        ([PVC, "server.extraArgs={--grpc-port=1}"], "--grpc-port is set by the chart"),
        ([PVC, "server.extraArgs={cpu-lanes=1}"], "server.extraArgs.0:"),
        ([PVC, "tls.mutual=true"], "tls.secretName:"),
        ([PVC, "autoscaling.enabled=true", "autoscaling.engine=keda"], "autoscaling.keda.serverAddress:"),
        ([PVC, "autoscaling.enabled=true", "autoscaling.engine=vpa"], "autoscaling.engine:"),
        ([PVC, "grpcRoute.enabled=true"], "grpcRoute.parentRefs:"),
        ([PVC, "image.digest=latest"], "image.digest:"),
    ],
)
def test_values_without_sense_are_refused(helm, settings, fact):
    with pytest.raises(Refused) as refusal:
        render(helm, settings=settings)
    assert fact in str(refusal.value)


@pytest.mark.parametrize("values", VALUES, ids=lambda one: one.stem)
def test_pods_have_as_long_to_end_as_the_server_takes(rendered, values):
    """Drain delay, exit timeout, and at most 6 s that the process takes after them."""
    manifests = rendered(values.stem.removesuffix("-values"))
    arguments = dict(one.split("=", 1) for one in container(manifests)["args"][1:])
    takes = int(arguments["--drain-delay-secs"]) + int(arguments["--exit-timeout-secs"]) + 6
    grace = only(manifests, "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert takes < grace <= takes + 10


@pytest.mark.parametrize("values", VALUES, ids=lambda one: one.stem)
def test_containers_have_no_privileges_that_they_do_not_need(rendered, values):
    manifests = rendered(values.stem.removesuffix("-values"))
    pods = [only(manifests, "Deployment")["spec"]["template"]["spec"], only(manifests, "Pod")["spec"]]
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in pod["containers"] + pod.get("initContainers", []):
            allowed = one["securityContext"]
            assert allowed["readOnlyRootFilesystem"] is True and allowed["allowPrivilegeEscalation"] is False
            assert allowed["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("values", VALUES, ids=lambda one: one.stem)
def test_services_select_the_servers_and_reach_ports_that_they_open(rendered, values):
    manifests = rendered(values.stem.removesuffix("-values"))
    template = only(manifests, "Deployment")["spec"]["template"]
    opened = {one["name"]: one["containerPort"] for one in container(manifests)["ports"]}
    arguments = dict(one.split("=", 1) for one in container(manifests)["args"][1:])
    assert {name: int(arguments[f"--{name}-port"]) for name in opened} == opened
    services = [one for one in manifests if one["kind"] == "Service"]
    for service in services:
        selected = service["spec"]["selector"].items()
        assert selected <= template["metadata"]["labels"].items()
        assert not selected <= only(manifests, "Pod")["metadata"]["labels"].items(), "the test's pod would get requests"
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(opened)
    probes = [container(manifests)[f"{probe}Probe"] for probe in ("startup", "liveness", "readiness")]
    assert [one["httpGet"]["port"] for one in probes] == ["http"] * 3


def test_a_server_over_an_object_store_has_its_credentials_and_a_place_for_models(rendered):
    manifests = rendered("object-store")
    server = container(manifests)
    assert "--model-repository=s3://https://minio.example.com:443/models/production" in server["args"]
    assert "--repository-cache-directory=/models" in server["args"]
    assert server["envFrom"] == [{"secretRef": {"name": "object-store"}}, {"configMapRef": {"name": "regions"}}]
    (mount,) = [one for one in server["volumeMounts"] if one["name"] == "models"]
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": False}
    volumes = only(manifests, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "models", "emptyDir": {"sizeLimit": "20Gi"}} in volumes


def test_only_the_readiness_probe_waits_for_models(rendered):
    """Ports are open while models load, so a pod that takes long to load them is not restarted for it."""
    probes = {"startup": "/v2/health/live", "liveness": "/v2/health/live", "readiness": "/v2/health/ready"}
    assert {probe: container(rendered("pvc"))[f"{probe}Probe"]["httpGet"]["path"] for probe in probes} == probes


def test_grpc_says_which_protocol_it_is(rendered):
    def of(name):
        (port,) = [one for one in only(rendered(name), "Service", "demo-paternoster")["spec"]["ports"] if one["name"] == "grpc"]
        return port["appProtocol"]

    assert of("pvc") == "kubernetes.io/h2c"
    assert of("image-gpu") == "https", "with TLS it is no clear text"


def test_http_is_secured_as_grpc_is_unless_it_is_told_otherwise(helm, rendered):
    def seen(manifests):
        (port,) = [one for one in only(manifests, "Service", "demo-paternoster")["spec"]["ports"] if one["name"] == "http"]
        probes = {container(manifests)[f"{probe}Probe"]["httpGet"]["scheme"] for probe in ("startup", "liveness", "readiness")}
        (tester,) = only(manifests, "Pod")["spec"]["containers"]
        tls = sorted(one for one in container(manifests)["args"] if re.match("--http-(use|server-cert|server-key|root)", one))
        return port["appProtocol"], probes, tester["command"][2:], tls

    assert seen(rendered("pvc")) == ("http", {"HTTP"}, ["8000", "/v2/health/ready"], [])
    secured = [
        "--http-root-cert=/etc/paternoster/tls/ca.crt",
        "--http-server-cert=/etc/paternoster/tls/tls.crt",
        "--http-server-key=/etc/paternoster/tls/tls.key",
        "--http-use-ssl-mutual=true",
        "--http-use-ssl=true",
    ]
    assert seen(rendered("image-gpu")) == ("https", {"HTTPS"}, ["8002", "/metrics"], secured)
    settings = [PVC, "tls.secretName=certificate", "tls.http=false"]
    assert seen(render(helm, settings=settings)) == ("http", {"HTTP"}, ["8000", "/v2/health/ready"], [])


def test_the_headless_service_is_not_scraped_too(rendered):
    manifests = rendered("init-container")
    wanted = only(manifests, "ServiceMonitor")["spec"]["selector"]
    (absent,) = [one["key"] for one in wanted["matchExpressions"] if one["operator"] == "DoesNotExist"]
    labels = [one["metadata"]["labels"] for one in manifests if one["kind"] == "Service"]
    matching = [one for one in labels if wanted["matchLabels"].items() <= one.items() and absent not in one]
    assert len(labels) == 2 and len(matching) == 1


def test_devices_come_to_the_other_limits(rendered):
    assert container(rendered("image-gpu"))["resources"]["limits"] == {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": 1}
    assert only(rendered("image-gpu"), "Deployment")["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"
    assert "nvidia.com/gpu" not in container(rendered("pvc"))["resources"]["limits"]


def test_the_route_takes_inference_and_nothing_that_changes_the_server(rendered):
    manifests = rendered("init-container")
    (rule,) = only(manifests, "GRPCRoute")["spec"]["rules"]
    service = only(manifests, "Service", "demo-paternoster")
    assert rule["backendRefs"] == [{"name": "demo-paternoster", "port": service["spec"]["ports"][0]["port"]}]
    assert all(set(match["method"]) <= {"service", "method"} for match in rule["matches"])
    routed = {match["method"].get("method") for match in rule["matches"]}
    assert {"ModelInfer", "ModelStreamInfer", None} <= routed
    changing = ("Load", "Unload", "Register", "Setting")
    assert not [method for method in routed if method and any(word in method for word in changing)]


def test_replicas_are_left_to_the_autoscaler(rendered):
    assert only(rendered("pvc"), "Deployment")["spec"]["replicas"] == 1
    for name, kind in (("init-container", "HorizontalPodAutoscaler"), ("image-gpu", "ScaledObject")):
        manifests = rendered(name)
        assert "replicas" not in only(manifests, "Deployment")["spec"]
        assert only(manifests, kind)["spec"]["scaleTargetRef"]["name"] == "demo-paternoster"
    kinds = {one["kind"] for one in rendered("image-gpu")}
    assert "HorizontalPodAutoscaler" not in kinds, "KEDA makes its own"


def test_every_value_is_described():
    def leaves(values, path=""):
        for key, value in values.items():
            here = f"{path}.{key}".lstrip(".")
            if isinstance(value, dict) and value and key not in {"podSecurityContext", "securityContext", "resources"}:
                yield from leaves(value, here)
            else:
                yield here

    described = set(re.findall(r"^\| `([\w.]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE))
    assert set(leaves(yaml.safe_load((CHART / "values.yaml").read_text()))) == described
