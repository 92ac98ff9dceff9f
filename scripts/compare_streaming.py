"""Live streams of speech through the model `conformer`: the table of docs/streaming.md.

    python scripts/compare_streaming.py [--streams 50,100,200,400] [--seconds 10] [--rounds 3]

Each client sends a chunk of 320 ms whenever that time has passed, as a microphone would, and a stream has 25 of them.
Latency counts from the moment at which a chunk is complete. In alternating rounds, three servers get the same chunks:

- cells: the model as it comes, a sequence of cells whose chunks share runs with those of other streams.
- oldest: the same program with Triton's `sequence_batching` and its strategy `oldest`.
- alone: the model as it comes, with batches of one chunk.

Every answer is compared with one to the same stream alone.
"""

import argparse
import os
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from comparing import called, machine_facts, rounded, shown, titled, write_table
from server import ROOT, Server, binary

MODEL = "conformer"
CHUNK_MS = 320
CHUNKS = 25
LAYERS = 6
#: Channels of the model, and of one a quarter as wide.
HIDDEN, QUARTER = 144, 36
TABLE = ROOT / "benches" / "tables" / "cpu-streaming.csv"


def oldest(hidden):
    """Returns the config.pbtxt of the program under Triton's strategy `oldest`."""
    states = [("past", "TYPE_INT64", [1])]
    for layer in range(LAYERS):
        states += [(f"{part}_{layer}", "TYPE_FP32", [32, hidden]) for part in ("keys", "values")]
        states.append((f"convolved_{layer}", "TYPE_FP32", [hidden, 14]))
    of_state = '    {{ input_name: "{0}" output_name: "{0}_next" data_type: {1} dims: {2} }}'
    return "\n".join([
        'backend: "onnxruntime"',
        "max_batch_size: 64",
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 32, 80 ] } ]',
        'output [ { name: "log_probs" data_type: TYPE_FP32 dims: [ 8, 500 ] } ]',
        "sequence_batching {",
        "  max_sequence_idle_microseconds: 60000000",
        "  oldest { max_candidate_sequences: 1024 }",
        "  state [",
        ",\n".join(of_state.format(*state) for state in states),
        "  ]",
        "}\n",
    ])  # fmt: skip


def write(program, folder, quarter):
    """Writes the three repositories; returns {name: path}."""
    words = ("models", "--only", MODEL, *(["--quarter"] if quarter else []), "--out")
    cells, alone, other = (folder / name for name in ("cells", "alone", "oldest"))
    called(program, *words, cells)
    called(program, *words, alone)
    config = alone / MODEL / "model.yaml"
    config.write_text(config.read_text().replace("program: chunk.onnx,", "program: chunk.onnx, batch_sizes: [1],"))
    (other / MODEL / "1").mkdir(parents=True)
    (other / MODEL / "1" / "model.onnx").write_bytes((cells / MODEL / "1" / "chunk.onnx").read_bytes())
    (other / MODEL / "config.pbtxt").write_text(oldest(QUARTER if quarter else HIDDEN))
    return {"cells": cells, "oldest": other, "alone": alone}


def cpu_seconds(server):
    """Returns the time that a server has used so far, on all cores."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(program, name, server, streams, number, given):
    words = ["--url", server.grpc, "--model", MODEL, "--sequence-length", CHUNKS, "--sequence-interval-ms", CHUNK_MS]
    if name != "oldest":
        # A request of the model of cells may have several chunks.
        words += ["--shape", "frames:1,32,80"]
    words += ["--concurrency", streams, "--samples", given.samples, "--rounds", 1, "--seed", number]
    words += ["--objective-ms", CHUNK_MS, "--warm-up-seconds", given.warm_up, "--seconds", given.seconds, "--json"]
    before, alone_s = cpu_seconds(server), given.warm_up + given.seconds
    report = called(program, "bench", *words)
    used = cpu_seconds(server) - before
    figures = report["loads"][0]["policies"][0]["rounds"][0]
    kept = {key: figures[key] for key in ("requests", "mean_ms", "p50_ms", "p99_ms", "goodput_per_s", "wrong", "failed")}
    kept["in_time"] = figures["goodput_per_s"] / figures["requests_per_s"] if figures["requests"] else 0.0
    return {"machine": report["machine"], "streams": streams, "server": name, "round": number, **kept, "cores": used / alone_s}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="50,100,200,400")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warm-up", type=float, default=2)
    parser.add_argument("--samples", type=int, default=4 * CHUNKS)
    parser.add_argument("--quick", action="store_true", help="a small model and few streams, for tests")
    parser.add_argument("--csv", type=Path, default=TABLE)
    parser.add_argument("--binary", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.streams, given.rounds, given.seconds, given.warm_up, given.samples = "3", 1, 1, 0, CHUNKS
    program = given.binary or binary()
    for line in machine_facts(program):
        print(line)
    rows = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        places = write(program, Path(folder), given.quick)
        servers = {name: running.enter_context(Server(place, program=program)) for name, place in places.items()}
        for streams in map(int, given.streams.split(",")):
            for number in range(1, given.rounds + 1):
                in_turn = list(servers.items())
                for name, server in in_turn if number % 2 else reversed(in_turn):
                    rows.append(rounded(measure(program, name, server, streams, number, given)))
    write_table(given.csv, rows)
    titled("streams", "server", "p50, ms", "p99, ms", "in 320 ms", "cores", "wrong or missing")
    for streams, name in dict.fromkeys((row["streams"], row["server"]) for row in rows):
        own = [row for row in rows if (row["streams"], row["server"]) == (streams, name)]
        middle = {key: statistics.median(float(row[key]) for row in own) for key in ("p50_ms", "p99_ms", "in_time", "cores")}
        faults = sum(int(row["wrong"]) + int(row["failed"]) for row in own)
        shown(streams, name, f"{middle['p50_ms']:.3g}", f"{middle['p99_ms']:.3g}", f"{middle['in_time']:.1%}", f"{middle['cores']:.2f}", faults)


if __name__ == "__main__":
    main()
