"""Tensors in memory of a CUDA card that clients share, on the stand-in for CUDA's libraries. A model on that card reads
and writes them in place, a model on the CPU through a copy."""

import base64
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx_bytes as onnx
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from clients import refused, tensor
from conftest import Server
from cuda_memory import Driver, Region
from tritonclient.utils import InferenceServerException

WIDTH = 8
ROWS = 4
ROW_BYTES = 4 * WIDTH
BYTES = ROWS * ROW_BYTES
#: Where clients in other processes find their helpers.
HERE = Path(__file__).resolve().parent
#: The devices on which models run.
PLACES = ("on-card", "on-cpu")


def rows(count=ROWS, seed=1):
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def sums():
    """total = x + y, twice = total + total."""
    row = ("batch", WIDTH)
    nodes = [onnx.node("Add", ["x", "y"], ["total"]), onnx.node("Add", ["total", "total"], ["twice"])]
    ports = [onnx.port(name, "FP32", row) for name in ("x", "y")], [onnx.port(name, "FP32", row) for name in ("total", "twice")]
    return onnx.model(nodes, *ports)


def lookup():
    """word = table[id]; ids are checked before the request is admitted."""
    table = np.arange(10 * WIDTH, dtype=np.float32).reshape(10, WIDTH)
    nodes = [onnx.node("Gather", ["table", "id"], ["word"])]
    ports = [onnx.port("id", "INT64", ("batch",))], [onnx.port("word", "FP32", ("batch", WIDTH))]
    return onnx.model(nodes, *ports, [onnx.constant("table", table)])


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    for name, graph, device in (("on-card", sums(), "cuda"), ("on-cpu", sums(), "cpu"), ("lookup", lookup(), "cuda")):
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(graph)
        batching = "max_batch_size: 8\nbatching: { policy: window }\n"
        (version.parent / "model.yaml").write_text(f"{batching}instance: {{ devices: [{device}] }}\n")
    return folder


@pytest.fixture(scope="module")
def session(program, repository, stand_in):
    with Server(repository, "--device=cuda", "--allow-client-shm=true", program=program, environment=stand_in) as running:
        yield running
        complaints = running.complaints()
    assert complaints == [], "the server's log has errors"


@pytest.fixture
def client(session):
    with triton.InferenceServerClient(session.grpc) as connected:
        yield connected
        connected.unregister_cuda_shared_memory()
        assert not connected.get_cuda_shared_memory_status().regions
        assert connected.is_server_ready()


@pytest.fixture(scope="module")
def driver(stand_in):
    return Driver(stand_in["LD_LIBRARY_PATH"] + "/libcuda.so.1")


@pytest.fixture
def region(client, driver):
    """Returns a function that creates and registers regions."""
    made = []

    def create(name, size=BYTES):
        one = Region(driver, size)
        client.register_cuda_shared_memory(name, one.raw_handle(), 0, size)
        made.append(one)
        return one

    yield create
    client.unregister_cuda_shared_memory()
    for one in made:
        one.free()


def from_region(tensor_name, region_name, size=BYTES, offset=0, shape=(ROWS, WIDTH), datatype="FP32"):
    one = triton.InferInput(tensor_name, list(shape), datatype)
    one.set_shared_memory(region_name, size, offset=offset)
    return one


def into_region(tensor_name, region_name, size=BYTES, offset=0):
    one = triton.InferRequestedOutput(tensor_name)
    one.set_shared_memory(region_name, size, offset=offset)
    return one


def test_the_extension_is_listed(client):
    assert "cuda_shared_memory" in client.get_server_metadata().extensions


def test_status_lists_what_is_registered(client, region):
    region("one"), region("two", 64)
    regions = client.get_cuda_shared_memory_status().regions
    found = {name: (region.device_id, region.byte_size) for name, region in regions.items()}
    assert found == {"one": (0, BYTES), "two": (0, 64)}
    assert not client.get_system_shared_memory_status().regions
    with refused("NOT_FOUND", "'one'", "registered as cuda shared memory"):
        client.get_system_shared_memory_status("one")
    client.unregister_system_shared_memory("one")
    client.unregister_cuda_shared_memory("two")
    assert list(client.get_cuda_shared_memory_status("one").regions) == ["one"]
    with refused("NOT_FOUND", "unable to find cuda shared memory region: 'two'"):
        client.get_cuda_shared_memory_status("two")


