"""Traces of requests as Triton's tools read them, and trace settings as its clients change them."""

import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from certificates import Certificates
from clients import ROW, document, eventually, refused, scrape, tensor
from conftest import serving
from onnx_bytes import identity, model, node, port
from repository_on_disk import config, write_model
from server import Server
from tritonclient.utils import InferenceServerException

OFF = {
    "trace_file": "",
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}

#: Pairs of a frontend's timestamps that Triton's summary uses: all of it, its beginning, its end.
FRONTENDS = {
    "GRPC": [("WAITREAD_START", "SEND_END"), ("WAITREAD_START", "WAITREAD_END"), ("SEND_START", "SEND_END")],
    "HTTP": [("RECV_START", "SEND_END"), ("RECV_START", "RECV_END"), ("SEND_START", "SEND_END")],
}

#: Pairs that it uses whatever the frontend.
HANDLER = [
    ("REQUEST_START", "REQUEST_END"),
    ("QUEUE_START", "COMPUTE_START"),
    ("COMPUTE_START", "COMPUTE_END"),
    ("COMPUTE_START", "COMPUTE_INPUT_END"),
    ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    ("COMPUTE_OUTPUT_START", "COMPUTE_END"),
]


@pytest.fixture
def models(tmp_path):
    for name in ("identity", "other"):
        write_model(tmp_path / "models", name, identity(), config(name, {"INPUT0": ("FP32", [16])}))
    return tmp_path / "models"


def grouped(objects):
    """Returns objects by id, merged as Triton's summary merges them: (model, version), and timestamps by name."""
    traces = {}
    for one in sorted(objects, key=lambda one: one.get("id", -1)):
        trace = traces.setdefault(one["id"], {"timestamps": {}})
        trace.update({key: one[key] for key in ("model_name", "model_version", "request_id") if key in one})
        trace["timestamps"].update({stamp["name"]: stamp["ns"] for stamp in one.get("timestamps", [])})
    return traces


def summed(traces, frontend):
    """Returns the time between the pairs of each trace of a frontend; none may be negative or missing."""
    pairs = [(f"{frontend}_{start}", f"{frontend}_{end}") for start, end in FRONTENDS[frontend]] + HANDLER
    of_frontend = [one for one in traces.values() if any(name.startswith(frontend) for name in one["timestamps"])]
    for one in of_frontend:
        for start, end in pairs:
            assert one["timestamps"][start] <= one["timestamps"][end], (start, end, one)
    return len(of_frontend)


def clients(server):
    return triton.InferenceServerClient(server.grpc), triton_http.InferenceServerClient(server.http)


def http_tensor():
    one = triton_http.InferInput("INPUT0", [1, 16], "FP32")
    one.set_data_from_numpy(np.array([ROW]))
    return one


def read(path):
    return document(path) or []


def test_a_trace_file_is_read_as_tritons_summary_reads_it(program, models, tmp_path):
    file = tmp_path / "trace.json"
    flag = f"--trace-config=level=TIMESTAMPS,rate=2,count=-1,file={file},mode=triton"
    with serving(models, flag, program=program) as server:
        over_grpc, over_http = clients(server)
        for number in range(8):
            over_grpc.infer("identity", [tensor("INPUT0", [ROW])], request_id=f"g{number}")
        for number in range(6):
            over_http.infer("identity", [http_tensor()], request_id=f"h{number}")
        eventually("seven traces are in the file", lambda: len(grouped(read(file))) == 7)
        page = scrape(server)
        assert "paternoster_traces_total 7" in page and "paternoster_traces_dropped_total 0" in page
    traces = grouped(read(file))
    assert {(one["model_name"], one["model_version"]) for one in traces.values()} == {("identity", 1)}
    assert [one["request_id"] for one in traces.values()] == ["g1", "g3", "g5", "g7", "h1", "h3", "h5"]
    assert (summed(traces, "GRPC"), summed(traces, "HTTP")) == (4, 3)


