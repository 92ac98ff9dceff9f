"""A soak test: random clients against a server with the test models, for any length of time. Started by `make soak`.

    .cache/tests/bin/python scripts/soak.py [--minutes 60] [--clients 12] [--seed 1]

Clients send plain and batched requests, cells, sequences, streams, requests to an ensemble, texts and images, and misbehave: wrong shapes, tokens and names,
cancelled calls, deadlines too short, sequences and streams left open, streams read slowly. Models are reloaded and
unloaded meanwhile, and 50 others come and go. At the end the server's counters are compared with the clients' records,
for each model; nothing may be pending, as many files must be open as at the start, and without the 50 models, resident
memory must be within a tenth of what it was after the first minute. It is also printed with its slope over the second
half, for the reader to judge.
"""

import argparse
import os
import queue
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import fetch
from server import ROOT, Server, binary

sys.path.insert(0, str(ROOT / "tests" / "python"))

import cells_reference  # noqa: E402
import numpy as np  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
from clients import eventually, on_page, rows, scrape, statistics, tensor  # noqa: E402
from ensembles import Ensemble, ensemble_text, step  # noqa: E402
from onnx_bytes import product, scale  # noqa: E402
from repository_on_disk import config, write_model, write_pipeline  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

SET = ("identity", "scale", "addsub", "padded", "lookup", "total", "repeat", "variable")
CELLS = ("lstm",)
#: An ensemble, whose steps have models that clients do not call, so that their counters are its own.
ENSEMBLE, FACTORS = "sixfold", {"double": 2, "triple": 3}
#: A model that takes pairs of texts.
TEXTS = "reranker"
WORDS = "the cat sat on a mat while rates rose and trains left for the sea under clouds of antiquity".split()
#: A pipeline of one step, which decodes images and cuts out their centre.
IMAGES, CENTRE = "pictures", 8
COUNTED = (*SET, *CELLS, ENSEMBLE, TEXTS, IMAGES)
#: Models that are reloaded or unloaded during the run. Their counters start again with each version that is loaded.
RELOADED, UNLOADED = "scale", "variable"
#: Statuses of requests that were rejected before they were counted.
REFUSED = ("INVALID_ARGUMENT", "NOT_FOUND")
#: Models that come and go, in addition, and how many of them are loaded at most. Each has a matrix of WIDTH by WIDTH.
GUESTS, MOST_GUESTS, WIDTH = 50, 12, 1024
#: How much of the memory before may be in use after, and how long returning it may take.
RETURNED, RETURNED_S = 1.1, 120
#: How long clients run before the memory and files of before are counted.
WARM_UP_MIN = 1
#: Memory that has not fallen for so long has been returned.
SETTLED_S = 5
#: The model of sequences. The scheduler ends a sequence that is idle for too long, and counts its next request as
#: failed.
SEQUENCES = "total"
#: Statuses after which a client cannot know whether its request was counted.
UNKNOWN = ("CANCELLED", "DEADLINE_EXCEEDED")
#: A token beyond every vocabulary.
BAD_TOKEN = 10**9
SAMPLE_S, REPORT_S = 2, 60
#: How a request must have been counted: as a success, as a failure, as one of the two, or not at all.
SUCCESS, FAILURE, EITHER = "success", "failure", "either"


def connected(server):
    """Returns a client with its own connection: by default, clients of one process share one."""
    return triton.InferenceServerClient(server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)])


class Tally:
    """The clients' record: how requests ended, by model, and what was wrong."""

    def __init__(self):
        self.lock = threading.Lock()
        self.ends = defaultdict(Counter)
        self.statuses = Counter()
        self.faults = Counter()

    def end(self, model, status, may=()):
        """Counts the end of a request; a status other than OK must be one of `may`."""
        with self.lock:
            self.statuses[f"{model} {status}"] += 1
            if status in UNKNOWN:
                self.ends[model][EITHER] += 1
            elif status not in REFUSED or model == SEQUENCES:
                self.ends[model][SUCCESS if status == "OK" else FAILURE] += 1
            if status != "OK" and status not in may:
                self.faults[f"{model} answered {status}"] += 1

    def fault(self, text):
        with self.lock:
            self.faults[text] += 1


