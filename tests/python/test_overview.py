"""`/v2/overview` of a server with hundreds of models that requests load: what it says of each, within which bounds."""

import json
import urllib.parse

import pytest
import tritonclient.grpc as triton
from clients import ROW, eventually, refused, tensor
from onnx_bytes import scale
from repository_on_disk import write_model
from server import Server

MODELS = 300
#: Bytes that one of these models is estimated to take, and a little more.
ONE = (1 << 20) + 4096
#: No more than the server may answer with, for 512 models.
MOST_BYTES = 2 << 20
UNITS = ("_ms", "_bytes", "_seconds", "_per_second", "_requests", "_rows")


def name(number):
    return f"scale{number:03}"


def ask(client, model):
    return client.infer(model, [tensor("INPUT0", ROW.reshape(1, 16))])


def overview(server, **query):
    path = "/v2/overview" + (f"?{urllib.parse.urlencode(query)}" if query else "")
    status, body = server.get(path)
    assert status == 200, body
    assert len(body) < MOST_BYTES
    return json.loads(body)


def of(server, model):
    (found,) = overview(server, model=model)["models"]
    return found


@pytest.fixture(scope="module")
def on_demand(program, tmp_path_factory):
    """Runs a server that has room for two of 300 models, one of which cannot be loaded."""
    repository = tmp_path_factory.mktemp("overview")
    for number in range(MODELS - 1):
        write_model(repository, name(number), scale(number + 1))
    write_model(repository, "broken", b"no model")
    flags = ["--model-control-mode=on-demand", f"--memory-budget-bytes={2 * ONE}", "--load-timeout-secs=30"]
    with Server(repository, *flags, program=program) as running:
        yield running


def test_models_that_requests_load_are_shown_with_their_memory(on_demand):
    with triton.InferenceServerClient(on_demand.grpc) as client:
        for number in (0, 1, 2):
            ask(client, name(number))
        with refused("UNAVAILABLE", "'broken' could not be loaded"):
            ask(client, "broken")
        # The load that failed may have made room for itself by unloading any of the others.
        ask(client, name(2))
    shown = overview(on_demand)
    assert len(shown["models"]) == MODELS and shown["models_left_out"] == 0
    states = {model["name"]: model["state"] for model in shown["models"]}
    assert states["broken"] == "UNAVAILABLE" and states[name(2)] == "READY" and states[name(3)] == "ON_DEMAND"
    first = shown["models"][0]
    assert (first["name"], first["attention"]) == ("broken", "unavailable")
    assert "onnx" in first["reason"].lower() or "protobuf" in first["reason"].lower(), first["reason"]
    ready = [model for model in shown["models"] if model["state"] == "READY"]
    assert shown["models"][1 : 1 + len(ready)] == ready, "those that serve come next"
    assert all(0 < model["memory_estimated_bytes"] < ONE for model in ready)
    assert shown["memory"]["limit_bytes"] == 2 * ONE
    assert shown["memory"]["used_bytes"] == sum(model["memory_estimated_bytes"] for model in ready)
    counts = shown["on_demand"]
    assert counts["loads"] >= 4 and counts["failed_loads"] >= 1 and counts["unloaded_for_memory"] >= 1
    assert counts["waiting_requests"] == 0


def test_rates_and_times_follow_the_requests(on_demand):
    with triton.InferenceServerClient(on_demand.grpc) as client:

        def busy():
            for _ in range(20):
                ask(client, name(2))
            shown = of(on_demand, name(2))
            return shown if shown["requests_per_second"] and shown["p99_ms"] else None

        shown = eventually("a rate", busy)
    assert 0 < shown["p50_ms"] <= shown["p99_ms"] and shown["failures_per_second"] == 0
    assert shown["queue_ms"] <= shown["p99_ms"] and 0 < shown["compute_ms"]
    assert shown["mean_batch_rows"] == 1 and shown["batch_sizes"][0]["rows"] == 1
    assert shown["succeeded_requests"] >= 20 and shown["in_flight_requests"] == shown["pending_requests"] == 0
    history = shown["history"]
    assert 1 <= len(history["requests_per_second"]) <= 60
    assert {len(values) for values in history.values()} == {len(history["requests_per_second"])}
    assert max(history["requests_per_second"]) > 0 and max(value or 0 for value in history["p99_ms"]) > 0


def test_failures_need_attention_until_they_are_over(start, made_models):
    server = start(made_models("tests", "--only", "lookup"))
    with triton.InferenceServerClient(server.grpc) as client:

        def fails():
            with refused("INTERNAL"):
                client.infer("lookup", [tensor("INPUT0", [[99]])])
            return of(server, "lookup")["attention"] == "failures"

        eventually("attention", fails)
        shown = of(server, "lookup")
        assert shown["failures_per_second"] > 0 and shown["failed_requests"] > 0
        eventually("all is well again", lambda: of(server, "lookup")["attention"] is None, timeout_s=120)


def test_numbers_have_names_with_their_units(on_demand):
    shown = of(on_demand, name(2))
    counts = {"history", "batch_sizes"}
    numbers = {key for key, value in shown.items() if isinstance(value, (int, float)) or key in counts}
    assert {key for key in numbers - counts if not key.endswith(UNITS)} == set()
    assert all(key.endswith(UNITS) for key in shown["history"])


def test_one_model_can_be_asked_for_and_bad_questions_are_refused(on_demand):
    assert [model["name"] for model in overview(on_demand, model=name(7))["models"]] == [name(7)]
    assert overview(on_demand, model="scale")["models"] == [], "no model has exactly this name"
    assert "timeline" in overview(on_demand) and "timeline" not in overview(on_demand, timeline="false")
    for query in ("models=a", "timeline=maybe", "model=a&model=b"):
        status, body = on_demand.get(f"/v2/overview?{query}")
        assert status == 400 and "query" in json.loads(body)["error"], (query, body)
