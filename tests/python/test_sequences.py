"""Stateful models: requests of one sequence_id share state that no other request sees, and slots are reclaimed whatever
happens to clients. Only counts are asserted, never times."""

import json
import queue
import random
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import cells_reference
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import eventually, metric, output, pending, refused, tensor
from conftest import serving
from tritonclient.utils import InferenceServerException

NOT_STARTED = "must specify the START flag on the first request of the sequence"
#: Number and length of sequences that start at once.
SEQUENCES, LENGTH = 500, 8


#: Inputs of a warm-up sample for the model "total": its input, a control and its state.
WARM = {"INPUT0": "INT64", "START": "INT32", "total": "INT64"}


def sample(name, batch_size, inputs):
    """A `model_warmup` entry of zeros; `inputs` maps names to datatypes."""
    entries = "".join(
        f'inputs {{ key: "{key}" value {{ data_type: TYPE_{datatype} dims: [ 1 ] zero_data: true }} }}\n'
        for key, datatype in inputs.items()
    )
    return f'model_warmup {{ name: "{name}" batch_size: {batch_size}\n{entries}}}\n'


def variant(repository, made, name, model, *changes):
    """Writes a model with another name and configuration."""
    folder = repository / name
    shutil.copytree(made / model, folder)
    config = folder / "config.pbtxt"
    text = config.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    config.write_text(text)
    return folder


@pytest.fixture(scope="module")
def repository(made_models, tmp_path_factory):
    made = made_models("tests", "--only", "total,corrid")
    folder = tmp_path_factory.mktemp("sequences")
    idle, candidates, state = "60000000", "max_candidate_sequences: 4", "dims: [ 1 ] }"
    for model in ("total", "corrid"):
        shutil.copytree(made / model, folder / model)
    variant(folder, made, "crowd", "total", (candidates, "max_candidate_sequences: 64"), (idle, "15000000"))
    variant(folder, made, "single", "total", (candidates, "max_candidate_sequences: 1"))
    variant(folder, made, "hasty", "total", (candidates, "max_candidate_sequences: 1"), (idle, "200000"))
    begun = variant(
        folder,
        made,
        "begun",
        "total",
        (state, 'dims: [ 1 ] initial_state { name: "seven" data_type: TYPE_INT64 dims: [ 1 ] data_file: "seven" } }'),
    )
    (begun / "initial_state").mkdir()
    (begun / "initial_state" / "seven").write_bytes(np.int64(7).tobytes())
    variant(folder, made, "warm", "total", ("sequence_batching {", sample("first", 3, WARM) + "sequence_batching {"))
    limit = '}\nparameters { key: "batching.sequences.max_queue_size" value { string_value: "3" } }'
    short = variant(folder, made, "short", "total", (candidates, "max_candidate_sequences: 1"))
    text = (short / "config.pbtxt").read_text()
    (short / "config.pbtxt").write_text(text.rstrip().removesuffix("}") + limit + "\n")
    return folder


@pytest.fixture(scope="module")
def server(program, repository):
    with serving(repository, program=program) as running:
        yield running


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc) as one:
        yield one


def number(value):
    return [tensor("INPUT0", np.array([[value]], np.int64))]


def add(client, model, sequence, value, start=False, end=False, **more):
    """Adds to a sequence's sum; returns the sum, and the control inputs that the model got."""
    flags = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
    result = client.infer(model, number(value), **flags, **more)
    return result.as_numpy("OUTPUT0").item(), result.as_numpy("is_first").item(), result.as_numpy("is_last").item()


def test_each_sequence_has_its_own_sum_and_the_model_is_told_where_it_begins_and_ends(client):
    assert add(client, "total", 11, 5, start=True) == (5, 1, 0)
    assert add(client, "total", "eleven", 100, start=True) == (100, 1, 0)
    assert add(client, "total", 11, 6) == (11, 0, 0)
    assert add(client, "total", "eleven", -1, end=True) == (99, 0, 1)
    assert add(client, "total", 11, 7, end=True) == (18, 0, 1)
    assert add(client, "total", 11, 1, start=True, end=True) == (1, 1, 1), "nothing is left of the one before"


