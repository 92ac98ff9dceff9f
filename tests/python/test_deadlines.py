"""Requests that end early: deadlines, cancellation, queue timeouts, full queues. Each leaves its trace in the counters."""

import queue
from contextlib import contextmanager

import pytest
import tritonclient.grpc as triton
from clients import ROW, change, eventually, metric, pending, refused, rows, statistics, tensor

SLOW = "slow"


def failures(server, model, reason):
    return metric(server, "nv_inference_request_failure", model=model, reason=reason)


@contextmanager
def busy(server, client, model=SLOW):
    """Keeps the one instance of a slow model at work and one full batch waiting behind it; yields once both are there,
    and takes both back at the end."""
    # What an earlier test gave up may still be running; after this nothing is.
    client.infer(model, [tensor("INPUT0", [ROW])])
    answers = queue.Queue()

    def told(result, error):
        answers.put((result, error))

    calls = [client.async_infer(model, [tensor("INPUT0", rows(8))], told) for _ in range(2)]
    eventually("a request that waits behind a running one", lambda: pending(server, model) == 1)
    try:
        yield
    finally:
        for call in calls:
            call.cancel()
        for _ in calls:
            answers.get(timeout=30)


def test_a_deadline_ends_a_running_request_and_is_counted(server, client):
    failed, cancelled = statistics(client, SLOW), failures(server, SLOW, "CANCELED")
    with refused("DEADLINE_EXCEEDED"):
        client.infer(SLOW, [tensor("INPUT0", [ROW])], client_timeout=0.2)
    eventually("a counted expiry", lambda: failures(server, SLOW, "CANCELED") == cancelled + 1)
    added = change(failed, statistics(client, SLOW))
    assert (added["success"], added["fail"]) == (0, 1)


def test_a_deadline_ends_a_waiting_request_which_then_never_runs(server, client):
    with busy(server, client):
        with refused("DEADLINE_EXCEEDED"):
            client.infer(SLOW, [tensor("INPUT0", rows(3))], client_timeout=0.1)
        eventually("an empty place in the queue", lambda: pending(server, SLOW) <= 1)
    # A request after it on the same instance shows that its turn is over.
    client.infer(SLOW, [tensor("INPUT0", rows(1))])
    assert 3 not in statistics(client, SLOW)["batches"]


def test_a_cancelled_request_is_counted(server, client):
    answers = queue.Queue()
    cancelled, failed = failures(server, SLOW, "CANCELED"), statistics(client, SLOW)["fail"]
    with busy(server, client):
        call = client.async_infer(
            SLOW, [tensor("INPUT0", rows(5))], lambda result, error: answers.put((result, error))
        )
        eventually("two waiting requests", lambda: pending(server, SLOW) == 2)
        call.cancel()
        _, error = answers.get(timeout=30)
        assert error.status() == "StatusCode.CANCELLED"
        eventually("a place that is empty again", lambda: pending(server, SLOW) == 1)
        assert failures(server, SLOW, "CANCELED") == cancelled + 1
        assert statistics(client, SLOW)["fail"] == failed + 1
    assert 5 not in statistics(client, SLOW)["batches"]


def test_closing_a_connection_cancels_what_was_in_flight(server, client):
    cancelled = failures(server, SLOW, "CANCELED")
    with busy(server, client):
        leaving = triton.InferenceServerClient(server.grpc)
        leaving.async_infer(SLOW, [tensor("INPUT0", rows(6))], lambda result, error: None)
        eventually("its request in the queue", lambda: pending(server, SLOW) == 2)
        leaving.close()
        eventually("a place that is empty again", lambda: pending(server, SLOW) == 1)
        assert failures(server, SLOW, "CANCELED") == cancelled + 1


@pytest.fixture
def short_queue(start, made_models):
    """A server with slow models, one of them with a queue of two places."""
    running = start(made_models("replay"), "--model-control-mode=explicit", "--load-model=slow_q")
    with triton.InferenceServerClient(running.grpc) as connected:
        yield running, connected


def test_full_queues_and_queue_timeouts_are_unavailable_and_rejected(short_queue):
    server, client = short_queue
    model = "slow_q"
    answers = queue.Queue()

    def ask(name, **options):
        client.async_infer(
            model, [tensor("INPUT0", [ROW])], lambda result, error: answers.put((name, result, error)), request_id=name, **options
        )

    ask("running")
    ask("first")
    eventually("one waiting request", lambda: pending(server, model) == 1)
    with refused("UNAVAILABLE"):
        client.infer(model, [tensor("INPUT0", [ROW])], timeout=50_000, request_id="impatient")
    assert failures(server, model, "REJECTED") == 1
    ask("second")
    eventually("a full queue", lambda: pending(server, model) == 2)
    with refused("UNAVAILABLE", "maximum queue size", "surplus"):
        client.infer(model, [tensor("INPUT0", [ROW])], request_id="surplus")
    assert failures(server, model, "REJECTED") == 2
    ended = {}
    for _ in range(3):
        name, result, error = answers.get(timeout=60)
        assert error is None
        ended[name] = result.get_response().id
    assert ended == {"running": "running", "first": "first", "second": "second"}
    added = statistics(client, model)
    assert (added["success"], added["fail"]) == (3, 2)
