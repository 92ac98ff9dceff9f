"""Models that requests load (`--model-control-mode=on-demand`), in a real server: hundreds of models within a budget for
a few, and what clients and operators see of it."""

import bisect
import itertools
import queue
import random
import shutil
import threading
import urllib.error
import urllib.request
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton
from attack_models import endless
from clients import ROW, eventually, metric, on_page, refused, scrape, tensor
from onnx_bytes import scale
from repository_on_disk import config, write_model
from tritonclient.utils import InferenceServerException

MODELS, ROOM, CLIENTS, REQUESTS = 300, 40, 16, 2400
#: Bytes that one of these models is estimated to take, and a little more.
ONE = (1 << 20) + 4096
MODE = "--model-control-mode=on-demand"


def name(number):
    return f"scale{number:03}"


def write_scales(folder, count):
    """Writes models that multiply by their number plus 1."""
    for number in range(count):
        write_model(folder, name(number), scale(number + 1))
    return folder


def ask(client, number):
    answer = client.infer(name(number), [tensor("INPUT0", ROW.reshape(1, 16))]).as_numpy("OUTPUT0")
    assert np.array_equal(answer, ROW.reshape(1, 16) * (number + 1)), f"{name(number)} answered {answer}"


def zipf(count, seed, exponent=1):
    """Draws models whose popularity follows Zipf's law."""
    sums = list(itertools.accumulate(1 / rank**exponent for rank in range(1, MODELS + 1)))
    draw = random.Random(seed)
    return [bisect.bisect(sums, draw.random() * sums[-1]) for _ in range(count)]


def simulated_loads(trace):
    """Returns how many loads the least recently used rule needs for these requests, one after the other."""
    loaded, loads = OrderedDict(), 0
    for model in trace:
        if model in loaded:
            loaded.move_to_end(model)
            continue
        loads += 1
        loaded[model] = True
        if len(loaded) > ROOM:
            loaded.popitem(last=False)
    return loads


def states(client):
    return {model.name: model.state for model in client.get_model_repository_index().models}


def test_300_models_share_the_memory_of_40(start, tmp_path):
    budget = ROOM * ONE
    server = start(write_scales(tmp_path, MODELS), MODE, f"--memory-budget-bytes={budget}")
    trace = zipf(REQUESTS, seed=46)
    with triton.InferenceServerClient(server.grpc) as client:
        assert set(states(client).values()) == {"ON_DEMAND"}

    lock, remaining, order = threading.Lock(), iter(trace), []
    used, over = [], threading.Event()

    def watch():
        while not over.is_set():
            used.append(metric(server, "paternoster_models_memory_bytes"))

    def send(_):
        with triton.InferenceServerClient(server.grpc) as client:
            while True:
                with lock:
                    model = next(remaining, None)
                    if model is None:
                        return
                    order.append(model)
                ask(client, model)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with ThreadPoolExecutor(CLIENTS) as clients:
            # Raises what a client raises: an answer that was lost or wrong.
            list(clients.map(send, range(CLIENTS)))
    finally:
        over.set()
        watching.join()

    page = scrape(server)
    assert max(used) <= budget + ONE, f"{max(used)} of {budget} bytes were used"
    assert max(used) > budget - ONE, "the budget was used up"
    hits, misses = (on_page(page, f"paternoster_on_demand_{what}_total") for what in ("hits", "misses"))
    assert hits + misses == len(order) == REQUESTS
    for reason in ("failed", "memory", "timeout", "waiting"):
        assert on_page(page, "paternoster_on_demand_refused_total", reason=reason) == 0, reason
    loads = on_page(page, "paternoster_on_demand_loads_total")
    rate, expected = 1 - loads / REQUESTS, 1 - simulated_loads(order) / REQUESTS
    assert rate > expected - 0.05, f"{rate:.3f} of the requests began no load, expected {expected:.3f} at least"
    unloaded = on_page(page, "paternoster_on_demand_unloaded_total", reason="memory")
    assert loads - unloaded == sum(line.startswith("paternoster_model_memory_estimated_bytes{") for line in page.splitlines())
    assert loads - unloaded <= ROOM


