"""What the simulator says beside what is measured on this machine, for the same recorded arrivals and lengths: a table of
docs/benchmarks/cpu.md.

    python scripts/compare_simulated.py [--rounds 3] [--seconds 10]

Of each model a profile, and in each round for each load a trace that `paternoster bench` plays on the model, and `paternoster simulate` on
the profile, twice: with what a quiet run of its own told of the device beforehand (scatter, idle lanes, and what a request spends
outside of tasks), and with the device as fast at each moment as it was in the measured run. Of the rounds the medians count. One lane
each: lanes that share cores are slower than the simulator's.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
from compare_policies import CASES, called, write_models
from server import binary

LOADS = (0.25, 0.6, 0.9)
#: Of each case: the policies, and what the simulator is to take for them. `auto` knows the profile's times from the start, as a simulated
#: policy does.
COMPARED = {
    "minilm, glue-short": {"window": "window", "auto": "diversity: { input: true, operator: true }"},
    "resnet50": {"window": "window", "auto": "diversity: { operator: true }"},
}
#: glue-short of docs/benchmarks/README.md.
LENGTHS = {"mu": 2.4, "sigma": 0.6, "least": 3, "most": 128}
WARM_UP_S = 2
#: The run that tells how the device behaves.
QUIET_LOAD = 0.25
FIGURES = ("mean_ms", "p99_ms")
ONE_LANE = ["--cpu-lanes", 1]


class Pair:
    """A model that is measured, and the profile that is simulated in its place."""

    def __init__(self, program, scratch, case, seconds):
        self.program, self.seconds = program, seconds
        self.trace, self.quiet, self.timeline = (scratch / name for name in ("trace.csv", "quiet.json", "timeline.json"))
        model, profiles = ["--model", case.model, "--json"], scratch / case.model
        self.served = ["--model-repository", scratch / "models", "--profile-directory", profiles, *model]
        called(program, "profile", *self.served, "--budget-s", 30, *ONE_LANE)
        (table,) = profiles.glob("*.json")
        self.table = ["--table", table, "--seeds", 1, *model]
        self.peak = called(program, "simulate", *self.table, "--load", 0.5, "--policy", "window")["peak"]
        requests, _ = self.write_trace(QUIET_LOAD * self.peak, seed=0)
        measured = self.measure("window", self.quiet)
        self.front_us = max(0.0, measured["mean_ms"] * 1e3 - mean_in_core_us(self.quiet, requests))

    def write_trace(self, rate, seed):
        """Poisson arrivals and lengths; how many there are, and how many of them are the warm-up's."""
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(rng.exponential(1 / rate, int(rate * (WARM_UP_S + self.seconds))))
        lengths = np.exp(rng.normal(LENGTHS["mu"], LENGTHS["sigma"], len(arrivals)))
        lengths = np.clip(np.rint(lengths), LENGTHS["least"], LENGTHS["most"]).astype(int)
        # A model without lengths does not look at them.
        self.trace.write_text("".join(f"{at:.6f},{length}\n" for at, length in zip(arrivals, lengths)))
        return len(arrivals), int(np.sum(arrivals < WARM_UP_S))

    def measure(self, policy, timeline):
        words = ["--trace", self.trace, "--policy", policy, "--timeline-file", timeline]
        alone = [*ONE_LANE, "--rounds", 1, "--warm-up-seconds", WARM_UP_S]
        return called(self.program, "bench", *self.served, *words, *alone)["loads"][0]["policies"][0]["total"]

    def simulate(self, policy, counted, *device):
        requests, warm_up = counted
        words = ["--trace", self.trace, "--policy", policy, "--requests", requests, "--warm-up", warm_up]
        words += ["--front-us", round(self.front_us), *device]
        (run,) = called(self.program, "simulate", *self.table, *words)["runs"]
        return run

    def compare(self, rate, policy, simulated, seed):
        """What was measured, foretold and replayed for one trace."""
        counted = self.write_trace(rate, seed)
        measured = self.measure(policy, self.timeline)
        foretold = self.simulate(simulated, counted, "--recorded", self.quiet)
        return measured, foretold, self.simulate(simulated, counted, "--replay", self.timeline)


def mean_in_core_us(timeline, requests):
    """How long the last so many requests of a recorded timeline were in the core on average; those before were tried alone."""
    begun, ended = {}, {}
    for event in json.loads(timeline.read_text())["traceEvents"]:
        request = event.get("args", {}).get("request")
        if event["ph"] == "X" and request is not None:
            begun[request] = min(event["ts"], begun.get(request, event["ts"]))
            ended[request] = max(event["ts"] + event["dur"], ended.get(request, 0))
    last = sorted(begun, key=begun.get)[-requests:]
    return statistics.mean(ended[request] - begun[request] for request in last)


def compare(pair, name, rounds):
    figures = {}
    for number in range(rounds):
        for load in LOADS:
            for policy, simulated in COMPARED[name].items():
                found = pair.compare(load * pair.peak, policy, simulated, seed=round(100 * load) + number)
                figures.setdefault((load, policy), []).append(found)
    print(f"{name}: {pair.front_us:.0f} µs a request outside of the core")
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
    parser.add_argument("--only", default="", help="models, or their beginnings, with semicolons")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="measured time of each run")
    parser.add_argument("--binary", default=binary(), help="the program")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_models(given.binary, scratch / "models")
        for name in COMPARED:
            if name.startswith(tuple(given.only.split(";"))):
                compare(Pair(given.binary, scratch, CASES[name], given.seconds), name, given.rounds)


if __name__ == "__main__":
    main()
