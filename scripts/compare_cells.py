"""Models of cells compared with the same models batched otherwise: tables and plots of docs/benchmarks/cells.md.

    python scripts/compare_cells.py [--parts projection,closed,wmt15,…] [--seconds 4] [--rounds 3]

- projection: the LSTM whose cell computes all of a step, and the one whose inputs are multiplied beforehand
  (`lstm-projected`).
- closed: over gRPC, 32 clients with the lengths `closed-22`, compared with the LSTM as one padded graph, and with the
  bare step of the cell at batch 32, measured in the same run.
- wmt15, wmt15-50, wmt15-100, fixed-24: in process, Poisson arrivals at fractions of the cells' peak, compared with
  `window` with length buckets of 1, 10 and 40 (BatchMaker, figures 7 to 9 and 11).
- trees, trees-16: compared with merged graphs of 64 requests (figures 14 and 15); complete trees also with one graph
  written for their structure.
- seq2seq: translation with maximum batches of 512 and 256 in encoder and decoder, and of 256 in both, a quarter as
  wide; compared with one graph that reads and writes a padded batch, with length buckets of 10 (figure 13).

A run takes a second longer than `--seconds`, and some time for its expected answers. Lines take turns. Of a line's
`--rounds`, the one with the median p90 (always waiting: throughput) is kept, since machines stall now and then. All
parts take about an hour. Loads above a line's own peak are left out. Commands are printed as they can be typed.
"""

import argparse
import csv
import tempfile
import time
from collections import namedtuple
from pathlib import Path

from cells_models import BATCH, LEAVES, write_models
from comparing import called, shown, titled, write_table
from plots import write_lines
from server import ROOT, Server, binary

CLIENTS = 32
#: Mean length of `closed-22`.
MEAN_LENGTH = 22
LOADS = (0.25, 0.5, 0.75, 0.9)
#: Loads are measured up to this multiple of a line's own peak.
ABOVE_PEAK = 1.1
IN_FLIGHT = 2 * BATCH
#: Size of the models' vocabulary; token 0 is padding for the whole graph.
WORDS = 2_000
#: Number of different requests, each answered alone beforehand.
SAMPLES = 128
#: Events that a timeline keeps: those of some seconds, with a margin.
EVENTS = 2_000_000
TABLE = ROOT / "benches" / "tables" / "cpu-cells.csv"
PLOTS = ROOT / "docs" / "benchmarks" / "cells"
FIGURES = ("requests_per_s", "p50_ms", "p90_ms", "p99_ms")

#: One line of a plot: its name, its model, and further arguments.
Line = namedtuple("Line", "name model words", defaults=[()])
#: A part of open loops: the workload, its lines, the requests in flight at the peak, the loads, and the load and lines
#: of which timelines are drawn.
Part = namedtuple("Part", "workload lines in_flight loads recorded", defaults=[IN_FLIGHT, LOADS, None])


def buckets(width, model="lstm-padded"):
    policy = f"window, queueing: {{ bucket_width: {width} }}, max_batch_size: {BATCH}"
    return Line(f"buckets of {width}", model, ("--policy", policy))


CELLS = Line("cells", "lstm")
PROJECTED = Line("cells, projected", "lstm-projected")
TREES = (Line("cells", "tree-lstm"), Line("merged", "tree-lstm", ("--policy", "cellular: { merge_requests: 64 }")))
IDEAL = Line("one graph", f"tree-{LEAVES}", ("--policy", f"window, max_batch_size: {BATCH}"))
TRANSLATION = (Line("512, 256", "seq2seq"), Line("256, 256", "seq2seq-256"), buckets(10, "seq2seq-padded"))
LSTM = (CELLS, buckets(1), buckets(10), buckets(40))
OPEN = {
    "wmt15": Part("wmt15", (*LSTM, PROJECTED), recorded=(0.25, ("cells", "buckets of 10"))),
    "wmt15-50": Part("wmt15-50", LSTM),
    "wmt15-100": Part("wmt15-100", LSTM),
    # All lengths are the same, so all buckets are too.
    "fixed-24": Part("fixed-24", (CELLS, buckets(10))),
    "trees": Part("trees", TREES, recorded=(0.5, ("cells", "merged"))),
    "trees-16": Part("trees-16", (*TREES, IDEAL)),
    "seq2seq": Part("wmt15", TRANSLATION, in_flight=1_024, loads=(0.25, 0.5, 0.9)),
}


class Bench:
    """Runs `paternoster bench` with the models of a folder."""

    def __init__(self, program, models, given):
        self.program, self.models, self.given = program, models, given

    def run(self, line, workload, *words):
        """Returns the figures of a line, in process."""
        place = ["--model-repository", self.models, "--cpu-lanes", 1]
        return self.figures(line, *place, "--workload", workload, *line.words, *words)

    def figures(self, line, *words):
        common = ["--integers-below", WORDS, "--samples", SAMPLES, "--rounds", 1, "--warm-up-seconds", 1, "--json"]
        report = called(self.program, "bench", "--model", line.model, *words, *common, "--seconds", self.given.seconds)
        return report["loads"][0]["policies"][0]["total"]


def projection(bench, _):
    """Measures both forms of the cell in turn: with 32 requests always waiting, then at a quarter of the first form's
    throughput."""
    found = []
    for _ in range(bench.given.rounds):
        peaks = [bench.run(line, "closed-22", "--concurrency", CLIENTS) for line in (CELLS, PROJECTED)]
        rate = ["--rate", round(peaks[0]["requests_per_s"] / 4, 1)]
        lows = [bench.run(line, "wmt15", *rate) for line in (CELLS, PROJECTED)]
        found.append((peaks, lows))
    titled("32 waiting: cells, projected", "ratio", "low load: p50", "p90", "p99")
    for (one, other), lows in found:
        rates = f"{one['requests_per_s']:.0f}, {other['requests_per_s']:.0f}"
        latencies = (", ".join(f"{run[key]:.1f}" for run in lows) + " ms" for key in FIGURES[1:])
        shown(rates, f"{other['requests_per_s'] / one['requests_per_s']:.2f}", *latencies)


