"""What `make gpu-kit` runs on a card, except the suites that cargo runs: in a quick form, on the stand-in for CUDA's
libraries."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import cubins
import fetch
import gpu
import gpu_load
import gpu_plan
import gpu_report
import gpu_sanitizer
import gpu_splits
import gpu_suites
from gpu_programs import PYTORCH, RUNTIME, SERVER, TIMES, Clock
from server import ROOT

#: Stages of the networks that are measured in stages.
STAGES = {"linknet-32": 4, "bert-base": 2}


def runtime():
    return os.environ.get("ORT_DYLIB_PATH") or fetch.PIECES["runtime"]()


def simulated(program, folder, model):
    """Simulates a model of a table with two policies; returns how many requests each completed."""
    table = folder / f"{model.rsplit('-', 1)[0]}.json"
    words = ["simulate", "--table", table, "--model", model, "--load", "0.5", "--requests", "200", "--json"]
    words += ["--policy", "window: { max_queue_delay_us: 0 }", "--policy", "diversity: { operator: true }"]
    done = subprocess.run([str(part) for part in (program, *words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_times_and_loads_are_measured_and_reported(program, stand_in, tmp_path, monkeypatch):
    for name, value in stand_in.items():
        monkeypatch.setenv(name, value)
    programs = {SERVER: program, TIMES: os.environ["PATERNOSTER_CARDS_BENCH"], RUNTIME: runtime()}
    programs[PYTORCH] = ROOT / "scripts" / PYTORCH
    archive = tmp_path / "second.tar.gz"
    out = tmp_path / "report"
    # Far longer than on a card: the stand-in computes on the CPU, which may be busy.
    passed = gpu_plan.call("second", programs, out, archive, quick=True, seconds=3600)
    report = json.loads((out / "report.json").read_text())
    assert passed, {part: gpu_report.summary(part, report[part]) for part in gpu_report.failures(report)}
    tmp_path = out
    with tarfile.open(archive) as packed:
        assert "gpu-report/report.json" in packed.getnames() and "gpu-report/times.log" in packed.getnames()
    assert set(report["versions"]) == {"driver", "NVRTC", "cuBLASLt", "cuDNN"}
    assert report["served"]["loads"][0]["policies"][0]["total"]["requests"] > 0
    steps = report["times"]["steps"]
    assert report["times"]["skipped"] == []
    assert {step["precision"] for step in steps} == {"ieee", "tf32", "bf16", "fp16"}
    assert all(step["microseconds"] > 0 and step["floor_microseconds"] > 0 for step in steps)
    staged = report["stages"]
    assert staged["skipped"] == []
    measured = {(times["network"], times["precision"]): times for times in staged["times"]}
    assert set(measured) == {(name, kind) for name in ("linknet-32", "bert-base") for kind in ("ieee", "fp16")}
    for (network, _), times in measured.items():
        assert [[point["rows"] for point in stage] for stage in times["cut"]["stages"]] == [[1, 2, 4]] * STAGES[network]
        assert {point["length"] for stage in times["cut"]["stages"] for point in stage} == {times["length"]}
        assert len(times["alone"]["stages"]) == STAGES[network]
        assert all(stage[0]["rows"] == 1 for stage in times["alone"]["stages"])
    text = (tmp_path / "report.md").read_text()
    for times in measured.values():
        verdict = staged["splits"][gpu_splits.title(times)]["verdict"]
        assert verdict.startswith(("splitting", "no verdict"))
        assert f"### {gpu_splits.title(times)}" in text
        assert verdict in text
    assert report["tables"] == ["linknet-32.json", "bert-base.json", "lstm.json"]
    for model in ("linknet-32-fp16", "bert-base-ieee", "lstm-tf32"):
        assert simulated(program, tmp_path / "tables", model), model
    for model, policies in (("lstm", 1), ("resnet50", 2)):
        for load in report["under load"][model]["loads"]:
            assert len(load["policies"]) == policies, model
            assert all(one["requests"] > 0 for policy in load["policies"] for one in policy["rounds"]), model
            assert all(policy["total"]["joules_per_request"] > 0 for policy in load["policies"]), model
    traced = report["under load"][gpu_load.TRACED]["loads"]
    assert [load["at"] for load in traced] == [0.25, 0.6, 0.9]
    for policies in (load["policies"] for load in traced):
        assert [policy["policy"].removesuffix(", stages: 2") for policy in policies] == gpu_load.TRACE_POLICIES
        (requests,) = {policy["total"]["requests"] for policy in policies}
        assert 0 < requests <= gpu_load.FEW_REQUESTS
    assert "## One trace, several policies" in text
    assert "not measured" not in text


def test_a_load_says_why_its_energy_is_not_measured(program, stand_in, tmp_path):
    # The same stand-in without the library that counts energy.
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for library in Path(stand_in["LD_LIBRARY_PATH"]).glob("lib*"):
        if "nvidia-ml" not in library.name:
            (libraries / library.name).symlink_to(library.resolve())
    models = tmp_path / "models"
    making = [program, "models", "--out", models, "--only", "lstm", "--quarter"]
    subprocess.run([str(part) for part in making], check=True, capture_output=True, timeout=120)
    words = ["bench", "--model-repository", models, "--model", "lstm", "--device=cuda", "--length", "3", "--rate", "20"]
    words += ["--seconds", "0.2", "--warm-up-seconds", "0", "--rounds", "1", "--samples", "4", "--json"]
    command = [str(part) for part in (program, *words)]
    environment = {**os.environ, **stand_in, "LD_LIBRARY_PATH": str(libraries), "ORT_DYLIB_PATH": str(runtime())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout[done.stdout.index("{") :])
    assert measured["energy_not_measured"].startswith("NVML does not know the cards: ")
    (policy,) = measured["loads"][0]["policies"]
    assert policy["total"]["joules_per_request"] is None


def suite(file, tests):
    """Writes a program that is used as those of cargo's tests are. `tests` has the shell commands of each."""
    cases = "\n".join(f"{name}) {commands} ;;" for name, commands in tests.items())
    names = "\n".join(f"{name}: test" for name in tests)
    listing = f'case "$*" in *--ignored*) ;; *) echo "{names}" ;; esac'
    file.write_text(f'#!/bin/sh\nif [ "$1" = --list ]; then {listing}; exit 0; fi\ncase "$2" in\n{cases}\nesac\n')
    file.chmod(0o755)
    return file


