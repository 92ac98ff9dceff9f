"""The protocol over HTTP, with Triton's own HTTP clients, next to gRPC."""

import asyncio
import base64
import json
import os
import shutil
import socket
import urllib.request

import numpy as np
import pytest
import tritonclient.http as over_http
import tritonclient.http.aio as over_http_aio
import tritonclient.utils.shared_memory as shm
from clients import ROW, eventually, metric, rows, tensor
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

#: Values at the limits of each datatype; the models take four of them.
VALUES = {
    "BOOL": [True, False, False, True],
    "UINT8": [0, 1, 254, 255],
    "UINT16": [0, 1, 2**15, 2**16 - 1],
    "UINT32": [0, 1, 2**31, 2**32 - 1],
    "UINT64": [0, 1, 2**63, 2**64 - 1],
    "INT8": [-128, -1, 0, 127],
    "INT16": [-(2**15), -1, 0, 2**15 - 1],
    "INT32": [-(2**31), -1, 0, 2**31 - 1],
    "INT64": [-(2**63), -1, 0, 2**63 - 1],
    "FP16": [0.5, -1.0, 65504.0, 6e-8],
    "FP32": [0.1, -1.5, 3.4e38, 1e-45],
    "FP64": [0.1, -1.5, 1.7e308, 5e-324],
    "BYTES": ["", "plain", 'quotes " and \\ and \n', "žluť \U0001f40e"],
}


@pytest.fixture
def http(server):
    with over_http.InferenceServerClient(server.http) as connected:
        yield connected


def given(values, binary, name="INPUT0", datatype="FP32"):
    one = over_http.InferInput(name, list(values.shape), datatype)
    return one.set_data_from_numpy(values, binary_data=binary)


def as_bytes(one):
    return one if isinstance(one, bytes) else one.encode()


def refused(status, *facts):
    """Checks that the block fails with an HTTP status, and that the message contains the facts."""

    class Refused:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, _):
            assert kind is not None and issubclass(kind, InferenceServerException), f"not refused: {error!r}"
            assert error.status() == str(status), error
            for fact in facts:
                assert fact in error.message(), f"{fact!r} is not in {error.message()!r}"
            return True

    return Refused()


@pytest.mark.parametrize("datatype", VALUES)
def test_every_datatype_is_the_same_as_json_as_binary_data_and_over_grpc(client, http, datatype):
    values = np.array([VALUES[datatype]], dtype=object if datatype == "BYTES" else triton_to_np_dtype(datatype))
    model = f"identity_{datatype.lower()}"
    config = client.get_model_metadata(model)
    name, output = config.inputs[0].name, config.outputs[0].name
    expected = client.infer(model, [tensor(name, values, datatype)]).as_numpy(output)
    for binary_in in (True, False):
        for binary_out in (True, False):
            wanted = [over_http.InferRequestedOutput(output, binary_data=binary_out)]
            if datatype == "FP16" and not (binary_in and binary_out):
                by_server = refused(400, "FP16 data via JSON is not supported")
                with by_server if binary_in else pytest.raises(InferenceServerException):
                    http.infer(model, [given(values, binary_in, name, datatype)], outputs=wanted)
                continue
            found = http.infer(model, [given(values, binary_in, name, datatype)], outputs=wanted).as_numpy(output)
            if found.dtype == object:
                found = np.array([[as_bytes(one) for one in row] for row in found], object)
            np.testing.assert_array_equal(found, expected, f"in {binary_in}, out {binary_out}")


def test_inputs_may_be_mixed_and_outputs_chosen(http):
    one, other = rows(2), rows(2, start=100)
    inputs = [given(one, True, "INPUT0"), given(other, False, "INPUT1")]
    wanted = [
        over_http.InferRequestedOutput("OUTPUT1", binary_data=False),
        over_http.InferRequestedOutput("OUTPUT0", binary_data=True),
    ]
    result = http.infer("addsub", inputs, outputs=wanted, request_id="both")
    assert result.get_response()["id"] == "both"
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), one + other)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), one - other)
    only = http.infer("addsub", inputs, outputs=wanted[:1])
    assert [output["name"] for output in only.get_response()["outputs"]] == ["OUTPUT1"]


