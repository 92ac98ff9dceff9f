"""What clients do wrong is no failure of a model: it is refused, no model runs for it, and no counter of failures, which
alerts read, grows."""

import json
import urllib.error
import urllib.request

import fetch
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import scrape, tensor
from conftest import serving
from repository_on_disk import lay_out, write_pipeline
from tritonclient.utils import InferenceServerException

LONG = "word " * 2000
ENCODER, RERANKER = "plain", "reranker"
#: Bodies that are wrong, by route.
BODIES = [
    ("/embed", {"inputs": "a", "dimensions": 999}),
    ("/embed", {"inputs": "a", "dimensions": 0}),
    ("/embed", {"inputs": ["a", "b"], "prompt_name": "unknown"}),
    ("/embed", {"inputs": [LONG], "truncate": False}),
    ("/embed", {"inputs": []}),
    ("/embed_all", {"inputs": [LONG], "truncate": False}),
    ("/v1/embeddings", {"input": "a", "dimensions": 999}),
    ("/v1/embeddings", {"input": [[999999]]}),
    ("/v1/embeddings", {"input": [[1, -1]]}),
    ("/v1/embeddings", {"input": [[]]}),
    ("/", {"inputs": "a", "prompt_name": "unknown"}),
    ("/rerank", {"model": RERANKER, "query": "a", "texts": []}),
    ("/rerank", {"model": RERANKER, "query": LONG, "texts": ["a"], "truncate": False}),
    ("/v1/rerank", {"model": RERANKER, "query": "a", "documents": ["a"], "top_n": "one"}),
    ("/predict", {"inputs": 1}),
    ("/tokenize", {"inputs": 1}),
    ("/decode", {"ids": [[-1]]}),
    ("/v2/models/plain/infer", {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "b"]}]}),
    ("/v2/models/plain/infer", {"inputs": [{"name": "TOKENS", "datatype": "INT64", "shape": [1, 1], "data": [999999]}]}),
    ("/v2/models/minilm/infer", {"inputs": [{"name": "input_ids", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}),
    ("/v2/models/picture/infer", {"inputs": [{"name": "IMAGE", "datatype": "BYTES", "shape": [1, 1], "data": ["none"]}]}),
    ("/v2/models/plain/generate", {"TEXT": "a", "DIMENSIONS": 999}),
    ("/v2/models/plain/generate_stream", {"TEXT": "a", "PROMPT": "unknown"}),
]  # fmt: skip


def one(name, value, datatype):
    return tensor(name, np.array([[value]], datatype))


#: Inputs that are wrong, by model.
INPUTS = {
    "more numbers than a vector has": (ENCODER, [one("TEXT", b"a", object), one("DIMENSIONS", 999, np.int32)]),
    "none of its prompts": (ENCODER, [one("TEXT", b"a", object), one("PROMPT", b"unknown", object)]),
    "a text that may not be cut": (ENCODER, [one("TEXT", LONG.encode(), object), one("TRUNCATE", False, bool)]),
    "no token": (ENCODER, [one("TOKENS", 999999, np.int64)]),
    "text and tokens": (ENCODER, [one("TEXT", b"a", object), one("TOKENS", 1, np.int64)]),
    "neither": (ENCODER, [one("NORMALIZE", True, bool)]),
    "no UTF-8": (ENCODER, [one("TEXT", b"\xff", object)]),
    "no image": ("picture", [one("IMAGE", b"none", object)]),
    "another type": ("minilm", [one("input_ids", 1, np.int32), one("attention_mask", 1, np.int32)]),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, made_models, program):
    folder = tmp_path_factory.mktemp("faults")
    made_models("examples", "--only", "minilm,reranker", "--minilm", fetch.minilm(), folder=folder)
    lay_out(folder / ENCODER, folder / "minilm", fetch.minilm())
    step = "image: { dtype: UINT8, resize: { width: 8, height: 8 }, inputs: { IMAGE: IMAGE }, outputs: { pixels: pixels } }"
    write_pipeline(folder, "picture", {"IMAGE": ("BYTES", [1])}, {"pixels": ("UINT8", [3, 8, 8])}, [step])
    with serving(folder, program=program) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_ran_or_failed(server):
    """Checks that no model has run, and none has failed."""
    yield
    families = "nv_inference_request_failure{", "nv_inference_exec_count{"
    counted = [line for line in scrape(server).splitlines() if line.startswith(families)]
    assert len(counted) >= 8 and all(line.endswith(" 0") for line in counted), "\n".join(counted)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_wrong_body_is_refused(server, path, body):
    given = body if "model" in body or path.startswith("/v2/") else {**body, "model": ENCODER}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{server.http}{path}", json.dumps(given).encode(), headers)
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=60)
    assert refusal.value.code in (400, 413, 422), refusal.value.read()


@pytest.mark.parametrize("what", INPUTS)
def test_a_wrong_input_is_refused(server, what):
    model, inputs = INPUTS[what]
    with triton.InferenceServerClient(server.grpc) as client, pytest.raises(InferenceServerException) as refusal:
        client.infer(model, inputs)
    assert refusal.value.status() == "StatusCode.INVALID_ARGUMENT", refusal.value
