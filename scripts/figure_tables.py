"""The tables of docs/benchmarks with simulated figures, generated from benches/tables by `figures.py`. A table is
between `<!-- table NAME -->` and `<!-- end -->`; the text around it is written by hand.
"""

import csv
import re

from server import ROOT

TABLES = ROOT / "benches" / "tables"
#: The functions that return tables, by name: lists of lines, each a list of cells.
WRITERS = {}
BETWEEN = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

LAZY = ("Serial", *(f"GraphB({ms})" for ms in (0, 1, 5, 25, 55, 95)), "LazyB", "equation 2", "Oracle")
NPU_MODELS = ("resnet", "gnmt", "transformer")
OBJECTIVES = (20, 40, 60, 80, 100)
DVA_MODELS = ("bert-base", "bert-large", "unet", "linknet", "vgg19", "resnet152")
DVA_POLICIES = ("ZeroBatch", "DelayBatch", "DVABatch")


def fill(pages):
    """Writes the tables of all pages."""
    for page in sorted(pages.glob("*.md")):
        text = page.read_text()
        written = lambda found: "\n".join([found[1].rstrip(), *lines(WRITERS[found[2]]()), found[3]])
        filled = BETWEEN.sub(written, text)
        if filled != text:
            page.write_text(filled)


def lines(rows):
    head, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *rest]


def table(name):
    def keep(writer):
        WRITERS[name] = writer
        return writer

    return keep


def rows_of(figure):
    with (TABLES / f"{figure}.csv").open() as file:
        return list(csv.DictReader(file))


def one(rows, column, **where):
    """Returns a figure of the only row with these values of columns, which are compared as numbers where possible; None
    if there is no such row."""
    for row in rows:
        if all(same(row[key], value) for key, value in where.items()):
            return float(row[column]) if row[column] else None
    return None


def same(cell, value):
    return cell == value if isinstance(value, str) else cell != "" and abs(float(cell) - value) < 1e-3


def of(value, digits=3):
    """Formats a number with `digits` significant digits, but never fewer than its integer part has."""
    if value is None:
        return "–"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    text = f"{value:.{max(digits - whole, 0)}f}" if whole else f"{value:.{digits - 1}f}"
    return f"{int(text):,}" if whole > 3 else text


def percent(value):
    """Formats a fraction in per cent, with one decimal below ten."""
    if value is None:
        return "–"
    return f"{100 * value:.1f}".removesuffix(".0") if value < 0.0995 else f"{100 * value:.0f}"


def change(value, base):
    return f"{100 * (value / base - 1):+.1f}".replace("-", "−") + " %"


# ## LazyBatching


@table("lazybatching-12")
def figure_12():
    rows = rows_of("lazybatching-12")
    rates = (16, 256, 1000)
    found = [["mean ms", *(cell for model in NPU_MODELS for cell in (f"{model}: 16/s", "256/s", "1000/s", "p99"))]]
    for policy in LAZY:
        cells = []
        for model in NPU_MODELS:
            cells += [of(one(rows, "mean_ms", run=model, policy=policy, rate=rate)) for rate in rates]
            cells.append(of(one(rows, "p99_ms", run=model, policy=policy, rate=1000)))
        found.append([policy, *cells])
    return found


@table("lazybatching-12-gain")
def gains():
    """Returns the ratios of the best window's mean latency to LazyB's: on average over the rates, the greatest and the
    least."""
    rows = rows_of("lazybatching-12")
    rates = (16, 64, 256, 500, 750, 1000)
    windows = (5, 25, 55, 95)
    against = {"5, 25, 55, 95 ms": windows, "these and 1 ms": (1, *windows), "these, 1 and 0 ms": (0, 1, *windows)}
    found = [["gain of LazyB in mean latency, against the best window of", *NPU_MODELS]]
    for title, delays in against.items():
        cells = []
        for model in NPU_MODELS:
            mean = lambda policy, rate: one(rows, "mean_ms", run=model, policy=policy, rate=rate)
            ratios = [min(mean(f"GraphB({ms})", rate) for ms in delays) / mean("LazyB", rate) for rate in rates]
            average = sum(ratios) / len(ratios)
            cells.append(f"{average:.2f} × ({max(ratios):.2f} to {min(ratios):.2f})")
        found.append([title, *cells])
    return found