def test_numbered_files_hold_as_many_traces_as_the_frequency_says(program, models, tmp_path):
    file = tmp_path / "trace.json"
    flags = [
        f"--trace-config=triton,file={file}",
        "--trace-config",
        "triton,log-frequency=2",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        "--trace-config",
        "count=5",
    ]
    with serving(models, *flags, program=program) as server, triton.InferenceServerClient(server.grpc) as client:
        for _ in range(9):
            client.infer("identity", [tensor("INPUT0", [ROW])])
        assert client.get_trace_settings(as_json=True)["settings"]["trace_count"]["value"] == ["0"]
    assert [len(grouped(read(tmp_path / f"trace.json.{number}"))) for number in range(4)] == [2, 2, 1, 0]
    assert not file.exists()


def identities(inputs):
    """Returns a model in which each output equals the input with the same index."""
    pairs = [(name, name.replace("INPUT", "OUTPUT"), kind, ("batch", *dims)) for name, (kind, dims) in inputs.items()]
    return model(
        [node("Identity", [given], [made]) for given, made, _, _ in pairs],
        [port(given, kind, dims) for given, _, kind, dims in pairs],
        [port(made, kind, dims) for _, made, kind, dims in pairs],
    )


def array_of(traced):
    """Returns the elements of a traced tensor, as Triton's summary reads them."""
    types = {"FP32": np.float32, "BOOL": bool, "INT64": np.int64, "BYTES": np.object_}
    if traced["dtype"] == "BYTES":
        values = json.loads(f"[{traced['data']}]")
    else:
        values = [float(value) for value in traced["data"].split(",")]
    return np.array(values, dtype=types[traced["dtype"]]).reshape([int(size) for size in traced["shape"].split(",")])


def test_the_level_tensors_holds_inputs_and_outputs(program, models, tmp_path):
    kinds = {"INPUT0": ("FP32", [3]), "INPUT1": ("BOOL", [2]), "INPUT2": ("INT64", [1]), "INPUT3": ("BYTES", [2])}
    write_model(models, "kinds", identities(kinds), config("kinds", kinds))
    write_model(models, "large", identity(dims=("batch", "n")), config("large", {"INPUT0": ("FP32", [-1])}))
    file = tmp_path / "trace.json"
    flags = [f"--trace-config=triton,file={file}", "--trace-config=level=TENSORS,rate=1"]
    given = {
        "INPUT0": np.array([[1.5, -2, np.inf]], np.float32),
        "INPUT1": np.array([[True, False]]),
        "INPUT2": np.array([[2**40]], np.int64),
        "INPUT3": np.array([['say "hello"', "a,b"]], np.object_),
    }
    with serving(models, *flags, program=program) as server, triton.InferenceServerClient(server.grpc) as client:
        client.infer("kinds", [tensor(name, values) for name, values in given.items()])
        client.infer("large", [tensor("INPUT0", np.zeros((1, 100_000), np.float32))])
    objects = read(file)
    assert all("timestamps" not in one for one in objects), "that is another level"
    kinds, large = (
        [one for one in objects if one["id"] == named["id"] and "activity" in one]
        for named in objects
        if "model_name" in named
    )
    assert [one["activity"] for one in kinds] == ["TENSOR_QUEUE_INPUT"] * 4 + ["TENSOR_BACKEND_OUTPUT"] * 4
    for one in kinds:
        name = one["tensor"]["name"].replace("OUTPUT", "INPUT")
        np.testing.assert_array_equal(array_of(one["tensor"]), given[name])
    assert [(one["tensor"]["shape"], one["tensor"]["data"]) for one in large] == [("1,100000", "")] * 2


