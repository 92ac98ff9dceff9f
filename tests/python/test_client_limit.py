"""`--client-limit` in a real server: requests beyond a client's limit wait, and those of others do not."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tritonclient.grpc as triton
import tritonclient.http as over_http
from clients import ROW, eventually, metric, pending, tensor
from onnx_bytes import scale
from repository_on_disk import config, write_model

ROWS = ROW.reshape(1, 16)
LIMIT = "--client-limit=header:x-key=2"

#: Runs nothing before three requests are there.
THREE_TOGETHER = "dynamic_batching { preferred_batch_size: [3] max_queue_delay_microseconds: 600000000 }"


@pytest.fixture
def server(start, tmp_path):
    text = config("scale", {"INPUT0": ("FP32", [16])}, max_batch_size=3, extra=THREE_TOGETHER)
    write_model(tmp_path, "scale", scale(2), text)
    return start(tmp_path, LIMIT)


def unary(server, key):
    with triton.InferenceServerClient(server.grpc) as client:
        return client.infer("scale", [tensor("INPUT0", ROWS)], headers={"x-key": key}).as_numpy("OUTPUT0")


def http(server, key):
    data = over_http.InferInput("INPUT0", [1, 16], "FP32")
    data.set_data_from_numpy(ROWS)
    with over_http.InferenceServerClient(server.http, network_timeout=120) as client:
        return client.infer("scale", [data], headers={"x-key": key}).as_numpy("OUTPUT0")


def wait_for(server, in_progress, waits):
    """Waits until so many requests are in the model's queue and so many have waited for a place of their client."""

    def is_reached():
        return pending(server, "scale") == in_progress and metric(server, "paternoster_client_waits_total") == waits

    eventually(f"{in_progress} requests are pending, {waits} have waited", is_reached)


@pytest.mark.parametrize("send", [unary, http])
def test_the_third_request_of_a_client_waits_and_those_of_others_do_not(server, send):
    with ThreadPoolExecutor(8) as calls:
        first = [calls.submit(send, server, "one") for _ in range(3)]
        wait_for(server, 2, 1)
        other = calls.submit(send, server, "other")
        # The three run together. The client's third request takes a place that became free.
        assert (other.result(60) == ROWS * 2).all()
        wait_for(server, 1, 1)
        more = [calls.submit(send, server, "other") for _ in range(2)]
        for call in (*first, *more):
            assert (call.result(60) == ROWS * 2).all()
    eventually("no client has calls", lambda: metric(server, "paternoster_clients") == 0)


def test_requests_of_a_stream_count_each(server):
    answers, all_there = [], threading.Semaphore(0)

    def take(result, error):
        answers.append(error or result.as_numpy("OUTPUT0"))
        all_there.release()

    with triton.InferenceServerClient(server.grpc) as client, ThreadPoolExecutor(4) as calls:
        client.start_stream(take, headers={"x-key": "one"})
        for _ in range(3):
            client.async_stream_infer("scale", [tensor("INPUT0", ROWS)])
        # A message counts when it is read, which is after it has waited.
        wait_for(server, 2, 0)
        assert (calls.submit(unary, server, "other").result(60) == ROWS * 2).all()
        wait_for(server, 1, 1)
        more = [calls.submit(unary, server, "other") for _ in range(2)]
        for _ in range(3):
            assert all_there.acquire(timeout=120)
        assert all((answer == ROWS * 2).all() for answer in answers), answers
        assert all((call.result(60) == ROWS * 2).all() for call in more)
        client.stop_stream()
    eventually("no client has calls", lambda: metric(server, "paternoster_clients") == 0)


def test_a_waiting_request_keeps_its_deadline_and_may_leave(server):
    with ThreadPoolExecutor(4) as calls:
        first = [calls.submit(unary, server, "one") for _ in range(2)]
        wait_for(server, 2, 0)
        with triton.InferenceServerClient(server.grpc) as client:
            with pytest.raises(triton.InferenceServerException, match="Deadline"):
                client.infer("scale", [tensor("INPUT0", ROWS)], headers={"x-key": "one"}, client_timeout=0.5)
            call = client.async_infer("scale", [tensor("INPUT0", ROWS)], lambda result, error: None, headers={"x-key": "one"})
            eventually("it waits", lambda: metric(server, "paternoster_client_waits_total") >= 1)
            call.cancel()
        assert (unary(server, "other") == ROWS * 2).all()
        assert all((call.result(60) == ROWS * 2).all() for call in first)
    eventually("no client has calls", lambda: metric(server, "paternoster_clients") == 0)
