"""Models under load on a CUDA card."""

import json
import tempfile

from gpu_programs import SERVER, ran

#: Time limit of a model under load, in seconds.
SECONDS_UNDER_LOAD = 90
POLICIES = ["--policy", "window: { max_queue_delay_us: 0 }", "--policy", "diversity"]
#: The models served under load, with their arguments. Cells have one policy; the others are compared with a window.
UNDER_LOAD = {
    "lstm": ["--workload", "wmt15", "--concurrency", "64,512"],
    "seq2seq": ["--workload", "wmt15", "--concurrency", "64,512"],
    "tree-lstm": ["--workload", "trees", "--concurrency", "64,512"],
    "bert-base": ["--workload", "glue-short", "--stages", "2", *POLICIES],
    "resnet50": ["--stages", "4", *POLICIES],
}
BRIEFLY = {"lstm": ["--length", "3", "--concurrency", "4"], "resnet50": ["--concurrency", "2", "--stages", "2", *POLICIES]}


def under_load(programs, environment, out, quick, until):
    """Serves example models on the card under load; returns the figures of each, or the error."""
    loads = BRIEFLY if quick else UNDER_LOAD
    lasting = ["0.2", "0", "1"] if quick else ["3", "1", "2"]
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        making = [programs[SERVER], "models", "--out", folder, "--only", ",".join(loads), *(["--quarter"] if quick else [])]
        status, text = ran(making, environment, out / "models.log", SECONDS_UNDER_LOAD, until)
        if status != 0:
            return {"models": {"status": status, "said": text[-300:]}}
        for model, load in loads.items():
            command = [programs[SERVER], "bench", "--model-repository", folder, "--model", model, "--device=cuda", *load]
            for flag, value in zip(("--seconds", "--warm-up-seconds", "--rounds"), lasting):
                command += [flag, value]
            file = out / f"load-{model}.json"
            command += ["--samples", "4" if quick else "64", "--json"]
            status, text = ran(command, environment, file, SECONDS_UNDER_LOAD, until)
            begins = text.find("{")
            if status == 0 and begins >= 0:
                figures[model], _ = json.JSONDecoder().raw_decode(text, begins)
            else:
                figures[model] = {"status": status, "said": text[-300:]}
            print(f"{model} under load: {figures[model].get('said', 'measured')}", flush=True)
    return figures
