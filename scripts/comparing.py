"""Shared parts of the comparisons: runs of the program, servers measured side by side, tables, and facts about the
machine."""

import csv
import json
import os
import platform
import shlex
import statistics
import subprocess
from collections import namedtuple

#: The requests to servers: the model, the workload of lengths where they vary, and the numbers of requests in flight.
Case = namedtuple("Case", "model workload in_flight")
#: Columns that are kept of each round.
FIGURES = ("requests", "requests_per_s", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "wrong", "failed")
BARE = "bare loop, one lane"
#: The same loop while clients and a server's front end work on its cores.
BESIDE = "bare loop beside clients"


def called(program, *words):
    """Runs the program and returns its output, parsed if it is JSON. Prints the command as it can be typed, and the
    program's errors."""
    words = [str(word) for word in words]
    print(f"paternoster {shlex.join(words)}", flush=True)
    done = subprocess.run([program, *words], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout) if "--json" in words else done.stdout


def rounded(row):
    """Returns the row with numbers rounded to four digits."""
    return {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}


def write_table(path, rows):
    """Writes rows, which must have the same keys, as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def shown(*values):
    """Prints a row of a Markdown table."""
    print("| " + " | ".join(str(value) for value in values) + " |", flush=True)


def titled(*titles):
    """Prints the head of a Markdown table."""
    print()
    shown(*titles)
    shown(*("---" for _ in titles))


def machine_facts(program):
    """Returns lines that describe the machine that figures were measured on, and its load at the moment."""
    with open("/proc/cpuinfo") as file:
        facts = dict(line.split(":", 1) for line in file if ":" in line)
    named = {name.strip(): value.strip() for name, value in facts.items()}
    wide = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in named.get("flags", "").split()]
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        f"CPU: {named.get('model name', platform.machine())}, {len(os.sched_getaffinity(0))} cores, {' '.join(wide)}",
        f"memory: {memory_gib:.0f} GiB; kernel: {platform.system()} {platform.release()}",
        f"load average at the start: {' '.join(f'{load:.2f}' for load in os.getloadavg())}",
        *(line for line in called(program, "--version").splitlines() if line),
    ]


def timing_arguments(parser):
    """Adds the arguments that say how often and how long servers are measured side by side."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="measured time of each server in a round")
    parser.add_argument("--warm-up", type=float, default=2, help="seconds before that, which are not counted")
    parser.add_argument("--samples", type=int, default=128, help="different requests, each answered alone beforehand")


def bench_servers(program, servers, name, case, timing):
    """Sends the same requests to all servers, {name: address}, in alternating rounds. Returns a row for each round of
    each server."""
    return _bench(program, servers, name, case, timing, "--rounds", timing.rounds)[0]


def bench_round(program, servers, name, case, timing, number):
    """Does the same for one round, whose requests are its own. Every second round has the servers in the opposite
    order. Returns the rows, and the mean length of the requests, if they have lengths."""
    in_turn = list(servers.items())
    in_turn = dict(in_turn if number % 2 else reversed(in_turn))
    rows, mean_length = _bench(program, in_turn, name, case, timing, "--rounds", 1, "--seed", number)
    return [row | {"round": number} for row in rows], mean_length


def _bench(program, servers, name, case, timing, *more):
    words = [word for address in servers.values() for word in ("--url", address)]
    words += ["--model", case.model, *(["--workload", case.workload] if case.workload else [])]
    words += ["--concurrency", ",".join(map(str, case.in_flight)), "--samples", timing.samples, *more]
    report = called(program, "bench", *words, "--warm-up-seconds", timing.warm_up, "--seconds", timing.seconds, "--json")
    rows = []
    for load, in_flight in zip(report["loads"], case.in_flight):
        common = {"machine": report["machine"], "case": name, "in_flight": in_flight}
        for server, measured in zip(servers, load["policies"]):
            for number, figures in enumerate(measured["rounds"], 1):
                rows.append(rounded(common | {"server": server, "round": number} | {key: figures[key] for key in FIGURES}))
    return rows, report["mean_length"]


def bare_row(like, loop, rate):
    """Returns the row of a round of a loop without a server, at a rate in requests a second."""
    return rounded(like | {"server": loop} | dict.fromkeys(FIGURES, "") | {"requests_per_s": rate})


def medians(rows, figure):
    """Returns {(case, in flight, server): median over the rounds}."""
    groups = {}
    for row in rows:
        if row[figure] != "":
            groups.setdefault((row["case"], row["in_flight"], row["server"]), []).append(float(row[figure]))
    return {key: statistics.median(values) for key, values in groups.items()}


def ratios(rows, first):
    """Returns {(case, in flight, server): ratios}: in each round, the requests a second relative to the first server's
    in the same round."""
    rates = {(row["case"], row["in_flight"], row["server"], row["round"]): float(row["requests_per_s"]) for row in rows}
    found = {}
    for (case, in_flight, server, number), rate in rates.items():
        base = rates.get((case, in_flight, first, number))
        if server != first and base:
            found.setdefault((case, in_flight, server), []).append(rate / base)
    return found


def show_servers(rows, names):
    """Prints a table with a column for each server: medians of the rounds, and the median, least and greatest ratio to
    the first server, and to the bare loop if there is one. The loop beside clients has a column of ratios only."""
    rates, halves, slowest = (medians(rows, figure) for figure in ("requests_per_s", "p50_ms", "p99_ms"))
    compared = [(name, names[0]) for name in names[1:]]
    has_bare = any(row["server"] == BARE for row in rows)
    if has_bare:
        compared += [(name, BARE) for name in [*names, BESIDE]]
    found = {first: ratios(rows, first) for first in {first for _, first in compared}}
    titles = [f"{name}: requests/s; p50, p99" for name in names] + ([f"{BARE}: requests/s"] if has_bare else [])
    titled("requests", "in flight", *titles, *(f"{name} / {first}" for name, first in compared))
    for case, in_flight in dict.fromkeys((row["case"], row["in_flight"]) for row in rows):
        keys = [(case, in_flight, name) for name in names]
        cells = [f"{rates[key]:.4g}/s; {halves[key]:.3g}, {slowest[key]:.3g} ms" if key in rates else "-" for key in keys]
        bare = rates.get((case, in_flight, BARE))
        cells += [f"{bare:.4g}/s" if bare else "-"] if has_bare else []
        spans = (sorted(found[first].get((case, in_flight, name), ())) for name, first in compared)
        cells += [f"**{statistics.median(span):.2f}** ({span[0]:.2f}–{span[-1]:.2f})" if span else "-" for span in spans]
        shown(case, in_flight, *cells)
