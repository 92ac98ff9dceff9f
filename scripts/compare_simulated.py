"""What the simulator says beside what is measured on this machine, for the same recorded arrivals and lengths: a table of
docs/benchmarks/cpu.md.

    python scripts/compare_simulated.py [--rounds 3] [--seconds 10]

Of each model a profile, and in each round for each load a trace that `paternoster bench` plays on the model, and `paternoster simulate` on
the profile, with the timeline that the run recorded: the machine's speed changes from minute to minute. Of the rounds the medians count.
One lane each: lanes that share cores are slower than the simulator's.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
from compare_policies import CASES, called, write_models
from server import binary

LOADS = (0.25, 0.6, 0.9)
#: Of each model: the case that it is of, and the policies, as both commands take them.
COMPARED = {
    "minilm, glue-short": ("window", "diversity: { input: true, operator: true }"),
    "resnet50": ("window", "adaptive"),
}
#: glue-short of docs/benchmarks/README.md.
LENGTHS = {"mu": 2.4, "sigma": 0.6, "least": 3, "most": 128}
WARM_UP_S = 2
FIGURES = ("mean_ms", "p99_ms")


class Pair:
    """A model that is measured, and the profile that is simulated in its place."""

    def __init__(self, program, scratch, case, seconds):
        self.program, self.seconds = program, seconds
        self.trace, self.timeline = scratch / "trace.csv", scratch / "timeline.json"
        model, profiles = ["--model", case.model, "--json"], scratch / case.model
        self.served = ["--model-repository", scratch / "models", "--profile-directory", profiles, *model]
        called(program, "profile", *self.served, "--budget-s", 30)
        (table,) = profiles.glob("*.json")
        self.table = ["--table", table, "--seeds", 1, *model]

    def peak(self):
        return called(self.program, "simulate", *self.table, "--load", 0.5, "--policy", "window")["peak"]

    def compare(self, rate, policy, seed):
        """Mean and p99, each measured and simulated, for one trace of Poisson arrivals."""
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(rng.exponential(1 / rate, int(rate * (WARM_UP_S + self.seconds))))
        lengths = np.exp(rng.normal(LENGTHS["mu"], LENGTHS["sigma"], len(arrivals)))
        lengths = np.clip(np.rint(lengths), LENGTHS["least"], LENGTHS["most"]).astype(int)
        # A model without lengths does not look at them.
        self.trace.write_text("".join(f"{at:.6f},{length}\n" for at, length in zip(arrivals, lengths)))
        words = ["--trace", self.trace, "--policy", policy]
        # Few requests are tried beforehand, so that hardly any are in the recording.
        alone = ["--cpu-lanes", 1, "--rounds", 1, "--warm-up-seconds", WARM_UP_S, "--samples", 16]
        measured = called(self.program, "bench", *self.served, *words, *alone, "--timeline-file", self.timeline)
        words += ["--requests", len(arrivals), "--warm-up", int(np.sum(arrivals < WARM_UP_S))]
        simulated = called(self.program, "simulate", *self.table, *words, "--recorded", self.timeline)
        (there,), (here,) = measured["loads"][0]["policies"], simulated["runs"]
        return [(there["total"][key], here[key]) for key in FIGURES]


def compare(pair, name, rounds):
    figures, peak = {}, pair.peak()
    for number in range(rounds):
        for load in LOADS:
            for policy in COMPARED[name]:
                found = pair.compare(load * peak, policy, seed=round(100 * load) + number)
                figures.setdefault((load, policy), []).append(found)
    for (load, policy), found in figures.items():
        cells = []
        for figure in range(len(FIGURES)):
            measured, simulated = (statistics.median(one[figure][who] for one in found) for who in range(2))
            apart = [one[figure][1] / one[figure][0] - 1 for one in found]
            cells.append(f"{measured:.3g} | {simulated:.3g}")
            cells.append(f"{statistics.median(apart):+.0%} ({min(apart):+.0%} … {max(apart):+.0%})")
        print(f"| {name} | `{policy}` | {load} ({load * peak:.0f}/s) | {' | '.join(cells)} |", flush=True)


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