@pytest.mark.parametrize("model", PLACES)
def test_inputs_come_from_the_card(client, region, model):
    source, (x, y) = region("in", 2 * BYTES), (rows(seed=2), rows(seed=3))
    source.write(x), source.write(y, BYTES)
    both = [from_region("x", "in"), from_region("y", "in", offset=BYTES)]
    np.testing.assert_array_equal(client.infer(model, both).as_numpy("total"), x + y)
    mixed = [from_region("x", "in"), tensor("y", y)]
    np.testing.assert_array_equal(client.infer(model, mixed).as_numpy("twice"), 2 * (x + y))
    part = [from_region("x", "in", ROW_BYTES, 2 * ROW_BYTES, (1, WIDTH)), tensor("y", y[:1])]
    np.testing.assert_array_equal(client.infer(model, part).as_numpy("total"), x[2:3] + y[:1])


@pytest.mark.parametrize("model", PLACES)
def test_outputs_go_to_the_card(client, region, model):
    sink, x, y = region("out", 3 * BYTES), rows(seed=4), rows(seed=5)
    sink.write(np.full(3 * BYTES, 7, np.uint8))
    outputs = [into_region("twice", "out", offset=BYTES), triton.InferRequestedOutput("total")]
    answer = client.infer(model, [tensor("x", x), tensor("y", y)], outputs=outputs)
    np.testing.assert_array_equal(answer.as_numpy("total"), x + y)
    np.testing.assert_array_equal(sink.read(np.float32, (ROWS, WIDTH), BYTES), 2 * (x + y))
    for around in (0, 2 * BYTES):
        assert (sink.read(np.uint8, BYTES, around) == 7).all(), "nothing else is written"
    (shared,) = [output for output in answer.get_response().outputs if output.name == "twice"]
    assert shared.shape == [ROWS, WIDTH]
    parameters = shared.parameters
    assert parameters["shared_memory_region"].string_param == "out"
    assert parameters["shared_memory_offset"].int64_param == BYTES
    assert parameters["shared_memory_byte_size"].int64_param == BYTES


@pytest.mark.parametrize("model", PLACES)
def test_inputs_and_outputs_lie_in_one_region(client, region, model):
    shared, x, y = region("all", 4 * BYTES), rows(seed=6), rows(seed=7)
    shared.write(x), shared.write(y, BYTES)
    inputs = [from_region("x", "all"), from_region("y", "all", offset=BYTES)]
    outputs = [into_region("total", "all", offset=2 * BYTES), into_region("twice", "all", offset=3 * BYTES)]
    client.infer(model, inputs, outputs=outputs)
    np.testing.assert_array_equal(shared.read(np.float32, (2, ROWS, WIDTH), 2 * BYTES), [x + y, 2 * (x + y)])
    # Over the input's own rows, and one row further on.
    for offset in (0, ROW_BYTES):
        shared.write(x), shared.write(y, BYTES)
        client.infer(model, inputs, outputs=[into_region("total", "all", offset=offset)])
        np.testing.assert_array_equal(shared.read(np.float32, (ROWS, WIDTH), offset), x + y)


def test_a_tensor_that_is_not_aligned_is_copied(client, region):
    shared, x, y = region("odd", 2 * BYTES + 2), rows(seed=8), rows(seed=9)
    shared.write(x, 1)
    inputs = [from_region("x", "odd", offset=1), tensor("y", y)]
    client.infer("on-card", inputs, outputs=[into_region("total", "odd", offset=BYTES + 2)])
    np.testing.assert_array_equal(shared.read(np.float32, (ROWS, WIDTH), BYTES + 2), x + y)


