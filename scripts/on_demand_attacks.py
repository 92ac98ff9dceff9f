"""Attacks on a server whose models are loaded by requests: 300 small models, memory for 40. `make attacks` runs them
with the others."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import attack_models
import tritonclient.grpc as triton
from attacking import LOAD, MB, ROW, asked_in_turn, bystander, latencies, memory_of, raw_call, suffered
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


def ask(client, model, codes):
    try:
        client.infer(model, ROW, client_timeout=30)
        codes["answered"] += 1
    except InferenceServerException as refusal:
        codes[refusal.status().removeprefix("StatusCode.")] += 1


def counted(codes):
    return ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))


def while_asked(server, models, clients):
    """Clients ask for these models in rotation, each from another place on, until they are stopped; returns how their
    requests ended, and what another client saw."""
    codes, over = Counter(), threading.Event()

    def client(place):
        with triton.InferenceServerClient(server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as connected:
            while not over.is_set():
                ask(connected, models[place % len(models)], codes)
                place += 1

    threads = [threading.Thread(target=client, args=(at * len(models) // clients,)) for at in range(clients)]
    with bystander(server, POPULAR) as times:
        for thread in threads:
            thread.start()
        time.sleep(LASTS_S)
        over.set()
        for thread in threads:
            thread.join()
    return codes, times


def all_in_a_row(given):
    """Eight connections ask for all 300 models in a row, next to a client that uses one."""
    with serve(given) as server, memory_of(server) as grown:
        with bystander(server, POPULAR) as times:
            time.sleep(LASTS_S)
        yield "others, without the attack", suffered(times)
        codes, times = while_asked(server, [name(number) for number in range(MODELS)], 8)
        yield "others", suffered(times)
        loads = metric(server, "paternoster_on_demand_loads_total")
        yield "the attack", f"{counted(codes)}; {loads:.0f} loads, {grown():.0f} MB more resident at the peak"


def kept_alive(given):
    """A client keeps as many models in use as there is memory for, next to one that uses another model and one that asks
    for models that are not loaded."""
    with serve(given) as server:
        with triton.InferenceServerClient(server.grpc) as client:
            ask(client, POPULAR, Counter())
        stop, codes, waits = threading.Event(), Counter(), []

        def newcomer():
            number = MODELS // 2
            with triton.InferenceServerClient(server.grpc) as client:
                while not stop.is_set():
                    began = time.monotonic()
                    ask(client, name(number), codes)
                    waits.append(time.monotonic() - began)
                    number = (number + 1 - MODELS // 2) % (MODELS // 2) + MODELS // 2

        asking = threading.Thread(target=newcomer)
        asking.start()
        held, times = while_asked(server, [name(number) for number in range(ROOM - 1)], 4)
        stop.set()
        asking.join()
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

    def leave(server, over):
        draw, options = random.Random(9), [("grpc.use_local_subchannel_pool", 1)]
        with triton.InferenceServerClient(server.grpc, channel_args=options) as client:
            while not over.is_set():
                calls = [client.async_infer(draw.choice(models), ROW, lambda result, error: None) for _ in range(20)]
                time.sleep(0.02)
                for call in calls:
                    call.cancel()

    with serve(given) as server, memory_of(server) as grown:
        yield "others, without the attack", latencies(others(server))
        over = threading.Event()
        leaving = threading.Thread(target=leave, args=(server, over))
        leaving.start()
        times = others(server)
        over.set()
        leaving.join()
        yield "others", latencies(times)
        loads = metric(server, "paternoster_on_demand_loads_total")
        yield "the attack", f"{loads:.0f} loads, {grown():.0f} MB more resident at the peak"


def one_busy_model(given):
    """Three clients use one model without a pause, next to one that uses another, where one has room."""
    with serve(given, room=1) as server, memory_of(server) as grown:
        yield "others, without the attack", latencies(asked_in_turn(server, [name(0)], 0, LASTS_S))
        with ThreadPoolExecutor(4) as clients:
            busy = [clients.submit(asked_in_turn, server, [name(1)], seed, LASTS_S) for seed in range(3)]
            yield "others", latencies(asked_in_turn(server, [name(0)], 0, LASTS_S))
            yield "the busy model", latencies([taken for times in busy for taken in times.result()])
        loads = metric(server, "paternoster_on_demand_loads_total")
        yield "the attack", f"{loads:.0f} loads, {grown():.0f} MB more resident at the peak"


ATTACKS = (all_in_a_row, kept_alive, largest_uploads, abandoned_requests, one_busy_model)
