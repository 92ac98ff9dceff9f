"""Every policy under many loads of every model table, beside a dynamic programme over what waits, in virtual time: which
policy is best where, and how far `auto` is behind. Started by `make policies`.

    python scripts/policies.py [--only titan-rtx/unet,…] [--binary target/release/paternoster] [--check]

The simulator is deterministic: another machine prints the same. `--check` runs the cases of CHECKED, writes nothing, and
exits with 1 where `auto` is further behind than BOUNDS allow.
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
#: Policies over batches by name: how they are given, and whether batches are cut into stages.
OVER_BATCHES = {
    "serial": ("serial", False),
    "window": ("window", False),
    "adaptive": ("adaptive", False),
    "deferred": ("deferred", False),
    "lazy": ("lazy", True),
    "diversity": ("diversity", True),
    "diversity, operator": ("diversity: { operator: true }", True),
    "auto": ("auto", False),
    "dynamic-programming": ("dynamic-programming", False),
}
#: The bound, which is no policy of the server.
PROGRAMME = "dynamic-programming"
#: Of an unrolled loop, whose stages stay as they are.
OVER_LOOPS = ("window", "adaptive", "lazy", "diversity", "auto")
OF_CELLS = ("cellular", "lazy", "window", "auto")
OF_TREES = ("cellular", "lazy", "auto")
STAGES = 4

#: A model of a table: what it is, and in how many stages it is cut.
Model = namedtuple("Model", "table name kind stages", defaults=["batches", STAGES])

MODELS = [
    *(Model("npu", name) for name in ("resnet", "vggnet", "mobilenet", "bert-base")),
    *(Model("npu", name, "loop") for name in ("gnmt", "transformer", "las")),
    *(Model("npu", name, "cells") for name in ("gnmt-cells", "transformer-cells", "las-cells")),
    *(Model("titan-rtx", name) for name in ("bert-base", "bert-large", "resnet", "resnet101", "resnet152")),
    *(Model("titan-rtx", name) for name in ("vgg19", "unet", "linknet")),
    *(Model("titan-rtx", name, "loop") for name in ("gnmt", "transformer")),
    *(Model("titan-rtx", name, "cells") for name in ("gnmt-cells", "transformer-cells")),
    *(Model("published", name, stages=1) for name in ("resnet", "bert-base")),
    *(Model("published", name, stages=2) for name in ("unet", "linknet")),
    *(Model("v100", name, "cells") for name in ("lstm", "seq2seq")),
    Model("v100", "tree-lstm", "trees"),
    *(Model("bert-base.json", f"bert-base-{precision}", stages=2) for precision in ("ieee", "fp16")),
    *(
        Model(f"{network}.json", f"{network}-{precision}")
        for network in ("linknet-128", "linknet-256", "resnet152", "unet-128", "unet-256", "vgg19")
        for precision in ("ieee", "fp16")
    ),
    *(Model(f"{network}.json", f"{network}-bf16", "cells") for network in ("lstm", "seq2seq")),
    Model("tree-lstm.json", "tree-lstm-bf16", "trees"),
]

#: A run of a policy: its case, the policy, and its figures.
Row = namedtuple("Row", "table model arrivals load objective_ms policy mean_ms p99_ms in_time batch")


def policies(model):
    """Returns the policies of a model as arguments."""
    if model.kind == "batches":
        given = {
            name: f"{text}, stages: {model.stages if is_staged else 1}"
            for name, (text, is_staged) in OVER_BATCHES.items()
        }
    else:
        names = {"loop": OVER_LOOPS, "cells": OF_CELLS, "trees": OF_TREES}[model.kind]
        given = {name: name for name in names}
    return [word for name, text in given.items() for word in ("--policy", f"{name}={text}")]


def simulated(program, model, *words):
    """Returns the runs of the simulator."""
    table = CARDS / model.table if model.table.endswith(".json") else model.table
    command = [program, "simulate", "--table", table, "--model", model.name, "--boundary-us", BOUNDARY_US, "--json"]
    ran = subprocess.run([*map(str, command), *map(str, words)], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ran.stdout)["runs"]


def alone_ms(program, model):
    """Returns the mean time of a request that runs alone."""
    lone = "cellular" if model.kind in ("cells", "trees") else "window"
    (run,) = simulated(program, model, "--load", 0.001, "--requests", 500, "--seeds", 1, "--policy", lone)
    return run["mean_ms"]


def rows(program, model, requests):
    """Runs all policies of a model under all loads; returns a row for each."""
    objective = float(f"{TIMES_ALONE * alone_ms(program, model):.3g}")
    found = []
    for arrivals, of_objective in itertools.product(ARRIVALS, ((), ("--objective-ms", objective))):
        words = ["--arrivals", arrivals, "--load", ",".join(map(str, LOADS)), "--requests", requests, "--seeds", 2]
        for run in simulated(program, model, *words, *of_objective, *policies(model)):
            in_time = 1 - run["missed"] if of_objective else None
            case = (model.table.removesuffix(".json"), model.name, arrivals, run["load"], run["objective_ms"])
            found.append(Row(*case, run["policy"], run["mean_ms"], run["p99_ms"], in_time, run["batch"]))
    return found


def verdicts(found):
    """Returns for each case how far `auto` is behind: (case, mean or None, p99 or None, points or None, oracle or
    None), each with the best policy's name."""
    of_case = lambda row: row[:5]
    for case, of in itertools.groupby(found, of_case):
        of = {row.policy: row for row in of}
        programme = of.pop(PROGRAMME, None)
        auto = of["auto"]
        if auto.objective_ms is None:
            mean, p99 = (min(of.values(), key=lambda row: getattr(row, name)) for name in ("mean_ms", "p99_ms"))
            yield case, {
                "mean": (auto.mean_ms / mean.mean_ms, mean.policy),
                "p99": (auto.p99_ms / p99.p99_ms, p99.policy),
                **({"programme": (auto.mean_ms / programme.mean_ms, PROGRAMME)} if programme else {}),
            }
        else:
            best = max(of.values(), key=lambda row: row.in_time)
            yield case, {"points": (100 * (best.in_time - auto.in_time), best.policy)}


