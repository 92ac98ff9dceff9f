"""perf_analyzer, Triton's load generator: every way in which it sends tensors, and its figures.

A run with a fixed number of requests is exact: perf_analyzer exports each request and its response, and the server's
counts must agree. Figures are read from its CSV file and printed at the end of the tests. Speeds are not asserted.
"""

import csv
import json
import re
import ssl
import subprocess

import fetch
import numpy as np
import pytest
from certificates import Certificates
from clients import ROW, change, output, statistics
from conftest import NOTES, fetched
from server import Server

#: Requests of a counted run. perf_analyzer reports after a second at the earliest, even for few requests.
COUNT = 60
#: Time limit of a counted run, which takes a few seconds.
SECONDS = 60
STARTS_MAX = 3
#: Columns of the CSV file whose sum is the mean latency of a request, in microseconds.
PARTS = (
    "Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Server Compute Infer",
    "Server Compute Output", "Client Recv",
)  # fmt: skip
PERCENTILES = ("p50 latency", "p90 latency", "p95 latency", "p99 latency")

#: How tensors are sent: the protocol, and flags.
WAYS = {
    "http": ("http",),
    "http-async": ("http", "--async"),
    "http-json": ("http", "--input-tensor-format=json", "--output-tensor-format=json"),
    "http-json-in": ("http", "--input-tensor-format=json"),
    "http-json-out": ("http", "--output-tensor-format=json"),
    "http-shared-memory": ("http", "--shared-memory=system"),
    "grpc": ("grpc",),
    "grpc-async": ("grpc", "--async"),
    "grpc-gzip": ("grpc", "--grpc-compression-algorithm=gzip"),
    "grpc-streaming": ("grpc", "--streaming"),
    "grpc-shared-memory": ("grpc", "--shared-memory=system"),
}
FIGURES = []


@pytest.fixture(scope="module", autouse=True)
def figures():
    """Prints the figures at the end of the tests."""
    yield
    NOTES.append(("perf_analyzer, development build", FIGURES))


class Analyzer:
    """perf_analyzer against one server."""

    def __init__(self, server, folder):
        self.program = fetched(fetch.perf_analyzer)
        self.server = server
        self.csv = folder / "figures.csv"
        self.export = folder / "requests.json"
        #: How often it was started for the last run. Each start sends all requests.
        self.starts = 0

    def run(self, model, protocol, *flags):
        """Runs it; returns its output, and the rows of its CSV file."""
        http = f"https://{self.server.http}" if self.server.tls else self.server.http
        address = {"http": http, "grpc": self.server.grpc}[protocol]
        files = ["-f", self.csv, "--profile-export-file", self.export]
        text = self.ended([self.program, "-m", model, "-i", protocol, "-u", address, *files, *flags])
        with self.csv.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows, text
        for row in rows:
            is_sound(row)
            FIGURES.append(shown(model, protocol, flags, row))
        return text, rows

    def ended(self, command):
        """Returns its output. A short run whose requests are all answered sometimes does not end, or leaves its export
        empty; it is then started again."""
        is_counted = any("--request-count" in str(part) for part in command)
        for self.starts in range(1, STARTS_MAX + 1):
            self.export.unlink(missing_ok=True)
            try:
                text = output(command, timeout=SECONDS if is_counted else None)
            except subprocess.TimeoutExpired:
                continue
            if self.export.exists() and self.export.stat().st_size > 0:
                return text
        raise AssertionError(f"{command} was started {STARTS_MAX} times and did not end well")

    def requests(self):
        """Returns the requests of the only exported run, with their responses."""
        (run,) = json.loads(self.export.read_text())["experiments"]
        return run["requests"]


def is_sound(row):
    """Returns whether the figures of a row are consistent."""
    assert float(row["Inferences/Second"]) > 0
    percentiles = [int(row[name]) for name in PERCENTILES]
    assert 0 < percentiles[0] and percentiles == sorted(percentiles), row
    assert all(int(row[name]) >= 0 for name in PARTS), row
    assert any(int(row[name]) > 0 for name in PARTS if name.startswith("Server")), "the server's own figures are there"


def shown(model, protocol, flags, row):
    """Returns a line for the summary. For a counted run, perf_analyzer divides the count by a whole second, so its
    throughput means nothing."""
    flags = " ".join(flag for flag in map(str, flags) if "/" not in flag)
    rate = "counted" if "--request-count" in flags else f"{float(row['Inferences/Second']):.0f} inferences/s"
    latencies = f"p50 {row['p50 latency']:>6} µs, p99 {row['p99 latency']:>6} µs"
    return f"{rate:>18} at {next(iter(row.values())):>3}, {latencies}  {model} -i {protocol} {flags}"


