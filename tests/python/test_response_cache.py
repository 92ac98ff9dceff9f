"""The response cache: `response_cache` of a model on a server with --cache-config."""

import json
import os
import queue

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from clients import change, metric, on_page, refused, rows, scrape, statistics, tensor
from onnx_bytes import constant, identity, model, node, port, scale
from repository_on_disk import config, write_model
from test_pipelines import ensemble, step, write_ensemble

SIZE = 1 << 20
ROWS16 = ("FP32", [16])
CACHED = "response_cache { enable: true }"

# Rows of this index are outside of the table, which only the engine finds.
POISON = 50


def lookup():
    """OUTPUT0 = the row of a table at index 2 · INPUT0; fails where the table ends."""
    table = constant("table", [float(number) for number in range(100)])
    two = constant("two", [2.0])
    return model(
        [
            node("Mul", ["INPUT0", "two"], ["doubled"]),
            node("Cast", ["doubled"], ["index"], to=7),
            node("Gather", ["table", "index"], ["OUTPUT0"]),
        ],
        [port("INPUT0", "FP32", ("batch", 1))],
        [port("OUTPUT0", "FP32", ("batch", 1))],
        [table, two],
    )


def write_models(repository):
    write_model(repository, "times", scale(2), config("times", {"INPUT0": ROWS16}, extra=CACHED))
    write_model(repository, "plain", scale(2), config("plain", {"INPUT0": ROWS16}))
    write_model(repository, "lookup", lookup(), config("lookup", {"INPUT0": ("FP32", [1])}, extra=CACHED))
    words = {"INPUT0": ("BYTES", [2])}
    write_model(repository, "words", identity("BYTES", ("batch", 2)), config("words", words, extra=CACHED))
    (repository / "by_yaml" / "1").mkdir(parents=True)
    (repository / "by_yaml" / "1" / "model.onnx").write_bytes(scale(3))
    (repository / "by_yaml" / "model.yaml").write_text("max_batch_size: 8\nresponse_cache: true\n")


@pytest.fixture
def caching(start, tmp_path):
    """A server with a cache in explicit mode, with its models loaded: (server, repository, client)."""
    write_models(tmp_path)
    flags = [f"--load-model={path.name}" for path in tmp_path.iterdir()]
    server = start(
        tmp_path, f"--cache-config=local,size={SIZE}", "--allow-client-shm=true", "--model-control-mode=explicit", *flags
    )
    with triton.InferenceServerClient(server.grpc) as client:
        yield server, tmp_path, client


def counts(client, name, act):
    """Does something; returns how the model's counts of requests changed, without those of durations."""
    before = statistics(client, name)
    act()
    return change(before, statistics(client, name))


def ask(client, name="times", values=None, **more):
    values = rows(2) if values is None else values
    return client.infer(name, [tensor("INPUT0", values)], **more).as_numpy("OUTPUT0")


def test_a_hit_gives_the_same_and_counts_as_in_triton(caching):
    server, _, client = caching
    first = counts(client, "times", lambda: np.testing.assert_array_equal(ask(client), rows(2) * 2))
    assert (first["cache_miss"], first["cache_hit"], first["execution"], first["inference"]) == (1, 0, 1, 2)
    assert first["cache_miss_ns"] > 0

    # Neither its id nor how it is scheduled makes a request another one.
    ids = []

    def again():
        result = client.infer("times", [tensor("INPUT0", rows(2))], request_id="second", priority=1, timeout=10**6)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), rows(2) * 2)
        ids.append(result.get_response().id)

    second = counts(client, "times", again)
    assert ids == ["second"]
    assert (second["success"], second["queue"], second["cache_hit"], second["cache_miss"]) == (1, 1, 1, 0)
    # Triton's `inference_count` leaves out what was not computed.
    assert [second[key] for key in ("inference", "execution", "compute_infer", "compute_input", "fail")] == [0] * 5
    assert second["batches"] == {}
    assert 0 < second["cache_hit_ns"] <= second["success_ns"] and second["queue_ns"] == 0

    page = scrape(server)
    for name, count in (("hits", 1), ("misses", 1)):
        assert on_page(page, f"nv_cache_num_{name}_per_model", model="times", version="1") == count
    stats = client.get_inference_statistics("times").model_stats[0].inference_stats
    for name in ("hit", "miss"):
        duration_us = getattr(stats, f"cache_{name}").ns // 1000
        assert on_page(page, f"nv_cache_{name}_duration_per_model", model="times") == duration_us
    assert 'model="plain"' not in "".join(line for line in page.splitlines() if line.startswith("nv_cache"))
    assert on_page(page, "paternoster_response_cache_bytes_limit") == SIZE
    assert 2 * 16 * 4 < on_page(page, "paternoster_response_cache_bytes") < 4096


