"""A running server, for scripts and tests: starts the built program on free ports of the loopback address, waits until
its health endpoint answers, and stops it as an operator would. Needs only the standard library.

    with Server(repository) as server:
        client = tritonclient.grpc.InferenceServerClient(server.grpc)
"""

import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
#: Candidate ports, below the range that Linux assigns to outgoing connections.
PORTS = range(20000, 32000)
PR_SET_PDEATHSIG = 1
#: Records of level error in the server's log forms, and panics.
COMPLAINT = re.compile(r"^E\d{4} |\bERROR\b|panicked at")


class ServerFailed(Exception):
    """The server did not start, or ended by itself. The message has the end of its log."""


def target_directory():
    """Returns cargo's target directory."""
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"]
    metadata = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    return Path(json.loads(metadata)["target_directory"])


def binary(profile="release"):
    """Returns the path of the program in a profile ("release", or "debug" for cargo's dev profile)."""
    return target_directory() / profile / "paternoster"


def free_ports(count):
    """Returns ports that nothing listens on at the moment. Another process may take one before the server does;
    `Server` then tries others."""
    held = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind((HOST, random.choice(PORTS)))
            except OSError:
                candidate.close()
                continue
            held.append(candidate)
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def end_with_parent(parent):
    """Asks Linux to end this process if its parent is killed, so that nothing is left running."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the parent has ended")


def launch(parent, *command):
    """Replaces this process by a program that ends with its parent. `Popen`'s preexec_fn would run in a fork of the
    caller, where gRPC's fork handlers wait for its threads, sometimes forever."""
    end_with_parent(int(parent))
    os.execv(command[0], command)


class Server:
    """One server process. `grpc`, `http` and `metrics` are its addresses, as host:port."""

    def __init__(self, repository, *flags, program=None, library=None, log=None, environment=None, directory=None, tls=None):
        # A URL of an object store must not become a Path, which would merge its slashes.
        self.repository = str(repository)
        self.flags = [str(flag) for flag in flags]
        self.program = Path(program or os.environ.get("PATERNOSTER") or binary()).absolute()
        self.library = library or os.environ.get("ORT_DYLIB_PATH") or ROOT / ".cache/onnxruntime/libonnxruntime.so"
        self.environment = environment or {}
        self.directory = directory
        #: An ssl.SSLContext if HTTP is served over TLS.
        self.tls = tls
        self.log = Path(log) if log else Path(tempfile.mkstemp(prefix="paternoster-", suffix=".log")[1])
        self.keep_log = log is not None
        self.process = None
        self.ports = None

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *_):
        status = self.stop()
        if kind is None and status != 0:
            raise ServerFailed(f"the server ended with status {status}\n{self.log_tail()}")
        if not self.keep_log:
            self.log.unlink()

    @property
    def grpc(self):
        return f"{HOST}:{self.ports[0]}"

    @property
    def http(self):
        return f"{HOST}:{self.ports[1]}"

    @property
    def metrics(self):
        return f"{HOST}:{self.ports[2]}"

    @property
    def pid(self):
        return self.process.pid

    def start(self, until="ready", timeout_s=120):
        """Starts the process and returns when it is "ready"; "settled" (every model has been tried) if some models are
        known to be broken; "live" if models may still be loading; or "started" if there is no repository."""
        for attempt in range(3):
            self.ports = free_ports(3)
            self.launch()
            try:
                self.wait(until, timeout_s)
                return self
            except BaseException as failure:
                self.stop()
                taken = isinstance(failure, ServerFailed) and "in use" in str(failure).lower()
                if attempt < 2 and taken:
                    continue
                if not self.keep_log:
                    self.log.unlink()
                raise
        raise AssertionError("the loop returns or raises")

    def command(self):
        """Returns the command that starts the server."""
        library = ["--onnxruntime-library", self.library]
        return [self.program, "serve", "--model-repository", self.repository, *library, *self.where(), *self.flags]

    def where(self):
        """Returns the flags with its addresses."""
        grpc, http, metrics = self.ports
        return [
            "--grpc-address", HOST, "--grpc-port", grpc, "--http-address", HOST, "--http-port", http,
            "--metrics-address", HOST, "--metrics-port", metrics,
        ]  # fmt: skip

    def launch(self):
        with open(self.log, "wb") as log:
            # A new session: a keyboard interrupt goes to the script only, which then stops the server.
            self.process = subprocess.Popen(
                [sys.executable, "-S", __file__, str(os.getpid()), *(str(part) for part in self.command())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                cwd=self.directory,
                start_new_session=True,
            )

    def wait(self, until, timeout_s):
        deadline = time.monotonic() + timeout_s
        path = {"started": "/v2", "settled": "/v2/health/live"}.get(until, f"/v2/health/{until}")
        while True:
            status = self.process.poll()
            if status is not None:
                raise ServerFailed(f"the server ended with status {status} before it was {until}\n{self.log_tail()}")
            # The metrics' port is separate, and opens a moment later.
            if self.get(path)[0] == 200 and self.get("/metrics", port="metrics")[0] == 200:
                if until != "settled" or not self.is_loading():
                    return
            if time.monotonic() > deadline:
                raise ServerFailed(f"the server was not {until} after {timeout_s} s\n{self.log_tail()}")
            time.sleep(0.02)

    def is_loading(self):
        """Returns whether models are still being loaded."""
        request = urllib.request.Request(f"http://{self.http}/v2/repository/index", data=b"{}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return any(model.get("state") == "LOADING" for model in json.load(answer))

    def get(self, path, port="http", timeout_s=120, headers=None):
        """Sends a GET to the HTTP or the metrics port; returns (status, body), or (None, reason) if there is no
        answer."""
        tls = self.tls if port == "http" else None
        url = f"{'https' if tls else 'http'}://{getattr(self, port)}{path}"
        request = urllib.request.Request(url, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s, context=tls) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read()
        except OSError as failure:
            return None, str(failure).encode()

    def stop(self, timeout_s=120):
        """Sends SIGTERM and returns the exit status. A server that does not end is killed (status -9)."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def log_tail(self, lines=30):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def complaints(self):
        """Returns the log's lines with an error or a panic."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if COMPLAINT.search(line)]

    def memory_bytes(self):
        """Returns the resident memory of the process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise ServerFailed("the server is not running")


if __name__ == "__main__":
    launch(*sys.argv[1:])