def test_clients_see_neither_state_nor_controls(client):
    metadata = client.get_model_metadata("total")
    assert [port.name for port in metadata.inputs] == ["INPUT0"]
    assert [port.name for port in metadata.outputs] == ["OUTPUT0", "is_first", "is_last"]
    config = client.get_model_config("total").config
    assert config.sequence_batching.oldest.max_candidate_sequences == 4


def test_a_model_may_be_told_its_sequences_id(client):
    result = client.infer("corrid", number(3), sequence_id=2**40 + 1, sequence_start=True, sequence_end=True)
    assert result.as_numpy("OUTPUT0").item() == 2**40 + 1 and result.as_numpy("is_ready").item() is True
    with refused("INVALID_ARGUMENT", "expected a sequence_id that is UINT64", "'words'"):
        client.infer("corrid", number(3), sequence_id="words", sequence_start=True)


def test_sequences_start_before_they_go_on_and_need_an_id(client):
    with refused("INVALID_ARGUMENT", "sequence 21", "'total'", NOT_STARTED):
        add(client, "total", 21, 1)
    with refused("INVALID_ARGUMENT", "'total'", "must specify a non-zero or non-empty correlation ID"):
        client.infer("total", number(1))
    add(client, "total", 21, 1, start=True, end=True)
    with refused("INVALID_ARGUMENT", "sequence 21", NOT_STARTED):
        add(client, "total", 21, 1)
    two = [tensor("INPUT0", np.zeros((2, 1), np.int64))]
    batch = "inference request to model 'total' must specify batch-size 1 due to requirements of sequence batcher"
    with refused("INVALID_ARGUMENT", batch):
        client.infer("total", two, sequence_id=21, sequence_start=True)


def test_warm_up_samples_give_controls_and_states_and_as_many_sequences_as_their_batch_size(client):
    assert add(client, "warm", 1, 5, start=True) == (5, 1, 0), "nothing of the warm-up is left"
    assert add(client, "warm", 1, 6, end=True) == (11, 0, 1)


@pytest.mark.parametrize(
    ("batch_size", "inputs", "facts"),
    [
        (3, {**WARM, "START": "FP32"}, ("model_warmup[0].inputs[START]", "expected the datatype TYPE_INT32")),
        (3, {**WARM, "READY": "INT32"}, ("model_warmup[0].inputs[READY]", "the model has no input 'READY'")),
        (9, WARM, ("model_warmup[0].batch_size", "expected at most 8 rows, but found 9")),
    ],
)
def test_warm_up_samples_that_do_not_fit_a_model_of_sequences_are_refused(explicit, made_models, batch_size, inputs, facts):
    _, repository, client = explicit
    change = ("sequence_batching {", sample("first", batch_size, inputs) + "sequence_batching {")
    variant(repository, made_models("tests", "--only", "total"), "wrong", "total", change)
    with refused("INVALID_ARGUMENT", *facts):
        client.load_model("wrong")


def test_a_state_may_begin_with_a_file(client):
    assert add(client, "begun", 5, 1, start=True, end=True)[0] == 8


def test_a_sequence_without_memory_for_its_state_ends(program, repository):
    """The state is eight bytes of host memory, so there is room for one sequence. A card keeps state in its own memory."""
    with serving(repository, "--device=cpu", "--max-sequence-state-bytes=12", program=program) as server:
        with triton.InferenceServerClient(server.grpc) as client:
            assert add(client, "total", 1, 5, start=True) == (5, 1, 0)
            for start in (True, False):
                with refused("RESOURCE_EXHAUSTED", "--max-sequence-state-bytes", "8 more are wanted where 8 of 12 are held"):
                    add(client, "total", 2, 100, start=start)
            assert add(client, "total", 3, 7, start=True, end=True) == (7, 1, 1), "it keeps nothing"
            assert add(client, "total", 1, 6) == (11, 0, 0), "others go on"
            assert add(client, "total", 1, 1, end=True) == (12, 0, 1)

            def begins():
                try:
                    return add(client, "total", 2, 100, start=True)
                except InferenceServerException:
                    return None

            # What the first one held may be given back a moment after its last answer.
            assert eventually("memory for the other one", begins) == (100, 1, 0)