def over(client, protocol):
    """Returns functions that read and change settings with a client; both return name → value in HTTP's form."""

    def plain(answer):
        if protocol == "http":
            return answer
        values = {name: list(setting.value) for name, setting in answer.settings.items()}
        return {name: value if name == "trace_level" else value[0] for name, value in values.items()}

    return (
        lambda model=None: plain(client.get_trace_settings(model)),
        lambda model=None, **settings: plain(client.update_trace_settings(model, settings)),
    )


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_clients_change_the_settings_of_the_server_and_of_models(program, models, tmp_path, protocol):
    file = tmp_path / "trace.json"
    with serving(models, f"--trace-config=triton,file={file}", program=program) as server:
        get, update = over(dict(zip(("grpc", "http"), clients(server)))[protocol], protocol)
        assert get() == get("identity") == {**OFF, "trace_file": str(file)}

        changed = update("identity", trace_level=["TIMESTAMPS", "TENSORS"], trace_rate="1", trace_count="3")
        assert changed == get("identity") != get("other")
        assert changed["trace_level"] == ["TIMESTAMPS", "TENSORS"]
        assert (changed["trace_rate"], changed["trace_count"], changed["log_frequency"]) == ("1", "3", "0")

        update(trace_rate="9")
        assert (get("identity")["trace_rate"], get("other")["trace_rate"]) == ("1", "9")
        update("identity", trace_rate=None)
        assert get("identity")["trace_rate"] == "9", "cleared, it is the server's"
        update(trace_rate=None)
        update("identity", trace_level=None, trace_count=None)
        assert get() == get("identity") == {**OFF, "trace_file": str(file)}

        for model, settings in [
            ("identity", {"trace_file": "elsewhere.json"}),
            (None, {"log_frequency": "1"}),
            (None, {"trace_rate": "often"}),
            (None, {"trace_level": ["TIMESTAMPS"], "trace_rate": "0"}),
            ("nope", {"trace_rate": "1"}),
        ]:
            with pytest.raises(InferenceServerException):
                update(model, **settings)
        assert get() == {**OFF, "trace_file": str(file)}


def test_the_file_cannot_be_named_by_a_client(client):
    with refused("UNIMPLEMENTED", "trace file location"):
        client.update_trace_settings(settings={"trace_file": "/tmp/elsewhere.json"})
    with refused("INVALID_ARGUMENT", "trace file name is not given"):
        client.update_trace_settings("identity", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    assert client.get_trace_settings(as_json=True)["settings"]["trace_level"]["value"] == ["OFF"]


@contextmanager
def collector(identity=None):
    """Starts a collector: its URL, and (path, content type, body) of each export. With the files of a certificate and
    its key it speaks HTTPS."""
    exports = []

    class Export(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            exports.append((self.path, self.headers["content-type"], body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Export) as server:
        scheme = "http"
        if identity:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*identity)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            scheme = "https"
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"{scheme}://127.0.0.1:{server.server_port}/v1/traces", exports
        finally:
            server.shutdown()


def test_spans_that_wait_are_exported_when_the_server_ends(program, models):
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with collector() as (url, exports):
        flags = [
            "--trace-config=mode=opentelemetry,level=TIMESTAMPS,rate=0",
            f"--trace-config=opentelemetry,url={url}",
            "--trace-config",
            "opentelemetry,resource=service.name=under test",
            "--trace-config=opentelemetry,bsp_schedule_delay=3600000",
        ]
        with serving(models, *flags, program=program) as server, triton.InferenceServerClient(server.grpc) as client:
            assert client.get_trace_settings(as_json=True)["settings"]["trace_mode"]["value"] == ["opentelemetry"]
            client.infer("identity", [tensor("INPUT0", [ROW])], request_id="without a context")
            headers = {"traceparent": f"00-{trace}-{span}-01"}
            client.infer("identity", [tensor("INPUT0", [ROW])], request_id="within a span", headers=headers)
            eventually("one is traced", lambda: "paternoster_traces_total 1" in scrape(server))
            assert exports == [], "the hour is not over"
        [(path, content_type, body)] = exports
    assert (path, content_type) == ("/v1/traces", "application/x-protobuf")
    for part in (bytes.fromhex(trace), bytes.fromhex(span), b"under test", b"InferRequest", b"within a span"):
        assert part in body, part
    assert b"without a context" not in body


def test_a_collector_over_https_is_known_by_its_authority(program, models, tmp_path, monkeypatch):
    certificates = Certificates(tmp_path)
    with collector(certificates.sign("collector")) as (url, exports):
        flags = [
            "--trace-config=mode=opentelemetry,level=TIMESTAMPS,rate=1",
            f"--trace-config=opentelemetry,url={url}",
            "--trace-config=opentelemetry,bsp_schedule_delay=100",
        ]

        def ask(logged):
            with Server(models, *flags, program=program) as server, triton.InferenceServerClient(server.grpc) as client:
                client.infer("identity", [tensor("INPUT0", [ROW])])
                eventually(logged, lambda: exports or "cannot export spans" in server.log_tail())

        ask("the authority is unknown")
        assert exports == []
        monkeypatch.setenv("SSL_CERT_FILE", certificates.authority)
        ask("the spans are exported")
    assert exports[0][0] == "/v1/traces" and b"InferRequest" in exports[0][2]
