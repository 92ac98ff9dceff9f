"""Sequences of graphs as exporters write them: without a batch axis, with the batch of the state on another axis, with
strings."""

import queue

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import change, refused, statistics, tensor
from onnx_bytes import constant, model, node, port
from repository_on_disk import config, write_model


@pytest.fixture
def served(start, tmp_path):
    """Returns a function from a graph and its config.pbtxt to a client of a server with that model, called m."""
    clients = []

    def serve(graph, text, **more):
        write_model(tmp_path, "m", graph, text)
        running = start(tmp_path, "--allow-test-hooks", until="settled", **more)
        clients.append(triton.InferenceServerClient(running.grpc))
        (entry,) = clients[-1].get_model_repository_index().models
        assert entry.reason == ""
        return clients[-1]

    yield serve
    for client in clients:
        client.close()


#: Longer than any pause of a busy machine between two requests of a sequence.
IDLE = "max_sequence_idle_microseconds: 600000000"


def state(dims):
    return f'state {{ input_name: "S" output_name: "S_next" data_type: TYPE_FP32 dims: {dims} }}'


def test_a_sequence_without_a_batch_axis_keeps_its_state(served):
    """Y = S + X · FACTOR, which is the next state; FACTOR and the control START are scalars."""
    graph = model(
        [
            node("Cast", ["START"], ["started"], to=1),
            node("Mul", ["X", "FACTOR"], ["scaled"]),
            node("Add", ["S", "scaled"], ["Y"]),
            node("Identity", ["Y"], ["S_next"]),
            node("Identity", ["started"], ["FIRST"]),
        ],
        [port("X", "FP32", [2]), port("FACTOR", "FP32", []), port("S", "FP32", [2]), port("START", "INT32", [])],
        [port("Y", "FP32", [2]), port("S_next", "FP32", [2]), port("FIRST", "FP32", [])],
    )
    start_flag = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
    text = config(
        "m",
        {"X": ("FP32", [2]), "FACTOR": ("FP32", [1])},
        {"Y": ("FP32", [2]), "FIRST": ("FP32", [1])},
        max_batch_size=0,
        extra=f"sequence_batching {{ {IDLE} {state([2])} {start_flag} }}",
    )
    client = served(graph, text)

    def step(sequence, x, factor, **flags):
        inputs = [tensor("X", np.array(x, np.float32)), tensor("FACTOR", np.array([factor], np.float32))]
        answer = client.infer("m", inputs, sequence_id=sequence, **flags)
        return answer.as_numpy("Y").tolist(), answer.as_numpy("FIRST").tolist()

    assert step(1, [1, 2], 1, sequence_start=True) == ([1, 2], [1])
    assert step(2, [5, 5], 2, sequence_start=True) == ([10, 10], [1])
    assert step(1, [1, 2], 10) == ([11, 22], [0])
    assert step(2, [1, 0], 1, sequence_end=True) == ([11, 10], [0])
    assert step(1, [0, 0], 1, sequence_end=True) == ([11, 22], [0])
    with refused("INVALID_ARGUMENT"):
        step(1, [0, 0], 1)


@pytest.mark.parametrize("largest", [0, 8])
def test_correlation_ids_may_be_strings_and_outputs_too(served, largest):
    """WHO is the correlation id, WORD an input of strings as it came, and Y counts the requests of the sequence."""
    dims = ["batch", 1] if largest else [1]
    graph = model(
        [
            node("Add", ["S", "one"], ["Y"]),
            node("Identity", ["Y"], ["S_next"]),
            node("Identity", ["ID"], ["WHO"]),
            node("Identity", ["WORD"], ["SAID"]),
        ],
        [port("WORD", "BYTES", dims), port("S", "FP32", dims), port("ID", "BYTES", dims)],
        [port(name, "FP32", dims) for name in ("Y", "S_next")] + [port(name, "BYTES", dims) for name in ("WHO", "SAID")],
        [constant("one", [1.0])],
    )
    id_input = 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
    text = config(
        "m",
        {"WORD": ("BYTES", [1])},
        {"Y": ("FP32", [1]), "WHO": ("BYTES", [1]), "SAID": ("BYTES", [1])},
        max_batch_size=largest,
        extra=f"sequence_batching {{ {IDLE} {state([1])} {id_input} }} instance_group {{ count: 4 }}",
    )
    client = served(graph, text, environment={"TRITONSERVER_DELAY_SCHEDULER": "4"} if largest else None)
    ids = ["alpha", "b", "a long name of a sequence", 7]
    answers = queue.Queue()

    def ask(number, **flags):
        word = np.array([f"word {number}".encode()], dtype=object).reshape([1, 1] if largest else [1])
        client.async_infer(
            "m",
            [tensor("WORD", word, "BYTES")],
            lambda result, error: answers.put((number, result, error)),
            sequence_id=ids[number],
            **flags,
        )

    for step, flags in enumerate([{"sequence_start": True}, {"sequence_end": True}], start=1):
        for number in range(4):
            ask(number, **flags)
        for _ in range(4):
            number, result, error = answers.get(timeout=120)
            assert error is None
            found = [result.as_numpy(name).flatten().tolist() for name in ("Y", "WHO", "SAID")]
            assert found == [[step], [str(ids[number]).encode()], [f"word {number}".encode()]]


