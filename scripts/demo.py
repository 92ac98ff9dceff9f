"""The demonstration: serves a real sentence encoder, searches sentences as clients of OpenAI do, compares how an LSTM's
requests are batched, and suggests next steps.

Started by `make demo`, which has fetched and built everything before. With --models it only makes the models.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fetch
import numpy as np
import openai
import tritonclient.grpc as triton
from cells_models import lstm_graph
from server import Server, ServerFailed, binary

SENTENCES = [
    "The cat is sleeping on the warm windowsill.",
    "A kitten naps in the sun by the window.",
    "My dog chases the ball across the park.",
    "A puppy runs after a stick on the meadow.",
    "The central bank raised interest rates again.",
    "Borrowing money has become more expensive this year.",
    "Share prices fell sharply after the announcement.",
    "Stocks dropped when the news came out.",
    "Bake the bread for forty minutes in a hot oven.",
    "Let the dough rise for an hour before baking.",
    "The train to the coast leaves at half past nine.",
    "When does the next train to the seaside depart?",
]
MODEL = "sentences"
ENCODER = "minilm"
REPEAT = "repeat"
LSTM = "lstm"
QUERIES = ["a small cat takes a nap", "how do I get to the beach?", "what happened on the stock market?"]
DEMO = fetch.CACHE / "demo"
MODELS = DEMO / "models"
#: The LSTM as one graph, as frameworks export it: with the configuration that a Triton repository has, and without one.
AS_IN_TRITON, AS_EXPORTED = DEMO / "as-in-triton", DEMO / "as-exported"
DYNAMIC_BATCHING = f'name: "{LSTM}"\nbackend: "onnxruntime"\nmax_batch_size: 64\ndynamic_batching {{ }}\n'
#: Seconds of each load, of which tests set fewer.
SECONDS_OF_LOAD = float(os.environ.get("PATERNOSTER_DEMO_SECONDS", "3"))
LOAD = (
    "--workload", "closed-22", "--concurrency", "16", "--seconds", str(SECONDS_OF_LOAD),
    "--warm-up-seconds", str(min(2.0, SECONDS_OF_LOAD)), "--rounds", "2", "--samples", "64",
)  # fmt: skip
#: Milliseconds of the comparison that are drawn.
DRAWN_MS = 200
SINGLES = 50
CLIENTS = 4


def say(text=""):
    print(text, flush=True)


def embed(client, texts):
    """Asks over gRPC, as Triton's clients do."""
    values = np.array([[text.encode()] for text in texts], dtype=object)
    tensor = triton.InferInput("TEXT", values.shape, "BYTES")
    tensor.set_data_from_numpy(values)
    return client.infer(MODEL, [tensor]).as_numpy("embedding")


def show_neighbours(vectors):
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -1.0)
    width = max(map(len, SENTENCES))
    say(f"  {'sentence':<{width}}   nearest{'':<{width - 7}}   cosine")
    for row, sentence in enumerate(SENTENCES):
        nearest = int(likeness[row].argmax())
        say(f"  {sentence:<{width}}   {SENTENCES[nearest]:<{width}}   {likeness[row, nearest]:.3f}")


def show_search(server, vectors):
    """Asks over HTTP, as OpenAI's clients do, and by curl."""
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none") as client:
        for query in QUERIES:
            answer = client.embeddings.create(model=MODEL, input=query)
            found = vectors @ np.array(answer.data[0].embedding)
            say(f"  {query:<36}   {SENTENCES[int(found.argmax())]:<52}   {found.max():.3f}")
    body = json.dumps({"model": MODEL, "input": QUERIES[0], "dimensions": 4})
    command = ["curl", "-s", f"http://{server.http}/v1/embeddings", "--json", body]
    say(f"\n  $ {' '.join(command[:3])} --json '{body}'")
    # curl is older than --json on some systems, and not everywhere.
    command[3:] = ["-H", "Content-Type: application/json", "-d", body]
    if shutil.which("curl"):
        say(f"  {subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout}")


