"""ModelStatistics: what each field counts, and that the fields add up."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import tritonclient.grpc as triton
from clients import ROW, change, eventually, metric, refused, rows, statistics, tensor
from tritonclient.utils import InferenceServerException


def test_requests_rows_and_executions_are_counted(client):
    before = statistics(client, "addsub")
    for _ in range(3):
        client.infer("addsub", [tensor("INPUT0", rows(1)), tensor("INPUT1", rows(1))])
    client.infer("addsub", [tensor("INPUT0", rows(4)), tensor("INPUT1", rows(4))])
    with refused("INVALID_ARGUMENT"):
        client.infer("addsub", [tensor("INPUT0", ROW[None, :8]), tensor("INPUT1", rows(1))])
    added = change(before, statistics(client, "addsub"))
    counts = {key: value for key, value in added.items() if not key.endswith("_ns")}
    assert counts == {
        "inference": 7,
        "execution": 4,
        "success": 4,
        "fail": 0,
        "queue": 4,
        "compute_input": 4,
        "compute_infer": 4,
        "compute_output": 4,
        "cache_hit": 0,
        "cache_miss": 0,
        "batches": {1: 3, 4: 1},
    }


def test_queue_and_compute_fit_into_the_request(client):
    before = statistics(client, "addsub")
    for count in (1, 2, 8):
        client.infer("addsub", [tensor("INPUT0", rows(count)), tensor("INPUT1", rows(count))])
    added = change(before, statistics(client, "addsub"))
    parts = [added["compute_input_ns"], added["compute_infer_ns"], added["compute_output_ns"]]
    assert all(part > 0 for part in parts)
    assert added["queue_ns"] + sum(parts) <= added["success_ns"]


def test_counts_equal_the_clients_under_load(server, client):
    """32 concurrent clients: batches form, and yet every row is counted once."""
    before = statistics(client, "scale")

    def ask(number):
        with triton.InferenceServerClient(server.grpc) as own:
            sizes = [1 + (number + turn) % 4 for turn in range(20)]
            for size in sizes:
                own.infer("scale", [tensor("INPUT0", rows(size))])
            return sum(sizes)

    with ThreadPoolExecutor(32) as pool:
        sent_rows = sum(pool.map(ask, range(32)))
    added = change(before, statistics(client, "scale"))
    assert (added["success"], added["fail"]) == (32 * 20, 0)
    assert added["inference"] == sent_rows
    assert sum(size * count for size, count in added["batches"].items()) == sent_rows
    assert sum(added["batches"].values()) == added["execution"]
    assert added["queue_ns"] > 0, "32 clients on two lanes have to wait"
    assert max(added["batches"]) <= client.get_model_config("scale").config.max_batch_size


def test_a_request_that_fails_in_the_engine_is_counted_alone(start, test_models):
    """The lookup fails for an index beyond its table, whichever requests share its batch. The test has its own server,
    because the failure is an error in the log."""
    server = start(test_models, "--model-control-mode=explicit", "--load-model=lookup")
    with triton.InferenceServerClient(server.grpc) as client, ThreadPoolExecutor(8) as pool:

        def ask(number):
            index = 99 if number % 8 == 3 else number % 8
            try:
                return float(client.infer("lookup", [tensor("INPUT0", [[index]])]).as_numpy("OUTPUT0")[0, 0])
            except InferenceServerException as failure:
                return failure.status()

        found = list(pool.map(ask, range(40)))
        assert found == ["StatusCode.INTERNAL" if number % 8 == 3 else 100 + number % 8 for number in range(40)]
        counted = statistics(client, "lookup")
    assert (counted["success"], counted["fail"], counted["inference"]) == (35, 5, 35)
    assert metric(server, "nv_inference_request_failure", model="lookup", reason="BACKEND") == 5


def test_http_and_grpc_tell_the_same(server, client):
    client.infer("identity", [tensor("INPUT0", rows(2))])
    (stats,) = json.loads(server.get("/v2/models/identity/stats")[1])["model_stats"]
    counted = statistics(client, "identity")
    assert int(stats["inference_count"]) == counted["inference"]
    assert int(stats["inference_stats"]["success"]["ns"]) == counted["success_ns"]


def test_statistics_of_all_models_name_those_that_are_ready(client):
    named = {(stats.name, stats.version) for stats in client.get_inference_statistics().model_stats}
    index = {(model.name, model.version) for model in client.get_model_repository_index().models}
    assert named == index


@pytest.mark.parametrize("name, version", [("nobody", ""), ("identity", "9")])
def test_statistics_of_what_is_not_there_are_refused(client, name, version):
    with refused("INVALID_ARGUMENT", name):
        client.get_inference_statistics(name, version)


def test_last_inference_is_a_time_of_day_in_milliseconds(client):
    def last():
        (stats,) = client.get_inference_statistics("identity").model_stats
        return stats.last_inference

    client.infer("identity", [tensor("INPUT0", rows(1))])
    first = last()
    assert first > 1_500_000_000_000

    def later():
        client.infer("identity", [tensor("INPUT0", rows(1))])
        return last() > first

    eventually("a later time of the last inference", later)
