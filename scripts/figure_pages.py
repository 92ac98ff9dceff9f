"""The tables of docs/benchmarks/{lazybatching,dvabatch,adaptive,batchmaker}.md."""

from figure_tables import change, lower_means, of, one, peak, percent, rows_of, spread, table, times

#: The policies in the tables; the plots and benches/tables have more delays.
LAZY = ("Serial", *(f"GraphB({ms})" for ms in (0, 5, 95)), "LazyB", "equation 2", "Oracle")
NPU_MODELS = ("resnet", "gnmt", "transformer")
OBJECTIVES = (20, 60, 100)
DVA_MODELS = ("bert-base", "bert-large", "unet", "linknet", "vgg19", "resnet152")
DVA_BAND = ("DVABatch", "DVABatch, 50 us", "DVABatch, 290 us")
DVA_BUCKETED = ("buckets of 16", "buckets of 32", "grouped")


# ## LazyBatching


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
        named = [f"GraphB({ms})" for ms in delays]
        found.append([title, *(spread(lower_means(rows, model, named, rates)) for model in NPU_MODELS)])
    return found


@table("lazybatching-15")
def figure_15_lazy():
    rows = rows_of("lazybatching-15")
    found = [["missed at 20 / 60 / 100 ms, in %", *NPU_MODELS]]
    for policy in LAZY:
        missed = lambda model, ms: percent(one(rows, "missed", run=model, policy=policy, objective_ms=ms))
        found.append([policy, *(" / ".join(missed(model, ms) for ms in OBJECTIVES) for model in NPU_MODELS)])
    return found


CELL_MODELS = ("gnmt", "transformer", "las")
CELL_POLICIES = ("Serial", *(f"GraphB({ms})" for ms in (0, 5, 95)), "GraphB(0), grouped", "LazyB")


@table("lazybatching-cells")
def cells():
    rows = rows_of("lazybatching-cells")
    titles = ("16/s", "256/s", "1000/s", "p99", "peak/s")
    found = [["mean ms", *(f"{model}: {title}" for model in CELL_MODELS for title in titles)]]
    for policy in CELL_POLICIES:
        cells = []
        for model in CELL_MODELS:
            cells += [of(one(rows, "mean_ms", run=model, policy=policy, rate=rate)) for rate in (16, 256, 1000)]
            cells.append(of(one(rows, "p99_ms", run=model, policy=policy, rate=1000)))
            cells.append(of(peak(rows, run=model, policy=policy)))
        found.append([policy, *cells])
    return found


@table("lazybatching-cells-gain")
def gains_of_cells():
    """Returns what `gains` does, for decoders as cells, and the ratio of the peaks."""
    rows = rows_of("lazybatching-cells")
    against = {"5, 25, 55, 95 ms": (5, 25, 55, 95), "these and 0 ms": (0, 5, 25, 55, 95)}
    titles = (f"{model}: {what}" for model in CELL_MODELS for what in ("mean", "peak"))
    found = [["gain of LazyB, against the best window of", *titles]]
    for title, delays in against.items():
        windows = [f"GraphB({ms})" for ms in delays]
        cells = []
        for model in CELL_MODELS:
            ratios = lower_means(rows, model, windows, (16, 64, 256, 500, 750, 1000))
            cells.append(spread(ratios))
            best = max(peak(rows, run=model, policy=window) for window in windows)
            cells.append(times(peak(rows, run=model, policy="LazyB"), best))
        found.append([title, *cells])
    return found


# ## DVABatch


@table("dvabatch-14-band")
def boundaries_and_lanes():
    """Returns how much DVABatch's mean differs from that of ZeroBatch at each cost of a boundary, with one lane and two."""
    lanes = {"one lane": rows_of("dvabatch-14"), "two lanes": rows_of("dvabatch-14-lanes")}
    titles = (f"{title}: {load}" for title in lanes for load in ("1/4", "3/5", "9/10"))
    found = [["mean against ZeroBatch, with a boundary of 5 / 50 / 290 µs, in %", *titles]]
    for model in DVA_MODELS:
        cells = []
        for rows in lanes.values():
            for load in (0.25, 0.6, 0.9):
                mean = lambda policy: one(rows, "mean_ms", run=model, policy=policy, load=load)
                changes = (change(mean(policy), mean("ZeroBatch")).removesuffix(" %") for policy in DVA_BAND)
                cells.append(" / ".join(changes))
        found.append([model, *cells])
    return found


