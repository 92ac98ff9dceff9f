"""Models with padded axes on a CUDA card that the stand-in for CUDA's libraries plays: the sentence encoder, whole and
cut into stages, compared with NumPy's computation from the same weights."""

import subprocess

import fetch
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ask_all, refused, tensor
from conftest import Server
from minilm_reference import embed

LONGEST = 20
REQUESTS = 24
STAGED = "stages: 3\nbatching: { policy: diversity }\n"
LENGTHS = f"lengths: {{ tokens: [6, 11, {LONGEST}] }}"
#: A single length, so that compiling the kernels takes less time.
LENGTH = f"lengths: {{ tokens: [{LONGEST}] }}"
#: The model whole, in stages that newcomers join, and in half precision: the sections `instance` and the rest of the
#: configuration, and the allowed difference from NumPy's answers.
FORMS = {
    "whole": (LENGTHS, "", 1e-4),
    "staged": (LENGTHS, STAGED, 1e-4),
    "fp16": (f"{LENGTH}, precision: fp16", "", 2e-3),
    "bf16-staged": (f"{LENGTH}, precision: bf16", STAGED, 2e-2),
}


@pytest.fixture(scope="module")
def server(program, stand_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lengths")
    command = [program, "models", "--out", folder, "--only", "minilm", "--minilm", fetch.minilm()]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=300)
    config = (folder / "minilm" / "model.yaml").read_text().replace("max_batch_size: 32", "max_batch_size: 4")
    for name, (instance, more, _) in FORMS.items():
        (folder / name / "1").mkdir(parents=True)
        on_a_card = f"instance: {{ devices: [cuda], {instance} }}\n"
        (folder / name / "model.yaml").write_text(config + on_a_card + more)
        (folder / name / "1" / "model.onnx").hardlink_to(folder / "minilm" / "1" / "model.onnx")
    flags = ("--device=cuda", "--model-control-mode=explicit", *(f"--load-model={name}" for name in FORMS))
    with Server(folder, *flags, program=program, environment=stand_in) as running:
        yield running
        complaints = running.complaints()
    assert complaints == [], "the server's log has errors"


def inputs_of(ids):
    return [tensor("input_ids", ids), tensor("attention_mask", np.ones_like(ids))]


@pytest.mark.parametrize("model", FORMS)
def test_texts_of_unlike_lengths_share_batches_on_a_card(server, model):
    rng = np.random.default_rng(8)
    asked = [rng.integers(1000, 20000, (rng.integers(1, 3), rng.integers(1, LONGEST + 1))) for _ in range(REQUESTS)]
    answers, counted = ask_all(server, model, [inputs_of(ids) for ids in asked])
    for number, (result, error) in answers.items():
        assert error is None, error
        expected = np.concatenate([embed(fetch.minilm(), [row], [[1] * len(row)]) for row in asked[number]])
        np.testing.assert_allclose(result.as_numpy("sentence_embedding"), expected, rtol=0, atol=FORMS[model][2])
    assert counted.execution_count < REQUESTS, "requests share batches"


def test_a_text_that_is_too_long_for_the_card_is_refused_with_the_limit(server):
    with triton.InferenceServerClient(server.grpc) as client:
        said = f"the axis 'tokens' has {LONGEST + 1} entries, expected at most {LONGEST}"
        with refused("INVALID_ARGUMENT", said):
            client.infer("whole", inputs_of(np.full((1, LONGEST + 1), 2000)))
        client.infer("whole", inputs_of(np.full((1, LONGEST), 2000)))