class Client:
    """One client with its own connection. Runs until `until` is set."""

    def __init__(self, server, tally, samples, seed, until):
        self.server, self.tally, self.samples, self.until = server, tally, samples, until
        self.rng = random.Random(seed)
        self.seed = seed
        self.sequences = 0

    def run(self):
        acts = [
            (8, self.plain), (8, self.batched), (6, self.cells), (6, self.ensemble), (2, self.texts), (3, self.images), (4, self.sequence), (3, self.stream), (3, self.wrong),
            (3, self.cancelled), (3, self.late), (1, self.slow_reader), (3, self.reloaded), (1, self.reconnect),
        ]  # fmt: skip
        weights, calls = zip(*acts)
        self.client = connected(self.server)
        while not self.until.is_set():
            try:
                self.rng.choices(calls, weights)[0]()
            except InferenceServerException as failure:
                self.tally.fault(f"a call of another kind failed: {failure}")
            except (AssertionError, queue.Empty) as failure:
                self.tally.fault(f"wrong: {failure!r}")
        self.client.close()

    def infer(self, model, inputs, may=(), **options):
        """Returns the answer; None if the status is not OK."""
        try:
            answer = self.client.infer(model, inputs, **options)
        except InferenceServerException as failure:
            self.tally.end(model, failure.status().removeprefix("StatusCode."), may)
            return None
        self.tally.end(model, "OK")
        return answer

    def right(self, answer, expected, name="OUTPUT0"):
        assert answer is None or np.allclose(answer.as_numpy(name), expected, atol=1e-4), f"{name} of another request"

    def plain(self):
        sent = rows(1, self.rng.randrange(10**6))
        self.right(self.infer("identity", [tensor("INPUT0", sent)]), sent)

    def batched(self):
        sent = rows(self.rng.randint(1, 4), self.rng.randrange(10**6))
        answer = self.infer("addsub", [tensor("INPUT0", sent), tensor("INPUT1", sent)])
        self.right(answer, sent + sent)
        index = self.rng.randrange(16)
        self.right(self.infer("lookup", [tensor("INPUT0", [[index]])]), [[100 + index]])

    def cells(self):
        model = self.rng.choice(CELLS)
        request, expected = self.rng.choice(self.samples[model])
        answer = self.infer(model, [tensor(name, array[np.newaxis]) for name, array in request.items()])
        for name, value in expected.items():
            self.right(answer, value[np.newaxis], name)

    def ensemble(self):
        """Sends up to three times as many rows as a step takes at once."""
        sent = rows(self.rng.randint(1, 12), self.rng.randrange(10**6))
        self.right(self.infer(ENSEMBLE, [tensor("IN", sent)]), sent * 6, "OUT")

    def texts(self):
        pairs = self.rng.choices(self.samples[TEXTS], k=self.rng.randint(1, 3))
        answer = self.infer(TEXTS, texts_of(pairs))
        self.right(answer, np.concatenate([score for *_, score in pairs]), "logits")

    def images(self):
        """Sends images of different sizes, each a row."""
        sent = [picture(self.rng) for _ in range(self.rng.randint(1, 4))]
        answer = self.infer(IMAGES, images_of(sent))
        self.right(answer, np.stack([centre for _, centre in sent])[:, np.newaxis], "pixels")

    def sequence(self):
        """Runs a sequence that sums some requests. One in four is left open, and its slot is reclaimed."""
        self.sequences += 1
        number, length, expected = self.seed * 10**6 + self.sequences, self.rng.randint(1, 8), 0
        abandoned = self.rng.random() < 0.25
        for step in range(length):
            value = self.rng.randrange(100)
            flags = {"sequence_start": step == 0, "sequence_end": step == length - 1 and not abandoned}
            # On a busy machine the sequence may have been idle for too long, and has ended then.
            may = REFUSED if step > 0 else ()
            inputs = [tensor("INPUT0", np.array([[value]], np.int64))]
            answer = self.infer(SEQUENCES, inputs, may, sequence_id=number, **flags)
            if answer is None:
                return
            expected += value
            self.right(answer, [[expected]])

    def ask_stream(self, count, slow):
        """Requests `count` responses of a decoupled model on a stream of its own; returns how many arrived."""
        answers = queue.Queue(maxsize=1 if slow else 0)
        with connected(self.server) as own:
            own.start_stream(lambda result, error: answers.put((result, error)))
            own.async_stream_infer("repeat", [tensor("INPUT0", repeats(count))], enable_empty_final_response=True)
            taken = 0
            while not slow or taken < 3:
                result, error = answers.get(timeout=60)
                if error is not None:
                    self.tally.end("repeat", error.status().removeprefix("StatusCode."))
                    break
                if result.get_response().parameters["triton_final_response"].bool_param:
                    self.tally.end("repeat", "OK")
                    break
                taken += 1
                if slow:
                    time.sleep(0.05)
            else:
                self.tally.end("repeat", "CANCELLED", UNKNOWN)
            drained = threading.Event()
            threading.Thread(target=drain, args=(answers, drained), daemon=True).start()
            own.stop_stream(cancel_requests=slow)
            drained.set()
        return taken

    def stream(self):
        count = self.rng.randint(0, 20)
        assert self.ask_stream(count, slow=False) == count, "another number of answers than asked for"

    def slow_reader(self):
        self.ask_stream(5_000, slow=True)

    def wrong(self):
        """Sends requests that are rejected, and requests that fail in the engine."""
        act = self.rng.randrange(4)
        if act == 0:
            self.infer("addsub", [tensor("INPUT0", rows(1)[:, :8]), tensor("INPUT1", rows(1))], REFUSED)
        elif act == 1:
            self.infer("nobody", [tensor("INPUT0", rows(1))], REFUSED)
        elif act == 2:
            self.infer("lookup", [tensor("INPUT0", [[99]])], ("INTERNAL", *REFUSED))
        else:
            model = self.rng.choice(CELLS)
            request, _ = self.rng.choice(self.samples[model])
            bad = {name: np.full_like(array, BAD_TOKEN) for name, array in request.items()}
            self.infer(model, [tensor(name, array[np.newaxis]) for name, array in bad.items()], ("INTERNAL", *REFUSED))

    def cancelled(self):
        model = self.rng.choice(("addsub", ENSEMBLE, TEXTS, IMAGES, *CELLS))
        if model == "addsub":
            inputs = [tensor("INPUT0", rows(2)), tensor("INPUT1", rows(2))]
        elif model == ENSEMBLE:
            inputs = [tensor("IN", rows(8))]
        elif model == TEXTS:
            inputs = texts_of(self.samples[TEXTS][:2])
        elif model == IMAGES:
            inputs = images_of([picture(self.rng, 1024)])
        else:
            inputs = [tensor(name, array[np.newaxis]) for name, array in self.rng.choice(self.samples[model])[0].items()]
        ended = queue.Queue()
        call = self.client.async_infer(model, inputs, lambda result, error: ended.put(error))
        time.sleep(self.rng.random() * 0.003)
        call.cancel()
        error = ended.get(timeout=60)
        status = "OK" if error is None else error.status().removeprefix("StatusCode.")
        self.tally.end(model, status, UNKNOWN)

    def late(self):
        sent = np.arange(self.rng.randint(1, 50), dtype=np.int64)[np.newaxis]
        late = ("padded", [tensor("INPUT0", sent)]), (ENSEMBLE, [tensor("IN", rows(8))])
        self.infer(*self.rng.choice(late), UNKNOWN, client_timeout=self.rng.choice([0.0005, 0.002, 0.01]))

    def reloaded(self):
        """Sends requests during reloads and unloads. A reload loses no request; an unloaded model rejects them."""
        sent = rows(1, self.rng.randrange(10**6))
        self.right(self.infer(RELOADED, [tensor("INPUT0", sent)]), sent * 2)
        self.infer(UNLOADED, [tensor("INPUT0", np.array([[1, 2]], np.int64))], ("NOT_FOUND", "UNAVAILABLE"))

    def reconnect(self):
        self.client.close()
        self.client = connected(self.server)


