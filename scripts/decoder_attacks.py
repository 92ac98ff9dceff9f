"""Attacks on the memory of decoders: requests whose keys and values take far more than their messages. `make attacks`
runs them with the others."""

import time

import decoders
import numpy as np
from attacking import MB, attackers, bystander, connection, counted, ending, memory_of, suffered, unattacked
from clients import metric, tensor
from onnx_bytes import scale
from repository_on_disk import write_model

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


def generating(server):
    """A client that asks for long answers."""

    def client(number):
        rng = np.random.default_rng(number)
        with connection(server) as connected:
            while True:
                prompt, most = LENGTHS[rng.integers(len(LENGTHS))]
                inputs = [tensor("input_ids", rng.integers(0, decoders.TOKENS, (1, prompt)))]
                inputs.append(tensor("max_tokens", np.array([[most]], np.int32)))
                yield ending(connected, "chat", inputs, LASTS_S)

    return client


def long_answers(given):
    """32 connections ask a decoder for long answers to long prompts, next to a client of another model."""
    for limit in LIMITS:
        with serve(given, limit) as server:
            with connection(server) as client:
                # What the first run of each program takes is kept.
                client.infer("chat", [tensor("input_ids", [[1, 2, 3]]), tensor("max_tokens", np.array([[3]], np.int32))])
            yield f"others, {limit >> 20} MiB, without the attack", unattacked(server, OTHER)
            held, until = [0], time.monotonic() + LASTS_S
            with bystander(server, OTHER) as times, memory_of(server) as grown, attackers(CLIENTS, generating(server)) as codes:
                while time.monotonic() < until:
                    held.append(metric(server, "paternoster_pending_bytes"))
                    time.sleep(0.1)
            yield f"others, {limit >> 20} MiB", suffered(times)
            took = f"{grown():.0f} MB more resident, {max(held) / MB:.0f} MB reserved"
            yield f"the attack, {limit >> 20} MiB", f"{counted(codes)}; {took}"


ATTACKS = (long_answers,)
