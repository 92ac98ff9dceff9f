"""The tests of CUDA cards, on a card. Started by `make gpu-test` where there is a card and Rust, by `make gpu-kit` where neither the
card nor its libraries are.

    python3 scripts/gpu.py test                 builds the tests and runs them
    python3 scripts/gpu.py kit DIR              builds the tests, and puts all that they need into a directory
    python3 scripts/gpu.py run DIR [--out DIR]  runs what such a directory has, and writes logs and a summary

The kit runs on machines with a driver, CUDA's libraries and Python, nothing else. Tests that need the stand-in (errors on demand,
counted calls) say so and are passed over.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fetch
from server import ROOT

SUITES = ("device", "planner", "cards")
#: Release code with its checks, without what makes release builds slow.
PROFILE = "kit"
QUERY = "--query-gpu=name,driver_version,memory.total"
SECONDS = 240


def built():
    """The programs of the suites, by name."""
    command = ["cargo", "test", "--no-run", "--profile", PROFILE, "--message-format", "json"]
    for suite in SUITES:
        command += ["--test", suite]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    made = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    return {one["target"]["name"]: Path(one["executable"]) for one in made if one.get("executable") and one["profile"]["test"]}


def kit(directory):
    directory.mkdir(parents=True, exist_ok=True)
    for name, program in built().items():
        shutil.copy2(program, directory / name)
    shutil.copy2(fetch.PIECES["runtime"](), directory / "libonnxruntime.so")
    for script in ("gpu.py", "fetch.py", "pins.py", "server.py"):
        shutil.copy2(ROOT / "scripts" / script, directory)
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"{directory}: {size / 2**20:.0f} MiB; run it there by: python3 {directory.name}/gpu.py run {directory.name}")


def libraries():
    """Folders of CUDA's libraries in the wheels of this Python."""
    places = [Path(place) / "nvidia" for place in sys.path if (Path(place) / "nvidia").is_dir()]
    return [str(folder) for place in places for folder in sorted(place.glob("*/lib"))]


def card():
    """Name, driver and memory of the first card."""
    try:
        told = subprocess.run(["nvidia-smi", QUERY, "--format=csv,noheader"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return {"unknown": str(error)}
    return dict(zip(("name", "driver", "memory"), (part.strip() for part in told.stdout.splitlines()[0].split(","))))


def ran(program, environment, log):
    """Runs a suite, one test after the other; returns its closing line."""
    command = [program, "--test-threads=1"]
    try:
        done = subprocess.run(
            [str(part) for part in command], env=environment, cwd=ROOT if ROOT.is_dir() else None,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS,
        )  # fmt: skip
        text, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        text, status = f"{(late.stdout or b'').decode(errors='replace')}\nnot done after {SECONDS} s", None
    log.write_text(text)
    closing = [line for line in text.splitlines() if line.startswith("test result:")]
    failed = [line.split()[1] for line in text.splitlines() if line.startswith("test ") and line.endswith("FAILED")]
    return {"status": status, "closing": closing[-1] if closing else text[-300:], "failed": failed}


def run(programs, runtime, out):
    """Runs suites on the card; returns whether all pass."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [*libraries(), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {
        **os.environ, "CUDA_TESTS_ON_CARD": "1", "ORT_DYLIB_PATH": str(runtime), "LD_LIBRARY_PATH": ":".join(paths)
    }  # fmt: skip
    summary = {"card": card(), "suites": {}}
    for name, program in programs.items():
        summary["suites"][name] = ran(program, environment, out / f"{name}.log")
        print(f"{name}: {summary['suites'][name]['closing']}", flush=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return all(suite["status"] == 0 for suite in summary["suites"].values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", choices=("test", "kit", "run"))
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.action == "test":
        passed = run(built(), fetch.PIECES["runtime"](), given.out or ROOT / ".cache" / "gpu-test")
        return 0 if passed else 1
    if given.directory is None:
        parser.error(f"{given.action} needs a directory")
    if given.action == "kit":
        kit(given.directory)
        return 0
    directory = given.directory.resolve()
    programs = {name: directory / name for name in SUITES}
    return 0 if run(programs, directory / "libonnxruntime.so", given.out or directory / "out") else 1


if __name__ == "__main__":
    sys.exit(main())