def test_a_start_begins_anew(client):
    add(client, "single", 1, 5, start=True)
    assert add(client, "single", 1, 6, start=True)[0] == 6, "the one before has ended, or there would be no slot"
    assert add(client, "single", 1, 1, end=True)[0] == 7


def test_a_slot_is_held_until_the_sequences_end(server, client):
    add(client, "single", 1, 5, start=True)
    answers = queue.Queue()
    client.async_infer(
        "single", number(9), lambda result, error: answers.put((result, error)), sequence_id=2, sequence_start=True, sequence_end=True
    )
    eventually("the other waits", lambda: pending(server, "single") == 1)
    assert add(client, "single", 1, 1)[0] == 6
    assert answers.empty(), "there is one slot"
    assert add(client, "single", 1, 1, end=True)[0] == 7
    result, error = answers.get(timeout=120)
    assert error is None and result.as_numpy("OUTPUT0").item() == 9


def test_an_idle_sequence_gives_its_slot_to_who_waits(client):
    add(client, "hasty", 1, 5, start=True)
    # It holds the only slot until it has been idle for too long.
    # It ends with this request, because on a busy machine it could be idle for too long itself.
    assert add(client, "hasty", 2, 9, start=True, end=True)[0] == 9
    with refused("INVALID_ARGUMENT", "sequence 1", NOT_STARTED):
        add(client, "hasty", 1, 1)


def test_a_queue_may_be_limited(server, client):
    add(client, "short", 1, 5, start=True)
    answers = queue.Queue()
    waiting = [
        client.async_infer("short", number(1), lambda result, error: answers.put((result, error)), sequence_id=other, sequence_start=True)
        for other in (2, 3, 4)
    ]
    eventually("three wait", lambda: pending(server, "short") == 3)
    with refused("UNAVAILABLE", "Exceeds maximum queue size"):
        add(client, "short", 5, 1, start=True)
    with refused("UNAVAILABLE", "Exceeds maximum queue size"):
        add(client, "short", 1, 1, end=True)
    waiting[0].cancel()
    assert answers.get(timeout=120)[1].status() == "StatusCode.CANCELLED"
    eventually("two wait", lambda: pending(server, "short") == 2)
    assert add(client, "short", 1, 1, end=True)[0] == 6, "a request that was refused has ended nothing"
    assert answers.get(timeout=120)[1] is None
    with refused("INVALID_ARGUMENT", "sequence 2", NOT_STARTED):
        add(client, "short", 2, 1)
    for other in (3, 4):
        assert add(client, "short", other, 1, end=True)[0] == 2


@pytest.mark.parametrize("cancelled", [0, 1])
def test_a_cancelled_request_cancels_the_rest_of_its_sequence(server, client, cancelled):
    before = metric(server, "nv_inference_request_failure", model="single", reason="CANCELED")
    add(client, "single", 1, 5, start=True)
    answers = queue.Queue()
    calls = []
    for step in range(3):
        calls.append(
            client.async_infer(
                "single",
                number(1),
                lambda result, error, step=step: answers.put((step, result, error)),
                sequence_id=2,
                sequence_start=step == 0,
            )
        )
        eventually("it waits", lambda step=step: pending(server, "single") == step + 1)
    calls[cancelled].cancel()
    for _ in calls:
        step, result, error = answers.get(timeout=120)
        assert result is None and error.status() == "StatusCode.CANCELLED", (step, result, error)
    eventually("nothing waits", lambda: pending(server, "single") == 0)
    after = metric(server, "nv_inference_request_failure", model="single", reason="CANCELED")
    assert after - before == 3
    with refused("INVALID_ARGUMENT", "sequence 2", NOT_STARTED):
        add(client, "single", 2, 1)
    assert add(client, "single", 1, 1, end=True)[0] == 6, "the other sequence goes on"