def speech():
    """The ports of a voice detector: the state has its batch on axis 1, and the rate is a scalar. Each row adds the sum
    of its samples times the rate to all elements of its state, and Y is the state's sum."""
    return model(
        [
            node("ReduceSum", ["X", "last"], ["sum"], keepdims=1),
            node("Cast", ["rate"], ["factor"], to=1),
            node("Mul", ["sum", "factor"], ["scaled"]),
            node("Add", ["S", "scaled"], ["S_next"]),
            node("ReduceSum", ["S_next", "outer"], ["total"], keepdims=0),
            node("Unsqueeze", ["total", "last"], ["Y"]),
        ],
        [port("X", "FP32", ["b", "n"]), port("S", "FP32", [2, "b", 3]), port("rate", "INT64", [])],
        [port("Y", "FP32", ["b", 1]), port("S_next", "FP32", ["x", "y", "z"])],
        [constant("last", [1]), constant("outer", [0, 2])],
    )


@pytest.mark.parametrize("largest", [8, 0])
def test_a_state_may_have_its_batch_on_another_axis(served, largest):
    sample = f"key: \"X\" value {{ data_type: TYPE_FP32 dims: {[4] if largest else [1, 4]} random_data: true }}"
    rate = 'key: "rate" value { data_type: TYPE_INT64 dims: 1 random_data: true }'
    warm = f'model_warmup {{ name: "w" batch_size: 1 inputs {{ {sample} }} inputs {{ {rate} }} }}'
    # Without a batch each sequence takes an instance.
    instances = 1 if largest else 4
    graph, state_dims = speech(), [2, 3] if largest else [2, 1, 3]
    text = config(
        "m",
        {"X": ("FP32", [-1] if largest else [1, -1]), "rate": ("INT64", [1])},
        {"Y": ("FP32", [1] if largest else [1, 1])},
        max_batch_size=largest,
        extra=f"sequence_batching {{ {IDLE} {state(state_dims)} }} {warm} instance_group {{ count: {instances} }}",
    )
    client = served(graph, text, environment={"TRITONSERVER_DELAY_SCHEDULER": "4"})
    rates, answers = [1, 1, 2, 1], queue.Queue()
    before = statistics(client, "m")
    totals = [0.0] * 4
    for step, flags in enumerate([{"sequence_start": True}, {}, {"sequence_end": True}]):
        for number, rate in enumerate(rates):
            x = np.full((1, 4), number + step, np.float32)
            # The scalar is one element per request, behind the batch where there is one.
            given = np.array([[rate]] if largest else [rate], np.int64)
            client.async_infer(
                "m",
                [tensor("X", x), tensor("rate", given)],
                lambda result, error, number=number: answers.put((number, result, error)),
                sequence_id=number + 1,
                **flags,
            )
            totals[number] += 6 * 4 * (number + step) * rate
        for _ in rates:
            number, result, error = answers.get(timeout=120)
            assert error is None
            assert result.as_numpy("Y").tolist() == [[totals[number]]], (step, number)
    counted = change(before, statistics(client, "m"))
    assert counted["success"] == 12
    if largest:
        assert counted["batches"].get(4, 0) >= 1, "the first requests ran as one batch"


def test_a_program_that_takes_no_zeros_is_served(served):
    """X is divided into as many parts as a scalar says; the example request of the load says 0."""
    graph = model(
        [
            node("Reshape", ["parts", "one"], ["count"]),
            node("Concat", ["count", "rest"], ["shape"], axis=0),
            node("Reshape", ["X", "shape"], ["divided"], allowzero=1),
            node("ReduceSum", ["divided", "outer"], ["sum"], keepdims=0),
            node("Add", ["S", "sum"], ["S_next"]),
            node("Identity", ["S_next"], ["Y"]),
        ],
        [port("X", "FP32", [6]), port("S", "FP32", [2]), port("parts", "INT64", [])],
        [port("Y", "FP32", [2]), port("S_next", "FP32", [2])],
        [constant("one", [1]), constant("rest", [2]), constant("outer", [0])],
    )
    ports = {"X": ("FP32", [6]), "parts": ("INT64", [1])}
    text = config("m", ports, {"Y": ("FP32", [2])}, max_batch_size=0, extra=f"sequence_batching {{ {IDLE} {state([2])} }}")
    client = served(graph, text)
    inputs = [tensor("X", np.arange(6, dtype=np.float32)), tensor("parts", np.array([3], np.int64))]
    for expected, flags in [([6, 9], {"sequence_start": True}), ([12, 18], {"sequence_end": True})]:
        assert client.infer("m", inputs, sequence_id=1, **flags).as_numpy("Y").tolist() == expected
