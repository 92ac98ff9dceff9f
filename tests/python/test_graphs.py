"""Graphs as exporters write them: scalars, inputs with a default, outputs whose shape the file does not give."""

import json
import queue
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import change, eventually, pending, refused, statistics, tensor
from onnx_bytes import constant, graph, identity, model, node, port
from repository_on_disk import config, write_model


@pytest.fixture
def served(start, tmp_path):
    """Returns a function from models (name: (graph, config.pbtxt or None)) to (server, client) that serve them."""
    clients = []

    def serve(models, *flags):
        for name, (written, text) in models.items():
            write_model(tmp_path, name, written, text)
        running = start(tmp_path, *flags, until="settled")
        clients.append(triton.InferenceServerClient(running.grpc))
        return running, clients[-1]

    yield serve
    for client in clients:
        client.close()


def reasons(client):
    """Returns why models are not served, by model; those that are served have an empty reason."""
    return {entry.name: entry.reason for entry in client.get_model_repository_index().models}


def over_http(running, model, inputs):
    """Sends one request as JSON. Returns the status and the reply."""
    given = [{"name": name, "shape": shape, "datatype": "FP32", "data": data} for name, (shape, data) in inputs.items()]
    body = json.dumps({"inputs": given}).encode()
    request = urllib.request.Request(f"http://{running.http}/v2/models/{model}/infer", body)
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def scaled():
    """Y = X · S and its sum T, where S and T are scalars."""
    return model(
        [node("Mul", ["X", "S"], ["Y"]), node("ReduceSum", ["Y"], ["T"], keepdims=0)],
        [port("X", "FP32", ["n"]), port("S", "FP32", [])],
        [port("Y", "FP32", ["n"]), port("T", "FP32", [])],
    )


def test_scalars_have_one_dimension_on_the_wire(served):
    ports = {"X": ("FP32", [-1]), "S": ("FP32", [1])}
    listed = config("listed", ports, {"Y": ("FP32", [-1]), "T": ("FP32", [1])}, max_batch_size=0)
    two = config("two", {**ports, "S": ("FP32", [2])}, {"Y": ("FP32", [-1])}, max_batch_size=0)
    sample = """model_warmup { name: "w" inputs { key: "X" value { data_type: TYPE_FP32 dims: 3 zero_data: true } }
                inputs { key: "S" value { data_type: TYPE_FP32 dims: 1 random_data: true } } }"""
    running, client = served(
        {"auto": (scaled(), None), "listed": (scaled(), listed), "warm": (scaled(), sample), "two": (scaled(), two)}
    )
    states = reasons(client)
    assert "the graph has the shape [] for 'S', but the configuration [2]: expected [1] for a scalar" in states.pop("two")
    assert states == {"auto": "", "listed": "", "warm": ""}
    inputs = [tensor("X", np.array([1, 2, 3], np.float32)), tensor("S", np.array([2], np.float32))]
    for name in states:
        shapes = {given.name: list(given.shape) for given in client.get_model_metadata(name).inputs}
        assert shapes == {"X": [-1], "S": [1]}, name
        answer = client.infer(name, inputs)
        assert answer.as_numpy("Y").tolist() == [2, 4, 6]
        assert answer.as_numpy("T").tolist() == [12]
        status, reply = over_http(running, name, {"X": ([3], [1, 2, 3]), "S": ([1], [2])})
        assert status == 200
        found = {output["name"]: (output["shape"], output["data"]) for output in reply["outputs"]}
        assert found == {"Y": ([3], [2, 4, 6]), "T": ([1], [12])}
    with refused("INVALID_ARGUMENT", "S"):
        client.infer("auto", [inputs[0], tensor("S", np.array([2, 2], np.float32))])
    body = json.dumps({"X": [1, 2], "S": 3}).encode()
    with urllib.request.urlopen(f"http://{running.http}/v2/models/auto/generate", body, timeout=120) as reply:
        answer = json.load(reply)
    assert (answer["Y"], answer["T"]) == ([3, 6], 9)


