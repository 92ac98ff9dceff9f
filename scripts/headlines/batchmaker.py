"""The headlines of BatchMaker."""

from figure_tables import of, one, peak, rows_of

from headlines.table import fewer, headline, reached, spans


def p90_ratios(figure, run, policy, rates):
    rows = rows_of(figure)
    p90 = lambda name, rate: one(rows, "p90_ms", run=run, policy=name, rate=rate)
    return [p90(policy, rate) / p90("Padding(10)", rate) for rate in rates]


def peaks(figure, run, *policies):
    rows = rows_of(figure)
    return [peak(rows, run=run, policy=policy) for policy in policies]


LSTM = "at most 512 rows"


@headline(
    "BatchMaker", "LSTM: p90 against padding in buckets of 10, below half its peak", "§7", "−37.5 to −90.5 %",
    "`window` serves the oldest bucket first, MXNet its buckets in turn", "batchmaker-7",
)  # fmt: skip
def lstm_latency():
    found = p90_ratios("batchmaker-7", LSTM, "BatchMaker", (500, 1000, 2000, 4000, 6000, 8000))
    return spans(found), reached((1 - max(found)) / 0.375, (1 - min(found)) / 0.905)


@headline(
    "BatchMaker", "LSTM: peak throughput, against the same", "§7", "+25 %",
    "65 µs a task, the paper's cost at 64 rows, apply at 512 too, where it has 117", "batchmaker-7",
)  # fmt: skip
def lstm_throughput():
    ours, padded = peaks("batchmaker-7", LSTM, "BatchMaker", "Padding(10)")
    return f"{fewer(ours, padded)} % ({of(ours)} against {of(padded)}/s)", reached(ours / padded / 1.25)


@headline("BatchMaker", "LSTM: p90 up to 8,000/s", "§7.2", "12 ms", "", "batchmaker-7")
def lstm_p90():
    rows = rows_of("batchmaker-7")
    found = [one(rows, "p90_ms", run=LSTM, policy="BatchMaker", rate=rate) for rate in (500, 8000)]
    return f"{of(max(found))} ms", reached(12 / max(found))


@headline(
    "BatchMaker", "LSTM at 5,000/s: p99 of the time in the queue", "§7.3", "1.38 ms; padded above 100 ms", "",
    "batchmaker-9",
)  # fmt: skip
def lstm_queue():
    rows = rows_of("batchmaker-9")
    ours, padded = (one(rows, "queued_p99_ms", policy=policy) for policy in ("BatchMaker", "Padding(10)"))
    return f"{of(ours)} ms; padded {of(padded)} ms", reached(1.38 / ours)


@headline(
    "BatchMaker", "sentences of 24 words: throughput against padding", "§7.3", "87 %",
    "as for the LSTM's throughput: with 117 µs a task it is 87 %", "batchmaker-11",
)  # fmt: skip
def fixed_lengths():
    ours, padded = peaks("batchmaker-11", "fixed-24", "BatchMaker", "Padding(10)")
    return f"{100 * ours / padded:.0f} %", reached(ours / padded / 0.87)


@headline(
    "BatchMaker", "Seq2Seq: p90 against padding, below half its peak", "§7", "−17.5 to −82.6 %",
    "a padded batch waits for its longest output too", "batchmaker-13",
)  # fmt: skip
def translation_latency():
    rates = {2: (250, 500, 1000, 2000), 4: (500, 1000, 2000)}
    found = [
        ratio
        for devices, chosen in rates.items()
        for ratio in p90_ratios("batchmaker-13", f"{devices} devices", "BatchMaker-512,256", chosen)
    ]
    return spans(found), reached((1 - max(found)) / 0.175, (1 - min(found)) / 0.826)


@headline(
    "BatchMaker", "Seq2Seq: peak throughput against padding", "§7", "+60 %",
    "a padded batch waits for its longest output too", "batchmaker-13",
)  # fmt: skip
def translation_throughput():
    found = [peaks("batchmaker-13", f"{devices} devices", "BatchMaker-512,256", "Padding(10)") for devices in (2, 4)]
    texts = (f"{fewer(*both)} %" for both in found)
    return " and ".join(texts) + " on 2 and 4 devices", reached(*(ours / padded / 1.6 for ours, padded in found))


@headline(
    "BatchMaker", "Seq2Seq: peak throughput on 2 and 4 devices", "§7.4", "8,500 and 17,000/s",
    "the decoder's time comes from a roofline", "batchmaker-13",
)  # fmt: skip
def translation_peaks():
    found = [peaks("batchmaker-13", f"{devices} devices", "BatchMaker-512,256")[0] for devices in (2, 4)]
    return f"{of(found[0])} and {of(found[1])}/s", reached(found[0] / 8500, found[1] / 17_000)


@headline(
    "BatchMaker", "Seq2Seq: gain of batches of 512 for the encoder", "§7.4", "+3.5 to +6 %", "", "batchmaker-13"
)
def encoder_batches():
    both = ("BatchMaker-512,256", "BatchMaker-256,256")
    gains = [peaks("batchmaker-13", f"{devices} devices", *both) for devices in (1, 2, 4)]
    texts = ", ".join(f"{100 * (ours / base - 1):+.1f} %" for ours, base in gains)
    return f"{texts} on 1, 2, 4 devices", reached(*((ours / base - 1) / 0.035 for ours, base in gains))


@headline(
    "BatchMaker", "TreeLSTM: peak throughput against DyNet", "§7.5", "1.8 × (3,100/s)",
    "**Merging** is DyNet's batching without the time that DyNet takes to merge graphs", "batchmaker-14",
)  # fmt: skip
def tree_throughput():
    ours, merged = peaks("batchmaker-14", "trees", "BatchMaker", "Merging")
    return f"{ours / merged:.2f} × ({of(ours)}/s)", reached(ours / merged / 1.8)


@headline(
    "BatchMaker", "TreeLSTM at 1,000/s: p90 against DyNet", "§7.5", "−28 % (6.8 ms)",
    "the same; at 6,000/s, where merging has a queue, the gain is larger", "batchmaker-14",
)  # fmt: skip
def tree_latency():
    rows = rows_of("batchmaker-14")
    p90 = lambda policy, rate: one(rows, "p90_ms", run="trees", policy=policy, rate=rate)
    found = [p90("BatchMaker", rate) / p90("Merging", rate) for rate in (1000, 6000)]
    return f"{fewer(found[0], 1)} % ({of(p90('BatchMaker', 1000))} ms); {fewer(found[1], 1)} % at 6,000/s", reached((1 - found[0]) / 0.28)


@headline(
    "BatchMaker", "TreeLSTM: throughput and p90 against TensorFlow Fold", "§7", "4 ×, −87 %",
    "what Fold loses is the time that its Python takes to build graphs, which no table has", "",
)  # fmt: skip
def fold():
    return "–", "not simulated"


@headline(
    "BatchMaker", "identical trees: peak throughput against an ideal graph", "§7.5", "about 0.7 ×",
    "ideal: full batches without the 65 µs that each task takes for scheduling and gathering", "batchmaker-15",
)  # fmt: skip
def identical_trees():
    (ours,), (ideal,) = peaks("batchmaker-15", "trees-16", "BatchMaker"), peaks("batchmaker-15", "ideal", "BatchMaker")
    return f"{ours / ideal:.2f} ×", reached(ours / ideal / 0.7)
