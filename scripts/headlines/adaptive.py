"""The headlines of Adaptive batching."""

from figure_tables import change, one, rows_of

from headlines.table import headline, ratios, reached, spans


FOUR = ("bert-base", "vgg19", "resnet", "resnet101")


def adaptive_ratios(column, base, policy="adaptive"):
    rows = rows_of("adaptive-2")
    at = lambda model, name: one(rows, column, run=model, policy=name)
    return [at(model, policy) / at(model, base) for model in FOUR]


@headline(
    "Adaptive batching", "mean below the largest batch with a deadline of 100 ms: BERT, VGG19, ResNet50, ResNet101",
    "§IV, fig. 2b", "14 × (means of 45.8, 6.1, 7.3 and 9.7 ms)",
    "a deadline of 100 ms gives a mean of about 56 ms: the factor is the model's own time, on a card that the paper "
    "does not name", "adaptive-2",
)  # fmt: skip
def adaptive_latency():
    found = [1 / ratio for ratio in adaptive_ratios("mean_ms", "max batch")]
    return ratios(found, 1), reached(*(ours / 14 for ours in found))


@headline("Adaptive batching", "mean against ad hoc batching", "§IV, fig. 2b", "close", "", "adaptive-2")
def adaptive_ad_hoc():
    found = adaptive_ratios("mean_ms", "ad hoc")
    return ratios(found), reached(1.05 / max(found))


@headline(
    "Adaptive batching", "requests per joule against ad hoc batching", "§IV, fig. 2c", "up to +5 %",
    "the smallest batch that keeps up is the one that ad hoc batching forms; power is a model. The paper's own rules "
    "begin at two rows and pay with latency", "adaptive-2",
)  # fmt: skip
def adaptive_energy():
    ours = adaptive_ratios("requests_per_joule", "ad hoc")
    rules = adaptive_ratios("requests_per_joule", "ad hoc", "algorithm 1")
    slower = adaptive_ratios("mean_ms", "ad hoc", "algorithm 1")
    changes = " / ".join(change(ratio, 1).removesuffix(" %") for ratio in ours)
    text = f"{changes} %; the paper's rules {spans(rules)} at {min(slower):.1f} to {max(slower):.1f} × the latency"
    return text, reached((max(ours) - 1) / 0.05)
