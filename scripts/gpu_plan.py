"""What runs on a card, in two calls. Each has a time limit, of which half is kept for timings. After each part the
report and an archive of all logs are written anew, so that they are there whatever the next part does."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import traceback
from pathlib import Path

import gpu_report
import gpu_sanitizer
import gpu_splits
import gpu_suites
import gpu_tables
import gpu_versions
from gpu_load import served, under_load
from gpu_programs import KERNELS, PYTORCH, RUNTIME, TIMES, Clock, end_of, ran

#: Time limits of the two calls, in seconds.
FIRST_SECONDS, SECOND_SECONDS = 180, 300
SUITES = ("device", "planner", "cards")
QUERY = "--query-gpu=name,driver_version,memory.total,power.limit,power.draw,clocks.sm,clocks.mem"
QUERIED = ("name", "driver", "memory", "power limit", "idle power", "processor clock", "memory clock")
#: The networks that the first call times.
FEW_NETWORKS = "lstm, step;minilm, 16 tokens;linknet"
#: The times in seconds that parts have at most, and that are kept for those after them.
DEVICE_SECONDS, FEW_TIMES_SECONDS, PYTORCH_SECONDS, RERUN_SECONDS = 30, 45, 50, 25
#: What PyTorch takes to start, and its last measurement to end.
STARTING_SECONDS = 12
#: Larger files are not archived.
FILE_BYTES_MAX = 8 << 20
TIMES_SECONDS, SERVED_SECONDS, LOADS_SECONDS, BESIDE_STAGES_SECONDS, ENDING_SECONDS = 100, 30, 100, 10, 3


def kept(entry):
    """Leaves out of an archive what is too large to come back from a lent machine: dumps of a whole card, say."""
    return entry if entry.isdir() or (entry.isfile() and entry.size <= FILE_BYTES_MAX) else None


class Results:
    """The folder of a run's logs and report, and the archive that has both."""

    def __init__(self, folder, archive):
        self.folder, self.archive, self.report = folder, archive, {}
        folder.mkdir(parents=True, exist_ok=True)

    def keep(self, part, found):
        """Adds a part to the report, and writes report and archive."""
        self.report[part] = found
        self.write()

    def write(self):
        (self.folder / "report.json").write_text(json.dumps(self.report, indent=1) + "\n")
        try:
            text = "\n".join(gpu_report.lines(self.report))
        except Exception:  # noqa: BLE001
            # The archive still has all that was measured.
            text = traceback.format_exc()
        (self.folder / "report.md").write_text(text + "\n")
        self.archive.parent.mkdir(parents=True, exist_ok=True)
        new = self.archive.with_name(self.archive.name + ".new")
        with tarfile.open(new, "w:gz", compresslevel=4) as archive:
            archive.add(self.folder, "gpu-report", filter=kept)
        new.replace(self.archive)


