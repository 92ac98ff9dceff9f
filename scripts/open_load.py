"""Repositories for the policies, and an open Poisson load on them, for the tests and for the timelines of the docs.

The load is open: requests are sent at times drawn beforehand, whether or not earlier ones have been answered, like
those of many independent clients.
"""

import asyncio
import json
import os
import subprocess
import time
from collections import namedtuple
from contextlib import suppress
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from server import binary
from tritonclient.utils import InferenceServerException

#: The networks of a generated repository, a quarter as wide as published, and the sentence encoder.
NETWORKS = ("resnet50", "vgg19", "unet")
MINILM = "minilm"
#: Side of each network's images.
SIDES = {"resnet50": 224, "vgg19": 224, "unet": 256}
OUTPUTS = {"resnet50": "logits", "vgg19": "logits", "unet": "mask", MINILM: "sentence_embedding"}
MINILM_TENSORS = """
inputs:
  - { name: input_ids,      dtype: INT64, dims: [tokens], pad: { axis: tokens, value: 0 } }
  - { name: attention_mask, dtype: INT64, dims: [tokens], pad: { axis: tokens, value: 0 } }
outputs:
  - { name: sentence_embedding, dtype: FP32, dims: [384] }
"""

#: One model of a repository: its network, and the section of its model.yaml on batching.
Served = namedtuple("Served", "network batching max_batch_size", defaults=[8])
#: Requests of one model: when each is sent, in seconds, and the index of its sample.
Stream = namedtuple("Stream", "model samples times choices")
#: How one request ended. `answer` is None if it failed, and `error` has the reason.
Answered = namedtuple("Answered", "model choice due_s done_s latency_s answer error")

#: A latency table that claims of a CPU what is true of devices with operator diversity: that the decoder is faster with
#: few rows at a time. Measurements correct it, but not before batches have been split.
UNET_LATENCIES = [
    *({"stage": 0, "rows": rows, "latency_us": 20_000 + 5_000 * rows} for rows in (1, 8)),
    *({"stage": stage, "rows": rows, "latency_us": 20_000 * rows**2} for stage in (1, 2) for rows in (1, 2, 4, 8)),
]
#: Seconds between two calls of `watch` under load.
WATCH_S = 0.02
WHOLE = "batching: { policy: serial }"
WINDOW = "batching: { policy: window, window: { max_queue_delay_us: 0 } }"
#: The policies of the documentation's scenarios, as sections of model.yaml.
POLICIES = {
    "minilm": """
stages: 3
batching: { policy: diversity, diversity: { input: false, load: true } }
""",
    # Joins wherever it may, even if other work on the machine distorts the measured times.
    "minilm-paper": """
stages: 3
batching: { policy: diversity, diversity: { input: false, load: { mode: paper } } }
""",
    "resnet50": """
stages: 4
batching: { policy: lazy, latency_objective_ms: 400 }
""",
    "resnet50-equation-2": """
stages: 4
batching: { policy: lazy, latency_objective_ms: 5000, lazy: { predictor: paper } }
""",
    "minilm-by-length": """
stages: 3
batching: { policy: diversity }
""",
    "vgg19": "batching: { policy: adaptive }",
    "unet-latencies": f"""
stages: 3
batching:
  policy: diversity
  diversity: {{ operator: {{ threshold: 0.8 }} }}
  latencies: {json.dumps(UNET_LATENCIES)}
""",
}


def program():
    """Returns the built server: the one that PATERNOSTER names, or cargo's release build."""
    return Path(os.environ.get("PATERNOSTER") or binary())


def write_networks(builder, folder, minilm, networks=NETWORKS):
    """Generates the networks once with `builder`, the server's program, for `write_repository` to link to. `minilm` is
    the checkpoint's directory."""
    quarter = ["--only", ",".join(networks), "--quarter"]
    for choice in (quarter, ["--only", MINILM, "--minilm", minilm]):
        command = [builder, "models", "--out", folder, *choice]
        made = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
        if made.returncode != 0:
            raise RuntimeError(made.stderr)
    return Path(folder)