def bare_step_ms(bench, scratch):
    """Returns median times of the step at batch 1, 8 and 32."""
    # A new directory: a profile that is already stored would not be measured again.
    place = ["--model-repository", bench.models, "--model", "step", "--profile-directory", tempfile.mkdtemp(dir=scratch)]
    report = called(bench.program, "profile", *place, "--budget-s", 10, "--json")
    (stage,) = report["profile"]["cuts"][0]["stages"]
    return {point["rows"]: point["median_ns"] / 1e6 for point in stage}


def closed(bench, scratch):
    lines = (CELLS, PROJECTED, Line("one padded graph", "lstm-padded"))
    found = []
    for _ in range(bench.given.rounds):
        step_ms = bare_step_ms(bench, scratch)
        with Server(bench.models, program=bench.program) as server:
            words = ["--url", server.grpc, "--workload", "closed-22", "--concurrency", CLIENTS]
            runs = [bench.figures(line, *words) for line in lines]
        found.append((step_ms, runs))
    titled("t1, t8/8, t32/32", *(f"{line.name}: requests/s, p50" for line in lines), "cells of 32 / (22 t32)", "cells / padded")
    for step_ms, runs in found:
        steps = f"{step_ms[1]:.2f}, {step_ms[8] / 8:.3f}, {step_ms[32] / 32:.3f} ms"
        rates = [run["requests_per_s"] for run in runs]
        limit = CLIENTS / (MEAN_LENGTH * step_ms[CLIENTS] / 1e3)
        figures = [f"{run['requests_per_s']:.0f}, {run['p50_ms']:.1f} ms" for run in runs]
        shown(steps, *figures, f"{rates[0] / limit:.2f}", f"{rates[0] / rates[2]:.2f}")


def opened(bench, scratch, name, part):
    """Measures peaks, and latencies at fractions of the first line's peak. The table is rewritten after each row."""
    rows = []

    def took(load, line, runs, by):
        run = sorted(runs, key=lambda run: run[by])[len(runs) // 2]
        rows.append({"workload": name, "load": load, "policy": line.name} | {key: f"{run[key]:.4g}" for key in FIGURES})
        shown(*rows[-1].values())
        keep(name, rows)
        return run

    titled("workload", "load", "policy", *FIGURES)
    def in_turn(lines, *words):
        rounds = [[bench.run(line, part.workload, *words) for line in lines] for _ in range(bench.given.rounds)]
        return zip(lines, zip(*rounds))

    peaks = [took("always waiting", *found, "requests_per_s") for found in in_turn(part.lines, "--concurrency", part.in_flight)]
    first = peaks[0]["requests_per_s"]
    if first == 0:
        raise SystemExit("nothing was answered in time: give more --seconds")
    for load in part.loads:
        rate = round(load * first, 1)
        carried = [line for line, peak in zip(part.lines, peaks) if rate <= ABOVE_PEAK * peak["requests_per_s"]]
        for found in in_turn(carried, "--rate", rate):
            took(load, *found, "p90_ms")
    draw(name, rows)
    if part.recorded:
        load, lines = part.recorded
        record(bench, scratch, part, [line for line in part.lines if line.name in lines], round(load * first, 1))


def keep(name, rows):
    """Replaces a workload's rows in the table."""
    others = []
    if TABLE.exists():
        with TABLE.open() as file:
            others = [row for row in csv.DictReader(file) if row["workload"] != name]
    write_table(TABLE, others + rows)


def draw(name, rows):
    """Draws the p90 over the throughput, without the runs in which requests always wait."""
    lines = {}
    for row in rows:
        if row["load"] != "always waiting":
            lines.setdefault(row["policy"], []).append((float(row["requests_per_s"]), float(row["p90_ms"])))
    write_lines(PLOTS / f"{name}.svg", name, "requests/s", "p90 (ms)", lines)


def record(bench, scratch, part, lines, rate):
    """Draws queueing, computing and sizes of tasks at one rate."""
    files = [scratch / f"{line.name}.json" for line in lines]
    for line, file in zip(lines, files):
        bench.run(line, part.workload, "--rate", rate, "--timeline-file", file, "--timeline-events", EVENTS)
    beside = [word for file in files[1:] for word in ("--beside", file)]
    plots = ["--plots", PLOTS / part.workload, "--leave-out", SAMPLES]
    called(bench.program, "timeline", files[0], *beside, *plots)


def main():
    loops = {"projection": projection, "closed": closed}
    parts = [*loops, *OPEN]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(parts), help="comma-separated parts")
    parser.add_argument("--seconds", type=float, default=4, help="measured time of each run")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each figure")
    parser.add_argument("--binary", default=binary(), help="the server's binary")
    given = parser.parse_args()
    asked = given.parts.split(",")
    unknown = [name for name in asked if name not in parts]
    if unknown:
        parser.error(f"there is no part '{unknown[0]}'; there are {', '.join(parts)}")
    PLOTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        bench = Bench(given.binary, scratch / "models", given)
        write_models(given.binary, bench.models)
        for name in asked:
            began = time.monotonic()
            if name in loops:
                loops[name](bench, scratch)
            else:
                opened(bench, scratch, name, OPEN[name])
            print(f"\n{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