def test_numbers_that_are_not_finite_can_be_sent_back(server):
    def infer(text):
        data = "[" + ", ".join([text, *["0"] * 15]) + "]"
        body = '{"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": %s}]}' % data
        request = urllib.request.Request(f"http://{server.http}/v2/models/identity/infer", data=body.encode())
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["outputs"][0]["data"][0]

    for value in (float("nan"), float("inf"), float("-inf")):
        text = json.dumps(value)
        assert json.dumps(infer(text)) == text, "the answer reads as what was sent"


def test_classes_are_counted_as_over_grpc(http):
    wanted = [over_http.InferRequestedOutput("OUTPUT0", binary_data=False, class_count=2)]
    found = http.infer("identity", [given(rows(1), True)], outputs=wanted).as_numpy("OUTPUT0")
    assert [str(one) for one in found.ravel()] == ["15.000000:15", "14.000000:14"]


@pytest.mark.parametrize("request_encoding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_encoding", [None, "gzip", "deflate"])
def test_bodies_are_compressed_both_ways(http, request_encoding, response_encoding):
    values = np.zeros((4, 16), np.float32)
    result = http.infer(
        "identity",
        [given(values, True)],
        request_compression_algorithm=request_encoding,
        response_compression_algorithm=response_encoding,
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)


def test_many_requests_at_once(server):
    with over_http.InferenceServerClient(server.http, concurrency=8) as http:
        sent = [rows(1, start=number * 16) for number in range(100)]
        pending = [http.async_infer("identity", [given(one, True)]) for one in sent]
        for one, answer in zip(sent, pending):
            np.testing.assert_array_equal(answer.get_result().as_numpy("OUTPUT0"), one)


def test_the_asyncio_client(server):
    async def ask():
        async with over_http_aio.InferenceServerClient(server.http) as http:
            assert await http.is_server_ready()
            sent = [rows(1, start=number * 16) for number in range(50)]
            results = await asyncio.gather(*(http.infer("identity", [given(one, True)]) for one in sent))
            for one, result in zip(sent, results):
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), one)

    asyncio.run(ask())


def test_errors_have_their_status(http):
    with refused(404, "'nope' is not found"):
        http.infer("nope", [given(rows(1), True)])
    with refused(404):
        http.infer("identity", [given(rows(1), True)], model_version="9")
    with refused(400, "expected [-1,16], got [1,15]"):
        http.infer("identity", [given(rows(1)[:, :15], True)])
    with refused(400, "data-type is 'INT32', but the model expects 'FP32'"):
        http.infer("identity", [given(rows(1).astype(np.int32), True, datatype="INT32")])
    with refused(501, "decoupled"):
        http.infer("repeat", [given(rows(1), True)])


def test_metadata_configuration_and_readiness(http, client):
    assert http.is_server_live() and http.is_server_ready() and http.is_model_ready("identity")
    assert not http.is_model_ready("nope")
    assert http.get_server_metadata()["extensions"] == list(client.get_server_metadata().extensions)
    assert http.get_model_metadata("identity") == client.get_model_metadata("identity", as_json=True) | {
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 16]}],
        "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1, 16]}],
    }
    assert http.get_model_config("identity")["name"] == "identity"


def test_requests_count_in_the_statistics(http):
    def counted():
        (stats,) = http.get_inference_statistics("identity")["model_stats"]
        return stats["inference_stats"]["success"]["count"], stats["inference_count"]

    requests, inferences = counted()
    http.infer("identity", [given(rows(3), True)])
    assert counted() == (requests + 1, inferences + 3)


def test_models_are_loaded_and_unloaded(start, test_models, tmp_path):
    repository = tmp_path / "repository"
    shutil.copytree(test_models / "identity", repository / "identity")
    running = start(repository, "--model-control-mode=explicit")
    with over_http.InferenceServerClient(running.http) as http:
        assert http.get_model_repository_index() == [{"name": "identity"}]
        http.load_model("identity")
        assert [(one["name"], one["state"]) for one in http.get_model_repository_index()] == [("identity", "READY")]
        file = (repository / "identity" / "1" / "model.onnx").read_bytes()
        config = json.dumps({"max_batch_size": 2, "backend": "onnxruntime"})
        http.load_model("identity", config=config, files={"file:1/model.onnx": file})
        assert http.get_model_config("identity")["max_batch_size"] == 2
        with refused(500, "config"):
            http.load_model("identity", config="{")
        http.unload_model("identity")
        assert not http.is_model_ready("identity")
        with refused(500, "nope"):
            http.load_model("nope")
        body = {"parameters": {"config": config, "file:1/model.onnx": base64.b64encode(file).decode()[:-3] + "%"}}
        status, text = posted(running, "/v2/repository/models/identity/load", json.dumps(body).encode())
        assert status == 400 and "is no base64" in text