@pytest.fixture
def analyzer(server, tmp_path):
    return Analyzer(server, tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_send_tensors(analyzer, client, way):
    protocol, *flags = WAYS[way]
    before = statistics(client, "addsub")
    analyzer.run("addsub", protocol, *flags, f"--request-count={COUNT}", "--concurrency-range=4", "-b", "3")
    added = change(before, statistics(client, "addsub"))
    assert (added["success"], added["fail"], added["inference"]) == (analyzer.starts * COUNT, 0, 3 * analyzer.starts * COUNT)
    requests = analyzer.requests()
    assert len(requests) == COUNT and all(len(one["response_timestamps"]) == 1 for one in requests)
    if "shared-memory" in way:
        # The export has the contents of messages. The contents of regions are compared in other tests; here they must
        # be unregistered.
        assert not client.get_system_shared_memory_status().regions
        return
    for one in requests:
        # The export has the first row of a request, whose rows are equal, and all rows of a response.
        sent, (answer,) = one["request_inputs"], one["response_outputs"]
        left, right = (np.array([sent[name]] * 3, np.float32).ravel() for name in ("INPUT0", "INPUT1"))
        assert left.size == 3 * ROW.size
        np.testing.assert_array_equal(np.array(answer["OUTPUT0"], np.float32), left + right)
        np.testing.assert_array_equal(np.array(answer["OUTPUT1"], np.float32), left - right)


@pytest.mark.parametrize("way", ["http", "http-json", "http-shared-memory", "grpc", "grpc-streaming", "grpc-shared-memory"])
def test_strings(analyzer, client, way):
    protocol, *flags = WAYS[way]
    before = statistics(client, "strings")
    analyzer.run("strings", protocol, *flags, f"--request-count={COUNT}", "--string-length=9")
    added = change(before, statistics(client, "strings"))
    assert (added["success"], added["fail"]) == (analyzer.starts * COUNT, 0)
    if "shared-memory" not in way:
        for one in analyzer.requests():
            assert one["response_outputs"][0]["OUTPUT0"] == one["request_inputs"]["INPUT0"]


def test_a_decoupled_model_answers_each_request_on_the_stream_as_often_as_it_asks(analyzer, client, tmp_path):
    values = [3.0] + [0.5] * 15
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"INPUT0": values}]}))
    before = statistics(client, "repeat")
    flags = ["--streaming", "--input-data", data, f"--request-count={COUNT}", "--concurrency-range=4"]
    text, (row,) = analyzer.run("repeat", "grpc", *flags)
    assert "Detected decoupled model" in text
    # The empty final response counts too.
    assert float(row["Response Throughput"]) > float(row["Inferences/Second"])
    added = change(before, statistics(client, "repeat"))
    assert (added["success"], added["fail"]) == (analyzer.starts * COUNT, 0)
    for one in analyzer.requests():
        assert len(one["response_timestamps"]) == 4
        answers = [answer["OUTPUT0"] for answer in one["response_outputs"][:3]]
        np.testing.assert_array_equal(answers, [np.array(values) + i for i in range(3)])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_sequences(analyzer, client, protocol):
    before = statistics(client, "total")
    # As many concurrent sequences as may hold state.
    flags = [f"--request-count={COUNT}", "--concurrency-range=4", "--sequence-length=5"]
    analyzer.run("total", protocol, *flags)
    added = change(before, statistics(client, "total"))
    assert (added["success"], added["fail"]) == (analyzer.starts * COUNT, 0)
    totals = {}
    for one in sorted(analyzer.requests(), key=lambda one: one["timestamp"]):
        answer, sent = one["response_outputs"][0], np.int64(one["request_inputs"]["INPUT0"])
        is_first, sequence = answer["is_first"], one["sequence_id"]
        with np.errstate(over="ignore"):
            totals[sequence] = sent if is_first else totals[sequence] + sent
        assert answer["OUTPUT0"] == totals[sequence]
    assert len(totals) >= COUNT // 8, "lengths vary by a fifth"


def test_a_rate_of_requests(analyzer, client):
    before = statistics(client, "identity")
    flags = ["--request-rate-range=100", "--request-distribution=poisson", "--request-count=100", "--async"]
    _, (row,) = analyzer.run("identity", "grpc", *flags)
    assert float(row["Request Rate"]) == 100
    added = change(before, statistics(client, "identity"))
    assert (added["success"], added["fail"]) == (100 * analyzer.starts, 0)


