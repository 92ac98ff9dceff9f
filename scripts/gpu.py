"""The tests and benchmarks of CUDA cards, on a card. Started by `make gpu-test` on a machine with a card and Rust, by
`make gpu-kit` on one with neither a card nor its libraries.

    python3 scripts/gpu.py test     builds the programs, runs them, and writes logs and a report
    python3 scripts/gpu.py kit FILE writes one executable file that has the programs, for other machines
    FILE run [--out DIR]            runs them there

The kit runs on machines with only a driver, CUDA's libraries and Python: it generates its models itself. It is a zip
archive of Python (`zipapp`), with the programs inside. Tests that need the stand-in (injected errors, counted calls)
print a note and are skipped. With `--quick`, networks are small and runs are short, to check that everything works.
"""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipapp
from pathlib import Path

import fetch
import gpu_report
import gpu_splits
import gpu_tables
from gpu_load import under_load
from gpu_programs import RUNTIME, SERVER, TIMES, ran
from gpu_sanitizer import sanitized
from server import ROOT

SUITES = ("device", "planner", "cards")
#: A cargo profile of release code with its checks, without the settings that make release builds slow. Timings are
#: those of releases.
PROFILE = "kit"
ARCHIVE = "programs.tar.xz"
#: Maximum size of a kit, so that it can be copied to remote machines.
BYTES_MAX = 60 << 20
QUERY = "--query-gpu=name,driver_version,memory.total,power.limit,power.draw"
#: Time limits in seconds: of a suite, of the timings, and of everything. The networks in stages come last and take the
#: time that is left, up to their limit; loading the program and ending the last measurement take the rest.
SECONDS = 150
SECONDS_OF_TIMES = 200
SECONDS_OF_STAGES = 120
SECONDS_BESIDE_STAGES = 15
SECONDS_IN_ALL = 470
#: Scripts that a kit has.
SCRIPTS = (
    "gpu.py", "gpu_load.py", "gpu_programs.py", "gpu_report.py", "gpu_sanitizer.py", "gpu_splits.py", "gpu_tables.py",
    "fetch.py", "pins.py", "server.py",
)  # fmt: skip


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


def kit(file):
    if file.is_dir():
        sys.exit(f"{file} is a directory, expected the file to write")
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        content = Path(folder) / "content"
        content.mkdir()
        # The programs share most of their code, so they compress well together.
        with tarfile.open(content / ARCHIVE, "w:xz", preset=6) as archive:
            for name, program in sorted(built().items()):
                lean = Path(folder) / name
                shutil.copy2(program, lean)
                subprocess.run(["strip", "--strip-debug", lean], check=True)
                archive.add(lean, name)
        for script in SCRIPTS:
            shutil.copy2(ROOT / "scripts" / script, content)
        (content / "__main__.py").write_text("import sys\n\nimport gpu\n\nsys.exit(gpu.main())\n")
        zipapp.create_archive(content, file, interpreter="/usr/bin/env python3")
    size = file.stat().st_size
    if size > BYTES_MAX:
        sys.exit(f"{file} has {size / 2**20:.0f} MiB, expected at most {BYTES_MAX >> 20}")
    print(f"{file}: {size / 2**20:.0f} MiB; run it on a machine with a card by: ./{file.name} run")


def libraries():
    """Returns the folders of CUDA's libraries in the wheels of this Python."""
    places = [Path(place) / "nvidia" for place in sys.path if (Path(place) / "nvidia").is_dir()]
    return [str(folder) for place in places for folder in sorted(place.glob("*/lib"))]


