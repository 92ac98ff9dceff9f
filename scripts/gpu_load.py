"""Models under load on a CUDA card."""

import json
import random
import tempfile
from pathlib import Path

from gpu_programs import SERVER, ran

#: Time limits of a model under load, in seconds: with loads of its own, and with a trace, which has more of them.
SECONDS_UNDER_LOAD = 90
SECONDS_OF_TRACE = 120
#: Sections of model.yaml that policies are chosen by.
WINDOW, DELAYED, DIVERSITY = (
    "window: { max_queue_delay_us: 0 }",
    "window: { max_queue_delay_us: 2000 }",
    "diversity",
)
#: The models served under load, with their arguments and policies. Cells have one policy; the others are compared with
#: a window.
UNDER_LOAD = {
    "lstm": (["--workload", "wmt15", "--concurrency", "64,512"], []),
    "seq2seq": (["--workload", "wmt15", "--concurrency", "64,512"], []),
    "tree-lstm": (["--workload", "trees", "--concurrency", "64,512"], []),
    "resnet50": (["--stages", "4"], [WINDOW, DIVERSITY]),
}
#: The same in a quick form. Open loops count all requests, however slow the machine is.
BRIEFLY = {
    "lstm": (["--length", "3", "--rate", "20"], []),
    "resnet50": (["--rate", "4", "--stages", "2"], [WINDOW, DIVERSITY]),
}
#: The model that the trace is played to, its policies, and the shares of the first one's peak.
TRACED = "bert-base"
TRACE_POLICIES = [WINDOW, DELAYED, DIVERSITY]
SHARES = "0.25,0.6,0.9"
#: Requests of the trace: enough for two seconds at nine tenths of 15,000 requests/s.
REQUESTS, FEW_REQUESTS = 27_000, 40
#: In the trace, calm and busy periods of this many requests on average alternate. In busy ones requests arrive as many
#: times faster.
PERIOD, FASTER = 200, 4
#: Lengths of texts as in GLUE: the logarithm is normal with this mean and deviation, within these bounds.
LENGTH_MEAN, LENGTH_DEVIATION, LENGTHS = 2.4, 0.6, (3, 128)


def write_trace(file, requests, lengths=LENGTHS):
    """Writes a trace of arrivals in seconds, one a second on average, and lengths. It is the same at every call."""
    draw = random.Random(7)
    # The mean time between two requests is 1 if half of them are in calm periods.
    calm_s = 2 * FASTER / (FASTER + 1)
    now_s, is_busy, left, lines = 0.0, False, 0, ["arrival_s,length"]
    for _ in range(requests):
        if left == 0:
            is_busy, left = not is_busy, 1 + int(draw.expovariate(1 / PERIOD))
        left -= 1
        now_s += draw.expovariate(1 / calm_s) / (FASTER if is_busy else 1)
        length = int(draw.lognormvariate(LENGTH_MEAN, LENGTH_DEVIATION))
        lines.append(f"{now_s:.6f},{min(max(length, lengths[0]), lengths[1])}")
    file.write_text("\n".join(lines) + "\n")


def under_load(programs, environment, out, quick, until):
    """Serves example models on the card under load; returns the figures of each, or the error."""
    loads = BRIEFLY if quick else UNDER_LOAD
    figures = {}

    def measure(model, words, policies, lasting, limit):
        command = [programs[SERVER], "bench", "--model-repository", folder, "--model", model, "--device=cuda", *words]
        command += [word for policy in policies for word in ("--policy", policy)]
        for flag, value in zip(("--seconds", "--warm-up-seconds", "--rounds"), lasting):
            command += [flag, value]
        file = out / f"load-{model}.json"
        command += ["--samples", "4" if quick else "64", "--json"]
        status, text = ran(command, environment, file, limit, until)
        begins = text.find("{")
        if status == 0 and begins >= 0:
            figures[model], _ = json.JSONDecoder().raw_decode(text, begins)
        else:
            figures[model] = {"status": status, "said": text[-300:]}
        print(f"{model} under load: {figures[model].get('said', 'measured')}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        names = ",".join((*loads, TRACED))
        making = [programs[SERVER], "models", "--out", folder, "--only", names, *(["--quarter"] if quick else [])]
        status, text = ran(making, environment, out / "models.log", SECONDS_UNDER_LOAD, until)
        if status != 0:
            return {"models": {"status": status, "said": text[-300:]}}
        for model, (words, policies) in loads.items():
            measure(model, words, policies, ["1", "0", "1"] if quick else ["3", "1", "2"], SECONDS_UNDER_LOAD)
        trace = out / "trace.csv"
        write_trace(trace, FEW_REQUESTS if quick else REQUESTS, *([(3, 8)] if quick else []))
        if quick:
            config = Path(folder) / TRACED / "model.yaml"
            brief = config.read_text().replace("max_batch_size: 32", "max_batch_size: 4")
            config.write_text(brief + "instance: { lengths: { tokens: [8] } }\n")
        words = ["--trace", trace, "--load", SHARES, "--stages", "2"]
        measure(TRACED, words, TRACE_POLICIES, ["2", "0", "1"] if quick else ["2", "1", "2"], SECONDS_OF_TRACE)
    return figures
