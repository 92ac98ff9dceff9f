"""Kubernetes' own API server accepts the manifests of deploy/, and rejects broken ones. Each is created as a dry run:
defaulted, validated and admitted, but not stored. Kinds that extend Kubernetes come from their projects' definitions.

`make kube-test` runs this; other runs leave it out, because the first run builds the API server.
"""

import copy

import kube
import pytest
from conftest import fetched
from manifests import CHART, DEPLOY, only, read, render

VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
NAMESPACE = "models"
#: A namespace of the restricted Pod Security Standard.
RESTRICTED = "restricted"


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    definitions = fetched(kube.resource_definitions)
    fetched(kube.programs)
    with kube.ApiServer(tmp_path_factory.mktemp("kubernetes")) as running:
        enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
        for name, labels in ((NAMESPACE, {}), (RESTRICTED, enforced)):
            running.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
            # A controller creates it in a cluster. The chart's own account is not stored by a dry run.
            for account in ["default"] + (["demo-paternoster"] if name == RESTRICTED else []):
                running.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}, name)
        for file in sorted(definitions.glob("*.yaml")):
            running.define(file)
        yield running


@pytest.fixture(scope="module")
def rendered(helm):
    """Returns a function from a values file's name to the rendered chart."""
    return lambda name: render(helm, CHART / "ci" / f"{name}-values.yaml")


def test_it_is_the_release_that_the_schemas_are_of(api):
    version = api.ask("/version")
    assert f"{version['major']}.{version['minor']}.0" == kube.pins.KUBERNETES_RELEASES[-1]


@pytest.mark.parametrize("values", VALUES, ids=lambda one: one.stem)
def test_it_takes_what_the_chart_renders(api, rendered, values):
    manifests = rendered(values.stem.removesuffix("-values"))
    taken = [api.create(one, NAMESPACE, dry_run=True) for one in manifests]
    assert [one["kind"] for one in taken] == [one["kind"] for one in manifests]
    assert len(taken) >= 3
    assert api.ask(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"] == [], "nothing is kept"


def test_the_chart_makes_no_kind_that_is_left_out(rendered):
    kinds = {one["kind"] for values in VALUES for one in rendered(values.stem.removesuffix("-values"))}
    assert {"Deployment", "GRPCRoute", "ScaledObject", "ServiceMonitor", "HorizontalPodAutoscaler", "Pod"} <= kinds


@pytest.mark.parametrize("path", sorted((DEPLOY / "kserve").glob("*.yaml")), ids=lambda one: one.stem)
def test_it_takes_what_is_for_kserve(api, path):
    manifests = read(path)
    assert manifests and all(api.create(one, NAMESPACE, dry_run=True) for one in manifests)


def pod_of(manifests):
    """Returns the pod that a controller would create for the deployment."""
    template = copy.deepcopy(only(manifests, "Deployment")["spec"]["template"])
    template["metadata"]["name"] = "pod"
    return {"apiVersion": "v1", "kind": "Pod", **template}


@pytest.mark.parametrize("name", ["pvc", "object-store", "init-container"])
def test_pods_meet_the_restricted_standard(api, rendered, name):
    pod = pod_of(rendered(name))
    assert api.create(pod, RESTRICTED, dry_run=True)
    tester = only(rendered(name), "Pod")
    tester["metadata"]["namespace"] = RESTRICTED
    assert api.create(tester, dry_run=True)
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(kube.Refused) as refusal:
        api.create(pod, RESTRICTED, dry_run=True)
    assert refusal.value.status == 403 and "allowPrivilegeEscalation" in str(refusal.value)


def put(path, value):
    """Returns a change to a manifest that sets a value at a path of keys."""

    def change(manifest):
        *folders, last = path
        for key in folders:
            manifest = manifest[key]
        manifest[last] = value

    return change


SERVER = ("spec", "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    "name, kind, change, status, fact",
    [
        ("pvc", "Deployment", put((*SERVER, "imagePullPolice"), "Always"), 400, 'unknown field "spec.template.spec.c'),
        ("pvc", "Deployment", put(("spec", "replicas"), "two"), 400, "replicas"),
        ("pvc", "Deployment", put(("spec", "selector", "matchLabels", "app"), "other"), 422, "does not match template"),
        ("pvc", "Deployment", put((*SERVER, "volumeMounts", 0, "name"), "nowhere"), 422, 'Not found: "nowhere"'),
        ("pvc", "Deployment", put((*SERVER, "livenessProbe", "httpGet", "port"), 70000), 422, "between 1 and 65535"),
        ("pvc", "Deployment", put((*SERVER, "resources", "requests", "cpu"), "1000"), 422, "less than or equal to cpu limit"),
        ("pvc", "PodDisruptionBudget", put(("spec", "minAvailable"), 1), 422, "cannot be both set"),
        ("init-container", "HorizontalPodAutoscaler", put(("spec", "minReplicas"), 20), 422, "maxReplicas"),
        ("init-container", "NetworkPolicy", put(("spec", "policyTypes"), ["Inwards"]), 422, "Inwards"),
        ("init-container", "GRPCRoute", put(("spec", "hostnames"), ["not a host"]), 422, "spec.hostnames"),
        ("init-container", "ServiceMonitor", put(("spec", "endpoints", 0, "interval"), "soon"), 422, "interval"),
        ("image-gpu", "ScaledObject", put(("spec", "selektor"), {}), 400, 'unknown field "spec.selektor"'),
    ],
)
def test_it_refuses_what_is_broken(api, rendered, name, kind, change, status, fact):
    manifest = only(rendered(name), kind)
    assert api.create(manifest, NAMESPACE, dry_run=True), "before the change it is taken"
    change(manifest)
    with pytest.raises(kube.Refused) as refusal:
        api.create(manifest, NAMESPACE, dry_run=True)
    assert fact in str(refusal.value) and refusal.value.status == status, (refusal.value.status, str(refusal.value))


def test_it_refuses_a_runtime_that_kserve_would(api):
    (runtime,) = read(DEPLOY / "kserve" / "paternoster-grpc.yaml")
    del runtime["spec"]["containers"][0]["name"]
    with pytest.raises(kube.Refused) as refusal:
        api.create(runtime, dry_run=True)
    assert refusal.value.status == 422 and "spec.containers[0].name: Required value" in str(refusal.value)


