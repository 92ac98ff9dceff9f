"""A model changes its weights repeatedly while clients use it."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc as triton
from clients import eventually, tensor
from onnx_bytes import scale

CLIENTS = 32
RELOADS = 20
SETTINGS = json.dumps({"backend": "onnxruntime", "max_batch_size": 16, "dynamic_batching": {}})


def test_every_answer_under_reload_is_one_versions_own(explicit):
    """Version k multiplies by k. An answer mixed from two versions, or an error, would show. Versions are exchanged
    atomically, so no client gets an old one after a new one."""
    server, _, operator = explicit
    operator.load_model("times", config=SETTINGS, files={"file:1/model.onnx": scale(1)})
    over = threading.Event()
    progress = [0] * CLIENTS

    def keep_asking(number):
        seen = []
        rng = np.random.default_rng(number)
        with triton.InferenceServerClient(server.grpc) as client:
            while not over.is_set():
                sent = rng.uniform(1, 2, (1 + number % 4, 16)).astype(np.float32)
                answer = client.infer("times", [tensor("INPUT0", sent)]).as_numpy("OUTPUT0")
                factor = int(round(float(answer[0, 0] / sent[0, 0])))
                np.testing.assert_array_equal(answer, sent * np.float32(factor))
                seen.append(factor)
                progress[number] += 1
        return seen

    with ThreadPoolExecutor(CLIENTS) as pool:
        asking = [pool.submit(keep_asking, number) for number in range(CLIENTS)]
        try:
            for version in range(2, RELOADS + 2):
                operator.load_model("times", config=SETTINGS, files={"file:1/model.onnx": scale(version)})
                # Each client may still get the answer to one earlier request; a second answer is of the new version.
                enough = sum(progress) + CLIENTS + 1
                eventually("an answer of the new version", lambda count=enough: sum(progress) >= count)
        finally:
            over.set()
        seen = [one.result(timeout=120) for one in asking]

    assert all(factors == sorted(factors) for factors in seen), "a client saw an old version after a new one"
    assert set().union(*seen) == set(range(1, RELOADS + 2))
