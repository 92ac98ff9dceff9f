"""Attacks on a running server by hostile clients, broken models and a vanishing repository, and their cost for other
clients.

    python scripts/attacks.py [NAME...] [--program PATH] [--csv FILE]

Each attack prints its figures, and those of a server that is not attacked. Nothing is asserted; docs/reliability.md
compares the figures of two versions. The server listens on loopback and ends with the script. Linux only: memory is
read from /proc.
"""

import argparse
import base64
import csv
import gzip
import http.client
import json
import logging
import os
import queue
import shutil
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter, namedtuple
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))

import attack_models  # noqa: E402
import decoder_attacks  # noqa: E402
import grpc  # noqa: E402
import image_attacks  # noqa: E402
import lane_attacks  # noqa: E402
import numpy as np  # noqa: E402
import on_demand_attacks  # noqa: E402
import pipeline_attacks  # noqa: E402
import rollout_attacks  # noqa: E402
import text_attacks  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
from attacking import LOAD, MB, ROW, Given, bystander, memory_of, raw_call, suffered  # noqa: E402
from clients import metric  # noqa: E402
from onnx_bytes import text, varint  # noqa: E402
from server import Server, binary  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

#: Length of attacks that do not end by themselves, in seconds.
LASTS_S = 10
BAD_TOKEN = 10**9
INFER = "/inference.GRPCInferenceService/ModelInfer"
UNLOAD = "/inference.GRPCInferenceService/RepositoryModelUnload"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"

#: One figure of an attack.
Figure = namedtuple("Figure", "attack what value")
ATTACKS = {}


def attack(function):
    ATTACKS[function.__name__] = function
    return function


# Attacks -------------------------------------------------------------------------------------------------------------


@attack
def bad_token(given):
    """Six good clients and one that sends a token outside of the vocabulary, on each of three models of cells."""
    with given.serve(given.cells) as server:
        for model in ("lstm", "seq2seq", "tree-lstm"):
            good, bad, over = Counter(), Counter(), threading.Event()

            def client(rng, tokens, counts, model=model, over=over):
                with triton.InferenceServerClient(server.grpc) as connected:
                    while not over.is_set():
                        inputs = attack_models.cell_inputs(model, rng, tokens)
                        try:
                            connected.infer(model, inputs, client_timeout=60)
                            counts["answered"] += 1
                        except InferenceServerException as refusal:
                            counts[refusal.status()] += 1

            threads = [
                threading.Thread(target=client, args=(np.random.default_rng(seed), None, good)) for seed in range(6)
            ]
            threads.append(threading.Thread(target=client, args=(np.random.default_rng(9), BAD_TOKEN, bad)))
            for thread in threads:
                thread.start()
            time.sleep(LASTS_S)
            over.set()
            for thread in threads:
                thread.join()
            total, failed = sum(good.values()), sum(good.values()) - good["answered"]
            yield f"{model}: good requests failed", f"{failed} of {total} (bad ones sent: {sum(bad.values())})"


@attack
def bad_row(given):
    """One request in 64 fails within a graph; measures how large the other requests' batches are."""
    with given.serve(given.lookup) as server:
        for share, what in ((0, "none bad"), (64, "1 of 64 bad")):
            ended, room = Counter(), threading.Semaphore(64)
            with triton.InferenceServerClient(server.grpc) as client:
                before = client.get_inference_statistics("lookup").model_stats[0]

                def ask(number, client=client, ended=ended, room=room, share=share):
                    bad = share and number % share == share - 1

                    def told(result, error):
                        ended["bad" if bad else "good", error is None] += 1
                        room.release()

                    room.acquire()
                    client.async_infer("lookup", attack_models.lookup_inputs(bad), told)

                for number in range(6_400):
                    ask(number)
                for _ in range(64):
                    room.acquire()
                after = client.get_inference_statistics("lookup").model_stats[0]
            tasks = after.execution_count - before.execution_count
            requests = after.inference_count - before.inference_count
            yield f"{what}: requests a task", f"{requests / max(tasks, 1):.1f}, good ones failed {ended['good', False]}"


def empty_inputs(megabytes):
    """Returns a request of that many megabytes of unnamed inputs, two bytes each."""
    return text(1, "identity") + b"\x2a\x00" * int(megabytes * MB / 2)