@table("lazybatching-15")
def figure_15_lazy():
    rows = rows_of("lazybatching-15")
    found = [["missed at 20 / 40 / 60 / 80 / 100 ms, in %", *NPU_MODELS]]
    for policy in LAZY:
        missed = lambda model, ms: percent(one(rows, "missed", run=model, policy=policy, objective_ms=ms))
        found.append([policy, *(" / ".join(missed(model, ms) for ms in OBJECTIVES) for model in NPU_MODELS)])
    return found


@table("lazybatching-16")
def figure_16():
    rows = rows_of("lazybatching-16")
    models = ("vggnet", "mobilenet", "las", "bert-base")
    found = [["mean ms", *(cell for model in models for cell in (f"{model}: 16/s", "1000/s", "missed"))]]
    for policy in ("Serial", "GraphB(0)", "GraphB(95)", "LazyB", "Oracle"):
        cells = []
        for model in models:
            figure = lambda column, rate, ms: one(rows, column, run=model, policy=policy, rate=rate, objective_ms=ms)
            cells += [of(figure("mean_ms", rate, 100)) for rate in (16, 1000)]
            missed = [figure("missed", 1000, ms) for ms in OBJECTIVES]
            cells.append(percent(sum(missed) / len(missed)) + " %")
        found.append([policy, *cells])
    return found


@table("lazybatching-17")
def figure_17_lazy():
    rows = rows_of("lazybatching-17")
    asked = [(model, 400) for model in NPU_MODELS] + [("transformer", 100)]
    head = [f"{model}{', 100 ms' if ms == 100 else ''}: 0.1" for model, ms in asked]
    found = [["mean in ms, missed at 400 ms in %", *(cell for title in head for cell in (title, "0.5", "0.9"))]]
    for policy in LAZY:
        cells = []
        for model, ms in asked:
            for load in (0.1, 0.5, 0.9):
                figure = lambda column: one(rows, column, run=model, policy=policy, objective_ms=ms, load=load)
                cells.append(f"{of(figure('mean_ms'))}, {percent(figure('missed'))}")
        found.append([policy, *cells])
    return found


@table("lazybatching-dec-timesteps")
def dec_timesteps():
    rows = rows_of("lazybatching-dec-timesteps")
    found = [["missed at 20 / 40 / 60 / 80 / 100 ms, in % (mean in ms at 60)", "10 steps", "32 steps"]]
    for policy in ("LazyB", "equation 2", "Oracle"):
        cells = []
        for run in ("10 steps", "32 steps"):
            figure = lambda column, ms: one(rows, column, run=run, policy=policy, objective_ms=ms)
            missed = [percent(figure("missed", ms)) for ms in OBJECTIVES]
            cells.append(f"{' / '.join(missed)} ({of(figure('mean_ms', 60))})")
        found.append([policy, *cells])
    return found


@table("lazybatching-co-located")
def co_located():
    rows = [row for row in rows_of("lazybatching-co-located") if row["model"] == "all"]
    rates = (16, 64, 256, 400, 500)
    found = [["mean in ms over all models", *(f"{rate}/s" for rate in rates), "completed at 500/s"]]
    for policy in LAZY:
        means = [of(one(rows, "mean_ms", policy=policy, rate=rate)) for rate in rates]
        found.append([policy, *means, f"{of(one(rows, 'throughput', policy=policy, rate=500))}/s"])
    return found


# ## DVABatch


@table("dvabatch-14")
def figure_14():
    rows = rows_of("dvabatch-14")
    titles = (cell for load in ("1/4", "3/5", "9/10") for cell in (f"mean at {load}", "p99"))
    found = [[f"{' / '.join(DVA_POLICIES)}, ms", *titles]]
    for model in DVA_MODELS:
        cells = []
        for load in (0.25, 0.6, 0.9):
            for column in ("mean_ms", "p99_ms"):
                figure = lambda policy: of(one(rows, column, run=model, policy=policy, load=load))
                cells.append(" / ".join(map(figure, DVA_POLICIES)))
        found.append([model, *cells])
    return found


