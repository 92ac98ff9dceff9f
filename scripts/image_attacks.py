"""Attacks by images that take long to decode, next to a client with small ones. `make attacks` runs them with the
others."""

import time

import numpy as np
from attacking import MB, attackers, bystander, counted, memory_of, repeating, suffered, unattacked
from clients import metric, tensor
from pictures import PASSES, encoded, picture, png
from repository_on_disk import write_pipeline

LASTS_S = 20
#: Seconds between two requests of the client that is not attacked.
EVERY_S = 0.05


def slow_image(edge):
    """Returns a PNG of the kind that takes longest for its bytes: interlaced, black, four channels of 16 bits."""
    sizes = ((len(range(row, edge, down)), len(range(column, edge, right))) for row, column, down, right in PASSES)
    return png(edge, edge, 16, 6, b"".join(bytes(rows * (1 + 8 * columns)) for rows, columns in sizes), interlace=1)


def images(several):
    return [tensor("IMAGE", np.array([[image] for image in several], dtype=object))]


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
    small = images([encoded(picture(240, 320), "JPEG")])
    for what, sent, count in attacks:
        with given.serve(repository) as server, memory_of(server) as grown:
            # What the first requests make is there before times are taken.
            unattacked(server, "pixels", small, lasts_s=1)
            yield f"{what}: without", unattacked(server, "pixels", small, every_s=EVERY_S)
            with attackers(count, repeating(server, "pixels", images(sent))) as ended:
                time.sleep(1)
                with bystander(server, "pixels", small, every_s=EVERY_S) as times:
                    time.sleep(LASTS_S)
            yield f"{what}: others", suffered(times)
            limit = metric(server, "paternoster_pending_bytes_limit") / MB
            yield (
                f"{what}: the attack",
                f"{counted(ended)}; {grown():.0f} MB more resident at the peak, limit {limit:.0f} MB",
            )


ATTACKS = (slow_images,)
