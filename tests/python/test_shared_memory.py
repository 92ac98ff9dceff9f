"""Tensors in shared memory of the machine, with the client's own helpers."""

import contextlib
import os
import pathlib

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from clients import refused, rows

BYTES = rows(4).nbytes


@pytest.fixture
def region():
    """Returns a function that creates regions, which are removed after the test."""
    made = []

    def create(name, size):
        handle = shm.create_shared_memory_region(name, f"/paternoster-{os.getpid()}-{name}", size)
        made.append(handle)
        return handle, f"/paternoster-{os.getpid()}-{name}"

    yield create
    for handle in made:
        with contextlib.suppress(shm.SharedMemoryException):
            shm.destroy_shared_memory_region(handle)


@pytest.fixture
def registered(client, region):
    """Registers two regions with the server, "in" with four rows and "out"."""
    (source, source_key), (sink, sink_key) = region("in", BYTES), region("out", BYTES)
    shm.set_shared_memory_region(source, [rows(4)])
    client.register_system_shared_memory("in", source_key, BYTES)
    client.register_system_shared_memory("out", sink_key, BYTES)
    yield source, sink
    client.unregister_system_shared_memory()


def from_region(name, size, offset=0, shape=(4, 16), datatype="FP32"):
    one = triton.InferInput("INPUT0", list(shape), datatype)
    one.set_shared_memory(name, size, offset=offset)
    return one


def into_region(name, size, offset=0):
    one = triton.InferRequestedOutput("OUTPUT0")
    one.set_shared_memory(name, size, offset=offset)
    return one


def test_status_lists_what_is_registered(client, registered):
    regions = client.get_system_shared_memory_status().regions
    assert {name: region.byte_size for name, region in regions.items()} == {"in": BYTES, "out": BYTES}
    (one,) = client.get_system_shared_memory_status("in").regions.values()
    assert one.offset == 0
    client.unregister_system_shared_memory("in")
    assert set(client.get_system_shared_memory_status().regions) == {"out"}


def test_input_and_output_pass_through_shared_memory(client, registered):
    _, sink = registered
    answer = client.infer("identity", [from_region("in", BYTES)], outputs=[into_region("out", BYTES)])
    assert list(answer.get_response().raw_output_contents) in ([], [b""])
    np.testing.assert_array_equal(shm.get_contents_as_numpy(sink, np.float32, [4, 16]), rows(4))


def test_parts_of_a_region_can_be_used(client, registered):
    row = BYTES // 4
    answer = client.infer("identity", [from_region("in", row, offset=2 * row, shape=(1, 16))])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), rows(4)[2:3])


def test_an_unregistered_region_is_refused(client):
    with refused("NOT_FOUND", "nowhere"):
        client.get_system_shared_memory_status("nowhere")
    with refused("NOT_FOUND", "nowhere"):
        client.infer("identity", [from_region("nowhere", BYTES)])


def test_bytes_past_the_end_of_a_region_are_refused(client, registered):
    with refused("INVALID_ARGUMENT", "in"):
        client.infer("identity", [from_region("in", BYTES, offset=64)])


def test_an_output_region_that_is_too_small_is_refused(client, registered):
    with pytest.raises(triton.InferenceServerException):
        client.infer("identity", [from_region("in", BYTES)], outputs=[into_region("out", BYTES // 2)])


def test_a_name_is_registered_once(client, registered, region):
    _, key = region("other", BYTES)
    with pytest.raises(triton.InferenceServerException):
        client.register_system_shared_memory("in", key, BYTES)


def test_a_key_that_does_not_exist_is_refused(client):
    with refused("INTERNAL", "Unable to open shared memory region: '/paternoster-not-there'", "ghost"):
        client.register_system_shared_memory("ghost", "/paternoster-not-there", BYTES)


def test_unregistering_what_is_unknown_is_fine(client):
    client.unregister_system_shared_memory("nowhere")


def test_a_sparse_region_of_4_tib_is_refused_and_the_server_goes_on(client):
    size = 4 << 40
    key = f"/paternoster-{os.getpid()}-sparse"
    path = pathlib.Path("/dev/shm") / key[1:]
    try:
        with path.open("wb") as file:
            os.ftruncate(file.fileno(), size)
        client.register_system_shared_memory("sparse", key, size)
        with refused("RESOURCE_EXHAUSTED", "sparse"):
            client.infer("variable", [from_region("sparse", size, shape=(1, size // 8), datatype="INT64")])
        # A tensor of ordinary size can be read at any offset in the file.
        answer = client.infer("identity", [from_region("sparse", BYTES, offset=size - BYTES)])
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), np.zeros((4, 16), np.float32))
    finally:
        client.unregister_system_shared_memory("sparse")
        path.unlink()


def test_without_the_flag_registering_is_refused_and_names_it(start, explicit, region):
    _, _, client = explicit
    _, key = region("closed", BYTES)
    client.unregister_system_shared_memory()
    assert not client.get_system_shared_memory_status().regions
    with refused("UNIMPLEMENTED", "Client shared memory is disabled", "--allow-client-shm=true"):
        client.register_system_shared_memory("closed", key, BYTES)
