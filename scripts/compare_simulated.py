"""What the simulator says beside what is measured on this machine, for the same recorded arrivals and lengths: a table of
docs/benchmarks/cpu.md.

    python scripts/compare_simulated.py [--seconds 15]

Of each model: a profile, the peak of `window` in the simulator, and at three shares of it a trace that `paternoster bench` plays on the model
and `paternoster simulate` on the profile. One lane each: lanes that share cores are slower than the simulator's.
"""

import argparse
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


def write_trace(path, rate, seconds, seed):
    """Poisson arrivals, each with a length; a model without lengths does not look at it."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, int(rate * seconds)))
    lengths = np.exp(rng.normal(LENGTHS["mu"], LENGTHS["sigma"], len(arrivals)))
    lengths = np.clip(np.rint(lengths), LENGTHS["least"], LENGTHS["most"]).astype(int)
    path.write_text("".join(f"{at:.6f},{length}\n" for at, length in zip(arrivals, lengths)))
    return len(arrivals)


def compare(program, models, scratch, name, given):
    case = CASES[name]
    common = ["--model-repository", models, "--model", case.model, "--profile-directory", scratch / "profiles", "--json"]
    called(program, "profile", *common, "--budget-s", 30)
    (table,) = (scratch / "profiles").glob("*.json")
    on_table = ["--table", table, "--model", case.model, "--json", "--seeds", 1]
    peak = called(program, "simulate", *on_table, "--load", 0.5, "--policy", "window")["peak"]
    for load in LOADS:
        trace = scratch / "trace.csv"
        requests = write_trace(trace, load * peak, WARM_UP_S + given.seconds, seed=round(100 * load))
        for policy in COMPARED[name]:
            words = ["--trace", trace, "--policy", policy]
            measured = called(
                program, "bench", *common, *words, "--cpu-lanes", 1, "--rounds", 1, "--warm-up-seconds", WARM_UP_S
            )
            warm_up = round(load * peak * WARM_UP_S)
            simulated = called(program, "simulate", *on_table, *words, "--requests", requests, "--warm-up", warm_up)
            (there,), (here,) = measured["loads"][0]["policies"], simulated["runs"]
            figures = [(there["total"][key], here[key]) for key in ("mean_ms", "p99_ms")]
            cells = [f"{one:.3g} | {two:.3g} | {100 * (two / one - 1):+.0f} %" for one, two in figures]
            print(f"| {name} | `{policy}` | {load} ({load * peak:.0f}/s) | {' | '.join(cells)} |", flush=True)
    table.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=15, help="measured time of each run")
    parser.add_argument("--binary", default=binary(), help="the program")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_models(given.binary, scratch / "models")
        for name in COMPARED:
            compare(given.binary, scratch / "models", scratch, name, given)


if __name__ == "__main__":
    main()
