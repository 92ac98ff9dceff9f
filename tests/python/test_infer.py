"""One request, one answer: tensors of every datatype, options, rejections."""

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ROW, raw_channel, refused, rows, tensor
from onnx_bytes import identity
from repository_on_disk import config, write_model
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import triton_to_np_dtype

NUMERIC = ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16"]
DATATYPES = ["BOOL", *NUMERIC, "BYTES"]
TEXTS = ["", "plain", "größer", "two words", "\x00binary\xff", "x" * 5000]


def test_rows_come_back_as_they_went(client):
    sent = rows(4)
    answer = client.infer("identity", [tensor("INPUT0", sent)], request_id="abc-1", model_version="1")
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), sent)
    response = answer.get_response()
    assert (response.id, response.model_name, response.model_version) == ("abc-1", "identity", "1")


def test_two_inputs_make_two_outputs(client):
    left, right = rows(2), rows(2, start=100)
    answer = client.infer("addsub", [tensor("INPUT1", right), tensor("INPUT0", left)])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), left + right)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), left - right)


def test_only_asked_for_outputs_come_back(client):
    inputs = [tensor("INPUT0", rows(1)), tensor("INPUT1", rows(1))]
    answer = client.infer("addsub", inputs, outputs=[triton.InferRequestedOutput("OUTPUT1")])
    assert [output.name for output in answer.get_response().outputs] == ["OUTPUT1"]
    assert answer.as_numpy("OUTPUT0") is None
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), np.zeros((1, 16), np.float32))


def test_typed_contents_serve_as_well_as_raw_bytes(server):
    with raw_channel(server) as channel:
        request = service_pb2.ModelInferRequest(model_name="identity")
        one = request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
        one.contents.fp32_contents.extend(ROW)
        response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert response.raw_output_contents[0] == ROW.tobytes()


def test_classes_are_the_largest_values_with_their_index(client):
    sent = np.array([[3, 9, 1, 7] + [0] * 12], np.float32)
    answer = client.infer(
        "identity", [tensor("INPUT0", sent)], outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    )
    found = [text.decode().split(":")[:2] for text in answer.as_numpy("OUTPUT0").ravel()]
    assert [(float(value), int(index)) for value, index in found] == [(9.0, 1), (7.0, 3)]
    assert answer.get_output("OUTPUT0").datatype == "BYTES"
    assert list(answer.get_output("OUTPUT0").shape) == [1, 2]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_are_taken(client, algorithm):
    sent = rows(4)
    answer = client.infer("identity", [tensor("INPUT0", sent)], compression_algorithm=algorithm)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), sent)


def test_headers_and_unknown_parameters_pass(client):
    answer = client.infer("identity", [tensor("INPUT0", [ROW])], headers={"x-request": "1"}, parameters={"colour": "blue"})
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), [ROW])


# Datatypes -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def typed(program, tmp_path_factory):
    """Starts a server with one identity model of each datatype, with rows of any length."""
    from server import Server

    repository = tmp_path_factory.mktemp("typed")
    for datatype in DATATYPES:
        name = datatype.lower()
        graph = identity(datatype, ("batch", "length"))
        write_model(repository, name, graph, config(name, {"INPUT0": (datatype, [-1])}, extra="dynamic_batching { }"))
    with Server(repository, program=program) as running:
        with triton.InferenceServerClient(running.grpc) as connected:
            yield connected


def examples(datatype):
    """Returns two rows that include the limits of the type."""
    if datatype == "BOOL":
        return np.array([[True, False, True], [False, False, True]])
    if datatype == "BYTES":
        return np.array(TEXTS, dtype=np.object_).reshape(2, 3)
    kind = triton_to_np_dtype(datatype)
    if datatype.startswith(("INT", "UINT")):
        limits = np.iinfo(kind)
        return np.array([[limits.min, 0, limits.max], [1, 2, 3]], dtype=kind)
    return np.array([[-1.5, 0.0, 2.25], [1e-2, float("inf"), 100.0]], dtype=kind)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_comes_back_bit_for_bit(typed, datatype):
    sent = examples(datatype)
    answer = typed.infer(datatype.lower(), [tensor("INPUT0", sent, datatype)])
    assert answer.get_output("OUTPUT0").datatype == datatype
    found = answer.as_numpy("OUTPUT0")
    assert found.shape == sent.shape
    if datatype == "BYTES":
        assert [text for text in found.ravel()] == [text.encode() for text in TEXTS]
    else:
        assert found.tobytes() == sent.tobytes()


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_may_be_empty(typed, datatype):
    sent = examples(datatype)[:1, :0]
    assert typed.infer(datatype.lower(), [tensor("INPUT0", sent, datatype)]).as_numpy("OUTPUT0").shape == (1, 0)


def test_a_large_message_passes(typed):
    sent = np.arange(6 << 20, dtype=np.float32).reshape(1, -1)
    found = typed.infer("fp32", [tensor("INPUT0", sent)]).as_numpy("OUTPUT0")
    np.testing.assert_array_equal(found, sent)


# Refusals ------------------------------------------------------------------------------------------------------------


def test_an_unknown_model_is_not_found(client):
    with refused("NOT_FOUND", "nobody"):
        client.infer("nobody", [tensor("INPUT0", [ROW])])


def test_an_unknown_version_is_not_found(client):
    with refused("NOT_FOUND", "identity", "9"):
        client.infer("identity", [tensor("INPUT0", [ROW])], model_version="9")


def test_a_wrong_shape_names_what_was_expected(client):
    with refused("INVALID_ARGUMENT", "INPUT0", "identity", "[-1,16]", "[1,8]", "my-id"):
        client.infer("identity", [tensor("INPUT0", ROW[None, :8])], request_id="my-id")


def test_a_wrong_datatype_names_both(client):
    with refused("INVALID_ARGUMENT", "INPUT0", "INT32", "FP32"):
        client.infer("identity", [tensor("INPUT0", np.zeros((1, 16), np.int32))])


def test_a_missing_input_is_named(client):
    with refused("INVALID_ARGUMENT", "INPUT1", "addsub"):
        client.infer("addsub", [tensor("INPUT0", [ROW])])


def test_an_unknown_output_is_named(client):
    with refused("INVALID_ARGUMENT", "OUTPUT7"):
        client.infer("identity", [tensor("INPUT0", [ROW])], outputs=[triton.InferRequestedOutput("OUTPUT7")])


def test_a_batch_above_the_limit_is_refused(client):
    limit = client.get_model_config("identity").config.max_batch_size
    with refused("INVALID_ARGUMENT", f"<= {limit}", "identity"):
        client.infer("identity", [tensor("INPUT0", rows(limit + 1))])


def test_reserved_parameters_are_refused(server):
    """tritonclient rejects them itself, so the request is built by hand."""
    request = service_pb2.ModelInferRequest(model_name="identity", raw_input_contents=[ROW.tobytes()])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    request.parameters["triton_secret"].int64_param = 1
    with raw_channel(server) as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "triton_secret" in caught.value.details()


def test_a_decoupled_model_wants_a_stream(client):
    with refused("UNIMPLEMENTED"):
        client.infer("repeat", [tensor("INPUT0", [ROW])])
