"""The programs in README and docs/ run as written, and what they name exists."""

import contextlib
import io
import re
import subprocess

import fetch
import numpy as np
import pytest
import tritonclient.grpc as triton
from conftest import ROOT, serving

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: The address at which the programs expect a server: the usual port.
USUAL = "localhost:8001"
#: The same over HTTP.
USUAL_HTTP = "localhost:8000"
#: Models that the programs use, besides the identity.
CELLS = "lstm,seq2seq,tree-lstm,lstm-sequence"


@pytest.fixture(scope="module")
def server(program, made_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("documentation")
    for names in (["--only", "identity"], ["--only", CELLS, "--quarter"]):
        subprocess.run([str(program), "models", "--out", str(folder), *names], check=True, capture_output=True, timeout=300)
    made_models("examples", "--only", "minilm,sentences", "--minilm", fetch.minilm(), folder=folder)
    with serving(folder, program=program) as running:
        yield running


def programs(page):
    """Returns the Python blocks of a page, without their indentation."""
    for indent, text in re.findall(r"^( *)```python\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
        yield re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def run(text, names, server):
    """Runs a program in its page's namespace; returns its output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        placed = text.replace(USUAL, server.grpc).replace(USUAL_HTTP, server.http)
        exec(compile(placed, "the page", "exec"), names)
    return printed.getvalue()


def test_the_clients_of_the_readme_are_answered(server):
    names = {}
    first, texts, cells = (run(text, names, server) for text in programs(ROOT / "README.md"))
    assert len(texts.split(",")) == 4, "a part of a vector"
    assert first == f"{np.ones((2, 16), np.float32)}\n", "the identity"
    hidden, tokens, root = r"\(1, \d+\)", r"\[\[\s*\d+(\s+\d+)*\]\]", r"\(1, \d+\)"
    assert re.fullmatch(f"{hidden}\n{tokens}\n{root}\n", cells), cells


def test_a_sequence_keeps_its_id_in_a_header(server):
    (text,) = programs(ROOT / "docs" / "deploy.md")
    tokens = triton.InferInput("tokens", [1, 2], "INT64")
    tokens.set_data_from_numpy(np.array([[3, 4]]))
    names = {"client": triton.InferenceServerClient(server.grpc), "inputs": [tokens], "start": True, "end": True}
    run(text, names, server)


def test_openai_s_client_is_answered(server):
    (text,) = programs(ROOT / "docs" / "text.md")
    assert re.fullmatch(r"384 \d+\n", run(text, {}, server))


def test_no_other_page_shows_python():
    shown = {page.name for page in PAGES if any(programs(page))}
    elsewhere = {"first-model.md", "recipes.md"}
    assert shown == {"README.md", "deploy.md", "text.md"} | elsewhere, "each has a test here or in test_first_models.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_tells_readers_to_run_exists(page):
    text = page.read_text()
    targets = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets = {target for line in targets for target in line.split()}
    asked = set(re.findall(r"(?:^ {4,}|`)make ([\w-]+)", text, re.MULTILINE))
    assert asked <= targets, f"{asked - targets} are no targets of make"
    for script in set(re.findall(r"(?:python3?|\.cache/tests/bin/python) ((?:scripts|tests|clients)/[\w./-]+\.py)", text)):
        assert (ROOT / script).is_file(), f"{script} is not there"


def test_each_operator_that_has_a_rule_for_cards_is_named():
    sources = [file.read_text() for file in (ROOT / "crates" / "engine" / "src" / "cuda" / "lower").glob("*.rs")]
    rules = re.findall(r"^pub\(super\) fn rule\(.*?^}", "\n".join(sources), re.MULTILINE | re.DOTALL)
    operators = {name for rule in rules for name in re.findall(r'"(\w+)"', rule)}
    assert {"ArgMax", "Conv", "Gather", "MatMul", "Slice"} <= operators
    rows = [line for line in (ROOT / "docs" / "gpu.md").read_text().splitlines() if line.startswith("| ")]
    assert operators - set(re.findall(r"\w+", "\n".join(rows))) == set()