def drain(answers, drained):
    """Takes the remaining responses, so that the stream's thread does not block on a full queue."""
    while not drained.is_set():
        try:
            answers.get(timeout=0.1)
        except queue.Empty:
            continue


def texts_of(pairs):
    """Returns the inputs of a request for the scores of pairs of texts."""
    columns = zip(*((first, second) for first, second, *_ in pairs))
    return [
        tensor(name, np.array([[text.encode()] for text in texts], object)) for name, texts in zip(("TEXT", "PAIR"), columns)
    ]


def picture(rng, most=64):
    """Returns a PNG of random shades of gray, and its centre."""
    height, width = (rng.randrange(CENTRE, most, 2) for _ in range(2))
    pixels = np.frombuffer(rng.randbytes(height * width), np.uint8).reshape(height, width)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part)) for kind, part in chunks]
    top, left = (height - CENTRE) // 2, (width - CENTRE) // 2
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts), pixels[top : top + CENTRE, left : left + CENTRE]


def images_of(pictures):
    return [tensor("IMAGE", np.array([[data] for data, _ in pictures], object))]


def scored(server, rng, count=20):
    """Returns pairs of texts with their scores, from requests without others beside them."""
    with connected(server) as client:
        draw = [[" ".join(rng.choices(WORDS, k=rng.randint(1, 30))) for _ in range(2)] for _ in range(count)]
        return [(*pair, client.infer(TEXTS, texts_of([pair])).as_numpy("logits")) for pair in draw]


