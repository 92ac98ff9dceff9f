"""Shared parts of the tests of deploy/: the chart rendered by Helm, and manifests checked against the schemas of
Kubernetes."""

import json
import subprocess
from functools import lru_cache
from pathlib import Path

import extensions
import jsonschema
import pins
import referencing
import yaml

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
CHART = DEPLOY / "helm" / "paternoster"
OLDEST, NEWEST = pins.KUBERNETES_RELEASES
#: The kinds without a schema, because no registry has their client.
WITHOUT_SCHEMA = {"GRPCRoute"}


def read(path):
    """Returns the documents of a YAML file."""
    return [document for document in yaml.safe_load_all(Path(path).read_text()) if document]


class Refused(Exception):
    """Helm rejects these values; the message is its error."""


def render(helm, *values, settings=(), release=NEWEST):
    """Returns the manifests that the chart renders from values files and settings like "tls.secretName=certificate"."""
    command = [helm, "template", "demo", CHART, "--namespace", "models", "--kube-version", release]
    for path in values:
        command += ["--values", path]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Refused(done.stderr)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def only(manifests, kind, name=None):
    """Returns the only manifest of a kind, or of a kind and name if several have the kind."""
    found = [one for one in manifests if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} manifests of kind {kind}"
    return found[0]


def container(manifests):
    """Returns the server's container."""
    (server,) = only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    return server


@lru_cache(maxsize=None)
def schema(folder, name):
    return json.loads((Path(folder) / name).read_text())


class Schemas:
    """The schemas of Kubernetes in one folder, and the clients of its extensions in another."""

    def __init__(self, kubernetes, clients):
        self.kubernetes = kubernetes
        self.clients = clients

    def faults(self, manifest, release=NEWEST):
        """Returns what Kubernetes' API would reject in a manifest: unknown fields, wrong types, missing ones."""
        if manifest["kind"] in extensions.KINDS:
            return self.check(extensions.schema_of(self.clients, manifest["kind"]), manifest, release)
        group, _, version = manifest["apiVersion"].rpartition("/")
        part = f"-{group.split('.')[0]}" if group else ""
        name = f"{manifest['kind'].lower()}{part}-{version}.json"
        return self.check(schema(self.kubernetes / release, name), manifest, release)

    def check(self, wanted, manifest, release):
        def retrieve(address):
            contents = schema(self.kubernetes / release, address.rsplit("/", 1)[1])
            return referencing.Resource.from_contents(contents, default_specification=referencing.jsonschema.DRAFT202012)

        checker = jsonschema.Draft202012Validator(wanted, registry=referencing.Registry(retrieve=retrieve))
        return [f"{'/'.join(map(str, fault.path))}: {fault.message}"[:300] for fault in checker.iter_errors(manifest)]