def test_what_clients_see_before_and_after_the_first_request(start, tmp_path):
    server = start(write_scales(tmp_path, 6), MODE)
    with triton.InferenceServerClient(server.grpc) as client:
        assert client.is_server_ready()
        assert not client.is_model_ready(name(0)), "a probe does not load it"
        with refused("INVALID_ARGUMENT", f"requested model '{name(0)}' is not available"):
            client.get_inference_statistics(name(0))
        assert states(client) == {name(number): "ON_DEMAND" for number in range(6)}
        assert metric(server, "paternoster_on_demand_misses_total") == 0

        assert client.get_model_metadata(name(0)).inputs[0].name == "INPUT0"
        assert client.get_model_config(name(1)).config.max_batch_size > 0
        ask(client, 2)
        status, body = server.get(f"/v2/models/{name(3)}")
        assert status == 200 and b"INPUT0" in body
        status, body = server.get(f"/v2/models/{name(3)}/ready")
        assert status == 200
        status, body = server.get(f"/v2/models/{name(5)}/ready")
        assert status == 400
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer(name(4), [tensor("INPUT0", ROW.reshape(1, 16))])
        assert np.array_equal(answers.get(timeout=120).as_numpy("OUTPUT0"), ROW.reshape(1, 16) * 5)
        client.stop_stream()
        assert states(client) == {name(number): "READY" if number < 5 else "ON_DEMAND" for number in range(6)}
        with refused("NOT_FOUND", "'invented' is not found"):
            client.infer("invented", [tensor("INPUT0", ROW.reshape(1, 16))])

        client.unload_model(name(2))
        assert states(client)[name(2)] == "ON_DEMAND"
        client.load_model(name(2))
        assert states(client)[name(2)] == "READY"
    log = server.log.read_text()
    assert f'model loaded on demand model="{name(0)}"' in log


def test_a_model_that_cannot_be_loaded_says_why(start, tmp_path):
    write_model(tmp_path, "broken", b"garbage")
    (write_model(tmp_path, "large", scale(2)) / "weights.bin").write_bytes(bytes(4 * ONE))
    write_scales(tmp_path, 1)
    server = start(tmp_path, MODE, f"--memory-budget-bytes={2 * ONE}")
    inputs = [tensor("INPUT0", ROW.reshape(1, 16))]
    with triton.InferenceServerClient(server.grpc) as client:
        for _ in range(3):
            with refused("UNAVAILABLE", "model 'broken' could not be loaded: version 1", "it is tried again after"):
                client.infer("broken", inputs)
        with refused("RESOURCE_EXHAUSTED", "model 'large' could not be loaded: no memory", "--memory-budget-bytes"):
            client.infer("large", inputs)
        ask(client, 0)
        assert client.is_server_ready()
    assert metric(server, "paternoster_on_demand_refused_total", reason="memory") == 1
    assert metric(server, "paternoster_on_demand_failed_loads_total") >= 2


def test_a_model_with_an_open_sequence_stays(start, made_models, tmp_path):
    made = made_models("tests", "--only", "total")
    shutil.copytree(made / "total", tmp_path / "total")
    write_scales(tmp_path, 1)
    server = start(tmp_path, MODE, f"--memory-budget-bytes={3 * ONE // 2}", "--load-timeout-secs=2")

    def add(client, value, **place):
        answer = client.infer("total", [tensor("INPUT0", np.array([[value]], np.int64))], sequence_id=7, **place)
        return int(answer.as_numpy("OUTPUT0").item())

    with triton.InferenceServerClient(server.grpc) as client:
        assert add(client, 3, sequence_start=True) == 3
        with refused("RESOURCE_EXHAUSTED", "'total' (", "open sequences: 1"):
            ask(client, 0)
        assert add(client, 4) == 7, "its state is still there"
        assert add(client, 5, sequence_end=True) == 12
        eventually("its memory is free for another", lambda: answers(client))
        assert states(client)["total"] == "ON_DEMAND"


def answers(client):
    """Asks the first model; returns whether it answered, rather than that there is no memory for it."""
    try:
        ask(client, 0)
    except InferenceServerException as error:
        assert "no memory" in error.message(), error
        return False
    return True


def test_what_a_separate_process_measured_counts_from_then_on(start, tmp_path):
    server = start(write_scales(tmp_path, 2), MODE, "--isolate-model-load=all")
    with triton.InferenceServerClient(server.grpc) as client:
        for _ in range(2):
            ask(client, 0)
            page = scrape(server)
            measured = on_page(page, "paternoster_model_memory_measured_bytes", model=name(0))
            estimated = on_page(page, "paternoster_model_memory_estimated_bytes", model=name(0))
            assert 0 < measured != estimated
            assert on_page(page, "paternoster_models_memory_bytes") == measured
            client.unload_model(name(0))
            eventually("its memory is given back", lambda: metric(server, "paternoster_models_memory_bytes") == 0)


