"""The program's version, and the completions of shells."""

import os
import re
import shlex
import subprocess

import fetch
import pytest
from conftest import fetched

#: Makes bash complete a line as at the prompt. The arguments are the script, then the words.
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_paternoster paternoster "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def called(program, *words, **variables):
    unset = ("ORT_DYLIB_PATH", "OPENVINO_DYLIB_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60, env={**environment, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_names_commit_and_engine(program, flag):
    library = os.environ["ORT_DYLIB_PATH"]
    lines = called(program, flag, ORT_DYLIB_PATH=library).splitlines()
    assert re.fullmatch(r"paternoster \d+\.\d+\.\d+", lines[0])
    assert re.fullmatch(r"commit: ([0-9a-f]{40}|unknown), with tools", lines[1])
    assert re.fullmatch(r"ONNX Runtime: 1\.\d+\.\d+, " + re.escape(library), lines[2])
    assert lines[3].startswith("OpenVINO: ")
    assert lines[4:] == ["CUDA: not used: no CUDA driver is installed (libcuda.so.1 is not found)"]


def test_the_version_names_the_openvino_that_is_found(program, tmp_path):
    library = str(fetched(fetch.openvino))
    lines = called(program, "--version", OPENVINO_DYLIB_PATH=library).splitlines()
    assert re.fullmatch(r"OpenVINO: 20\d\d\.\d+\.\S+, " + re.escape(library), lines[3])
    missing = called(program, "--version", OPENVINO_DYLIB_PATH=str(tmp_path / "missing.so")).splitlines()
    assert missing[3].startswith("OpenVINO: not found: OpenVINO library ")


def test_without_an_engine_the_version_says_what_is_missing(program, tmp_path):
    missing = tmp_path / "missing.so"
    assert f"ONNX Runtime: not found: ONNX Runtime library '{missing}'" in called(program, "--version", ORT_DYLIB_PATH=str(missing))
    other = tmp_path / "other.so"
    other.write_bytes(b"no library")
    assert "ONNX Runtime: not found: cannot load ONNX Runtime from" in called(program, "--version", ORT_DYLIB_PATH=str(other))


def completed(program, tmp_path, line):
    """Returns the completions that bash offers at the end of a line."""
    script = tmp_path / "paternoster.bash"
    script.write_text(called(program, "completions", "bash"))
    command = ["bash", "-c", COMPLETE, "complete", script, *shlex.split(line.replace("|", "''"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


def test_bash_completes_subcommands_and_flags(program, tmp_path):
    assert completed(program, tmp_path, "paternoster serv") == {"serve"}
    assert {"serve", "bench", "profile", "completions"} <= completed(program, tmp_path, "paternoster |")
    assert "--model-repository" in completed(program, tmp_path, "paternoster serve --model-r")
    assert completed(program, tmp_path, "paternoster completions f") == {"fish"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_that_knows_every_flag_of_serve(program, shell):
    script = called(program, "completions", shell)
    flags = re.findall(r"^ +(?:-\w, )?--([\w-]+)", called(program, "serve", "--help"), re.MULTILINE)
    assert len(flags) > 80
    assert [flag for flag in flags if flag not in script] == []
