"""An overload, as a benchmark: 64 clients send 4 MB each against a queue of 32, for a minute.

    python tests/python/overload.py [--seconds 60] [--clients 64]

Wrong answers and errors other than UNAVAILABLE end it with status 1. How fast surplus requests are rejected and how
much the server's memory grows is printed, for the reader to judge. The time of a rejection is measured twice: in the
server, from the complete request to its rejection; and at the client, where it includes sending 4 MB on a machine that
both share.
"""

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import numpy as np  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
from onnx_bytes import scale  # noqa: E402
from repository_on_disk import config, write_model  # noqa: E402
from server import Server  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

WIDTH = 1 << 20
MODEL = "large"
FACTOR = 3.0
#: The configuration. Rows are distinct, because equal rows would hide a swapped answer.
SETTINGS = """
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { default_queue_policy { max_queue_size: 32 } }
"""
WARM_UP_S = 10
#: Number of samples, one a second, that the first and the last figure of memory are computed from.
SAMPLES = 5


def keep_asking(address, number, seconds, ready, results):
    """Runs one client. Each is a process, because threads would share one interpreter's lock."""
    sent = np.random.default_rng(number).uniform(1, 2, (1, WIDTH)).astype(np.float32)
    expected = sent * np.float32(FACTOR)
    counts, refusals_ms = Counter(), []
    one = triton.InferInput("INPUT0", [1, WIDTH], "FP32")
    one.set_data_from_numpy(sent)
    with triton.InferenceServerClient(address) as client:
        client.is_server_ready()
        ready.wait()
        until = time.time() + seconds
        while time.time() < until:
            began = time.perf_counter()
            try:
                answer = client.infer(MODEL, [one])
            except InferenceServerException as refusal:
                status = refusal.status()
                counts[status] += 1
                if status == "StatusCode.UNAVAILABLE":
                    refusals_ms.append((time.perf_counter() - began) * 1e3)
                continue
            right = np.array_equal(answer.as_numpy("OUTPUT0"), expected)
            counts["right" if right else "WRONG"] += 1
    results.put((counts, refusals_ms))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()

    with tempfile.TemporaryDirectory() as repository:
        text = config(MODEL, {"INPUT0": ("FP32", [WIDTH])}, max_batch_size=4, extra=SETTINGS)
        write_model(repository, MODEL, scale(FACTOR, WIDTH), text)
        with Server(repository) as server:
            counts, refusals_ms, memory = load(server, given)
            report(given, counts, refusals_ms, memory)
            report_server(server)
    return 0 if set(counts) <= {"right", "StatusCode.UNAVAILABLE"} and counts["right"] else 1


def load(server, given):
    """Runs the clients; returns their counts, the times of rejections, and (second, resident bytes) of the server."""
    print(f"{given.clients} clients for {given.seconds} s, 4 MB each, one lane, queue of 32", flush=True)
    context = multiprocessing.get_context("spawn")
    results, ready = context.Queue(), context.Barrier(given.clients + 1)
    clients = [
        context.Process(target=keep_asking, args=(server.grpc, number, given.seconds, ready, results), daemon=True)
        for number in range(given.clients)
    ]
    for client in clients:
        client.start()
    ready.wait()
    started = time.time()
    memory = []
    while time.time() < started + given.seconds:
        time.sleep(1)
        memory.append((time.time() - started, server.memory_bytes()))
    counts, refusals_ms = Counter(), []
    for _ in clients:
        own, times = results.get(timeout=120)
        counts += own
        refusals_ms += times
    for client in clients:
        client.join()
    return counts, refusals_ms, memory


def report(given, counts, refusals_ms, memory):
    for kind, count in sorted(counts.items()):
        print(f"  {kind:<26} {count:8}")
    if refusals_ms:
        p50, p99 = np.percentile(refusals_ms, [50, 99])
        print(f"  refused, at the client     p50 {p50:.1f} ms, p99 {p99:.1f} ms, sending 4 MB included")
    settled = [size for second, size in memory if second >= WARM_UP_S]
    if len(settled) > 2 * SAMPLES:
        # Memory at one moment varies by the size of requests; medians of a few seconds vary less.
        first, last = np.median(settled[:SAMPLES]) / 1e6, np.median(settled[-SAMPLES:]) / 1e6
        print(f"  resident memory            {first:.0f} MB after {WARM_UP_S} s, {last - first:+.1f} MB until the end")
        print(f"  most resident memory       {max(settled) / 1e6:.0f} MB")
    print(f"  on {os.cpu_count()} cores shared with the clients")


def report_server(server):
    """Prints the server's own figure: the bucket of its histogram of rejections that contains the 99th percentile."""
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
        text = answer.read().decode()
    bucket = re.compile(r'^paternoster_rejection_seconds_bucket\{le="([^"]+)"\} (\d+)$', re.MULTILINE)
    buckets = [(float(bound), int(count)) for bound, count in bucket.findall(text)]
    total = buckets[-1][1]
    if total:
        bound = next(bound for bound, count in buckets if count >= 0.99 * total)
        print(f"  refused, in the server     p99 <= {bound * 1e3:g} ms ({total} refusals)")


if __name__ == "__main__":
    sys.exit(main())
