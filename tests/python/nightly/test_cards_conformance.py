"""The server behaves the same with a CUDA card, on which all models run that can: the same tests again, with the
stand-in for CUDA's libraries."""

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
FILES = (
    "test_infer.py", "test_protocol_cases.py", "test_async.py", "test_indices.py", "test_sequences.py", "test_statistics.py",
    "test_reload.py", "test_http.py", "test_traces.py",
)  # fmt: skip


def test_what_holds_on_the_cpu_holds_on_a_card(program, stand_in):
    command = [sys.executable, "-m", "pytest", "-c", FOLDER / "pytest.ini", "-q", *(FOLDER / name for name in FILES)]
    environment = {**os.environ, **stand_in, "PATERNOSTER": str(program)}
    ran = subprocess.run(
        [str(part) for part in command], env=environment, capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed and int(passed.group(1)) > 200, ran.stdout[-2000:]
