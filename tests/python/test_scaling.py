"""How the server scales: tables are complete and every answer is right. Speeds are not asserted. Counting waits for
locks needs root, and a kernel with probes in programs."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

TRACING = [Path("/sys/kernel/tracing"), *(Path(line.split()[1]) for line in open("/proc/mounts") if line.split()[2] == "tracefs")]


@pytest.fixture(scope="module")
def tracing():
    """Returns the folder in which probes are set."""
    writable = [folder for folder in TRACING if os.access(folder / "uprobe_events", os.W_OK)]
    if not writable or not shutil.which("nm"):
        pytest.skip("counting waits for locks needs root, tracefs with uprobes, and nm")
    return writable[0]


def run(script, program, *words):
    command = [sys.executable, ROOT / "scripts" / script, "--binary", program, "--quick", "--seconds", "0.3", *words]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)


def test_waits_are_counted_and_probes_taken_off_again(program, tracing):
    before = (tracing / "uprobe_events").read_text()
    done = run("contention.py", program, "--threads", "2", "--tracing", tracing)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if re.match(r"\| (identity|minilm|lstm)", line)]
    assert [row[:3] for row in rows] == [[name, "2", shards] for shards in "12" for name in ("identity", "minilm, glue-short", "lstm, closed-22")]
    assert any(int(row[3]) > 0 for row in rows) and all(float(row[4]) >= 0 for row in rows)
    assert (tracing / "uprobe_events").read_text() == before


def test_where_probes_cannot_be_set_the_script_says_what_it_needs(program, tmp_path):
    done = run("contention.py", program, "--tracing", tmp_path)
    assert done.returncode == 1 and "expected root and `mount -t tracefs" in done.stderr


def test_servers_with_different_flags_are_measured_beside_each_other(program, tmp_path):
    few = ["--rounds", "2", "--warm-up", "0", "--samples", "4", "--tables", tmp_path]
    done = run("scaling.py", program, "--parts", "shards", *few)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "scaling-shards.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    cases = {("identity", "8"), ("identity", "64"), ("minilm, glue-short", "32"), ("lstm, closed-22", "32")}
    assert {(row["case"], row["in_flight"]) for row in rows} == cases
    names = list(dict.fromkeys(row["server"] for row in rows))
    assert names[0] == "1 shard(s)" and len(names) in (1, 2)
    assert len(rows) == len(cases) * len(names) * 2
    assert {(row["wrong"], row["failed"]) for row in rows} == {("0", "0")}
    assert all(re.search(rf"^{re.escape(name)}: \d+ MiB in huge pages of \d+ resident$", done.stdout, re.MULTILINE) for name in names)


def test_a_part_that_does_not_exist_is_named(program):
    done = run("scaling.py", program, "--parts", "sockets")
    assert done.returncode == 2 and "there is no part 'sockets'; there are lanes, shards, pages" in done.stderr
