"""Texts in, vectors out: the server compared with fastembed and with a plain loop over ONNX Runtime, on the same weights
and tokenizer: the table and the plot of docs/benchmarks/text.md.

    make compare-text
    .cache/text-peers/bin/python scripts/compare_text.py [--rounds 5] [--seconds 4] [--only glue-short,mixed] [--quick]

All sides get texts. The server gets them over HTTP, at /v1/embeddings, one text a request, from one thread with a
connection for each request in flight. The others are called in this process, without a network:

- fastembed: a thread for each request in flight calls `embed` with one text, as a web framework's threads would.
- the plain loop: one thread takes up to 32 of the texts that wait, first come first served, tokenizes them together,
  pads them to the longest, and runs them, with ONNX Runtime's default options.

Sides alternate within each round. Before anything is measured, the vectors of all sides are compared for every text.
Last, small requests are sent to `identity` and to a pipeline of three steps that each run it, which shows what the steps
of a pipeline cost.
"""

import argparse
import base64
import json
import os
import queue
import random
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import fetch
import numpy as np
import onnxruntime
from comparing import called, machine_facts, ratios, rounded, show_servers, shown, titled, write_table
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from plots import write_bars
from server import ROOT, Server, binary
from tokenizers import Tokenizer

#: Tokens of a text: exp(normal(mu, sigma)), at least and at most. The first two are those of `paternoster bench`.
LENGTHS = {"glue-short": (2.4, 0.6, 3, 128), "glue-pair": (4.0, 0.5, 12, 250), "mixed": (3.4, 0.9, 3, 250)}
IN_FLIGHT = (1, 8, 32)
QUICK_IN_FLIGHT = (1, 4)
#: Of which a round has at least as many requests, however short it is.
LEAST_REQUESTS = 2
#: Tokens that the model was trained for, the special ones among them; texts are cut there on all sides.
MAX_TOKENS = 256
BATCH = 32
SIZE = 384
TOLERANCE = 1e-4
TABLE = ROOT / "benches" / "tables" / "text.csv"
PLOT = ROOT / "docs" / "benchmarks" / "text.svg"


def sentences(tokenizer, name, count):
    """Returns texts of whole words that are one token each."""
    draws = random.Random(name)
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii())
    mu, sigma, least, most = LENGTHS[name]
    lengths = [min(max(round(draws.lognormvariate(mu, sigma)), least), most) for _ in range(count)]
    # Two tokens of each text are special.
    return [" ".join(draws.choices(words, k=max(length - 2, 1))) for length in lengths]


class Plain:
    """The plain loop."""

    def __init__(self, tokenizer, model):
        self.tokenizer, self.waiting = tokenizer, queue.Queue()
        self.session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        threading.Thread(target=self.run, daemon=True).start()

    def embed(self, text):
        answer = queue.SimpleQueue()
        self.waiting.put((text, answer))
        return answer.get()

    def run(self):
        while True:
            batch = [self.waiting.get()]
            while len(batch) < BATCH and not self.waiting.empty():
                batch.append(self.waiting.get())
            found = self.tokenizer.encode_batch([text for text, _ in batch])
            inputs = {
                "input_ids": np.array([one.ids for one in found], np.int64),
                "attention_mask": np.array([one.attention_mask for one in found], np.int64),
            }
            (vectors,) = self.session.run(["sentence_embedding"], inputs)
            for (_, answer), vector in zip(batch, vectors):
                answer.put(vector)


class Fastembed:
    def __init__(self, folder):
        source = ModelSource(hf="local/minilm")
        # The graph pools and normalizes.
        TextEmbedding.add_custom_model(
            "local/minilm", PoolingType.DISABLED, False, source, SIZE, "model.onnx", output_name="sentence_embedding"
        )
        self.model = TextEmbedding("local/minilm", specific_model_path=str(folder))

    def embed(self, text):
        return next(iter(self.model.embed([text])))