def test_an_input_with_a_default_may_be_left_out(served):
    graph_of_two = model(
        [node("Add", ["INPUT", "BIAS"], ["OUTPUT"])],
        [port("INPUT", "FP32", [2]), port("BIAS", "FP32", [2])],
        [port("OUTPUT", "FP32", [2])],
        [constant("BIAS", [5.0, 5.0])],
    )
    needs = model(
        [node("Add", ["INPUT", "BIAS"], ["OUTPUT"])],
        [port("INPUT", "FP32", [2]), port("BIAS", "FP32", [2])],
        [port("OUTPUT", "FP32", [2])],
    )
    outputs = {"OUTPUT": ("FP32", [2])}

    def listed(name, optional):
        text = config(name, {"INPUT": ("FP32", [2]), "BIAS": ("FP32", [2])}, outputs, max_batch_size=0)
        return text.replace('name: "BIAS"', f'name: "BIAS" optional: {str(optional).lower()}')

    _, client = served(
        {
            "default": (graph_of_two, listed("default", True)),
            "replaced": (graph_of_two, listed("replaced", False)),
            "silent": (graph_of_two, None),
            "needs": (needs, listed("needs", True)),
        }
    )
    states = reasons(client)
    assert "input[1].optional: the graph needs 'BIAS'" in states.pop("needs")
    assert states == {"default": "", "replaced": "", "silent": ""}
    first, bias = tensor("INPUT", np.array([1, 2], np.float32)), tensor("BIAS", np.array([10, 20], np.float32))
    for name, inputs, expected in [
        ("default", [first], [6, 7]),
        ("default", [first, bias], [11, 22]),
        ("replaced", [first, bias], [11, 22]),
        ("silent", [first], [6, 7]),
    ]:
        assert client.infer(name, inputs).as_numpy("OUTPUT").tolist() == expected, name
    with refused("INVALID_ARGUMENT", "BIAS"):
        client.infer("replaced", [first])
    with refused("INVALID_ARGUMENT", "BIAS"):
        client.infer("silent", [first, bias])


def undeclared():
    """Returns graphs over X, FP32 [batch, 1, 4, 4], whose output Y has no shape in the file."""
    x, y = port("X", "FP32", ["batch", 1, 4, 4]), port("Y", "FP32", None)

    def branch(operator):
        return graph([node(operator, ["X"], ["o"])], [], [port("o", "FP32", None)])

    row = [1, 4, 4]
    body = graph([node("Neg", ["r"], ["ro"])], [port("r", "FP32", row)], [port("ro", "FP32", row)])
    nodes = {
        "Einsum": ([node("Einsum", ["X"], ["Y"], equation="bchw->bhw")], []),
        "GatherND": ([node("GatherND", ["X", "i"], ["Y"])], [constant("i", [[0, 0]])]),
        "GridSample": ([node("GridSample", ["X", "g"], ["Y"])], [constant("g", np.zeros((1, 3, 3, 2), np.float32))]),
        "If": (
            [
                node("ReduceSum", ["X"], ["r"], keepdims=0),
                node("Greater", ["r", "z"], ["t"]),
                node("If", ["t"], ["Y"], then_branch=branch("Neg"), else_branch=branch("Abs")),
            ],
            [constant("z", np.float32(0))],
        ),
        "Scan": ([node("Scan", ["X"], ["Y"], body=body, num_scan_inputs=1)], []),
    }
    return {name: model(made, [x], [y], weights) for name, (made, weights) in nodes.items()}


def test_shapes_that_the_file_does_not_give_come_from_the_session(served):
    running, client = served({name: (made, None) for name, made in undeclared().items()})
    assert set(reasons(client).values()) == {""}
    x = np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4)
    expected = {
        "Einsum": (x[:, 0], [-1, 4, 4]),
        "If": (-x, [-1, 1, 4, 4]),
        "Scan": (-x, [-1, 1, 4, 4]),
        "GatherND": (x[:1, 0], [1, 4, 4]),
    }
    for name, (values, shape) in expected.items():
        (output,) = client.get_model_metadata(name).outputs
        assert list(output.shape) == shape, name
        np.testing.assert_array_equal(client.infer(name, [tensor("X", x)]).as_numpy("Y"), values, err_msg=name)
    # Its file's operator set infers the rank from the input.
    sampled = client.infer("GridSample", [tensor("X", x[:1])]).as_numpy("Y")
    assert sampled.shape == (1, 1, 3, 3)
    log = running.log.read_text()
    assert "panicked" not in log


