"""Kubernetes' API server without a cluster: etcd and kube-apiserver, built by Go, on the loopback address. Created
objects do not run; the API defaults, validates and admits them as in a cluster.

    with ApiServer(folder) as api:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "models"}})
"""

import json
import os
import re
import secrets
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import fetch
import pins
import server
from fetch import CACHE, Unavailable, go, go_module, made_from, replacing, run, say

#: Go packages of the programs.
PROGRAMS = {"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver", "etcd": "go.etcd.io/etcd/server/v3"}
VERSION_OF_PROGRAMS = "k8s.io/component-base/version"


def programs():
    """Returns the folder with the programs, which are built if necessary. Building takes minutes, and temporarily 5 GB
    of disk."""
    folder = CACHE / "kubernetes"
    note = f"{pins.KUBERNETES} {pins.KUBERNETES_LIBRARIES}\n"
    if not made_from(folder, note):
        say(f"kubernetes {pins.KUBERNETES.version} (go build, 5 to 10 min)")
        with replacing(folder, note) as fresh, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            source = go_module(pins.KUBERNETES, scratch)
            write_module(source, Path(scratch))
            _, major, minor, _ = re.split(r"[v.]", pins.KUBERNETES.version)
            named = {"gitVersion": pins.KUBERNETES.version, "gitMajor": major, "gitMinor": minor}
            flags = " ".join(["-s -w", *(f"-X {VERSION_OF_PROGRAMS}.{name}={value}" for name, value in named.items())])
            for name, package in PROGRAMS.items():
                # A separate build cache, which is removed: nothing else needs what is compiled for these programs.
                apart = {"GOCACHE": str(Path(scratch) / "cache"), "GOTMPDIR": scratch, "CGO_ENABLED": "0"}
                go("build", "-trimpath", "-ldflags", flags, "-o", fresh / name, package, cwd=scratch, **apart)
    return folder


def write_module(source, folder):
    """Writes a module from which the programs can be built. Kubernetes' own module replaces its libraries by folders of
    its repository, which the published module does not contain; this one uses the published libraries."""
    given = (source / "go.mod").read_text()
    libraries = re.findall(r"^\t(k8s\.io/[\w-]+) => \./staging/", given, re.MULTILINE)
    if not libraries:
        raise Unavailable(f"{source}/go.mod replaces nothing by ./staging/, expected Kubernetes' libraries")
    (language,) = re.findall(r"^go .*$", given, re.MULTILINE)
    lines = ["module programs", language, f"require {pins.KUBERNETES.module} {pins.KUBERNETES.version}"]
    lines += [f"replace {one} => {one} {pins.KUBERNETES_LIBRARIES}" for one in libraries]
    (folder / "go.mod").write_text("\n".join(lines) + "\n")
    shutil.copyfile(source / "go.sum", folder / "go.sum")


def resource_definitions():
    """Returns the folder with the definitions of the kinds that extend Kubernetes."""
    folder = CACHE / "resource-definitions"
    note = f"{pins.RESOURCE_DEFINITIONS}\n"
    if not made_from(folder, note):
        with replacing(folder, note) as fresh, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            for pin, files in pins.RESOURCE_DEFINITIONS.items():
                say(f"{pin.module} {pin.version} (go mod download)")
                source = go_module(pin, scratch)
                for file in files:
                    shutil.copyfile(source / file, fresh / Path(file).name)
    return folder


