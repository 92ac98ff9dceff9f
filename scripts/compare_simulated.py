"""The simulator's predictions compared with measurements on this machine, for the same recorded arrivals and lengths: a
table of docs/benchmarks/cpu.md.

    python scripts/compare_simulated.py [--rounds 5] [--seconds 10]

Each model is profiled. In each round and for each load, a trace is played by `paternoster bench` on the model, and by
`paternoster simulate` on the profile, twice: once with the device's behaviour as measured in a quiet run beforehand
(scatter, idle lanes, and the time that a request spends outside of tasks), and once with a device that is as fast at
each moment as in the measured run. The table has the medians of the rounds. There is one lane each, because lanes that
share cores are slower than the simulator's.
"""

import argparse
import csv
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
from compare_policies import CASES, write_models
from comparing import called
from server import binary

LOADS = (0.25, 0.6, 0.9)
#: For each case: the policies, and the policy that the simulator runs for each. `auto` knows the profile's times from
#: the start, as a simulated policy does.
COMPARED = {
    "minilm, glue-short": {"window": "window", "auto": "auto"},
    "resnet50": {"window": "window", "auto": "auto"},
}
#: The workload glue-short of docs/measuring.md.
LENGTHS = {"mu": 2.4, "sigma": 0.6, "least": 3, "most": 128}
#: Load of the run that measures the device's behaviour, and the quantiles of the time that requests spend outside of
#: the core.
QUIET_LOAD = 0.25
PARTS = np.linspace(0, 1, 101)
FIGURES = ("mean_ms", "p99_ms")
ONE_LANE = ["--cpu-lanes", 1]


class Pair:
    """A model that is measured, and the profile that is simulated instead."""

    def __init__(self, program, scratch, case, seconds):
        self.program, self.seconds = program, seconds
        names = ("trace.csv", "quiet.json", "timeline.json", "requests.csv")
        self.trace, self.quiet, self.timeline, self.requests = (scratch / name for name in names)
        model, profiles = ["--model", case.model, "--json"], scratch / case.model
        self.served = ["--model-repository", scratch / "models", "--profile-directory", profiles, *model]
        called(program, "profile", *self.served, "--budget-s", 30, *ONE_LANE)
        (table,) = profiles.glob("*.json")
        self.table = ["--table", table, "--seeds", 1, *model]
        self.peak = called(program, "simulate", *self.table, "--load", 0.5, "--policy", "window")["peak"]
        self.write_trace(QUIET_LOAD * self.peak, seed=0)
        self.measure("window", self.quiet)
        self.front_us = np.quantile(outside_us(self.quiet, self.requests), PARTS)

    def write_trace(self, rate, seed):
        """Writes Poisson arrivals and lengths; returns how many there are."""
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(rng.exponential(1 / rate, int(rate * self.seconds)))
        lengths = np.exp(rng.normal(LENGTHS["mu"], LENGTHS["sigma"], len(arrivals)))
        lengths = np.clip(np.rint(lengths), LENGTHS["least"], LENGTHS["most"]).astype(int)
        # A model without lengths ignores them.
        self.trace.write_text("".join(f"{at:.6f},{length}\n" for at, length in zip(arrivals, lengths)))
        return len(arrivals)

    def measure(self, policy, timeline):
        words = ["--trace", self.trace, "--policy", policy, "--rounds", 1, *ONE_LANE]
        words += ["--timeline-file", timeline, "--requests-csv", self.requests]
        return called(self.program, "bench", *self.served, *words)["loads"][0]["policies"][0]["total"]

    def simulate(self, policy, requests, *device):
        words = ["--trace", self.trace, "--policy", policy, "--requests", requests, "--warm-up", 0]
        words += ["--front-us", ",".join(f"{us:.0f}" for us in self.front_us), *device]
        (run,) = called(self.program, "simulate", *self.table, *words)["runs"]
        return run

    def compare(self, rate, policy, simulated, seed):
        """Returns the measured, predicted and replayed figures of one trace."""
        requests = self.write_trace(rate, seed)
        measured = self.measure(policy, self.timeline)
        foretold = self.simulate(simulated, requests, "--recorded", self.quiet)
        return measured, foretold, self.simulate(simulated, requests, "--replay", self.timeline)


def outside_us(timeline, requests):
    """Returns the time that each request of a run spent outside of the core. The last requests of the timeline are
    those of the run, in the order in which they were sent; those before were answered alone."""
    with requests.open(newline="") as file:
        sent = sorted((float(row["sent_s"]), float(row["latency_us"])) for row in csv.DictReader(file))
    begun, ended = {}, {}
    for event in json.loads(timeline.read_text())["traceEvents"]:
        request = event.get("args", {}).get("request")
        if event["ph"] == "X" and request is not None:
            begun[request] = min(event["ts"], begun.get(request, event["ts"]))
            ended[request] = max(event["ts"] + event["dur"], ended.get(request, 0))
    last = sorted(begun, key=begun.get)[-len(sent) :]
    in_core = [ended[request] - begun[request] for request in last]
    return [max(0.0, latency - core) for (_, latency), core in zip(sent, in_core)]


def compare(pair, name, rounds):
    figures = {}
    for number in range(rounds):
        for load in LOADS:
            for policy, simulated in COMPARED[name].items():
                found = pair.compare(load * pair.peak, policy, simulated, seed=round(100 * load) + number)
                figures.setdefault((load, policy), []).append(found)
    mean, p99 = statistics.mean(pair.front_us), pair.front_us[-2]
    print(f"{name}: {mean:.0f} µs a request outside of the core, p99 {p99:.0f}")
    for (load, policy), found in figures.items():
        cells = []
        for figure in FIGURES:
            cells.append(f"{statistics.median(one[0][figure] for one in found):.3g}")
            for simulated in (1, 2):
                apart = [one[simulated][figure] / one[0][figure] - 1 for one in found]
                cells.append(f"{statistics.median(apart):+.0%} ({min(apart):+.0%} … {max(apart):+.0%})")
        print(f"| {name} | `{policy}` | {load} ({load * pair.peak:.0f}/s) | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="names of models, or their beginnings, separated by semicolons")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="measured time of each run")
    parser.add_argument("--binary", default=binary(), help="the server's binary")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_models(given.binary, scratch / "models")
        for name in COMPARED:
            if name.startswith(tuple(given.only.split(";"))):
                compare(Pair(given.binary, scratch, CASES[name], given.seconds), name, given.rounds)


if __name__ == "__main__":
    main()
