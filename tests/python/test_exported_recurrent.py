"""Recurrent models as exporters write them, without any configuration: served by cells, they answer as ONNX Runtime
does for the whole graph, whatever their lengths and however many share a run."""

import re

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ask_all, tensor
from conftest import serving
from exported_recurrent import FEATURES, MODELS, TOKENS, scan_cell, time_first
from onnx_bytes import constant, identity, model, node, port

LENGTHS = range(1, 25)
GRU, _ = MODELS["torch_gru_stack"]
TOLERANCE = 1e-5


#: How a configuration names what the log and the page call the policy of a recurrent model.
NAMED = (
    "batching: { policy: cellular }",
    "batching: { cellular: { max_chunk_ms: 5 } }",
    "batching: { policy: auto, cellular: { slots: 100 } }",
)
#: Configurations that ask for cells where there can be none, and what the refusal says.
WRONG = (
    ("batching: { policy: cellular }", "mixing", "model.onnx' stays whole: .* reduces over the batch"),
    ("batching: { cellular: { slots: 100 } }", "mixing", "model.onnx' stays whole"),
    ("batching: { policy: cellular }", "plain", "it has no recurrent layers"),
    ("cells: off\nbatching: { policy: cellular }", "torch_gru_stack", "does not go with 'cells: off'"),
    ("stages: 2\nbatching: { policy: cellular }", "torch_gru_stack", "does not go with 'stages'"),
)


def write(directory, graph, settings, file="model.yaml"):
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.onnx").write_bytes(graph)
    (directory / file).write_text(settings)


def inputs_of(model, rng, length):
    """Returns the inputs of a request of some rows."""
    rows = int(rng.integers(1, 5))
    if model == "keras_tagger":
        return [tensor("x", rng.integers(0, TOKENS, (rows, length)))]
    values = [tensor("x", rng.standard_normal((rows, length, FEATURES)).astype(np.float32))]
    if model == "forced_seq2seq":
        others = int(rng.integers(1, 9))
        values.append(tensor("given", rng.standard_normal((rows, others, FEATURES)).astype(np.float32)))
    return values


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    for name, (graph, _) in MODELS.items():
        for served in (name, f"{name}_whole"):
            (folder / served / "1").mkdir(parents=True)
            (folder / served / "1" / "model.onnx").write_bytes(graph)
        (folder / f"{name}_whole" / "model.yaml").write_text("cells: off\n")
    for number, settings in enumerate(NAMED):
        write(folder / f"named_{number}", GRU, settings)
    write(folder / "pooled", GRU, "dynamic_batching { }", "config.pbtxt")
    policy = 'parameters { key: "batching.policy" value { string_value: "cellular" } }'
    write(folder / "pooled_by_cells", GRU, f"dynamic_batching {{ }} {policy}", "config.pbtxt")
    for name, graph in {"mixing": scan_cell(mixing=True), "time_first": time_first()}.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.onnx").write_bytes(graph)
    with serving(folder, program=program) as running:
        yield running


@pytest.mark.parametrize("model", MODELS)
def test_requests_of_every_length_are_answered_as_by_the_whole_graph(server, model):
    rng = np.random.default_rng(3)
    given = [inputs_of(model, rng, length) for length in rng.permutation([*LENGTHS] * 4)]
    by_cells, whole = (ask_all(server, served, given, in_flight=32)[0] for served in (model, f"{model}_whole"))
    for number in range(len(given)):
        (result, error), (expected, none) = by_cells[number], whole[number]
        assert error is None and none is None, error or none
        np.testing.assert_allclose(result.as_numpy("y"), expected.as_numpy("y"), atol=TOLERANCE)
    assert np.ptp(np.concatenate([expected.as_numpy("y").ravel() for expected, _ in whole.values()])) > 0.01


