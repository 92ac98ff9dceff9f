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
from contextlib import contextmanager
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
#: Seconds between two requests of a bystander.
EVERY_S = 0.01
LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
#: A request for models with rows of 16 numbers.
ROW = [tensor("INPUT0", np.ones((1, 16), np.float32))]


def ask_on(parent, address, model, until, answers):
    """A client in its own process that sends a small request every 10 ms. Reports the milliseconds from when each was
    due; None if it failed.

    Times count from when a request was due, so a request that stalls the client makes the following ones late too.
    """
    end_with_parent(parent)
    seen = []
    with triton.InferenceServerClient(address) as client:
        due = time.monotonic()
        while not until.is_set():
            due += EVERY_S
            time.sleep(max(0, due - time.monotonic()))
            try:
                client.infer(model, ROW, client_timeout=PATIENCE_S)
                seen.append((time.monotonic() - due) * 1e3)
            except InferenceServerException:
                seen.append(None)
    answers.put(seen)


@contextmanager
def bystander(server, model="identity"):
    """Runs a bystander during the block; yields a list that has its times after the block."""
    context = multiprocessing.get_context("spawn")
    until, answers, times = context.Event(), context.Queue(), []
    process = context.Process(target=ask_on, args=(os.getpid(), server.grpc, model, until, answers), daemon=True)
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
    worst = np.percentile(done, 99) if done else float("nan")
    return f"p99 {worst:.1f} ms, longest {max(done, default=float('nan')):.0f} ms, {failed} of {len(times)} failed"


def asked_in_turn(server, models, seed, seconds):
    """Asks for one of these models after the other, at random, on its own connection; returns the milliseconds of each
    answer, None where there was none."""
    draw, times, until = random.Random(seed), [], time.monotonic() + seconds
    with triton.InferenceServerClient(server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as client:
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
