"""`make demo` prints what it promises, in a checkout of the test's own that has the results of its prerequisites."""

import os
import re
import shutil
import subprocess

import demo
import fetch
import pytest
from conftest import ROOT

#: Sentences with the same meaning are adjacent.
PAIRS = list(zip(demo.SENTENCES[::2], demo.SENTENCES[1::2]))

#: The sentences that answer the questions.
FOUND = [demo.SENTENCES[1], demo.SENTENCES[11], demo.SENTENCES[7]]


#: Seconds of each load: the test asks whether there are figures, not what they are.
SECONDS_OF_LOAD = "0.5"


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("scripts", "tests/python"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".venv").symlink_to(ROOT / ".cache" / "tests")
    (folder / ".cache").mkdir()
    for name in ("minilm", "onnxruntime"):
        (folder / ".cache" / name).symlink_to(ROOT / ".cache" / name)
    return folder


def make_demo(checkout, program, made="build"):
    # This run's make passes variables to other makes, which the inner one must not get.
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    # The program exists already.
    command = ["make", f"--old-file={made}", "demo"]
    environment = {**own, "PATERNOSTER": str(program), "PATERNOSTER_DEMO_SECONDS": SECONDS_OF_LOAD}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300)


def test_the_demonstration_runs_to_its_end(checkout, program):
    shown = make_demo(checkout, program)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    text = shown.stdout
    nearest = dict(re.findall(r"^  (\S.*?[.?]) +(\S.*?[.?]) +\d\.\d{3}$", text.split("question?")[0], re.MULTILINE))
    assert set(nearest) == set(demo.SENTENCES), text
    found = [pair for pair in PAIRS if nearest[pair[0]] == pair[1]]
    assert len(found) == len(PAIRS), f"of {PAIRS} only {found} are nearest to each other"
    assert re.search(r"one sentence at a time: \d+\.\d ms", text)
    answered = re.findall(r"^  (\S.*?) {3,}(\S.*?\.|\S.*?\?) +\d\.\d{3}$", text, re.MULTILINE)
    assert [one for one in answered if one[0] in demo.QUERIES] == list(zip(demo.QUERIES, FOUND))
    assert '"object":"embedding"' in text, "curl was answered"
    (rate,) = re.findall(r"4 clients, 16 texts a request: (\d+) sentences/s", text)
    assert int(rate) > 0
    answers = re.findall(r"response for 'demo': OUTPUT0\[0\] = (\d+)", text)
    assert answers == ["4", "5", "6", "7"]
    rates = re.findall(r"^  (?:batched as in Triton, same lengths|a batch at each step, any lengths) +(\d+) ", text, re.MULTILINE)
    assert len(rates) == 2 and all(int(rate) > 0 for rate in rates), text
    assert (checkout / ".cache" / "demo" / "boarding.svg").read_text().startswith("<svg")
    assert "the server is stopped" in text and "make serve" in text and "Your own model" in text


def test_it_says_so_if_it_cannot_be_shown(checkout, program):
    (checkout / ".cache" / "demo" / "models").mkdir(parents=True)
    shown = make_demo(checkout, program, "demo-models")
    assert shown.returncode != 0
    assert "the demonstration failed" in shown.stdout and "minilm" in shown.stdout
