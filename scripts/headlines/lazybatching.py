"""The headlines of LazyBatching."""

from figure_tables import average, of, one, peak, rows_of

from headlines.table import headline, ratios, reached


MODELS = ("resnet", "gnmt", "transformer")
OBJECTIVES = (20, 40, 60, 80, 100)
RATES = (16, 64, 256, 500, 750, 1000)
DELAYS = (5, 25, 55, 95)
WINDOWS = [f"GraphB({ms})" for ms in DELAYS]
DECODERS = ("gnmt", "transformer")


def of_lazy(model):
    """Returns the rows with a model as the server runs it: a decoder as cells."""
    return rows_of("lazybatching-cells" if model in DECODERS else "lazybatching-12")


def missed_of(model):
    """Returns the function from a policy and an objective to the share that misses it at 1,000/s."""
    rows = rows_of("lazybatching-cells-missed" if model in DECODERS else "lazybatching-15")
    return lambda policy, ms: one(rows, "missed", run=model, policy=policy, objective_ms=ms)


def mean_gains(model, windows=WINDOWS):
    rows = of_lazy(model)
    mean = lambda policy, rate: one(rows, "mean_ms", run=model, policy=policy, rate=rate)
    return [min(mean(window, rate) for window in windows) / mean("LazyB", rate) for rate in RATES]


@headline(
    "LazyBatching", "latency, throughput, objectives met against graph batching, over models and delays", "abstract",
    "15 / 1.5 / 5.5 ×", "the paper does not name its delays; 5 to 95 ms represent them. Objectives of 20 to 100 ms at "
    "1,000/s", "lazybatching-12,lazybatching-15,lazybatching-cells",
)  # fmt: skip
def lazy_overall():
    latency, throughput, met = [], [], []
    for model in MODELS:
        rows, missed = of_lazy(model), missed_of(model)
        mean = lambda policy, rate: one(rows, "mean_ms", run=model, policy=policy, rate=rate)
        latency += [mean(window, rate) / mean("LazyB", rate) for window in WINDOWS for rate in RATES]
        most = lambda policy: peak(rows, run=model, policy=policy)
        throughput += [most("LazyB") / most(window) for window in WINDOWS]
        share = lambda policy: average(1 - missed(policy, ms) for ms in OBJECTIVES)
        met.append(share("LazyB") / average(map(share, WINDOWS)))
    found = [average(each) for each in (latency, throughput, met)]
    return ratios(found), reached(*(ours / paper for ours, paper in zip(found, (15, 1.5, 5.5))))


@headline(
    "LazyBatching", "mean latency against the best window: ResNet, GNMT, Transformer", "§VI-A, fig. 12",
    "5.3 / 2.7 / 2.5 ×", "a window without delay, which the paper leaves out, is close to `lazy` for ResNet; decoders "
    "run as cells (unrolled stages: [1.2 and 2.2 ×](benchmarks/lazybatching.md))", "lazybatching-12,lazybatching-cells",
)  # fmt: skip
def lazy_latency():
    found = [average(mean_gains(model)) for model in MODELS]
    none = [average(mean_gains(model, ["GraphB(0)", *WINDOWS])) for model in MODELS]
    tests = [ours / paper for ours, paper in zip(found, (5.3, 2.7, 2.5))]
    return f"{ratios(found)}; with no delay among the windows {ratios(none)}", reached(*tests)


@headline(
    "LazyBatching", "throughput against the best window: the same", "§VI-A, fig. 13", "1.1 / 1.3 / 1.2 ×",
    "decoders: peaks, beyond the paper's rates, against padded graphs; ResNet: at 1,000/s every policy but Serial "
    "completes all", "lazybatching-12,lazybatching-cells",
)  # fmt: skip
def lazy_throughput():
    most = lambda model, policy: peak(of_lazy(model), run=model, policy=policy)
    found = [most(model, "LazyB") / max(most(model, window) for window in WINDOWS) for model in MODELS]
    return ratios(found), reached(*(ours / paper for ours, paper in zip(found, (1.1, 1.3, 1.2))))


@headline(
    "LazyBatching", "Transformer at 1,000/s: p99 against the best window", "§VI-A, fig. 14",
    "54 against 123 ms (2.3 ×)", "", "lazybatching-cells",
)  # fmt: skip
def lazy_p99():
    rows = of_lazy("transformer")
    p99 = lambda policy: one(rows, "p99_ms", run="transformer", policy=policy, rate=1000)
    ours, best = p99("LazyB"), min(map(p99, WINDOWS))
    return f"{of(ours)} against {of(best)} ms ({best / ours:.1f} ×)", reached(best / ours / (123 / 54))


@headline(
    "LazyBatching", "objective from which none is missed at 1,000/s: the same", "§VI-B, fig. 15", "20 / 40 / 60 ms",
    "decoders as cells, whose longest outputs are longer than their inputs",
    "lazybatching-15,lazybatching-cells-missed",
)  # fmt: skip
def lazy_missed():
    found = []
    for model in MODELS:
        missed = missed_of(model)
        met = [ms for ms in OBJECTIVES if not missed("LazyB", ms)]
        found.append(min(met, default=None))
    tests = [paper / ours if ours else 0 for ours, paper in zip(found, (20, 40, 60))]
    few = f"{100 * missed_of('gnmt')('LazyB', 40):.1f} % of GNMT's miss 40 ms"
    return f"{' / '.join(str(ours or 'none') for ours in found)} ms ({few})", reached(*tests)


