"""curl: every command in README and docs/ is run as written."""

import json
import re
import subprocess

import fetch
import pytest
from conftest import ROOT, fetched

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Programs that blocks start in addition to curl; here a server runs already.
STARTS = ("make ", "paternoster ")


def indented(page):
    """Yields the indented blocks of a page, in which commands are written: the number of the first line, and the
    text."""
    block, first = [], 0
    for number, line in enumerate([*page.read_text().splitlines(), "end"], start=1):
        if line.startswith("    "):
            first = first if block else number
            block.append(line[4:])
        elif line or not block:
            if block:
                yield first, "\n".join(block)
            block = []
        else:
            block.append("")


def blocks():
    """Returns the blocks with curl, each with its location."""
    for page in PAGES:
        for number, text in indented(page):
            lines = [line for line in text.replace("\\\n", "").splitlines() if not line.startswith(STARTS)]
            if any(re.search(r"(^|\| )curl ", line) for line in lines):
                yield pytest.param("\n".join(lines), id=f"{page.name}-{number}")


@pytest.fixture
def usual_ports(start, test_models, tmp_path):
    """Returns a function that runs commands such that the usual ports lead to the test's server, and the folder in
    which it runs them."""
    fetched(fetch.curl)
    running = start(
        test_models, "--model-control-mode=explicit", "--load-model=*", f"--timeline-file={tmp_path / 'timeline.json'}"
    )
    ports = {8000: running.http, 8002: running.metrics}
    options = [f'connect-to = "localhost:{port}:{address}"' for port, address in ports.items()]
    # An error response makes the command fail.
    (tmp_path / ".curlrc").write_text("\n".join([*options, "fail-with-body", "silent", "show-error"]) + "\n")
    folder = tmp_path / "work"
    folder.mkdir()

    def run(commands):
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands], cwd=folder, capture_output=True, timeout=120,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "CURL_HOME": str(tmp_path), "HOME": str(tmp_path)},
        )  # fmt: skip

    yield run, folder


@pytest.mark.parametrize("commands", list(blocks()))
def test_documented_commands(usual_ports, commands):
    run, folder = usual_ports
    ran = run(commands)
    assert ran.returncode == 0, (ran.stdout + ran.stderr).decode(errors="replace")
    assert ran.stdout or list(folder.iterdir()), "something was answered"


def test_what_a_command_answers(usual_ports):
    run, _ = usual_ports
    (block,) = [one.values[0] for one in blocks() if "generate_stream" in one.values[0]]
    asked = [line for line in block.splitlines() if "identity/infer" in line or line.startswith("row=")]
    ran = run("\n".join(asked))
    assert json.loads(ran.stdout)["outputs"][0]["data"] == [float(number) for number in range(16)]
    assert run("curl localhost:8000/v2/models/nope").returncode != 0, "an error of the server is one here"
