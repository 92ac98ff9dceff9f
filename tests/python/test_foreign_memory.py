"""No answer holds what another request left in memory, however little an engine writes of it: outputs that are inputs,
constants, operators that do nothing."""

import os

import fetch
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from clients import tensor
from conftest import fetched, serving
from onnx_bytes import constant, model, node, port
from repository_on_disk import config, write_model

#: What the other client's tensors hold.
SECRET = np.float32(4711)
DIMS = ("batch", 8)
A, B, C = (port(name, "FP32", DIMS) for name in "ABC")
ROWS = {"A": ("FP32", [8])}
NEGATIVE = node("Neg", ["A"], ["B"])

#: By model: its graph, its outputs as factors of the input, and further lines of its configuration.
MODELS = {
    "input": (model([NEGATIVE], [A], [B, A]), {"B": -1, "A": 1}, ""),
    "alone": (model([NEGATIVE], [A], [A]), {"A": 1}, ""),
    "names": (model([NEGATIVE, node("Identity", ["B"], ["C"])], [A], [C, B]), {"C": -1, "B": -1}, ""),
    "dropout": (model([node("Dropout", ["A"], ["B"]), node("Neg", ["B"], ["C"])], [A], [C, B]), {"C": -1, "B": 1}, ""),
    "max": (model([node("Max", ["A"], ["B"])], [A], [B]), {"B": 1}, ""),
    "sum": (model([node("Sum", ["A"], ["B"])], [A], [B]), {"B": 1}, ""),
    "stages": (
        model([node("Neg", ["A"], ["D"]), node("Dropout", ["D"], ["B"]), node("Neg", ["D"], ["C"])], [A], [C, B]),
        {"C": 1, "B": -1},
        'parameters { key: "paternoster" value { string_value: "stages: [D]" } }',
    ),
}
ZERO_ADDED = model([node("Add", ["A", "zero"], ["B"])], [A], [B], [constant("zero", [0.0])])
STATE = """
sequence_batching {
  max_sequence_idle_microseconds: 600000000
  oldest { max_candidate_sequences: 4 }
  state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 8 ] }
}
"""


def graph_with_state():
    """Returns a model whose answer is its input, and whose state is the one before plus the input."""
    state = [port(name, "FP32", DIMS) for name in "ST"]
    nodes = [node("Add", ["A", "S"], ["T"]), node("Identity", ["T"], ["B"])]
    return model(nodes, [A, state[0]], [A, B, state[1]])


@pytest.fixture(scope="module", params=["onnxruntime", "openvino"])
def client(request, program, tmp_path_factory):
    """Returns a client of a server whose models run by one engine."""
    folder = tmp_path_factory.mktemp(request.param)
    by = f'parameters {{ key: "engine" value {{ string_value: "{request.param}" }} }}'
    models = {**MODELS, "sequence": (graph_with_state(), "AB", STATE), "other": (ZERO_ADDED, "B", "")}
    for name, (graph, outputs, more) in models.items():
        described = {output: ("FP32", [8]) for output in outputs}
        write_model(folder, name, graph, config(name, ROWS, described, extra=by + more))
    flags = ["--openvino-library", fetched(fetch.openvino)] if request.param == "openvino" else []
    with serving(folder, "--allow-client-shm=true", *flags, program=program) as running:
        with triton.InferenceServerClient(running.grpc) as connected:
            yield connected


def leave_secrets(client):
    """Fills the memory that later requests of the same size use."""
    for count in (1, 2, 3):
        secret = np.full((count, 8), SECRET, np.float32)
        assert (client.infer("other", [tensor("A", secret)]).as_numpy("B") == SECRET).all()


def batch(count, start):
    return np.arange(start, start + 8 * count, dtype=np.float32).reshape(count, 8)


@pytest.mark.parametrize("name", MODELS)
def test_answers_hold_the_clients_own_data(client, name):
    for number in range(6):
        leave_secrets(client)
        mine = batch(1 + number % 3, 100 * number)
        result = client.infer(name, [tensor("A", mine)])
        for output, factor in MODELS[name][1].items():
            np.testing.assert_array_equal(result.as_numpy(output), factor * mine, f"{output}, request {number}")


def test_answers_of_sequences_do_too(client):
    total = np.zeros((1, 8), np.float32)
    for number in range(6):
        leave_secrets(client)
        mine = batch(1, 100 * number)
        total += mine
        result = client.infer("sequence", [tensor("A", mine)], sequence_id=7, sequence_start=number == 0)
        np.testing.assert_array_equal(result.as_numpy("A"), mine)
        np.testing.assert_array_equal(result.as_numpy("B"), total)


def test_answers_in_shared_memory_do_too(client):
    key, size = f"/paternoster-{os.getpid()}-own", 2 * 8 * 4
    region = shm.create_shared_memory_region("own", key, size)
    try:
        client.register_system_shared_memory("own", key, size)
        for number in range(4):
            leave_secrets(client)
            shm.set_shared_memory_region(region, [np.full((2, 8), SECRET, np.float32)])
            mine, wanted = batch(2, 100 * number), triton.InferRequestedOutput("A")
            wanted.set_shared_memory("own", size)
            client.infer("input", [tensor("A", mine)], outputs=[wanted])
            np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, (2, 8)), mine)
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(region)
