"""grpcurl, which lists a server's methods by reflection and calls them."""

import json

import demo
import fetch
import pytest
from clients import output
from conftest import fetched

SERVICE = "inference.GRPCInferenceService"


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


def test_the_commands_that_the_demonstration_shows(server):
    program = fetched(fetch.grpcurl)
    commands = demo.WITH_GRPCURL.replace(".cache/bin/grpcurl", str(program)).replace("localhost:8001", server.grpc)
    shown = output(["bash", "-euc", commands])
    assert SERVICE in shown and "attention_mask" in shown, "services, and the model's metadata"
    assert '"rawOutputContents"' in shown