@headline(
    "LazyBatching", "four more models: latency, throughput, objectives met", "§VI-C, fig. 16", "1.5 / 1.3 / 2.9 ×",
    "at 16 and 1,000/s, against a delay of 95 ms, which MobileNet's 0.24 ms make long; VGG16 is above the array's peak",
    "lazybatching-16",
)  # fmt: skip
def lazy_others():
    rows = rows_of("lazybatching-16")
    models = ("vggnet", "mobilenet", "las", "bert-base")
    at = lambda column, policy, model, rate, ms=100: one(
        rows, column, run=model, policy=policy, rate=rate, objective_ms=ms
    )
    gain = lambda base: average(
        at("mean_ms", base, model, rate) / at("mean_ms", "LazyB", model, rate)
        for model in models
        for rate in (16, 1000)
    )
    rate = average(
        at("throughput", "LazyB", model, 1000) / at("throughput", "GraphB(95)", model, 1000) for model in models
    )
    met = lambda policy: average(
        1 - at("missed", policy, model, 1000, ms) for model in models for ms in OBJECTIVES
    )
    found = (gain("GraphB(95)"), rate, met("LazyB") / met("GraphB(95)"))
    text = f"{found[0]:.0f} × ({gain('GraphB(0)'):.2f} × without delay) / {ratios(found[1:])}"
    return text, reached(*(ours / paper for ours, paper in zip(found, (1.5, 1.3, 2.9))))


@headline(
    "LazyBatching", "Transformer, 10 steps foreseen instead of 32: missed at 60 ms", "§VI-C", "36 % instead of 0",
    "`lazy` looks for a gain before it looks at the slack; even equation 2 has little to miss where 32 words take 4 ms",
    "lazybatching-dec-timesteps",
)  # fmt: skip
def lazy_steps():
    rows = rows_of("lazybatching-dec-timesteps")
    missed = lambda policy: one(rows, "missed", run="10 steps", policy=policy, objective_ms=60)
    ours, paper = missed("LazyB"), missed("equation 2")
    return f"{100 * ours:.1f} % (equation 2: {100 * paper:.1f} %)", "better" if ours < 0.36 else "yes"


@headline(
    "LazyBatching", "graph batching with at most 16 and 32 rows: latency and throughput", "§VI-C", "12 and 14 ×, 1.3 ×",
    "as for 64 rows: a window without delay completes as much", "lazybatching-max-batch",
)  # fmt: skip
def lazy_max_batch():
    latency, throughput = [], []
    for most in (16, 32):
        rows = rows_of("lazybatching-max-batch")
        at = lambda column, policy, model, rate: one(
            rows, column, run=f"{model}, {most} rows", policy=policy, rate=rate
        )
        slower = lambda window, *each: at("mean_ms", window, *each) / at("mean_ms", "LazyB", *each)
        more = lambda window, *each: at("throughput", "LazyB", *each) / at("throughput", window, *each)
        windows = [(window, model) for model in MODELS for window in WINDOWS]
        latency.append(average(slower(*each, rate) for each in windows for rate in RATES))
        throughput.append(average(more(*each, 1000) for each in windows))
    text = f"{latency[0]:.1f} and {latency[1]:.1f} ×, {throughput[0]:.2f} and {throughput[1]:.2f} ×"
    return text, reached(latency[0] / 12, latency[1] / 14, min(throughput) / 1.3)


@headline(
    "LazyBatching", "on a GPU: latency, objectives met", "§VI-C, fig. 17", "1.4 to 56 ×, 1.3 ×",
    "decoders as cells, at 4 to 512/s, where a window no longer carries GNMT; ResNet at 0.1 to 0.9 of a peak, where it "
    "gains nothing against a short delay. Objectives of 100 ms", "lazybatching-17",
)  # fmt: skip
def lazy_gpu():
    latency, met = [], []
    for model in MODELS:
        of_cells = model in DECODERS
        rows = rows_of("lazybatching-17-cells" if of_cells else "lazybatching-17")
        loads = {"rate": (4, 16, 64, 128, 256, 512)} if of_cells else {"load": (0.1, 0.25, 0.5, 0.75, 0.9)}
        ((by, values),) = loads.items()
        at = lambda column, policy, value, ms: one(
            rows, column, run=model, policy=policy, objective_ms=ms, **{by: value}
        )
        for value in values:
            latency += [at("mean_ms", window, value, 400) / at("mean_ms", "LazyB", value, 400) for window in WINDOWS]
            share = lambda policy: 1 - at("missed", policy, value, 100)
            met.append((share("LazyB"), average(map(share, WINDOWS))))
    ours, windows = (average(each) for each in zip(*met))
    text = f"{min(latency):.2f} to {max(latency):.0f} ×, {ours / windows:.2f} ×"
    return text, reached(min(latency) / 1.4, max(latency) / 56, ours / windows / 1.3)


@headline(
    "LazyBatching", "four models on one array: latency, throughput", "§VI-C", "2.4 / 1.8 ×",
    "on average over rates, against the best window; at these rates every policy but Serial completes all",
    "lazybatching-co-located",
)  # fmt: skip
def lazy_co_located():
    rows = rows_of("lazybatching-co-located")
    at = lambda column, policy, rate: one(rows, column, model="all", policy=policy, rate=rate)
    mean = average(
        min(at("mean_ms", window, rate) for window in WINDOWS) / at("mean_ms", "LazyB", rate)
        for rate in (16, 64, 256, 400, 500)
    )
    rate = at("throughput", "LazyB", 500) / max(at("throughput", window, 500) for window in WINDOWS)
    return ratios((mean, rate)), reached(mean / 2.4, rate / 1.8)
