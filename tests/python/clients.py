"""Small helpers that tests with tritonclient and with other clients share."""

import json
import re
import subprocess
import threading
import time
from contextlib import contextmanager

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

#: A row for models with rows of 16 numbers.
ROW = np.arange(16, dtype=np.float32)


def tensor(name, values, datatype=None):
    values = np.asarray(values)
    one = triton.InferInput(name, list(values.shape), datatype or np_to_triton_dtype(values.dtype))
    one.set_data_from_numpy(values)
    return one


def rows(count, start=0):
    """Returns `count` rows of 16 numbers, all different."""
    return np.arange(start, start + count * 16, dtype=np.float32).reshape(count, 16)


def ask_all(server, model, requests, cancel_every=None, in_flight=None):
    """Sends all of these inputs at once, or at most `in_flight` at a time, and cancels every `cancel_every`-th request.
    Returns (result, error) by index, and the model's statistics."""
    answers, all_there = {}, threading.Event()
    free = threading.Semaphore(in_flight or len(requests))

    def take(number):
        def answered(result, error):
            free.release()
            answers[number] = (result, error)
            if len(answers) == len(requests):
                all_there.set()

        return answered

    with triton.InferenceServerClient(server.grpc) as client:
        for number, inputs in enumerate(requests):
            free.acquire()
            call = client.async_infer(model, inputs, take(number))
            if cancel_every and number % cancel_every == 0:
                call.cancel()
        assert all_there.wait(120), f"{len(answers)} of {len(requests)} were answered"
        return answers, client.get_inference_statistics(model).model_stats[0]


@contextmanager
def refused(code, *facts):
    """Checks that the block fails with a gRPC status of this name, and that the message contains the facts."""
    with pytest.raises(InferenceServerException) as caught:
        yield
    assert caught.value.status() == f"StatusCode.{code}", caught.value
    for fact in facts:
        assert fact in caught.value.message(), f"{fact!r} is not in {caught.value.message()!r}"


def eventually(what, condition, timeout_s=120):
    """Waits for something that another process does; returns the first true value of `condition`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        time.sleep(0.01)


def document(file):
    """Returns the JSON in a file that another process writes; nothing before it is complete."""
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def expires(client, model, inputs, count):
    """Makes the deadline of a request pass in the server: repeats until `count`, which that changes, has changed.

    A deadline that passes before the request has left the client is not counted, so the next one is twice as long.
    """
    before, deadline_s = count(), 0.2
    for _ in range(6):
        with refused("DEADLINE_EXCEEDED"):
            client.infer(model, inputs, client_timeout=deadline_s)
        patience = time.monotonic() + 5
        while time.monotonic() < patience:
            if count() != before:
                return
            time.sleep(0.01)
        deadline_s *= 2
    raise AssertionError("no deadline passed in the server")


def statistics(client, model):
    """Returns the counts of one model: a flat dictionary, with batch sizes under "batches"."""
    (stats,) = client.get_inference_statistics(model).model_stats
    counts = {"inference": stats.inference_count, "execution": stats.execution_count}
    for field in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"):
        duration = getattr(stats.inference_stats, field)
        counts[field] = duration.count
        counts[f"{field}_ns"] = duration.ns
    counts["batches"] = {batch.batch_size: batch.compute_infer.count for batch in stats.batch_stats}
    return counts


def change(before, after):
    """Returns the differences between two results of `statistics`; batch sizes that did not change are left out."""
    added = {key: after[key] - before[key] for key in after if key != "batches"}
    sizes = {size: count - before["batches"].get(size, 0) for size, count in after["batches"].items()}
    return {**added, "batches": {size: count for size, count in sizes.items() if count}}


def scrape(server):
    """Returns the metrics page."""
    status, page = server.get("/metrics", port="metrics")
    assert status == 200, page
    return page.decode()


def on_page(page, name, /, **labels):
    """Returns one value of a metrics page. Only the given labels are compared; several matching series are added up."""
    found = [
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if re.split("[{ ]", line, maxsplit=1)[0] == name and all(f'{key}="{value}"' in line for key, value in labels.items())
    ]
    assert found, f"no series {name} {labels}"
    return sum(found)


def metric(server, name, /, **labels):
    """Returns one value of the current metrics page."""
    return on_page(scrape(server), name, **labels)


def pending(server, model):
    """Returns the number of a model's requests that wait for execution."""
    return metric(server, "nv_inference_pending_request_count", model=model)


def raw_channel(server):
    return grpc.insecure_channel(server.grpc, options=[("grpc.max_receive_message_length", -1)])


def output(command, timeout=300, **options):
    """Returns the output of a client program, which must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
