"""Runs the programs of a kit for CUDA cards, each with a log that is written as it runs."""

import os
import signal
import subprocess
import time
from collections import namedtuple

#: The program that serves models under load, and the one that times their plans alone.
SERVER, TIMES = "paternoster", "times"
RUNTIME = "libonnxruntime.so"
#: A script that times the same networks in PyTorch.
PYTORCH = "gpu_pytorch.py"
#: The folder of kernels that were compiled with the kit.
KERNELS = "kernels"

#: What a program ended with. `status` is None if it ran out of time, negative after a signal.
Ended = namedtuple("Ended", "status text seconds")


class Clock:
    """Time that is left for a part of a run."""

    def __init__(self, seconds):
        self.until = time.monotonic() + seconds

    def left(self):
        return max(0.0, self.until - time.monotonic())

    def part(self, seconds, reserved=0):
        """Returns the clock of a part: at most so many seconds, and none of those that are reserved for later parts."""
        return Clock(max(0.0, min(seconds, self.left() - reserved)))


def ran(command, environment, log, clock):
    """Runs a program until it ends or the clock's time is over, then ends it and all that it started. `log` has its
    output from the first line on."""
    began = time.monotonic()
    with log.open("wb") as output:
        output.write(f"$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        if clock.left() <= 0:
            output.write(b"not started: no time was left\n")
            status = None
        else:
            try:
                running = subprocess.Popen(
                    [str(part) for part in command], env=environment, cwd=log.parent, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                output.write(f"not started: {error}\n".encode())
                status = 127
            else:
                status = waited(running, clock, output)
    text = log.read_text(errors="replace").split("\n", 1)[1]
    return Ended(status, text, time.monotonic() - began)


def waited(running, clock, output):
    try:
        return running.wait(clock.left())
    except subprocess.TimeoutExpired:
        # Its children have its group. A program that waits for a card's driver may outlive the signal, so the wait for
        # its end is bounded too.
        os.killpg(running.pid, signal.SIGKILL)
        try:
            running.wait(2)
        except subprocess.TimeoutExpired:
            output.write(b"\nthe program cannot be ended\n")
        output.write(b"\nended: its time was over\n")
        return None


def end_of(text, lines=12):
    """Returns the last lines of a log, for a report."""
    return "\n".join(text.strip().splitlines()[-lines:])
