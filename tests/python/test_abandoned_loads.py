"""Loads of clients that never end, or whose clients leave: they end, and give back what they held."""

import base64
import json
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import tritonclient.grpc as triton
from attack_models import WARMED, endless, folded, honest, weighty
from clients import eventually, metric, refused
from tritonclient.utils import InferenceServerException

PLAIN = json.dumps({"backend": "onnxruntime"})
ENDLESS = json.dumps(WARMED)
#: Time limit of waits: more than anything here needs, and less than any limit on a run's time.
GENEROUS_S = 300


@pytest.fixture
def serve(start, tmp_path):
    """Starts a server without models, whose runs have no time limit unless a flag says so; (server, client)."""
    clients = []

    def serve_with(*flags):
        (tmp_path / "models").mkdir()
        server = start(tmp_path / "models", "--model-control-mode=explicit", "--task-time-limit-secs=0", *flags)
        clients.append(triton.InferenceServerClient(server.grpc))
        return server, clients[-1]

    yield serve_with
    for client in clients:
        client.close()


def load(client, name, file, config=PLAIN, **options):
    client.load_model(name, config=config, files={"file:1/model.onnx": file}, **options)


def over_http(server, name, file, config, timeout_s):
    parameters = {"config": config, "file:1/model.onnx": base64.b64encode(file).decode()}
    body = json.dumps({"parameters": parameters}).encode()
    request = urllib.request.Request(f"http://{server.http}/v2/repository/models/{name}/load", body)
    with pytest.raises(OSError):
        urllib.request.urlopen(request, timeout=timeout_s)


def state(client, name):
    entries = [model for model in client.get_model_repository_index().models if model.name == name]
    return (entries[0].state, entries[0].reason) if entries else ("", "")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_endless_warmups_end_with_their_clients(serve, protocol):
    server, client = serve("--warmup-time-limit-secs=0")

    def leave(at):
        if protocol == "http":
            return over_http(server, f"m{at}", endless(), ENDLESS, 2)
        with triton.InferenceServerClient(server.grpc) as leaving, refused("DEADLINE_EXCEEDED"):
            load(leaving, f"m{at}", endless(), ENDLESS, client_timeout=2)

    with ThreadPoolExecutor(4) as clients:
        list(clients.map(leave, range(4)))
    # All loader threads are free again, although no limit on time would free them.
    load(client, "honest", honest(), client_timeout=GENEROUS_S)
    eventually("loads that have ended", lambda: all(state(client, f"m{at}")[0] != "LOADING" for at in range(4)))
    assert client.is_server_ready() and client.is_model_ready("honest")
    eventually("their bytes are given back", lambda: metric(server, "paternoster_pending_bytes") == 0)


def test_an_unload_ends_an_endless_warmup(serve):
    _, client = serve("--warmup-time-limit-secs=0")
    failed = []

    def load_it():
        try:
            load(client, "m", endless(), ENDLESS, client_timeout=GENEROUS_S)
        except InferenceServerException as refusal:
            failed.append(refusal)

    loading = threading.Thread(target=load_it)
    loading.start()
    eventually("a load", lambda: state(client, "m")[0] == "LOADING")
    assert client.is_server_ready(), "readiness does not depend on what a client loads"
    client.unload_model("m", client_timeout=GENEROUS_S)
    loading.join()
    assert failed[0].status() == "StatusCode.UNAVAILABLE", "as before its turn, and 503 over HTTP"
    assert "the model is being unloaded" in failed[0].message()
    assert state(client, "m") == ("", ""), "it is nowhere on disk"


@pytest.mark.parametrize(
    "flag, fact",
    [
        ("--task-time-limit-secs=1", "a trial run has not ended within 1s"),
        ("--warmup-time-limit-secs=1", "its trial runs have not ended within 1s"),
    ],
)
def test_an_endless_warmup_ends_by_itself(serve, flag, fact):
    _, client = serve(flag)
    with refused("INVALID_ARGUMENT", "warmup sample 'first' failed", fact):
        load(client, "m", endless(), ENDLESS, client_timeout=GENEROUS_S)


def test_a_model_is_warmed_up_a_bounded_number_of_times(serve):
    _, client = serve()
    config = json.loads(ENDLESS)
    config["model_warmup"][0]["count"] = 2**31 - 1
    with refused("INVALID_ARGUMENT", "model_warmup[0].count", "at most 10000 runs", str(2**31 - 1)):
        load(client, "m", honest(), json.dumps(config))


def test_what_a_model_takes_when_it_is_opened_is_bounded(serve):
    """Constants are folded when a model is opened, so 230 bytes become 1 GB."""
    server, client = serve("--max-sent-model-bytes=500000000")
    before = server.memory_bytes()
    with refused("INVALID_ARGUMENT", "--max-sent-model-bytes"):
        load(client, "folded", folded(1 << 28))
    assert metric(server, "paternoster_sent_model_bytes") == 0
    assert metric(server, "paternoster_sent_model_bytes_refused_total") == 1
    assert server.memory_bytes() - before < 500_000_000, "the server itself never opened it"


def test_what_loaded_models_keep_counts_until_they_are_unloaded(serve):
    server, client = serve("--max-sent-model-bytes=400000000")
    names = [f"m{at}" for at in range(40)]
    loaded = []
    with refused("INVALID_ARGUMENT", "--max-sent-model-bytes"):
        for at, name in enumerate(names):
            load(client, name, weighty(9, at))
            loaded.append(name)
    held = metric(server, "paternoster_sent_model_bytes")
    assert len(loaded) > 2 and len(loaded) * 9_000_000 <= held <= 400_000_000
    for name in loaded[:2]:
        client.unload_model(name)
    load(client, loaded[0], weighty(9, 0))
    for name in loaded:
        client.unload_model(name)
    eventually("nothing is held", lambda: metric(server, "paternoster_sent_model_bytes") == 0)
