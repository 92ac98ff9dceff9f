"""Every policy on every model of the device tables, under loads of several heights and shapes, with and without an
objective, in virtual time: how far `auto` is behind the best of them. Started by `make policies`.

    python scripts/policies.py [--only titan-rtx/unet,h200/,…] [--requests 4000] [--binary target/release/paternoster]

The simulator is deterministic: another machine prints the same. Without --only, the table is written. Loops that are
unrolled into stages are left out, because `auto` runs such models as cells, which are in the tables too.
"""

import argparse
import csv
import itertools
import json
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

from server import ROOT, binary

TABLE = ROOT / "benches" / "tables" / "policies.csv"
CARDS = ROOT / "benches" / "tables" / "h200"

LOADS = (0.3, 0.6, 0.9)
ARRIVALS = ("poisson", "bursts")
#: The objective is this many times the time of a request alone.
TIMES_ALONE = 4
#: What a boundary between stages costs on a CPU at most, and a launch on a card at least.
BOUNDARY_US = 5
#: A model is cut for `auto` if the boundaries take at most this share of a request's time, as its profile would say.
CUT_COSTS = 0.02
#: How far `auto` may be behind: times the best mean and p99, and points of the best share in time.
BOUNDS = {"mean_ms": 1.03, "p99_ms": 1.03, "in_time": 1.0}

#: Policies over batches by name: how they are given, and whether batches are cut into stages.
OVER_BATCHES = {
    "serial": ("serial", False),
    "window": ("window", False),
    "adaptive": ("adaptive", False),
    "deferred": ("deferred", False),
    "lazy": ("lazy", True),
    "diversity": ("diversity", True),
    "diversity, operator": ("diversity: { operator: true }", True),
}
OF_CELLS = ("cellular", "lazy", "window", "auto")
OF_TREES = ("cellular", "lazy", "auto")

#: A model of a table: its kind (batches, cells or trees), its stages, and whether its requests differ in length.
Model = namedtuple("Model", "table name kind stages has_lengths", defaults=["batches", 4, False])

MODELS = [
    *(Model("npu", name) for name in ("resnet", "vggnet", "mobilenet")),
    Model("npu", "bert-base", has_lengths=True),
    *(Model("npu", name, "cells") for name in ("gnmt-cells", "transformer-cells", "las-cells")),
    *(Model("titan-rtx", name, has_lengths=True) for name in ("bert-base", "bert-large")),
    *(Model("titan-rtx", name) for name in ("resnet", "resnet101", "resnet152", "vgg19", "unet", "linknet")),
    *(Model("titan-rtx", name, "cells") for name in ("gnmt-cells", "transformer-cells")),
    Model("published", "resnet", stages=1),
    Model("published", "bert-base", stages=1, has_lengths=True),
    *(Model("published", name, stages=2) for name in ("unet", "linknet")),
    *(Model("v100", name, "cells") for name in ("lstm", "seq2seq")),
    Model("v100", "tree-lstm", "trees"),
    *(Model("h200", f"bert-base-{precision}", stages=2, has_lengths=True) for precision in ("ieee", "fp16")),
    *(
        Model("h200", f"{network}-{precision}")
        for network in ("linknet-128", "linknet-256", "resnet152", "unet-128", "unet-256", "vgg19")
        for precision in ("ieee", "fp16")
    ),
    *(Model("h200", f"{network}-bf16", "cells") for network in ("lstm", "seq2seq")),
    Model("h200", "tree-lstm-bf16", "trees"),
]

#: A case, with the figures of `auto` and, for each figure, the best policy and its figure.
Row = namedtuple(
    "Row",
    "table model arrivals load objective_ms mean_ms p99_ms in_time best_mean mean_of_best best_p99 p99_of_best best_in_time"
    " in_time_of_best",
)


def simulated(program, model, *words):
    """Returns the runs of the simulator."""
    table = CARDS / f"{model.name.rsplit('-', 1)[0]}.json" if model.table == "h200" else model.table
    command = [program, "simulate", "--table", table, "--model", model.name, "--boundary-us", BOUNDARY_US, "--json"]
    ran = subprocess.run([*map(str, command), *map(str, words)], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ran.stdout)["runs"]


