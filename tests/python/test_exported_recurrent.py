"""Recurrent models as exporters write them, without any configuration: served by cells, they answer as ONNX Runtime
does for the whole graph, whatever their lengths and however many share a run."""

import re

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ask_all, tensor
from conftest import serving
from exported_recurrent import FEATURES, MODELS, TOKENS, scan_cell

LENGTHS = range(1, 25)
TOLERANCE = 1e-5


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
    (folder / "mixing" / "1").mkdir(parents=True)
    (folder / "mixing" / "1" / "model.onnx").write_bytes(scan_cell(mixing=True))
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
        assert np.ptp(expected.as_numpy("y")) > 0.01
        np.testing.assert_allclose(result.as_numpy("y"), expected.as_numpy("y"), atol=TOLERANCE)


def test_the_log_says_what_was_opened(server):
    lines = [line for line in server.log.read_text().splitlines() if "recurrent layers are served by cells" in line]
    opened = {re.search(r'model="(\w+)"', line)[1]: re.search(r'segments="([^"]*)"', line)[1] for line in lines}
    assert opened == {name: segments for name, (_, segments) in MODELS.items()}
    with triton.InferenceServerClient(server.grpc) as client:
        for name in MODELS:
            assert client.get_model_config(name).config.max_batch_size == 4, "they have no configuration"


def test_the_log_says_why_a_graph_stays_whole(server):
    (line,) = [line for line in server.log.read_text().splitlines() if "recurrent layers are served as a whole" in line]
    assert 'model="mixing"' in line
    assert "does not keep the rows of a batch apart: it reduces over the batch" in line
    rng = np.random.default_rng(5)
    given = [inputs_of("mixing", rng, length) for length in LENGTHS]
    for result, error in ask_all(server, "mixing", given)[0].values():
        assert error is None
        assert np.isfinite(result.as_numpy("y")).all()