def show_times(server, client):
    taken_ms = []
    for turn in range(SINGLES):
        began = time.perf_counter()
        embed(client, [SENTENCES[turn % len(SENTENCES)]])
        taken_ms.append((time.perf_counter() - began) * 1e3)
    taken_ms.sort()
    say(f"  one sentence at a time: {taken_ms[len(taken_ms) // 2]:.1f} ms (median of {SINGLES})")

    batch = [SENTENCES[turn % len(SENTENCES)] for turn in range(16)]
    until = time.perf_counter() + SECONDS_OF_LOAD

    def keep_asking(_):
        done = 0
        with triton.InferenceServerClient(server.grpc) as own:
            while time.perf_counter() < until:
                done += len(embed(own, batch))
        return done

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        sentences = sum(pool.map(keep_asking, range(CLIENTS)))
    rate = sentences / (time.perf_counter() - began)
    say(f"  {CLIENTS} clients, {len(batch)} texts a request: {rate:.0f} sentences/s")


def show_stream(client):
    """Sends one request to the decoupled model and prints its responses as they arrive."""
    metadata = client.get_model_metadata(REPEAT)
    (described,) = metadata.inputs
    shape = [1 if size < 0 else size for size in described.shape]
    tensor = triton.InferInput(described.name, shape, described.datatype)
    tensor.set_data_from_numpy(np.full(shape, 4, dtype=np.float32))
    responses = queue.Queue()
    client.start_stream(lambda result, error: responses.put((result, error)))
    client.async_stream_infer(REPEAT, [tensor], request_id="demo", enable_empty_final_response=True)
    while True:
        result, error = responses.get(timeout=30)
        if error is not None:
            raise error
        message = result.get_response()
        if message.outputs:
            values = result.as_numpy(message.outputs[0].name).ravel()
            say(f"  response for '{message.id}': {message.outputs[0].name}[0] = {values[0]:.0f}")
        if message.parameters["triton_final_response"].bool_param:
            break
    client.stop_stream()


