"""Weights in separate files: found in every layout, wherever the server was started, and nowhere else."""

import json
import os

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import eventually, refused, tensor
from conftest import Server
from onnx_bytes import external, scale_by
from repository_on_disk import config, write_model

PORTS = {"INPUT0": ("FP32", [16])}
SETTINGS = json.dumps({"backend": "onnxruntime", "max_batch_size": 4})
#: Enough elements for the weights to be given to the engine separately, and few enough to be put into the graph.
WIDTHS = {"large": 65536, "small": 16}


def factors(factor, width=16):
    return np.full(width, factor, np.float32).tobytes()


def apart(location="model.onnx.data", width=16, offset=None, length=None):
    """OUTPUT0 = INPUT0 · the numbers in a separate file."""
    return scale_by(external("factor", [width], location, offset, length), width)


def factor(client, model, width=16, version=""):
    asked = [tensor("INPUT0", np.ones((1, width), np.float32))]
    (found,) = set(client.infer(model, asked, model_version=version).as_numpy("OUTPUT0").ravel())
    return found


@pytest.fixture
def elsewhere(start, tmp_path):
    """Starts a server in explicit mode whose working directory has files with the names that the models use."""
    repository, working = tmp_path / "repository", tmp_path / "working"
    repository.mkdir()
    working.mkdir()
    for name in ("model.onnx.data", "model.onnx_data", "weights.bin"):
        (working / name).write_bytes(factors(99, max(WIDTHS.values())))
    running = start(repository, "--model-control-mode=explicit", directory=working)
    with triton.InferenceServerClient(running.grpc) as connected:
        yield repository, connected


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("name", ["model.onnx.data", "model.onnx_data", "weights.bin"])
def test_weights_come_from_beside_the_model(elsewhere, name, width):
    repository, client = elsewhere
    folder = write_model(repository, "apart", apart(name, width), config("apart", {"INPUT0": ("FP32", [width])}))
    (folder / "1" / name).write_bytes(factors(2, width))
    client.load_model("apart")
    assert factor(client, "apart", width) == 2


def test_each_version_has_its_own_weights(elsewhere):
    """The graphs are identical byte for byte."""
    repository, client = elsewhere
    text = config("apart", PORTS, extra="version_policy: { all { } }")
    for version in (1, 2):
        write_model(repository, "apart", apart(), text, version)
        (repository / "apart" / str(version) / "model.onnx.data").write_bytes(factors(version))
    client.load_model("apart")
    assert [factor(client, "apart", version=version) for version in ("1", "2")] == [1, 2]
    (repository / "apart" / "1" / "model.onnx.data").write_bytes(factors(3))
    client.load_model("apart")
    assert [factor(client, "apart", version=version) for version in ("1", "2")] == [3, 2]


def test_a_directory_may_bear_the_models_name(elsewhere):
    repository, client = elsewhere
    inner = repository / "apart" / "1" / "model.onnx"
    inner.mkdir(parents=True)
    (inner / "model.onnx").write_bytes(apart())
    (inner / "model.onnx.data").write_bytes(factors(2))
    (repository / "apart" / "config.pbtxt").write_text(config("apart", PORTS))
    client.load_model("apart")
    assert factor(client, "apart") == 2


def test_links_within_the_version_are_followed(elsewhere):
    """Volume mounts and download caches lay files out like this."""
    repository, client = elsewhere
    folder = write_model(repository, "apart", apart(), config("apart", PORTS)) / "1"
    (folder / "blobs").mkdir()
    (folder / "blobs" / "abc").write_bytes(factors(2))
    (folder / "model.onnx.data").symlink_to("blobs/abc")
    client.load_model("apart")
    assert factor(client, "apart") == 2


@pytest.mark.parametrize("way", ["absolute", "upwards", "link", "memory", "pipe"])
def test_nothing_outside_the_version_is_read(elsewhere, way):
    repository, client = elsewhere
    secret = repository / "secret"
    secret.write_bytes(factors(42))
    location = {"absolute": str(secret), "upwards": "../../secret", "memory": "*/_ORT_MEM_ADDR_/*"}.get(way, "weights.bin")
    folder = write_model(repository, "thief", apart(location), config("thief", PORTS)) / "1"
    if way == "link":
        (folder / location).symlink_to(secret)
    if way == "pipe":
        os.mkfifo(folder / location)
    with refused("INVALID_ARGUMENT", "thief", location):
        client.load_model("thief")
    with refused("INVALID_ARGUMENT", location):
        client.load_model("sent", config=SETTINGS, files={"file:1/model.onnx": apart(location)})


def test_files_that_are_missing_or_short_are_named(elsewhere):
    repository, client = elsewhere
    folder = write_model(repository, "apart", apart(), config("apart", PORTS)) / "1"
    with refused("INVALID_ARGUMENT", "apart", "model.onnx.data", "factor"):
        client.load_model("apart")
    (folder / "model.onnx.data").write_bytes(factors(2, 15))
    with refused("INVALID_ARGUMENT", "model.onnx.data", "60", "64"):
        client.load_model("apart")


def test_a_load_request_brings_its_own_weights(elsewhere):
    repository, client = elsewhere
    for version in (5, 6):
        files = {"file:1/model.onnx": apart("w/model.onnx.data"), "file:1/w/model.onnx.data": factors(version)}
        client.load_model("sent", config=SETTINGS, files=files)
        assert factor(client, "sent") == version
    # A directory of the same name gives no files to a model that came by request.
    write_model(repository, "here", apart(), config("here", PORTS))
    (repository / "here" / "1" / "model.onnx.data").write_bytes(factors(2))
    with refused("INVALID_ARGUMENT", "model.onnx.data"):
        client.load_model("here", config=SETTINGS, files={"file:1/model.onnx": apart()})


def test_a_changed_weights_file_is_noticed(start, tmp_path):
    repository = tmp_path / "repository"
    folder = write_model(repository, "apart", apart(), config("apart", PORTS)) / "1"
    (folder / "model.onnx.data").write_bytes(factors(2))
    running = start(repository, "--model-control-mode=poll", "--repository-poll-secs=1")
    with triton.InferenceServerClient(running.grpc) as client:
        assert factor(client, "apart") == 2
        (folder / "model.onnx.data").write_bytes(factors(3))
        eventually("the new weights", lambda: factor(client, "apart") == 3)


def test_weights_come_from_beside_the_model_on_a_card(program, stand_in, tmp_path):
    """On the stand-in for CUDA's libraries. The second model's file is too short."""
    width = WIDTHS["large"]
    for name, size in (("apart", width), ("cut-off", width - 1)):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(apart(width=width))
        (folder / "model.onnx.data").write_bytes(factors(2, size))
        (folder.parent / "model.yaml").write_text("max_batch_size: 4\ninstance: { devices: [cuda] }\n")
    flags = ("--device=cuda", "--strict-readiness=false")
    with Server(tmp_path, *flags, program=program, environment=stand_in) as running:
        with triton.InferenceServerClient(running.grpc) as client:
            assert factor(client, "apart", width) == 2
            reasons = {model.name: model.reason for model in client.get_model_repository_index().models}
    assert "model.onnx.data" in reasons["cut-off"] and f"expected {4 * width}" in reasons["cut-off"]
