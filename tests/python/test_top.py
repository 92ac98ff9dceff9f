"""`paternoster top`: on a terminal, which it restores, and as text for scripts; with a server that comes and goes."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest
from onnx_bytes import identity
from repository_on_disk import config, write_model
from server import Server

PORTS = {"INPUT0": ("FP32", [16])}
ENTERED, LEFT = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@pytest.fixture
def two_models(program, tmp_path):
    """A server with a model that serves and one that cannot be loaded; the test may stop it."""
    write_model(tmp_path, "identity", identity(), config("identity", PORTS))
    write_model(tmp_path, "broken", b"no model", config("broken", PORTS))
    server = Server(tmp_path, "--auto-profile=false", program=program)
    server.start(until="settled")
    yield server
    assert server.stop() == 0
    server.log.unlink()


def once(program, server, *flags):
    command = [program, "top", "--url", f"http://{server.http}", "--once", *flags]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60)


def test_once_prints_every_model(program, two_models):
    printed = once(program, two_models, "--sort", "name")
    assert printed.returncode == 0, printed.stderr
    lines = printed.stdout.splitlines()
    assert lines[0] == f"http://{two_models.http}/: live, not ready, version " + lines[0].rsplit(" ", 1)[1]
    assert "1 of 2 need attention: 1 READY, 1 UNAVAILABLE" in lines
    rows = [line for line in lines if re.match(r"(identity|broken) ", line)]
    assert [row.split()[0] for row in rows] == ["broken", "identity"]
    assert rows[0].split()[1:] == ["1", "UNAVAILABLE"] and rows[1].split()[1:3] == ["1", "READY"]
    reason = lines[lines.index(rows[0]) + 1]
    assert reason.startswith("  ") and "…" not in reason
    assert "\x1b" not in printed.stdout

    printed = once(program, two_models, "--model", "identity")
    assert "identity" in printed.stdout and "broken" not in printed.stdout
    printed = once(program, two_models, "--model", "no-such")
    assert printed.returncode == 0 and "the server knows no model 'no-such'" in printed.stdout


def test_once_fails_if_nobody_answers_or_what_answers_is_no_server(program, two_models, tmp_path):
    two_models.stop()
    printed = once(program, two_models)
    assert printed.returncode == 1 and printed.stdout == ""
    assert f"error: http://{two_models.http}/ cannot be asked: Connection refused" in printed.stderr
    (tmp_path / "none").mkdir()
    with Server(tmp_path / "none", "--allow-web=false", program=program, log=tmp_path / "log") as other:
        printed = once(program, other)
    assert printed.returncode == 1 and "status 404 Not Found: no such route: /v2/overview" in printed.stderr
    printed = subprocess.run([program, "top", "--url", "ftp://x"], capture_output=True, text=True, timeout=60)
    assert printed.returncode == 1 and "'ftp://x' is no address: expected http://host:port" in printed.stderr


def test_without_a_terminal_it_prints_on_though_the_server_goes_away(program, two_models):
    command = [program, "top", "--url", f"http://{two_models.http}", "--interval", "0.5"]
    watching = subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:

        def line_with(text):
            for line in watching.stdout:
                if text in line:
                    return line
            raise AssertionError(f"it ended without {text!r}")

        line_with("identity")
        line_with("identity")
        assert two_models.stop() == 0
        assert "\x1b" not in line_with("cannot be asked: ")
        line_with("cannot be asked: Connection refused")
        # On the same ports.
        two_models.launch()
        line_with("identity")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(120) == 0
    finally:
        watching.kill()
        watching.communicate()


class Terminal:
    """A program on a terminal of this size, and what it has written so far."""

    def __init__(self, command, columns, lines):
        self.ours, self.theirs = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.theirs)
        self.written = ""
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=self.theirs, stdout=self.theirs, start_new_session=True
        )

    def resize(self, columns, lines):
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, condition, timeout_s=120):
        """Reads until a condition on the last picture holds; returns that picture."""
        deadline = time.monotonic() + timeout_s
        while True:
            # A picture is complete once the rest of the screen is cleared.
            complete = [part for part in self.written.split("\x1b[H")[1:] if "\x1b[J" in part]
            if complete and condition(complete[-1]):
                return complete[-1]
            assert time.monotonic() < deadline, f"the terminal shows {self.written[-3000:]!r}"
            if select.select([self.ours], [], [], 0.1)[0]:
                self.written += os.read(self.ours, 65536).decode()

    def end(self, how):
        """Ends the program with a signal; returns its status."""
        self.process.send_signal(how)
        status = self.process.wait(120)
        while select.select([self.ours], [], [], 0)[0]:
            self.written += os.read(self.ours, 65536).decode()
        return status

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


def lines_of(picture):
    plain = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", picture)
    # The terminal's driver adds a carriage return to each line.
    return plain.replace("\r", "").split("\n")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_a_terminal_is_drawn_over_and_restored(program, two_models, how):
    command = [program, "top", "--url", two_models.http, "--interval", "0.5"]
    terminal = Terminal(command, columns=80, lines=24)
    try:
        picture = terminal.until(lambda shown: "identity" in shown)
        assert terminal.written.startswith(ENTERED)
        assert "\x1b[31mbroken" in picture, "what needs attention stands out"
        lines = lines_of(picture)
        assert len(lines) <= 24 and max(map(len, lines)) <= 80
        assert not termios.tcgetattr(terminal.theirs)[3] & termios.ECHO, "keys are not shown"

        terminal.resize(30, 6)
        terminal.process.send_signal(signal.SIGWINCH)
        small = terminal.until(lambda shown: max(map(len, lines_of(shown))) <= 30)
        assert len(lines_of(small)) <= 6 and "broken" in small

        terminal.resize(120, 30)
        terminal.process.send_signal(signal.SIGWINCH)
        two_models.stop()
        gone = terminal.until(lambda shown: "cannot be asked" in shown)
        assert "identity" in gone, "the last figures stay"
        two_models.launch()
        terminal.until(lambda shown: "identity" in shown and "cannot be asked" not in shown)
        assert terminal.end(how) == 0
        assert terminal.written.endswith(LEFT)
        assert termios.tcgetattr(terminal.theirs) == terminal.before
    finally:
        terminal.close()


def test_a_suspended_one_gives_the_terminal_back_meanwhile(program, two_models):
    command = [program, "top", "--url", two_models.http, "--interval", "0.5"]
    terminal = Terminal(command, columns=80, lines=24)
    try:
        terminal.until(lambda shown: "identity" in shown)
        terminal.process.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert termios.tcgetattr(terminal.theirs) == terminal.before
        while not terminal.written.endswith(LEFT):
            terminal.written += os.read(terminal.ours, 65536).decode()
        terminal.written = ""
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until(lambda shown: "identity" in shown)
        assert terminal.written.startswith(ENTERED)
        assert terminal.end(signal.SIGINT) == 0
    finally:
        terminal.close()