def write_repository(folder, networks, models):
    """Writes a repository of `models`, a mapping from name to `Served`, with programs from `write_networks`."""
    for name, served in models.items():
        own = Path(folder) / name
        own.mkdir(parents=True)
        (own / "1").symlink_to((Path(networks) / served.network / "1").resolve(), target_is_directory=True)
        tensors = MINILM_TENSORS.strip() if served.network == MINILM else ""
        parts = [f"max_batch_size: {served.max_batch_size}", tensors, served.batching.strip()]
        (own / "model.yaml").write_text("\n".join(parts) + "\n")
    return Path(folder)


def tensor(name, values, datatype):
    one = triton.InferInput(name, list(values.shape), datatype)
    one.set_data_from_numpy(values)
    return one


def lengths(random, count):
    """Returns lengths of sentences as short as GLUE's."""
    return np.clip(random.lognormal(2.4, 0.6, count).astype(int), 3, 128)


def samples(network, count, seed):
    """Returns samples that differ by far more than rounding: lists of inputs, each of which may be sent any number of
    times."""
    random = np.random.default_rng(seed)
    if network == MINILM:
        return [sentence(random, length) for length in lengths(random, count)]
    return [[tensor("image", picture(random, SIDES[network]), "FP32")] for _ in range(count)]


def sentence(random, length):
    ids = random.integers(1000, 20000, (1, length))
    return [tensor("input_ids", ids, "INT64"), tensor("attention_mask", np.ones_like(ids), "INT64")]


def picture(random, side):
    """Returns an image of noise over large patches of colour: networks with random weights distinguish patches, but
    hardly noise alone."""
    patches = random.normal(0, 2, (1, 3, 4, 4)).repeat(side // 4, axis=2).repeat(side // 4, axis=3)
    return (patches + random.normal(0, 0.3, patches.shape)).astype(np.float32)


def poisson(model, requests, rate, count, seed):
    """Returns a stream of `count` requests, `rate` a second on average. The seed fixes the samples, and the times up to
    the rate."""
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1 / rate, count))
    return Stream(model, requests, times, random.integers(0, len(requests), count))


async def send(client, model, requests, choice, due_s, began):
    answer, error = None, None
    try:
        answer = await client.infer(model, requests[choice])
    except InferenceServerException as failure:
        error = failure
    done_s = time.perf_counter() - began
    return Answered(model, int(choice), due_s, done_s, done_s - due_s, answer, error)


async def send_at(client, stream, began):
    """Sends the requests of a stream, each at its time. Latencies count from that time, so a client that is late hides
    nothing."""
    running = []
    for due_s, choice in zip(stream.times, stream.choices):
        await asyncio.sleep(max(0.0, began + due_s - time.perf_counter()))
        running.append(asyncio.ensure_future(send(client, stream.model, stream.samples, choice, due_s, began)))
    return await asyncio.gather(*running)


def at_once(model, requests, count, seed):
    """Returns a stream of `count` requests that are all sent at the start. The seed fixes the samples."""
    return Stream(model, requests, np.zeros(count), np.random.default_rng(seed).integers(0, len(requests), count))


def run(address, streams, watch=None):
    """Sends several streams at once; returns how every request ended, stream by stream. The function `watch` is called
    repeatedly under load."""

    async def keep_watching():
        while True:
            await asyncio.to_thread(watch)
            await asyncio.sleep(WATCH_S)

    async def all_streams():
        async with triton_aio.InferenceServerClient(address) as client:
            await client.is_server_ready()
            watching = asyncio.ensure_future(keep_watching()) if watch else None
            began = time.perf_counter()
            answered = await asyncio.gather(*(send_at(client, stream, began) for stream in streams))
            if watching:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching
            return answered

    return asyncio.run(all_streams())


def peak(address, model, requests, count, in_flight=16):
    """Returns requests a second while `in_flight` of them are always in flight."""

    async def closed():
        async with triton_aio.InferenceServerClient(address) as client:
            turns = iter(range(count))

            async def keep_asking():
                for turn in turns:
                    await client.infer(model, requests[turn % len(requests)])

            began = time.perf_counter()
            await asyncio.gather(*(keep_asking() for _ in range(in_flight)))
            return count / (time.perf_counter() - began)

    return asyncio.run(closed())


def answers_alone(address, model, network, requests):
    """Returns the answers to all samples, sent one at a time."""
    with triton.InferenceServerClient(address) as client:
        return [client.infer(model, one).as_numpy(OUTPUTS[network]) for one in requests]
