"""Models of cells on a CUDA card that the stand-in for CUDA's libraries plays. Real clients must get NumPy's answer to
each request alone. A server without a card rejects models that ask for one."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import cells_reference
import numpy as np
import pytest
import tritonclient.grpc as triton
from cells_reference import LONGEST, SPARE_STEPS
from clients import ask_all, refused
from conftest import Server, by_night
from test_cells import TOLERANCE, inputs_of
from tritonclient.utils import InferenceServerException

#: Requests for each model. Those with lengths have slots for fewer.
REQUESTS = 80 if by_night() else 40
SLOTS = REQUESTS * 4 // 5
#: One of this many requests is cancelled.
CANCELLED = 20
#: Models that run on cards.
ON_CARDS = ("lstm", "lstm-projected", "seq2seq", "tree-lstm", "gnmt", "las", "deepspeech2", "transformer")
#: A further one, whose requests belong to sequences.
SEQUENCES = "lstm-sequence"
#: The lengths that they are prepared for there: few, so that compiling their kernels takes less time.
LENGTHS = {
    "lstm-projected": {"steps": [LONGEST]},
    "gnmt": {"memory": [9, LONGEST]},
    "las": {"memory": [9, LONGEST]},
    "deepspeech2": {"frames": [9, LONGEST], "steps": [LONGEST]},
    "transformer": {"source": [9, LONGEST], "past": [12, LONGEST + SPARE_STEPS], "memory": [LONGEST]},
}
GPU = "instance_group [ { kind: KIND_GPU } ]\n"


@pytest.fixture(scope="module")
def repository(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    command = [program, "models", "--out", folder, "--only", ",".join((*ON_CARDS, SEQUENCES)), "--quarter"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=300)
    for model, lengths in LENGTHS.items():
        with (folder / model / "model.yaml").open("a") as config:
            config.write(f"instance: {{ lengths: {json.dumps(lengths)} }}\nbatching: {{ cellular: {{ slots: {SLOTS} }} }}\n")
    return folder


@pytest.fixture(scope="module")
def server(program, repository, stand_in):
    with Server(repository, "--device=cuda", program=program, environment=stand_in) as running:
        yield running
        complaints = running.complaints()
    assert complaints == [], "the server's log has errors"


def test_models_are_where_their_cells_run(server):
    log = server.log.read_text()
    assert "CUDA card found card=0 " in log
    on_the_cpu = [line for line in log.splitlines() if "the model runs on the CPU" in line]
    assert on_the_cpu == []


@pytest.mark.parametrize("model", ON_CARDS)
def test_requests_on_a_card_are_what_they_are_alone(server, repository, model):
    reference = cells_reference.load(repository / model)
    rng = np.random.default_rng(12)
    distinct = [reference.request(rng) for _ in range(REQUESTS // 4)]
    expected = [reference.answer(request) for request in distinct]
    asked = [inputs_of(distinct[number % len(distinct)]) for number in range(REQUESTS)]
    answers, _ = ask_all(server, model, asked, CANCELLED)
    for number, (result, error) in answers.items():
        if error is not None:
            assert number % CANCELLED == 0, error
            continue
        for name, value in expected[number % len(distinct)].items():
            found = result.as_numpy(name)[0]
            assert found.shape == value.shape, name
            np.testing.assert_allclose(found, value, rtol=TOLERANCE, atol=TOLERANCE * np.abs(value).max())


def test_a_word_that_the_table_does_not_have_fails_its_request_alone(server):
    with triton.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException) as refusal:
            client.infer("lstm", inputs_of({"tokens": np.array([1, 10**12], np.int64)}))
        assert "1000000000000" in str(refusal.value) or "beyond its table" in str(refusal.value)
        client.infer("lstm", inputs_of({"tokens": np.array([1, 2], np.int64)}))


def test_requests_of_a_sequence_on_a_card_go_on_from_one_another(server, repository):
    reference = cells_reference.load(repository / SEQUENCES)
    rng = np.random.default_rng(14)
    wrong = []

    def ask(number):
        tokens = rng_of[number].integers(1, 2000, 24)
        with triton.InferenceServerClient(server.grpc) as client:
            for first in range(0, 24, 4):
                flags = {"sequence_id": number + 1, "sequence_start": first == 0, "sequence_end": first == 20}
                result = client.infer(SEQUENCES, inputs_of({"tokens": tokens[first : first + 4]}), **flags)
                expected = reference.compute({"tokens": tokens[: first + 4]})
                if not np.allclose(result.as_numpy("hidden")[0], expected, rtol=TOLERANCE, atol=TOLERANCE):
                    wrong.append((number, first))

    rng_of = rng.spawn(8)
    threads = [threading.Thread(target=ask, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("lstm-projected", f"segment 'project' would have {LONGEST + 1} entries of 'x', expected at most {LONGEST}"),
        ("gnmt", f"segment 'upper' would have {LONGEST + 1} entries of 'h_next', expected at most {LONGEST}"),
        ("transformer", f"segment 'encoder' would have {LONGEST + 1} entries of 'source', expected at most {LONGEST}"),
    ],
)
def test_a_request_that_is_too_long_for_the_card_is_refused_with_the_limit(server, model, said):
    name = "tokens" if model == "lstm-projected" else "source"
    with triton.InferenceServerClient(server.grpc) as client:
        with refused("INVALID_ARGUMENT", said):
            client.infer(model, inputs_of({name: np.full(LONGEST + 1, 5, np.int64)}))
        client.infer(model, inputs_of({name: np.full(LONGEST, 5, np.int64)}))


def asking_for_a_card(repository, folder):
    """Writes a repository with one model, which asks for a card."""
    shutil.copytree(repository / "lstm", folder / "lstm")
    config = folder / "lstm" / "model.yaml"
    config.write_text(config.read_text() + "\ninstance: { devices: [cuda] }\n")
    return folder


def test_a_model_that_asks_for_a_card_is_refused_without_one(program, repository, tmp_path):
    asking = asking_for_a_card(repository, tmp_path / "models")
    flags = ("--device=cpu", "--strict-readiness=false")
    with Server(asking, *flags, program=program) as running, triton.InferenceServerClient(running.grpc) as client:
        assert not client.is_model_ready("lstm")
        [model] = client.get_model_repository_index().models
        assert model.reason.startswith(
            "an instance group of model 'lstm' has kind KIND_GPU but no GPU is available: "
            "the server was started with --device cpu"
        ), model.reason


def test_a_model_that_asks_for_a_card_runs_on_the_cpu_if_that_is_allowed(program, repository, tmp_path):
    asking = asking_for_a_card(repository, tmp_path / "models")
    flags = ("--device=cpu", "--allow-cpu-fallback")
    with Server(asking, *flags, program=program) as running, triton.InferenceServerClient(running.grpc) as client:
        client.infer("lstm", inputs_of({"tokens": np.array([1, 2], np.int64)}))
        assert "its instances of kind KIND_GPU run on the CPU" in running.log.read_text()


def test_a_card_that_is_asked_for_and_missing_ends_the_server(program, repository, stand_in):
    command = [program, "serve", "--model-repository", repository, "--device", "cuda:7"]
    environment = {**os.environ, **stand_in}
    ended = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert "cannot start the devices: --device: there is no CUDA card 7, expected one of [0]" in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("missing", "library", "said"),
    [
        ("libnvrtc", "NVRTC", 'models run on the CPU error="CUDA card 0: NVRTC is not found (libnvrtc.so.13 or libnvrtc.so.12)'),
        ("libcublasLt", "cuBLASLt", "cuBLASLt is not found (libcublasLt.so.13 or libcublasLt.so.12): matrices cannot be multiplied"),
    ],
)
def test_a_library_that_is_missing_is_one_clear_line(program, repository, stand_in, tmp_path, missing, library, said):
    libraries, models = tmp_path / "libraries", tmp_path / "models"
    libraries.mkdir()
    for link in Path(stand_in["LD_LIBRARY_PATH"]).glob("lib*"):
        if not link.name.startswith(missing):
            (libraries / link.name).symlink_to(link.resolve())
    shutil.copytree(repository / "lstm", models / "lstm")
    environment = {**stand_in, "LD_LIBRARY_PATH": str(libraries), "XDG_CACHE_HOME": str(libraries)}
    with Server(models, program=program, environment=environment) as running:
        with triton.InferenceServerClient(running.grpc) as client:
            client.infer("lstm", inputs_of({"tokens": np.array([1, 2], np.int64)}))
        lines = [line for line in running.log.read_text().splitlines() if library in line]
    assert len(lines) == 1 and "run on the CPU" in lines[0].replace("runs", "run") and said in lines[0], lines


def test_a_server_without_a_driver_says_so_in_one_line(program, repository):
    with Server(repository, "--model-control-mode=explicit", program=program) as running:
        lines = [line for line in running.log.read_text().splitlines() if "CUDA" in line]
    assert len(lines) == 1 and "models run on the CPU reason=" in lines[0], lines