def test_both_protocols_and_all_forms_of_a_request_share_a_response(caching):
    server, _, client = caching
    np.testing.assert_array_equal(ask(client), rows(2) * 2)

    def in_other_forms():
        with triton_http.InferenceServerClient(server.http) as http:
            for binary in (True, False):
                given = triton_http.InferInput("INPUT0", [2, 16], "FP32")
                given.set_data_from_numpy(rows(2), binary_data=binary)
                wanted = [triton_http.InferRequestedOutput("OUTPUT0", binary_data=binary)]
                result = http.infer("times", [given], outputs=wanted, request_id="over HTTP")
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), rows(2) * 2)
                assert result.get_response()["id"] == "over HTTP"
        best = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
        classes = client.infer("times", [tensor("INPUT0", rows(2))], outputs=best).as_numpy("OUTPUT0")
        assert classes.tolist() == [[b"30.000000:15", b"28.000000:14"], [b"62.000000:15", b"60.000000:14"]]
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(3):
            client.async_stream_infer("times", [tensor("INPUT0", rows(2))], request_id=str(number))
        for number in range(3):
            result, error = answers.get(timeout=120)
            assert error is None and result.get_response().id == str(number)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), rows(2) * 2)
        client.stop_stream()

    added = counts(client, "times", in_other_forms)
    assert (added["cache_hit"], added["cache_miss"], added["execution"]) == (6, 0, 0)


def test_only_models_that_ask_for_it_are_cached_and_their_configuration_says_so(caching):
    _, _, client = caching
    for _ in range(2):
        ask(client, "plain")
        np.testing.assert_array_equal(ask(client, "by_yaml"), rows(2) * 3)
    plain, by_yaml = statistics(client, "plain"), statistics(client, "by_yaml")
    assert (plain["cache_hit"], plain["cache_miss"], plain["execution"]) == (0, 0, 2)
    assert (by_yaml["cache_hit"], by_yaml["cache_miss"], by_yaml["execution"]) == (1, 1, 1)
    cached = {name: client.get_model_config(name).config.response_cache.enable for name in ("times", "by_yaml", "plain")}
    assert cached == {"times": True, "by_yaml": True, "plain": False}


def test_requests_that_differ_in_shape_or_in_where_a_string_ends_miss(caching):
    _, _, client = caching
    ask(client, values=rows(2))
    added = counts(client, "times", lambda: ask(client, values=rows(1)))
    assert (added["cache_hit"], added["cache_miss"]) == (0, 1)

    pairs = [[b"ab", b"c"], [b"a", b"bc"], [b"", b"abc"], [b"abc", b""]]
    for pair in pairs * 2:
        answer = client.infer("words", [tensor("INPUT0", np.array([pair], object), "BYTES")]).as_numpy("OUTPUT0")
        assert answer.tolist() == [pair]
    words = statistics(client, "words")
    assert (words["cache_hit"], words["cache_miss"]) == (len(pairs), len(pairs))