PASSES = "echo 'test result: ok. 1 passed'"


def broken(folder):
    """Returns programs that fail in every way in which a card can make them fail."""
    lost = "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
    refused = "a convolution of [8, 3, 224, 224] with 64 kernels of 7 x 7 cannot be planned: cuDNN: CUDNN_STATUS_BAD_PARAM"
    measured = json.dumps({"card": "a card", "steps": [], "skipped": [["resnet50, fp16", refused]]})
    times = folder / "times"
    # It writes what was measured before the card was lost.
    times.write_text(f"#!/bin/sh\n[ \"$1\" = --json ] && echo '{measured}' > \"$2\"\necho '{lost}' >&2\nexit 1\n")
    missing = "echo 'error while loading shared libraries: libcublasLt.so.13' >&2; exit 127"
    server = folder / "server"
    server.write_text(f"#!/bin/sh\n{missing}\n")
    planner = folder / "planner"
    planner.write_text(f"#!/bin/sh\n{missing}\n")
    for program in (times, server, planner):
        program.chmod(0o755)
    device = suite(folder / "device", {"cuda::fine": PASSES, "cuda::faulty": f"echo 'the launch failed: {lost}'; exit 101"})
    cards = suite(folder / "cards", {"hangs": "echo 'it begins'; sleep 600", "fine": PASSES})
    absent = folder / "absent"
    return {"device": device, "planner": planner, "cards": cards, TIMES: times, SERVER: server, RUNTIME: absent, PYTORCH: absent}


def test_a_fault_costs_its_part_alone_and_is_in_the_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_suites, "SECONDS", 2)
    programs = broken(tmp_path)
    for name, seconds in (("first", 60), ("second", 60)):
        archive = tmp_path / f"{name}.tar.gz"
        began = time.monotonic()
        assert not gpu_plan.call(name, programs, tmp_path / name, archive, seconds=seconds)
        assert time.monotonic() - began < seconds
        unpacked = tmp_path / f"{name}-unpacked"
        with tarfile.open(archive) as packed:
            packed.extractall(unpacked)
        report = json.loads((unpacked / "gpu-report" / "report.json").read_text())
        text = (unpacked / "gpu-report" / "report.md").read_text()
        assert "resnet50, fp16 is left out: a convolution of [8, 3, 224, 224]" in text
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in report["times"]["said"]
        if name == "first":
            assert report["device"]["device"]["cuda::fine"]["outcome"] == gpu_suites.PASSED
            assert "the launch failed: CUDA_ERROR_ILLEGAL_ADDRESS" in report["device"]["device"]["cuda::faulty"]["said"]
            assert report["suites"]["cards"]["hangs"]["outcome"] == gpu_suites.LATE
            assert report["suites"]["cards"]["fine"]["outcome"] == gpu_suites.PASSED
            assert "libcublasLt.so.13" in report["suites"]["planner"]["--list"]["said"]
            assert "it begins" in (unpacked / "gpu-report/tests/cards/hangs.log").read_text()
            assert "device cuda::faulty" in report["sanitizer"]["tests"], "what failed runs again"
        else:
            assert "libcublasLt.so.13" in report["served"]["said"]
            assert "libcublasLt.so.13" in report["under load"]["models"]["said"]
            assert report["tables"] == []


def test_a_card_on_which_nothing_passes_is_given_back(tmp_path):
    programs = broken(tmp_path)
    programs["device"] = suite(tmp_path / "device", {"cuda::one": "exit 1", "sim::one": PASSES})
    assert not gpu_plan.call("first", programs, tmp_path / "out", tmp_path / "out.tar.gz", seconds=60)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report["device"]) == {"device", "lost", "eager", "sanitizer"}
    assert "times" not in report and "suites" not in report


