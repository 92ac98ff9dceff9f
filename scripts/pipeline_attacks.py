"""Attacks by pipelines: many steps within each other, and steps whose outputs are large. `make attacks` runs them with
the others."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc as triton
from attacking import LOAD, MB, bystander, memory_of, raw_call, suffered
from clients import metric, tensor
from onnx_bytes import blown_up, identity, text
from repository_on_disk import write_model, write_pipeline
from tritonclient.utils import InferenceServerException

#: Steps of a pipeline, which is the most that it may have.
WIDTH = 256
LIMIT = 256 << 20
LASTS_S = 10


def wide(repository, name, model, width, port=("FP32", [16]), output=("FP32", [16]), outputs=1):
    """Writes a pipeline whose steps all read its input. Its response has all outputs of all steps."""
    named = {f"OUTPUT{number}": output for number in range(width * outputs)}
    steps = []
    for step in range(width):
        mapped = ", ".join(f"OUTPUT{one}: OUTPUT{step * outputs + one}" for one in range(outputs))
        steps.append(f"model: {{ name: {model}, inputs: {{ INPUT0: INPUT0 }}, outputs: {{ {mapped} }} }}")
    write_pipeline(repository, name, {"INPUT0": port}, named, steps)


def ask_while(server, model, inputs, clients, codes):
    """Clients send a request again and again for a while."""
    over = threading.Event()

    def client():
        with triton.InferenceServerClient(server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as connected:
            while not over.is_set():
                try:
                    connected.infer(model, inputs, client_timeout=60)
                    codes["answered"] += 1
                except InferenceServerException as refusal:
                    codes[refusal.status().removeprefix("StatusCode.")] += 1

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(client) for _ in range(clients)]
        time.sleep(LASTS_S)
        over.set()
        for one in asking:
            one.result()


def attacked(server, model, inputs, clients):
    """Yields what others see without clients that ask this model, and with them."""
    with bystander(server) as times:
        time.sleep(LASTS_S)
    yield "others, without the attack", suffered(times)
    codes = Counter()
    with memory_of(server) as grown, bystander(server) as times:
        ask_while(server, model, inputs, clients, codes)
        pending = metric(server, "paternoster_pending_requests")
    yield f"others, {clients} clients", suffered(times)
    ends = ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))
    yield "the attack", f"{ends}; {grown():.0f} MB more resident at the peak, {pending:.0f} requests pending at its end"


def pipelines_within_each_other(given):
    """Pipelines of 256 steps over each other: one request of 64 bytes would become 16 million. Then those that may be
    loaded: 3 times 256 steps, all of whose outputs are wanted."""
    folder = given.empty()
    write_model(folder, "identity", identity())
    wide(folder, "boom0", "identity", WIDTH)
    wide(folder, "boom1", "boom0", WIDTH)
    wide(folder, "largest", "boom0", 3, outputs=WIDTH)
    with given.serve(folder, "--model-control-mode=explicit", "--load-model=identity") as server:
        yield "256 times 256 steps", raw_call(server, LOAD, text(2, "boom1"))
        yield "3 times 256 steps", raw_call(server, LOAD, text(2, "largest"))
        yield from attacked(server, "largest", [tensor("INPUT0", np.ones((1, 16), np.float32))], 4)


def large_outputs_of_steps(given):
    """256 steps that each make 4 MB of 4 bytes, eight rows at a time, with 256 MB for pending requests."""
    folder = given.empty()
    write_model(folder, "identity", identity())
    write_model(folder, "blow", blown_up(1 << 20))
    wide(folder, "large", "blow", WIDTH, ("FP32", [1]), ("FP32", [1 << 20]))
    with given.serve(folder, f"--max-pending-bytes={LIMIT}") as server:
        yield "limit", f"{LIMIT / MB:.0f} MB"
        yield from attacked(server, "large", [tensor("INPUT0", np.ones((8, 1), np.float32))], 8)


ATTACKS = (pipelines_within_each_other, large_outputs_of_steps)
