"""Resident memory returns to the system after models are unloaded, and after runs that needed much."""

import numpy as np
import tritonclient.grpc as triton
from clients import eventually, tensor
from onnx_bytes import constant, model, node, port, product
from repository_on_disk import write_model

MODELS, WIDTH = 16, 1024
WEIGHTS = MODELS * WIDTH * WIDTH * 4
#: Numbers of a request whose run needs a matrix of their square.
MANY = 4096
MATRIX = MANY * MANY * 4
#: How much of the memory before may be in use after.
RETURNED = 1.1
#: A busy machine may take half a minute, the longest time until memory is given back.
WITHIN_S = 90


def squares():
    """OUTPUT0 = INPUT0 times the sum of its row, by way of all products of two of its numbers."""
    dims = ("batch", MANY)
    return model(
        [
            node("Unsqueeze", ["INPUT0", "last"], ["column"]),
            node("Unsqueeze", ["INPUT0", "second"], ["row"]),
            node("MatMul", ["column", "row"], ["products"]),
            node("ReduceSum", ["products", "last"], ["OUTPUT0"], keepdims=0),
        ],
        [port("INPUT0", "FP32", dims)],
        [port("OUTPUT0", "FP32", dims)],
        [constant("last", np.array([2])), constant("second", np.array([1]))],
    )


def ask(client, name, sent, expected):
    answer = client.infer(name, [tensor("INPUT0", sent)]).as_numpy("OUTPUT0")
    assert np.allclose(answer, expected, rtol=1e-4), f"{name} answered {answer}"


def returned(server, before):
    eventually(
        f"resident memory has returned to {before / 1e6:.0f} MB", lambda: server.memory_bytes() <= RETURNED * before, WITHIN_S
    )


def test_memory_of_unloaded_models_returns(start, tmp_path):
    for number in range(MODELS):
        write_model(tmp_path, f"m{number}", product(number + 1, WIDTH))
    server = start(tmp_path, "--model-control-mode=explicit")
    sent = np.arange(WIDTH, dtype=np.float32)[np.newaxis]
    with triton.InferenceServerClient(server.grpc) as client:

        def come_and_go(numbers):
            for number in numbers:
                client.load_model(f"m{number}")
                ask(client, f"m{number}", sent, sent[:, ::-1] * (number + 1))
            most = server.memory_bytes()
            for number in numbers:
                client.unload_model(f"m{number}")
            return most

        # What the first model leaves behind once, such as threads, stays.
        come_and_go([0])
        before = server.memory_bytes()
        for _ in range(3):
            assert come_and_go(range(MODELS)) - before > WEIGHTS / 2
        returned(server, before)


def test_memory_of_a_large_run_returns_while_the_model_stays(start, tmp_path):
    write_model(tmp_path, "squares", squares())
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        sent = np.zeros((1, MANY), np.float32)
        sent[0, :2] = 2, 3
        ask(client, "squares", sent, sent * 5)
        returned(server, server.memory_bytes() - MATRIX)
        ask(client, "squares", sent, sent * 5)