class Run:
    """One call: the programs, where their results go, and the time that is left."""

    def __init__(self, programs, results, seconds, quick=False, slower=1):
        self.programs, self.results, self.quick = programs, results, quick
        #: How many times the time of a card's parts these have.
        self.slower = slower
        self.clock = Clock(seconds - ENDING_SECONDS)
        # Compiled kernels are kept from one program to the next.
        self.kernels = results.folder.parent / "gpu-kernels"
        if KERNELS in programs:
            shutil.copytree(programs[KERNELS], self.kernels, dirs_exist_ok=True)
        self.known = self.kernel_files()
        paths = [*gpu_versions.folders(), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        self.environment = {
            **os.environ, "CUDA_TESTS_ON_CARD": "1", "ORT_DYLIB_PATH": str(programs[RUNTIME]),
            "LD_LIBRARY_PATH": ":".join(paths), "RUST_BACKTRACE": "1",
            # A fault on the card leaves a file that names its kernel and address.
            "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "1",
            "CUDA_COREDUMP_FILE": str(results.folder / "core_%h_%p"),
        }  # fmt: skip

    @property
    def folder(self):
        return self.results.folder

    def kernel_files(self):
        return {file.name for file in self.kernels.glob("*.cubin")}

    def compiled(self):
        """Returns how many programs of kernels the call found compiled, and how many it compiled itself."""
        return {"found": len(self.known), "compiled": len(self.kernel_files() - self.known)}

    def part(self, seconds, reserved=0):
        """Returns the clock of a part, in seconds of a card."""
        return self.clock.part(seconds * self.slower, reserved)

    def do(self, part, measure, *words):
        """Runs a part. An error of these scripts ends the part, not the run."""
        try:
            found = measure(*words)
        except Exception:  # noqa: BLE001
            found = {"status": 1, "said": traceback.format_exc()}
        print(f"{part} ({self.clock.left():.0f} s left): {gpu_report.summary(part, found)}", flush=True)
        self.results.keep(part, found)
        return found

    def card(self):
        """Returns what the driver's tool says of the first card before anything runs on it."""
        try:
            told = subprocess.run(
                ["nvidia-smi", QUERY, "--format=csv,noheader"], check=True, capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.SubprocessError) as error:
            return {"unknown": str(error)}
        return dict(zip(QUERIED, (part.strip() for part in told.stdout.splitlines()[0].split(","))))

    def suites(self, names, clock, is_chosen=lambda name: True):
        return gpu_suites.run(self.programs, names, self.environment, self.folder / "tests", clock, is_chosen)

    def device(self):
        """Runs the tests of the device. If none passes on the card, one of them runs again in two other ways."""
        clock = self.part(DEVICE_SECONDS)
        results = self.suites(["device"], clock)
        on_card = {name: found for name, found in results["device"].items() if "cuda" in name}
        outcomes = {found["outcome"] for found in on_card.values()}
        if gpu_suites.PASSED not in outcomes and gpu_suites.failed(results):
            results["lost"] = True
            name = next(name for suite, name in gpu_suites.failed(results))
            place = self.folder / "tests" / "again"
            place.mkdir(parents=True, exist_ok=True)
            eager = self.environment | {"CUDA_MODULE_LOADING": "EAGER"}
            clock = self.part(2 * gpu_suites.SECONDS)
            results["eager"] = {name: gpu_suites.one(self.programs["device"], name, eager, place, clock)}
            again = gpu_sanitizer.again(
                self.programs, [("device", name)], self.environment, self.folder / "tests" / "sanitizer", clock
            )
            results["sanitizer"] = again["tests"]
        return results

    def times(self, seconds, only=None):
        file = self.folder / "steps.json"
        file.unlink(missing_ok=True)
        clock = self.part(seconds)
        command = [self.programs[TIMES], "--json", file, "--cuda-kernel-directory", self.kernels]
        command += ["--seconds", max(1, int(clock.left() - 5)), *(["--quick"] if self.quick else [])]
        command += ["--only", only] if only and not self.quick else []
        ended = ran(command, self.environment, self.folder / "times.log", clock)
        measured = json.loads(file.read_text()) if file.is_file() else {"steps": [], "skipped": []}
        print(ended.text, flush=True)
        return measured | ({} if ended.status == 0 else {"status": ended.status, "said": end_of(ended.text)})

    def pytorch(self, seconds):
        """Times the same networks as PyTorch runs them, in captured graphs, if this Python has it."""
        if importlib.util.find_spec("torch") is None:
            return {"steps": [], "skipped": [["all networks", f"{sys.executable} has no PyTorch"]]}
        file = self.folder / "pytorch.json"
        file.unlink(missing_ok=True)
        clock = self.part(seconds)
        command = [sys.executable, self.programs[PYTORCH], file, "--seconds", max(1, int(clock.left() - STARTING_SECONDS))]
        ended = ran(command, dict(os.environ), self.folder / "pytorch.log", clock)
        measured = json.loads(file.read_text()) if file.is_file() else {"steps": []}
        return measured | ({} if ended.status == 0 else {"status": ended.status, "said": end_of(ended.text)})

    def stages(self):
        """Times networks in stages, in the time that is left; returns the times and what they mean for splitting."""
        file = self.folder / "stages.json"
        file.unlink(missing_ok=True)
        budget = max(1, int(self.clock.left() - BESIDE_STAGES_SECONDS))
        command = [self.programs[TIMES], "--stages", "--budget-s", budget, "--json", file]
        command += ["--cuda-kernel-directory", self.kernels, *(["--quick"] if self.quick else [])]
        ended = ran(command, self.environment, self.folder / "stages.log", self.clock)
        measured = json.loads(file.read_text()) if file.is_file() else {"times": [], "skipped": []}
        if ended.status != 0 or not measured["times"]:
            measured |= {"status": ended.status or 1, "said": end_of(ended.text)}
        measured["splits"] = gpu_splits.judged(measured)
        return measured

    def tables(self):
        """Writes what was measured as tables for the simulator; returns their names."""
        report = self.results.report
        times, staged = report.get("times", {}), report.get("stages", {"times": []})
        name = staged.get("card") or times.get("card") or "unknown card"
        for stale in (self.folder / "tables").glob("*.json"):
            stale.unlink()
        return gpu_tables.write(self.folder / "tables", name, staged, times.get("steps", []), watts(report))


def watts(report):
    """Returns the power of the idle card, and the highest mean power of a load; None if one of them is unknown."""
    models = report.get("under load", {}).values()
    loads = (load for model in models if isinstance(model, dict) for load in model.get("loads", []))
    rounds = (one for load in loads for policy in load["policies"] for one in policy["rounds"])
    busy = max((one["joules"] / one["seconds"] for one in rounds if one["joules"]), default=None)
    try:
        idle = float(report["card"].get("idle power", "").removesuffix("W"))
    except ValueError:
        return None
    return (idle, busy) if busy and busy >= idle else None


def first(run):
    """Whether the code is right on the card: the device, a few times, then all tests."""
    run.do("card", run.card)
    run.do("versions", gpu_versions.found)
    device = run.do("device", run.device)
    if device.get("lost"):
        return
    run.do("times", run.times, FEW_TIMES_SECONDS, FEW_NETWORKS)
    run.do("kernels", run.compiled)
    run.do("pytorch", run.pytorch, PYTORCH_SECONDS)
    suites = run.do("suites", run.suites, ["cards", "planner"], run.part(FIRST_SECONDS, RERUN_SECONDS))
    tests = [*gpu_suites.failed(device), *gpu_suites.failed(suites)] if "said" not in suites else []
    if not tests:
        tests = [(gpu_sanitizer.SUITE, name) for name in gpu_sanitizer.TESTS]
    place = run.folder / "tests" / "sanitizer"
    run.do("sanitizer", gpu_sanitizer.again, run.programs, tests, run.environment, place, run.clock)


def second(run):
    """How fast it is: networks, loads, then networks in stages."""
    run.do("card", run.card)
    run.do("versions", gpu_versions.found)
    run.do("times", run.times, TIMES_SECONDS)
    run.do("pytorch", run.pytorch, PYTORCH_SECONDS)
    run.do("served", served, run, run.part(SERVED_SECONDS))
    run.do("under load", under_load, run, run.part(LOADS_SECONDS))
    run.do("stages", run.stages)
    run.do("kernels", run.compiled)
    run.do("tables", run.tables)


#: The calls by name, with their time limits.
CALLS = {"first": (first, FIRST_SECONDS), "second": (second, SECOND_SECONDS)}


def call(name, programs, out, archive, quick=False, seconds=None):
    """Runs one of the two calls; returns whether everything in it passed."""
    plan, limit = CALLS[name]
    seconds = seconds or limit
    run = Run(programs, Results(out, archive), seconds, quick, max(1, seconds / limit))
    plan(run)
    print(f"the report is {out / 'report.md'}; {archive} has it and all logs", flush=True)
    return not gpu_report.failures(run.results.report)
