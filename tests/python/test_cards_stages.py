"""Models that are whole or cut into stages, on a CUDA card that the stand-in for CUDA's libraries plays. Real clients
must get NumPy's answer to each row alone."""

from pathlib import Path

import numpy as np
import onnx_bytes as onnx
import pytest
import tritonclient.grpc as triton
from clients import ask_all, tensor
from conftest import Server

WIDTH = 8
REQUESTS = 60
#: One of this many requests is cancelled.
CANCELLED = 15
TOLERANCE = 1e-5
#: Rows whose largest value after the first layer reaches this leave there.
CONFIDENT = 2.0
POLICIES = ("serial", "window", "lazy", "diversity", "adaptive")


class Net:
    """Three layers, of which the last also reads the first's output. Confident rows are answered by the first layer."""

    def __init__(self):
        rng = np.random.default_rng(3)
        self.weights = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(2)]

    def graph(self):
        row = ("batch", WIDTH)
        nodes = [
            onnx.node("MatMul", ["x", "w0"], ["p0"]),
            onnx.node("Relu", ["p0"], ["h0"]),
            onnx.node("ReduceMax", ["h0"], ["confidence"], axes=[1], keepdims=1),
            onnx.node("Neg", ["h0"], ["early"]),
            onnx.node("MatMul", ["h0", "w1"], ["p1"]),
            onnx.node("Tanh", ["p1"], ["h1"]),
            onnx.node("Add", ["h1", "h0"], ["y"]),
        ]
        weights = [onnx.constant(f"w{number}", weights) for number, weights in enumerate(self.weights)]
        return onnx.model(nodes, [onnx.port("x", "FP32", row)], [onnx.port("y", "FP32", row)], weights)

    def answer(self, rows, leaves=True):
        first = np.maximum(rows @ self.weights[0], 0)
        last = np.tanh(first @ self.weights[1]) + first
        confident = first.max(axis=1, keepdims=True) >= CONFIDENT
        return np.where(confident & leaves, -first, last)


NET = Net()
STAGES = "stages: [h0, h1]\nexits:\n  - { stage: 0, value: confidence, at_least: 2.0, outputs: { y: early } }\n"


@pytest.fixture(scope="module")
def server(program, stand_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("staged")
    configs = {policy: f"max_batch_size: 8\nbatching: {{ policy: {policy} }}\n{STAGES}" for policy in POLICIES}
    configs["whole"] = "max_batch_size: 8\n"
    for name, config in configs.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(NET.graph())
        (version.parent / "model.yaml").write_text(config + "instance: { devices: [cuda] }\n")
    with Server(folder, "--device=cuda", program=program, environment=stand_in) as running:
        yield running
        complaints = running.complaints()
    assert complaints == [], "the server's log has errors"


@pytest.mark.parametrize("model", ["whole", *POLICIES])
def test_rows_on_a_card_are_what_they_are_alone(server, model):
    rng = np.random.default_rng(5)
    asked = [rng.normal(size=(rng.integers(1, 5), WIDTH)).astype(np.float32) for _ in range(REQUESTS)]
    answers, counted = ask_all(server, model, [[tensor("x", rows)] for rows in asked], CANCELLED)
    left_early = 0
    for number, (result, error) in answers.items():
        if error is not None:
            assert number % CANCELLED == 0, error
            continue
        expected = NET.answer(asked[number], leaves=model != "whole")
        left_early += int((expected.max(axis=1) <= 0).sum())
        np.testing.assert_allclose(result.as_numpy("y"), expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert model == "whole" or left_early > REQUESTS // 4, "rows leave behind the first stage"
    assert counted.inference_count >= REQUESTS - REQUESTS // CANCELLED and counted.execution_count > 0


def convolution():
    """y = max(0, x convolved), images [2, 6, 6] to [3, 6, 6]; also returns the expected result."""
    weights = np.random.default_rng(7).normal(size=(3, 2, 3, 3)).astype(np.float32)
    nodes = [onnx.node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), onnx.node("Relu", ["c"], ["y"])]
    ports = [onnx.port("x", "FP32", ("batch", 2, 6, 6))], [onnx.port("y", "FP32", ("batch", 3, 6, 6))]

    def answer(images):
        wide = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
        return np.maximum(np.einsum("bchwij,ocij->bohw", windows, weights), 0)

    return onnx.model(nodes, *ports, [onnx.constant("w", weights)]), answer


def model_of(graph, folder):
    version = folder / "images" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(graph)
    (version.parent / "model.yaml").write_text("max_batch_size: 4\ninstance: { devices: [cuda] }\n")
    return folder


def test_images_are_convolved_on_a_card(program, stand_in, tmp_path):
    graph, answer = convolution()
    images = np.random.default_rng(8).normal(size=(3, 2, 6, 6)).astype(np.float32)
    with Server(model_of(graph, tmp_path), "--device=cuda", program=program, environment=stand_in) as running:
        with triton.InferenceServerClient(running.grpc) as client:
            found = client.infer("images", [tensor("x", images)]).as_numpy("y")
    np.testing.assert_allclose(found, answer(images), rtol=TOLERANCE, atol=TOLERANCE)


def test_without_cudnn_models_that_convolve_are_refused_in_one_line(program, stand_in, tmp_path):
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for link in Path(stand_in["LD_LIBRARY_PATH"]).glob("lib*"):
        if not link.name.startswith("libcudnn"):
            (libraries / link.name).symlink_to(link.resolve())
    models = model_of(convolution()[0], tmp_path / "models")
    environment = {**stand_in, "LD_LIBRARY_PATH": str(libraries), "XDG_CACHE_HOME": str(libraries)}
    with Server(models, "--strict-readiness=false", program=program, environment=environment) as running:
        with triton.InferenceServerClient(running.grpc) as client:
            [model] = client.get_model_repository_index().models
    assert "cuDNN is not found (libcudnn.so.9): convolutions cannot be computed" in model.reason
    assert "\n" not in model.reason
