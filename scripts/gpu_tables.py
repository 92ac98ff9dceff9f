"""Device tables for `paternoster simulate` (docs/simulator.md), from what was measured on a card: one file for each
network, with a model for each precision.

    paternoster simulate --table tables/unet-256.json --model unet-256-fp16 --policy diversity --policy window
"""

import json
import statistics

#: Models of cells: the cells of each with the networks of the timings, and what a request unfolds into.
CELLS = {
    "lstm": ({"step": "lstm, step"}, [{"chain": "step"}]),
    "seq2seq": (
        {"encoder": "seq2seq, encoder step", "decoder": "seq2seq, decoder step"},
        [{"chain": "encoder"}, {"decode": "decoder"}],
    ),
    "tree-lstm": (
        {"leaf": "tree-lstm, leaf", "node": "tree-lstm, node"},
        [{"tree": {"leaf": "leaf", "inner": "node"}}],
    ),
}


def staged_models(staged):
    """Returns {network: models} of networks in stages. The points of all lengths are in one model; its scatter is the
    mean of those of its lengths, and its largest batch was measured at all of them."""
    groups = {}
    for times in staged["times"]:
        groups.setdefault((times["network"], times["precision"]), []).append(times)
    models = {}
    for (network, precision), group in groups.items():
        stages = [
            [
                {"rows": point["rows"], "length": point["length"], "latency_us": point["median_ns"] / 1e3}
                for times in group
                for point in times["cut"]["stages"][stage]
            ]
            for stage in range(len(group[0]["cut"]["stages"]))
        ]
        scatters = [times["cut"]["scatter"] for times in group if times["cut"]["scatter"]]
        scatter = [statistics.fmean(quantiles) / 1e3 for quantiles in zip(*scatters)]
        largest = min(max(point["rows"] for point in times["cut"]["stages"][0]) for times in group)
        model = {"name": f"{network}-{precision}", "max_batch_rows": largest, "stages": stages, "scatter": scatter}
        models.setdefault(network, []).append(model)
    return models


def cell_models(steps):
    """Returns {network: models} of models of cells, from the times of their steps."""
    models = {}
    for network, (cells, unfold) in CELLS.items():
        for precision in dict.fromkeys(step["precision"] for step in steps):
            points = [
                [
                    {"rows": step["rows"], "latency_us": step["microseconds"]}
                    for step in steps
                    if (step["network"], step["precision"]) == (measured, precision)
                ]
                for measured in cells.values()
            ]
            if all(points):
                model = {"name": f"{network}-{precision}", "stages": points}
                model |= {"cells": [{"name": name} for name in cells], "unfold": unfold}
                models.setdefault(network, []).append(model)
    return models


def write(folder, card, staged, steps, watts=None):
    """Writes the tables of all networks into a folder; returns the names of the files. `watts` is the power of the idle
    and of the busy card, if it is known."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for network, models in {**staged_models(staged), **cell_models(steps)}.items():
        name = f"{network}.json"
        power = {"idle_watts": watts[0], "busy_watts": watts[1]} if watts else {}
        (folder / name).write_text(json.dumps({"name": card, **power, "models": models}, indent=1) + "\n")
        names.append(name)
    return names
