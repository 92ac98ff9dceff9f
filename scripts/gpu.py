"""The tests and benchmarks of CUDA cards, on a card. Started by `make gpu-test` on a machine with a card and Rust, by
`make gpu-kit` on one with neither a card nor its libraries.

    python3 scripts/gpu.py test                 builds the programs and runs them
    python3 scripts/gpu.py kit DIR              builds the programs, and puts all that they need into a directory
    python3 scripts/gpu.py run DIR [--out DIR]  runs what such a directory has, and writes logs and a report

The kit runs on machines with only a driver, CUDA's libraries and Python: it generates its models itself. Tests that
need the stand-in (injected errors, counted calls) print a note and are skipped. `run --quick` uses small networks and
short runs, to check that everything works.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import fetch
from server import ROOT

SUITES = ("device", "planner", "cards")
#: The program that serves models under load, and the one that times their plans alone.
SERVER, TIMES = "paternoster", "times"
RUNTIME = "libonnxruntime.so"
#: A cargo profile of release code with its checks, without the settings that make release builds slow. Timings are
#: those of releases.
PROFILE = "kit"
ARCHIVE = "programs.tar.xz"
#: Maximum size of a kit, so that it can be copied to remote machines.
BYTES_MAX = 60 << 20
QUERY = "--query-gpu=name,driver_version,memory.total,power.limit"
#: Time limits in seconds: of a suite, of the timings, of a model under load, and of everything.
SECONDS = 150
SECONDS_OF_TIMES = 200
SECONDS_UNDER_LOAD = 90
SECONDS_IN_ALL = 470
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


def built():
    """Builds the programs; returns them by name."""
    command = ["cargo", "test", "--no-run", "--profile", PROFILE, "--message-format", "json"]
    for suite in SUITES:
        command += ["--test", suite]
    times = ["cargo", "build", "--release", "--message-format", "json", "--bin", SERVER, "--bench", "cards"]
    programs = {}
    for names, command in (({suite: suite for suite in SUITES}, command), ({SERVER: SERVER, "cards": TIMES}, times)):
        text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        made = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        programs |= {
            names[one["target"]["name"]]: Path(one["executable"])
            for one in made
            if one.get("executable") and one["target"]["name"] in names
        }
    return {**programs, RUNTIME: fetch.PIECES["runtime"]()}


def kit(directory):
    directory.mkdir(parents=True, exist_ok=True)
    # The programs share most of their code, so they compress well together.
    with tarfile.open(directory / ARCHIVE, "w:xz", preset=6) as archive, tempfile.TemporaryDirectory() as folder:
        for name, program in sorted(built().items()):
            lean = Path(folder) / name
            shutil.copy2(program, lean)
            subprocess.run(["strip", "--strip-debug", lean], check=True)
            archive.add(lean, name)
    for script in ("gpu.py", "fetch.py", "pins.py", "server.py"):
        shutil.copy2(ROOT / "scripts" / script, directory)
    size = sum(file.stat().st_size for file in directory.iterdir())
    if size > BYTES_MAX:
        sys.exit(f"{directory} has {size / 2**20:.0f} MiB, expected at most {BYTES_MAX >> 20}")
    print(f"{directory}: {size / 2**20:.0f} MiB; run it there by: python3 {directory.name}/gpu.py run {directory.name}")


def libraries():
    """Returns the folders of CUDA's libraries in the wheels of this Python."""
    places = [Path(place) / "nvidia" for place in sys.path if (Path(place) / "nvidia").is_dir()]
    return [str(folder) for place in places for folder in sorted(place.glob("*/lib"))]


def card():
    """Returns name, driver, memory and power limit of the first card."""
    try:
        told = subprocess.run(["nvidia-smi", QUERY, "--format=csv,noheader"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return {"unknown": str(error)}
    parts = (part.strip() for part in told.stdout.splitlines()[0].split(","))
    return dict(zip(("name", "driver", "memory", "power limit"), parts))


def ran(command, environment, log, seconds, until):
    """Runs a program; returns its exit status (None if it ran out of time) and its output, which is also written to
    `log`. `until` is when everything must have ended."""
    seconds = max(1, min(seconds, until - time.monotonic()))
    try:
        done = subprocess.run(
            [str(part) for part in command], env=environment, cwd=ROOT if ROOT.is_dir() else None,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
        )  # fmt: skip
        text, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        text, status = f"{(late.stdout or b'').decode(errors='replace')}\nnot done after {seconds:.0f} s", None
    log.write_text(text)
    return status, text


def tested(program, environment, log, until):
    """Runs a suite, one test after the other; returns its status, its closing line and the failed tests."""
    status, text = ran([program, "--test-threads=1"], environment, log, SECONDS, until)
    closing = [line for line in text.splitlines() if line.startswith("test result:")]
    failed = [line.split()[1] for line in text.splitlines() if line.startswith("test ") and line.endswith("FAILED")]
    return {"status": status, "closing": closing[-1] if closing else text[-300:], "failed": failed}


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


def run(programs, out, quick=False):
    """Runs suites and benchmarks on the card; returns whether all passed."""
    until = time.monotonic() + SECONDS_IN_ALL
    out.mkdir(parents=True, exist_ok=True)
    paths = [*libraries(), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {
        **os.environ, "CUDA_TESTS_ON_CARD": "1", "ORT_DYLIB_PATH": str(programs[RUNTIME]), "LD_LIBRARY_PATH": ":".join(paths)
    }  # fmt: skip
    report = {"card": card(), "suites": {}}
    for name in SUITES if not quick else ():
        report["suites"][name] = tested(programs[name], environment, out / f"{name}.log", until)
        print(f"{name}: {report['suites'][name]['closing']}", flush=True)
    steps = out / "steps.json"
    command = [programs[TIMES], "--json", steps, *(["--quick"] if quick else [])]
    status, text = ran(command, environment, out / "times.log", SECONDS_OF_TIMES, until)
    report["times"] = json.loads(steps.read_text()) if status == 0 and steps.is_file() else {"status": status, "said": text[-300:]}
    print(text if status == 0 else f"times: {text[-300:]}", flush=True)
    report["under load"] = under_load(programs, environment, out, quick, until)
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    parts = [*report["suites"].values(), report["times"], *report["under load"].values()]
    return all(part.get("status", 0) == 0 for part in parts)


def unpacked(directory, into):
    """Unpacks the programs of a kit; returns them by name."""
    with tarfile.open(directory / ARCHIVE) as archive:
        archive.extractall(into, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return {file.name: file for file in into.iterdir()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", choices=("test", "kit", "run"))
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.action == "test":
        return 0 if run(built(), given.out or ROOT / ".cache" / "gpu-test", given.quick) else 1
    if given.directory is None:
        parser.error(f"{given.action} needs a directory")
    if given.action == "kit":
        kit(given.directory)
        return 0
    directory = given.directory.resolve()
    with tempfile.TemporaryDirectory() as folder:
        programs = unpacked(directory, Path(folder))
        return 0 if run(programs, given.out or directory / "out", given.quick) else 1


if __name__ == "__main__":
    sys.exit(main())
