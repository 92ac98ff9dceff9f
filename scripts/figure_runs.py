"""The runs of the simulator behind the papers' figures in docs/benchmarks. `figures.py` starts them."""

from collections import namedtuple

#: One run: its arguments, the plots to keep, by the simulator's name for them, and figures that only --json has.
Run = namedtuple("Run", "arguments plots more", defaults=[{}, ()])

#: Mean latency that a peak load must not exceed (DVABatch section 8.1).
PEAK_MS = 200


#: The papers' baselines pad whatever waits to its longest request. Without this, the queue groups lengths by what runs
#: take.
PADDED = ", queueing: { bucket_width: 0 }"


def graph_b(delay_ms, more=""):
    """Returns graph batching with a window (LazyBatching section VI)."""
    return f"GraphB({delay_ms})=window: {{ max_queue_delay_us: {delay_ms * 1000} }}{more}"


def options(**given):
    return [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def policies(*texts):
    return [word for text in texts for word in ("--policy", text)]


# ## LazyBatching

EQUATION_2 = "equation 2=lazy: { predictor: paper }"
WINDOWS = (graph_b(ms) for ms in (0, 1, 5, 25, 55, 95))
LAZY = policies("Serial=serial", *WINDOWS, "LazyB=lazy", EQUATION_2, "Oracle=oracle")
#: A graph that unrolls a decoder is padded to the longest input and output of a batch, which it answers at its end.
AS_CELLS = policies(
    "Serial=serial",
    *(graph_b(ms, PADDED) for ms in (0, 5, 25, 55, 95)),
    "GraphB(0), grouped=window",
    "LazyB=lazy",
    "cellular=cellular",
)
OBJECTIVES = "20,40,60,80,100"
DECODERS = ("gnmt", "transformer")
NPU_MODELS = ("resnet", *DECODERS)


def lazybatching():
    figures = {}
    for model in NPU_MODELS:
        over_rates = options(table="npu", model=model, rate="16,64,256,500,750,1000", objective_ms=100)
        figures["lazybatching-12", model] = Run(
            over_rates + options(requests=2000, seeds=5) + LAZY,
            {"mean": f"fig-12-{model}", "throughput": f"fig-13-{model}", "quantiles": f"fig-14-{model}"},
        )
        figures["lazybatching-15", model] = Run(
            options(table="npu", model=model, rate=1000, objective_ms=OBJECTIVES, requests=4000, seeds=2) + LAZY,
            {"missed": f"fig-15-{model}"},
        )
        for most in (16, 32):
            windows = (graph_b(ms, f", max_batch_size: {most}") for ms in (5, 25, 55, 95))
            figures["lazybatching-max-batch", f"{model}, {most} rows"] = Run(
                over_rates + options(requests=2000, seeds=2) + policies(*windows, "LazyB=lazy")
            )
    for model in ("vggnet", "mobilenet", "las", "bert-base"):
        figures["lazybatching-16", model] = Run(
            options(table="npu", model=model, rate="16,1000", objective_ms=OBJECTIVES, requests=4000, seeds=5)
            + policies("Serial=serial", graph_b(0, PADDED), graph_b(95, PADDED), "LazyB=lazy", "Oracle=oracle")
        )
    for model in (*DECODERS, "las"):
        of_model = options(table="npu", model=f"{model}-cells", workload="wmt19", requests=2000, seeds=5) + AS_CELLS
        rates = "16,64,256,500,750,1000,1500,2000,3000,4000,6000"
        figures["lazybatching-cells", model] = Run(
            of_model + options(rate=rates, objective_ms=100),
            {"mean": f"cells-mean-{model}", "throughput": f"cells-throughput-{model}"},
        )
        figures["lazybatching-cells-missed", model] = Run(
            of_model + options(rate=1000, objective_ms=OBJECTIVES), {"missed": f"cells-missed-{model}"}
        )
    for model in NPU_MODELS:
        figures["lazybatching-17", model] = Run(
            options(table="titan-rtx", model=model, load="0.1,0.25,0.5,0.75,0.9", objective_ms="100,400")
            + options(requests=4000, seeds=1)
            + LAZY,
            {"mean": f"fig-17-{model}"} if model == "transformer" else {},
        )
    for model in DECODERS:
        figures["lazybatching-17-cells", model] = Run(
            options(table="titan-rtx", model=f"{model}-cells", workload="wmt19", rate="4,16,64,128,256,512")
            + options(objective_ms="100,400", requests=2000, seeds=2)
            + AS_CELLS,
            {"mean": f"fig-17-{model}-cells"},
        )
    for steps in (10, 32):
        figures["lazybatching-dec-timesteps", f"{steps} steps"] = Run(
            options(table="npu", model="transformer", dec_timesteps=steps, rate=1000, objective_ms=OBJECTIVES)
            + options(requests=4000, seeds=2)
            + policies("LazyB=lazy", EQUATION_2, "Oracle=oracle")
        )
    shared = [word for model in (*NPU_MODELS, "mobilenet") for word in ("--model", f"{model}:0.25")]
    figures["lazybatching-co-located", "four models"] = Run(
        options(table="npu", rate="16,64,256,400,500", objective_ms=100, requests=4000, seeds=2) + shared + LAZY,
        {"mean": "co-located-mean", "throughput": "co-located-throughput"},
    )
    return figures


# ## DVABatch

#: For each model: stages (section 8.7), DVABatch's policy, and the delay of DelayBatch that carries the highest load.
Served = namedtuple("Served", "stages policy delay_us")

DVA_MODELS = {
    "bert-base": Served(2, "diversity", 1000),
    "bert-large": Served(2, "diversity", 1000),
    "unet": Served(4, "diversity: { load: true, operator: true }", 1000),
    "linknet": Served(4, "diversity: { load: true, operator: true }", 1000),
    "vgg19": Served(4, "diversity: { load: true }", 1000),
    "resnet152": Served(4, "diversity: { load: true }", 1000),
}
#: What a boundary costs: here on a CPU at most, in between, and the whole of what the paper's cost a request (section
#: 8.8). A batch that no stage divides has one launch, which costs the least.
BOUNDARIES_US = (5, 50, 290)
TITAN = options(table="titan-rtx", boundary_us=BOUNDARIES_US[0], objective_ms=PEAK_MS)
DELAYS_US = (1000, 5000, 20_000, 50_000, 100_000)
#: A peak is a load at which a queue of ten full batches drains: at many others, a short queue stays short and a long
#: one grows. At 0.05 below a policy's peak, draining takes 12,800 requests; more than twice as many are not counted.
FULL_QUEUE = options(backlog=640, warm_up=30_000, requests=40_000, seeds=1)


def delay_batch(delay_us, name="DelayBatch"):
    return f"{name}=window: {{ max_queue_delay_us: {delay_us} }}{PADDED}, stages: 1"


#: Baselines that do not pad whatever waits: with buckets of lengths, and with the default of the queue, which groups
#: lengths by what runs take.
BUCKETED = (
    *(f"buckets of {width}=window, queueing: {{ bucket_width: {width} }}, stages: 1" for width in (16, 32)),
    "grouped=window, stages: 1",
)


def over_boundaries(name, policy):
    """Returns a policy at each cost of a boundary."""
    return [
        f"{name}={policy}" if us == BOUNDARIES_US[0] else f"{name}, {us} us={policy}, boundary_us: {us}"
        for us in BOUNDARIES_US
    ]


def loads(first, last, step):
    count = round((last - first) / step) + 1
    return ",".join(f"{first + place * step:.2f}" for place in range(count))


def dvabatch():
    figures = {}
    for model, (stages, policy, delay_us) in DVA_MODELS.items():
        of_model = TITAN + options(model=model, workload="glue-pair")
        zero, delay = f"ZeroBatch=window{PADDED}, stages: 1", delay_batch(delay_us)
        dva = over_boundaries("DVABatch", f"{policy}, stages: {stages}")
        bucketed = BUCKETED if "bert" in model else ()
        split = []
        if "operator" in policy:
            split = [f"DVABatch-split=diversity: {{ load: false, operator: true }}, stages: {stages}"]
        figures["dvabatch-14", model] = Run(
            of_model
            + options(load="0.25,0.4,0.6,0.75,0.9", requests=10_000, seeds=5)
            + policies(zero, delay, *dva, *bucketed, *split),
            {"mean": f"fig-14-{model}"},
        )
        figures["dvabatch-14-lanes", model] = Run(
            of_model
            + options(lanes=2, load="0.25,0.6,0.9", requests=10_000, seeds=5)
            + policies(zero, delay, *dva, *bucketed, *split)
        )
        figures["dvabatch-delay", model] = Run(
            of_model
            + FULL_QUEUE
            + options(load=loads(0.85, 1.1, 0.05))
            + policies(zero, *(delay_batch(us, f"DelayBatch({us / 1000:g} ms)") for us in DELAYS_US))
        )
        # The mean rate of a stepping load is the harmonic mean; the last step is 6.2 times as high.
        figures["dvabatch-15", model] = Run(
            of_model
            + options(arrivals="stepped", load="0.4" if "bert" in model else "0.25", requests=32_000, seeds=5)
            + policies(delay, *dva, *bucketed),
            {"time": f"fig-15-{model}"} if model in ("bert-base", "resnet152") else {},
            ["highest_step"],
        )
    for model in ("bert-base", "bert-large"):
        stages, policy, delay_us = DVA_MODELS[model]
        for workload in ("glue-short", "glue-pair", "wmt15"):
            of_model = TITAN + FULL_QUEUE + options(model=model, workload=workload)
            figures["dvabatch-17", f"{model}, {workload}, DelayBatch"] = Run(
                of_model + options(load=loads(0.8, 1.2, 0.05)) + policies(delay_batch(delay_us))
            )
            figures["dvabatch-17", f"{model}, {workload}, DVABatch"] = Run(
                of_model
                + options(load=loads(1.4, 3.2, 0.1))
                + policies(*BUCKETED, *over_boundaries("DVABatch", f"{policy}, stages: {stages}"))
            )
    for model in ("unet", "linknet"):
        figures["dvabatch-18", model] = Run(
            options(table="published", boundary_us=5, objective_ms=1000, model=model)
            + options(load="0.25,0.6,0.9", requests=10_000, seeds=5)
            + policies(
                "ZeroBatch=window, stages: 1",
                "split at 1=diversity: { load: false, operator: { threshold: 1 } }",
                *over_boundaries("split", "diversity: { load: false, operator: true }"),
                "halves=diversity: { load: false, operator: { mode: paper } }",
                "split, stretched=diversity: { load: true, operator: true }",
            )
        )
    for model in ("bert-base", "linknet", "resnet152"):
        stages, policy, _ = DVA_MODELS[model]
        for lanes in (1, 2):
            pairs = (f"{count} pairs={policy}, buffer_pairs: {count}" for count in (1, 2, 3, 4))
            figures["dvabatch-19", f"{model}, {lanes} lanes"] = Run(
                TITAN
                + options(model=model, workload="glue-pair", stages=stages, load=0.9, lanes=lanes)
                + options(requests=10_000, seeds=3)
                + policies(*pairs)
            )
        for boundary_us in BOUNDARIES_US:
            cut = f"{policy}, boundary_us: {boundary_us}"
            cuts = [f"{count} stages={cut}, stages: {count}" for count in (1, 2, 4, 8, 12)]
            of_model = TITAN + options(model=model, workload="glue-pair") + policies(*cuts)
            figures["dvabatch-20", f"{model}, {boundary_us} us"] = Run(
                of_model + options(load=0.6, requests=10_000, seeds=1)
            )
            tried = loads(1.4, 2.4, 0.1) if model == "bert-base" else loads(0.65, 1.05, 0.05)
            figures["dvabatch-20-peaks", f"{model}, {boundary_us} us"] = Run(
                of_model + FULL_QUEUE + options(load=tried)
            )
    return figures


# ## Adaptive batching

#: Queue delay in ms with which 99 of 100 requests just meet a deadline of 100 ms.
MAX_BATCH_MS = {"bert-base": 85, "vgg19": 35, "resnet": 80, "resnet101": 65}


def adaptive():
    figures = {}
    for model, delay_ms in MAX_BATCH_MS.items():
        figures["adaptive-2", model] = Run(
            options(table="titan-rtx", model=model, arrivals="ramp", requests=36_150, seeds=3, stages=1)
            + policies(
                f"max batch=window: {{ max_queue_delay_us: {delay_ms * 1000} }}{PADDED}",
                f"ad hoc=window{PADDED}",
                "adaptive=adaptive",
                f"algorithm 1=adaptive: {{ mode: paper }}{PADDED}",
            ),
            {"time": f"fig-2-{model}"} if model in ("bert-base", "resnet") else {},
        )
    return figures


# ## BatchMaker

#: Scheduling and gathering take 65 us for each task (section 7.3). A lane is given up to 1.25 ms of work ahead, five
#: steps of 250 us.
V100 = options(table="v100", boundary_us=65, horizon_us=1250)
#: The number of requests that the paper draws.
DRAWN = options(requests=100_000, seeds=2)
#: Algorithm 1 of the paper. **cellular** is what the server does by default.
PAPER = "cellular: { mode: paper }"
CELLULAR = f"BatchMaker={PAPER}"
#: A bound that no task of several steps keeps.
SINGLE_STEPS = "single steps"
#: Trees: as in section 4.4, where inner nodes wait for all leaves; by default; and as TensorFlow Fold and DyNet merge
#: requests.
MERGED = "Merging=cellular: { mode: paper, merge_requests: 64, frontier: false }"
ON_TREES = (
    "BatchMaker=cellular: { mode: paper, frontier: false }", f"frontier={PAPER}", "cellular=cellular", MERGED
)


def padding(width):
    """Returns graph batching in buckets of lengths, as MXNet and TensorFlow do it (section 7.1)."""
    return f"Padding({width})=window, queueing: {{ bucket_width: {width} }}"


def over(rates, devices=1):
    return options(rate=",".join(str(rate * devices) for rate in rates))


def batchmaker():
    figures = {}
    lstm = V100 + options(model="lstm") + DRAWN
    rates = (500, 1000, 2000, 4000, 6000, 8000, 10_000, 12_000, 14_000, 16_000, 18_000, 20_000, 22_000, 24_000, 26_000)
    for largest in (512, 64):
        figures["batchmaker-7", f"at most {largest} rows"] = Run(
            lstm + over(rates) + options(max_batch=largest) + policies(CELLULAR, padding(10)),
            {"p90": f"fig-7-{largest}", "throughput": f"fig-7-{largest}-throughput"},
        )
    figures["batchmaker-chunks", "lstm-chunks"] = Run(
        V100
        + options(model="lstm-chunks")
        + DRAWN
        + over(rates)
        + policies(CELLULAR, f"{SINGLE_STEPS}=cellular: {{ max_chunk_ms: 0.001 }}", "chunks=cellular", padding(10)),
        {"mean": "chunks-mean", "p90": "chunks-p90"},
    )
    figures["batchmaker-8", "bucket widths"] = Run(
        lstm + over(rates) + policies(*(padding(width) for width in (1, 5, 10, 20, 40))), {"p90": "fig-8"}
    )
    figures["batchmaker-9", "5000/s"] = Run(
        lstm + over([5000]) + policies(CELLULAR, padding(10)),
        {"queued": "fig-9-queued", "computing": "fig-9-computing"},
        [f"{part}_{quantile}_ms" for part in ("queued", "computing") for quantile in ("p50", "p90", "p99")],
    )
    for workload in ("fixed-24", "wmt15-50", "wmt15-100"):
        figures["batchmaker-11", workload] = Run(
            lstm + over((*rates, 28_000)) + options(workload=workload) + policies(CELLULAR, padding(10)),
            {"p90": f"fig-11-{workload}"},
        )
    for devices in (1, 2, 4):
        figures["batchmaker-13", f"{devices} devices"] = Run(
            V100
            + options(model="seq2seq", devices=devices)
            + DRAWN
            + over((125, 250, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000), devices)
            + policies(
                f"BatchMaker-512,256={PAPER}",
                f"BatchMaker-256,256={PAPER}, max_batch_size: 256",
                "cellular-512,256=cellular",
                padding(10),
            ),
            {"p90": f"fig-13-{devices}"},
        )
    tree = options(table="v100", horizon_us=1250, model="tree-lstm", requests=20_000, seeds=2)
    for figure, workload in ((14, "trees"), (15, "trees-16")):
        figures[f"batchmaker-{figure}", workload] = Run(
            tree
            + options(boundary_us=65, workload=workload)
            + over((250, 500, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000))
            + policies(*ON_TREES),
            {"p90": f"fig-{figure}"},
        )
    # The paper's ideal is one fixed graph for the identical trees: full batches that nothing has to form.
    figures["batchmaker-15", "ideal"] = Run(
        tree + options(workload="trees-16") + over((4000, 8000, 12_000, 16_000)) + policies(ON_TREES[0])
    )
    return figures


#: All runs, keyed by figure and run. A figure's table has the rows of all its runs.
RUNS = {**lazybatching(), **dvabatch(), **adaptive(), **batchmaker()}
#: Figures of which only the peaks are kept, not each load.
PEAKS = ("dvabatch-delay", "dvabatch-17", "dvabatch-20-peaks")