@pytest.mark.parametrize("place", ["at a server", "in process"])
@pytest.mark.parametrize("load", [("--concurrency", "4"), ("--rate", "40")], ids=["closed", "open"])
def test_bench_drives_sequences_and_checks_their_sums(program, server, repository, place, load):
    where = ("--url", server.grpc) if place == "at a server" else ("--model-repository", repository, "--onnxruntime-library", server.library)
    flags = ("--sequence-length", "5", "--samples", "12", "--seconds", "1", "--warm-up-seconds", "0", "--rounds", "1", "--json")
    made = json.loads(output([program, "bench", *where, "--model", "total", *load, *flags]))
    (point,) = made["loads"]
    (policy,) = point["policies"]
    assert policy["total"]["requests"] > 5, policy
    assert policy["total"]["wrong"] == policy["total"]["failed"] == 0, policy


def test_bench_sends_the_requests_of_a_live_stream_at_their_times(program, server, session_server):
    flags = ("--sequence-length", "3", "--samples", "6", "--seconds", "1", "--warm-up-seconds", "0", "--rounds", "1", "--json")
    paced = ("--concurrency", "4", "--sequence-interval-ms", "250")
    made = json.loads(output([program, "bench", "--url", server.grpc, "--model", "total", *paced, *flags]))
    total = made["loads"][0]["policies"][0]["total"]
    assert total["wrong"] == total["failed"] == 0, total
    # Each of four clients has a turn at most every 250 ms.
    assert 0 < total["requests"] <= 4 * 5, total
    refused = subprocess.run(
        [program, "bench", "--url", server.grpc, "--model", "total", "--sequence-interval-ms", "0"], capture_output=True, text=True
    )
    assert refused.returncode == 2 and "expected a number above 0" in refused.stderr, refused.stderr
    # Most turns are past before the run ends: it ends all the same.
    late = ("--concurrency", "2", "--sequence-interval-ms", "0.001")
    output([program, "bench", "--url", server.grpc, "--model", "total", *late, *flags], timeout=60)
    alone = [program, "bench", "--url", session_server.grpc, "--model", "identity", "--sequence-interval-ms", "10", *flags]
    refused = subprocess.run(alone, capture_output=True, text=True)
    assert refused.returncode == 1 and "'identity' has none" in refused.stderr, refused.stderr


def test_requests_of_a_stream_are_answered_in_order(server):
    answers = queue.Queue()
    with triton.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for step in range(100):
            flags = {"sequence_id": 77, "sequence_start": step == 0, "sequence_end": step == 99}
            client.async_stream_infer("total", number(step), request_id=str(step), **flags)
        for step in range(100):
            result, error = answers.get(timeout=120)
            assert error is None, error
            assert result.get_response().id == str(step)
            assert result.as_numpy("OUTPUT0").item() == step * (step + 1) // 2


