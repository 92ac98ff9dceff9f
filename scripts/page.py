"""The picture in docs/timeline.md: the page of a server under load, as a browser renders it. Started by `make page`.

    python scripts/page.py [--out docs/images/page.png]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import fetch
import numpy as np
import tritonclient.grpc as triton
from open_load import tensor
from server import ROOT, Server, binary

sys.path.insert(0, str(ROOT / "tests" / "python"))
from browser import Browser  # noqa: E402

#: The encoder is cut, so that the picture shows batches moving from stage to stage.
STAGES = "\nstages: 3\n"
CLIENTS = {"minilm": 6, "lstm": 3}
MEAN_PAUSE_S = 0.2
MOST_BYTES = 150_000
BARS = "document.querySelectorAll('#picture rect').length"
#: Until the lines of the last minute can be seen.
SETTLED_S = 30


def write_models(program, folder):
    for name in CLIENTS:
        command = [program, "models", "--out", folder, "--set", "examples", "--only", name, "--minilm", fetch.minilm()]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    with open(folder / "minilm" / "model.yaml", "a") as config:
        config.write(STAGES)
    return folder


def inputs(model, random):
    """Returns the inputs of a request of a few tokens."""
    tokens = random.integers(0, 400, (1, int(random.integers(3, 24))))
    if model == "lstm":
        return [tensor("tokens", tokens, "INT64")]
    return [tensor("input_ids", tokens, "INT64"), tensor("attention_mask", np.ones_like(tokens), "INT64")]


def ask(server, model, seed, over):
    """Runs one client with pauses of random length."""
    random = np.random.default_rng(seed)
    with triton.InferenceServerClient(server.grpc) as client:
        while not over.wait(random.exponential(MEAN_PAUSE_S)):
            client.infer(model, inputs(model, random))


def picture(server):
    with Browser(fetch.chromium()) as browser:
        browser.open(f"http://{server.http}/", width=1280, height=860)
        over = threading.Event()
        while browser.value(BARS) < 100:
            over.wait(0.1)
        over.wait(SETTLED_S)
        return browser.screenshot()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "page.png")
    given = parser.parse_args()
    over, folder = threading.Event(), Path(tempfile.mkdtemp(prefix="paternoster-page-"))
    try:
        program = Path(os.environ.get("PATERNOSTER") or binary())
        flags = ["--auto-profile=false", "--cpu-lanes=3", "--cpu-threads=1"]
        with Server(write_models(program, folder), *flags, program=program) as server:
            seeds = [(model, seed) for model, count in CLIENTS.items() for seed in range(count)]
            clients = [threading.Thread(target=ask, args=(server, model, seed, over)) for model, seed in seeds]
            for client in clients:
                client.start()
            try:
                drawn = picture(server)
            finally:
                over.set()
                for client in clients:
                    client.join()
    finally:
        shutil.rmtree(folder)
    if len(drawn) > MOST_BYTES:
        sys.exit(f"the picture has {len(drawn)} bytes, more than {MOST_BYTES}")
    given.out.write_bytes(drawn)
    print(f"{given.out}: {len(drawn)} bytes")


if __name__ == "__main__":
    main()