def test_indices_are_checked_before_a_request_is_admitted(client, region):
    ids = region("ids", 16)
    ids.write(np.array([3, 9], np.int64))
    asked = [from_region("id", "ids", 16, shape=(2, 1), datatype="INT64")]
    found = client.infer("lookup", asked).as_numpy("word")
    np.testing.assert_array_equal(found[:, 0], [3 * WIDTH, 9 * WIDTH])
    ids.write(np.array([3, 10], np.int64))
    with pytest.raises(InferenceServerException) as caught:
        client.infer("lookup", asked)
    assert "10" in caught.value.message()


def test_what_is_registered_wrongly_is_refused(client, driver, region):
    one = region("taken")
    handle = one.raw_handle()
    with refused("INVALID_ARGUMENT", "shared memory region 'taken' already in manager"):
        client.register_cuda_shared_memory("taken", handle, 0, BYTES)
    with refused("INVALID_ARGUMENT", "'new'", f"byte size {BYTES + 1} is beyond the {BYTES} bytes"):
        client.register_cuda_shared_memory("new", handle, 0, BYTES + 1)
    with refused("INVALID_ARGUMENT", "'new'", "byte size > 0"):
        client.register_cuda_shared_memory("new", handle, 0, 0)
    for device in (1, -1):
        with refused("INVALID_ARGUMENT", "'new'", f"no device_id {device}", "one of [0]"):
            client.register_cuda_shared_memory("new", handle, device, BYTES)
    with refused("INVALID_ARGUMENT", "'new'", "raw_handle has 63 bytes, expected 64"):
        client.register_cuda_shared_memory("new", base64.b64encode(bytes(63)), 0, BYTES)
    for wrong in (bytes(64), b"\xff" * 64):
        with refused("INVALID_ARGUMENT", "'new'", "the driver does not take its raw_handle"):
            client.register_cuda_shared_memory("new", base64.b64encode(wrong), 0, BYTES)
    with refused("INVALID_ARGUMENT", "'taken' already in manager"):
        client.register_system_shared_memory("taken", "/anything", BYTES)


@pytest.mark.parametrize("model", PLACES)
def test_what_a_request_names_wrongly_is_refused(client, region, model):
    region("in"), region("out", BYTES - 1)
    y = tensor("y", rows())
    with refused("NOT_FOUND", "nowhere"):
        client.infer(model, [from_region("x", "nowhere"), y])
    with refused("INVALID_ARGUMENT", "'in'"):
        client.infer(model, [from_region("x", "in", offset=4), y])
    with refused("INVALID_ARGUMENT", "x"):
        client.infer(model, [from_region("x", "in", BYTES - 4), y])
    with refused("INVALID_ARGUMENT", "total", "'out'"):
        client.infer(model, [from_region("x", "in"), y], outputs=[into_region("total", "out", BYTES - 1)])


@pytest.mark.parametrize("model", PLACES)
def test_a_region_that_is_unregistered_outlives_the_requests_that_name_it(client, region, model):
    count, size = 40, 2 * BYTES
    shared, (x, y) = region("busy", count * size), (rows(seed=10), rows(seed=11))
    answers, all_there = [], threading.Event()

    def take(result, error):
        answers.append(error)
        if len(answers) == count:
            all_there.set()

    for number in range(count):
        shared.write(x + number, number * size)
    for number in range(count):
        inputs = [from_region("x", "busy", offset=number * size), tensor("y", y)]
        client.async_infer(model, inputs, take, outputs=[into_region("total", "busy", offset=number * size + BYTES)])
    client.unregister_cuda_shared_memory("busy")
    assert all_there.wait(120)
    refusals = [error for error in answers if error is not None]
    assert all("busy" in error.message() and error.status() == "StatusCode.NOT_FOUND" for error in refusals), refusals
    right = 0
    for number in range(count):
        right += int(np.array_equal(shared.read(np.float32, (ROWS, WIDTH), number * size + BYTES), x + number + y))
    assert right == count - len(refusals)