class Refused(Exception):
    """The API rejected an object. The message is the API's, `status` its HTTP status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class ApiServer:
    """The running programs. All their files are in one folder."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.built = programs()
        self.token = secrets.token_hex(16)
        self.running = []
        self.kinds = {}

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        store, peers, port = server.free_ports(3)
        self.address = f"https://{server.HOST}:{port}"
        key = self.folder / "accounts.key"
        run([fetch.openssl(), "genrsa", "-out", key, "2048"])
        tokens = self.folder / "tokens.csv"
        tokens.write_text(f"{self.token},admin,admin,system:masters\n")
        store = f"http://{server.HOST}:{store}"
        self.launch("etcd", [
            f"--data-dir={self.folder / 'store'}", f"--listen-client-urls={store}", f"--advertise-client-urls={store}",
            f"--listen-peer-urls=http://{server.HOST}:{peers}",
        ])  # fmt: skip
        issuer = "https://kubernetes.default.svc"
        self.launch("kube-apiserver", [
            f"--etcd-servers={store}", f"--bind-address={server.HOST}", f"--secure-port={port}",
            f"--cert-dir={self.folder}", f"--token-auth-file={tokens}", "--authorization-mode=RBAC",
            f"--service-account-issuer={issuer}", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.0.0.0/24",
        ])  # fmt: skip
        self.wait("/readyz")

    def launch(self, name, flags):
        with open(self.folder / f"{name}.log", "wb") as log:
            command = [sys.executable, "-S", server.__file__, os.getpid(), self.built / name, *flags]
            self.running.append(subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            ))  # fmt: skip

    def stop(self):
        # The API server ends first, because it waits for its store.
        while self.running:
            process = self.running.pop()
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def wait(self, path, timeout_s=120):
        """Waits until a path answers: for the server's start, or for a kind that was defined."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self.ask(path)
            except (Refused, OSError) as failure:
                ended = [process for process in self.running if process.poll() is not None]
                if ended or time.monotonic() > deadline:
                    logs = "\n".join(self.tail(name) for name in PROGRAMS)
                    raise Unavailable(f"kubernetes does not answer {path}: {failure}\n{logs}") from None
            time.sleep(0.05)

    def tail(self, name):
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join([f"{name}:", *lines[-10:]])

    def ask(self, path, body=None, kind="application/json"):
        """Sends a GET, or a POST of a body; returns the response as JSON, or as text."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "Accept": "application/json"}
        request = urllib.request.Request(self.address + path, body, headers)
        # The API server creates its own certificate, and does not listen before that.
        try:
            trusted = ssl.create_default_context(cafile=self.folder / "apiserver.crt")
        except ssl.SSLError as unfinished:
            raise OSError(f"its certificate is not written yet: {unfinished}") from None
        try:
            with urllib.request.urlopen(request, timeout=60, context=trusted) as answer:
                text = answer.read()
                return json.loads(text) if answer.headers.get_content_type() == "application/json" else text.decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                text = refusal.read().decode()
            with_message = refusal.headers.get_content_type() == "application/json"
            raise Refused(refusal.code, json.loads(text)["message"] if with_message else text) from None

    def define(self, file):
        """Defines the kinds of a file, and waits until they are served."""
        added = self.ask("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", file.read_bytes(), "application/yaml")
        spec = added["spec"]
        for version in spec["versions"]:
            if version["served"]:
                self.wait(f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}")

    def create(self, manifest, namespace=None, dry_run=False):
        """Creates an object, or with `dry_run` only validates it. Raises `Refused` if it is invalid or has unknown
        fields."""
        base = ("/apis/" if "/" in manifest["apiVersion"] else "/api/") + manifest["apiVersion"]
        resource = self.resource(base, manifest["kind"])
        namespace = manifest["metadata"].get("namespace", namespace)
        within = f"/namespaces/{namespace}" if resource["namespaced"] else ""
        asked = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.ask(f"{base}{within}/{resource['name']}{asked}", json.dumps(manifest).encode())

    def resource(self, base, kind):
        """Returns a kind's name in the API's paths, and whether it belongs to a namespace."""
        if base not in self.kinds:
            listed = self.ask(base)["resources"]
            self.kinds[base] = {one["kind"]: one for one in listed if "/" not in one["name"]}
        if kind not in self.kinds[base]:
            raise Refused(404, f"no kind '{kind}' in {base}, which has {', '.join(sorted(self.kinds[base]))}")
        return self.kinds[base][kind]
