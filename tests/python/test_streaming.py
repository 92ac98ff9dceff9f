"""Live streams through the example `conformer`: the server's state equals state that a client carries itself, and the
comparison of docs/streaming.md is complete in its quick form. Speeds are not asserted."""

import csv
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import compare_streaming
import numpy as np
import pytest
import tritonclient.grpc as triton
from conftest import ROOT
from server import Server

CHUNKS = 6
STREAMS = 5


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    """Serves the model as it comes, under `oldest`, and as a model without sequences, whose clients carry the state."""
    folder = tmp_path_factory.mktemp("streaming")
    places = compare_streaming.write(program, folder, quarter=True)
    repository = places["cells"]
    shutil.copytree(places["oldest"] / "conformer", repository / "oldest")
    shutil.copytree(places["oldest"] / "conformer" / "1", repository / "explicit" / "1")
    with Server(repository, program=program) as running:
        yield running


def tensor(name, value):
    kind = "INT64" if value.dtype == np.int64 else "FP32"
    given = triton.InferInput(name, value.shape, kind)
    given.set_data_from_numpy(value)
    return given


def carried(client, chunks):
    """Returns the answers to a stream whose client sends the state with each chunk and keeps what comes back."""
    hidden = compare_streaming.QUARTER
    state = {"past": np.zeros((1, 1), np.int64)}
    for layer in range(compare_streaming.LAYERS):
        state |= {f"{part}_{layer}": np.zeros((32, 1, hidden), np.float32) for part in ("keys", "values")}
        state[f"convolved_{layer}"] = np.zeros((1, hidden, 14), np.float32)
    answers = []
    for chunk in chunks:
        inputs = [tensor("x", chunk[None]), *(tensor(name, value) for name, value in state.items())]
        answer = client.infer("explicit", inputs)
        answers.append(answer.as_numpy("log_probs")[0])
        state = {name: answer.as_numpy(f"{name}_next") for name in state}
    assert state["past"].item() == 32, "six chunks are more than attention sees"
    return np.stack(answers)


def streamed(address, model, name, number, chunks, parts):
    """Sends a stream in requests of these numbers of chunks."""
    answers, at = [], 0
    with triton.InferenceServerClient(address) as client:
        for part in parts:
            flags = {"sequence_start": at == 0, "sequence_end": at + part == len(chunks)}
            answer = client.infer(model, [tensor(name, chunks[at : at + part])], sequence_id=number, **flags)
            answers.append(answer.as_numpy("log_probs"))
            at += part
    return np.concatenate(answers)


@pytest.mark.parametrize(
    ("model", "name", "parts"),
    [("conformer", "frames", (1,) * CHUNKS), ("conformer", "frames", (1, 3, 2)), ("oldest", "x", (1,) * CHUNKS)],
    ids=["chunk by chunk", "several chunks in a request", "oldest"],
)
def test_streams_are_answered_as_if_their_client_carried_the_state(server, model, name, parts):
    rng = np.random.default_rng(7)
    streams = rng.standard_normal((STREAMS, CHUNKS, 32, 80)).astype(np.float32)
    with triton.InferenceServerClient(server.grpc) as client:
        expected = [carried(client, chunks) for chunks in streams]
    with ThreadPoolExecutor(STREAMS) as threads:
        runs = [
            threads.submit(streamed, server.grpc, model, name, number, chunks, parts)
            for number, chunks in enumerate(streams, 1)
        ]
        for run, right in zip(runs, expected):
            np.testing.assert_allclose(run.result(), right, rtol=1e-4, atol=1e-4)
    assert np.abs(expected[0][1] - expected[1][1]).max() > 0.1, "streams differ"


def test_the_state_matters(server):
    chunks = np.random.default_rng(8).standard_normal((2, 32, 80)).astype(np.float32)
    both = streamed(server.grpc, "conformer", "frames", 91, chunks, (1, 1))
    alone = streamed(server.grpc, "conformer", "frames", 92, chunks[1:], (1,))
    assert np.abs(both[1] - alone[0]).max() > 1e-2


def test_the_comparison_measures_each_server_and_every_answer_is_right(program, tmp_path):
    path = tmp_path / "streaming.csv"
    command = [sys.executable, ROOT / "scripts" / "compare_streaming.py", "--quick", "--binary", program, "--csv", path]
    environment = {**os.environ, "PATERNOSTER": str(program)}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["server"] for row in rows) == ["alone", "cells", "oldest"]
    for row in rows:
        assert int(row["requests"]) > 0 and (row["wrong"], row["failed"]) == ("0", "0"), row
    assert done.stdout.count("| 3 | ") == len(rows), "each has its line"
