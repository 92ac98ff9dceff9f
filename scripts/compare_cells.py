"""An LSTM by cells beside the same LSTM as one graph whose requests are padded to share a batch: tables of docs/benchmarks/cells.md.

    python scripts/compare_cells.py [--seconds 8] [--rounds 3] [--skip closed,open]

Closed loop over gRPC: 32 clients with the lengths `closed-22`, beside the bare step of the cell at batch 32, measured in the same run. Open loop in
process: Poisson arrivals at parts of the peak that cells reach, lengths `wmt15` and others, against `window` with length buckets of 1, 10
and 40. Both runs of a round follow one another. Commands are printed as they can be typed.
"""

import argparse
import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from compare_policies import called
from server import ROOT, Server, binary

sys.path.insert(0, str(ROOT / "tests" / "python"))
import cells_reference  # noqa: E402
import onnx_bytes as onnx  # noqa: E402

CLIENTS = 32
#: Of `closed-22`.
MEAN_LENGTH = 22
LOADS = (0.25, 0.5, 0.9)
WORKLOADS = ("wmt15", "wmt15-50", "fixed-24")
BUCKETS = (1, 10, 40)
BATCH = 64
#: Words that the model knows, of which 0 is padding to the whole graph.
WORDS = 2_000
TABLE = ROOT / "benches" / "tables" / "cpu-cells.csv"

PADDED_YAML = f"""max_batch_size: {BATCH}
inputs: [{{ name: tokens, dtype: INT64, dims: [-1], pad: {{ axis: length, value: 0 }} }}]
outputs: [{{ name: hidden, dtype: FP32, dims: [1024] }}]
batching: {{ policy: window }}
"""
STEP_YAML = f"""max_batch_size: {BATCH}
inputs:
  - {{ name: x, dtype: INT64, dims: [] }}
  - {{ name: h, dtype: FP32, dims: [1024] }}
  - {{ name: c, dtype: FP32, dims: [1024] }}
outputs: [{{ name: h_next, dtype: FP32, dims: [1024] }}, {{ name: c_next, dtype: FP32, dims: [1024] }}]
"""


def whole_graph(step):
    """The LSTM over [batch, length] tokens as ONNX's own operator, told each row's length: that of its tokens above 0."""
    weights = cells_reference.read_weights(str(step))
    hidden = weights["lstm.bias"].size // 4
    # The cell has the gates i, f, g, o side by side, the operator i, o, f, c above one another.
    order = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in (0, 3, 1, 2)])
    gates = weights["lstm.weight"][:, order].T
    bias = np.concatenate([weights["lstm.bias"][order], np.zeros(4 * hidden, np.float32)])
    nodes = [
        onnx.node("Gather", ["embedding", "tokens"], ["embedded"]),
        onnx.node("Transpose", ["embedded"], ["by_step"], perm=[1, 0, 2]),
        onnx.node("Greater", ["tokens", "none"], ["is_word"]),
        onnx.node("Cast", ["is_word"], ["words"], to=onnx.ELEMENT["INT32"]),
        onnx.node("ReduceSum", ["words", "second"], ["lengths"], keepdims=0),
        onnx.node("LSTM", ["by_step", "W", "R", "B", "lengths"], ["", "last"], hidden_size=hidden),
        onnx.node("Squeeze", ["last", "first"], ["hidden"]),
    ]
    constants = [
        onnx.constant("embedding", weights["embedding.weight"]),
        onnx.constant("W", gates[np.newaxis, :, :hidden]),
        onnx.constant("R", gates[np.newaxis, :, hidden:]),
        onnx.constant("B", bias[np.newaxis]),
        onnx.constant("none", np.int64(0)),
        onnx.constant("first", np.array([0])),
        onnx.constant("second", np.array([1])),
    ]
    inputs = [onnx.port("tokens", "INT64", ("batch", "length"))]
    return onnx.model(nodes, inputs, [onnx.port("hidden", "FP32", ("batch", hidden))], constants)


def write_models(program, folder):
    """The cells; the same as one graph; and the bare step as a model."""
    called(program, "models", "--out", folder, "--only", "lstm")
    step = folder / "lstm" / "1" / "step.onnx"
    for name, yaml, graph in (("lstm-padded", PADDED_YAML, whole_graph(step)), ("step", STEP_YAML, step.read_bytes())):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "model.yaml").write_text(yaml)
        (folder / name / "1" / "model.onnx").write_bytes(graph)