def test_the_log_says_what_was_opened(server):
    lines = [line for line in server.log.read_text().splitlines() if "recurrent layers are served by cells" in line]
    opened = {re.search(r'model="(\w+)"', line)[1]: re.search(r'segments="([^"]*)"', line)[1] for line in lines}
    others = [*(f"named_{number}" for number in range(len(NAMED))), "pooled_by_cells"]
    expected = {name: segments for name, (_, segments) in MODELS.items()}
    assert opened == expected | dict.fromkeys(others, expected["torch_gru_stack"])
    with triton.InferenceServerClient(server.grpc) as client:
        for name in MODELS:
            assert client.get_model_config(name).config.max_batch_size == 4, "they have no configuration"


def test_the_log_says_why_a_graph_stays_whole(server):
    lines = [line for line in server.log.read_text().splitlines() if "recurrent layers are served as a whole" in line]
    (line,) = [line for line in lines if 'model="mixing"' in line]
    assert "does not keep the rows of a batch apart: it reduces over the batch" in line
    rng = np.random.default_rng(5)
    given = [inputs_of("mixing", rng, length) for length in LENGTHS]
    for result, error in ask_all(server, "mixing", given)[0].values():
        assert error is None
        assert np.isfinite(result.as_numpy("y")).all()


def test_the_log_says_that_dynamic_batching_keeps_a_graph_whole(server):
    lines = [line for line in server.log.read_text().splitlines() if "dynamic_batching serves recurrent" in line]
    (line,) = lines
    assert 'model="pooled"' in line
    assert "remove dynamic_batching, or add parameters" in line


@pytest.mark.parametrize(("settings", "graph", "reason"), WRONG)
def test_cells_are_refused_where_there_can_be_none(explicit, settings, graph, reason):
    _, repository, client = explicit
    graphs = {"mixing": scan_cell(mixing=True), "plain": identity(), "torch_gru_stack": GRU}
    write(repository / "asked", graphs[graph], settings)
    with pytest.raises(triton.InferenceServerException, match=reason):
        client.load_model("asked")


def test_a_product_of_halves_behind_a_transpose_is_served(explicit):
    """ONNX Runtime ends the process if it compiles this with all of its optimizers."""
    _, repository, client = explicit
    weight = np.arange(12, dtype=np.float16).reshape(4, 3)
    nodes = [node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]), node("MatMul", ["turned", "weight"], ["y"])]
    graph = model(
        nodes,
        [port("x", "FP16", ("batch", 4, "time"))],
        [port("y", "FP16", ("batch", "time", 3))],
        [constant("weight", weight)],
    )
    write(repository / "halves", graph, "")
    client.load_model("halves")
    x = np.arange(24, dtype=np.float16).reshape(2, 4, 3)
    answer = client.infer("halves", [tensor("x", x)]).as_numpy("y")
    np.testing.assert_allclose(answer, x.swapaxes(1, 2) @ weight, rtol=1e-2)


def test_requests_are_not_joined_along_their_steps(server):
    rng = np.random.default_rng(6)
    values = [rng.standard_normal((length, 2, FEATURES)).astype(np.float32) for length in (*LENGTHS, *LENGTHS)]
    with triton.InferenceServerClient(server.grpc) as client:
        assert client.get_model_config("time_first").config.max_batch_size == 0
        alone = [client.infer("time_first", [tensor("x", one)]).as_numpy("y") for one in values]
    together, _ = ask_all(server, "time_first", [[tensor("x", one)] for one in values], in_flight=32)
    for number, expected in enumerate(alone):
        result, error = together[number]
        assert error is None, error
        np.testing.assert_allclose(result.as_numpy("y"), expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    "model",
    ["torch_gru_stack", "torch_gru_stack_whole", "pooled", "torch_lstm_stack_expanded_whole", "scan_cell", "scan_cell_whole"],
)
def test_a_request_without_steps_is_refused(server, model):
    steps = tensor("x", np.zeros((3, 0, FEATURES), np.float32))
    with triton.InferenceServerClient(server.grpc) as client:
        with pytest.raises(triton.InferenceServerException, match="input 'x'") as refusal:
            client.infer(model, [steps])
        assert refusal.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert client.is_server_live(), "ONNX Runtime ends the process if its Scan or GRU has rows and no steps"