def test_tests_run_under_the_sanitizer_where_there_is_one(tmp_path, monkeypatch):
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    # It leaves out its own four words, and runs the rest.
    tool.write_text('#!/bin/sh\nshift 4\n"$@"\necho "========= ERROR SUMMARY: $ERRORS errors"\nexit "${STATUS:-0}"\n')
    tool.chmod(0o755)
    programs = {gpu_sanitizer.SUITE: suite(tmp_path / "cards", {"one": f"{PASSES}; echo log $CUBLASLT_LOG_LEVEL"})}
    tests = [(gpu_sanitizer.SUITE, "one")]

    def again(**environment):
        return gpu_sanitizer.again(programs, tests, {**os.environ, **environment}, tmp_path / "logs", Clock(60))

    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    passed = again(ERRORS="0")
    assert passed["tool"] == str(tool) and passed["tests"]["cards one"]["outcome"] == gpu_suites.PASSED
    log = (tmp_path / "logs" / "one.log").read_text()
    assert "ERROR SUMMARY: 0 errors" in log and "log 5" in log
    failed = again(ERRORS="2", STATUS="99")["tests"]["cards one"]
    assert (failed["outcome"], failed["status"]) == (gpu_suites.FAILED, gpu_sanitizer.FOUND)
    assert "ERROR SUMMARY: 2 errors" in failed["said"]
    tool.unlink()
    if gpu_sanitizer.tool() is None:
        assert again()["tool"] is None
        assert "compute-sanitizer was not found" in next(iter(gpu_report.suites(again())))


def test_long_runs_are_no_part_of_a_call(tmp_path):
    program = suite(tmp_path / "suite", {"short": PASSES, "long": PASSES})
    text = program.read_text().replace("*--ignored*) ;;", "*--ignored*) echo 'long: test' ;;")
    program.write_text(text)
    results = gpu_suites.run({"suite": program}, ["suite"], dict(os.environ), tmp_path / "logs", Clock(60))
    assert list(results["suite"]) == ["short"]


def test_outside_a_kit_there_is_nothing_to_run(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "gpu.py", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "this is no kit" in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []
    # Before minutes of building.
    done = subprocess.run([*command[:2], "kit", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "is a directory" in done.stderr, done.stderr


def test_a_kit_has_all_scripts_that_it_needs(tmp_path):
    for script in gpu.SCRIPTS:
        shutil.copy2(ROOT / "scripts" / script, tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "gpu.py", "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


#: A program that writes the arguments that it was called with where `--json` says.
PROGRAM = """
#include <stdio.h>
#include <string.h>
int main(int count, char **arguments) {
    for (int at = 1; at + 1 < count; at++) {
        if (strcmp(arguments[at], "--json") == 0) {
            FILE *file = fopen(arguments[at + 1], "w");
            if (!file) return 2;
            fputs("{\\"card\\": \\"a card\\", \\"steps\\": [], \\"times\\": [], \\"skipped\\": []}", file);
            fclose(file);
        }
    }
    puts("test result: ok.");
    return 0;
}
"""


def test_a_kit_runs_where_it_is_alone(tmp_path, monkeypatch):
    # One small program takes the place of all that cargo builds, which other tests run.
    program = tmp_path / "program"
    subprocess.run(["c++", "-x", "c", "-o", program, "-"], input=PROGRAM, text=True, check=True, timeout=60)
    names = [*gpu_plan.SUITES, gpu.SERVER, gpu.TIMES, gpu.RUNTIME, gpu.PYTORCH]
    monkeypatch.setattr(gpu, "built", lambda: dict.fromkeys(names, program))

    def compiled(planner, folder, capabilities):
        assert planner == [program] and capabilities == ["9.0"]
        (folder / "sm_90").mkdir(parents=True)
        (folder / "sm_90" / "key.cubin").write_bytes(b"a binary")
        return True

    monkeypatch.setattr(cubins, "compiled", compiled)
    elsewhere = tmp_path / "elsewhere"
    gpu.kit(elsewhere / "gpu-kit")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = ["./gpu-kit", "run", "--out", "out"]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=60)
    # The program measures nothing.
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    reports = {
        name: json.loads((elsewhere / "out" / name / "report.json").read_text()) for name in ("first", "second")
    }
    assert reports["first"]["device"] == {"device": {}} and reports["first"]["suites"] == {"cards": {}, "planner": {}}
    assert reports["first"]["times"]["card"] == reports["second"]["stages"]["card"] == "a card"
    assert sorted(entry.name for entry in elsewhere.iterdir()) == ["gpu-kit", "out"]
    # The programs read and keep kernels there.
    assert (elsewhere / "out" / "gpu-kernels" / "key.cubin").read_bytes() == b"a binary"
    for report in reports.values():
        assert report["kernels"] == {"found": 1, "compiled": 0}
    assert {"first.tar.gz", "second.tar.gz"} < {entry.name for entry in (elsewhere / "out").iterdir()}
    for name in reports:
        assert (elsewhere / "out" / name / "report.md").read_text().startswith("# Report of a CUDA card")