def in_threads(embed, texts, in_flight, seconds):
    """Calls a function with texts from several threads for a time. Returns latencies in seconds."""
    end, taken = time.perf_counter() + seconds, []

    def client(number):
        place = number
        while (start := time.perf_counter()) < end or len(taken) < LEAST_REQUESTS:
            embed(texts[place % len(texts)])
            taken.append(time.perf_counter() - start)
            place += in_flight

    threads = [threading.Thread(target=client, args=(number,)) for number in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


class Connection:
    """A kept connection to the server, with at most one request in flight."""

    def __init__(self, address, selector):
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received, self.start = b"", 0.0
        selector.register(self.socket, selectors.EVENT_READ, self)

    def send(self, request):
        self.received, self.start = b"", time.perf_counter()
        self.socket.sendall(request)

    def answer(self):
        """Returns the body of an answer that has arrived whole."""
        part = self.socket.recv(65536)
        if not part:
            sys.exit("the server closed a connection")
        self.received += part
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return None
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(fields[b"content-length"]):
            return None
        if b" 200 " not in head.split(b"\r\n")[0] + b" ":
            sys.exit(f"the server refused a text: {body.decode()}")
        return body


def http_request(address, text):
    body = json.dumps({"model": "sentences", "input": text, "encoding_format": "base64"}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def over_http(address, texts, in_flight, seconds):
    """Does the same as `in_threads` with requests to the server, from one thread."""
    requests = [http_request(address, text) for text in texts]
    taken = []
    with selectors.DefaultSelector() as selector:
        connections = [Connection(address, selector) for _ in range(in_flight)]
        end, place = time.perf_counter() + seconds, 0
        for connection in connections:
            connection.send(requests[place % len(requests)])
            place += 1
        busy = in_flight
        while busy:
            for key, _ in selector.select():
                connection = key.data
                if connection.answer() is None:
                    continue
                now = time.perf_counter()
                taken.append(now - connection.start)
                if now < end or len(taken) < LEAST_REQUESTS:
                    connection.send(requests[place % len(requests)])
                    place += 1
                else:
                    busy -= 1
        for connection in connections:
            connection.socket.close()
    return taken


def server_vector(address, text):
    with selectors.DefaultSelector() as selector:
        connection = Connection(address, selector)
        connection.send(http_request(address, text))
        while (body := connection.answer()) is None:
            pass
        connection.socket.close()
    return np.frombuffer(base64.b64decode(json.loads(body)["data"][0]["embedding"]), np.float32)


def local_files(models, folder):
    """Writes the directory that fastembed reads: the graph of the server's model, and the tokenizer's files."""
    folder.mkdir()
    (folder / "model.onnx").symlink_to(models / "minilm" / "1" / "model.onnx")
    minilm = fetch.minilm()
    for name in ("config.json", "tokenizer.json", "special_tokens_map.json"):
        (folder / name).symlink_to(minilm / name)
    settings = json.loads((minilm / "tokenizer_config.json").read_text()) | {"model_max_length": MAX_TOKENS}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def measured(name, in_flight, side, number, taken, seconds):
    """Returns the row of a round, with latencies in milliseconds."""
    cuts = statistics.quantiles(taken, n=100)
    figures = {"requests": len(taken), "requests_per_s": len(taken) / seconds, "mean_ms": statistics.fmean(taken) * 1e3}
    figures |= {"p50_ms": cuts[49] * 1e3, "p90_ms": cuts[89] * 1e3, "p99_ms": cuts[98] * 1e3}
    return rounded({"case": name, "in_flight": in_flight, "server": side, "round": number} | figures)


CHAIN = """max_batch_size: 64
inputs: [{ name: INPUT0, dtype: FP32, dims: [16] }]
outputs: [{ name: OUTPUT0, dtype: FP32, dims: [16] }]
pipeline:
  - model: { name: identity, inputs: { INPUT0: INPUT0 }, outputs: { OUTPUT0: first } }
  - model: { name: identity, inputs: { INPUT0: first }, outputs: { OUTPUT0: second } }
  - model: { name: identity, inputs: { INPUT0: second }, outputs: { OUTPUT0: OUTPUT0 } }
"""


def cpu_seconds(pid):
    """Returns the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare_steps(server, given):
    """Prints the latency and the server's processor time of requests to one model and to a pipeline of three steps."""
    found = {}
    for _ in range(given.rounds):
        for model in ("identity", "chain"):
            for in_flight in given.in_flight:
                words = ["--url", server.grpc, "--model", model, "--concurrency", in_flight, "--rounds", 1, "--samples", 16]
                before = cpu_seconds(server.pid)
                report = called(given.binary, "bench", *words, "--seconds", given.seconds, "--warm-up-seconds", 0, "--json")
                (measured,) = report["loads"][0]["policies"][0]["rounds"]
                cpu_us = (cpu_seconds(server.pid) - before) / measured["requests"] * 1e6
                found.setdefault((model, in_flight), []).append((measured["p50_ms"] * 1e3, cpu_us))
    titled("in flight", "p50, one model", "p50, three steps", "server CPU, one model", "server CPU, three steps", "ratio")
    for in_flight in given.in_flight:
        (one, one_us), (three, three_us) = (
            [statistics.median(column) for column in zip(*found[model, in_flight])] for model in ("identity", "chain")
        )
        shown(in_flight, *(f"{us:.0f} µs" for us in (one, three, one_us, three_us)), f"{three_us / one_us:.2f}")


def draw(path, rows, names):
    groups = list(dict.fromkeys((row["case"], row["in_flight"]) for row in rows))
    beside = ratios(rows, names[0])
    series = {names[0]: [1.0] * len(groups)}
    for name in names[1:]:
        series[name] = [statistics.median(beside[(*group, name)]) for group in groups]
    labels = [f"{case}\n{in_flight} in flight" for case, in_flight in groups]
    write_bars(path, f"texts/s beside {names[0]}", "", f"texts/s, {names[0]} = 1", labels, series)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="measured time of each side in a round")
    parser.add_argument("--warm-up", type=float, default=1, help="seconds before that, which are not counted")
    parser.add_argument("--texts", type=int, default=256, help="different texts of each kind")
    parser.add_argument("--only", default=",".join(LENGTHS), help="kinds of texts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="few texts and short rounds, for tests")
    parser.add_argument("--csv", type=Path, default=TABLE)
    parser.add_argument("--svg", type=Path, default=PLOT)
    parser.add_argument("--binary", default=binary(), help="the server's binary")
    given = parser.parse_args()
    given.in_flight = IN_FLIGHT
    if given.quick:
        given.rounds, given.seconds, given.warm_up, given.texts, given.in_flight = 2, 0.5, 0, 6, QUICK_IN_FLIGHT
    unknown = set(given.only.split(",")) - set(LENGTHS)
    if unknown:
        sys.exit(f"there is no kind of texts '{min(unknown)}'; the kinds are: {', '.join(LENGTHS)}")
    tokenizer = Tokenizer.from_file(str(fetch.minilm() / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    texts = {name: sentences(tokenizer, name, given.texts) for name in given.only.split(",")}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        scratch = Path(scratch)
        models = scratch / "models"
        called(given.binary, "models", "--out", models, "--only", "minilm,sentences,identity", "--minilm", fetch.minilm())
        (models / "chain").mkdir()
        (models / "chain" / "model.yaml").write_text(CHAIN)
        plain = Plain(tokenizer, models / "minilm" / "1" / "model.onnx")
        fastembed = Fastembed(local_files(models, scratch / "fastembed"))
        # A separate directory: profiles of earlier measurements must not change how the model is served.
        server = stack.enter_context(Server(models, "--profile-directory", scratch / "profiles", program=given.binary))
        worst = 0.0
        for text in sum(texts.values(), []):
            reference = plain.embed(text)
            for vector in (fastembed.embed(text), server_vector(server.http, text)):
                worst = max(worst, float(np.abs(reference - vector).max()))
        if worst > TOLERANCE:
            sys.exit(f"a vector differs by {worst:.2g} from the plain loop's, expected at most {TOLERANCE:g}")
        print("\n".join([*machine_facts(given.binary), f"vectors of all sides differ by at most {worst:.2g}"]), flush=True)
        sides = {
            "plain loop": lambda *load: in_threads(plain.embed, *load),
            "fastembed": lambda *load: in_threads(fastembed.embed, *load),
            "paternoster": lambda *load: over_http(server.http, *load),
        }
        rows = []
        for name, chosen in texts.items():
            for in_flight in given.in_flight:
                for number in range(1, given.rounds + 1):
                    for side, run in list(sides.items())[:: 1 if number % 2 else -1]:
                        run(chosen, in_flight, given.warm_up)
                        start = time.perf_counter()
                        taken = run(chosen, in_flight, given.seconds)
                        rows.append(measured(name, in_flight, side, number, taken, time.perf_counter() - start))
            write_table(given.csv, rows)
        show_servers(rows, list(sides))
        compare_steps(server, given)
        draw(given.svg, rows, list(sides))


if __name__ == "__main__":
    main()