def write_ensemble(repository):
    row = ("FP32", [16])
    for name, factor in FACTORS.items():
        write_model(repository, name, scale(factor), config(name, {"INPUT0": row}, max_batch_size=4))
    steps = [step("double", "INPUT0=IN", "OUTPUT0=twice"), step("triple", "INPUT0=twice", "OUTPUT0=OUT")]
    (repository / ENSEMBLE).mkdir()
    text = ensemble_text(ENSEMBLE, Ensemble("", 12, "IN FP32[16]", "twice FP32[16]", "OUT FP32[16]", steps))
    (repository / ENSEMBLE / "config.pbtxt").write_text(text)


def repeats(count):
    """Returns a request for `count` responses: its first number says how many."""
    values = rows(1)
    values[0, 0] = count
    return values


def keep_reloading(server, tally, until):
    """Reloads one model, and unloads and loads another."""
    with connected(server) as client:
        while not until.wait(1):
            try:
                client.load_model(RELOADED)
                client.unload_model(UNLOADED)
                client.load_model(UNLOADED)
            except InferenceServerException as failure:
                tally.fault(f"reloading failed: {failure}")


def guest(number):
    return f"guest{number:02}"


def write_guests(repository):
    for number in range(GUESTS):
        row = ("FP32", [WIDTH])
        write_model(repository, guest(number), product(number + 1, WIDTH), config(guest(number), {"INPUT0": row}))


def ask_guest(client, number):
    sent = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    answer = client.infer(guest(number), [tensor("INPUT0", sent)]).as_numpy("OUTPUT0")
    assert np.allclose(answer, sent[:, ::-1] * (number + 1), rtol=1e-5), f"{guest(number)} answered wrongly"


def keep_changing_guests(server, tally, rng, until):
    """Loads and unloads guests, each of which answers a few requests; leaves none."""
    present = []
    with connected(server) as client:
        try:
            while not until.wait(0.05):
                if len(present) == MOST_GUESTS or present and rng.random() < 0.5:
                    client.unload_model(guest(present.pop(rng.randrange(len(present)))))
                    continue
                number = rng.choice([number for number in range(GUESTS) if number not in present])
                client.load_model(guest(number))
                present.append(number)
                ask_guest(client, rng.choice(present))
            for number in present:
                client.unload_model(guest(number))
        except (AssertionError, InferenceServerException) as failure:
            tally.fault(f"a guest failed: {failure}")


