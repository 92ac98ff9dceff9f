"""Model files built to harm the server: it rejects them by name, keeps serving the others, and survives a start with
them."""

import json

import pytest
import tritonclient.grpc as triton
from clients import ROW, refused, tensor
from onnx_bytes import calls_itself, identity, model, nested_ifs, node, port, sparse
from repository_on_disk import config, write_model

PORTS = {"INPUT0": ("FP32", [16])}
SETTINGS = json.dumps({"backend": "onnxruntime", "max_batch_size": 4})
HOSTILE = {"calls-itself": (calls_itself(), "own.f"), "nested-ifs": (nested_ifs(26), "within each other")}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("flags", [(), ("--isolate-model-load=off",)], ids=["isolated", "in-process"])
def test_hostile_files_are_refused_by_name(start, tmp_path, name, flags):
    file, fact = HOSTILE[name]
    write_model(tmp_path, name, file, config(name, PORTS))
    write_model(tmp_path, "good", identity(), config("good", PORTS))
    running = start(tmp_path, "--model-control-mode=explicit", "--load-model=*", *flags, until="settled")
    with triton.InferenceServerClient(running.grpc) as client:
        for _ in range(5):
            with refused("INVALID_ARGUMENT", name, fact):
                client.load_model(name)
            with refused("INVALID_ARGUMENT", "sent", fact):
                client.load_model("sent", config=SETTINGS, files={"file:1/model.onnx": file})
        assert client.infer("good", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0").shape == (1, 16)
    assert running.process.poll() is None


def test_a_server_starts_and_polls_over_hostile_files(start, tmp_path):
    for name, (file, _) in HOSTILE.items():
        write_model(tmp_path, name, file, config(name, PORTS))
    write_model(tmp_path, "good", identity(), config("good", PORTS))
    running = start(tmp_path, "--model-control-mode=poll", "--repository-poll-secs=1", until="settled")
    with triton.InferenceServerClient(running.grpc) as client:
        index = {model.name: (model.state, model.reason) for model in client.get_model_repository_index().models}
        assert index["good"][0] == "READY"
        for name, (_, fact) in HOSTILE.items():
            assert index[name][0] == "UNAVAILABLE" and fact in index[name][1], index[name]


def test_a_model_that_takes_all_memory_is_refused_with_the_limit(start, tmp_path):
    """A sparse constant becomes a dense one when a model is opened, so 200 bytes of file become 1.6 GB twice."""
    dims = ("batch", 16)
    nodes = [node("Mul", ["big", "top"], ["scaled"]), node("ReduceMax", ["scaled"], ["largest"], keepdims=0)]
    greedy = model(
        [node("ReduceMax", ["INPUT0"], ["top"], keepdims=0), *nodes, node("Add", ["INPUT0", "largest"], ["OUTPUT0"])],
        [port("INPUT0", "FP32", dims)],
        [port("OUTPUT0", "FP32", dims)],
        sparse_constants=[sparse("big", 1.0, 400_000_000)],
    )
    limit = 2 << 30
    flags = [f"--isolate-model-load-memory-bytes={limit}", f"--max-sent-model-bytes={2 * limit}"]
    running = start(tmp_path, "--model-control-mode=explicit", *flags)
    with triton.InferenceServerClient(running.grpc) as client:
        with refused("INVALID_ARGUMENT", "greedy", str(limit), "--isolate-model-load-memory-bytes"):
            client.load_model("greedy", config=SETTINGS, files={"file:1/model.onnx": greedy})
    assert running.memory_bytes() < 1 << 30, "the server itself never held it"


def test_models_of_the_repository_are_isolated_where_asked_for(start, tmp_path):
    write_model(tmp_path, "good", identity(), config("good", PORTS))
    running = start(tmp_path, "--isolate-model-load=all")
    with triton.InferenceServerClient(running.grpc) as client:
        assert client.infer("good", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0").shape == (1, 16)
