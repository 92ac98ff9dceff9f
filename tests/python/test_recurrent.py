"""Models with recurrent layers, as exported and without any configuration: served by cells, they answer as NumPy
does, whatever their length and however many rows a request has."""

import numpy as np
import onnx_bytes
import pytest
import tritonclient.grpc as triton
from clients import ask_all, change, statistics
from conftest import serving
from onnx_bytes import constant, node, port

INPUT, HIDDEN, CLASSES = 3, 5, 4
REQUESTS = 100
TOLERANCE = 1e-5
RNG = np.random.default_rng(5)


def weights(count, inputs=INPUT):
    shapes = {"W": (count, 4 * HIDDEN, inputs), "R": (count, 4 * HIDDEN, HIDDEN), "B": (count, 8 * HIDDEN)}
    return {name: (RNG.standard_normal(shape) / 2).astype(np.float32) for name, shape in shapes.items()}


ONE, TWO = weights(1), weights(2)
HEADS = {count: (RNG.standard_normal((count * HIDDEN, CLASSES)) / 2).astype(np.float32) for count in (1, 2)}


def export(direction, last, own, pooled=False):
    """As PyTorch exports `linear(rnn(x)[0])` with `batch_first`, of every step or of the last one."""
    count = 2 if direction == "bidirectional" else 1
    integers = {"zero": 0, "one": 1, "last": -1}
    constants = [constant(name, value) for name, value in own.items()]
    constants += [constant(name, np.array(value)) for name, value in integers.items()]
    constants += [constant("count", np.array([count])), constant("hidden", np.array([HIDDEN])),
                  constant("axis", np.array([0])), constant("joined_shape", np.array([0, 0, -1])),
                  constant("nothing", np.array(0.0)), constant("head", HEADS[count])]  # fmt: skip
    nodes = [
        node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        node("Shape", ["steps"], ["shape"]),
        node("Gather", ["shape", "one"], ["rows"], axis=0),
        node("Unsqueeze", ["rows", "axis"], ["some_rows"]),
        node("Concat", ["count", "some_rows", "hidden"], ["state_shape"], axis=0),
        node("Expand", ["nothing", "state_shape"], ["zeros"]),
        node("LSTM", ["steps", "W", "R", "B", "", "zeros", "zeros"], ["Y", "H", "C"], hidden_size=HIDDEN,
             direction=direction),
        node("Transpose", ["Y"], ["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "joined_shape"], ["joined"]),
        node("Transpose", ["joined"], ["every"], perm=[1, 0, 2]),
    ]  # fmt: skip
    dims = ("batch", CLASSES)
    if pooled:
        nodes.append(node("ReduceMax", ["every"], ["chosen"], axes=[1], keepdims=0))
    elif last:
        nodes.append(node("Gather", ["every", "last"], ["chosen"], axis=1))
    else:
        nodes.append(node("Identity", ["every"], ["chosen"]))
        dims = ("batch", "time", CLASSES)
    nodes.append(node("MatMul", ["chosen", "head"], ["y"]))
    inputs, outputs = [port("x", "FP32", ("batch", "time", INPUT))], [port("y", "FP32", dims)]
    return onnx_bytes.model(nodes, inputs, outputs, constants)


def lstm(x, own, direction):
    """Returns the hidden state after each step, in double precision."""
    w, r, b = (own[name][direction].astype(float) for name in "WRB")
    h, c, states = np.zeros(HIDDEN), np.zeros(HIDDEN), []
    for step in x:
        i, o, f, g = np.split(w @ step + r @ h + b[: 4 * HIDDEN] + b[4 * HIDDEN :], 4)
        i, o, f = (1 / (1 + np.exp(-gate)) for gate in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        states.append(h)
    return np.array(states)


def forward(x):
    return lstm(x, ONE, 0)


def both(x):
    return np.concatenate([lstm(x, TWO, 0), lstm(x[::-1], TWO, 1)[::-1]], axis=1)


#: By name: the graph, and the answer to one row.
MODELS = {
    "classifier": (export("forward", True, ONE), lambda x: forward(x)[-1] @ HEADS[1]),
    "tagger": (export("bidirectional", False, TWO), lambda x: both(x) @ HEADS[2]),
    "both_ends": (export("bidirectional", True, TWO), lambda x: both(x)[-1] @ HEADS[2]),
    "reverse": (export("reverse", False, ONE), lambda x: lstm(x[::-1], ONE, 0)[::-1] @ HEADS[1]),
    "pooled": (export("forward", True, ONE, pooled=True), lambda x: forward(x).max(axis=0) @ HEADS[1]),
}
#: The segments that the log names.
SEGMENTS = {
    "classifier": "chain1",
    "tagger": "chain1, chain2",
    "both_ends": "chain1, chain2, stage3",
    "reverse": "chain1",
    "pooled": "chain1, stage2",
}


def random(rows, length, seed):
    return np.random.default_rng(seed).standard_normal((rows, length, INPUT)).astype(np.float32)


def request(x):
    return [triton.InferInput("x", x.shape, "FP32").set_data_from_numpy(x)]


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent")
    whole = dict(MODELS, off=MODELS["tagger"], serial=MODELS["tagger"])
    for name, (graph, _) in whole.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.onnx").write_bytes(graph)
    (folder / "off" / "model.yaml").write_text("cells: off\n")
    (folder / "serial" / "model.yaml").write_text("batching: { policy: serial }\n")
    with serving(folder, program=program) as running:
        yield running


@pytest.mark.parametrize("model", [*MODELS, "off"])
def test_requests_of_any_length_and_number_of_rows_are_answered_as_by_the_whole_graph(server, model):
    rng = np.random.default_rng(7)
    given = [random(int(rng.integers(1, 5)), int(rng.integers(1, 40)), seed) for seed in range(REQUESTS)]
    answers, _ = ask_all(server, model, [request(x) for x in given], in_flight=32)
    expected = MODELS.get(model, MODELS["tagger"])[1]
    for number, (result, error) in answers.items():
        assert error is None
        rows = np.array([expected(x) for x in given[number]])
        assert result.as_numpy("y").shape == rows.shape
        np.testing.assert_allclose(result.as_numpy("y"), rows, atol=TOLERANCE)


@pytest.mark.parametrize("model", MODELS)
def test_clients_see_the_model_as_exported(server, model):
    with triton.InferenceServerClient(server.grpc) as client:
        config, metadata = client.get_model_config(model).config, client.get_model_metadata(model)
        assert config.max_batch_size == 4
        assert [list(tensor.shape) for tensor in metadata.inputs] == [[-1, -1, INPUT]]
        too_many = random(5, 3, 0)
        with pytest.raises(triton.InferenceServerException, match="batch-size"):
            client.infer(model, request(too_many))


def test_the_log_says_what_was_opened(server):
    log = server.log.read_text()
    lines = [line for line in log.splitlines() if "recurrent layers are served by cells" in line]
    found = {model: line for model in MODELS for line in lines if f'model="{model}"' in line}
    for model, segments in SEGMENTS.items():
        assert f'segments="{segments}"' in found[model]
    assert len(lines) == len(MODELS)
    assert "load by cells failed" not in log


def test_a_request_of_several_rows_counts_once(server):
    with triton.InferenceServerClient(server.grpc) as client:
        before = statistics(client, "tagger")
        client.infer("tagger", request(random(4, 9, 1)))
        counts = change(before, statistics(client, "tagger"))
    assert (counts["success"], counts["inference"], counts["queue"]) == (1, 4, 1)
    parts = sum(counts[f"{part}_ns"] for part in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert 0 < parts <= counts["success_ns"]
