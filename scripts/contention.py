"""Counts how often threads wait for locks, by the place in the code: a table of docs/benchmarks/scaling.md.

    CARGO_PROFILE_RELEASE_STRIP=none cargo build --package paternoster --release
    sudo python scripts/contention.py [--threads 2,4,8] [--seconds 5]

Taking a free lock is one instruction at the place itself. Only a thread that finds the lock taken calls the lock's slow
path, in parking_lot or in the standard library. The kernel traps the first instruction of these functions (uprobes) and
records the caller, so the measured program is the released one, without counters. A trap takes about a microsecond,
which makes contention slightly more likely, never less. Needs root, Linux with uprobes, and a program with symbols.
"""

import argparse
import bisect
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter, namedtuple
from contextlib import contextmanager
from pathlib import Path

from compare_triton import write_models
from comparing import Case, called, machine_facts, shown, titled
from server import Server, binary

#: Names of the slow paths: functions that a thread calls if it finds a lock taken.
SLOW = re.compile(r"(?:RawMutex|RawRwLock)(?:<_>)?::lock_(?:\w+_)?slow$|futex::\w+>?::\w+_contended$")
#: An event: the thread, and the return address.
EVENT = re.compile(r"-(\d+) +\[\d+\].* ret=(0x[0-9a-f]+)")
#: Demangled names of methods: those of traits, and those in another module than their type.
METHODS = (re.compile(r"<(.+) as .+>::(\w+)$"), re.compile(r".*<impl (?:.+ for )?(.+)>::(\w+)$"))
GROUP = "paternoster"
ASKED = {
    "identity": Case("identity", None, 64),
    "minilm, glue-short": Case("minilm", "glue-short", 32),
    "lstm, closed-22": Case("lstm", "closed-22", 32),
}
#: Seconds between two reads of the kernel's events.
LOOK_S = 0.05
#: Number of places that the table shows.
MOST = 6

#: A function of the program: its address in the file's memory image, and its name.
Symbol = namedtuple("Symbol", "at name")


def symbols(program):
    """Returns the functions of a program, sorted by address."""
    listed = subprocess.run(["nm", "--demangle", "--defined-only", program], stdout=subprocess.PIPE, text=True, check=True)
    split = (line.split(" ", 2) for line in listed.stdout.splitlines())
    found = sorted(Symbol(int(at, 16), name) for at, kind, name in split if kind in "tT")
    if not found:
        sys.exit(f"'{program}' has no symbols, expected one built with CARGO_PROFILE_RELEASE_STRIP=none")
    return found


def segments(program):
    """Returns (address in memory, offset in the file, size) of each loaded segment of a program."""
    listed = subprocess.run(["readelf", "--program-headers", "--wide", program], stdout=subprocess.PIPE, text=True, check=True)
    loads = (line.split() for line in listed.stdout.splitlines() if line.split()[:1] == ["LOAD"])
    return [(int(load[2], 16), int(load[1], 16), int(load[4], 16)) for load in loads]


def append(file, line):
    """Appends a line to a file of tracefs, which is not seekable as Python's own append mode requires."""
    opened = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(opened, f"{line}\n".encode())
    finally:
        os.close(opened)


def read_events(pipe, counted, ended):
    """Counts events by thread and address, until `ended` is set and all events have been read."""
    opened = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    rest = b""
    try:
        while True:
            try:
                *lines, rest = (rest + os.read(opened, 1 << 16)).split(b"\n")
            except BlockingIOError:
                if ended.is_set():
                    return
                ended.wait(LOOK_S)
                continue
            counted.update(found.groups() for found in (EVENT.search(line.decode()) for line in lines) if found)
    finally:
        os.close(opened)