def test_shared_memory(http):
    key, size = f"/paternoster-http-{os.getpid()}", rows(4).nbytes
    handle = shm.create_shared_memory_region("both", key, 2 * size)
    try:
        shm.set_shared_memory_region(handle, [rows(4)])
        http.register_system_shared_memory("both", key, 2 * size)
        (region,) = http.get_system_shared_memory_status()
        assert (region["name"], region["offset"], region["byte_size"]) == ("both", 0, 2 * size)
        one = over_http.InferInput("INPUT0", [4, 16], "FP32")
        one.set_shared_memory("both", size)
        wanted = over_http.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory("both", size, offset=size)
        result = http.infer("identity", [one], outputs=[wanted])
        (output,) = result.get_response()["outputs"]
        assert output == {"name": "OUTPUT0", "datatype": "FP32", "shape": [4, 16]}
        found = shm.get_contents_as_numpy(handle, np.float32, [4, 16], offset=size)
        np.testing.assert_array_equal(found, rows(4))
        http.unregister_system_shared_memory("both")
        with refused(404, "both"):
            http.infer("identity", [one])
        assert http.get_cuda_shared_memory_status() == []
    finally:
        http.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(handle)


def test_log_and_trace_settings(http):
    before = http.get_log_settings()
    assert http.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
    http.update_log_settings({"log_verbose_level": before["log_verbose_level"]})
    assert http.get_log_settings() == before
    assert http.get_trace_settings()["trace_level"] == ["OFF"]
    with refused(501, "trace file location"):
        http.update_trace_settings(settings={"trace_file": "elsewhere.json"})


def posted(server, path, body, headers=()):
    """Returns status and text of a request as curl or a script sends it."""
    with socket.create_connection(server.http.split(":"), timeout=120) as connection:
        lines = "".join(f"{line}\r\n" for line in headers)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
        connection.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def test_decoupled_models_answer_on_a_stream_of_events(server):
    values = ROW.copy()
    values[0] = 3
    body = json.dumps({"INPUT0": values.tolist()}).encode()
    url = f"http://{server.http}/v2/models/repeat/generate_stream"
    with urllib.request.urlopen(url, body, timeout=120) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = answer.read().decode().split("\n\n")
    assert events.pop() == ""
    found = [json.loads(event.removeprefix("data: "))["OUTPUT0"] for event in events]
    np.testing.assert_array_equal(found, [values + i for i in range(3)])


def test_generate_answers_in_flat_json(server):
    body = json.dumps({"id": "a", "INPUT0": ROW.tolist()}).encode()
    with urllib.request.urlopen(f"http://{server.http}/v2/models/identity/generate", body, timeout=120) as answer:
        found = json.load(answer)
    assert (found["id"], found["model_name"], found["OUTPUT0"]) == ("a", "identity", ROW.tolist())


def test_the_routes_are_described(server):
    status, page = server.get("/v2/openapi.json")
    assert status == 200
    assert "/v2/models/{model}/infer" in json.loads(page)["paths"]


def cancelled(server, model):
    return metric(server, "nv_inference_request_failure", model=model, reason="CANCELED")


@pytest.mark.parametrize("leave", ["close", "half-close"])
def test_a_client_that_leaves_cancels_its_request(server, http, leave):
    metadata = http.get_model_metadata("runaway")
    (wanted,) = metadata["inputs"]
    shape = [1 if dim < 0 else dim for dim in wanted["shape"]]
    values = np.ones(shape, triton_to_np_dtype(wanted["datatype"]))
    body = {"inputs": [{**wanted, "shape": shape, "data": values.ravel().tolist()}]}
    body = json.dumps(body).encode()
    before = cancelled(server, "runaway")
    with socket.create_connection(server.http.split(":"), timeout=120) as connection:
        head = f"POST /v2/models/runaway/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        eventually("the request is in the server", lambda: metric(server, "paternoster_pending_requests"))
        if leave == "half-close":
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"", "it is not answered any more"
    eventually("the request is cancelled", lambda: cancelled(server, "runaway") == before + 1)
