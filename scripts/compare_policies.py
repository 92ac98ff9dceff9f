"""`auto` compared with the best `window` of a sweep, for the example models at three loads and at the peak: tables of
docs/benchmarks/cpu.md.

    python scripts/compare_policies.py [--only minilm,…] [--rounds 7] [--seconds 2]

Each model is profiled first, because `auto` chooses by its profile. Then one `paternoster bench` sweeps `window` over
maximum batches, delays and length buckets at each load, and measures the best against `auto` in alternating rounds.
Another keeps 64 requests in flight. Commands are printed as they can be typed. The convolutional networks and BERT are
a quarter as wide as published.
"""

import argparse
import tempfile
from collections import namedtuple
from pathlib import Path

import fetch
from comparing import called, rounded, shown, titled, write_table
from server import ROOT, binary

#: A measurement: the model, the workload of lengths where they vary, and by how much a round is longer than those of
#: the others.
Case = namedtuple("Case", "model workload longer", defaults=[None, 1])

CASES = {
    "minilm, glue-short": Case("minilm", "glue-short"),
    "minilm, glue-pair": Case("minilm", "glue-pair"),
    "resnet50": Case("resnet50"),
    "vgg19": Case("vgg19"),
    "unet": Case("unet", longer=4),
    "mobilenet": Case("mobilenet"),
    "bert-base, glue-short": Case("bert-base", "glue-short"),
    "linknet": Case("linknet", longer=3),
}
QUARTER_WIDE = ("bert-base", "mobilenet", "resnet50", "vgg19", "unet", "linknet")
LOADS = "0.25,0.6,0.9"
#: The batch size n of the T(n) in the table.
TOGETHER = 8
#: Policies compared with `auto` when requests always wait: padding to the longest that waits, and to buckets.
WINDOWS = ("window, max_batch_size: 32", "window: { bucket_width: 10 }, max_batch_size: 32")
IN_FLIGHT = 64
TABLE = ROOT / "benches" / "tables" / "cpu-policies.csv"
PEAKS = ROOT / "benches" / "tables" / "cpu-peaks.csv"


def write_models(program, folder):
    """Writes the models of all cases into one repository."""
    models = {case.model for case in CASES.values()}
    called(program, "models", "--out", folder, "--only", ",".join(sorted(models & set(QUARTER_WIDE))), "--quarter")
    rest = ",".join(sorted(models - set(QUARTER_WIDE)))
    called(program, "models", "--out", folder, "--only", rest, "--minilm", fetch.minilm())


def times_ms(report):
    """Returns T(1) and T(n)/n of a profile's whole model, at the middle length."""
    found = report["findings"]
    return found["alone_ns"] / 1e6, found["together_row_ns"] / 1e6


def compare(program, models, profiles, name, case, given):
    """Returns the table's rows for one case."""
    common = ["--model-repository", models, "--model", case.model, "--profile-directory", profiles, "--json"]
    report = called(program, "profile", *common, "--budget-s", 20)
    alone_ms, together_ms = times_ms(report)
    if case.workload:
        common += ["--workload", case.workload]
    words = ["--policy", "auto", "--load", LOADS, "--follow-peak", "--sweep-window", "--sweep-seconds", case.longer]
    words += ["--rounds", given.rounds, "--warm-up-seconds", 0.3, "--seconds", given.seconds * case.longer]
    rows = []
    for load in called(program, "bench", *common, *words)["loads"]:
        window, auto = load["policies"]
        mean, p99 = auto["to_the_first"]["mean"], auto["to_the_first"]["p99"]
        row = {
            "case": name,
            "t1_ms": alone_ms,
            "t8_8_ms": together_ms,
            "auto": f"{report['choice']['stages']} x {report['choice']['policy']}",
            "load": load["load"],
            "at": load["at"],
            "window": window["policy"].removesuffix(" (best)"),
            "window_mean_ms": window["total"]["mean_ms"],
            "window_p99_ms": window["total"]["p99_ms"],
            "auto_mean_ms": auto["total"]["mean_ms"],
            "auto_p99_ms": auto["total"]["p99_ms"],
            "mean_ratio": mean["median"],
            "mean_least": mean["least"],
            "mean_greatest": mean["greatest"],
            "p99_ratio": p99["median"],
        }
        rows.append(rounded(row))
    return rows, peaks(program, name, common, bool(case.workload))


def peaks(program, name, common, lengths_vary):
    """Returns the rows of one case in the table of peaks."""
    words = [*common, "--concurrency", IN_FLIGHT, "--rounds", 3, "--warm-up-seconds", 1, "--seconds", 4]
    for policy in (*WINDOWS[: 1 + lengths_vary], "auto"):
        words += ["--policy", policy]
    (load,) = called(program, "bench", *words)["loads"]
    rows = []
    for one in load["policies"]:
        ratio = one["to_the_first"]["requests_per_s"]
        row = {"case": name, "policy": one["policy"], "requests_per_s": one["total"]["requests_per_s"]}
        row |= {"mean_ms": one["total"]["mean_ms"], "p99_ms": one["total"]["p99_ms"]}
        row |= {"ratio": ratio["median"], "least": ratio["least"], "greatest": ratio["greatest"]}
        rows.append(rounded(row))
    return rows


def show(rows):
    titled("model", "T(1)", "T(8)/8", "load", "best window", "mean, p99", "auto: mean, p99", "mean, auto / window", "p99")
    for row in rows:
        cells = [row["case"], f"{row['t1_ms']} ms", f"{row['t8_8_ms']} ms", row["load"], f"`{row['window']}`"]
        cells += [f"{row[f'{who}_mean_ms']}, {row[f'{who}_p99_ms']} ms" for who in ("window", "auto")]
        shown(*cells, f"{row['mean_ratio']} ({row['mean_least']}–{row['mean_greatest']})", row["p99_ratio"])


def show_peaks(rows):
    titled("model", f"policy, {IN_FLIGHT} in flight", "requests/s", "mean, p99", "requests/s to the first")
    for row in rows:
        cells = [row["case"], f"`{row['policy']}`", row["requests_per_s"], f"{row['mean_ms']}, {row['p99_ms']} ms"]
        shown(*cells, f"{row['ratio']} ({row['least']}–{row['greatest']})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="names of cases, or their beginnings, separated by semicolons")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--binary", default=binary(), help="the server's binary")
    given = parser.parse_args()
    rows, peak_rows = [], []
    with tempfile.TemporaryDirectory() as scratch:
        models, profiles = Path(scratch) / "models", Path(scratch) / "profiles"
        write_models(given.binary, models)
        for name, case in CASES.items():
            if not name.startswith(tuple(given.only.split(";"))):
                continue
            of_loads, of_peaks = compare(given.binary, models, profiles, name, case, given)
            rows += of_loads
            peak_rows += of_peaks
            write_table(TABLE, rows)
            write_table(PEAKS, peak_rows)
    show(rows)
    show_peaks(peak_rows)


if __name__ == "__main__":
    main()