class Probes:
    """The slow paths of a program, as events of the kernel."""

    def __init__(self, tracing, program):
        self.tracing, self.program = tracing, Path(program).resolve()
        self.known, self.segments = symbols(self.program), segments(self.program)
        self.starts = [symbol.at for symbol in self.known]

    @contextmanager
    def set(self):
        """Sets a probe on each slow path during the block."""
        events = self.tracing / "uprobe_events"
        slow = sorted({symbol.at for symbol in self.known if SLOW.search(symbol.name)})
        if not slow:
            sys.exit(f"'{self.program}' has none of the functions in which threads wait for locks")
        for number, at in enumerate(slow):
            # At the first instruction the return address is on top of the stack.
            line = f"p:{GROUP}/slow{number} {self.program}:{self.in_file(at):#x} ret=+0($stack):x64"
            append(events, line)
        try:
            yield
        finally:
            for number in range(len(slow)):
                append(events, f"-:{GROUP}/slow{number}")

    def in_file(self, at):
        for memory, offset, size in self.segments:
            if memory <= at < memory + size:
                return at - memory + offset
        raise AssertionError("every function is loaded")

    @contextmanager
    def counting(self, pid):
        """Counts waits during the block. Yields a Counter by waiting function, which is complete when the block has
        ended."""
        counted, base = Counter(), self.base(pid)
        # An instance of its own: other traces on this machine keep their buffers and settings.
        own = self.tracing / "instances" / f"{GROUP}-{os.getpid()}"
        own.mkdir()
        try:
            (own / "buffer_size_kb").write_text("16384")
            (own / "events" / GROUP / "enable").write_text("1")
            returned, ended = Counter(), threading.Event()
            reader = threading.Thread(target=read_events, args=(own / "trace_pipe", returned, ended))
            reader.start()
            try:
                yield counted
                (own / "events" / GROUP / "enable").write_text("0")
                threads = set(os.listdir(f"/proc/{pid}/task"))
            finally:
                ended.set()
                reader.join()
            lost = sum(self.lost(per_cpu) for per_cpu in (own / "per_cpu").iterdir())
            # The load's client is the same program, so its threads hit the probes too.
            for (thread, address), times in returned.items():
                if thread in threads:
                    counted[self.name(int(address, 16) - base)] += times
            if lost:
                counted["lost by the kernel's buffer"] += lost
        finally:
            (own / "events" / GROUP / "enable").write_text("0")
            own.rmdir()

    def base(self, pid):
        """Returns the address at which a process has loaded the program."""
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith(str(self.program)):
                memory = next(memory for memory, offset, _ in self.segments if offset == int(line.split()[2], 16))
                return int(line.split("-")[0], 16) - memory // 4096 * 4096
        sys.exit(f"process {pid} does not run '{self.program}'")

    @staticmethod
    def lost(per_cpu):
        found = re.search(r"^overrun: (\d+)", (per_cpu / "stats").read_text(), re.MULTILINE)
        return int(found[1])

    def name(self, at):
        """Returns the type and the name of the function that contains an address."""
        name = self.known[bisect.bisect_right(self.starts, at) - 1].name
        method = next(filter(None, (form.match(name) for form in METHODS)), None)
        if method:
            return f"{method[1].rsplit('::', 1)[-1]}::{method[2]}"
        return "::".join(name.split("::")[-2:]) if name.startswith("paternoster::") else name


def load(program, server, case, seconds):
    """Keeps requests in flight for some time. Returns how many were answered."""
    words = ["--url", server.grpc, "--model", case.model, *(["--workload", case.workload] if case.workload else [])]
    words += ["--concurrency", case.in_flight, "--rounds", 1, "--warm-up-seconds", 0, "--seconds", seconds, "--json"]
    return called(program, "bench", *words)["loads"][0]["policies"][0]["total"]["requests"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="2,4,8", help="comma-separated numbers of front-end threads and lanes")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--tracing", type=Path, default=Path("/sys/kernel/tracing"), help="where tracefs is mounted")
    parser.add_argument("--quick", action="store_true", help="use an LSTM of a quarter of the width")
    parser.add_argument("--binary", default=binary(), help="the server's binary")
    given = parser.parse_args()
    if not os.access(given.tracing / "uprobe_events", os.W_OK):
        sys.exit(
            f"'{given.tracing}/uprobe_events' cannot be written, expected root and "
            f"`mount -t tracefs none {given.tracing}`"
        )
    probes = Probes(given.tracing, given.binary)
    with tempfile.TemporaryDirectory() as scratch, probes.set():
        models = Path(scratch) / "models"
        write_models(given.binary, models, given.quick)
        print("\n".join(machine_facts(given.binary)), flush=True)
        rows = []
        for threads in map(int, given.threads.split(",")):
            for shards in (1, threads):
                flags = [f"--cpu-lanes={threads}", f"--cpu-shards={shards}", "--profile-directory", Path(scratch) / "profiles"]
                with Server(models, *flags, program=given.binary, environment={"TOKIO_WORKER_THREADS": str(threads)}) as server:
                    for name, case in ASKED.items():
                        load(given.binary, server, case, 1)
                        with probes.counting(server.pid) as counted:
                            answered = load(given.binary, server, case, given.seconds)
                        rows.append((name, threads, shards, answered, counted))
        show(rows)


def show(rows):
    """Prints the waits for locks in each thousand requests, and where most of them were."""
    titled("requests", "threads and lanes", "shards", "answered", "waits for a lock in 1,000", "most of them in")
    for name, threads, shards, answered, counted in rows:
        rate = 1000 / max(answered, 1)
        places = "; ".join(f"`{place}` {times * rate:.3g}" for place, times in counted.most_common(MOST))
        shown(name, threads, shards, answered, f"{counted.total() * rate:.3g}", places)


if __name__ == "__main__":
    main()