def policies(model, is_cut):
    """Returns the policies of a model as arguments."""
    if model.kind != "batches":
        given = {name: name for name in (OF_TREES if model.kind == "trees" else OF_CELLS)}
    else:
        stages = {True: model.stages, False: 1}
        given = {name: f"{text}, stages: {stages[has_stages]}" for name, (text, has_stages) in OVER_BATCHES.items()}
        given["auto"] = f"auto, stages: {stages[is_cut]}"
    return [word for name, text in given.items() for word in ("--policy", f"{name}={text}")]


def cases(program, model, requests):
    """Runs all policies of a model under all loads; yields each case, and its runs by policy."""
    lone = "cellular" if model.kind in ("cells", "trees") else "window"
    (alone,) = simulated(program, model, "--load", 0.001, "--requests", 500, "--seeds", 1, "--policy", lone)
    objective_ms = float(f"{TIMES_ALONE * alone['mean_ms']:.3g}")
    boundaries_ms = (model.stages - 1) * BOUNDARY_US / 1e3
    pays = boundaries_ms <= CUT_COSTS * alone["mean_ms"] and not model.has_lengths
    load = ("--load", ",".join(map(str, LOADS)), "--requests", requests, "--seeds", 2)
    for arrivals, objective in itertools.product(ARRIVALS, (None, objective_ms)):
        given = [] if objective is None else ["--objective-ms", objective]
        words = ["--arrivals", arrivals, *load, *given, *policies(model, pays and objective is None)]
        runs = simulated(program, model, *words)
        for at in LOADS:
            yield (model.table, model.name, arrivals, at, objective), {
                run["policy"]: {**run, "in_time": None if objective is None else 100 * (1 - run["missed"])}
                for run in runs
                if run["load"] == at
            }


def row(case, runs):
    """Returns the row of a case."""
    auto, has_objective = runs["auto"], case[4] is not None
    best = []
    for figure, choose in (("mean_ms", min), ("p99_ms", min), ("in_time", max)):
        if (figure == "in_time") == has_objective:
            policy = choose(runs, key=lambda policy: runs[policy][figure])
            best += [policy, runs[policy][figure]]
        else:
            best += [None, None]
    return Row(*case, auto["mean_ms"], auto["p99_ms"], auto["in_time"], *best)


def behind(found):
    """Returns how far `auto` is behind where it is further than BOUNDS allow, in words."""
    words = []
    if found.best_mean:
        for name, own, policy, best in (
            ("mean", found.mean_ms, found.best_mean, found.mean_of_best),
            ("p99", found.p99_ms, found.best_p99, found.p99_of_best),
        ):
            if own > BOUNDS[f"{name}_ms"] * best:
                words.append(f"{name} {own / best:.3f} ({policy})")
    elif found.in_time_of_best - found.in_time > BOUNDS["in_time"]:
        words.append(f"{found.in_time_of_best - found.in_time:.1f} points ({found.best_in_time})")
    return ", ".join(words)


def short(value):
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="models as table/name, or their beginnings, separated by commas")
    parser.add_argument("--binary", type=Path, help="the simulator's binary")
    parser.add_argument("--requests", type=int, default=4_000, help="requests of each run")
    given = parser.parse_args()
    program = given.binary or binary()
    wanted = tuple(given.only.split(","))
    found = []
    for model in MODELS:
        if f"{model.table}/{model.name}".startswith(wanted):
            for case, runs in cases(program, model, given.requests):
                found.append(row(case, runs))
                words = behind(found[-1])
                if words:
                    label = " ".join(str(part) for part in case if part is not None)
                    print(f"{label}: {words}", flush=True)
    if not given.only:
        with TABLE.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Row._fields)
            writer.writerows(map(short, row) for row in found)
    print(f"{len(found)} cases, auto behind in {sum(bool(behind(row)) for row in found)}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