def test_a_large_input_is_cached_too(caching):
    """It is hashed by another thread."""
    _, repository, client = caching
    write_model(repository, "wide", scale(2, 1 << 16), config("wide", {"INPUT0": ("FP32", [1 << 16])}, extra=CACHED))
    client.load_model("wide")
    values = np.arange(2 << 16, dtype=np.float32).reshape(2, 1 << 16)
    for _ in range(2):
        np.testing.assert_array_equal(ask(client, "wide", values), values * 2)
    values[-1, -1] += 4
    np.testing.assert_array_equal(ask(client, "wide", values), values * 2)
    wide = statistics(client, "wide")
    assert (wide["cache_hit"], wide["cache_miss"]) == (1, 2)


def test_a_reload_is_never_answered_from_the_load_before(caching):
    _, repository, client = caching
    for factor in (2, 5, 7):
        write_model(repository, "times", scale(factor))
        client.load_model("times")
        for _ in range(2):
            np.testing.assert_array_equal(ask(client), rows(2) * factor)
        loaded = statistics(client, "times")
        assert (loaded["cache_hit"], loaded["cache_miss"]) == (1, 1)


def test_what_has_no_room_leaves_and_the_limit_holds(start, tmp_path):
    write_model(tmp_path, "times", scale(2), config("times", {"INPUT0": ROWS16}, extra=CACHED))
    wide = config("wide", {"INPUT0": ("FP32", [1 << 14])}, extra=CACHED)
    write_model(tmp_path, "wide", scale(2, 1 << 14), wide)
    size = 32 << 10
    server = start(tmp_path, f"--response-cache-byte-size={size}")
    with triton.InferenceServerClient(server.grpc) as client:
        for number in range(100):
            ask(client, values=rows(1, number))
            assert metric(server, "paternoster_response_cache_bytes") <= size
        assert counts(client, "times", lambda: ask(client, values=rows(1, 99)))["cache_hit"] == 1
        kept = counts(client, "times", lambda: [ask(client, values=rows(1, number)) for number in range(100)])
        assert 0 < kept["cache_hit"] < 60, "each takes more than its 64 bytes"

        # A response that is larger than all of it.
        values = np.ones((1, 1 << 14), np.float32)
        for _ in range(2):
            np.testing.assert_array_equal(ask(client, "wide", values), values * 2)
        large = statistics(client, "wide")
        assert (large["cache_hit"], large["cache_miss"], large["execution"]) == (0, 2, 2)


def test_sequences_go_past_the_cache(caching):
    _, _, client = caching
    ask(client)
    added = counts(client, "times", lambda: ask(client, sequence_id=7, sequence_start=True))
    assert (added["cache_hit"], added["cache_miss"], added["execution"]) == (0, 0, 1)


def test_a_request_that_fails_is_not_kept(caching):
    _, _, client = caching
    bad, good = np.full((1, 1), POISON, np.float32), np.full((1, 1), 3, np.float32)

    def twice():
        for _ in range(2):
            with refused("INTERNAL"):
                ask(client, "lookup", bad)

    added = counts(client, "lookup", twice)
    assert (added["fail"], added["cache_hit"], added["cache_miss"]) == (2, 0, 0)
    for _ in range(2):
        assert ask(client, "lookup", good).tolist() == [[6.0]]
    assert statistics(client, "lookup")["cache_hit"] == 1


def test_tensors_in_shared_memory_count_by_their_content(caching):
    _, _, client = caching
    key, size = f"/paternoster-{os.getpid()}-cached", rows(2).nbytes
    region = shm.create_shared_memory_region("cached", key, 2 * size)
    try:
        client.register_system_shared_memory("cached", key, 2 * size)
        given = triton.InferInput("INPUT0", [2, 16], "FP32")
        given.set_shared_memory("cached", size)
        taken = triton.InferRequestedOutput("OUTPUT0")
        taken.set_shared_memory("cached", size, offset=size)
        ask(client, values=rows(2, 5))

        def from_region(values):
            shm.set_shared_memory_region(region, [values, np.zeros_like(values)])
            client.infer("times", [given], outputs=[taken])
            answer = shm.get_contents_as_numpy(region, np.float32, [2, 16], offset=size)
            np.testing.assert_array_equal(answer, values * 2)

        known = counts(client, "times", lambda: from_region(rows(2, 5)))
        assert (known["cache_hit"], known["cache_miss"]) == (1, 0), "sent over the wire before"
        other = counts(client, "times", lambda: from_region(rows(2, 6)))
        assert (other["cache_hit"], other["cache_miss"]) == (0, 1), "the same region with other content"
        client.unregister_system_shared_memory("cached")
    finally:
        shm.destroy_shared_memory_region(region)


