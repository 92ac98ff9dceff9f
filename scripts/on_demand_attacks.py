"""Attacks on a server whose models are loaded by requests: 300 small models, memory for 40. `make attacks` runs them
with the others."""

import itertools
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import attack_models
from attacking import (
    LOAD,
    MB,
    ROW,
    asked_in_turn,
    attackers,
    bystander,
    connection,
    counted,
    ending,
    latencies,
    memory_of,
    raw_call,
    repeating,
    suffered,
    unattacked,
)
from clients import metric
from onnx_bytes import scale
from repository_on_disk import write_model
from tritonclient.utils import InferenceServerException

MODELS, ROOM = 300, 40
#: Bytes that one of these models is estimated to take, and a little more.
ONE = (1 << 20) + 4096
#: The model of the client that is not attacked.
POPULAR = "popular"
FLAGS = ("--model-control-mode=on-demand", "--load-timeout-secs=10")
LASTS_S = 10


def name(number):
    return f"scale{number:03}"


def serve(given, *flags, room=ROOM):
    folder = given.empty()
    for number in range(MODELS):
        write_model(folder, name(number), scale(number + 1))
    write_model(folder, POPULAR, scale(1))
    return given.serve(folder, *FLAGS, f"--memory-budget-bytes={room * ONE}", *flags)


def rotating(server, models, clients):
    """A client that asks for one of these models after the other. Each client begins with another model."""

    def client(number):
        place = number * len(models) // clients
        with connection(server) as connected:
            while True:
                yield ending(connected, models[place % len(models)], ROW, 30)
                place += 1

    return client


def all_in_a_row(given):
    """Eight connections ask for all 300 models in a row, next to a client that uses one."""
    with serve(given) as server, memory_of(server) as grown:
        yield "others, without the attack", unattacked(server, POPULAR)
        attack = rotating(server, [name(number) for number in range(MODELS)], 8)
        with bystander(server, POPULAR) as times, attackers(8, attack) as codes:
            time.sleep(LASTS_S)
        yield "others", suffered(times)
        loads = metric(server, "paternoster_on_demand_loads_total")
        yield "the attack", f"{counted(codes)}; {loads:.0f} loads, {grown():.0f} MB more resident at the peak"


def kept_alive(given):
    """A client keeps as many models in use as there is memory for, next to one that uses another model and one that asks
    for models that are not loaded."""
    with serve(given) as server:
        with connection(server) as client:
            ending(client, POPULAR, ROW)
        waits = []

        def newcomer(_):
            asked = rotating(server, [name(number) for number in range(MODELS // 2, MODELS)], 1)(0)
            while True:
                began = time.monotonic()
                yield next(asked)
                waits.append(time.monotonic() - began)

        attack = rotating(server, [name(number) for number in range(ROOM - 1)], 4)
        with attackers(1, newcomer) as codes, bystander(server, POPULAR) as times, attackers(4, attack) as held:
            time.sleep(LASTS_S)
        yield "others", suffered(times)
        yield "the attack", counted(held)
        yield "requests for models not loaded", f"{counted(codes)}, longest {max(waits):.1f} s"


def largest_uploads(given):
    """Twenty uploads of the largest models that may be sent, next to a client that uses one model."""
    with serve(given, "--max-sent-model-bytes=100000000") as server, memory_of(server) as grown:
        with bystander(server, POPULAR) as times, ThreadPoolExecutor(4) as clients:
            upload = lambda at: raw_call(server, LOAD, attack_models.load_request(f"m{at}", attack_models.weighty(18, at)), 60)  # noqa: E731
            codes = Counter(clients.map(upload, range(20)))
        yield "others", suffered(times)
        used, limit = (metric(server, f"paternoster_models_memory_bytes{part}") for part in ("", "_limit"))
        yield "the uploads", f"{counted(codes)}; {grown():.0f} MB more resident at the peak"
        yield "memory of models", f"{used / MB:.0f} of {limit / MB:.0f} MB"


def abandoned_requests(given):
    """A client asks for any of 300 models, twenty at a time, and leaves after 20 ms, next to three that use fifteen."""
    models = [name(number) for number in range(MODELS)]

    def others(server):
        with ThreadPoolExecutor(3) as clients:
            asked = clients.map(lambda seed: asked_in_turn(server, models[:15], seed, LASTS_S), range(3))
            return [taken for times in asked for taken in times]

    def leaving(number):
        draw = random.Random(number)
        with connection(server) as client:
            while True:
                calls = [client.async_infer(draw.choice(models), ROW, lambda result, error: None) for _ in range(20)]
                time.sleep(0.02)
                for call in calls:
                    call.cancel()
                    yield "left"

    with serve(given) as server, memory_of(server) as grown:
        yield "others, without the attack", latencies(others(server))
        with attackers(1, leaving) as codes:
            times = others(server)
        yield "others", latencies(times)
        loads = metric(server, "paternoster_on_demand_loads_total")
        yield "the attack", f"{counted(codes)}; {loads:.0f} loads, {grown():.0f} MB more resident at the peak"


def one_busy_model(given):
    """Three clients use one model without a pause, next to one that uses another, where one has room. Without the attack,
    the first model is used ten times a second, so that the second is loaded as often."""

    def now_and_then(number):
        for code in busy(number):
            yield code
            time.sleep(0.1)

    with serve(given, room=1) as server, memory_of(server) as grown:
        busy = repeating(server, name(1), ROW)
        with bystander(server, name(0)) as times, attackers(1, now_and_then):
            time.sleep(LASTS_S)
        yield "others, without the attack", suffered(times)
        with bystander(server, name(0)) as times, attackers(3, busy) as codes:
            time.sleep(LASTS_S)
        yield "others", suffered(times)
        loads = metric(server, "paternoster_on_demand_loads_total")
        yield "the attack", f"{counted(codes)}; {loads:.0f} loads, {grown():.0f} MB more resident at the peak"


def without_a_key(given):
    """Eight clients without a key ask for the metadata and the configuration of all 300 models, next to a client that has
    it."""
    groups = "inference,model-repository"

    def client(number):
        with connection(server) as connected:
            for place in itertools.count(number):
                ask = (connected.get_model_metadata, connected.get_model_config)[place % 2]
                try:
                    ask(name(place % MODELS))
                    yield "answered"
                except InferenceServerException as refusal:
                    yield refusal.status().removeprefix("StatusCode.")

    with serve(given, f"--http-restricted-api={groups}:key=secret", f"--grpc-restricted-protocol={groups}:key=secret") as server:
        key = {"triton-grpc-protocol-key": "secret"}
        yield "others, without the attack", unattacked(server, POPULAR, headers=key)
        with memory_of(server) as grown, bystander(server, POPULAR, headers=key) as times, attackers(8, client) as codes:
            time.sleep(LASTS_S)
        yield "others", suffered(times)
        loads = metric(server, "paternoster_on_demand_loads_total")
        yield "the attack", f"{counted(codes)}; {loads:.0f} loads, {grown():.0f} MB more resident at the peak"


ATTACKS = (all_in_a_row, kept_alive, largest_uploads, abandoned_requests, one_busy_model, without_a_key)