DYING = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, tritonclient.grpc as triton
from cuda_memory import Driver, Region
client = triton.InferenceServerClient(sys.argv[2])
one = Region(Driver(sys.argv[3]), 256)
one.write(np.arange(64, dtype=np.float32))
client.register_cuda_shared_memory(sys.argv[4], one.raw_handle(), 0, 256)
"""


def test_clients_of_other_processes_come_and_die(session, client, region, driver, stand_in):
    own, y = region("own"), rows(2)
    own.write(rows(seed=12))
    for number in range(2):
        arguments = [str(HERE), session.grpc, stand_in["LD_LIBRARY_PATH"] + "/libcuda.so.1", f"dead-{number}"]
        subprocess.run([sys.executable, "-c", DYING, *arguments], check=True, timeout=120)
    for model in PLACES:
        # The process has ended, but the server still holds the memory.
        for number in range(2):
            asked = [from_region("x", f"dead-{number}", 2 * ROW_BYTES, shape=(2, WIDTH)), tensor("y", y)]
            found = client.infer(model, asked).as_numpy("total")
            np.testing.assert_array_equal(found, np.arange(16, dtype=np.float32).reshape(2, WIDTH) + y)
        found = client.infer(model, [from_region("x", "own"), tensor("y", rows())]).as_numpy("total")
        np.testing.assert_array_equal(found, rows(seed=12) + rows())


def test_http_registers_and_uses_regions(session, client, driver):
    one, x, y = Region(driver, 2 * BYTES), rows(seed=13), rows(seed=14)
    one.write(x)
    with triton_http.InferenceServerClient(session.http) as http:
        http.register_cuda_shared_memory("http", one.raw_handle(), 0, 2 * BYTES)
        assert http.get_cuda_shared_memory_status() == [{"name": "http", "device_id": 0, "byte_size": 2 * BYTES}]
        assert http.get_cuda_shared_memory_status("http")[0]["name"] == "http"
        inputs = [triton_http.InferInput("x", [ROWS, WIDTH], "FP32"), triton_http.InferInput("y", [ROWS, WIDTH], "FP32")]
        inputs[0].set_shared_memory("http", BYTES)
        inputs[1].set_data_from_numpy(y)
        output = triton_http.InferRequestedOutput("total")
        output.set_shared_memory("http", BYTES, offset=BYTES)
        for model in PLACES:
            one.write(np.zeros(BYTES, np.uint8), BYTES)
            http.infer(model, inputs, outputs=[output])
            np.testing.assert_array_equal(one.read(np.float32, (ROWS, WIDTH), BYTES), x + y)
        for body, fact in (
            ('{"raw_handle": {"b64": "%%"}, "device_id": 0, "byte_size": 4}', "is no base64"),
            ('{"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 4}', "raw_handle has 3 bytes"),
            ('{"device_id": 0, "byte_size": 4}', "missing field `raw_handle`"),
        ):
            answer = http._post("v2/cudasharedmemory/region/r/register", body, headers=None, query_params=None)
            assert answer.status_code == 400 and fact in answer.read().decode()
        http.unregister_cuda_shared_memory("http")
        assert http.get_cuda_shared_memory_status() == []
    one.free()


def test_without_a_card_registering_is_refused_with_the_reason(program, repository, tmp_path):
    flags = ("--device=cpu", "--allow-client-shm=true", "--model-control-mode=explicit")
    with Server(repository, *flags, program=program) as running, triton.InferenceServerClient(running.grpc) as client:
        assert "cuda_shared_memory" not in client.get_server_metadata().extensions
        with refused("INVALID_ARGUMENT", "'r'", "no CUDA card", "--device cpu", "use system shared memory"):
            client.register_cuda_shared_memory("r", base64.b64encode(bytes(64)), 0, 64)


def test_without_the_flag_registering_is_refused_and_names_it(program, repository, stand_in, driver):
    flags = ("--device=cuda", "--model-control-mode=explicit")
    with Server(repository, *flags, program=program, environment=stand_in) as running:
        with triton.InferenceServerClient(running.grpc) as client, refused("UNIMPLEMENTED", "--allow-client-shm"):
            client.register_cuda_shared_memory("r", Region(driver, 64).raw_handle(), 0, 64)
