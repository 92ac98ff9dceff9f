"""TLS and client certificates over HTTP and gRPC, and groups of calls that require a key, with Triton's own clients."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as over_http
from certificates import Certificates
from clients import ROW, eventually, raw_channel, rows, tensor
from conftest import ROOT
from onnx_bytes import identity
from repository_on_disk import config, write_model
from server import Server
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

#: Every group except health.
GROUPS = "metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"
HEALTH_METHODS = {"ServerLive", "ServerReady", "ModelReady"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def served_files(certificates):
    return certificates.sign("server")


def context(certificates, certified_by=None):
    """Returns an SSL context with which a client of the standard library trusts the server, and presents a
    certificate."""
    trusting = ssl.create_default_context(cafile=certificates.authority)
    if certified_by:
        trusting.load_cert_chain(*certified_by)
    return trusting


@pytest.fixture(scope="module", params=["one-sided", "mutual"])
def secured(request, program, tmp_path_factory, certificates, served_files):
    """Starts a server with TLS on both ports, without and with client certificates: (server, is mutual)."""
    is_mutual = request.param == "mutual"
    repository = tmp_path_factory.mktemp("secured")
    write_model(repository, "identity", identity(), config("identity", {"INPUT0": ("FP32", [16])}))
    cert, key = served_files
    flags = [f"--{port}-{flag}" for port in ("grpc", "http") for flag in (
        f"use-ssl{'-mutual' if is_mutual else ''}", f"server-cert={cert}", f"server-key={key}",
        f"root-cert={certificates.authority}",
    )]  # fmt: skip
    with Server(repository, *flags, program=program, tls=context(certificates)) as running:
        yield running, is_mutual


def http_client(server, certificates, certified_by=None):
    options = {"ca_certs": certificates.authority}
    if certified_by:
        options |= {"certfile": certified_by[0], "keyfile": certified_by[1]}
    return over_http.InferenceServerClient(server.http, ssl=True, ssl_options=options)


def given(values):
    return over_http.InferInput("INPUT0", list(values.shape), "FP32").set_data_from_numpy(values)


def test_tritons_http_client_is_served_over_tls(secured, certificates):
    server, is_mutual = secured
    with http_client(server, certificates, certificates.sign("client")) as client:
        assert client.is_server_ready()
        np.testing.assert_array_equal(client.infer("identity", [given(rows(2))]).as_numpy("OUTPUT0"), rows(2))
    with http_client(server, certificates) as client:
        assert client.is_server_live() and client.is_server_ready(), "as probes ask"
        assert client.is_model_ready("identity")
        if is_mutual:
            with pytest.raises(InferenceServerException, match="expecting a client certificate") as refusal:
                client.infer("identity", [given(rows(2))])
            assert refusal.value.status() == "403"
        else:
            np.testing.assert_array_equal(client.infer("identity", [given(rows(2))]).as_numpy("OUTPUT0"), rows(2))


def test_tritons_grpc_client_is_served_over_tls(secured, certificates):
    server, is_mutual = secured
    cert, key = certificates.sign("client")
    own = {"private_key": key, "certificate_chain": cert} if is_mutual else {}
    with triton.InferenceServerClient(server.grpc, ssl=True, root_certificates=certificates.authority, **own) as client:
        assert client.infer("identity", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0").tolist() == [ROW.tolist()]
    if is_mutual:
        with triton.InferenceServerClient(server.grpc, ssl=True, root_certificates=certificates.authority) as client:
            with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
                client.is_server_live()


def test_what_is_sent_in_plain_text_is_not_answered(secured):
    server, _ = secured
    with pytest.raises((http.client.HTTPException, OSError)):
        urllib.request.urlopen(f"http://{server.http}/v2/health/live", timeout=120)


def test_http_1_is_chosen_in_the_handshake(secured, certificates):
    server, _ = secured
    offering = context(certificates)
    offering.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(server.http.split(":"), timeout=120) as plain:
        with offering.wrap_socket(plain, server_hostname="127.0.0.1") as stream:
            assert stream.selected_alpn_protocol() == "http/1.1"


def test_a_certificate_that_cannot_be_used_ends_the_start_and_is_named(program, tmp_path, certificates, served_files):
    cert, key = served_files
    _, other_key = certificates.sign("other")
    empty = tmp_path / "empty.pem"
    empty.touch()
    repository = tmp_path / "repository"
    repository.mkdir()
    for port in ("grpc", "http"):
        for files, fact in [
            ((cert, other_key), f"the private key in '{other_key}' does not belong to the certificate in '{cert}'"),
            ((empty, key), f"'{empty}' holds no certificate"),
            ((cert, tmp_path / "nowhere"), f"cannot read a private key from '{tmp_path / 'nowhere'}'"),
        ]:
            flags = [f"--{port}-use-ssl", f"--{port}-server-cert={files[0]}", f"--{port}-server-key={files[1]}"]
            ports = ["--grpc-port=0", "--http-port=0", "--metrics-port=0"]
            command = [str(program), "serve", f"--model-repository={repository}", *ports, *flags]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert ended.returncode == 1 and fact in ended.stderr, ended.stderr


def shown_certificate(server):
    """Returns the certificate that a new connection is shown, as DER."""
    host, port = server.http.split(":")
    shown = ssl.create_default_context()
    shown.check_hostname, shown.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), timeout=120) as plain:
        with shown.wrap_socket(plain) as stream:
            return stream.getpeercert(binary_form=True)


def test_a_renewed_certificate_is_served_and_a_reload_ends_nothing(program, tmp_path, certificates):
    def renew(name):
        for made, served in zip(certificates.sign(name), files, strict=True):
            shutil.copy(made, tmp_path / "new")
            os.replace(tmp_path / "new", served)
        with open(files[0]) as pem:
            return ssl.PEM_cert_to_DER_cert(pem.read())

    files = [tmp_path / "tls.crt", tmp_path / "tls.key"]
    first = renew("first")
    repository = tmp_path / "repository"
    repository.mkdir()
    flags = [f"--{port}-{flag}" for port in ("grpc", "http") for flag in (
        "use-ssl", f"server-cert={files[0]}", f"server-key={files[1]}",
    )]  # fmt: skip
    with Server(repository, *flags, program=program, tls=context(certificates)) as running:
        assert shown_certificate(running) == first
        second = renew("second")
        eventually("the new certificate", lambda: shown_certificate(running) == second)

        (tmp_path / "tls.crt").write_text("no certificate")
        os.kill(running.pid, signal.SIGHUP)
        refusal = f"'{files[0]}' holds no certificate"
        eventually("the refusal", lambda: refusal in running.log.read_text())
        assert shown_certificate(running) == second, "the former one stays"

        third = renew("third")
        os.kill(running.pid, signal.SIGHUP)
        eventually("the third certificate", lambda: shown_certificate(running) == third)


# Keys ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked(program, tmp_path_factory):
    """Starts a server on which all groups except health require a key."""
    repository = tmp_path_factory.mktemp("locked")
    write_model(repository, "identity", identity(), config("identity", {"INPUT0": ("FP32", [16])}))
    flags = [f"--grpc-restricted-protocol={GROUPS}:key=secret", f"--http-restricted-api={GROUPS}:key=secret"]
    with Server(repository, *flags, program=program) as running:
        yield running


def asked(server, method, path):
    """Returns the status of a request without a key, and its body."""
    body = b"{}" if method == "POST" else None
    request = urllib.request.Request(f"http://{server.http}{path}", method=method, data=body)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read()


def test_without_the_key_nothing_answers_over_http_but_health(locked):
    status, text = locked.get("/v2/openapi.json", headers={"key": "secret"})
    assert status == 200, "with the key it answers"
    described = [(path, method.upper()) for path, methods in json.loads(text)["paths"].items() for method in methods]
    described = [(path, method) for path, method in described if method in {"GET", "POST"}]
    assert len(described) > 40
    names = {"{model}": "identity", "{version}": "1", "{region}": "region", "{repository}": "repository"}
    for path, method in described:
        for placeholder, name in names.items():
            path = path.replace(placeholder, name)
        is_health = path.endswith("/ready") or path in {"/v2/health/live", "/health", "/ping"}
        assert asked(locked, method, path)[0] == (200 if is_health else 403), f"{method} {path}"
    assert asked(locked, "GET", "/metrics")[0] == 403, "the HTTP port has them too"
    for method, path, key in (
        ("POST", "/v1/embeddings", "error"),
        ("POST", "/embed", "error_type"),
        ("POST", "/v2/embed", "message"),
        ("POST", "/v2/rerank", "detail"),
        ("GET", "/v2", "error"),
    ):
        status, refusal = asked(locked, method, path)
        assert status == 403 and key in json.loads(refusal), "in the form of that route's clients"
    with over_http.InferenceServerClient(locked.http) as client:
        found = client.infer("identity", [given(rows(1))], headers={"key": "secret"}).as_numpy("OUTPUT0")
        np.testing.assert_array_equal(found, rows(1))


def test_without_the_key_nothing_answers_over_grpc_but_health(locked):
    (service,) = service_pb2.DESCRIPTOR.services_by_name.values()
    methods = {f"/inference.GRPCInferenceService/{method.name}": method.name for method in service.methods}
    methods["/grpc.health.v1.Health/Check"] = "ServerLive"
    for version in ("v1", "v1alpha"):
        methods[f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"] = "reflection"
    assert len(methods) > 20
    with raw_channel(locked) as channel:
        for path, name in methods.items():
            status = grpc.StatusCode.OK
            try:
                list(channel.stream_stream(path)(iter([b""]), timeout=120))
            except grpc.RpcError as refusal:
                status = refusal.code()
                if name not in HEALTH_METHODS:
                    assert "triton-grpc-protocol-key" in refusal.details(), path
            assert (status == grpc.StatusCode.OK) == (name in HEALTH_METHODS), f"{path}: {status}"
    with triton.InferenceServerClient(locked.grpc) as client:
        found = client.infer("identity", [tensor("INPUT0", [ROW])], headers={"triton-grpc-protocol-key": "secret"})
        assert found.as_numpy("OUTPUT0").tolist() == [ROW.tolist()]


def test_a_flag_whose_secret_is_an_unset_variable_ends_the_start(program, tmp_path):
    for flag in ("--grpc-restricted-protocol", "--http-restricted-api"):
        ports = ["--grpc-port=0", "--http-port=0", "--metrics-port=0"]
        command = [str(program), "serve", f"--model-repository={tmp_path}", *ports, f"{flag}=trace:admin="]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        fact = f"{flag}: restriction key 'admin' has an empty value, expected a secret"
        assert ended.returncode == 1 and fact in ended.stderr, ended.stderr


def test_the_log_holds_no_key(locked):
    assert "secret" not in locked.log.read_text()


# The page about it ---------------------------------------------------------------------------------------------------


def test_what_holds_each_promise_is_there():
    page = (ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`((?:src|tests|deploy)/[\w./-]+)(?:::(\w+))?`", page)
    assert len(named) > 35
    for path, function in named:
        text = (ROOT / path).read_text()
        assert not function or re.search(rf"\b(?:fn|def) {function}\(", text), f"{path} has no {function}"
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("|---")]
    unheld = [row for row in rows if row.count("|") == 4 and "`" not in row.rsplit("|", 2)[1] and "held by" not in row]
    of_trust = page.partition("## What an attacker finds")[0]
    assert [row for row in unheld if row not in of_trust] == [], "each row says what holds it"