@table("dvabatch-14-means")
def over_six_models():
    rows = rows_of("dvabatch-14")
    paper = {
        ("ZeroBatch", "mean_ms"): "−16.1 / −39.0 / −57.7 %",
        ("ZeroBatch", "p99_ms"): "−16.9 / −27.4 / −53.7 %",
        ("DelayBatch", "mean_ms"): "−35.4 / −47.3 / −48.5 %",
        ("DelayBatch", "p99_ms"): "−45.2 / −45.1 / −29.2 %",
    }
    found = [["mean over six models, low / medium / high", "paper: mean", "found", "paper: p99", "found"]]
    for base in ("ZeroBatch", "DelayBatch"):
        cells = []
        for column in ("mean_ms", "p99_ms"):
            changes = []
            for load in (0.25, 0.6, 0.9):
                figure = lambda model, policy: one(rows, column, run=model, policy=policy, load=load)
                ratios = [figure(model, "DVABatch") / figure(model, base) for model in DVA_MODELS]
                changes.append(change(sum(ratios) / len(ratios), 1).removesuffix(" %"))
            cells += [paper[base, column], " / ".join(changes) + " %"]
        found.append([f"against {base}", *cells])
    return found


@table("dvabatch-delay")
def delays():
    rows = rows_of("dvabatch-delay")
    policies = {"none": "ZeroBatch", **{f"{ms} ms": f"DelayBatch({ms} ms)" for ms in (1, 5, 20, 50, 100)}}
    found = [["highest load with a mean within 200 ms", *policies]]
    for model in DVA_MODELS:
        load = lambda policy: one(rows, "load", run=model, policy=policy)
        found.append([model, *("–" if load(policy) is None else f"{load(policy):.2f}" for policy in policies.values())])
    return found


@table("dvabatch-15")
def figure_15():
    rows = rows_of("dvabatch-15")
    paper = {"bert-base": "1.47 ×", "bert-large": "1.37 ×"}
    found = [["requests/s", "DelayBatch", "DVABatch", "", "paper"]]
    for model in DVA_MODELS:
        steps = [one(rows, "highest_step", run=model, policy=policy) for policy in ("DelayBatch", "DVABatch")]
        ratio = f"{steps[1] / steps[0]:.2f} ×" if all(steps) else "–"
        found.append([model, *(of(step) for step in steps), ratio, paper.get(model, "1 ×")])
    return found


@table("dvabatch-17")
def figure_17():
    rows = rows_of("dvabatch-17")
    found = [["requests/s", "DelayBatch", "DVABatch", ""]]
    for model in ("bert-base", "bert-large"):
        for workload in ("glue-short", "glue-pair", "wmt15"):
            policies = ("DelayBatch", "DVABatch")
            rates = [one(rows, "rate", run=f"{model}, {workload}, {policy}") for policy in policies]
            found.append([f"{model}, `{workload}`", *(of(rate) for rate in rates), f"{rates[1] / rates[0]:.1f} ×"])
    return found


@table("dvabatch-18")
def figure_18():
    rows = rows_of("dvabatch-18")
    titles = (title for model in ("unet", "linknet") for title in (f"{model}: 0.25", "0.6", "0.9"))
    found = [["mean / p99 in ms", *titles, "mean at 0.9, against ZeroBatch"]]
    for policy in dict.fromkeys(row["policy"] for row in rows):
        cells = []
        for model in ("unet", "linknet"):
            for load in (0.25, 0.6, 0.9):
                figure = lambda column: of(one(rows, column, run=model, policy=policy, load=load))
                cells.append(f"{figure('mean_ms')} / {figure('p99_ms')}")
        mean = lambda model, policy: one(rows, "mean_ms", run=model, policy=policy, load=0.9)
        cells.append(", ".join(change(mean(model, policy), mean(model, "ZeroBatch")) for model in ("unet", "linknet")))
        found.append([policy, *cells])
    return found


@table("dvabatch-19")
def figure_19():
    rows = rows_of("dvabatch-19")
    pairs = [f"{count} pairs" for count in (1, 2, 3, 4)]
    found = [["mean in ms at 9/10 of the peak, two lanes", *pairs]]
    for model in ("bert-base", "linknet", "resnet152"):
        found.append([model, *(of(one(rows, "mean_ms", run=f"{model}, 2 lanes", policy=count)) for count in pairs)])
    return found


@table("dvabatch-20")
def figure_20():
    means, peaks = rows_of("dvabatch-20"), rows_of("dvabatch-20-peaks")
    cuts = [f"{count} stages" for count in (1, 2, 4, 8, 12)]
    found = [["peak, mean", *cuts]]
    for model in ("bert-base", "linknet", "resnet152"):
        for us in (5, 290):
            run = f"{model}, {us} us"
            figure = lambda rows, column, count: of(one(rows, column, run=run, policy=count))
            both = (f"{figure(peaks, 'rate', cut)}, {figure(means, 'mean_ms', cut)}" for cut in cuts)
            found.append([f"{model}, {us} µs", *both])
    return found