#: How far `auto` may be behind: times the best policy's mean and p99, points of the best share in time, and times the
#: mean of the dynamic programme.
BOUNDS = {"mean": 1.03, "p99": 1.03, "points": 1.0, "programme": 1.10}
CHECKED = ("titan-rtx/bert-base", "h200/bert-base-fp16", "h200/unet-128-ieee", "published/unet")


def short(value):
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="models as table/name, or their beginnings, separated by commas")
    parser.add_argument("--binary", type=Path, help="the simulator's binary")
    parser.add_argument("--requests", type=int, default=10_000, help="requests of each run")
    parser.add_argument("--check", action="store_true", help="run a part and write nothing")
    parser.add_argument("--csv", type=Path, default=TABLE)
    given = parser.parse_args()
    program = given.binary or binary()
    only = CHECKED if given.check else tuple(given.only.split(","))
    label = lambda model: f"{'h200' if model.table.endswith('.json') else model.table}/{model.name}"
    found, behind = [], []
    for model in MODELS:
        if not label(model).startswith(only):
            continue
        of_model = rows(program, model, given.requests)
        found += of_model
        for case, verdict in verdicts(of_model):
            over = {name: far for name, far in verdict.items() if far[0] > BOUNDS[name]}
            if over:
                behind.append((case, over))
                words = ", ".join(f"{name} {far:.3f} ({policy})" for name, (far, policy) in over.items())
                print(f"{label(model)} {' '.join(map(str, case[2:]))}: {words}", flush=True)
    if not given.check and not given.only:
        with given.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Row._fields)
            writer.writerows(map(short, row) for row in found)
    cases = len({row[:5] for row in found})
    print(f"{cases} cases, auto behind in {len(behind)}")
    return 1 if given.check and behind or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
