"""The papers' figures in docs/benchmarks: runs `paternoster simulate` for each (`figure_runs.py`), and keeps its plots
and tables, including those of the pages (`figure_tables.py`). Started by `make figures`.

    python scripts/figures.py [--only lazybatching-12,…] [--binary target/release/paternoster] [--list] [--check]

Each command is printed as it can be typed. The simulator is deterministic: another machine writes the same files.
`--check` writes none. It draws a part of the rows again and compares each cell with the kept tables, and those with the
pages; the exit code is 1 if any differs.
"""

import argparse
import csv
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import figure_pages  # noqa: F401, writes tables
import figure_tables
import headlines  # noqa: F401, writes a table
from figure_check import CHECKED, differences, narrowed
from figure_runs import PEAK_MS, PEAKS, RUNS
from server import ROOT, binary

DOCS = ROOT / "docs"


def peaks(name, rows):
    """Returns for each policy the highest load up to which the mean latency stays within PEAK_MS; None if it never
    does."""
    carried = {}
    for row in sorted(rows, key=lambda row: float(row["load"])):
        highest, is_over = carried.get(row["policy"], ({"load": "", "rate": ""}, False))
        if not is_over:
            is_within = float(row["mean_ms"]) <= PEAK_MS
            carried[row["policy"]] = (row if is_within else highest, not is_within)
    peak = lambda policy, row: {"run": name, "policy": policy, "load": row["load"], "rate": row["rate"]}
    return [peak(policy, row) for policy, (row, _) in carried.items()]


def short(value):
    """Formats a figure with five digits; leaves words unchanged."""
    try:
        return f"{float(value):.5g}"
    except ValueError:
        return value


def run(figure, name, of_run, program, plots=None):
    """Runs the simulator once and returns the rows of its table. Keeps the plots in a folder, if there is one."""
    with tempfile.TemporaryDirectory() as scratch:
        table, plot = Path(scratch) / "out.csv", Path(scratch) / "out.svg"
        words = ["simulate", *of_run.arguments]
        print(f"\n# {figure}: {name}\npaternoster {shlex.join(words)}", flush=True)
        words += ["--csv", table, *(["--svg", plot] if plots else []), *(["--json"] if of_run.more else [])]
        ran = subprocess.run([program, *words], check=True, stdout=subprocess.PIPE, text=True)
        if plots:
            plots.mkdir(exist_ok=True)
            for ending, kept in of_run.plots.items():
                shutil.copyfile(Path(scratch) / f"out-{ending}.svg", plots / f"{kept}.svg")
        with table.open() as file:
            rows = list(csv.DictReader(file))
    if of_run.more:
        for row, all_of_row in zip(rows, json.loads(ran.stdout)["runs"]):
            row.update({more: all_of_row[more] if all_of_row[more] is not None else "" for more in of_run.more})
    else:
        print(ran.stdout, end="")
    rows = [{"run": name, **{title: short(value) for title, value in row.items()}} for row in rows]
    return peaks(name, rows) if figure in PEAKS else rows


def keep(figure, rows):
    """Writes the table of a figure."""
    with figure_tables.path(figure).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def check(only, program):
    """Draws the checked rows of the chosen figures and compares them, and if none differs the pages; returns the exit
    code."""
    faults, drawn, tables = [], 0, set()
    for (figure, name), part in CHECKED.items():
        if figure.startswith(only):
            found = run(figure, name, narrowed(RUNS[figure, name], part), program)
            faults += differences(figure, found)
            drawn += len(found)
            tables.add(figure)
    # Pages are filled from the tables, so wrong tables are all that there is to say about them.
    faults = faults or list(figure_tables.stale(DOCS))
    print("\n" + "\n".join(faults))
    print(f"{drawn} rows of {len(tables)} tables drawn again, {len(faults)} differences")
    return 1 if faults or not drawn else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="names of figures, or their beginnings, separated by commas")
    parser.add_argument("--binary", type=Path, help="the simulator's binary")
    parser.add_argument("--tables", type=Path, default=figure_tables.TABLES, help="the folder of the kept tables")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--list", action="store_true", help="list the figures and run none")
    choice.add_argument("--check", action="store_true", help="draw a part of the tables again and compare their cells")
    given = parser.parse_args()
    figure_tables.TABLES = given.tables
    only = tuple(given.only.split(","))
    figures = [figure for figure in dict.fromkeys(figure for figure, _ in RUNS) if figure.startswith(only)]
    if given.list:
        print("\n".join(figures))
        return 0
    program = given.binary or binary()
    if given.check:
        return check(only, program)
    for figure in figures:
        plots = DOCS / "benchmarks" / figure.split("-")[0]
        runs = [(name, of_run) for (of_figure, name), of_run in RUNS.items() if of_figure == figure]
        keep(figure, [row for name, of_run in runs for row in run(figure, name, of_run, program, plots)])
    figure_tables.fill(DOCS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
