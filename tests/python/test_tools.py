"""Programs that users of Triton have at hand: grpcurl and perf_analyzer."""

import json
import re
import subprocess

import fetch
import pytest
from clients import change, statistics
from conftest import fetched

SERVICE = "inference.GRPCInferenceService"


def output(command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def grpcurl():
    program = fetched(fetch.grpcurl)
    return lambda *arguments: output([program, "-plaintext", *arguments])


def test_grpcurl_lists_the_services_and_their_methods(grpcurl, server):
    services = set(grpcurl(server.grpc, "list").split())
    assert {SERVICE, "grpc.health.v1.Health"} <= services
    assert any(service.startswith("grpc.reflection.v1") for service in services)
    methods = grpcurl(server.grpc, "list", SERVICE).split()
    assert len(methods) == 20 and f"{SERVICE}.ModelStreamInfer" in methods


@pytest.mark.parametrize("symbol", [SERVICE, "inference.ModelInferRequest", "inference.ModelConfig", f"{SERVICE}.ModelInfer"])
def test_grpcurl_describes(grpcurl, server, symbol):
    assert symbol.rsplit(".", 1)[1] in grpcurl(server.grpc, "describe", symbol)


def test_grpcurl_calls(grpcurl, server):
    assert json.loads(grpcurl(server.grpc, f"{SERVICE}/ServerReady")) == {"ready": True}
    request = {
        "model_name": "addsub",
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [1, 16], "contents": {"fp32_contents": [number] * 16}}
            for name, number in (("INPUT0", 5.0), ("INPUT1", 3.0))
        ],
    }
    answer = json.loads(grpcurl("-d", json.dumps(request), server.grpc, f"{SERVICE}/ModelInfer"))
    assert [one["name"] for one in answer["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    assert len(answer["rawOutputContents"]) == 2


def test_grpcurl_watches_health(grpcurl, server):
    answer = grpcurl("-d", json.dumps({"service": SERVICE}), server.grpc, "grpc.health.v1.Health/Check")
    assert json.loads(answer) == {"status": "SERVING"}


# perf_analyzer -------------------------------------------------------------------------------------------------------

#: The server's side of perf_analyzer's report for one concurrency.
SERVER_SIDE = re.compile(
    r"Request concurrency: (\d+)\n.*?Throughput: ([\d.]+) infer/sec.*?"
    r"Server:\s*\n\s*Inference count: (\d+)\s*\n\s*Execution count: (\d+)\s*\n\s*Successful request count: (\d+)\s*\n"
    r"\s*Avg request latency: (\d+) usec \(overhead (\d+) usec \+ queue (\d+) usec \+ compute input (\d+) usec"
    r" \+ compute infer (\d+) usec \+ compute output (\d+) usec\)",
    re.DOTALL,
)


def test_perf_analyzer_runs_through_and_its_figures_add_up(server, client, request):
    program = fetched(fetch.perf_analyzer)
    steps = "1:64" if request.config.getoption("--full-range") else "1:64:21"
    expected = list(range(1, 65, 1 if steps == "1:64" else 21))
    before = statistics(client, "identity")
    # Few and short windows, any of them good enough: the figures have to add up, not to be stable.
    report = output(
        [program, "-m", "identity", "-i", "grpc", "-u", server.grpc, "--concurrency-range", steps, "-p", "300", "-r", "3"]
        + ["--stability-percentage", "1000"]
    )
    measured = [tuple(map(float, found)) for found in SERVER_SIDE.findall(report)]
    assert [int(one[0]) for one in measured] == expected, report
    for concurrency, throughput, inferences, executions, successes, latency, *parts in measured:
        assert throughput > 0
        assert inferences == successes, "requests of batch 1"
        # A window may end after an execution and before its requests are answered and counted.
        assert 0 < executions <= inferences + concurrency
        # perf_analyzer rounds each part down to whole microseconds.
        assert abs(sum(parts) - latency) <= len(parts), f"at concurrency {concurrency}: {parts} make {latency}"
    added = change(before, statistics(client, "identity"))
    assert added["fail"] == 0
    assert added["success"] >= sum(one[4] for one in measured)
    assert added["inference"] == added["success"] == sum(size * count for size, count in added["batches"].items())


def test_perf_analyzer_sends_sequences(server, client):
    program = fetched(fetch.perf_analyzer)
    before = statistics(client, "total")
    # As many sequences at once as may hold state.
    report = output(
        [program, "-m", "total", "-i", "grpc", "-u", server.grpc, "--concurrency-range", "4", "--sequence-length", "5"]
        + ["-p", "300", "-r", "3", "--stability-percentage", "1000"]
    )
    assert "Throughput:" in report, report
    added = change(before, statistics(client, "total"))
    assert added["fail"] == 0 and added["success"] > 0