TWICE = [step("times", {"INPUT0": "IN"}, {"OUTPUT0": "mid"}), step("plain", {"INPUT0": "mid"}, {"OUTPUT0": "OUT"})]


def chained(client, name):
    return client.infer(name, [tensor("IN", rows(2))]).as_numpy("OUT")


def test_steps_of_a_pipeline_hit_and_so_does_a_pipeline(caching):
    _, repository, client = caching
    text = ensemble("chain", {"IN": ROWS16}, {"OUT": ROWS16}, TWICE)
    write_ensemble(repository, "chain", text)
    write_ensemble(repository, "kept", text.replace('"chain"', '"kept"') + CACHED)
    client.load_model("chain")
    client.load_model("kept")

    def run(name, factor):
        np.testing.assert_array_equal(chained(client, name), rows(2) * factor)
        found = {model: statistics(client, model) for model in ("times", "plain", name)}
        return {model: (count["cache_hit"], count["cache_miss"], count["execution"]) for model, count in found.items()}

    assert run("chain", 4) == {"times": (0, 1, 1), "plain": (0, 0, 1), "chain": (0, 0, 1)}
    assert run("chain", 4) == {"times": (1, 1, 1), "plain": (0, 0, 2), "chain": (0, 0, 2)}
    assert run("kept", 4) == {"times": (2, 1, 1), "plain": (0, 0, 3), "kept": (0, 1, 1)}
    assert run("kept", 4) == {"times": (2, 1, 1), "plain": (0, 0, 3), "kept": (1, 1, 1)}

    # A reload of a step's model, which the pipeline has no part in.
    write_model(repository, "plain", scale(10))
    client.load_model("plain")
    assert run("kept", 20)["kept"] == (1, 2, 2)
    assert run("kept", 20)["kept"] == (2, 2, 2)


def test_without_a_cache_a_model_is_served_and_a_warning_names_the_flag(start, tmp_path):
    write_models(tmp_path)
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        for _ in range(2):
            ask(client)
        times = statistics(client, "times")
        assert (times["cache_hit"], times["cache_miss"], times["execution"]) == (0, 0, 2)
        assert client.get_model_config("times").config.response_cache.enable
    warnings = [line for line in server.log.read_text().splitlines() if "response_cache" in line]
    assert len(warnings) == 4 and all("--cache-config" in line for line in warnings), warnings
    assert "nv_cache" not in scrape(server)


def test_what_cannot_be_cached_is_refused(caching, made_models):
    _, repository, client = caching
    decoupled = {"backend": "onnxruntime", "response_cache": {"enable": True}, "model_transaction_policy": {"decoupled": True}}
    with refused("INVALID_ARGUMENT", "response_cache", "decoupled"):
        client.load_model("times", config=json.dumps(decoupled))
    np.testing.assert_array_equal(ask(client), rows(2) * 2)

    # A pipeline is decoupled if the model of a step is.
    made_models("tests", "--only", "repeat", folder=repository)
    streaming = step("repeat", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"})
    text = ensemble("stream", {"IN": ROWS16}, {"OUT": ROWS16}, [streaming])
    write_ensemble(repository, "stream", text + CACHED)
    with refused("INVALID_ARGUMENT", "response_cache", "decoupled"):
        client.load_model("stream")