def bare_step_ms(program, models, scratch):
    """Medians of the step at batch 1, 8 and 32."""
    # A directory of its own: what is kept in another is not measured again.
    place = ["--model-repository", models, "--model", "step", "--profile-directory", tempfile.mkdtemp(dir=scratch)]
    report = called(program, "profile", *place, "--budget-s", 10, "--json")
    (stage,) = report["profile"]["cuts"][0]["stages"]
    return {point["rows"]: point["median_ns"] / 1e6 for point in stage}


def measured(program, *words):
    """The figures of one run."""
    words = [*words, "--integers-below", WORDS, "--rounds", 1, "--json"]
    return called(program, "bench", *words)["loads"][0]["policies"][0]["total"]


def closed(program, models, scratch, given):
    found = []
    for _ in range(given.rounds):
        step_ms = bare_step_ms(program, models, scratch)
        runs = {}
        with Server(models, program=program) as server:
            for model in ("lstm", "lstm-padded"):
                words = ["--url", server.grpc, "--model", model, "--workload", "closed-22", "--concurrency", CLIENTS]
                runs[model] = measured(program, *words, "--seconds", given.seconds)
        limit = CLIENTS / (MEAN_LENGTH * step_ms[CLIENTS] / 1e3)
        found.append((step_ms, runs, runs["lstm"]["requests_per_s"] / limit))
    print("\n| t1, t8/8, t32/32 | cells: requests/s, p50 | of 32 / (22 t32) | one padded graph | cells / padded |")
    print("|---|---|---|---|---|")
    for step_ms, runs, share in found:
        cells, padded = runs["lstm"], runs["lstm-padded"]
        steps = f"{step_ms[1]:.2f}, {step_ms[8] / 8:.3f}, {step_ms[32] / 32:.3f} ms"
        ratio = cells["requests_per_s"] / padded["requests_per_s"]
        figures = [f"{run['requests_per_s']:.0f}, {run['p50_ms']:.1f} ms" for run in (cells, padded)]
        print(f"| {steps} | {figures[0]} | {share:.2f} | {figures[1]} | {ratio:.2f} |", flush=True)


def opened(program, models, given):
    """Peaks, and latencies at parts of that of cells; the table grows row by row."""
    rows = []

    def took(workload, load, name, run):
        figures = {key: f"{run[key]:.4g}" for key in ("requests_per_s", "p50_ms", "p90_ms", "p99_ms")}
        rows.append({"workload": workload, "load": load, "policy": name} | figures)
        print("| " + " | ".join(str(value) for value in rows[-1].values()) + " |", flush=True)
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    place = ["--model-repository", models, "--cpu-lanes", 1, "--seconds", given.seconds]
    for workload in given.workloads.split(","):
        full = [*place, "--workload", workload, "--concurrency", 2 * BATCH]
        peaks = {"cells": measured(program, "--model", "lstm", *full)}
        for width in BUCKETS:
            peaks[f"buckets of {width}"] = measured(program, "--model", "lstm-padded", *full, "--policy", window(width))
        for name, peak in peaks.items():
            took(workload, "always waiting", name, peak)
        for load in LOADS:
            rate = ["--workload", workload, "--rate", round(load * peaks["cells"]["requests_per_s"], 1)]
            took(workload, load, "cells", measured(program, "--model", "lstm", *place, *rate))
            for width in BUCKETS:
                padded = measured(program, "--model", "lstm-padded", *place, *rate, "--policy", window(width))
                took(workload, load, f"buckets of {width}", padded)


def window(width):
    return f"window, queueing: {{ bucket_width: {width} }}, max_batch_size: {BATCH}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="of the closed loop")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="lengths of the open loop")
    parser.add_argument("--skip", default="", help="closed or open")
    parser.add_argument("--binary", default=binary(), help="the program")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        models = scratch / "models"
        write_models(given.binary, models)
        if "closed" not in given.skip:
            closed(given.binary, models, scratch, given)
        if "open" not in given.skip:
            opened(given.binary, models, given)


if __name__ == "__main__":
    main()
