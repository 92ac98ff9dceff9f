"""A headless Chromium, controlled by the DevTools protocol over a pipe, so that neither a driver nor a port is
needed."""

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import tempfile
import time

#: Chromium's file descriptors for the pipe: it reads commands from the first and writes answers to the second.
READS, WRITES = 3, 4


def pipe():
    """Returns a pipe whose file descriptors differ from those that the browser's own ends get."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high


class Browser:
    """One page. `complaints` collects the complaints of its console, its scripts and its policy."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(prefix="paternoster-browser-", ignore_cleanup_errors=True)
        (to_browser, self.commands), (self.answers, from_browser) = pipe(), pipe()
        flags = [
            "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
            "--hide-scrollbars", "--disable-background-networking", f"--user-data-dir={self.profile.name}",
        ]  # fmt: skip
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        # A shell assigns the descriptors, because subprocess passes files on under the descriptors that they have.
        shell = f'exec "$0" "$@" {READS}<&{to_browser} {WRITES}>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, str(program), *flags, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.received, self.next, self.session, self.complaints, self.events = b"", 0, None, [], []
        (page,) = [one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self.session = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.commands)
        os.close(self.answers)
        self.process.terminate()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # Its other processes may outlive it, and would write to the profile while it is removed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.profile.cleanup()

    def message(self, deadline):
        """Returns the next message of the browser."""
        while b"\0" not in self.received:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.answers], [], [], left)[0], "the browser does not answer"
            read = os.read(self.answers, 1 << 20)
            assert read, f"the browser has ended with {self.process.wait(120)}"
            self.received += read
        message, _, self.received = self.received.partition(b"\0")
        return json.loads(message)

    def ask(self, method, timeout_s=120, **parameters):
        """Runs a command; returns its result."""
        self.next += 1
        command = {"id": self.next, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + timeout_s
        while True:
            message = self.message(deadline)
            if message.get("id") == self.next:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.note(message)

    def note(self, message):
        found = message.get("params", {})
        if message.get("method") == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.complaints.append(found["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(found["exceptionDetails"]))
        elif message.get("method") == "Runtime.consoleAPICalled" and found["type"] in {"error", "warning"}:
            self.complaints.append(json.dumps(found["args"]))

    def open(self, url, width=1280, height=900, dark=False):
        """Opens a page in a window of this size and colour scheme."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        # Later commands must not be answered by the previous page.
        self.value("window.isOld = true")
        failure = self.ask("Page.navigate", url=url).get("errorText")
        assert not failure, f"{url}: {failure}"
        deadline = time.monotonic() + 60
        while self.value("window.isOld === true || document.readyState !== 'complete'"):
            assert time.monotonic() < deadline, f"{url} is not loaded"

    def value(self, expression):
        """Returns the value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def screenshot(self, whole=False):
        """Returns a PNG of the window, or of the whole page."""
        taken = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(taken["data"])
