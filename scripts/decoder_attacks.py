"""Attacks on the memory of decoders: requests whose keys and values take far more than their messages. `make attacks`
runs them with the others."""

import threading
import time
from collections import Counter

import decoders
import numpy as np
import tritonclient.grpc as triton
from attacking import MB, bystander, memory_of, suffered
from clients import metric, tensor
from onnx_bytes import scale
from repository_on_disk import write_model
from tritonclient.utils import InferenceServerException

#: The bounds on pending bytes under which decoders are attacked.
LIMITS = (128 << 20, 256 << 20)
#: Clients that ask for long answers at once, on a connection each.
CLIENTS = 32
#: Tokens of a prompt, and of an answer: as long as one request may have under the lower bound, and longer than any may.
LENGTHS = ((100, 100), (60, 300), (1500, 500))
LASTS_S = 20
#: The model of the client that is not attacked.
OTHER = "scale"


def chat():
    """Returns a decoder whose tokens have 32 kB of keys and values."""
    small = {name: getattr(decoders, name) for name in ("WIDTH", "HEADS", "HEAD", "LAYERS", "POSITIONS", "PAST")}
    past = [f"past_key_values.{layer}.{part}" for layer in range(8) for part in ("key", "value")]
    large = {"WIDTH": 512, "HEADS": 8, "HEAD": 64, "LAYERS": 8, "POSITIONS": 2048, "PAST": past}
    try:
        vars(decoders).update(large)
        return decoders.Decoder(7, key_heads=8).decoder("position_ids")
    finally:
        vars(decoders).update(small)


def serve(given, limit):
    folder = given.empty()
    write_model(folder, OTHER, scale(2))
    write_model(folder, "chat", chat())
    (folder / "chat" / "model.yaml").write_text("generate: { max_tokens: 1000 }\n")
    return given.serve(folder, f"--max-pending-bytes={limit}")


def generate(server, over, codes):
    """Asks for long answers until the attack is over."""
    rng = np.random.default_rng(threading.get_ident())
    with triton.InferenceServerClient(server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as client:
        while not over.is_set():
            prompt, most = LENGTHS[rng.integers(len(LENGTHS))]
            inputs = [tensor("input_ids", rng.integers(0, decoders.TOKENS, (1, prompt)))]
            inputs.append(tensor("max_tokens", np.array([[most]], np.int32)))
            try:
                client.infer("chat", inputs, client_timeout=LASTS_S)
                codes["answered"] += 1
            except InferenceServerException as refusal:
                codes[refusal.status().removeprefix("StatusCode.")] += 1


def long_answers(given):
    """32 connections ask a decoder for long answers to long prompts, next to a client of another model."""
    for limit in LIMITS:
        with serve(given, limit) as server:
            with triton.InferenceServerClient(server.grpc) as client:
                # What the first run of each program takes is kept.
                client.infer("chat", [tensor("input_ids", [[1, 2, 3]]), tensor("max_tokens", np.array([[3]], np.int32))])
            with bystander(server, OTHER) as times:
                time.sleep(LASTS_S)
            yield f"others, {limit >> 20} MiB, without the attack", suffered(times)
            codes, over, held = Counter(), threading.Event(), [0]
            threads = [threading.Thread(target=generate, args=(server, over, codes)) for _ in range(CLIENTS)]
            with bystander(server, OTHER) as times, memory_of(server) as grown:
                for thread in threads:
                    thread.start()
                until = time.monotonic() + LASTS_S
                while time.monotonic() < until:
                    held.append(metric(server, "paternoster_pending_bytes"))
                    time.sleep(0.1)
                over.set()
                for thread in threads:
                    thread.join()
                peak = grown()
            yield f"others, {limit >> 20} MiB", suffered(times)
            ended = ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))
            yield f"the attack, {limit >> 20} MiB", f"{ended}; {peak:.0f} MB more resident, {max(held) / MB:.0f} MB reserved"


ATTACKS = (long_answers,)
