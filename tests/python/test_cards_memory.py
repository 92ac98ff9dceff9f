"""The bound of a card's memory, and what each version reserves there: in the log, the metrics and refusals. The card is
that of the stand-in for CUDA's libraries."""

import re

import numpy as np
import onnx_bytes as onnx
import pytest
import tritonclient.grpc as triton
from clients import metric, refused, scrape, tensor
from conftest import Server
from repository_on_disk import write_pipeline
from test_metrics import FIRST
from tritonclient.utils import InferenceServerException

WIDTH = 1024
WEIGHT_BYTES = 4 * WIDTH * WIDTH
SERIES = "paternoster_model_gpu_memory_bytes"


@pytest.fixture
def models(tmp_path):
    """Returns a repository of models of one product, and of a larger one. One of them may run on the CPU."""
    weights = np.eye(WIDTH, dtype=np.float32)
    row = ("batch", WIDTH)
    ports = [onnx.port("x", "FP32", row)], [onnx.port("y", "FP32", row)]
    one = onnx.model([onnx.node("MatMul", ["x", "w"], ["y"])], *ports, [onnx.constant("w", weights)])
    products = [onnx.node("MatMul", ["x", "w"], ["between"]), onnx.node("MatMul", ["between", "v"], ["y"])]
    both = onnx.model(products, *ports, [onnx.constant("w", weights), onnx.constant("v", weights)])
    on_card = "instance: { devices: [cuda] }\n"
    for name, graph, config in (("first", one, on_card), ("second", one, on_card), ("either", one, ""), ("large", both, on_card)):
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


@pytest.fixture
def on_demand(program, models, stand_in):
    """Returns a function that makes a server whose card has room for one model, and for half of the weights of another."""
    with started(program, models, stand_in) as server, triton.InferenceServerClient(server.grpc) as client:
        client.load_model("first")
        bound = reserved(server, "first") + WEIGHT_BYTES // 2
    flags = ("--device=cuda", "--model-control-mode=on-demand", "--cuda-streams=1", f"--cuda-memory-bytes={bound}")
    return lambda *more: Server(models, *flags, *more, program=program, environment=stand_in)


def left(server):
    return metric(server, "paternoster_on_demand_unloaded_total", reason="memory")


def on_the_card(server):
    """Returns the models that have memory of the card."""
    return {line.split('model="')[1].split('"')[0] for line in scrape(server).splitlines() if line.startswith(SERIES)}


def test_the_least_recently_used_model_leaves_a_card_that_lacks_memory(on_demand):
    with on_demand() as server, triton.InferenceServerClient(server.grpc) as client:
        for count, model in enumerate(("first", "second", "first", "second")):
            asks(client, model)
            assert (left(server), on_the_card(server)) == (count, {model})


def test_an_idle_pipeline_leaves_with_its_model(on_demand, models):
    ports = {"x": ("FP32", (WIDTH,))}, {"y": ("FP32", (WIDTH,))}
    write_pipeline(models, "around", *ports, ["model: { name: first, inputs: { x: x }, outputs: { y: y } }"], max_batch_size=2)
    with on_demand() as server, triton.InferenceServerClient(server.grpc) as client:
        for model, on_card in (("around", "first"), ("second", "second"), ("around", "first")):
            asks(client, model)
            assert on_the_card(server) == {on_card}
        assert left(server) == 3, "a pipeline and its model, and another model"


def test_a_model_that_cannot_fit_is_refused_and_then_evicts_nothing(on_demand):
    with on_demand() as server, triton.InferenceServerClient(server.grpc) as client:
        for _ in range(2):
            asks(client, "first")
            with pytest.raises(InferenceServerException, match=r"\(--cuda-memory-bytes\); its loads need \d+ bytes, more than all of that"):
                client.load_model("large")
            # Only the first of these loads had to find out.
            assert left(server) == 1
        assert on_the_card(server) == {"first"}


def test_beside_a_pinned_model_others_run_on_the_cpu_or_are_refused_with_its_name(on_demand):
    with on_demand("--load-model=first") as server, triton.InferenceServerClient(server.grpc) as client:
        asks(client, "either")
        assert re.search(r"no room on the card model=.either. .*held by .first", server.log.read_text())
        with refused("RESOURCE_EXHAUSTED", "--cuda-memory-bytes); held by 'first' (", " bytes, pinned)"):
            asks(client, "second")
        # Nothing else keeps it out once there is room.
        client.unload_model("first")
        asks(client, "second")
        assert (left(server), on_the_card(server)) == (0, {"second"})