def card():
    """Returns name, driver, memory, power limit and the power of the first card before anything runs on it."""
    try:
        told = subprocess.run(["nvidia-smi", QUERY, "--format=csv,noheader"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return {"unknown": str(error)}
    parts = (part.strip() for part in told.stdout.splitlines()[0].split(","))
    return dict(zip(("name", "driver", "memory", "power limit", "idle power"), parts))


def tested(program, environment, log, until):
    """Runs a suite, one test after the other; returns its status, its closing line and the failed tests."""
    status, text = ran([program, "--test-threads=1"], environment, log, SECONDS, until)
    closing = [line for line in text.splitlines() if line.startswith("test result:")]
    failed = [line.split()[1] for line in text.splitlines() if line.startswith("test ") and line.endswith("FAILED")]
    return {"status": status, "closing": closing[-1] if closing else text[-300:], "failed": failed}


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
    if not quick:
        report["sanitizer"] = sanitized(programs, environment, out, until)
        print(f"compute-sanitizer: {report['sanitizer']}", flush=True)
    # What an earlier run has measured must not be taken for this one's.
    for stale in (out / "steps.json", out / "stages.json", *(out / "tables").glob("*.json")):
        stale.unlink(missing_ok=True)
    steps = out / "steps.json"
    command = [programs[TIMES], "--json", steps, *(["--quick"] if quick else [])]
    status, text = ran(command, environment, out / "times.log", SECONDS_OF_TIMES, until)
    report["times"] = (
        json.loads(steps.read_text()) if status == 0 and steps.is_file() else {"status": status, "said": text[-300:]}
    )
    print(text if status == 0 else f"times: {text[-300:]}", flush=True)
    report["under load"] = under_load(programs, environment, out, quick, until)
    report["stages"] = staged(programs[TIMES], environment, out, quick, until)
    card_name = report["stages"].get("card") or report["times"].get("card") or "unknown card"
    of_cells = report["times"].get("steps", [])
    report["tables"] = gpu_tables.write(out / "tables", card_name, report["stages"], of_cells, watts(report))
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (out / "report.md").write_text("\n".join(gpu_report.lines(report)) + "\n")
    print(f"the report is {out / 'report.md'}", flush=True)
    parts = [*report["suites"].values(), report["times"], *report["under load"].values(), report["stages"]]
    parts.append(report.get("sanitizer", {}))
    return all(part.get("status", 0) == 0 for part in parts)


def watts(report):
    """Returns the power of the idle card, and the highest mean power of a load; None if one of them is unknown."""
    loads = (load for model in report["under load"].values() for load in model.get("loads", []))
    rounds = (one for load in loads for policy in load["policies"] for one in policy["rounds"])
    busy = max((one["joules"] / one["seconds"] for one in rounds if one["joules"]), default=None)
    try:
        idle = float(report["card"].get("idle power", "").removesuffix("W"))
    except ValueError:
        return None
    return (idle, busy) if busy and busy >= idle else None


def staged(program, environment, out, quick, until):
    """Times networks in stages; returns the times and what they mean for splitting. What was measured before the program
    failed is kept."""
    file = out / "stages.json"
    budget = max(1, min(SECONDS_OF_STAGES, int(until - time.monotonic()) - SECONDS_BESIDE_STAGES))
    command = [program, "--stages", "--budget-s", budget, "--json", file, *(["--quick"] if quick else [])]
    status, text = ran(command, environment, out / "stages.log", budget + SECONDS_BESIDE_STAGES, until)
    measured = json.loads(file.read_text()) if file.is_file() else {"times": [], "skipped": []}
    if status != 0 or not measured["times"]:
        measured |= {"status": 1 if status == 0 else status, "said": text[-300:]}
    measured["splits"] = gpu_splits.judged(measured)
    for name, found in measured["splits"].items():
        print(f"{name}: {found['verdict']}", flush=True)
    return measured


def unpacked(into):
    """Unpacks the programs of the kit that this script is in; returns them by name."""
    try:
        # Not by `Path`, which turns ./kit/gpu.py into kit/gpu.py: the loader of ./kit has no such file.
        programs = __loader__.get_data(os.path.join(os.path.dirname(__file__), ARCHIVE))
    except OSError:
        sys.exit("this is no kit: `gpu.py kit FILE` writes one, and `gpu.py test` builds and runs the programs here")
    with tarfile.open(fileobj=io.BytesIO(programs)) as archive:
        archive.extractall(into, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return {file.name: file for file in into.iterdir()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", choices=("test", "kit", "run"))
    parser.add_argument("file", nargs="?", type=Path, help="the kit to write")
    parser.add_argument("--out", type=Path, help="directory of the report")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if (given.action == "kit") != (given.file is not None):
        parser.error("kit takes the file to write; test and run take no file")
    if given.action == "kit":
        kit(given.file)
        return 0
    # The programs run in another folder.
    out = given.out and given.out.resolve()
    if given.action == "test":
        return 0 if run(built(), out or ROOT / ".cache" / "gpu-test", given.quick) else 1
    with tempfile.TemporaryDirectory() as folder:
        return 0 if run(unpacked(Path(folder)), out or Path("gpu-report").resolve(), given.quick) else 1


if __name__ == "__main__":
    sys.exit(main())
