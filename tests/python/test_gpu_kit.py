"""What `make gpu-kit` runs on a card, except the suites that cargo runs: in a quick form, on the stand-in for CUDA's
libraries."""

import json
import os
import subprocess
import time
from pathlib import Path

import fetch
import gpu
import gpu_load
import gpu_report
import gpu_sanitizer
import gpu_splits
from server import ROOT

#: Stages of the networks that are measured in stages.
STAGES = {"linknet-32": 4, "bert-base": 2}


def executable(name, *command):
    """Returns the program that cargo has built under a name."""
    told = subprocess.run(
        ["cargo", "build", *command, "--message-format", "json"], cwd=ROOT, check=True, capture_output=True, timeout=1200
    )
    made = (json.loads(line) for line in told.stdout.splitlines() if line.startswith(b"{"))
    return next(one["executable"] for one in made if one.get("executable") and one["target"]["name"] == name)


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
    programs = {gpu.SERVER: program, gpu.TIMES: executable("cards", "--bench", "cards"), gpu.RUNTIME: runtime()}
    assert gpu.run(programs, tmp_path, quick=True), (tmp_path / "report.json").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    steps = report["times"]["steps"]
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


def test_what_fails_on_the_card_fails_the_run_and_is_told(tmp_path):
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho the card is lost\nexit 3\n")
    failing.chmod(0o755)
    # An earlier run has left its times.
    earlier = tmp_path / "out" / "stages.json"
    earlier.parent.mkdir()
    earlier.write_text(json.dumps({"card": "a card", "times": [], "skipped": []}))
    programs = dict.fromkeys([*gpu.SUITES, gpu.SERVER, gpu.TIMES, gpu.RUNTIME], failing)
    assert not gpu.run(programs, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["tables"] == []
    assert "card" not in report["stages"]
    for part in (*report["suites"].values(), report["times"], report["under load"]["models"], report["stages"]):
        assert part["status"] == 3
        assert "the card is lost" in part.get("said", part.get("closing"))


def test_a_subset_runs_under_the_sanitizer_where_there_is_one(tmp_path, monkeypatch):
    until = time.monotonic() + 60
    suite, tool = tmp_path / "suite", tmp_path / "bin" / "compute-sanitizer"
    suite.write_text('#!/bin/sh\necho "$@"\necho "test result: ok. 3 passed"\n')
    tool.parent.mkdir()
    # It leaves out its own four words, and runs the rest.
    tool.write_text('#!/bin/sh\nshift 4\n"$@"\necho "========= ERROR SUMMARY: $ERRORS errors"\nexit "${STATUS:-0}"\n')
    for program in (suite, tool):
        program.chmod(0o755)
    programs, environment = {gpu_sanitizer.SUITE: suite}, dict(os.environ)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    if not Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        skipped = gpu_sanitizer.sanitized(programs, environment, tmp_path, until)
        assert [*gpu_report.sanitizer(skipped)][0].startswith("Skipped: compute-sanitizer is neither")
    monkeypatch.setenv("PATH", str(tool.parent))
    passed = gpu_sanitizer.sanitized(programs, environment | {"ERRORS": "0"}, tmp_path, until)
    log = (tmp_path / "sanitizer.log").read_text()
    assert all(test in log for test in gpu_sanitizer.TESTS)
    assert passed["status"] == 0 and [*gpu_report.sanitizer(passed)] == [
        "Passed: test result: ok. 3 passed; ========= ERROR SUMMARY: 0 errors"
    ]
    failed = gpu_sanitizer.sanitized(programs, environment | {"ERRORS": "2", "STATUS": "99"}, tmp_path, until)
    assert failed["status"] == 99
    assert [*gpu_report.sanitizer(failed)][0].endswith("ERROR SUMMARY: 2 errors")
    # `exec`, so that nothing is left behind when the tool is killed.
    tool.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.defpath}")
    monkeypatch.setattr(gpu_sanitizer, "SECONDS", 0)
    late = gpu_sanitizer.sanitized(programs, environment, tmp_path, until)
    assert late["status"] is None
    assert [*gpu_report.sanitizer(late)] == ["Failed (exit status None): not done after 1 s"]


def test_the_subset_of_the_sanitizer_names_tests_that_exist():
    for test in gpu_sanitizer.TESTS:
        module, name = test.split("::")
        assert f"fn {name}" in (ROOT / "tests" / gpu_sanitizer.SUITE / f"{module}.rs").read_text(), test