@table("dvabatch-15")
def figure_15():
    rows = rows_of("dvabatch-15")
    paper = {"bert-base": "1.47 ×", "bert-large": "1.37 ×"}
    titles = ("DelayBatch", "grouped", "DVABatch: 5 µs", "50 µs", "290 µs", "at 5 µs, against DelayBatch", "paper")
    found = [["requests/s", *titles]]
    for model in DVA_MODELS:
        step = lambda policy: one(rows, "highest_step", run=model, policy=policy)
        ratio = times(step("DVABatch"), step("DelayBatch"))
        steps = (of(step(policy)) for policy in ("DelayBatch", "grouped", *DVA_BAND))
        found.append([model, *steps, ratio, paper.get(model, "1 ×")])
    return found


@table("dvabatch-17")
def figure_17():
    rows = rows_of("dvabatch-17")
    head = ["requests/s", "DelayBatch", *DVA_BUCKETED, "DVABatch: 5 µs", "50 µs", "290 µs"]
    found = [[*head, *(f"at 5 µs, against {base}" for base in ("DelayBatch", "buckets of 16", "grouped"))]]
    for model in ("bert-base", "bert-large"):
        for workload in ("glue-short", "glue-pair", "wmt15"):
            of_workload = [row for row in rows if row["run"].startswith(f"{model}, {workload}, ")]
            rate = lambda policy: one(of_workload, "rate", policy=policy)
            rates = (of(rate(policy)) for policy in ("DelayBatch", *DVA_BUCKETED, *DVA_BAND))
            gains = (times(rate("DVABatch"), rate(base)) for base in ("DelayBatch", "buckets of 16", "grouped"))
            found.append([f"{model}, `{workload}`", *rates, *gains])
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


def over_rates(figure, named, rates):
    """Returns a line for each run and policy: the p90 at each rate, and the maximum completed a second."""
    rows = rows_of(figure)
    found = []
    for title, run, policy in named:
        of_line = [row for row in rows if row["run"] == run and row["policy"] == policy]
        most = max(float(row["throughput"]) for row in of_line)
        found.append([title, *(of(one(of_line, "p90_ms", rate=rate)) for rate in rates), of(most)])
    return found


def rate_titles(rates):
    return [f"{rate:,}/s" for rate in rates]


@table("batchmaker-7")
def figure_7():
    at_most = [f"at most {rows} rows" for rows in (512, 64)]
    named = [(f"{policy}, {run}", run, policy) for run in at_most for policy in ("BatchMaker", "Padding(10)")]
    rates = (500, 2000, 8000, 10_000, 16_000, 20_000, 24_000)
    return [["p90 in ms", *rate_titles(rates), "peak, requests/s"], *over_rates("batchmaker-7", named, rates)]


@table("batchmaker-chunks")
def chunks():
    rates = (500, 2000, 8000, 16_000, 20_000, 24_000)
    policies = ("BatchMaker", "single steps", "chunks", "Padding(10)")
    named = [(policy, "lstm-chunks", policy) for policy in policies]
    return [["p90 in ms", *rate_titles(rates), "peak, requests/s"], *over_rates("batchmaker-chunks", named, rates)]


@table("batchmaker-13")
def figure_13():
    rates = (500, 2000, 3500, 4000)
    policies = ("BatchMaker-512,256", "BatchMaker-256,256", "cellular-512,256", "Padding(10)")
    named = lambda count: [(policy, f"{count} devices", policy) for policy in policies]
    columns = [over_rates("batchmaker-13", named(count), rates) for count in (1, 2, 4)]
    head = ["p90 in ms on one device", *rate_titles(rates), "peak, requests/s: 1 device", "2", "4"]
    return [head, *([*one, two[-1], four[-1]] for one, two, four in zip(*columns))]


@table("batchmaker-14")
def figures_14_and_15():
    rates = (500, 1000, 3000, 5000, 6000)
    found = [["p90 in ms", *rate_titles(rates), "peak, requests/s"]]
    for figure, workload in ((14, "trees"), (15, "trees-16")):
        policies = ("BatchMaker", "frontier", "cellular", "Merging")
        named = [(f"`{workload}`: {policy}", workload, policy) for policy in policies]
        found += over_rates(f"batchmaker-{figure}", named, rates)
    return found