def test_a_crowd_of_sequences_gets_right_sums_while_clients_vanish(server):
    """500 concurrent sequences over 64 slots: one in ten disconnects in the middle, one in ten starts again."""
    outcomes = queue.Queue()

    def sequence(id_):
        rng = random.Random(id_)
        vanishes, anew = rng.random() < 0.1, rng.random() < 0.1
        answers, sums, total = queue.Queue(), [], 0
        try:
            with triton.InferenceServerClient(server.grpc) as client:
                client.start_stream(lambda result, error: answers.put((result, error)))
                for step in range(LENGTH):
                    start = step == 0 or anew and step == LENGTH // 2
                    value = rng.randrange(1000)
                    total = value if start else total + value
                    sums.append(total)
                    flags = {"sequence_id": id_, "sequence_start": start, "sequence_end": step == LENGTH - 1}
                    client.async_stream_infer("crowd", number(value), **flags)
                for step in range(LENGTH):
                    if vanishes and step == LENGTH // 3:
                        client.stop_stream(cancel_requests=True)
                        return outcomes.put("vanished")
                    # The last of them waits for all others, on a busy machine for minutes.
                    result, error = answers.get(timeout=600)
                    assert error is None, error
                    assert result.as_numpy("OUTPUT0").item() == sums[step]
            outcomes.put("right")
        except BaseException as fault:
            outcomes.put(f"{id_}: {fault!r}")
            raise

    threads = [threading.Thread(target=sequence, args=(id_,)) for id_ in range(1, SEQUENCES + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = [outcomes.get_nowait() for _ in threads]
    wrong = [one for one in told if one not in ("right", "vanished")]
    assert not wrong, wrong[:5]
    assert told.count("vanished") > SEQUENCES // 20
    eventually("nothing waits", lambda: pending(server, "crowd") == 0)
    # All slots come free: as many new sequences run concurrently. One that waits for the slot of a client that vanished
    # before its last request was sent gets it after the idle time, which those with a slot must not reach meanwhile.
    with triton.InferenceServerClient(server.grpc) as client, ThreadPoolExecutor(64) as beside:
        ids = range(1, 65)
        starts = [beside.submit(add, client, "crowd", id_, id_, start=True) for id_ in ids]
        sums = dict.fromkeys(ids)
        while waiting := [id_ for id_ in ids if not starts[id_ - 1].done()]:
            for id_ in set(ids) - set(waiting):
                sums[id_] = add(client, "crowd", id_, 0)[0]
            wait(starts, timeout=1)
        assert [start.result()[0] for start in starts] == list(ids)
        assert all(sums[id_] in (None, id_) for id_ in ids)
        for id_ in ids:
            assert add(client, "crowd", id_, 1, end=True)[0] == id_ + 1


@pytest.fixture(scope="module")
def recurrent(program, made_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent")
    made_models("examples", "--only", "lstm-sequence", "--quarter", folder=folder)
    with serving(folder, program=program) as running:
        yield running, cells_reference.load(folder / "lstm-sequence")


def test_a_sequence_in_parts_ends_where_it_would_in_one(recurrent):
    server, reference = recurrent
    rng = np.random.default_rng(5)
    texts = [reference.request(rng)["tokens"] for _ in range(40)]
    with triton.InferenceServerClient(server.grpc) as client:
        parts = [np.array_split(text, min(len(text), int(rng.integers(1, 5)))) for text in texts]
        for step in range(max(map(len, parts))):
            for id_, own in enumerate(parts, 1):
                if step >= len(own):
                    continue
                tokens = [tensor("tokens", own[step][np.newaxis])]
                last = step + 1 == len(own)
                flags = {"sequence_id": id_, "sequence_start": step == 0, "sequence_end": last}
                hidden = client.infer("lstm-sequence", tokens, **flags).as_numpy("hidden")[0]
                read = np.concatenate(own[: step + 1])
                expected = reference.answer({"tokens": read})["hidden"]
                np.testing.assert_allclose(hidden, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_no_request_runs_on_a_state_that_lacks_part_of_a_cancelled_one(recurrent):
    server, reference = recurrent
    rng = np.random.default_rng(6)
    head, lost, tail = (rng.integers(1, 100, size) for size in (5, 2_000, 7))

    def send(client, tokens, **flags):
        return client.infer("lstm-sequence", [tensor("tokens", tokens[np.newaxis])], sequence_id="s", **flags)

    with triton.InferenceServerClient(server.grpc) as client:
        for _ in range(10):
            send(client, head, sequence_start=True)
            answers = queue.Queue()
            call = client.async_infer(
                "lstm-sequence",
                [tensor("tokens", lost[np.newaxis])],
                lambda result, error: answers.put((result, error)),
                sequence_id="s",
            )
            call.cancel()
            _, error = answers.get(timeout=120)
            assert isinstance(error, InferenceServerException)
            eventually("it is gone", lambda: pending(server, "lstm-sequence") == 0)
            try:
                hidden = send(client, tail, sequence_end=True).as_numpy("hidden")[0]
            except InferenceServerException as closed:
                assert NOT_STARTED in closed.message(), closed
                continue
            # The cancelled request did not reach the server, or was complete before its cancellation.
            wholes = [reference.answer({"tokens": np.concatenate(steps)})["hidden"] for steps in ([head, tail], [head, lost, tail])]
            assert any(np.allclose(hidden, whole, rtol=1e-4, atol=1e-4 * np.abs(whole).max()) for whole in wholes)