def unload_guests(server):
    with connected(server) as client:
        for number in range(GUESTS):
            ask_guest(client, number)
            client.unload_model(guest(number))


def settled_memory(server):
    """Returns the resident bytes once they have stopped falling."""
    least, since = server.memory_bytes(), time.monotonic()
    while time.monotonic() - since < SETTLED_S:
        time.sleep(0.5)
        if server.memory_bytes() < least:
            least, since = server.memory_bytes(), time.monotonic()
    return least


def open_files(server):
    """Returns the number of files that the server has open, by kind."""
    kinds = Counter()
    for entry in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            kinds[os.readlink(entry).split(":")[0]] += 1
        except OSError:
            continue
    return kinds


def total(kinds):
    return sum(kinds.values())


def slope_mb_per_hour(samples):
    """Returns the slope of (second, bytes) by least squares."""
    seconds, sizes = np.array(samples, dtype=float).T
    return np.polyfit(seconds, sizes, 1)[0] * 3600 / 1e6


def check_model(client, page, model, ends):
    """Returns the contradictions between a model's counters and the clients' records, or among the counters."""
    counted = statistics(client, model)
    wrong = []

    def expect(what, got, least, most):
        if not least <= got <= most:
            wrong.append(f"{model}: {what} is {got:g}, expected {least:g}" + (f" to {most:g}" if most != least else ""))

    if model not in (RELOADED, UNLOADED):
        known, either = ends[SUCCESS] + ends[FAILURE], ends[EITHER]
        expect("success", counted["success"], ends[SUCCESS], ends[SUCCESS] + either)
        expect("fail", counted["fail"], ends[FAILURE], ends[FAILURE] + either)
        expect("success + fail", counted["success"] + counted["fail"], known, known + either)
    for family, field in (
        ("nv_inference_request_success", "success"), ("nv_inference_count", "inference"),
        ("nv_inference_exec_count", "execution"), ("nv_inference_request_failure", "fail"),
    ):  # fmt: skip
        expect(family, on_page(page, family, model=model), counted[field], counted[field])
    expect("nv_inference_pending_request_count", on_page(page, "nv_inference_pending_request_count", model=model), 0, 0)
    return wrong


