"""Concurrent requests: callbacks, asyncio, streams, decoupled models."""

import asyncio
import queue
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from clients import ROW, rows, tensor
from tritonclient.utils import InferenceServerException


def repeats(count):
    """Returns a request for `count` responses of the decoupled model: INPUT0[0, 0] is the count."""
    values = ROW.copy()
    values[0] = count
    return values


def test_callbacks_get_the_answer_to_their_own_request(client):
    answers = queue.Queue()
    for number in range(200):
        sent = rows(1, start=number * 16)
        client.async_infer(
            "identity",
            [tensor("INPUT0", sent)],
            lambda result, error, sent=sent: answers.put((sent, result, error)),
            request_id=str(number),
        )
    found = [answers.get(timeout=120) for _ in range(200)]
    assert [error for *_, error in found if error] == []
    for sent, result, _ in found:
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), sent)
    assert {result.get_response().id for _, result, _ in found} == set(map(str, range(200)))


def test_asyncio_client_asks_in_parallel(server):
    async def ask():
        async with triton_aio.InferenceServerClient(server.grpc) as client:
            assert await client.is_server_ready()
            batches = [rows(1 + number % 4, start=number * 64) for number in range(64)]
            asked = (client.infer("identity", [tensor("INPUT0", batch)]) for batch in batches)
            for batch, answer in zip(batches, await asyncio.gather(*asked)):
                np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), batch)

    asyncio.run(ask())


def test_asyncio_client_streams(server):
    async def ask():
        async def requests():
            for number in range(10):
                yield {"model_name": "identity", "inputs": [tensor("INPUT0", rows(1, number))], "request_id": str(number)}

        async with triton_aio.InferenceServerClient(server.grpc) as client:
            found = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                found.append(result.get_response().id)
            assert found == [str(number) for number in range(10)]

    asyncio.run(ask())


@contextmanager
def stream(server, **options):
    """Opens a stream: (client, queue of (result, error))."""
    answers = queue.Queue()
    with triton.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), **options)
        yield client, answers
        client.stop_stream()


def is_final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


def test_a_stream_answers_in_request_order(server):
    with stream(server) as (client, answers):
        for number in range(50):
            client.async_stream_infer("identity", [tensor("INPUT0", rows(1, number))], request_id=str(number))
        found = [answers.get(timeout=120) for _ in range(50)]
    assert [result.get_response().id for result, _ in found] == [str(number) for number in range(50)]
    assert all(is_final(result) for result, _ in found)
    for number, (result, _) in enumerate(found):
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), rows(1, number))


def test_a_stream_goes_on_after_an_error(server):
    with stream(server) as (client, answers):
        client.async_stream_infer("identity", [tensor("INPUT0", ROW[None, :8])], request_id="bad")
        _, error = answers.get(timeout=120)
        assert isinstance(error, InferenceServerException) and "[1,8]" in error.message()
        client.async_stream_infer("identity", [tensor("INPUT0", [ROW])], request_id="good")
        result, error = answers.get(timeout=120)
        assert error is None and result.get_response().id == "good"


def test_on_request_a_failure_closes_the_stream_with_a_status(server):
    with stream(server, headers={"triton_grpc_error": "true"}) as (client, answers):
        client.async_stream_infer("repeat", [tensor("INPUT0", [repeats(-1)])], request_id="fails")
        _, error = answers.get(timeout=120)
        assert error.status() == "StatusCode.INTERNAL" and "negative" in error.message()


def test_a_request_that_is_refused_leaves_the_stream_open_even_so(server):
    with stream(server, headers={"triton_grpc_error": "true"}) as (client, answers):
        refusals = {
            "nobody": [tensor("INPUT0", [ROW])],
            "addsub": [tensor("INPUT0", [ROW])],
            "identity": [tensor("INPUT0", ROW[None, :8])],
        }
        for model, inputs in refusals.items():
            client.async_stream_infer(model, inputs, request_id=model)
            _, error = answers.get(timeout=120)
            assert error.status() is None and model in error.message(), "it is an answer, not a status"
        client.async_stream_infer("identity", [tensor("INPUT0", [ROW])], request_id="good")
        result, error = answers.get(timeout=120)
        assert error is None and result.get_response().id == "good"


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_decoupled_model_answers_as_often_as_it_likes(server, count):
    values = repeats(count)
    with stream(server) as (client, answers):
        client.async_stream_infer(
            "repeat", [tensor("INPUT0", [values])], request_id="d", enable_empty_final_response=True
        )
        found = []
        while not found or not is_final(found[-1]):
            result, error = answers.get(timeout=120)
            assert error is None
            found.append(result)
    assert len(found) == count + 1
    assert [is_final(result) for result in found] == [False] * count + [True]
    assert not found[-1].get_response().outputs
    for number, result in enumerate(found[:-1]):
        assert result.get_response().id == "d"
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0").ravel(), values + number)


TRITONS_REPEAT = """
name: "repeat_int32"
backend: "repeat"
max_batch_size: 0
model_transaction_policy { decoupled: True }
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }
]
output [
  { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }
]
"""


@pytest.mark.parametrize("values", [[], [4], [4, -2, 0, 1]])
def test_tritons_repeat_model_is_served_as_it_is(start, tmp_path, values):
    (tmp_path / "repeat_int32" / "1").mkdir(parents=True)
    (tmp_path / "repeat_int32" / "config.pbtxt").write_text(TRITONS_REPEAT)
    inputs = [
        tensor("IN", np.array(values, np.int32)),
        tensor("DELAY", np.arange(len(values), dtype=np.uint32)),
        tensor("WAIT", np.array([5], np.uint32)),
    ]
    with stream(start(tmp_path)) as (client, answers):
        client.async_stream_infer("repeat_int32", inputs, request_id="r", enable_empty_final_response=True)
        found = []
        while not found or not is_final(found[-1]):
            result, error = answers.get(timeout=120)
            assert error is None
            found.append(result)
    assert [int(result.as_numpy("OUT")[0]) for result in found[:-1]] == values
    assert [int(result.as_numpy("IDX")[0]) for result in found[:-1]] == list(range(len(values)))


def test_a_decoupled_model_reports_errors_in_the_stream(server):
    with stream(server) as (client, answers):
        client.async_stream_infer("repeat", [tensor("INPUT0", [repeats(-1)])])
        _, error = answers.get(timeout=120)
        assert "negative" in error.message()


def test_responses_of_decoupled_requests_keep_their_order_each(server):
    counts = [3, 7, 1, 5]
    with stream(server) as (client, answers):
        for number, count in enumerate(counts):
            client.async_stream_infer("repeat", [tensor("INPUT0", [repeats(count)])], request_id=str(number))
        found = [answers.get(timeout=120) for _ in range(sum(counts))]
    assert all(error is None for _, error in found)
    for number, count in enumerate(counts):
        own = [result.as_numpy("OUTPUT0").ravel() for result, _ in found if result.get_response().id == str(number)]
        assert [list(values) for values in own] == [list(repeats(count) + turn) for turn in range(count)]


def test_a_closed_stream_leaves_the_server_as_it_was(server, client):
    with stream(server) as (streaming, _):
        for _ in range(20):
            streaming.async_stream_infer("repeat", [tensor("INPUT0", [repeats(100)])])
        streaming.stop_stream(cancel_requests=True)
    assert client.is_server_ready()
    np.testing.assert_array_equal(client.infer("identity", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0"), [ROW])