def typed_floats(megabytes):
    """Returns an ordinary request with typed contents."""
    values = np.ones(int(megabytes * MB / 4), "<f4").tobytes()
    rows = varint(len(values) // 64) + varint(16)
    contents = text(5, text(6, values))
    return text(1, "identity") + text(5, text(1, "INPUT0") + text(2, "FP32") + text(3, rows) + contents)


@attack
def small_messages(given):
    """Messages that cost more than their size, and large honest ones, next to a client with small requests."""
    for what, message, compression in (
        ("10 MB of empty inputs", empty_inputs(10), None),
        ("40 MB of empty inputs", empty_inputs(40), None),
        ("empty inputs in 40 kB of gzip", empty_inputs(40), grpc.Compression.Gzip),
        ("60 MB of typed contents", typed_floats(60), None),
    ):
        with given.serve(given.plain) as server, bystander(server) as times, memory_of(server) as grown:
            code = raw_call(server, INFER, message, 120, compression)
            figure = grown()
        yield what, f"{code}, {figure:.0f} MB more resident, others {suffered(times)}"


#: The bound on pending bytes under which uploads stop midway; a connection may use a quarter.
PENDING_BYTES = 512 << 20
#: What each of four connections uploads.
UPLOAD_BYTES = 100_000_000


def uploads(data):
    """Returns how data are uploaded as the only input: form -> the bytes of a request. All but the compressed request
    lack their end; that one is read whole before it is decompressed."""
    parameters = {"binary_data_size": len(data)}
    tensor = {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "parameters": parameters}
    header = json.dumps({"inputs": [tensor]}).encode()
    body, mebibyte = header + data, 1 << 20
    packed = gzip.compress(body, 1)
    head = b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: %d\r\n" % len(header)
    pieces = [body[begin : begin + mebibyte] for begin in range(0, len(body), mebibyte)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return {
        "with a length": head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1],
        "in chunks": head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        "compressed": head + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed,
    }


def upload(server, request):
    """Sends the bytes of a request; returns the open connection, and whether the server read all of them."""
    host, port = server.http.split(":")
    stream = socket.create_connection((host, int(port)), timeout=60)
    try:
        stream.sendall(request)
    except OSError:
        return stream, False
    return stream, True


@attack
def stopped_uploads(given):
    """Four connections upload 100 MB each and stop before the end; compares the growth of memory with the bound."""
    data = np.random.default_rng(5).integers(0, 2, UPLOAD_BYTES, np.uint8).tobytes()
    for form, request in uploads(data).items():
        flags = f"--max-pending-bytes={PENDING_BYTES}", "--http-max-input-size=1000000000"
        with given.serve(given.plain, *flags) as server:
            with memory_of(server) as growth, ExitStack() as open_streams, ThreadPoolExecutor(4) as clients:
                sent = list(clients.map(lambda _, server=server, request=request: upload(server, request), range(4)))
                for stream, _ in sent:
                    open_streams.enter_context(stream)
                time.sleep(2)
                peak = growth()
            read = sum(is_read for _, is_read in sent)
            yield form, f"{peak:.0f} MB at most, bound {PENDING_BYTES / MB:.0f} MB, {read} of {len(sent)} read"


@attack
def endless_runs(given):
    """Two clients with a deadline of a second start a model that never ends; measures when another model answers after
    that."""
    with given.serve(given.plain) as server, triton.InferenceServerClient(server.grpc) as client:
        client.infer("identity", ROW)
        ended = queue.Queue()
        for model in ("runaway", "runaway-too"):
            client.async_infer(model, ROW, lambda result, error: ended.put(error), client_timeout=1)
        codes = Counter(ended.get(timeout=120).status() for _ in range(2))
        began = time.monotonic()
        ready = client.is_server_ready()
        client.infer("identity", ROW, client_timeout=120)
        yield "another model answers after", f"{time.monotonic() - began:.2f} s (ready {ready}, {dict(codes)})"


@attack
def closed_window(given):
    """64 requests of 65,536 responses each, whose client never reads."""
    with given.serve(given.plain) as server, memory_of(server) as grown:
        request = attack_models.repeat_request(65_536)
        over = threading.Event()

        def sent_once():
            yield request
            over.wait()

        with grpc.insecure_channel(server.grpc) as channel:
            calls = [channel.stream_stream(STREAM)(sent_once()) for _ in range(64)]
            time.sleep(LASTS_S)
            figure = grown()
            for call in calls:
                call.cancel()
            over.set()
    yield "resident memory", f"{figure:.0f} MB more"


@attack
def external_weights(given):
    """External weights inside and outside of the model's directory, with a decoy in the working directory."""
    for what, (repository, model, expected) in attack_models.external(given.folder).items():
        started = given.server(repository)
        started.start(until="settled")
        try:
            with triton.InferenceServerClient(started.grpc) as client:
                try:
                    answer = client.infer(model, ROW).as_numpy("OUTPUT0")[0, 0]
                    found = {expected: "right"}.get(answer, f"WRONG: {answer}, from another file")
                except InferenceServerException as refusal:
                    reasons = {one.reason for one in client.get_model_repository_index().models}
                    found = f"not served: {'; '.join(sorted(reasons)) or refusal}"
        finally:
            started.stop()
        yield what, found


@attack
def hostile_models(given):
    """Small models, sent over the API, that crash or block the loader; checks whether the server lives and loads
    another."""
    for what, graph in attack_models.hostile().items():
        repository = given.empty()
        started = given.server(repository, "--model-control-mode=explicit").start()
        messages = [attack_models.load_request(f"hostile-{number}", graph) for number in range(8)]
        sending = [threading.Thread(target=raw_call, args=(started, LOAD, one, 30), daemon=True) for one in messages]
        for thread in sending:
            thread.start()
        # The attack has begun; all figures below count from here.
        time.sleep(1)
        began = time.monotonic()
        code = raw_call(started, LOAD, attack_models.load_request("honest", attack_models.honest()), 30)
        took, lives = time.monotonic() - began, started.process.poll() is None
        yield what, f"server {'lives' if lives else 'ENDED'}, another model's load: {code} after {took:.1f} s"
        started.process.kill()
        started.stop()


def honest_load(server, name="honest"):
    """Loads a small model as another client; returns what became of it and how long that took."""
    began = time.monotonic()
    code = raw_call(server, LOAD, attack_models.load_request(name, attack_models.honest()), 30)
    return f"{code} after {time.monotonic() - began:.1f} s"


def busy_cores(server, seconds=2):
    """Returns how many cores the server uses."""
    def used():
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds


@attack
def endless_warmups(given):
    """Four uploads of a model that never ends, with a warm-up request each; two seconds later their clients leave. Then
    one with 2^31 - 1 warm-up runs."""
    described = json.dumps(attack_models.WARMED)
    many = json.loads(described)
    many["model_warmup"][0]["count"] = 2**31 - 1
    with given.serve(given.empty(), "--model-control-mode=explicit") as server:
        messages = [attack_models.load_request(f"m{at}", attack_models.endless(), described) for at in range(4)]
        sending = [threading.Thread(target=raw_call, args=(server, LOAD, one, 2), daemon=True) for one in messages]
        for thread in sending:
            thread.start()
        time.sleep(1)
        with triton.InferenceServerClient(server.grpc) as client:
            yield "the server while they load", "ready" if client.is_server_ready() else "NOT READY"
        for thread in sending:
            thread.join()
        yield "cores busy after the clients left", f"{busy_cores(server):.1f}"
        yield "another model's load", honest_load(server)
        began = time.monotonic()
        code = raw_call(server, UNLOAD, text(2, "m0"), 30)
        yield "unload of one of them", f"{code} after {time.monotonic() - began:.1f} s"
        began = time.monotonic()
        code = raw_call(server, LOAD, attack_models.load_request("many", attack_models.honest(), json.dumps(many)), 10)
        yield "2^31 - 1 warm-up runs", f"{code} after {time.monotonic() - began:.1f} s"


@attack
def folded_constants(given):
    """An upload of about 230 bytes whose constant takes 1 GB when the model is opened, then eight uploads of 9 MB that
    stay loaded, on a server that may use 1 GB for models of clients."""
    flags = ("--model-control-mode=explicit", "--max-sent-model-bytes=1000000000")
    with given.serve(given.empty(), *flags) as server, memory_of(server) as grown:
        code = raw_call(server, LOAD, attack_models.load_request("folded", attack_models.folded(1 << 28)), 120)
        yield "a constant of 1 GB", f"{code}, {grown():.0f} MB more resident at the peak"
        codes = Counter()
        for at in range(8):
            message = attack_models.load_request(f"m{at}", attack_models.weighty(9, at))
            codes[raw_call(server, LOAD, message, 120)] += 1
        held = metric(server, "paternoster_sent_model_bytes") / MB
        yield "eight models of 9 MB", f"{dict(codes)}, {grown():.0f} MB more resident at the peak, {held:.0f} MB reserved"


@attack
def abandoned_uploads(given):
    """Four clients load a model that never ends, and leave after 25 seconds. Behind them sixty others send 25 MB each and
    leave after 15. Over each protocol; the figures are those after all have left."""
    described = json.dumps(attack_models.WARMED)
    weighty = attack_models.weighty(25, 1)
    parameters = {"config": '{"backend": "onnxruntime"}', "file:1/model.onnx": base64.b64encode(weighty).decode()}
    body = json.dumps({"parameters": parameters}).encode()

    def leave_grpc(server, at):
        raw_call(server, LOAD, attack_models.load_request(f"m{at}", weighty), 15)

    def leave_http(server, at):
        request = urllib.request.Request(f"http://{server.http}/v2/repository/models/m{at}/load", body)
        with suppress(OSError):
            urllib.request.urlopen(request, timeout=15)

    for what, leave in (("gRPC", leave_grpc), ("HTTP", leave_http)):
        with given.serve(given.empty(), "--model-control-mode=explicit") as server:
            before = server.memory_bytes() / MB
            first = [attack_models.load_request(f"first{at}", attack_models.endless(), described) for at in range(4)]
            endless = [threading.Thread(target=raw_call, args=(server, LOAD, message, 25)) for message in first]
            for client in endless:
                client.start()
            time.sleep(1)
            with ThreadPoolExecutor(60) as clients:
                list(clients.map(lambda at, server=server, leave=leave: leave(server, at), range(60)))
            for client in endless:
                client.join()
            time.sleep(3)
            after, held = server.memory_bytes() / MB, metric(server, "paternoster_pending_bytes") / MB
            yield what, f"{before:.0f} -> {after:.0f} MB resident, {held:.0f} MB reserved"
            server.process.kill()


@attack
def stray_keys(given):
    """A store with one good model, and keys that cannot be files beside it."""
    import object_stores

    # The store would print a line for each request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    for key in ("models//readme.txt", "models/./x", "models/../x", "models/bad\n/1/model.onnx"):
        store = object_stores.S3()
        try:
            store.put("models/good/1/model.onnx", attack_models.honest())
            store.put(key, b"x")
            started = Server(store.location, program=given.program, environment=store.environment)
            try:
                started.start(until="settled")
                with triton.InferenceServerClient(started.grpc) as client:
                    found = "served" if client.is_model_ready("good") else "NOT SERVED"
            except Exception:
                found = "THE SERVER DOES NOT START"
            finally:
                started.stop()
        finally:
            store.close()
        yield repr(key), f"the good model is {found}" if found != "THE SERVER DOES NOT START" else found


@attack
def empty_keys(given):
    """Groups of methods whose key is an unset variable, so that an empty header would do."""
    for flag in ("--grpc-restricted-protocol=model-repository:admin=", "--http-restricted-api=model-repository:admin="):
        try:
            with given.serve(given.plain, flag):
                yield flag, "THE SERVER STARTS"
        except Exception as refusal:
            yield flag, f"it does not start: {str(refusal).split('error=')[-1].strip()[:100]}"


@attack
def rebinding(given):
    """A page of another site asks a server on loopback through a name of its own, which it has bound to 127.0.0.1."""
    with given.serve(given.plain) as server:
        host, port = server.http.split(":")
        for name in (f"evil.example:{port}", server.http):
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            connection.request("GET", "/v2/overview", headers={"Host": name})
            answer = connection.getresponse()
            yield f"Host: {name.split(':')[0]}", f"{answer.status}, {len(answer.read())} bytes"
            connection.close()


@attack
def vanished_repository(given):
    """The repository's directory is gone for two polls; checks whether the models are served meanwhile."""
    repository = given.folder / "vanishing"
    shutil.copytree(given.plain, repository)
    with given.serve(repository, "--model-control-mode=poll", "--repository-poll-secs=1") as server:
        with triton.InferenceServerClient(server.grpc) as client:
            repository.rename(repository.with_suffix(".away"))
            time.sleep(2.5)
            served = client.is_model_ready("identity")
            repository.with_suffix(".away").rename(repository)
    yield "models while it is away", "served" if served else "UNLOADED"


for module in (decoder_attacks, image_attacks, lane_attacks, on_demand_attacks, pipeline_attacks, rollout_attacks, text_attacks):
    for one in module.ATTACKS:
        attack(one)


# The command ---------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"attacks to run: {', '.join(ATTACKS)}")
    parser.add_argument("--program", type=Path, help="the server's binary; default: cargo's release build")
    parser.add_argument("--csv", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    unknown = set(given.names) - set(ATTACKS)
    if unknown:
        parser.error(f"no attack is named {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")

    figures, program = [], (given.program or binary()).resolve()
    with tempfile.TemporaryDirectory(prefix="paternoster-attacks-") as folder:
        # Relative paths in a model must find nothing here but the decoy.
        os.chdir(attack_models.decoy(Path(folder)))
        shared = Given(program, folder)
        for name in given.names or ATTACKS:
            print(f"{name}: {ATTACKS[name].__doc__}", flush=True)
            for what, value in ATTACKS[name](shared):
                figures.append(Figure(name, what, value))
                print(f"  {what:<34} {value}", flush=True)
    if given.csv:
        with open(given.csv, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([Figure._fields, *figures])
    return 0


if __name__ == "__main__":
    sys.exit(main())
