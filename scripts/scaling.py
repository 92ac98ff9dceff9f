"""How the server uses cores and memory: servers with different flags side by side, tables of
docs/benchmarks/scaling.md.

    python scripts/scaling.py [--parts lanes,shards,pages] [--rounds 5] [--seconds 4]

- lanes: one lane for each core, each on a thread of its own; one lane that has all threads; and the default, a lane for
  each core and threads that all lanes share.
- shards: one scheduler for all lanes, and one for each lane.
- pages: memory in small pages and in huge ones, where the process's two allocators (mimalloc for the server, the C
  library's for ONNX Runtime) can be set to ask for them; and how much of the memory became huge pages.

The servers of a part run at the same time and are measured in alternating rounds. Contended locks are counted by
scripts/contention.py.
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
#: One case of each kind: dominated by the front end, by the engine, and by scheduling.
EACH = {"identity": Case("identity", None, (8, 64)), "minilm, glue-short": Case("minilm", "glue-short", (32,)), **LSTM}
MIMALLOC = {"MIMALLOC_ALLOW_LARGE_OS_PAGES": "1", "MIMALLOC_ALLOW_THP": "2"}
GLIBC = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

#: The flags and the environment of a server.
Setting = namedtuple("Setting", "flags environment", defaults=[{}])
#: The servers of a part by name, and their cases. The others are compared with the first.
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
    """Returns a server's resident memory in huge pages, and in total, in MiB."""
    sizes = dict(line.split(":") for line in Path(f"/proc/{server.pid}/smaps_rollup").read_text().splitlines()[1:])
    return [int(sizes[name].split()[0]) / 1024 for name in ("AnonHugePages", "Rss")]


def measure(name, part, models, given):
    """Prints the table of a part, and writes every round to a file."""
    with ExitStack() as stack:
        servers = {}
        for setting, (flags, environment) in part.settings.items():
            # Each server has a directory of its own, so that none is served by another's profile.
            profiles = tempfile.mkdtemp(dir=models.parent)
            server = Server(models, *flags, "--profile-directory", profiles, program=given.binary, environment=environment)
            servers[setting] = stack.enter_context(server)
        addresses = {setting: server.grpc for setting, server in servers.items()}
        rows = []
        for case, asked in part.cases.items():
            rows += bench_servers(given.binary, addresses, case, asked, given)
            write_table(given.tables / f"scaling-{name}.csv", rows)
        show_servers(rows, list(servers))
        for setting, server in servers.items():
            print("{}: {:.0f} MiB in huge pages of {:.0f} resident".format(setting, *huge_mib(server)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated parts")
    timing_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="use an LSTM of a quarter of the width")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder for the tables of all rounds")
    parser.add_argument("--binary", default=binary(), help="the server's binary")
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
