"""A model with an operator that has no plan for cards, on a server with a card that the stand-in for CUDA's libraries
plays. ONNX Runtime's CUDA provider would run it, but the CPU build of the library does not have that provider."""

import os
import subprocess

import numpy as np
import onnx_bytes as onnx
import pytest
import tritonclient.grpc as triton
from clients import tensor
from conftest import Server

WIDTH = 8
MISSING = "operators without a plan: Softplus (the node of '"
REFUSED = "ONNX Runtime's CUDA provider cannot be used: the ONNX Runtime library '"
ABSENT = "has no CUDA execution provider"


def softplus(layers=1):
    row = ("batch", WIDTH)
    names = ["x", *(f"h{number}" for number in range(layers - 1)), "y"]
    nodes = [onnx.node("Softplus", [before], [after]) for before, after in zip(names, names[1:])]
    return onnx.model(nodes, [onnx.port("x", "FP32", row)], [onnx.port("y", "FP32", row)])


@pytest.fixture(scope="module")
def server(program, stand_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fallback")
    configs = {
        "asks": (softplus(), "instance: { devices: [cuda] }\n"),
        "leaves-it-open": (softplus(), ""),
        "in-stages": (softplus(2), "stages: [h0]\ninstance: { devices: [cuda] }\n"),
    }
    for name, (graph, config) in configs.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(graph)
        (version.parent / "model.yaml").write_text("max_batch_size: 4\n" + config)
    flags = ("--device=cuda", "--strict-readiness=false")
    with Server(folder, *flags, program=program, environment=stand_in) as running:
        yield running


@pytest.fixture
def reasons(server):
    with triton.InferenceServerClient(server.grpc) as client:
        return {model.name: model.reason for model in client.get_model_repository_index().models}


def test_a_model_that_asks_for_a_card_is_refused_with_both_reasons(reasons):
    for fact in (MISSING, REFUSED, ABSENT):
        assert fact in reasons["asks"], reasons["asks"]


def test_stages_are_refused_since_the_provider_is_for_whole_models(reasons):
    whole = "ONNX Runtime's CUDA provider is there for whole models alone"
    for fact in ("stage 0: " + MISSING, "stage 1: " + MISSING, whole):
        assert fact in reasons["in-stages"], reasons["in-stages"]


def test_a_model_that_leaves_it_open_runs_on_the_cpu_and_the_log_has_both_reasons(server):
    x = np.linspace(-3, 3, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    with triton.InferenceServerClient(server.grpc) as client:
        found = client.infer("leaves-it-open", [tensor("x", x)]).as_numpy("y")
    np.testing.assert_allclose(found, np.log1p(np.exp(x)), rtol=1e-5, atol=1e-6)
    (line,) = [line for line in server.log.read_text().splitlines() if "the model runs on the CPU" in line]
    for fact in ("leaves-it-open", MISSING, REFUSED, ABSENT):
        assert fact in line, line


def inspected(program, path, *flags):
    command = [str(part) for part in (program, "inspect", "--model", path, *flags)]
    ended = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=60, check=True)
    return ended.stdout.splitlines()[-2:]


def test_inspect_says_what_the_fallback_is(program, server, tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(softplus())
    missing, fallback = inspected(program, model)
    assert missing.startswith(MISSING)
    assert fallback.startswith("on a card it runs whole by ONNX Runtime's CUDA provider, if ")
    missing, fallback = inspected(program, model, "--onnxruntime-library", server.library)
    assert missing.startswith(MISSING)
    assert fallback.startswith("it runs on the CPU: " + REFUSED) and fallback.endswith(ABSENT)