@pytest.fixture(scope="module")
def secured(program, test_models, tmp_path_factory):
    """Starts a server that requires client certificates on both ports; also returns what creates them."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    certificate, key = certificates.sign("server")
    flags = [
        f"--{port}-{flag}"
        for port in ("grpc", "http")
        for flag in (
            "use-ssl-mutual=true", f"server-cert={certificate}", f"server-key={key}", f"root-cert={certificates.authority}"
        )
    ]  # fmt: skip
    with Server(test_models, *flags, program=program, tls=trusting(certificates)) as running:
        yield running, certificates


def trusting(certificates):
    context = ssl.create_default_context(cafile=certificates.authority)
    context.load_cert_chain(*certificates.sign("probe"))
    return context


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_over_tls(secured, tmp_path, protocol):
    running, certificates = secured
    own, key = certificates.sign("client")
    names = {
        "http": ("https-ca-certificates", "https-client-certificate", "https-private-key"),
        "grpc": ("grpc-root-certifications", "grpc-certificate-chain", "grpc-private-key"),
    }[protocol]
    flags = [f"--ssl-{name}-file={file}" for name, file in zip(names, (certificates.authority, own, key))]
    flags += ["--ssl-grpc-use-ssl"] if protocol == "grpc" else []
    analyzer = Analyzer(running, tmp_path)
    analyzer.run("addsub", protocol, *flags, f"--request-count={COUNT}")
    assert len(analyzer.requests()) == COUNT


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_asks_for_traces(start, test_models, tmp_path, protocol):
    traces = tmp_path / "traces.json"
    running = start(test_models, f"--trace-file={traces}")
    flags = ["--trace-level=TIMESTAMPS", "--trace-rate=10", "--trace-count=5", f"--request-count={COUNT}"]
    analyzer = Analyzer(running, tmp_path)
    analyzer.run("identity", protocol, *flags)
    assert running.stop() == 0
    found = [one for one in json.loads(traces.read_text()) if "model_name" in one]
    assert [one["model_name"] for one in found] == ["identity"] * 5 * analyzer.starts


#: The server-side part of perf_analyzer's report for one concurrency.
SERVER_SIDE = re.compile(
    r"Request concurrency: (\d+)\n.*?Throughput: ([\d.]+) infer/sec.*?"
    r"Server:\s*\n\s*Inference count: (\d+)\s*\n\s*Execution count: (\d+)\s*\n\s*Successful request count: (\d+)\s*\n"
    r"\s*Avg request latency: (\d+) usec \(overhead (\d+) usec \+ queue (\d+) usec \+ compute input (\d+) usec"
    r" \+ compute infer (\d+) usec \+ compute output (\d+) usec\)",
    re.DOTALL,
)


def test_its_figures_of_windows_add_up(analyzer, client, request):
    steps = "1:64" if request.config.getoption("--full-range") else "1:64:21"
    expected = list(range(1, 65, 1 if steps == "1:64" else 21))
    before = statistics(client, "identity")
    # Few and short windows, any of them good enough: the figures must add up, not be stable.
    windows = ["-p", "300", "-r", "3", "--stability-percentage", "1000"]
    report, rows = analyzer.run("identity", "grpc", "--concurrency-range", steps, *windows)
    measured = [tuple(map(float, found)) for found in SERVER_SIDE.findall(report)]
    assert [int(one[0]) for one in measured] == expected, report
    for concurrency, throughput, inferences, executions, successes, latency, *parts in measured:
        assert throughput > 0
        assert inferences == successes, "requests of batch 1"
        # A window may end after an execution and before its requests are answered and counted.
        assert 0 < executions <= inferences + concurrency
        # perf_analyzer rounds each part down to whole microseconds.
        assert abs(sum(parts) - latency) <= len(parts), f"at concurrency {concurrency}: {parts} make {latency}"
    by_concurrency = {int(row["Concurrency"]): row for row in rows}
    assert sorted(by_concurrency) == expected
    for concurrency, _, _, _, _, _, _, *parts in measured:
        row = by_concurrency[int(concurrency)]
        assert [int(row[name]) for name in PARTS if name.startswith("Server")] == parts
    added = change(before, statistics(client, "identity"))
    assert added["fail"] == 0
    assert added["success"] >= sum(one[4] for one in measured)
    assert added["inference"] == added["success"] == sum(size * count for size, count in added["batches"].items())