def show_batching():
    """Puts the same load on two servers of one LSTM, and draws how requests board the second one's batches."""
    trace, drawing = DEMO / "boarding.json", DEMO / "boarding.svg"
    recorded = Server(AS_EXPORTED, f"--timeline-file={trace}", "--timeline-events=20000", program=program())
    with Server(AS_IN_TRITON, program=program()) as whole, recorded as cells:
        command = [program(), "bench", "--url", whole.grpc, "--url", cells.grpc, "--model", LSTM, *LOAD, "--json"]
        measured = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    say("  16 requests in flight              requests/s   mean ms   p99 ms")
    names = ("batched as in Triton, same lengths", "a batch at each step, any lengths")
    for name, line in zip(names, measured["loads"][0]["policies"]):
        total = line["total"]
        say(f"  {name:<34} {total['requests_per_s']:10.0f} {total['mean_ms']:9.0f} {total['p99_ms']:8.0f}")
    spans = [event["ts"] / 1e3 for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    last = max(spans) - min(spans) - 2 * DRAWN_MS
    command = [program(), "timeline", trace, "--svg", drawing, "--from", str(last), "--to", str(last + DRAWN_MS)]
    subprocess.run(command, check=True, capture_output=True)
    say(f"\n  {drawing.relative_to(fetch.ROOT)} shows how requests board and leave the batches of {DRAWN_MS} ms.")


HOW_TO_GO_ON = """
Your own model: put it into a directory of its own, and serve that.

  mkdir -p models/mine/1 && cp model.onnx models/mine/1/
  PROGRAM serve --model-repository models
  PROGRAM bench --url localhost:8001 --model mine --concurrency 1,8,32

To go on with the examples, keep them running on the usual ports in one terminal:

  make serve

Then http://localhost:8000 shows the server at work, as 'PROGRAM top' does in a terminal. In another one:

  curl -s localhost:8000/v2/health/ready -w '%{http_code}\\n'
  curl -s localhost:8000/v1/embeddings --json '{"model": "sentences", "input": "What is near?"}'
  curl -s localhost:8000/rerank --json '{"model": "reranker", "query": "a cat", "texts": ["a dog", "a kitten"]}'
  curl -s localhost:8002/metrics | grep ^nv_inference_count
"""
WITH_GRPCURL = """
  .cache/bin/grpcurl -plaintext localhost:8001 list
  .cache/bin/grpcurl -plaintext -d '{"name": "minilm"}' localhost:8001 inference.GRPCInferenceService/ModelMetadata
  .cache/bin/grpcurl -plaintext -d '{"model_name": "minilm", "inputs": [
      {"name": "input_ids", "datatype": "INT64", "shape": [1, 4],
       "contents": {"int64_contents": [101, 7592, 2088, 102]}},
      {"name": "attention_mask", "datatype": "INT64", "shape": [1, 4], "contents": {"int64_contents": [1, 1, 1, 1]}}
    ]}' localhost:8001 inference.GRPCInferenceService/ModelInfer
"""
WITH_PERF_ANALYZER = """
  .cache/bin/perf_analyzer -m identity -i grpc -u localhost:8001 --concurrency-range 1:64:21
  .cache/bin/perf_analyzer -m minilm -i grpc -u localhost:8001 --shape input_ids:16 --shape attention_mask:16 \\
      --input-data zero --concurrency-range 4
"""


def show_how_to_go_on():
    say(HOW_TO_GO_ON.rstrip().replace("PROGRAM", str(program_name())))
    for name, there, commands in (
        ("grpcurl", (fetch.CACHE / "bin" / "grpcurl").exists(), WITH_GRPCURL),
        ("perf_analyzer", (fetch.CACHE / "bin" / "perf_analyzer").exists(), WITH_PERF_ANALYZER),
    ):
        note = "" if there else "  ('make tools' fetches it)"
        say(f"\n  {name}{note}:{commands.rstrip()}")


def demonstrate(server):
    client = triton.InferenceServerClient(server.grpc)
    say(f"ready on gRPC {server.grpc}, HTTP {server.http}, metrics {server.metrics} (process {server.pid})")

    say("\nWhich sentence is nearest to which?\n")
    vectors = embed(client, SENTENCES)
    show_neighbours(vectors)
    say("\nWhich sentence is nearest to a question?\n")
    show_search(server, vectors)
    say("\nHow long does it take?\n")
    show_times(server, client)
    say("\nA model that answers one request with several responses:\n")
    show_stream(client)
    client.close()


def program_name():
    """Returns the program as one would type it here."""
    path = Path(program())
    return path.relative_to(fetch.ROOT) if path.is_relative_to(fetch.ROOT) else path


def program():
    """Returns the path of the program, unless another is set."""
    return os.environ.get("PATERNOSTER") or binary()


def make_models():
    weights = ["--minilm", fetch.CACHE / "minilm"]
    for folder, only in ((MODELS, f"{MODEL},{ENCODER},{REPEAT}"), (DEMO / "cells", LSTM)):
        status = subprocess.run([program(), "models", "--out", folder, *weights, "--only", only]).returncode
        if status:
            return status
    graph = lstm_graph(DEMO / "cells" / LSTM, padded=False)
    for repository in (AS_IN_TRITON, AS_EXPORTED):
        version = repository / LSTM / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / "model.onnx").write_bytes(graph)
    (AS_IN_TRITON / LSTM / "config.pbtxt").write_text(DYNAMIC_BATCHING)
    return 0


def interrupted(_number, _frame):
    raise KeyboardInterrupt


def main():
    signal.signal(signal.SIGTERM, interrupted)
    server = Server(MODELS, program=program(), log=fetch.CACHE / "demo.log")
    say(f"starting {server.program.name} on {MODEL}, {ENCODER} and {REPEAT}")
    status = 1
    try:
        with server:
            demonstrate(server)
        say("\nWhat does it gain where lengths differ? An LSTM, exported as one graph, under the same load:\n")
        show_batching()
        say("\nthe server is stopped")
        show_how_to_go_on()
        status = 0
    except KeyboardInterrupt:
        say("\ninterrupted; the server is stopped")
        status = 130
    except ServerFailed as failure:
        say(f"\n{failure}")
    except Exception as failure:
        # Not repr(), which contains no message for errors of the server.
        reason = f"{type(failure).__name__}: {failure}"
        say(f"\nthe demonstration failed: {reason}\nthe end of the server's log:\n{server.log_tail()}")
    return status


if __name__ == "__main__":
    sys.exit(make_models() if sys.argv[1:] == ["--models"] else main())
