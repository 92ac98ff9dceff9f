"""Files beside a model's program: labels in the encodings that editors write, libraries of custom operators."""

import json
import shutil

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ROW, refused, tensor
from conftest import example
from onnx_bytes import identity, model, node, number, port, text
from repository_on_disk import config, write_model

PORTS = {"INPUT0": ("FP32", [4])}
LABELS = ["café", "naïve", "maß", "plain"]


@pytest.mark.parametrize("encoding, newline", [("utf-8", "\n"), ("utf-8-sig", "\r\n"), ("latin-1", "\n")])
def test_label_files_are_read_in_the_encodings_that_editors_write(start, tmp_path, encoding, newline):
    text_of = config("named", PORTS).replace('dims: [4] } ]\n', 'dims: [4] label_filename: "labels.txt" } ]\n')
    # The input has no labels.
    text_of = text_of.replace(' label_filename: "labels.txt"', "", 1)
    folder = write_model(tmp_path, "named", identity(dims=("batch", 4)), text_of)
    (folder / "labels.txt").write_bytes(newline.join(LABELS).encode(encoding))
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        wanted = triton.InferRequestedOutput("OUTPUT0", class_count=4)
        values = np.array([[4, 3, 2, 1]], np.float32)
        answer = client.infer("named", [tensor("INPUT0", values)], outputs=[wanted]).as_numpy("OUTPUT0")
    assert [entry.decode().split(":")[2] for entry in answer[0]] == LABELS


def twice():
    """OUTPUT0 = 2 · INPUT0, by an operator that no engine has."""
    dims = ("batch", 16)
    made = model(
        [node("Twice", ["INPUT0"], ["OUTPUT0"], domain="test")],
        [port("INPUT0", "FP32", dims)],
        [port("OUTPUT0", "FP32", dims)],
    )
    return made + text(8, text(1, "test") + number(2, 1))


@pytest.fixture(scope="module")
def library():
    """Returns the library of operators (crates/testing/custom_operator)."""
    return example("libcustom_operator.so")


def with_library(name, path):
    ports = {"INPUT0": ("FP32", [16])}
    return config(name, ports, extra=f'model_operations {{ op_library_filename: "{path}" }}')


@pytest.mark.parametrize("flags", [(), ("--isolate-model-load=all",)], ids=["here", "isolated"])
def test_a_model_uses_the_operators_of_its_library(start, tmp_path, library, flags):
    folder = write_model(tmp_path, "twice", twice(), with_library("twice", "./libtwice.so"))
    shutil.copy(library, folder / "libtwice.so")
    server = start(tmp_path, *flags)
    with triton.InferenceServerClient(server.grpc) as client:
        answer = client.infer("twice", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0")
        np.testing.assert_array_equal(answer, [2 * ROW])


def test_libraries_come_from_the_models_directory_alone_and_not_from_clients(explicit, library):
    _, repository, client = explicit
    outside = repository.parent / "libtwice.so"
    shutil.copy(library, outside)
    folder = write_model(repository, "twice", twice(), with_library("twice", "../../libtwice.so"))
    key = "model_operations.op_library_filename"
    for path in ("../../libtwice.so", str(outside)):
        (folder / "config.pbtxt").write_text(with_library("twice", path))
        with refused("INVALID_ARGUMENT", key, "expected a file in the model's directory", path):
            client.load_model("twice")
    (folder / "link.so").symlink_to(outside)
    (folder / "config.pbtxt").write_text(with_library("twice", "link.so"))
    with refused("INVALID_ARGUMENT", key, "expected a file in the model's directory", "link.so"):
        client.load_model("twice")
    (folder / "config.pbtxt").write_text(with_library("twice", "missing.so"))
    with refused("INVALID_ARGUMENT", key, "cannot read", "missing.so"):
        client.load_model("twice")

    shutil.copy(library, folder / "libtwice.so")
    (folder / "config.pbtxt").write_text(with_library("twice", "libtwice.so"))
    given = {"name": "twice", "backend": "onnxruntime", "model_operations": {"op_library_filename": ["libtwice.so"]}}
    with refused("INVALID_ARGUMENT", key, "a load request cannot name a library of operators"):
        client.load_model("twice", config=json.dumps(given))
    client.load_model("twice")
    np.testing.assert_array_equal(client.infer("twice", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0"), [2 * ROW])


def test_another_engine_has_no_such_operators(explicit, library):
    _, repository, client = explicit
    extra = 'parameters { key: "engine" value { string_value: "openvino" } }'
    folder = write_model(repository, "twice", twice(), with_library("twice", "libtwice.so") + extra)
    shutil.copy(library, folder / "libtwice.so")
    with refused("INVALID_ARGUMENT", "the engine openvino has no custom operators"):
        client.load_model("twice")
