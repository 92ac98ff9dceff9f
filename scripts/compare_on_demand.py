"""Three ways to serve 300 small models, with the same requests: loaded when requests need them, within memory for 40; all
loaded; and loaded and unloaded by a client, as one has to without the first.

    python scripts/compare_on_demand.py [--rounds 3] [--exponent 1.0] [--program PATH]

16 clients send 2,400 requests, one after the other each, to models whose popularity follows Zipf's law. Prints for each
way requests/s, the median and the 99th percentile of the time of a request (with the loads it waits for), loads, and
resident memory at the end. Rounds alternate, and each begins with a new server.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from server import Server, binary

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))

import numpy as np  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
from test_on_demand import CLIENTS, MODE, MODELS, ONE, REQUESTS, ROOM, ask, name, write_scales, zipf  # noqa: E402


class ByClients:
    """What clients have to do where models must be loaded by hand: they agree on which are loaded, and unload the least
    recently used that none of them uses."""

    def __init__(self):
        self.changed = threading.Condition()
        #: The loaded models, least recently used first, with their users; None while one is loaded or unloaded.
        self.users = OrderedDict()
        self.loads = 0

    def ask(self, client, model):
        self.begin(client, model)
        try:
            ask(client, model)
        finally:
            with self.changed:
                self.users[model] -= 1
                self.changed.notify_all()

    def begin(self, client, model):
        with self.changed:
            while True:
                if self.users.get(model, 0) is None:
                    self.changed.wait()
                elif model in self.users:
                    self.users[model] += 1
                    self.users.move_to_end(model)
                    return
                elif len(self.users) < ROOM:
                    leaving = None
                    break
                elif (leaving := next((one for one, users in self.users.items() if users == 0), None)) is not None:
                    break
                else:
                    self.changed.wait()
            if leaving is not None:
                del self.users[leaving]
            self.users[model] = None
            self.loads += 1
        if leaving is not None:
            client.unload_model(name(leaving))
        client.load_model(name(model))
        with self.changed:
            self.users[model] = 1
            self.changed.notify_all()


def play(server, trace, ask_for):
    """Sends the requests; returns requests/s and the seconds of each."""
    lock, remaining, taken = threading.Lock(), iter(trace), []

    def send(_):
        with triton.InferenceServerClient(server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as client:
            while True:
                with lock:
                    model = next(remaining, None)
                if model is None:
                    return
                began = time.monotonic()
                ask_for(client, model)
                taken.append(time.monotonic() - began)

    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(send, range(CLIENTS)))
    return len(trace) / (time.monotonic() - began), taken


def loads_on_demand(server):
    lines = server.get("/metrics", port="metrics")[1].decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("paternoster_on_demand_loads_total"))


def measure(way, folder, trace, program):
    flags = {
        "on demand": (MODE, f"--memory-budget-bytes={ROOM * ONE}"), "all loaded": (), "by clients": ("--model-control-mode=explicit",)
    }[way]  # fmt: skip
    by_clients = ByClients()
    with Server(folder, *flags, program=program) as server:
        rate, taken = play(server, trace, by_clients.ask if way == "by clients" else ask)
        loads = {"on demand": lambda: loads_on_demand(server), "all loaded": lambda: MODELS, "by clients": lambda: by_clients.loads}
        return rate, *np.percentile(taken, (50, 99)) * 1e3, loads[way](), server.memory_bytes() / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law")
    parser.add_argument("--program", type=Path, help="the server's binary; default: cargo's release build")
    given = parser.parse_args()
    program = given.program or binary()
    found = {way: [] for way in ("on demand", "all loaded", "by clients")}
    with tempfile.TemporaryDirectory() as folder:
        write_scales(Path(folder), MODELS)
        for round_ in range(given.rounds):
            trace = zipf(REQUESTS, seed=46 + round_, exponent=given.exponent)
            for way, rounds in found.items():
                rounds.append(measure(way, folder, trace, program))
    print(f"{MODELS} models, memory for {ROOM}, exponent {given.exponent:g}, {CLIENTS} clients; median of {given.rounds} rounds")
    print("| | requests/s | p50 ms | p99 ms | loads | resident MB |\n|---|---|---|---|---|---|")
    for way, rounds in found.items():
        rate, p50, p99, loads, memory = np.median(rounds, axis=0)
        print(f"| {way} | {rate:.0f} | {p50:.1f} | {p99:.0f} | {loads:.0f} | {memory:.0f} |")


if __name__ == "__main__":
    main()