def test_an_output_of_unknown_rank_says_its_shape_in_replies(served):
    x = port("X", "FP32", ["n"])
    loop = graph(
        [node("Identity", ["go"], ["on"]), node("Concat", ["s", "X"], ["more"], axis=0)],
        [port("i", "INT64", []), port("go", "BOOL", []), port("s", "FP32", None)],
        [port("on", "BOOL", []), port("more", "FP32", None)],
    )
    grown = model([node("Loop", ["two", "", "X"], ["Y"], body=loop)], [x], [port("Y", "FP32", None)], [constant("two", 2)])
    chosen = model(
        [node("Squeeze", ["X"], ["Y"])], [port("X", "FP32", ["m", "n"])], [port("Y", "FP32", None)]
    )  # fmt: skip
    _, client = served({"grown": (grown, None), "chosen": (chosen, None)})
    assert set(reasons(client).values()) == {""}
    assert list(client.get_model_metadata("chosen").outputs[0].shape) == [-1]
    row = np.array([1, 2], np.float32)
    assert client.infer("grown", [tensor("X", row)]).as_numpy("Y").tolist() == [1, 2] * 3
    for shape, expected in [((2, 3), (2, 3)), ((1, 3), (3,)), ((1, 1), (1,))]:
        values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        answer = client.infer("chosen", [tensor("X", values)]).as_numpy("Y")
        np.testing.assert_array_equal(answer, values.reshape(expected))


@pytest.mark.parametrize("policy", ["default", "serial"])
def test_every_policy_has_a_queue_with_a_limit(start, tmp_path, policy):
    """A model that runs one request at a time and lets two wait refuses the third."""
    largest, dims = (0, ["n"]) if policy == "default" else (8, ["batch"])
    queue_policy = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    serial = 'parameters { key: "batching.policy" value { string_value: "serial" } }'
    ports = {"INPUT0": ("FP32", [-1] if largest == 0 else [1])}
    text = config("m", ports, max_batch_size=largest, extra=queue_policy + (serial if policy == "serial" else ""))
    write_model(tmp_path, "m", identity(dims=(*dims, 1) if largest else dims), text)
    running = start(tmp_path, "--allow-test-hooks", environment={"TRITONSERVER_DELAY_SCHEDULER": "3"})
    shape = [1, 1] if largest else [1]
    inputs = [tensor("INPUT0", np.full(shape, 7, np.float32))]
    with triton.InferenceServerClient(running.grpc) as client:
        assert client.get_model_config("m").config.dynamic_batching.default_queue_policy.max_queue_size == 2
        answers = queue.Queue()
        waiting = [client.async_infer("m", inputs, lambda result, error: answers.put(error)) for _ in range(2)]
        eventually("two wait", lambda: pending(running, "m") == 2)
        with refused("UNAVAILABLE", "xceeds maximum queue size"):
            client.infer("m", inputs)
        assert answers.empty()
        for call in waiting:
            call.cancel()
        assert {answers.get(timeout=120).status() for _ in waiting} == {"StatusCode.CANCELLED"}
        eventually("none waits", lambda: pending(running, "m") == 0)


def test_a_model_without_a_batch_axis_runs_its_queue_one_by_one(served):
    text = "dynamic_batching { max_queue_delay_microseconds: 10 }"
    ports = {"INPUT0": ("FP32", [-1])}
    _, client = served({"m": (identity(dims=["n"]), config("m", ports, max_batch_size=0, extra=text))})
    assert reasons(client) == {"m": ""}
    before, answers = statistics(client, "m"), queue.Queue()
    for length in range(1, 9):
        client.async_infer("m", [tensor("INPUT0", np.arange(length, dtype=np.float32))], lambda result, error: answers.put((result, error)))
    found = [answers.get(timeout=120) for _ in range(8)]
    assert [error for _, error in found] == [None] * 8
    assert sorted(len(answer.as_numpy("OUTPUT0")) for answer, _ in found) == list(range(1, 9))
    counted = change(before, statistics(client, "m"))
    assert (counted["success"], counted["batches"]) == (8, {1: 8})
