"""The measuring scripts run to their end, in a quick form: they compare the answers of all sides. No speed is
asserted."""

import os
import subprocess
import sys

import fetch
import pytest
from conftest import ROOT, fetched

#: The scripts with options that make them short. TABLE and PLOT stand for files.
SCRIPTS = {
    "compare_slack.py": ["--only", "lstm"],
    "compare_text.py": ["--only", "glue-short,mixed", "--csv", "TABLE", "--svg", "PLOT"],
    "compare_triton.py": ["--only", "identity;lstm", "--csv", "TABLE", "--svg", "PLOT"],
    "scaling.py": ["--parts", "shards", "--rounds", "1", "--seconds", "0.3", "--warm-up", "0", "--samples", "4", "--tables", "FOLDER"],
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_to_its_end(script, program, tmp_path):
    python = fetched(fetch.text_peers) if script == "compare_text.py" else sys.executable
    files = {"TABLE": tmp_path / "out.csv", "PLOT": tmp_path / "out.svg", "FOLDER": tmp_path}
    words = [python, ROOT / "scripts" / script, "--binary", program, "--quick", *(files.get(word, word) for word in SCRIPTS[script])]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATERNOSTER": str(program)}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    if "TABLE" in words:
        assert len(files["TABLE"].read_text().splitlines()) > 2 and files["PLOT"].stat().st_size > 0
