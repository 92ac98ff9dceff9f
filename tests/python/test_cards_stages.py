"""Models that are whole or cut into stages on a CUDA card that a stand-in for CUDA's libraries plays: what NumPy makes of each row
alone, real clients are answered."""

import threading

import numpy as np
import onnx_bytes as onnx
import pytest
import tritonclient.grpc as triton
from conftest import Server

WIDTH = 8
REQUESTS = 60
#: One in so many requests is cancelled.
CANCELLED = 15
TOLERANCE = 1e-5
#: Rows whose largest value behind the first layer reaches this leave there.
CONFIDENT = 2.0
POLICIES = ("serial", "window", "lazy", "diversity", "adaptive")


class Net:
    """Three layers, of which the last reads what the first left, too; confident rows are answered by the first."""

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
    assert complaints == [], "the server's log speaks of errors"


@pytest.mark.parametrize("model", ["whole", *POLICIES])
def test_rows_on_a_card_are_what_they_are_alone(server, model):
    rng = np.random.default_rng(5)
    asked = [rng.normal(size=(rng.integers(1, 5), WIDTH)).astype(np.float32) for _ in range(REQUESTS)]
    answers, all_there = {}, threading.Event()

    def take(number):
        def answered(result, error):
            answers[number] = (result, error)
            if len(answers) == REQUESTS:
                all_there.set()

        return answered

    with triton.InferenceServerClient(server.grpc) as client:
        for number, rows in enumerate(asked):
            tensor = triton.InferInput("x", rows.shape, "FP32")
            tensor.set_data_from_numpy(rows)
            call = client.async_infer(model, [tensor], take(number))
            if number % CANCELLED == 0:
                call.cancel()
        assert all_there.wait(120), f"{len(answers)} of {REQUESTS} were answered"
        counted = client.get_inference_statistics(model).model_stats[0]
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
