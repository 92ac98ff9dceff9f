"""Models that OpenVINO runs next to those of ONNX Runtime, and a server that does not find OpenVINO."""

import json
import subprocess
from pathlib import Path

import fetch
import numpy as np
import pins
import pytest
import tritonclient.grpc as triton
from clients import ROW, refused, tensor
from conftest import fetched
from onnx_bytes import identity
from repository_on_disk import config, write_model

PORTS = {"INPUT0": ("FP32", [16])}
BY_OPENVINO = 'parameters { key: "engine" value { string_value: "openvino" } }'


@pytest.fixture(scope="module")
def library():
    return fetched(fetch.openvino)


@pytest.fixture
def connected(start, tmp_path):
    """Returns a function from flags to (server, client): it starts a server over the test's models."""
    clients = []

    def connect(*flags, until="ready"):
        running = start(tmp_path, *flags, until=until)
        clients.append(triton.InferenceServerClient(running.grpc))
        return running, clients[-1]

    yield connect
    for client in clients:
        client.close()


def say(client, model):
    return client.infer(model, [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0").tolist() == [ROW.tolist()]


def assert_same_embeddings(*clients):
    """Asserts that the servers of two clients answer the same texts of different lengths alike."""
    ids = np.array([[101, 1996, 4937, 2003, 5777, 102], [101, 4542, 102, 0, 0, 0]], np.int64)
    inputs = [tensor("input_ids", ids), tensor("attention_mask", (ids != 0).astype(np.int64))]
    expected, embedded = (one.infer("minilm", inputs).as_numpy("sentence_embedding") for one in clients)
    np.testing.assert_allclose(embedded, expected, rtol=0, atol=1e-4)


def test_a_model_runs_by_the_engine_that_it_names(connected, made_models, client, library, tmp_path):
    made_models("examples", "--only", "minilm", "--minilm", fetch.minilm(), folder=tmp_path)
    with (tmp_path / "minilm" / "model.yaml").open("a") as written:
        written.write("engine: openvino\n")
    write_model(tmp_path, "named", identity(), config("named", PORTS, extra=BY_OPENVINO))
    write_model(tmp_path, "backend", identity(), config("backend", PORTS).replace('"onnxruntime"', '"openvino"'))
    write_model(tmp_path, "plain", identity(), config("plain", PORTS))
    running, by_openvino = connected("--openvino-library", library)
    assert all(say(by_openvino, model) for model in ("named", "backend", "plain"))
    assert f"OpenVINO is loaded library={library} " in running.log.read_text()

    assert_same_embeddings(client, by_openvino)


def test_the_oldest_runtime_answers_as_the_newest(connected, made_models, client, tmp_path):
    oldest = fetched(fetch.oldest_runtime)
    made_models("examples", "--only", "minilm", "--minilm", fetch.minilm(), folder=tmp_path)
    write_model(tmp_path, "plain", identity(), config("plain", PORTS))
    running, by_oldest = connected("--onnxruntime-library", oldest)
    loaded = Path(f"/proc/{running.pid}/maps").read_text()
    assert f"/libonnxruntime.so.{pins.ONNXRUNTIME_OLDEST.version}\n" in loaded
    assert say(by_oldest, "plain")
    assert_same_embeddings(client, by_oldest)


def test_an_uploaded_model_is_opened_by_its_engine_in_a_process_of_its_own(connected, library):
    _, client = connected("--model-control-mode=explicit", "--openvino-library", library)
    parameters = {"engine": {"string_value": "openvino"}}
    given = json.dumps({"backend": "onnxruntime", "max_batch_size": 8, "parameters": parameters})
    client.load_model("uploaded", config=given, files={"file:1/model.onnx": identity()})
    assert say(client, "uploaded")
    with refused("INVALID_ARGUMENT", "holds strings, which the engine openvino does not take"):
        client.load_model("words", config=given, files={"file:1/model.onnx": identity("BYTES")})


def test_without_the_library_everything_else_is_served(connected, tmp_path):
    write_model(tmp_path, "plain", identity(), config("plain", PORTS))
    write_model(tmp_path, "named", identity(), config("named", PORTS, extra=BY_OPENVINO))
    missing = tmp_path.parent / "nowhere" / "libopenvino_c.so"
    running, client = connected("--openvino-library", missing, until="settled")
    assert say(client, "plain")
    reason = f"OpenVINO library '{missing}' (from --openvino-library) does not exist"
    states = {entry.name: entry.reason for entry in client.get_model_repository_index().models}
    assert states == {"plain": "", "named": reason}
    with refused("NOT_FOUND", "named"):
        say(client, "named")
    assert [line for line in running.log.read_text().splitlines() if reason in line], "the log says it too"


def test_profile_compares_the_engines(program, library, tmp_path):
    write_model(tmp_path, "plain", identity(), config("plain", PORTS, max_batch_size=2))
    command = [
        program, "profile", "--engines", "--budget-s", "1", "--model-repository", tmp_path, "--model", "plain",
        "--onnxruntime-library", fetch.runtime(), "--openvino-library", library, "--json",
    ]  # fmt: skip
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)
    measured = [(times["engine"], times["precision"]) for times in table["engines"]]
    assert measured[:2] == [("onnxruntime", "ieee"), ("openvino", "ieee")]
    for times in table["engines"]:
        assert times["refused"] is None
        assert [point["rows"] for point in times["points"]] == [1, 2]
        assert all(point["deviation"] <= 1e-2 and point["median_ns"] > 0 for point in times["points"])