def soak(server, tally, samples, seeds, minutes):
    """Runs a client for each seed, which record what they see; returns a list of (second, resident bytes)."""
    until = threading.Event()
    clients = [Client(server, tally, samples, seed, until) for seed in seeds]
    threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
    threads.append(threading.Thread(target=keep_reloading, args=(server, tally, until), daemon=True))
    guests = random.Random(seeds[0])
    threads.append(threading.Thread(target=keep_changing_guests, args=(server, tally, guests, until), daemon=True))
    for thread in threads:
        thread.start()
    began, memory, reported = time.monotonic(), [], 0
    while time.monotonic() - began < minutes * 60 and server.process.poll() is None:
        time.sleep(SAMPLE_S)
        passed = time.monotonic() - began
        memory.append((passed, server.memory_bytes()))
        if passed - reported >= REPORT_S:
            reported = passed
            ended = sum(sum(ends.values()) for ends in tally.ends.values())
            files = total(open_files(server))
            print(f"  {passed / 60:5.1f} min {ended:9} requests {memory[-1][1] / 1e6:7.0f} MB {files:5} files", flush=True)
    until.set()
    for thread in threads:
        thread.join(120)
        if thread.is_alive():
            tally.fault("a client waits forever")
    return memory


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()

    program = Path(os.environ.get("PATERNOSTER") or binary())
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch) / "models"
        texts = ("--only", TEXTS, "--minilm", fetch.minilm())
        for choice in (("--set", "tests", "--only", ",".join(SET)), ("--only", ",".join(CELLS), "--quarter"), texts):
            command = [program, "models", "--out", repository, *choice]
            subprocess.run([str(part) for part in command], check=True, capture_output=True)
        forget_soon(repository / SEQUENCES / "config.pbtxt")
        write_ensemble(repository)
        write_guests(repository)
        cut = f"image: {{ dtype: UINT8, color: GRAY, crop: {{ height: {CENTRE}, width: {CENTRE} }}"
        cut += ", inputs: { IMAGE: IMAGE }, outputs: { pixels: pixels } }"
        write_pipeline(repository, IMAGES, {"IMAGE": ("BYTES", [1])}, {"pixels": ("UINT8", [1, CENTRE, CENTRE])}, [cut])
        rng = np.random.default_rng(given.seed)
        samples = {model: answered(cells_reference.load(repository / model), rng) for model in CELLS}
        flags = ("--model-control-mode=explicit", "--load-model=*")
        with Server(repository, *flags, program=program, log=Path(scratch) / "log") as server:
            # Files that are opened once, with the first connection, must be open before the count.
            unload_guests(server)
            samples[TEXTS] = scored(server, random.Random(given.seed))
            before, tally = open_files(server), Tally()
            tally.ends[TEXTS][SUCCESS] = len(samples[TEXTS])
            print(f"{given.clients} clients for {given.minutes:g} min, seed {given.seed}", flush=True)
            # What the first clients leave behind once, such as buffers, stays.
            seeds = range(given.seed * 1000, given.seed * 1000 + given.clients)
            soak(server, tally, samples, seeds, WARM_UP_MIN)
            bytes_before = settled_memory(server)
            memory = soak(server, tally, samples, [seed + 500 for seed in seeds], given.minutes)
            return report(server, tally, memory, before, bytes_before)


def forget_soon(config):
    """Configures a short idle time for sequences that are left open, and slots for all clients."""
    text = config.read_text()
    for old, new in (("60000000", "5000000"), ("max_candidate_sequences: 4", "max_candidate_sequences: 64")):
        assert old in text, f"{old} is not in {config}"
        text = text.replace(old, new)
    config.write_text(text)


def answered(reference, rng, count=20):
    requests = [reference.request(rng) for _ in range(count)]
    return [(request, reference.answer(request)) for request in requests]


def report(server, tally, memory, before, bytes_before):
    """Prints the results; returns the exit status. `before` and `bytes_before` are the open files and the resident
    bytes of before."""
    for what, count in sorted(tally.statuses.items()):
        print(f"  {what:<36} {count:9}")
    wrong = [f"{fault} ({count} times)" for fault, count in sorted(tally.faults.items())]
    if server.process.poll() is not None:
        wrong.append(f"the server ended\n{server.log_tail()}")
    else:
        with connected(server) as client:
            try:
                eventually("nothing pending", lambda: on_page(scrape(server), "nv_inference_pending_request_count") == 0, 60)
            except AssertionError as failure:
                wrong.append(str(failure))
            page = scrape(server)
            for model in COUNTED:
                wrong += check_model(client, page, model, tally.ends[model])
        try:
            eventually("the files of before", lambda: total(open_files(server)) <= total(before), 60)
        except AssertionError:
            wrong.append(f"{open_files(server)} are open, {before} were before")
        print(f"  open files {total(before)} before, {total(open_files(server))} after")
        try:
            eventually("the memory of before", lambda: server.memory_bytes() <= RETURNED * bytes_before, RETURNED_S)
        except AssertionError as failure:
            wrong.append(str(failure))
        print(f"  resident without guests {bytes_before / 1e6:.0f} MB before, {server.memory_bytes() / 1e6:.0f} MB after")
    half = memory[len(memory) // 2 :]
    if len(half) > 1:
        print(
            f"  resident {memory[0][1] / 1e6:.0f} MB at first, {memory[-1][1] / 1e6:.0f} MB at last, most"
            f" {max(size for _, size in memory) / 1e6:.0f} MB; slope of the second half {slope_mb_per_hour(half):+.1f} MB/h"
        )
    for text in wrong:
        print(f"  WRONG {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
