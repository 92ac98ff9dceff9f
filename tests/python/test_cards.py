"""Models of cells on a CUDA card that a stand-in for CUDA's libraries plays: what NumPy makes of each request alone, real clients are
answered. And a server without a card, which refuses what asks for one."""

import os
import shutil
import subprocess
from pathlib import Path

import cells_reference
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ask_all
from conftest import Server
from test_cells import TOLERANCE, inputs_of
from tritonclient.utils import InferenceServerException

REQUESTS = 80
#: One in so many requests is cancelled.
CANCELLED = 20
#: These run on cards; "las" has a cell whose input varies in its length.
ON_CARDS = ("lstm", "seq2seq", "tree-lstm")
GPU = "instance_group [ { kind: KIND_GPU } ]\n"


@pytest.fixture(scope="module")
def repository(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    command = [program, "models", "--out", folder, "--only", ",".join((*ON_CARDS, "las")), "--quarter"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def server(program, repository, stand_in):
    with Server(repository, "--device=cuda", program=program, environment=stand_in) as running:
        yield running
        complaints = running.complaints()
    assert complaints == [], "the server's log speaks of errors"


def test_models_are_where_their_cells_run(server):
    log = server.log.read_text()
    assert "CUDA card 0: " in log
    on_the_cpu = [line for line in log.splitlines() if "the model runs on the CPU" in line]
    reason = "cell 'speller': input 'memory' has the dims [-1, 128], expected lengths that do not vary"
    assert len(on_the_cpu) == 1 and f'model="las" reason="{reason}' in on_the_cpu[0], on_the_cpu


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


def asking_for_a_card(repository, folder):
    """A repository with one model, which asks for a card."""
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
            "an instance group of model 'lstm' has kind KIND_GPU but no GPU is available: the server was started with --device cpu"
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
        ("libnvrtc", "NVRTC", "models run on the CPU: CUDA card 0: NVRTC is not found (libnvrtc.so.13)"),
        ("libcublasLt", "cuBLASLt", "cuBLASLt is not found (libcublasLt.so.13): matrices cannot be multiplied"),
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
    assert len(lines) == 1 and "models run on the CPU: " in lines[0], lines
