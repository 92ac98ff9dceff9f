"""How the server uses cores and memory: servers with different flags beside each other, tables of docs/benchmarks/scaling.md.

    python scripts/scaling.py [--parts lanes,shards,pages] [--rounds 5] [--seconds 4]

- lanes: one lane for each core, on a thread of its own; one lane that has all threads; and as it is without flags, a lane for each core and
  threads that all lanes share.
- shards: one scheduler for all lanes, and one for each.
- pages: memory in small pages, and in huge ones where the two allocators in the process (mimalloc for the server, the C library's for ONNX
  Runtime) can be made to ask for them; and how much of it became huge.

Servers of a part run at the same time, and are asked in alternating rounds. Contended locks are counted by scripts/contention.py.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import namedtuple
from contextlib import ExitStack
from pathlib import Path

from compare_triton import write_models
from comparing import Case, bench_servers, machine_facts, show_servers, timing_arguments, write_table
from server import ROOT, Server, binary

CORES = len(os.sched_getaffinity(0))
ENCODER = {name: Case("minilm", name.split(", ")[1], (8, 32)) for name in ("minilm, glue-short", "minilm, glue-pair")}
LSTM = {"lstm, closed-22": Case("lstm", "closed-22", (32,))}
#: One of each kind: what the front end counts for, what the engine does, and what is scheduled most.
EACH = {"identity": Case("identity", None, (8, 64)), "minilm, glue-short": Case("minilm", "glue-short", (32,)), **LSTM}
MIMALLOC = {"MIMALLOC_ALLOW_LARGE_OS_PAGES": "1", "MIMALLOC_ALLOW_THP": "2"}
GLIBC = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

#: What a server is started with.
Setting = namedtuple("Setting", "flags environment", defaults=[{}])
#: The servers of a part by their names, and what they are asked; the others are compared with the first.
Part = namedtuple("Part", "settings cases")

PARTS = {
    "lanes": Part(
        {
            "as it is": Setting((f"--cpu-lanes={CORES}",)),
            "a lane a core": Setting((f"--cpu-lanes={CORES}", "--cpu-threads=1")),
            "one lane for all": Setting(("--cpu-lanes=1",)),
        },
        {**ENCODER, **LSTM},
    ),
    "shards": Part(
        {f"{shards} shard(s)": Setting((f"--cpu-lanes={CORES}", f"--cpu-shards={shards}")) for shards in (1, CORES)},
        EACH,
    ),
    "pages": Part(
        {
            "small pages": Setting(()),
            "mimalloc's huge": Setting((), MIMALLOC),
            "the C library's huge": Setting((), GLIBC),
            "both": Setting((), {**MIMALLOC, **GLIBC}),
        },
        EACH,
    ),
}
TABLES = ROOT / "benches" / "tables"


def huge_mib(server):
    """Resident memory of a server in huge pages, and all of it."""
    sizes = dict(line.split(":") for line in Path(f"/proc/{server.pid}/smaps_rollup").read_text().splitlines()[1:])
    return [int(sizes[name].split()[0]) / 1024 for name in ("AnonHugePages", "Rss")]


def measure(name, part, models, given):
    """Prints the table of a part, and keeps each round of it."""
    with ExitStack() as stack:
        servers = {}
        for setting, (flags, environment) in part.settings.items():
            profiles = tempfile.mkdtemp(dir=models.parent)
            server = Server(models, *flags, "--profile-directory", profiles, program=given.binary, environment=environment)
            servers[setting] = stack.enter_context(server)
        addresses = {setting: server.grpc for setting, server in servers.items()}
        rows = []
        for case, asked in part.cases.items():
            rows += bench_servers(given.binary, addresses, case, asked, given)[0]
            write_table(given.tables / f"scaling-{name}.csv", rows)
        show_servers(rows, list(servers))
        for setting, server in servers.items():
            print("{}: {:.0f} MiB in huge pages of {:.0f} resident".format(setting, *huge_mib(server)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="with commas")
    timing_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="an LSTM of a quarter of the width")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder for every round")
    parser.add_argument("--binary", default=binary(), help="the program")
    given = parser.parse_args()
    asked = given.parts.split(",")
    unknown = [name for name in asked if name not in PARTS]
    if unknown:
        parser.error(f"there is no part '{unknown[0]}'; there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as scratch:
        models = Path(scratch) / "models"
        try:
            write_models(given.binary, models, given.quick)
            print("\n".join(machine_facts(given.binary)), flush=True)
            for name in asked:
                measure(name, PARTS[name], models, given)
        except subprocess.CalledProcessError as failed:
            sys.exit(f"'paternoster {failed.cmd[1]}' ended with status {failed.returncode}; its error is above")


if __name__ == "__main__":
    main()
