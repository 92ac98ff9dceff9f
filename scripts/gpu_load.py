"""Models under load on a CUDA card."""

import json
import random
import subprocess
import tempfile
from pathlib import Path

from gpu_programs import RUNTIME, SERVER, end_of, ran
from server import Server

#: Time limits of a model under load, in seconds: with loads of its own, and with a trace, which has more of them.
SECONDS_UNDER_LOAD = 30
SECONDS_OF_TRACE = 45
#: Sections of model.yaml that policies are chosen by.
WINDOW, DELAYED, DIVERSITY = (
    "window: { max_queue_delay_us: 0 }",
    "window: { max_queue_delay_us: 2000 }",
    "diversity",
)
LAZY = "lazy"
#: The models served under load, with their arguments and policies. Cells have one policy; the others are compared with
#: a window.
UNDER_LOAD = {
    "lstm": (["--workload", "wmt15", "--concurrency", "64,512"], []),
    "seq2seq": (["--workload", "wmt15", "--concurrency", "64,512"], []),
    "tree-lstm": (["--workload", "trees", "--concurrency", "64,512"], []),
    "resnet50": (["--stages", "4"], [WINDOW, DIVERSITY, LAZY]),
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
#: The lengths that it is prepared for: those of the trace, and few, because each has graphs of its own.
TRACED_LENGTHS = [16, 32, 64, 128]
#: Requests of the trace: enough for two seconds at nine tenths of 15,000 requests/s.
REQUESTS, FEW_REQUESTS = 27_000, 12
#: The model that a server on the card serves, and the load of its clients: at full size, and in a quick form.
SERVED = "lstm"
SERVED_WORDS = (
    ("--workload", "wmt15", "--concurrency", "1,64,512", "--seconds", "2", "--warm-up-seconds", "0.5", "--rounds", "2",
     "--samples", "64"),
    ("--length", "3", "--rate", "20", "--seconds", "1", "--warm-up-seconds", "0", "--rounds", "1", "--samples", "4"),
)  # fmt: skip
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


class CardServer(Server):
    """A server of a kit. It is started directly: the script that ends a server with its parent is no file there."""

    def launch(self):
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(part) for part in self.command()], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=self.environment, start_new_session=True,
            )  # fmt: skip


def served(run, clock):
    """Serves a model of cells on the card to clients over gRPC; returns the figures, or the error."""
    server = run.programs[SERVER]
    with tempfile.TemporaryDirectory() as folder:
        making = [server, "models", "--out", folder, "--only", SERVED, *(["--quarter"] if run.quick else [])]
        ended = ran(making, run.environment, run.folder / "served-models.log", clock)
        if ended.status != 0:
            return {"status": ended.status or 1, "said": end_of(ended.text)}
        flags = ["--device", "cuda", "--cuda-kernel-directory", run.kernels]
        log = run.folder / "served.log"
        serving = CardServer(
            folder, *flags, program=server, library=run.programs[RUNTIME], log=log, environment=run.environment
        )
        serving.start(timeout_s=clock.left())
        try:
            command = [server, "bench", "--url", serving.grpc, "--model", SERVED, *SERVED_WORDS[run.quick], "--json"]
            ended = ran(command, run.environment, run.folder / "served-bench.log", clock)
        finally:
            status = serving.stop(timeout_s=10)
    if status != 0:
        return {"status": status, "said": end_of(log.read_text(errors="replace"))}
    return figures_of(ended)


def figures_of(ended):
    """Returns what a benchmark has measured, or the error."""
    begins = ended.text.find("\n{") + 1
    if ended.status == 0 and ended.text[begins : begins + 1] == "{":
        return json.JSONDecoder().raw_decode(ended.text, begins)[0]
    return {"status": ended.status or 1, "said": end_of(ended.text)}


def under_load(run, clock):
    """Serves example models on the card under load; returns the figures of each, or the error."""
    loads = BRIEFLY if run.quick else UNDER_LOAD
    figures = {}
    server, quick = run.programs[SERVER], run.quick

    def measure(model, words, policies, lasting, limit):
        command = [server, "bench", "--model-repository", folder, "--model", model, "--device=cuda", *words]
        command += ["--cuda-kernel-directory", run.kernels]
        command += [word for policy in policies for word in ("--policy", policy)]
        for flag, value in zip(("--seconds", "--warm-up-seconds", "--rounds"), lasting):
            command += [flag, value]
        command += ["--samples", "4" if quick else "64", "--json"]
        ended = ran(command, run.environment, run.folder / f"load-{model}.log", clock.part(limit * run.slower))
        figures[model] = figures_of(ended)
        print(f"{model} under load: {figures[model].get('said', 'measured')}", flush=True)
        run.results.keep("under load", figures)

    with tempfile.TemporaryDirectory() as folder:
        names = ",".join((*loads, TRACED))
        making = [server, "models", "--out", folder, "--only", names, *(["--quarter"] if quick else [])]
        ended = ran(making, run.environment, run.folder / "models.log", clock)
        if ended.status != 0:
            return {"models": {"status": ended.status or 1, "said": end_of(ended.text)}}
        for model, (words, policies) in loads.items():
            measure(model, words, policies, ["1", "0", "1"] if quick else ["2", "0.5", "2"], SECONDS_UNDER_LOAD)
        trace = run.folder / "trace.csv"
        write_trace(trace, FEW_REQUESTS if quick else REQUESTS, *([(3, 8)] if quick else []))
        config = Path(folder) / TRACED / "model.yaml"
        text = config.read_text()
        if quick:
            text = text.replace("max_batch_size: 32", "max_batch_size: 4")
        config.write_text(text + f"instance: {{ lengths: {{ tokens: {[8] if quick else TRACED_LENGTHS} }} }}\n")
        words = ["--trace", trace, "--load", SHARES, "--stages", "2"]
        measure(TRACED, words, TRACE_POLICIES, ["2", "0", "1"] if quick else ["2", "0.5", "1"], SECONDS_OF_TRACE)
    return figures