# ## Adaptive batching


@table("adaptive-2")
def adaptive_2():
    rows = rows_of("adaptive-2")
    models = ("bert-base", "vgg19", "resnet", "resnet101")
    found = [["", *(cell for model in models for cell in (f"{model}: mean ms", "batch", "requests/J"))]]
    for policy in ("max batch", "ad hoc", "adaptive", "algorithm 1"):
        columns = [(model, column) for model in models for column in ("mean_ms", "batch", "requests_per_joule")]
        found.append([policy, *(of(one(rows, column, run=model, policy=policy)) for model, column in columns)])
    found.append(["paper: adaptive", "45.8", "", "0.46 to 0.97", "6.1", "", "", "7.3", "", "", "9.7", "", ""])
    return found


# ## BatchMaker


def over_rates(figure, named, rates, column="p90_ms", more=()):
    """Returns a line for each run and policy: a figure at each rate, others in brackets, and the maximum completed a
    second."""
    rows = rows_of(figure)
    found = []
    for title, run, policy in named:
        of_line = [row for row in rows if row["run"] == run and row["policy"] == policy]
        cells = []
        for rate in rates:
            figures = [of(one(of_line, name, rate=rate)) for name in (column, *more)]
            cells.append(f"{figures[0]} ({' / '.join(figures[1:])})" if more else figures[0])
        most = max(float(row["throughput"]) for row in of_line)
        found.append([title, *cells, of(most)])
    return found


def rate_titles(rates):
    return [f"{rate:,}/s" for rate in rates]


@table("batchmaker-7")
def figure_7():
    at_most = [f"at most {rows} rows" for rows in (512, 64)]
    named = [(f"{policy}, {run}", run, policy) for run in at_most for policy in ("BatchMaker", "Padding(10)")]
    rates = (500, 2000, 8000, 10_000, 16_000, 20_000, 24_000)
    head = ["p90 (p50 / p99), ms", *rate_titles(rates), "peak, requests/s"]
    return [head, *over_rates("batchmaker-7", named, rates, more=("p50_ms", "p99_ms"))]


@table("batchmaker-8")
def figure_8():
    rates = (500, 2000, 8000, 12_000, 16_000)
    named = [(f"Padding({width})", "bucket widths", f"Padding({width})") for width in (1, 5, 10, 20, 40)]
    return [["p90 in ms", *rate_titles(rates), "peak, requests/s"], *over_rates("batchmaker-8", named, rates)]


@table("batchmaker-9")
def figure_9():
    rows = rows_of("batchmaker-9")
    columns = [f"{part}_{quantile}_ms" for part in ("queued", "computing") for quantile in ("p50", "p90", "p99")]
    found = [["ms at 5,000/s", "queued: p50", "p90", "p99", "computing: p50", "p90", "p99"]]
    for policy in ("BatchMaker", "Padding(10)"):
        found.append([policy, *(of(one(rows, column, policy=policy)) for column in columns)])
    return found


@table("batchmaker-11")
def figure_11():
    rates = (1000, 8000, 16_000, 20_000, 24_000)
    found = [["p90 in ms", *rate_titles(rates), "peak, requests/s"]]
    for workload in ("fixed-24", "wmt15-50", "wmt15-100"):
        named = [(f"`{workload}`: {policy}", workload, policy) for policy in ("BatchMaker", "Padding(10)")]
        found += over_rates("batchmaker-11", named, rates)
    return found


@table("batchmaker-13")
def figure_13():
    rates = (500, 2000, 3500, 4000)
    policies = ("BatchMaker-512,256", "BatchMaker-256,256", "Padding(10)")
    named = lambda count: [(policy, f"{count} devices", policy) for policy in policies]
    columns = [over_rates("batchmaker-13", named(count), rates) for count in (1, 2, 4)]
    head = ["p90 in ms on one device", *rate_titles(rates), "peak, requests/s: 1 device", "2", "4"]
    return [head, *([*one, two[-1], four[-1]] for one, two, four in zip(*columns))]


@table("batchmaker-14")
def figures_14_and_15():
    rates = (500, 1000, 3000, 5000, 6000)
    found = [["p90 in ms", *rate_titles(rates), "peak, requests/s"]]
    for figure, workload in ((14, "trees"), (15, "trees-16")):
        named = [(f"`{workload}`: {policy}", workload, policy) for policy in ("BatchMaker", "frontier", "Merging")]
        found += over_rates(f"batchmaker-{figure}", named, rates)
    return found
