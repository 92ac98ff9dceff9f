"""Tables on a terminal: no line is wider than it, and no figure is lost."""

import fcntl
import os
import re
import struct
import subprocess
import termios

import pytest

SIMULATION = "simulate --table titan-rtx --model bert-base --requests 50 --load 0.3,0.6".split()


def printed_on_a_terminal(command, columns):
    """Returns what a command prints on a terminal of this width."""
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL)
    finally:
        os.close(theirs)
    printed = b""
    try:
        # Reading fails once the last program has closed the terminal.
        while part := os.read(ours, 65536):
            printed += part
    except OSError:
        pass
    finally:
        os.close(ours)
    assert process.wait(120) == 0
    return printed.decode().replace("\r\n", "\n")


def table(printed):
    return [line for line in printed.splitlines() if line.startswith(("+", "|"))]


def figures(lines):
    return set(re.findall(r"\d+\.\d+", "\n".join(lines)))


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_a_table_fits_the_terminal_and_has_every_figure(program, columns):
    whole = table(subprocess.run([program, *SIMULATION], capture_output=True, text=True, timeout=60, check=True).stdout)
    assert len({len(line) for line in whole}) == 1 and len(whole[0]) > 100, "in one piece without a terminal"
    shown = table(printed_on_a_terminal([program, *SIMULATION], columns))
    assert max(len(line) for line in shown) <= columns
    assert figures(shown) == figures(whole) != set()
