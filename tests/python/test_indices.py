"""Tokens beyond an embedding are rejected before they are admitted, by name and place; every token that ONNX Runtime
accepts is served."""

import re
import subprocess

import cells_reference
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import refused, statistics, tensor
from conftest import serving
from tritonclient.utils import InferenceServerException

#: Models of cells, with the input that has their tokens.
MODELS = {"lstm": "tokens", "seq2seq": "source", "tree-lstm": "tokens"}


@pytest.fixture(scope="module")
def repository(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("indices")
    command = [program, "models", "--out", folder, "--only", ",".join(MODELS), "--quarter"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def cells(program, repository):
    with serving(repository, program=program) as running, triton.InferenceServerClient(running.grpc) as connected:
        yield connected


def range_of(refuse):
    """Returns (least, most) from a rejection, and its whole message."""
    with pytest.raises(InferenceServerException) as caught:
        refuse()
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT", caught.value
    message = caught.value.message()
    found = re.search(r"expected indices from (-\d+) to (\d+), but found (-?\d+) at (\[.*\])", message)
    assert found, message
    return int(found[1]), int(found[2]), message


@pytest.mark.parametrize("model, name", MODELS.items())
def test_a_token_that_no_table_has_is_refused_by_its_place(cells, repository, model, name):
    request = cells_reference.load(repository / model).request(np.random.default_rng(3))
    if model == "tree-lstm":
        # A root, which reads no token of its own, with two leaves.
        request = {"tokens": np.array([10**9, 5, 7]), "children": np.array([[1, 2], [-1, -1], [-1, -1]], np.int32)}
    place = len(request[name]) - 1

    def ask(token):
        inputs = {**request, name: request[name].copy()}
        inputs[name][place] = token
        return cells.infer(model, [tensor(one, values[np.newaxis]) for one, values in inputs.items()])

    before = statistics(cells, model)
    least, most, message = range_of(lambda: ask(10**9))
    assert f"input '{name}' of model '{model}'" in message and message.endswith(f"found 1000000000 at [0, {place}]"), message
    with refused("INVALID_ARGUMENT", f"found {most + 1} at"):
        ask(most + 1)
    with refused("INVALID_ARGUMENT", f"found {least - 1} at"):
        ask(least - 1)
    after = statistics(cells, model)
    assert (after["fail"], after["success"]) == (before["fail"], before["success"]), "what is refused counts nowhere"
    # Negative tokens count from the end, so -1 is the last one.
    one, other = ask(most), ask(-1)
    for output in one.get_response().outputs:
        np.testing.assert_array_equal(one.as_numpy(output.name), other.as_numpy(output.name))
    ask(least)


def test_a_sentence_with_a_token_that_the_encoder_does_not_know(client):
    def ask(*ids):
        ids = np.array([[101, *ids, 102]] * 2)
        return client.infer("minilm", [tensor("input_ids", ids), tensor("attention_mask", np.ones_like(ids))])

    least, most, message = range_of(lambda: ask(7, 10**9))
    assert (least, most) == (-30522, 30521)
    assert "input 'input_ids' of model 'minilm'" in message and message.endswith("found 1000000000 at [0, 2]"), message
    with refused("INVALID_ARGUMENT", f"found {most + 1} at [0, 1]"):
        ask(most + 1)
    assert np.isfinite(ask(most).as_numpy("sentence_embedding")).all()
    np.testing.assert_array_equal(*(ask(token).as_numpy("sentence_embedding") for token in (most, -1)))
