"""The clients of clients/, each in its language, against the example repository: their output, and that they fail on a
server without the models."""

import subprocess
import sys

import fetch
import pytest
from conftest import ROOT, example, fetched

CLIENTS = ROOT / "clients"
ANSWERS = "identity: 16 numbers, as sent\nrepeat: 3 responses\n"


@pytest.fixture(scope="module")
def examples(made_models):
    return made_models("examples", "--only", "identity,repeat")


def python(_):
    return [sys.executable, CLIENTS / "python" / "client.py"]


def rust(_):
    return [example("client")]


def go(scratch):
    toolchain = fetched(fetch.go_compiler)
    program = scratch / "client"
    command = [toolchain, "build", "-o", program, "main.go"]
    subprocess.run(command, cwd=CLIENTS / "go", check=True, capture_output=True, timeout=600)
    return [program]


def javascript(_):
    return [fetched(fetch.node), CLIENTS / "javascript" / "client.mjs"]


#: How each is started, and the address of its protocol.
LANGUAGES = {"python": (python, "{grpc}"), "rust": (rust, "http://{grpc}"), "go": (go, "{http}"), "javascript": (javascript, "{http}")}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_client_is_answered(language, start, examples, tmp_path):
    begin, address = LANGUAGES[language]
    command = begin(tmp_path)
    server = start(examples)

    words = [*command, address.format(grpc=server.grpc, http=server.http)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ANSWERS), done.stderr


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_client_says_why_it_was_refused(language, explicit, tmp_path):
    server, _, _ = explicit
    begin, address = LANGUAGES[language]
    words = [*begin(tmp_path), address.format(grpc=server.grpc, http=server.http)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "identity" not in done.stdout
    assert "unknown model" in done.stderr, done.stderr


def test_each_fits_on_a_screen_or_two():
    for program in CLIENTS.glob("*/*.*"):
        assert len(program.read_text().splitlines()) <= 110, program
