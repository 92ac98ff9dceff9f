"""The server built without the feature `tools`: it serves, and explains for each part that is left out why it is
missing."""

import os
import subprocess
from pathlib import Path

import pytest
import tritonclient.grpc as triton
from clients import ROW, tensor
from server import Server


@pytest.fixture(scope="module")
def lean():
    program = os.environ.get("PATERNOSTER_LEAN")
    if not program or not Path(program).exists():
        assert not os.environ.get("CI"), "scripts/test.py builds the server without tools and names it in PATERNOSTER_LEAN"
        pytest.skip("PATERNOSTER_LEAN names no server without tools")
    return program


def called(program, *words):
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60)


def test_it_serves(lean, made_models):
    models = made_models("tests", "--only", "identity")
    with Server(models, program=lean) as server, triton.InferenceServerClient(server.grpc) as client:
        assert client.infer("identity", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0").tolist() == [ROW.tolist()]
        assert server.complaints() == []


@pytest.mark.parametrize("name", ["models", "bench", "simulate", "timeline", "top", "completions"])
@pytest.mark.parametrize("words", [[], ["--help"], ["--out", "folder"], ["file", "--svg=x"]])
def test_a_missing_subcommand_names_the_feature(lean, name, words):
    refused = called(lean, name, *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == f"error: this program was built without '{name}', which needs the cargo feature 'tools'\n"


def test_help_lists_what_is_there(lean):
    listed = {line.split()[0] for line in called(lean, "--help").stdout.splitlines() if line.startswith("  ")}
    assert listed >= {"serve", "profile", "slice", "inspect"}
    assert not listed & {"models", "bench", "simulate", "timeline", "top", "completions"}


def test_profile_measures_and_draws_nothing(lean, program, made_models, tmp_path):
    words = ["profile", "--model-repository", made_models("tests", "--only", "identity"), "--model", "identity"]
    refused = called(lean, *words, "--svg", "out.svg")
    assert refused.returncode == 2
    assert "this program was built without plots, which need the cargo feature 'tools'" in refused.stderr
    measured = called(lean, *words, "--budget-s", "1", "--profile-directory", tmp_path)
    assert measured.returncode == 0, measured.stderr
    assert "kept in" in measured.stdout and list(tmp_path.iterdir())
    assert "--svg" in called(program, "profile", "--help").stdout