def test_idle_models_are_unloaded_and_loaded_again(start, tmp_path):
    write_scales(tmp_path, 1)
    server = start(tmp_path, MODE, "--idle-unload-secs=1")
    with triton.InferenceServerClient(server.grpc) as client:
        ask(client, 0)
        eventually("it is unloaded", lambda: states(client)[name(0)] == "ON_DEMAND")
        ask(client, 0)
    assert metric(server, "paternoster_on_demand_unloaded_total", reason="idle") >= 1


def post(server, path, body):
    try:
        with urllib.request.urlopen(f"http://{server.http}{path}", body, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read()


def test_calls_without_a_key_load_nothing(start, tmp_path):
    groups = "inference,model-repository:key=secret"
    flags = [f"--grpc-restricted-protocol={groups}", f"--http-restricted-api={groups}"]
    server = start(write_scales(tmp_path, 2), MODE, *flags)
    model = f"/v2/models/{name(0)}"
    loads = ("on_demand_loads", "on_demand_misses")
    counted = lambda: [metric(server, f"paternoster_{what}_total") for what in loads]  # noqa: E731
    gets = [
        model, f"{model}/versions/1", f"{model}/config", f"{model}/ready", f"{model}/stats", f"{model}/trace/setting",
        f"/info?model={name(0)}", f"/v1/models/{name(0)}", "/v2/overview", "/v2/models/stats",
    ]  # fmt: skip
    posts = [
        f"{model}/infer", f"{model}/generate", f"{model}/generate_stream", "/v1/embeddings", "/v1/rerank", "/v2/rerank",
        "/", "/embed", "/embed_all", "/rerank", "/predict", "/tokenize", "/decode", "/v2/repository/index",
        f"/v2/repository/models/{name(0)}/load", f"{model}/trace/setting", "/v2/logging",
    ]  # fmt: skip
    body = f'{{"model": "{name(0)}", "inputs": "x", "input": "x", "query": "x", "texts": ["x"]}}'.encode()
    answers = {path: server.get(path) for path in gets} | {path: post(server, path, body) for path in posts}
    for path in (model, f"{model}/versions/1", f"{model}/config"):
        status, text = answers[path]
        assert status == 403 and b"not loaded" in text and b"expecting header 'key'" in text, (path, status, text)
    with triton.InferenceServerClient(server.grpc) as client:
        for ask_about in (client.get_model_metadata, client.get_model_config):
            with refused("UNAVAILABLE", "not loaded", "expecting header 'triton-grpc-protocol-key'"):
                ask_about(name(0))
        with refused("UNAVAILABLE", "expecting header"):
            client.infer(name(0), [tensor("INPUT0", ROW.reshape(1, 16))])
        for call in (client.is_model_ready, client.get_trace_settings, client.get_inference_statistics):
            try:
                call(name(0))
            except InferenceServerException:
                pass
        assert counted() == [0, 0]

        key = {"triton-grpc-protocol-key": "secret"}
        assert client.get_model_metadata(name(0), headers=key).inputs[0].name == "INPUT0"
        assert client.get_model_metadata(name(0)).inputs[0].name == "INPUT0", "it is loaded"
        assert server.get(f"{model}/config")[0] == 200
        assert server.get(f"/v2/models/{name(1)}", headers={"key": "secret"})[0] == 200
    assert counted() == [2, 2]


@pytest.mark.parametrize("protocol", ["gRPC", "HTTP"])
def test_a_load_ends_with_the_clients_that_wait_for_it(start, tmp_path, protocol):
    warmup = """model_warmup [{ name: "first" batch_size: 1
        inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [16] zero_data: true } } }]"""
    write_model(tmp_path, "endless", endless(), config("endless", {"INPUT0": ("FP32", [16])}, extra=warmup))
    write_scales(tmp_path, 1)
    server = start(tmp_path, MODE, "--model-load-thread-count=1", "--warmup-time-limit-secs=0", "--task-time-limit-secs=0")
    with triton.InferenceServerClient(server.grpc) as client:
        if protocol == "gRPC":
            with refused("DEADLINE_EXCEEDED"):
                client.infer("endless", [tensor("INPUT0", ROW.reshape(1, 16))], client_timeout=2)
        else:
            assert server.get("/v2/models/endless", timeout_s=2)[0] is None
        eventually("the load has ended", lambda: states(client)["endless"] == "ON_DEMAND")
        ask(client, 0)
    assert metric(server, "paternoster_on_demand_failed_loads_total") == 0
