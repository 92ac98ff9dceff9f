"""Attacks by pipelines: many steps within each other, and steps whose outputs are large. `make attacks` runs them with
the others."""

import time

import numpy as np
from attacking import (
    LOAD,
    MB,
    attackers,
    bystander,
    connection,
    counted,
    memory_of,
    raw_call,
    repeating,
    suffered,
    unattacked,
)
from clients import metric, tensor
from onnx_bytes import blown_up, identity, scale, text
from repository_on_disk import write_model, write_pipeline

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


def attacked(server, model, inputs, clients):
    """Yields what others see without clients that ask this model, and with them."""
    yield "others, without the attack", unattacked(server)
    attack = repeating(server, model, inputs)
    with memory_of(server) as grown:
        # What the first requests make is there before times are taken.
        with attackers(clients, attack):
            time.sleep(1)
        with bystander(server) as times, attackers(clients, attack) as codes:
            time.sleep(LASTS_S)
        pending = metric(server, "paternoster_pending_requests")
    yield f"others, {clients} clients", suffered(times)
    ends = counted(codes)
    yield "the attack", f"{ends}; {grown():.0f} MB more resident at the peak, {pending:.0f} requests pending after it"


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


def steps_that_give_one_tensor(given):
    """Three steps, of which each row runs one, give the output. Eight clients have rows of all kinds."""
    folder, kinds = given.empty(), range(1, 4)
    write_model(folder, "identity", identity())
    steps = []
    for kind in kinds:
        write_model(folder, f"scale{kind}", scale(kind))
        when = f"when: {{ tensor: KIND, equals: {kind} }}"
        steps.append(f"model: {{ name: scale{kind}, inputs: {{ INPUT0: IN }}, outputs: {{ OUTPUT0: OUT }}, {when} }}")
    port = ("FP32", [16])
    write_pipeline(folder, "any", {"IN": port, "KIND": ("FP32", [1])}, {"OUT": port}, steps)

    def client(number):
        rng = np.random.default_rng(number)
        with connection(server) as connected:
            while True:
                chosen = rng.choice(kinds, (rng.integers(1, 9), 1)).astype(np.float32)
                values = rng.integers(1, 1000, (len(chosen), 16)).astype(np.float32)
                answer = connected.infer("any", [tensor("IN", values), tensor("KIND", chosen)])
                yield "right" if np.array_equal(answer.as_numpy("OUT"), values * chosen) else "WRONG"

    with given.serve(folder) as server:
        yield "others, without the attack", unattacked(server)
        with memory_of(server) as grown, bystander(server) as times, attackers(8, client) as codes:
            time.sleep(LASTS_S)
        yield "others, 8 clients", suffered(times)
        yield "the attack", f"{counted(codes)}; {grown():.0f} MB more resident at the peak"


ATTACKS = (pipelines_within_each_other, large_outputs_of_steps, steps_that_give_one_tensor)
