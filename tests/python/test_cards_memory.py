"""The bound of a card's memory, and what each version reserves there: in the log, the metrics and refusals. The card is
that of the stand-in for CUDA's libraries."""

import re

import numpy as np
import onnx_bytes as onnx
import pytest
import tritonclient.grpc as triton
from clients import metric, scrape, tensor
from conftest import Server
from test_metrics import FIRST
from tritonclient.utils import InferenceServerException

WIDTH = 1024
WEIGHT_BYTES = 4 * WIDTH * WIDTH
SERIES = "paternoster_model_gpu_memory_bytes"


@pytest.fixture
def models(tmp_path):
    """Returns a repository of two models, each of one product, of which the second may run on the CPU."""
    weights = np.eye(WIDTH, dtype=np.float32)
    row = ("batch", WIDTH)
    ports = [onnx.port("x", "FP32", row)], [onnx.port("y", "FP32", row)]
    graph = onnx.model([onnx.node("MatMul", ["x", "w"], ["y"])], *ports, [onnx.constant("w", weights)])
    for name, config in (("first", "instance: { devices: [cuda] }\n"), ("second", "instance: { devices: [cuda] }\n"), ("either", "")):
        version = tmp_path / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(graph)
        (version.parent / "model.yaml").write_text("max_batch_size: 2\n" + config)
    return tmp_path / "models"


def started(program, models, stand_in, *flags):
    flags = ("--device=cuda", "--model-control-mode=explicit", "--cuda-streams=1", *flags)
    return Server(models, *flags, program=program, environment=stand_in)


def asks(client, model):
    rows = np.ones((1, WIDTH), np.float32)
    np.testing.assert_array_equal(client.infer(model, [tensor("x", rows)]).as_numpy("y"), rows)


def reserved(server, model):
    return int(metric(server, SERIES, gpu_uuid=FIRST, model=model, version="1"))


def test_what_a_version_reserves_is_in_the_log_and_in_the_metrics(program, models, stand_in):
    with started(program, models, stand_in) as server, triton.InferenceServerClient(server.grpc) as client:
        assert SERIES not in scrape(server)
        client.load_model("first")
        bytes_ = reserved(server, "first")
        assert bytes_ > WEIGHT_BYTES
        [line] = [line for line in server.log.read_text().splitlines() if "memory of a CUDA card reserved" in line]
        assert f' card=0 bytes={bytes_} model="first" version=1 ' in line, line
        client.unload_model("first")
        assert SERIES not in scrape(server)


def test_a_model_beyond_the_bound_is_refused_and_leaves_the_others(program, models, stand_in):
    with started(program, models, stand_in) as server, triton.InferenceServerClient(server.grpc) as client:
        client.load_model("first")
        bytes_ = reserved(server, "first")
    # Room for one model, and for half of the weights of another.
    bound = bytes_ + WEIGHT_BYTES // 2
    flag = f"--cuda-memory-bytes={bound}"
    said = r"it needs at least (\d+) bytes of the card's memory, where (\d+) of (\d+) bytes are reserved \(--cuda-memory-bytes\)"
    with started(program, models, stand_in, flag) as server, triton.InferenceServerClient(server.grpc) as client:
        client.load_model("first")
        assert reserved(server, "first") == bytes_
        with pytest.raises(InferenceServerException) as refusal:
            client.load_model("second")
        needed, before, most = map(int, re.search(said, str(refusal.value)).groups())
        assert most == bound and needed >= WEIGHT_BYTES and before >= bytes_ and needed + before > bound
        # What may run on the CPU does, and has reserved nothing.
        client.load_model("either")
        asks(client, "either")
        assert re.search(r'the model runs on the CPU model="either" .*--cuda-memory-bytes', server.log.read_text())
        assert 'model="either"' not in "".join(line for line in scrape(server).splitlines() if line.startswith(SERIES))
        asks(client, "first")
        # The refused model has left nothing behind.
        client.unload_model("first")
        client.load_model("second")
        assert reserved(server, "second") == bytes_
        asks(client, "second")


def test_zero_is_no_bound(program, models, stand_in):
    flag = "--cuda-memory-bytes=0"
    with started(program, models, stand_in, flag) as server, triton.InferenceServerClient(server.grpc) as client:
        for model in ("first", "second"):
            client.load_model(model)
            asks(client, model)
