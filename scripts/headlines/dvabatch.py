"""The headlines of DVABatch."""

from figure_tables import average, change, one, rows_of

from headlines.table import fewer, headline, ratios, reached


SIX = ("bert-base", "bert-large", "unet", "linknet", "vgg19", "resnet152")
LOADS = (0.25, 0.6, 0.9)
BAND = ("DVABatch", "DVABatch, 50 us", "DVABatch, 290 us")


def over_six(base, column, policy="DVABatch", figure="dvabatch-14"):
    """Returns DVABatch's figure as a fraction of a baseline's, over six models, at low, medium and high load."""
    rows = rows_of(figure)
    at = lambda model, name, load: one(rows, column, run=model, policy=name, load=load)
    return [average(at(model, policy, load) / at(model, base, load) for model in SIX) for load in LOADS]


def changes(fractions):
    return " / ".join(change(fraction, 1).removesuffix(" %") for fraction in fractions) + " %"


def against(base, column, paper):
    """Returns the changes with a boundary of 5 and of 290 µs, and with two lanes."""
    found, dear = (over_six(base, column, policy) for policy in (BAND[0], BAND[-1]))
    lanes = over_six(base, column, figure="dvabatch-14-lanes")
    text = f"{changes(found)}; boundary of 290 µs {changes(dear)}; two lanes {changes(lanes)}"
    return text, reached(*((1 - ours) / theirs * 100 for ours, theirs in zip(found, paper)))


WHY_LESS = "on this roofline a few images fill the card, so less waits and less can be stretched or split"


@headline(
    "DVABatch", "mean over six models against ZeroBatch: low, medium, high load", "§8.2, fig. 14",
    "−16.1 / −39.0 / −57.7 %", WHY_LESS, "dvabatch-14",
)  # fmt: skip
def zero_mean():
    return against("ZeroBatch", "mean_ms", (16.1, 39.0, 57.7))


@headline(
    "DVABatch", "mean over six models against DelayBatch: the same", "§8.2, fig. 14",
    "−35.4 / −47.3 / −48.5 % (−46.4 % in all)", f"{WHY_LESS}; here DelayBatch needs a delay of 1 ms only", "dvabatch-14",
)  # fmt: skip
def delay_mean():
    return against("DelayBatch", "mean_ms", (35.4, 47.3, 48.5))


@headline(
    "DVABatch", "p99 over six models against ZeroBatch", "§8.2, fig. 16", "−16.9 / −27.4 / −53.7 %",
    WHY_LESS, "dvabatch-14",
)  # fmt: skip
def zero_p99():
    return against("ZeroBatch", "p99_ms", (16.9, 27.4, 53.7))


@headline(
    "DVABatch", "p99 over six models against DelayBatch", "§8.2, fig. 16", "−45.2 / −45.1 / −29.2 %",
    WHY_LESS, "dvabatch-14",
)  # fmt: skip
def delay_p99():
    return against("DelayBatch", "p99_ms", (45.2, 45.1, 29.2))


@headline(
    "DVABatch", "BERT-base, BERT-large: peak against DelayBatch at a stepping load", "§8.3, fig. 15", "1.47 / 1.37 ×",
    "all of it comes from grouping lengths, which the queue does under every policy: `window` with its defaults "
    "(grouped) carries as much",
    "dvabatch-15",
)  # fmt: skip
def stepping():
    rows = rows_of("dvabatch-15")
    step = lambda model, policy: one(rows, "highest_step", run=model, policy=policy)
    found, grouped = (
        [step(model, "DVABatch") / step(model, base) for model in SIX[:2]] for base in ("DelayBatch", "grouped")
    )
    return f"{ratios(found)}; against grouped {ratios(grouped)}", reached(found[0] / 1.47, found[1] / 1.37)


@headline(
    "DVABatch", "the same for other lengths, at most", "abstract, §8.4, fig. 17", "2.12 ×",
    "the same; buckets of a fixed width, BatchMaker's baseline, are between", "dvabatch-17",
)  # fmt: skip
def other_lengths():
    rows = rows_of("dvabatch-17")
    workloads = [(model, workload) for model in SIX[:2] for workload in ("glue-short", "glue-pair", "wmt15")]
    rate = lambda of_run, policy, run="DVABatch": one(rows, "rate", run=", ".join((*of_run, run)), policy=policy)
    padded = [rate(each, "DVABatch") / rate(each, "DelayBatch", "DelayBatch") for each in workloads]
    others = [
        [rate(each, "DVABatch") / rate(each, base) for each in workloads] for base in ("buckets of 16", "grouped")
    ]
    texts = [f"{min(gains):.2f} to {max(gains):.2f} ×" for gains in others]
    return f"{max(padded):.2f} ×; against buckets of 16 {texts[0]}, grouped {texts[1]}", reached(max(padded) / 2.12)


@headline(
    "DVABatch", "U-Net, LinkNet: splitting alone, mean at high load", "§8.5, fig. 18", "−15.0 %",
    "on tables that are shaped after the paper's figure 6; on the roofline there is little to split", "dvabatch-18",
)  # fmt: skip
def splitting():
    rows = rows_of("dvabatch-18")
    at = lambda model, policy: one(rows, "mean_ms", run=model, policy=policy, load=0.9)
    found = [
        average(at(model, policy) / at(model, "ZeroBatch") for model in ("unet", "linknet"))
        for policy in ("split", "split, 290 us")
    ]
    return f"{fewer(found[0], 1)} % ({fewer(found[1], 1)} % at 290 µs)", reached((1 - found[0]) / 0.15)


@headline("DVABatch", "number of buffer pairs that is enough", "§8.6, fig. 19", "2", "", "dvabatch-19")
def buffer_pairs():
    rows = rows_of("dvabatch-19")
    mean = lambda model, pairs: one(rows, "mean_ms", run=f"{model}, 2 lanes", policy=f"{pairs} pairs")
    enough = [
        min(pairs for pairs in (1, 2, 3, 4) if mean(model, pairs) <= 1.01 * mean(model, 4))
        for model in ("bert-base", "linknet", "resnet152")
    ]
    return f"{max(enough)}", reached(2 / max(enough))


@headline(
    "DVABatch", "best number of stages: BERT-base, LinkNet, ResNet152", "§8.7, fig. 20", "2 / 4 / 4",
    "a boundary only costs on one lane, where stages do not overlap, and BERT is grouped before it runs", "dvabatch-20",
)  # fmt: skip
def stage_numbers():
    means = rows_of("dvabatch-20")
    texts, tests = [], []
    for us in (5, 290):
        best = []
        for model in ("bert-base", "linknet", "resnet152"):
            mean = lambda count: one(means, "mean_ms", run=f"{model}, {us} us", policy=f"{count} stages")
            means_of = {count: mean(count) for count in (1, 2, 4, 8, 12)}
            # As few stages as are within a hundredth of the best.
            best.append(min(count for count in means_of if means_of[count] <= 1.01 * min(means_of.values())))
        tests += [float(ours == paper) for ours, paper in zip(best, (2, 4, 4))]
        texts.append(f"{' / '.join(map(str, best))} at {us} µs")
    return ", ".join(texts), reached(*tests)


@headline(
    "DVABatch", "what stages add to a request alone", "§8.8, fig. 21", "0.29 ms",
    "[measured](benchmarks/README.md#a-stage-boundary) on a CPU: 1.2 to 4.6 µs a boundary; the figures assume 5, 50 and "
    "290",
    "cargo bench --bench stages",
)  # fmt: skip
def overhead():
    return "below 0.02 ms for 4 stages", reached(0.29 / 0.02)
