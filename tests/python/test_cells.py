"""Recurrent and decoding models, a quarter as wide, on a live server. Random requests at random times get NumPy's
answer to each alone, and clients that disconnect leave nothing behind. Only counts are asserted, never times."""

import copy
import json
import queue
import shutil
import subprocess
import threading

import cells_models
import cells_reference
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import eventually, metric, pending
from conftest import by_night, serving
from tritonclient.utils import InferenceServerException

#: Requests for each model.
REQUESTS = 500 if by_night() else 200
#: One of this many requests is cancelled.
CANCELLED = 20
TOLERANCE = 1e-4
MODELS = ("lstm", "lstm-projected", "seq2seq", "tree-lstm", "gnmt", "deepspeech2", "las", "transformer")


@pytest.fixture(scope="module")
def repository(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    names = ",".join((*MODELS, "seq2seq-stream"))
    command = [program, "models", "--out", folder, "--only", names, "--quarter"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def server(program, repository):
    with serving(repository, program=program) as running:
        yield running


def inputs_of(request):
    made = []
    for name, array in request.items():
        kinds = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}
        given = triton.InferInput(name, [1, *array.shape], kinds[str(array.dtype)])
        given.set_data_from_numpy(array[np.newaxis])
        made.append(given)
    return made


@pytest.mark.parametrize("model", MODELS)
def test_requests_of_any_length_are_what_they_are_alone(server, repository, model):
    reference = cells_reference.load(repository / model)
    rng = np.random.default_rng(11)
    distinct = [reference.request(rng) for _ in range(REQUESTS // 10)]
    expected = [reference.answer(request) for request in distinct]
    answered, done = queue.Queue(), threading.Semaphore(64)
    client = triton.InferenceServerClient(server.grpc)

    def answers(number, choice, cancelled):
        def take(result, error):
            done.release()
            answered.put((number, choice, cancelled, result, error))

        return take

    for number in range(REQUESTS):
        # At most 64 at once; they end in random order.
        done.acquire()
        choice, cancelled = int(rng.integers(len(distinct))), number % CANCELLED == 0
        call = client.async_infer(model, inputs_of(distinct[choice]), answers(number, choice, cancelled))
        if cancelled:
            call.cancel()
    seen = [answered.get(timeout=120) for _ in range(REQUESTS)]
    assert sorted(number for number, *_ in seen) == list(range(REQUESTS))
    for _, choice, cancelled, result, error in seen:
        if error is not None:
            assert cancelled, error
            continue
        for name, value in expected[choice].items():
            found = result.as_numpy(name)[0]
            assert found.shape == value.shape, name
            np.testing.assert_allclose(found, value, rtol=TOLERANCE, atol=TOLERANCE * np.abs(value).max())
    client.close()


def answers_to(client, model, requests):
    """Sends requests at once; returns their answers in order."""
    answered = queue.Queue()

    def take(number):
        return lambda result, error: answered.put((number, result, error))

    for number, request in enumerate(requests):
        client.async_infer(model, inputs_of(request), take(number))
    answers = [answered.get(timeout=120) for _ in requests]
    assert [error for *_, error in answers if error] == []
    return [result for _, result, _ in sorted(answers, key=lambda answer: answer[0])]


@pytest.mark.parametrize("model", ["lstm", "lstm-projected"])
def test_requests_of_other_lengths_share_runs(server, model):
    requests = [np.full(length, 5, np.int64) for length in range(1, 33)]
    runs_before = metric(server, "nv_inference_exec_count", model=model)
    with triton.InferenceServerClient(server.grpc) as client:
        answers_to(client, model, [{"tokens": tokens} for tokens in requests])
    runs = metric(server, "nv_inference_exec_count", model=model) - runs_before
    assert runs < sum(len(tokens) for tokens in requests), "no two of them ever shared a run"


def test_models_with_the_same_cells_share_tasks(program, repository, tmp_path):
    folder = tmp_path / "repository"
    for name in ("lstm", "lstm-again"):
        shutil.copytree(repository / "lstm", folder / name)
    reference = cells_reference.load(repository / "lstm")
    requests = [{"tokens": np.full(length, length, np.int64)} for length in range(20, 36)]
    # Runs until the other requests have come and gone, so that they share its tasks.
    endless = {"tokens": np.full(100_000, 7, np.int64)}
    recording = tmp_path / "timeline.json"
    with (
        serving(folder, "--cpu-lanes=1", "--timeline-file", recording, program=program) as server,
        triton.InferenceServerClient(server.grpc) as client,
    ):
        ended = queue.Queue()
        call = client.async_infer("lstm", inputs_of(endless), lambda result, error: ended.put((result, error)))
        eventually("it runs", lambda: metric(server, "nv_inference_exec_count", model="lstm") > 0)
        answers = {model: answers_to(client, model, requests) for model in ("lstm", "lstm-again")}
        call.cancel()
        result, error = ended.get(timeout=120)
        assert result is None and "CANCELLED" in str(error), "it was there to the end"
        for answered in answers.values():
            for request, answer in zip(requests, answered):
                for name, value in reference.answer(request).items():
                    np.testing.assert_allclose(answer.as_numpy(name)[0], value, rtol=TOLERANCE, atol=TOLERANCE)
        status, body = server.get("/v2/timeline")
    assert status == 200
    events = json.loads(body)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    tasks = {name: set() for name in names.values()}
    for event in events:
        if event["ph"] == "X" and "task" in event.get("args", {}):
            tasks[names[event["pid"]]].add(event["args"]["task"])
    assert tasks["lstm · version 1"] & tasks["lstm-again · version 1"], "no task had nodes of both"


@pytest.fixture(scope="module")
def whole(program, repository, tmp_path_factory):
    """Starts a server with models of cells, and with each of them as one graph, for comparison."""
    folder = tmp_path_factory.mktemp("whole")
    for name in ("lstm", "tree-lstm", "seq2seq"):
        (folder / name).symlink_to(repository / name)
    cells_models.write_whole(folder)
    with serving(folder, program=program) as running:
        yield running


def complete_tree(leaves):
    """Returns the children of a complete tree's nodes. Nodes are numbered before their left subtree, and that before
    the right one."""
    if leaves == 1:
        return [[-1, -1]]
    half = complete_tree(leaves // 2)
    left, right = ([[child + first if child >= 0 else -1 for child in row] for row in half] for first in (1, leaves))
    return [[1, leaves], *left, *right]


def translated(tokens):
    return {"words": len(tokens), "sum": int(tokens.sum())}


def test_whole_graphs_give_what_cells_give(whole, repository):
    rng = np.random.default_rng(5)
    words = [rng.integers(1, 2_000, length) for length in (3, 7, 7, 12)]
    children = np.array(complete_tree(cells_models.LEAVES), np.int32)
    trees = [{"tokens": rng.integers(1, 2_000, len(children)), "children": children} for _ in range(3)]
    cases = [
        ("lstm", "lstm-padded", [{"tokens": tokens} for tokens in words], dict),
        ("tree-lstm", f"tree-{cells_models.LEAVES}", trees, dict),
        ("seq2seq", "seq2seq-padded", [{"source": tokens} for tokens in words], lambda answer: translated(answer["tokens"])),
    ]
    with triton.InferenceServerClient(whole.grpc) as client:
        for model, graph, requests, expected in cases:
            reference = cells_reference.load(repository / model)
            for request, answer in zip(requests, answers_to(client, graph, requests)):
                for name, value in expected(reference.answer(request)).items():
                    np.testing.assert_allclose(answer.as_numpy(name)[0], value, rtol=TOLERANCE, atol=TOLERANCE)


BAD = [
    ("lstm", {"tokens": np.zeros(0, np.int64)}, "would have no step"),
    ("tree-lstm", {"tokens": np.zeros(2, np.int64), "children": np.array([[1, -1], [0, -1]], np.int32)}, "own descendants"),
    ("tree-lstm", {"tokens": np.zeros(1, np.int64), "children": np.array([[1, -1]], np.int32)}, "names the child 1"),
]


@pytest.mark.parametrize("model, request_, reason", BAD)
def test_a_graph_that_is_none_is_the_senders_fault(server, model, request_, reason):
    with triton.InferenceServerClient(server.grpc) as client, pytest.raises(InferenceServerException) as refused:
        client.infer(model, inputs_of(request_))
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert reason in refused.value.message()


#: Number of good clients, and of the requests of each.
GOOD, EACH = 6, 25 if by_night() else 12
#: A token beyond every table.
NO_TOKEN = 10**9


@pytest.fixture(scope="module")
def crowded(program, repository, tmp_path_factory):
    """Starts a server with different models of cells, two of which share their cells."""
    folder = tmp_path_factory.mktemp("crowded")
    command = [program, "models", "--out", folder, "--only", "lstm-sequence", "--quarter"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=300)
    for name in ("lstm", "seq2seq", "tree-lstm"):
        (folder / name).symlink_to(repository / name)
    for name, batching in (("again", None), ("lazy", "policy: lazy"), ("merged", "policy: cellular, cellular: { merge_requests: 8 }")):
        shutil.copytree(repository / "lstm", folder / f"lstm-{name}")
        if batching:
            with (folder / f"lstm-{name}" / "model.yaml").open("a") as config:
                config.write(f"batching: {{ {batching} }}\n")
    with serving(folder, program=program) as running:
        yield running


def alone(number):
    """Returns the options of a sequence of one request, for models with sequences."""
    return {"sequence_id": number, "sequence_start": True, "sequence_end": True}


@pytest.mark.parametrize(
    "model, kind",
    [
        ("lstm", "lstm"),
        ("lstm-lazy", "lstm"),
        ("lstm-merged", "lstm"),
        ("seq2seq", "seq2seq"),
        ("tree-lstm", "tree-lstm"),
        ("lstm-sequence", "lstm"),
    ],
)
def test_a_token_that_is_none_fails_its_sender_alone(crowded, repository, model, kind):
    reference = cells_reference.load(repository / kind)
    rng = np.random.default_rng(21)
    distinct = [reference.request(rng) for _ in range(12)]
    expected = [reference.answer(request) for request in distinct]
    bad = copy.deepcopy(max(distinct, key=lambda request: request[reference.kind.inputs[0]].size))
    # Only leaves of a tree read their tokens, and the last node of a random one is a leaf.
    bad[reference.kind.inputs[0]][-1] = NO_TOKEN
    flags = (lambda number: alone(number)) if model == "lstm-sequence" else (lambda number: {})
    outcomes, good_are_done = queue.Queue(), threading.Event()

    # Requests of the model with the same cells share its tasks.
    def ask_well(number):
        asked = "lstm-again" if model == "lstm" and number % 2 else model
        with triton.InferenceServerClient(crowded.grpc) as client:
            for turn in range(EACH):
                choice = (number + turn) % len(distinct)
                try:
                    result = client.infer(asked, inputs_of(distinct[choice]), **flags(number + 1))
                except InferenceServerException as error:
                    outcomes.put(str(error))
                    continue
                for name, value in expected[choice].items():
                    found = result.as_numpy(name)[0]
                    near = found.shape == value.shape and np.allclose(
                        found, value, rtol=TOLERANCE, atol=TOLERANCE * np.abs(value).max()
                    )
                    outcomes.put("right" if near else f"{found} instead of {value}")

    refused = []

    def ask_badly():
        with triton.InferenceServerClient(crowded.grpc) as client:
            while not good_are_done.is_set():
                with pytest.raises(InferenceServerException) as caught:
                    client.infer(model, inputs_of(bad), **flags(GOOD + 1))
                refused.append(caught.value)

    good = [threading.Thread(target=ask_well, args=[number]) for number in range(GOOD)]
    sender = threading.Thread(target=ask_badly)
    for thread in (*good, sender):
        thread.start()
    for thread in good:
        thread.join()
    good_are_done.set()
    sender.join()
    told = [outcomes.get_nowait() for _ in range(GOOD * EACH)]
    wrong = [one for one in told if one != "right"]
    assert not wrong, f"{len(wrong)} of {len(told)}: {wrong[:3]}"
    assert refused and all(str(NO_TOKEN) in error.message() for error in refused), refused[:1]


def streamed(server, request, take):
    """Collects tokens as they arrive, until there are `take`."""
    answers = queue.Queue()
    with triton.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("seq2seq-stream", inputs_of(request), enable_empty_final_response=True)
        tokens = []
        while True:
            result, error = answers.get(timeout=120)
            assert error is None, error
            if result.get_response().parameters["triton_final_response"].bool_param:
                return tokens
            tokens.append(int(result.as_numpy("tokens").reshape(())))
            if not take(tokens):
                client.stop_stream(cancel_requests=True)
                return tokens


def test_tokens_are_streamed_in_order(server, repository):
    reference = cells_reference.load(repository / "seq2seq")
    rng = np.random.default_rng(3)
    for _ in range(20):
        request = reference.request(rng)
        assert streamed(server, request, lambda _: True) == list(reference.answer(request)["tokens"].reshape(-1))


def test_a_client_that_goes_away_leaves_no_request_behind(server, repository):
    reference = cells_reference.load(repository / "seq2seq")
    rng = np.random.default_rng(4)
    requests = [reference.request(rng) for _ in range(8)]
    longest = max(requests, key=lambda request: reference.answer(request)["tokens"].size)
    for _ in range(20):
        streamed(server, longest, lambda tokens: len(tokens) < 2)
    eventually("no request waits", lambda: pending(server, "seq2seq-stream") == 0)
    assert streamed(server, longest, lambda _: True) == list(reference.answer(longest)["tokens"].reshape(-1))
