"""The programs of a kit for CUDA cards, and how they are run."""

import subprocess
import time

from server import ROOT

#: The program that serves models under load, and the one that times their plans alone.
SERVER, TIMES = "paternoster", "times"
RUNTIME = "libonnxruntime.so"


def ran(command, environment, log, seconds, until):
    """Runs a program; returns its exit status (None if it ran out of time) and its output, which is also written to
    `log`. `until` is when everything must have ended."""
    seconds = max(1, min(seconds, until - time.monotonic()))
    try:
        done = subprocess.run(
            [str(part) for part in command], env=environment, cwd=ROOT if ROOT.is_dir() else None,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
        )  # fmt: skip
        text, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        text, status = f"{(late.stdout or b'').decode(errors='replace')}\nnot done after {seconds:.0f} s", None
    log.write_text(text)
    return status, text
