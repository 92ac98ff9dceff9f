"""The fields of log records about their model or request, in each of the log's forms."""

import json
import re

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from clients import ROW, eventually, refused, rows, tensor
from conftest import serving
from onnx_bytes import identity, model, node, port
from repository_on_disk import config, write_model
from tritonclient.utils import InferenceServerException

FORMS = ["default", "ISO8601", "json"]

#: A client's text that would become a field, a record and a colour if it were not escaped.
FORGED = 'x" model="other" rows=9\nE1231 23:59:59.000000 1 forged.rs:1] the scheduler panicked\x1b[31m'

#: The start of a record in each form other than JSON.
RECORD = re.compile(r"^(?:[IWE]\d{4} |\d{4}-\d\d-\d\dT)")


def failing():
    """Returns a model that adds its inputs, and fails if their lengths do not match."""
    ports = [port("INPUT0", "FP32", ["batch", "n"]), port("INPUT1", "FP32", ["batch", "m"])]
    return model([node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"])], ports, [port("OUTPUT0", "FP32", ["batch", "k"])])


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path / "models", "identity", identity(), config("identity", {"INPUT0": ("FP32", [16])}))
    write_model(tmp_path / "models", "failing", failing())
    return tmp_path / "models"


def records(server, form, message):
    """Returns the records of a message, each as a dictionary. A line that is no record must continue the previous
    one."""
    found = []
    for line in server.log.read_text().splitlines():
        if form == "json":
            record = json.loads(line)
            if record["message"] == message:
                found.append(record)
        elif RECORD.match(line):
            assert "forged.rs" not in line.split("] ", 1)[0], line
            said = line.split("] ", 1)[1]
            if said == message or said.startswith(message + " "):
                found.append(fields(said[len(message) :]))
        else:
            assert line.startswith("  "), f"no record, and not indented: {line!r}"
    return found


def fields(text):
    """Returns the fields of a line as a reader of `name=value` parses them: a duplicate name is an error."""
    found = {}
    for name, quoted, plain in re.findall(r' (\w+)=(?:"((?:[^"\\]|\\.)*)"|(\S+))', text):
        assert name not in found, f"{name} comes twice: {text}"
        found[name] = re.sub(r"\\(?:u\{(\w+)\}|(.))", unescaped, quoted) if quoted else plain
    return found


def unescaped(match):
    code, letter = match.groups()
    return chr(int(code, 16)) if code else {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}.get(letter, letter)


def one(server, form, message, **about):
    """Returns the only record of a message with these fields, once it is written."""

    def matching():
        written = records(server, form, message)
        return [one for one in written if all(str(one.get(name)) == value for name, value in about.items())]

    (found,) = eventually(f"a record {message!r} of {about}", matching)
    return found


def unequal():
    return [tensor("INPUT0", rows(1)), tensor("INPUT1", rows(1)[:, :3])]


@pytest.mark.parametrize("form", FORMS)
def test_a_line_about_a_request_says_which_request_it_is_about(program, models, form):
    flags = ("--log-verbose=1", f"--log-format={form}", "--model-control-mode=none")
    with serving(models, *flags, program=program) as server:
        with triton.InferenceServerClient(server.grpc) as client:
            with refused("INTERNAL"):
                client.infer("failing", unequal(), request_id="of-grpc")
            with refused("NOT_FOUND"):
                client.infer("nobody", [tensor("INPUT0", np.array([ROW]))], model_version="7", request_id="of-none")
            client.infer("identity", [tensor("INPUT0", np.array([ROW]))], request_id="answered")
            stream(client, "failing", unequal(), "of-stream")
        over_http(server)

        ran = one(server, form, "call refused", request_id="of-grpc")
        expected = {"protocol": "grpc", "model": "failing", "version": "1", "rows": "1", "code": "Internal"}
        assert {name: str(ran[name]) for name in expected} == expected
        unknown = one(server, form, "call refused", request_id="of-none")
        assert (unknown["model"], str(unknown["version"]), "rows" in unknown) == ("nobody", "7", False)
        streamed = one(server, form, "call refused", request_id="of-stream")
        assert (streamed["model"], str(streamed["rows"]), streamed["protocol"]) == ("failing", "1", "grpc")
        http = one(server, form, "call refused", request_id="of-http")
        assert (http["model"], str(http["rows"]), http["protocol"], str(http["code"])) == ("failing", "1", "http", "500")
        assert not [record for record in records(server, form, "call refused") if record.get("request_id") == "answered"]


def stream(client, name, inputs, request_id):
    """Sends one request over a stream, which must fail."""
    came = []
    client.start_stream(lambda result, error: came.append(error))
    client.async_stream_infer(name, inputs, request_id=request_id)
    client.stop_stream()
    assert len(came) == 1 and came[0] is not None


def over_http(server):
    inputs = []
    for name, length in (("INPUT0", 16), ("INPUT1", 3)):
        one = triton_http.InferInput(name, [1, length], "FP32")
        one.set_data_from_numpy(np.zeros((1, length), np.float32))
        inputs.append(one)
    with triton_http.InferenceServerClient(server.http) as client, pytest.raises(InferenceServerException):
        client.infer("failing", inputs, request_id="of-http")


@pytest.mark.parametrize("form", FORMS)
def test_what_a_request_says_forges_neither_a_line_nor_a_field(program, models, form):
    with serving(models, "--log-verbose=1", f"--log-format={form}", program=program) as server:
        with triton.InferenceServerClient(server.grpc) as client:
            with refused("INTERNAL"):
                client.infer("failing", unequal(), request_id=FORGED)
            with refused("NOT_FOUND"):
                client.infer(FORGED, [tensor("INPUT0", np.array([ROW]))], request_id="forged-model")
            with refused("INTERNAL"):
                client.infer("failing", unequal(), request_id="long" * 1000)
        ran = one(server, form, "call refused", request_id=FORGED)
        assert (ran["model"], str(ran["rows"])) == ("failing", "1")
        assert one(server, form, "call refused", request_id="forged-model")["model"] == FORGED
        assert one(server, form, "call refused", request_id="long" * 32)["model"] == "failing", "cut off"
        assert "\x1b" not in server.log.read_text()


def test_requests_are_not_named_where_debug_lines_are_not_logged(program, models):
    with serving(models, program=program) as server:
        with triton.InferenceServerClient(server.grpc) as client, refused("INTERNAL"):
            client.infer("failing", unequal(), request_id="quiet")
        assert "quiet" not in server.log.read_text()


@pytest.mark.parametrize("form", FORMS)
def test_a_line_of_a_load_says_what_is_loaded(program, models, form):
    (models / "identity" / "config.pbtxt").open("a").write("instance_group [{ kind: KIND_GPU }]\n")
    flags = ("--device=cpu", "--allow-cpu-fallback", f"--log-format={form}", "--log-info=false")
    with serving(models, *flags, program=program) as server:
        line = one(server, form, "its instances of kind KIND_GPU run on the CPU", model="identity")
        expected = {"version": "1", "engine": "onnxruntime", "placement": "gpu"}
        assert {name: str(line[name]) for name in expected} == expected
        assert line["reason"] == "the server was started with --device cpu"
