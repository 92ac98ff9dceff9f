"""The comparison of texts to vectors, in a quick form: its table is complete, and vectors that differ are found out.
Speeds are not asserted."""

import csv
import os
import subprocess

import fetch
import pytest
from conftest import ROOT, fetched

SCRIPT = ROOT / "scripts" / "compare_text.py"
SIDES = ("plain loop", "fastembed", "paternoster")


@pytest.fixture(scope="module")
def compare(program, tmp_path_factory):
    """Returns a function that runs the script: (exit status, output, error output)."""
    python = fetched(fetch.text_peers)

    def run(*words, binary=program):
        scratch = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
        command = [str(word) for word in (python, SCRIPT, "--quick", "--binary", binary, *words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, **scratch})
        return done.returncode, done.stdout, done.stderr

    return run


def test_every_side_has_every_round_and_the_steps_of_a_pipeline_are_measured(compare, tmp_path):
    files = ["--csv", tmp_path / "out.csv", "--svg", tmp_path / "out.svg"]
    status, printed, complaints = compare("--only", "glue-short,mixed", *files)
    assert status == 0, complaints
    assert "vectors of all sides differ by at most" in printed
    for fact in ("CPU: ", "memory: ", "load average", "paternoster 0.", "ONNX Runtime: "):
        assert f"\n{fact}" in printed, fact
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = sorted((row["case"], row["in_flight"], row["server"], row["round"]) for row in rows)
    cases = [(case, in_flight) for case in ("glue-short", "mixed") for in_flight in ("1", "4")]
    assert found == sorted((*case, side, turn) for case in cases for side in SIDES for turn in ("1", "2"))
    assert all(float(row["requests_per_s"]) > 0 and int(row["requests"]) >= 2 for row in rows)
    steps = printed.split("| in flight | p50, one model |")[1].splitlines()[2:4]
    assert [line.split(" | ")[0] for line in steps] == ["| 1", "| 4"]
    drawn = (tmp_path / "out.svg").read_text()
    for word in ("glue-short", "mixed", "1 in flight", "4 in flight", *SIDES):
        assert f">{word}<" in drawn, word


def test_vectors_that_differ_are_found_out(compare, program, tmp_path):
    """A server that cuts texts after five tokens."""
    binary = tmp_path / "cutting"
    binary.write_text(
        f"""#!/bin/sh
if [ "$1" != models ]; then exec "{program}" "$@"; fi
"{program}" "$@" && sed -i 's/max_tokens: 256/max_tokens: 5/' "$3/sentences/model.yaml"
"""
    )
    binary.chmod(0o755)
    status, printed, complaints = compare("--only", "mixed", "--csv", tmp_path / "out.csv", binary=binary)
    assert status == 1 and "a vector differs by" in complaints, complaints
    assert not (tmp_path / "out.csv").exists() and "texts/s" not in printed


def test_an_unknown_kind_of_texts_is_said(compare):
    status, _, complaints = compare("--only", "long")
    assert status == 1 and "there is no kind of texts 'long'; the kinds are: glue-short, glue-pair, mixed" in complaints
