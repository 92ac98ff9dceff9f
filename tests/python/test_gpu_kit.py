"""What `make gpu-kit` runs on a card, except the suites that cargo runs: in a quick form, on the stand-in for CUDA's
libraries."""

import json
import os
import subprocess

import fetch
import gpu
from server import ROOT


def executable(name, *command):
    """Returns the program that cargo has built under a name."""
    told = subprocess.run(
        ["cargo", "build", *command, "--message-format", "json"], cwd=ROOT, check=True, capture_output=True, timeout=1200
    )
    made = (json.loads(line) for line in told.stdout.splitlines() if line.startswith(b"{"))
    return next(one["executable"] for one in made if one.get("executable") and one["target"]["name"] == name)


def test_times_and_loads_are_measured_and_reported(program, stand_in, tmp_path, monkeypatch):
    for name, value in stand_in.items():
        monkeypatch.setenv(name, value)
    runtime = os.environ.get("ORT_DYLIB_PATH") or fetch.PIECES["runtime"]()
    programs = {gpu.SERVER: program, gpu.TIMES: executable("cards", "--bench", "cards"), gpu.RUNTIME: runtime}
    assert gpu.run(programs, tmp_path, quick=True), (tmp_path / "report.json").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    steps = report["times"]["steps"]
    assert {step["precision"] for step in steps} == {"ieee", "tf32", "bf16", "fp16"}
    assert all(step["microseconds"] > 0 and step["floor_microseconds"] > 0 for step in steps)
    for model, policies in (("lstm", 1), ("resnet50", 2)):
        for load in report["under load"][model]["loads"]:
            assert len(load["policies"]) == policies, model
            assert all(one["requests"] > 0 for policy in load["policies"] for one in policy["rounds"]), model


def test_what_fails_on_the_card_fails_the_run_and_is_told(tmp_path):
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho the card is lost\nexit 3\n")
    failing.chmod(0o755)
    programs = dict.fromkeys([*gpu.SUITES, gpu.SERVER, gpu.TIMES, gpu.RUNTIME], failing)
    assert not gpu.run(programs, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    for part in (*report["suites"].values(), report["times"], report["under load"]["models"]):
        assert part["status"] == 3
        assert "the card is lost" in part.get("said", part.get("closing"))
