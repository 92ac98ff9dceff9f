"""What attacks on a server are written with: clients that are not attacked, memory, and servers with generated
models."""

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))

import attack_models  # noqa: E402
import grpc  # noqa: E402
import numpy as np  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
from clients import tensor  # noqa: E402
from server import Server, end_with_parent  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

MB = 1e6
#: Time limit of a bystander's request, in seconds; one that takes longer counts as failed.
PATIENCE_S = 5
LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
#: A request for models with rows of 16 numbers.
ROW = [tensor("INPUT0", np.ones((1, 16), np.float32))]


@contextmanager
def low_priority_session():
    """Gives this process's session the lowest priority during the block. Linux shares processors among sessions first,
    where they are grouped, and only then among the threads of each. The terminal's shell is of the same session."""
    group = Path("/proc/self/autogroup")
    before = group.read_text().split()[-1] if group.exists() else None
    if before is None:
        yield
        return
    group.write_text("19")
    try:
        yield
    finally:
        # More than the usual priority is root's to give.
        with suppress(PermissionError):
            group.write_text(before)


def ask_on(parent, address, model, inputs, headers, every_s, until, answers):
    """A client in its own process that sends a request every so often. Reports the milliseconds from when each was
    due; None if it failed.

    Times count from when a request was due, so a request that stalls the client makes the following ones late too. The
    client runs before all others where it may: it would be on another machine, and not wait for the server's
    processors.
    """
    end_with_parent(parent)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    seen = []
    with triton.InferenceServerClient(address) as client:
        due = time.monotonic()
        while not until.is_set():
            due += every_s
            time.sleep(max(0, due - time.monotonic()))
            try:
                client.infer(model, inputs, client_timeout=PATIENCE_S, headers=headers)
                seen.append((time.monotonic() - due) * 1e3)
            except InferenceServerException:
                seen.append(None)
    answers.put(seen)


@contextmanager
def bystander(server, model="identity", inputs=ROW, headers=None, every_s=0.01):
    """Runs a client with small requests during the block; yields a list that has its times after the block."""
    context = multiprocessing.get_context("spawn")
    until, answers, times = context.Event(), context.Queue(), []
    arguments = (os.getpid(), server.grpc, model, inputs, headers, every_s, until, answers)
    process = context.Process(target=ask_on, args=arguments, daemon=True)
    process.start()
    # The other process takes a moment to start.
    time.sleep(1.5)
    try:
        yield times
    finally:
        until.set()
        times.extend(answers.get(timeout=60))
        process.join()


def suffered(times):
    done = [taken for taken in times if taken is not None]
    failed = len(times) - len(done)
    p50, p99 = np.percentile(done, [50, 99]) if done else (float("nan"),) * 2
    longest = max(done, default=float("nan"))
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {longest:.0f} ms, {failed} of {len(times)} failed"


def unattacked(server, model="identity", inputs=ROW, lasts_s=10, **how):
    """Returns what a client sees that is alone."""
    with bystander(server, model, inputs, **how) as times:
        time.sleep(lasts_s)
    return suffered(times)


def connection(server):
    """A client on a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return triton.InferenceServerClient(server.grpc, channel_args=options)


def ending(client, model, inputs, timeout_s=60):
    """Sends a request; returns how it ended: `answered`, or the name of its status."""
    try:
        client.infer(model, inputs, client_timeout=timeout_s)
        return "answered"
    except InferenceServerException as refusal:
        return refusal.status().removeprefix("StatusCode.")


def repeating(server, model, inputs):
    """A client of an attack that sends one request again and again; see `attackers`."""

    def client(_):
        with connection(server) as connected:
            while True:
                yield ending(connected, model, inputs)

    return client


@contextmanager
def attackers(count, client):
    """Runs clients of an attack during the block; yields a counter of how their requests end. `client` is called with
    the number of each, and yields how one request after the other ended.

    They have the lowest priority: they would be on other machines, and take no time of the server's processors.
    """
    codes, over = Counter(), threading.Event()

    def run(number):
        os.nice(19)
        for code in client(number):
            codes[code] += 1
            if over.is_set():
                return

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    with low_priority_session():
        for thread in threads:
            thread.start()
        try:
            yield codes
        finally:
            over.set()
            for thread in threads:
                thread.join()


def counted(codes):
    return ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))

def asked_in_turn(server, models, seed, seconds):
    """Asks for one of these models after the other, at random, on its own connection; returns the milliseconds of each
    answer, None where there was none."""
    draw, times, until = random.Random(seed), [], time.monotonic() + seconds
    with connection(server) as client:
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                client.infer(draw.choice(models), ROW, client_timeout=30)
                times.append((time.monotonic() - began) * 1e3)
            except InferenceServerException:
                times.append(None)
    return times


def latencies(times):
    done = [taken for taken in times if taken is not None]
    p50, p99 = np.percentile(done, [50, 99]) if done else (float("nan"),) * 2
    return f"{len(done)} answered, {len(times) - len(done)} failed, p50 {p50:.1f} ms, p99 {p99:.1f} ms"


@contextmanager
def memory_of(server):
    """Samples resident memory during the block; yields a function that returns the growth to its peak, in MB."""
    before, peak, over = server.memory_bytes(), [0], threading.Event()

    def watch():
        while not over.wait(0.02):
            peak[0] = max(peak[0], server.memory_bytes())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield lambda: (max(peak[0], server.memory_bytes()) - before) / MB
    finally:
        over.set()
        watching.join()


def raw_call(server, method, message, timeout=60, compression=None):
    """Sends bytes unchanged; returns the name of the status code."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=options) as channel:
        try:
            channel.unary_unary(method)(message, timeout=timeout, compression=compression)
            return "OK"
        except grpc.RpcError as refusal:
            return refusal.code().name


class Given:
    """Shared state of the attacks: the program, a folder, and generated repositories."""

    def __init__(self, program, folder):
        self.program, self.folder = program, Path(folder)
        self.cells = self.made("cells", "--only", "lstm,seq2seq,tree-lstm", "--quarter")
        self.plain = self.made("plain", "--set", "tests", "--only", "identity,runaway,repeat")
        shutil.copytree(self.plain / "runaway", self.plain / "runaway-too")
        settings = (self.plain / "runaway-too" / "config.pbtxt").read_text()
        (self.plain / "runaway-too" / "config.pbtxt").write_text(settings.replace('"runaway"', '"runaway-too"'))
        self.lookup = attack_models.lookup(self.folder / "lookup")

    def made(self, name, *choice):
        folder = self.folder / name
        command = [self.program, "models", "--out", folder, *choice]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
        return folder

    def empty(self):
        return Path(tempfile.mkdtemp(dir=self.folder))

    def server(self, repository, *flags):
        return Server(repository, *flags, program=self.program)

    @contextmanager
    def serve(self, repository, *flags):
        """Runs a server during the block. An attack may end it, which shows in the figures."""
        started = self.server(repository, *flags).start()
        try:
            yield started
        finally:
            started.stop()
