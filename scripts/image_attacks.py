"""Attacks by images that take long to decode, next to a client with small ones. `make attacks` runs them with the
others."""

import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))

import numpy as np  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
from attacking import MB, PATIENCE_S, memory_of  # noqa: E402
from clients import metric, tensor  # noqa: E402
from pictures import PASSES, encoded, picture, png  # noqa: E402
from repository_on_disk import write_pipeline  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

LASTS_S = 20
#: Seconds between an answer and the next request of the client that is not attacked.
PAUSE_S = 0.02


def slow_image(edge):
    """Returns a PNG of the kind that takes longest for its bytes: interlaced, black, four channels of 16 bits."""
    sizes = ((len(range(row, edge, down)), len(range(column, edge, right))) for row, column, down, right in PASSES)
    return png(edge, edge, 16, 6, b"".join(bytes(rows * (1 + 8 * columns)) for rows, columns in sizes), interlace=1)


def asking(server, images, over, taken, codes, timeout_s, pause_s=0):
    """Sends images until it is over, each request when the one before it is answered."""
    sent = [tensor("IMAGE", np.array([[image] for image in images], dtype=object))]
    with triton.InferenceServerClient(server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as client:
        while not over.is_set():
            began = time.monotonic()
            try:
                client.infer("pixels", sent, client_timeout=timeout_s)
                codes["answered"] += 1
            except InferenceServerException as refusal:
                codes[refusal.status().removeprefix("StatusCode.")] += 1
            taken.append((time.monotonic() - began) * 1e3)
            time.sleep(pause_s)


@contextmanager
def clients(server, images, count, timeout_s=60, pause_s=0):
    """Runs clients during the block; yields their times in milliseconds, and how their requests ended."""
    over, taken, codes = threading.Event(), [], Counter()
    arguments = (server, images, over, taken, codes, timeout_s, pause_s)
    threads = [threading.Thread(target=asking, args=arguments) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield taken, codes
    finally:
        over.set()
        for thread in threads:
            thread.join()


def others(server):
    return clients(server, [encoded(picture(240, 320), "JPEG")], 1, PATIENCE_S, PAUSE_S)


def suffered(taken, codes):
    failed = sum(codes.values()) - codes["answered"]
    middle, worst = np.percentile(taken, (50, 99))
    return f"p50 {middle:.0f} ms, p99 {worst:.0f} ms, longest {max(taken):.0f} ms, {failed} of {len(taken)} failed"


def slow_images(given):
    """Images that take long to decode, of three sizes, and requests of many usual ones, next to a client with small
    images. No model runs."""
    attacks = (
        ("4 clients, 260 kB, 33 Mi pixels", [slow_image(5780)], 4),
        ("8 clients, 30 kB, 4 Mi pixels", [slow_image(2000)], 8),
        ("32 clients, 3 kB, 0.4 Mi pixels", [slow_image(600)], 32),
        ("8 clients, 16 photos a request", [encoded(picture(480, 640), "JPEG")] * 16, 8),
    )
    keys = "dtype: UINT8, resize: { shortest_edge: 256 }, crop: { height: 224, width: 224 }"
    step = f"image: {{ {keys}, inputs: {{ IMAGE: IMAGE }}, outputs: {{ pixels: pixels }} }}"
    inputs, outputs = {"IMAGE": ("BYTES", [1])}, {"pixels": ("UINT8", [3, 224, 224])}
    repository = write_pipeline(given.empty(), "pixels", inputs, outputs, [step], max_batch_size=16).parent
    for what, images, count in attacks:
        with given.serve(repository) as server, memory_of(server) as grown:
            # What the first requests make is there before times are taken.
            with others(server):
                time.sleep(1)
            with others(server) as seen:
                time.sleep(LASTS_S / 2)
            yield f"{what}: without", suffered(*seen)
            with clients(server, images, count) as (_, ended):
                time.sleep(1)
                with others(server) as seen:
                    time.sleep(LASTS_S)
            yield f"{what}: others", suffered(*seen)
            limit = metric(server, "paternoster_pending_bytes_limit") / MB
            counted = ", ".join(f"{count} {code}" for code, count in sorted(ended.items()))
            yield f"{what}: the attack", f"{counted}; {grown():.0f} MB more resident at the peak, limit {limit:.0f} MB"


ATTACKS = (slow_images,)
