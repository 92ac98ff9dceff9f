"""Requests that end early: deadlines, cancellation, queue timeouts, full queues. Each shows in the counters."""

import queue
import shutil
from contextlib import contextmanager

import pytest
import tritonclient.grpc as triton
from clients import ROW, change, eventually, expires, metric, pending, refused, rows, statistics, tensor
from tritonclient.utils import InferenceServerException

#: A model with about a second of work, and one that ends only when no client waits for it any more. One instance each.
SLOW = "slow"
RUNAWAY = "runaway"


def failures(server, model, reason):
    return metric(server, "nv_inference_request_failure", model=model, reason=reason)


@contextmanager
def busy(server, client, model, behind=1):
    """Keeps the only instance of a model busy and full batches waiting behind it. Yields once all are there, and cancels
    all at the end."""
    # Tasks that an earlier test cancelled may still be running.
    eventually("lanes at rest", lambda: metric(server, "paternoster_tasks_running") == 0)
    answers = queue.Queue()

    def told(result, error):
        answers.put((result, error))

    calls = [client.async_infer(model, [tensor("INPUT0", rows(8))], told)]
    eventually("a running request", lambda: metric(server, "paternoster_tasks_running") == 1)
    calls += [client.async_infer(model, [tensor("INPUT0", rows(8))], told) for _ in range(behind)]
    eventually("requests that wait behind a running one", lambda: pending(server, model) == behind)
    try:
        yield
    finally:
        for call in calls:
            call.cancel()
        for _ in calls:
            answers.get(timeout=120)


def test_a_deadline_ends_a_running_request_and_is_counted(server, client):
    before, cancelled = statistics(client, RUNAWAY), failures(server, RUNAWAY, "CANCELED")
    expires(client, RUNAWAY, [tensor("INPUT0", [ROW])], lambda: failures(server, RUNAWAY, "CANCELED"))
    added = change(before, statistics(client, RUNAWAY))
    assert (added["success"], added["fail"]) == (0, failures(server, RUNAWAY, "CANCELED") - cancelled)


def test_clients_read_the_text_that_triton_shows_whoever_notices_the_deadline_first(client):
    texts = set()
    for microseconds in range(4000, 8000, 40):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(RUNAWAY, [tensor("INPUT0", [ROW])], client_timeout=microseconds / 1e6)
        texts.add(str(caught.value))
    assert texts == {"[StatusCode.DEADLINE_EXCEEDED] Deadline Exceeded"}


def test_a_deadline_ends_a_waiting_request_which_then_never_runs(server, client):
    # Those before it take many seconds, so that its turn cannot come before its deadline.
    behind = 10
    with busy(server, client, SLOW, behind):
        with refused("DEADLINE_EXCEEDED"):
            client.infer(SLOW, [tensor("INPUT0", rows(3))], client_timeout=0.1)
        eventually("an empty place in the queue", lambda: pending(server, SLOW) <= behind)
    # A later request on the same instance shows that its turn is over.
    client.infer(SLOW, [tensor("INPUT0", rows(1))])
    assert 3 not in statistics(client, SLOW)["batches"]


def test_a_cancelled_request_is_counted(server, client):
    answers = queue.Queue()
    cancelled, failed = failures(server, RUNAWAY, "CANCELED"), statistics(client, RUNAWAY)["fail"]
    with busy(server, client, RUNAWAY):
        call = client.async_infer(
            RUNAWAY, [tensor("INPUT0", rows(5))], lambda result, error: answers.put((result, error))
        )
        eventually("two waiting requests", lambda: pending(server, RUNAWAY) == 2)
        call.cancel()
        _, error = answers.get(timeout=120)
        assert error.status() == "StatusCode.CANCELLED"
        eventually("a place that is empty again", lambda: pending(server, RUNAWAY) == 1)
        assert failures(server, RUNAWAY, "CANCELED") == cancelled + 1
        assert statistics(client, RUNAWAY)["fail"] == failed + 1


def test_closing_a_connection_cancels_what_was_in_flight(server, client):
    with busy(server, client, RUNAWAY):
        cancelled = failures(server, RUNAWAY, "CANCELED")
        leaving = triton.InferenceServerClient(server.grpc)
        leaving.async_infer(RUNAWAY, [tensor("INPUT0", rows(6))], lambda result, error: None)
        eventually("its request in the queue", lambda: pending(server, RUNAWAY) == 2)
        leaving.close()
        eventually("a place that is empty again", lambda: pending(server, RUNAWAY) == 1)
        assert failures(server, RUNAWAY, "CANCELED") == cancelled + 1


@pytest.fixture
def short_queue(start, made_models, tmp_path):
    """Starts a server with a model that ends only when no client waits for it any more, and a queue of two places."""
    made, tests = made_models("replay", "--only", "slow_q"), made_models("tests", "--only", "runaway")
    shutil.copytree(made / "slow_q", tmp_path / "slow_q")
    shutil.copy(tests / RUNAWAY / "1" / "model.onnx", tmp_path / "slow_q" / "1" / "model.onnx")
    running = start(tmp_path)
    with triton.InferenceServerClient(running.grpc) as connected:
        yield running, connected


def test_full_queues_and_queue_timeouts_are_unavailable_and_rejected(short_queue):
    server, client = short_queue
    model = "slow_q"
    answers, calls = queue.Queue(), []

    def ask(name):
        told = lambda result, error: answers.put((name, error))  # noqa: E731
        calls.append(client.async_infer(model, [tensor("INPUT0", [ROW])], told, request_id=name))

    ask("running")
    eventually("a running request", lambda: metric(server, "paternoster_tasks_running") == 1)
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
    for call in calls:
        call.cancel()
    ended = dict(answers.get(timeout=120) for _ in calls)
    assert {name: error.status() for name, error in ended.items()} == dict.fromkeys(
        ("running", "first", "second"), "StatusCode.CANCELLED"
    )
    eventually("three cancelled requests", lambda: failures(server, model, "CANCELED") == 3)
    added = statistics(client, model)
    assert (added["success"], added["fail"]) == (0, 5)
