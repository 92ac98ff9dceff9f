"""The CPU split into several devices: each has its own scheduler, and clients do not notice."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import rows, statistics, tensor
from conftest import serving

CLIENTS, EACH = 16, 40


@pytest.fixture(scope="module")
def server(program, made_models):
    made = made_models("tests", "--only", "addsub,total")
    with serving(made, "--cpu-lanes=4", "--cpu-shards=4", program=program) as running:
        yield running


def of_all_clients(server, work):
    """Returns the results of `work` for many concurrent clients."""

    def one(number):
        with triton.InferenceServerClient(server.grpc) as client:
            return work(client, number)

    with ThreadPoolExecutor(CLIENTS) as threads:
        return list(threads.map(one, range(CLIENTS)))


def test_every_client_gets_its_own_rows_and_all_are_counted_once(server):
    def add_and_subtract(client, number):
        for step in range(EACH):
            one, two = rows(1 + step % 3, start=1000 * number + step), rows(1 + step % 3, start=7)
            result = client.infer("addsub", [tensor("INPUT0", one), tensor("INPUT1", two)])
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), one + two)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), one - two)

    of_all_clients(server, add_and_subtract)
    with triton.InferenceServerClient(server.grpc) as client:
        counted = statistics(client, "addsub")
    assert counted["success"] == CLIENTS * EACH and counted["fail"] == 0
    assert counted["inference"] == CLIENTS * sum(1 + step % 3 for step in range(EACH))


def test_a_sequence_keeps_its_state_whatever_the_others_do(server):
    def sums(client, number):
        totals = []
        for step in range(EACH):
            value = [tensor("INPUT0", np.array([[number + step]], np.int64))]
            place = {"sequence_id": number + 1, "sequence_start": step % 8 == 0, "sequence_end": step % 8 == 7}
            totals.append(client.infer("total", value, **place).as_numpy("OUTPUT0").item())
        return totals

    for number, totals in enumerate(of_all_clients(server, sums)):
        expected = np.concatenate([np.cumsum(part) for part in np.split(number + np.arange(EACH), EACH // 8)])
        assert totals == expected.tolist()


def test_there_is_a_lane_for_each_shard(program, tmp_path):
    command = [program, "serve", "--model-repository", tmp_path, "--cpu-lanes=2", "--cpu-shards=3"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "--cpu-shards is 3, expected at most --cpu-lanes, which is 2" in refused.stderr
