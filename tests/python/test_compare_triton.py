"""The comparison with Triton, in a quick form with small models: its tables are complete and every answer is right.
Speeds are not asserted. A second server of this project takes Triton's place, with the repository that the script
writes for Triton."""

import csv
import os
import subprocess
import sys

import onnx_bytes as onnx
import pytest
from comparing import BARE, BESIDE
from conftest import ROOT
from server import Server

SCRIPT = ROOT / "scripts" / "compare_triton.py"
ROUNDS = 2


@pytest.fixture(scope="module")
def compare(program, tmp_path_factory):
    """Returns a function that runs the script: (exit status, output, error output)."""

    def run(*words):
        command = [sys.executable, SCRIPT, "--binary", program, "--quick", *words]
        scratch = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")), "PATERNOSTER": str(program)}
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, env={**os.environ, **scratch})
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="module")
def peer(compare, program, tmp_path_factory):
    """Starts a server in Triton's place."""
    repository = tmp_path_factory.mktemp("peer")
    status, _, complaints = compare("--write-peer", repository)
    assert status == 0, complaints
    with Server(repository, "--server-name=stand-in", program=program) as running:
        yield running


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def check(rows, servers_of, in_flight=("1", "4")):
    """Checks that each server has each round of each case, without errors, and that each round of all cases but one has
    the rates of the bare loop, alone and beside clients."""
    for case, servers in servers_of.items():
        loops = (BARE, BESIDE) if case != "identity" else ()
        for number in in_flight:
            own = [row for row in rows if row["case"] == case and row["in_flight"] == number]
            turns = [(row["server"], row["round"]) for row in own]
            assert sorted(turns) == sorted((server, str(turn)) for server in (*servers, *loops) for turn in range(1, ROUNDS + 1)), case
            assert all(float(row["requests_per_s"]) > 0 for row in own if row["server"] in loops)
            assert any(float(row["requests_per_s"]) > 0 for row in own if row["server"] not in loops)
            assert all((row["wrong"], row["failed"]) == (("", "") if row["server"] in loops else ("0", "0")) for row in own)
    assert {row["case"] for row in rows} == set(servers_of)


def test_beside_a_peer_every_server_answers_what_the_peer_does(compare, peer, tmp_path):
    files = [tmp_path / "out.csv", tmp_path / "out.svg"]
    status, printed, complaints = compare("--peer", peer.grpc, "--only", "identity;lstm", "--csv", files[0], "--svg", files[1])
    assert status == 0, complaints
    told = next(line for line in printed.splitlines() if line.startswith("'stand-in"))
    assert peer.grpc in told and "identity, lstm, minilm" in told
    for fact in ("CPU: ", "memory: ", "load average", "paternoster 0.", "ONNX Runtime: "):
        assert f"\n{fact}" in printed, fact
    named = told.split("'")[1]
    rows = table(files[0])
    check(rows, {"identity": [named, "as it comes"], "lstm, closed-22": [named, "as it comes", "as exported", "inputs ahead"]})
    assert {row["machine"] for row in rows} != {""}
    assert f"| requests | in flight | {named}: requests/s" in printed and f"| as it comes / {BARE} |" in printed and f"| {BESIDE} / {BARE} |" in printed and "no peer" not in printed
    drawn = files[1].read_text()
    for word in ("identity", "closed-22", "1 in flight", "4 in flight", "as it comes", "as exported", "inputs ahead", named, "1.00", "0"):
        assert f">{word}<" in drawn, word


def test_without_a_peer_exact_lengths_take_its_place_and_it_says_so(compare, tmp_path):
    files = [tmp_path / "out.csv", tmp_path / "out.svg"]
    status, printed, complaints = compare("--only", "identity;minilm, glue-short", "--csv", files[0], "--svg", files[1])
    assert status == 0, complaints
    assert "no peer: 'exact lengths' is a Paternoster" in printed
    check(table(files[0]), {"minilm, glue-short": ["exact lengths", "exact lengths, one instance", "as it comes", "with a profile"]})
    assert ">with a profile<" in files[1].read_text()


def test_a_server_that_runs_already_is_measured_in_place_of_those_started(compare, peer, tmp_path):
    files = [tmp_path / "out.csv", tmp_path / "out.svg"]
    places = ["--peer", peer.grpc, "--server", peer.grpc, "--only", "identity", "--csv", files[0], "--svg", files[1]]
    status, printed, complaints = compare(*places)
    assert status == 0, complaints
    assert "as it comes" not in printed
    servers = {row["server"] for row in table(files[0])}
    assert peer.grpc in servers and len(servers) == 2


def test_a_server_that_answers_otherwise_is_found_out(compare, peer, program, tmp_path):
    repository = tmp_path / "otherwise"
    (repository / "identity" / "1").mkdir(parents=True)
    ports = [[onnx.port(name, "FP32", ("batch", 16))] for name in ("INPUT0", "OUTPUT0")]
    negative = onnx.model([onnx.node("Neg", ["INPUT0"], ["OUTPUT0"])], *ports, [])
    (repository / "identity" / "1" / "model.onnx").write_bytes(negative)
    files = ["--csv", tmp_path / "out.csv", "--svg", tmp_path / "out.svg"]
    with Server(repository, program=program) as other:
        status, printed, complaints = compare("--peer", peer.grpc, "--server", other.grpc, "--only", "identity", *files)
    assert status == 1 and "wrong answers and 0 failed requests" in complaints, complaints
    assert "'paternoster bench' ended with status 1" in complaints and "requests/s" not in printed


def test_what_cannot_be_compared_is_said(compare, tmp_path):
    status, _, complaints = compare("--peer", "127.0.0.1:1", "--only", "identity")
    assert status == 1 and "no server answers at '127.0.0.1:1'" in complaints
    (tmp_path / "lstm").mkdir()
    status, _, complaints = compare("--write-peer", tmp_path)
    assert status == 1 and f"'{tmp_path}' has a model 'lstm' already" in complaints
    status, _, complaints = compare("--only", "identical")
    assert status == 1 and "nothing to compare for 'identical'" in complaints and "minilm, glue-pair" in complaints
