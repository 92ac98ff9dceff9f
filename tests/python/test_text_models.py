"""Models that take texts: compared with the tokenizer of Hugging Face and a NumPy computation, and asked by the clients
of other servers."""

import base64
import functools
import http.client
import json
import random
import shutil
import subprocess
import urllib.error
import urllib.request

import cohere
import fetch
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton
from clients import change, metric, on_page, refused, scrape, statistics, tensor
from conftest import ROOT, fetched, serving
from minilm_reference import embed
from onnx_bytes import constant, external, model, node, port
from repository_on_disk import lay_out, write_model
from tokenizers import Tokenizer

TOLERANCE = 1e-5
MAX_TOKENS = 256
ODD = [
    "", " ", "a", "word " * 1_000, "😀 emoji 👩‍👩‍👧 in a row", "שלום עולם, طريق طويل", "zero\0byte", "ＦＵＬＬ width é ü ß",
    "x" * 3000, "[CLS] not special [SEP]", "line\nbreak\ttab",
]  # fmt: skip
WORDS = "the cat sat on a mat while rates rose and trains left for the sea under clouds of unbelievable antiquity".split()


def random_texts(count):
    draw = random.Random(7)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 40))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer.from_file(str(fetch.minilm() / "tokenizer.json"))
    made.no_padding()
    made.enable_truncation(MAX_TOKENS)
    return made


@pytest.fixture(scope="module")
def reference(tokenizer):
    """Returns the function that computes the embeddings of texts, each by itself."""

    @functools.lru_cache(maxsize=None)
    def of_one(text):
        ids = tokenizer.encode(text).ids
        return embed(fetch.minilm(), [ids], [[1] * len(ids)])

    def of(texts):
        return np.concatenate([of_one(text) for text in texts])

    return of


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory, made_models):
    """Returns a repository with the encoder as Hugging Face lays it out, and the example models that take texts."""
    folder = tmp_path_factory.mktemp("texts")
    made_models(
        "examples", "--only", "minilm,sentences,triage,urgency,desk,reranker", "--minilm", fetch.minilm(), folder=folder
    )
    for name in ("plain", "left"):
        lay_out(folder / name, folder / "minilm", fetch.minilm())
    (folder / "left" / "model.yaml").write_text("text: { truncate: left, max_tokens: 16 }\n")
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Returns a directory as Hugging Face lays it out, too, of an encoder without weights."""
    folder = tmp_path_factory.mktemp("small")
    write_model(folder, "graph", token_states(vector=True))
    lay_out(folder / "encoder", folder / "graph", fetch.minilm())
    return folder / "encoder"


@pytest.fixture(scope="module")
def texts_server(laid_out, program):
    # Less than is reserved for a text of 5 MiB that is tokenized, and more than for the others, of 2 MiB at most.
    with serving(laid_out, "--max-pending-bytes=2000000000", program=program) as running:
        yield running


@pytest.fixture
def texts_client(texts_server):
    with triton.InferenceServerClient(texts_server.grpc) as connected:
        yield connected


def strings(name, texts):
    return tensor(name, np.array([[text.encode()] for text in texts], dtype=object))


def ask(server, method, path, body=None):
    """Returns status and JSON."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{server.http}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def post(server, path, body):
    return ask(server, "POST", path, body)


@pytest.mark.parametrize("name", ["plain", "sentences"])
def test_texts_have_the_vectors_of_the_reference(texts_client, reference, tokenizer, name):
    texts = ODD + random_texts(12)
    answer = texts_client.infer(name, [strings("TEXT", texts)])
    np.testing.assert_allclose(answer.as_numpy("embedding"), reference(texts), rtol=0, atol=TOLERANCE)
    lengths = [len(tokenizer.encode(text).ids) for text in texts]
    assert answer.as_numpy("tokens").ravel().tolist() == lengths


def test_each_text_is_batched_by_itself_and_a_request_counts_once(texts_client):
    before = statistics(texts_client, "plain")
    texts_client.infer("plain", [strings("TEXT", random_texts(24))])
    counts = change(before, statistics(texts_client, "plain"))
    assert (counts["success"], counts["inference"]) == (1, 24)
    assert sum(size * count for size, count in counts["batches"].items()) == 24, "each in one execution"


def test_tokens_and_padding_are_counted(texts_server, texts_client, tokenizer):
    texts = ["a", "a cat on a mat", "rates rose while trains left for the sea"]
    names = "paternoster_tokens_total", "paternoster_padding_tokens_total"

    def read():
        return [metric(texts_server, name, model="plain", version="1") for name in names]

    # One text fills its batch.
    before = read()
    texts_client.infer("plain", [strings("TEXT", texts[:1])])
    assert np.subtract(read(), before).tolist() == [3, 0]
    lengths = [len(tokenizer.encode(text).ids) for text in texts]
    counts = statistics(texts_client, "plain")
    before = read()
    texts_client.infer("plain", [strings("TEXT", texts)])
    tokens, padding = np.subtract(read(), before).tolist()
    assert tokens == sum(lengths)
    sizes = change(counts, statistics(texts_client, "plain"))["batches"]
    # What runs together is the batcher's choice; alone, none is padded.
    assert (padding > 0) == (max(sizes) > 1), (padding, sizes)
    assert padding <= len(texts) * max(lengths) - tokens


def test_the_options_of_a_request(texts_client, reference, tokenizer):
    texts = ["a cat on a mat", "rates rose"]
    whole = reference(texts)
    cut = texts_client.infer(
        "plain", [strings("TEXT", texts), tensor("DIMENSIONS", np.array([[8], [8]], np.int32))]
    ).as_numpy("embedding")
    expected = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(cut, expected, rtol=0, atol=TOLERANCE)
    ids = np.array([tokenizer.encode(texts[0]).ids])
    by_tokens = texts_client.infer("plain", [tensor("TOKENS", ids)]).as_numpy("embedding")
    np.testing.assert_allclose(by_tokens, whole[:1], rtol=0, atol=TOLERANCE)
    with refused("INVALID_ARGUMENT", "at most 256 tokens", "302"):
        texts_client.infer("plain", [strings("TEXT", ["word " * 300]), tensor("TRUNCATE", np.array([[False]]))])
    with refused("INVALID_ARGUMENT", "row 1", "UTF-8", "byte 1"):
        broken = np.array([[b"fine"], [b"a\xff"]], dtype=object)
        texts_client.infer("plain", [tensor("TEXT", broken)])
    with refused("INVALID_ARGUMENT", "at most 1048576 bytes"):
        texts_client.infer("plain", [strings("TEXT", ["x" * (2 << 20)])])
    with refused("INVALID_ARGUMENT", "at most 1048576 tokens", "1048577"):
        texts_client.infer("plain", [tensor("TOKENS", np.full((1, (1 << 20) + 1), 101))])
    with refused("INVALID_ARGUMENT", "TEXT or TOKENS"):
        texts_client.infer("plain", [strings("PAIR", ["alone"])])
    with refused("INVALID_ARGUMENT", "dimensions from 1 to 384"):
        texts_client.infer("plain", [strings("TEXT", ["x"]), tensor("DIMENSIONS", np.array([[385]], np.int32))])
    with refused("INVALID_ARGUMENT", "no prompt 'query'"):
        texts_client.infer("plain", [strings("TEXT", ["x"]), strings("PROMPT", ["query"])])


def test_the_clients_of_openai(texts_server, reference):
    texts = ["a cat on a mat", "", "rates rose"]
    with openai.OpenAI(base_url=f"http://{texts_server.http}/v1", api_key="none", max_retries=0) as client:
        # The client asks for base64 unless it is told otherwise.
        packed = client.embeddings.create(model="plain", input=texts)
        plain = client.embeddings.create(model="plain", input=texts, encoding_format="float")
        vectors = np.array([one.embedding for one in packed.data])
        np.testing.assert_allclose(vectors, reference(texts), rtol=0, atol=TOLERANCE)
        np.testing.assert_array_equal(vectors.astype(np.float32), np.array([one.embedding for one in plain.data], np.float32))
        assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0
        assert len(client.embeddings.create(model="plain", input="x", dimensions=16).data[0].embedding) == 16
        assert {"plain", "sentences", "reranker"} <= {one.id for one in client.models.list()}
        with pytest.raises(openai.NotFoundError, match="nowhere"):
            client.embeddings.create(model="nowhere", input="x")
        with pytest.raises(openai.BadRequestError, match="takes texts|take texts"):
            client.embeddings.create(model="minilm", input="x")
        with pytest.raises(openai.BadRequestError, match="at most 2048 texts"):
            client.embeddings.create(model="plain", input=["x"] * 2049)


def test_the_javascript_client_of_openai(texts_server, reference, tokenizer, tmp_path):
    javascript, installed = fetched(fetch.node), fetched(fetch.javascript_clients)
    # Packages are looked for from where the program is.
    (tmp_path / "node_modules").symlink_to(installed / "node_modules")
    program = shutil.copy(ROOT / "tests" / "javascript" / "embeddings.mjs", tmp_path)
    texts = ["a cat on a mat", "", "rates rose"]
    words = [javascript, program, f"http://{texts_server.http}/v1", json.dumps(texts)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    np.testing.assert_allclose(answer["float"], reference(texts), rtol=0, atol=TOLERANCE)
    floats = np.array(answer["float"], np.float32)
    np.testing.assert_array_equal(np.array(answer["unpacked"], np.float32), floats)
    packed = [np.frombuffer(base64.b64decode(one), "<f4") for one in answer["base64"]]
    np.testing.assert_array_equal(packed, floats)
    tokens = sum(len(tokenizer.encode(text).ids) for text in texts)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer["refusal"] == {"name": "NotFoundError", "status": 404, "code": "model_not_found"}
    assert {"plain", "reranker"} <= set(answer["models"])


def test_the_client_of_openai_reads_why_there_is_no_route(texts_server):
    for method, path, expected in (("POST", "/v1/nowhere", 404), ("DELETE", "/v1/embeddings", 405)):
        status, answer = ask(texts_server, method, path)
        assert status == expected
        assert answer["error"]["type"] == "invalid_request_error" and path in answer["error"]["message"], answer


def test_info_is_about_one_model_and_names_all(texts_server):
    status, first = ask(texts_server, "GET", "/info")
    assert status == 200 and first["model_id"] == first["models"][0]
    assert {"plain", "sentences", "reranker"} <= set(first["models"]) and "minilm" not in first["models"]
    status, reranker = ask(texts_server, "GET", "/info?model=reranker")
    assert status == 200 and reranker["model_type"] == {"reranker": {}} and reranker["max_input_length"] == 512
    status, refusal = ask(texts_server, "GET", "/info?model=minilm")
    assert status == 404 and "'minilm'" in refusal["error"]


def test_many_texts_come_back_in_order(texts_server, reference):
    texts = random_texts(100)
    status, answer = post(texts_server, "/v1/embeddings", {"model": "plain", "input": texts, "encoding_format": "base64"})
    assert status == 200 and [one["index"] for one in answer["data"]] == list(range(100))
    vectors = np.array([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer["data"]])
    np.testing.assert_allclose(vectors[::10], reference(texts[::10]), rtol=0, atol=TOLERANCE)


def test_the_routes_of_text_embeddings_inference(texts_server, reference):
    status, vectors = post(texts_server, "/embed", {"model": "plain", "inputs": ["a cat", "a dog"]})
    assert status == 200
    np.testing.assert_allclose(vectors, reference(["a cat", "a dog"]), rtol=0, atol=TOLERANCE)
    status, one = post(texts_server, "/embed", {"model": "plain", "inputs": "a cat", "normalize": False, "truncate": True})
    assert status == 200 and np.shape(one) == (1, 384)
    status, several = post(texts_server, "/embed", {"inputs": "a cat"})
    assert status == 422 and several["error_type"] == "Validation" and "plain" in several["error"]

    asked = {"query": "a cat", "texts": ["a dog", "a kitten", "rates rose"], "return_text": True}
    status, ranked = post(texts_server, "/rerank", asked)
    assert status == 200 and sorted(one["index"] for one in ranked) == [0, 1, 2]
    scores = [one["score"] for one in ranked]
    assert scores == sorted(scores, reverse=True) and all(0 < score < 1 for score in scores)
    assert all(one["text"] == asked["texts"][one["index"]] for one in ranked)
    status, raw = post(texts_server, "/rerank", {**asked, "raw_scores": True})
    logits = {one["index"]: one["score"] for one in raw}
    for one in ranked:
        assert one["score"] == pytest.approx(1 / (1 + np.exp(-logits[one["index"]])), rel=1e-5)
    status, predicted = post(texts_server, "/predict", {"inputs": [["a cat", "a dog"], ["alone"]], "raw_scores": True})
    assert status == 200 and [len(one) for one in predicted] == [1, 1]
    assert predicted[0][0]["label"] == "LABEL_0" and predicted[0][0]["score"] == pytest.approx(logits[0], rel=1e-5)
    assert post(texts_server, "/predict", {"inputs": "alone", "raw_scores": True})[1] == predicted[1]
    status, refusal = post(texts_server, "/embed", ["plain", "a cat"])
    assert status == 422 and refusal["error"] == "expected a JSON object"
    status, refusal = post(texts_server, "/embed", {"inputs": 5})
    assert status == 422 and "inputs" in refusal["error"]
    status, mixed = post(texts_server, "/embed", {"model": "plain", "inputs": ["a cat", [101, 1037, 4937, 102]]})
    assert status == 200 and mixed[0] == pytest.approx(mixed[1], abs=TOLERANCE), "the same text"
    status, refusal = post(texts_server, "/embed", {"model": "plain", "inputs": ["a cat", None]})
    assert status == 422 and refusal["error"].startswith("inputs[1]: invalid type: null"), refusal


def test_the_root_answers_by_the_kind_of_the_model_and_health_is_where_probes_look(texts_server):
    texts = {"model": "plain", "inputs": "a cat"}
    assert post(texts_server, "/", texts) == post(texts_server, "/embed", texts)
    pairs = {"model": "reranker", "query": "a cat", "texts": ["a dog", "a kitten"]}
    assert post(texts_server, "/", pairs) == post(texts_server, "/rerank", pairs)
    status, several = post(texts_server, "/", {"inputs": "a cat"})
    assert status == 422 and "plain" in several["error"] and "reranker" in several["error"]
    for path in ("/health", "/ping"):
        with urllib.request.urlopen(f"http://{texts_server.http}{path}", timeout=60) as answer:
            assert (answer.status, answer.read()) == (200, b"")
    for method, path, expected in (("POST", "/embed_sparse", 404), ("GET", "/embed", 405)):
        status, refusal = ask(texts_server, method, path)
        assert (status, refusal["error_type"]) == (expected, "Validation")


def test_tokenize_and_decode_as_text_embeddings_inference_has_them(texts_server, tokenizer):
    texts = ["unbelievable cats, é 😀", "", "rates rose"]
    for name in ("plain", "sentences"):
        status, answer = post(texts_server, "/tokenize", {"model": name, "inputs": texts})
        assert status == 200
        for text, tokens in zip(texts, answer):
            encoding = tokenizer.encode(text)
            assert [token["id"] for token in tokens] == encoding.ids
            assert [token["special"] for token in tokens] == [mask == 1 for mask in encoding.special_tokens_mask]
            for token, place, label in zip(tokens, encoding.offsets, encoding.tokens):
                if token["special"]:
                    assert (token["text"], token["start"], token["stop"]) == (label, None, None)
                else:
                    assert (token["start"], token["stop"]) == place and token["text"] == text[slice(*place)]
    status, (plain,) = post(texts_server, "/tokenize", {"model": "plain", "inputs": texts[2], "add_special_tokens": False})
    assert status == 200 and [token["text"] for token in plain] == ["rates", "rose"]
    # None is cut off, as for embeddings.
    status, (long,) = post(texts_server, "/tokenize", {"model": "plain", "inputs": "word " * 1000})
    assert status == 200 and len(long) == 1002

    ids = tokenizer.encode("a cat on a mat").ids
    status, decoded = post(texts_server, "/decode", {"model": "plain", "ids": ids})
    assert status == 200 and decoded == ["a cat on a mat"]
    status, decoded = post(texts_server, "/decode", {"model": "plain", "ids": [ids, ids[:2]], "skip_special_tokens": False})
    assert status == 200 and decoded == [tokenizer.decode(ids, skip_special_tokens=False), "[CLS] a"]

    for path, body, reason in (
        ("/tokenize", {"model": "plain", "inputs": "x" * (5 << 20)}, "at most 1048576 bytes, but it has 5242880"),
        ("/embed", {"model": "plain", "inputs": "x" * (5 << 20)}, "at most 1048576 bytes, but it has 5242880"),
        ("/embed", {"model": "plain", "inputs": [7] * 1_048_577}, "inputs: expected at most 1048576 tokens"),
        ("/embed", {"model": "plain", "inputs": ["a", [1, -2]]}, "inputs[1]: expected ids of the vocabulary's 30522 tokens"),
        ("/embed", {"model": "plain", "inputs": ["a", []]}, "inputs[1]: expected at least one token"),
        ("/embed", {"model": "plain", "inputs": [[1], [1] * 300], "truncate": False}, "inputs[1]: expected at most 256 tokens"),
        ("/embed", {"model": "plain", "inputs": ["a", "a " * 300], "truncate": False}, "inputs[1]: expected at most 256 tokens"),
        ("/tokenize", {"model": "plain", "inputs": []}, "inputs: expected at least one text"),
        ("/tokenize", {"model": "plain", "inputs": ["x"] * 2049}, "at most 2048 texts"),
        ("/tokenize", {"model": "plain", "inputs": "x" * (2 << 20)}, "at most 1048576 bytes"),
        ("/tokenize", {"model": "plain", "inputs": "x", "prompt_name": "query"}, "no prompt 'query'"),
        ("/tokenize", {"model": "minilm", "inputs": "x"}, "does not take texts"),
        ("/tokenize", {"model": "plain", "inputs": 5}, "inputs: invalid type: integer `5`, expected a string or a list"),
        ("/decode", {"model": "plain", "ids": ids * 75_000}, "at most 1048576 bytes"),
        ("/decode", {"model": "plain", "ids": [ids * 20_000] * 4}, "at most 1048576 bytes"),
        ("/decode", {"model": "plain", "ids": "a"}, "ids: list 0: expected numbers of tokens, but found a text"),
        ("/tokenize", {"model": "plain", "inputs": ["x", 5]}, "inputs[1]: invalid type: integer `5`, expected a string"),
        ("/decode", {"model": "plain", "ids": [[1], [2, "a"]]}, 'ids[1][1]: invalid type: string "a"'),
        ("/decode", {"model": "plain", "ids": [[1], [-1]]}, "ids: list 1: expected numbers of tokens from 0 to"),
    ):
        status, refusal = post(texts_server, path, body)
        assert status == 422 and refusal["error_type"] == "Validation", (path, status, refusal)
        assert reason in refusal["error"], refusal
    assert on_page(scrape(texts_server), "paternoster_pending_bytes") == 0


def test_the_clients_of_cohere(texts_server):
    documents = ["a dog", "a kitten", "rates rose"]
    client = cohere.ClientV2(api_key="none", base_url=f"http://{texts_server.http}")
    ranked = client.rerank(model="reranker", query="a cat", documents=documents, top_n=2)
    assert len(ranked.results) == 2
    assert ranked.results[0].relevance_score >= ranked.results[1].relevance_score
    status, all_ranked = post(texts_server, "/v1/rerank", {"query": "a cat", "documents": documents, "return_documents": True})
    assert status == 200 and len(all_ranked["results"]) == 3
    assert all(one["document"]["text"] == documents[one["index"]] for one in all_ranked["results"])
    assert all_ranked["results"][0]["index"] == ranked.results[0].index


def test_the_vectors_of_cohere_s_client(texts_server):
    texts = ["a dog", "a kitten", "rates rose"]
    client = cohere.ClientV2(api_key="none", base_url=f"http://{texts_server.http}")
    asked = {"model": "plain", "input_type": "search_document", "embedding_types": ["float"]}
    answer = client.embed(texts=texts, **asked)
    status, expected = post(texts_server, "/embed", {"model": "plain", "inputs": texts})
    assert status == 200
    np.testing.assert_allclose(answer.embeddings.float_, expected, atol=1e-6)
    assert answer.texts == texts and answer.meta.billed_units.input_tokens > len(texts)
    inputs = [{"content": [{"type": "text", "text": text}]} for text in texts]
    assert client.embed(inputs=inputs, **asked).embeddings.float_ == answer.embeddings.float_
    for body, reason in (
        ({"texts": texts, "embedding_types": ["int8"]}, "embedding_types to be [\"float\"], but found 'int8'"),
        ({"texts": texts, "input_type": "image"}, "expected input_type to be search_query"),
        ({"texts": texts, "truncate": "MIDDLE"}, 'expected truncate to be "NONE", "START" or "END"'),
        ({"texts": ["a", "word " * 2000], "truncate": "NONE"}, "texts[1]"),
        ({"texts": texts, "output_dimension": 9999}, "dimensions"),
        ({"texts": texts, "inputs": inputs}, "expected either texts or inputs"),
        ({"inputs": [{"content": [{"type": "image_url"}]}]}, "inputs[0]: expected content of type"),
        ({}, "expected either texts or inputs"),
        ({"texts": ["a", 5]}, "texts[1]"),
    ):
        status, refusal = post(texts_server, "/v2/embed", {"model": "plain"} | body)
        assert status == 400 and reason in refusal["message"], (body, status, refusal)


@pytest.mark.parametrize(
    "words", [["plain", "--length=5"], ["reranker", "--length=5", "--fill=PAIR=a word", "--shape=TEXT:1"]]
)
def test_texts_are_measured(texts_server, program, words):
    command = [program, "bench", "--url", texts_server.grpc, "--model", *words, "--concurrency=2"]
    command += ["--seconds=0.5", "--warm-up-seconds=0", "--rounds=1", "--samples=8", "--json"]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    (figures,) = json.loads(ended.stdout)["loads"][0]["policies"]
    assert figures["total"]["requests_per_s"] > 0, figures


def test_a_pair_is_tokenized_as_the_library_does(texts_client, tokenizer):
    """The cross-encoder has random weights: it answers alike for the tokens of the library, and by texts."""
    pairs = [("a cat", "a dog"), ("word " * 400, "short"), ("", "x"), ("a cat", "")]
    first, second = zip(*pairs)
    before = texts_client.infer("reranker", [strings("TEXT", first), strings("PAIR", second)])
    counts = [len(tokenizer.encode(one, two).ids) for one, two in pairs]
    # The reranker takes 512 tokens, and the reference is cut to 256.
    assert before.as_numpy("tokens").ravel().tolist() == [counts[0], 404, *counts[2:]]
    swapped = texts_client.infer("reranker", [strings("TEXT", second[:1]), strings("PAIR", first[:1])])
    assert swapped.as_numpy("logits")[0, 0] != before.as_numpy("logits")[0, 0]


def test_rows_that_are_not_urgent_skip_the_last_model(texts_client):
    texts = random_texts(40)
    before = statistics(texts_client, "desk")
    answer = texts_client.infer("triage", [strings("TEXT", texts)])
    urgency, desk = answer.as_numpy("urgency").ravel(), answer.as_numpy("desk")
    assert 0 < (urgency >= 0.5).sum() < len(texts), "some are, and some are not"
    np.testing.assert_allclose(desk.sum(axis=1), (urgency >= 0.5).astype(np.float32), atol=1e-5)
    assert change(before, statistics(texts_client, "desk"))["inference"] == (urgency >= 0.5).sum()


def test_nothing_is_held_when_all_have_ended(texts_server, texts_client):
    texts_client.infer("plain", [strings("TEXT", random_texts(20))])
    assert on_page(scrape(texts_server), "paternoster_pending_bytes") == 0


def token_classifier():
    """Scores of two classes for each token: its number, and one more."""
    ids, mask = port("input_ids", "INT64", ("batch", "tokens")), port("attention_mask", "INT64", ("batch", "tokens"))
    nodes = [
        node("Add", ["input_ids", "attention_mask"], ["more"]),
        node("Unsqueeze", ["input_ids", "last"], ["one"]),
        node("Unsqueeze", ["more", "last"], ["other"]),
        node("Concat", ["one", "other"], ["both"], axis=2),
        node("Cast", ["both"], ["logits"], to=1),
    ]
    return model(nodes, [ids, mask], [port("logits", "FP32", ("batch", "tokens", 2))], [constant("last", [2])])


def token_states(vector=False):
    """The states of a token: its number, that plus one, and nothing. With `vector`, one of the text, too."""
    ids, mask = port("input_ids", "INT64", ("batch", "tokens")), port("attention_mask", "INT64", ("batch", "tokens"))
    nodes = [
        node("Add", ["input_ids", "attention_mask"], ["more"]),
        node("Unsqueeze", ["input_ids", "last"], ["one"]),
        node("Unsqueeze", ["more", "last"], ["other"]),
        node("Sub", ["one", "one"], ["nothing"]),
        node("Concat", ["one", "other", "nothing"], ["all"], axis=2),
        node("Cast", ["all"], ["token_embeddings"], to=1),
        *([node("ReduceMax", ["token_embeddings"], ["sentence_embedding"], axes=[1], keepdims=0)] if vector else []),
    ]
    outputs = [port("token_embeddings", "FP32", ("batch", "tokens", 3))]
    outputs += [port("sentence_embedding", "FP32", ("batch", 3))] if vector else []
    return model(nodes, [ids, mask], outputs, [constant("last", [2])])


OWN_PIPELINE = """max_batch_size: 8
inputs: [{ name: TEXT, dtype: BYTES, dims: [1] }]
outputs: [{ name: embedding, dtype: FP32, dims: [-1] }]
pipeline:
  - tokenize: { inputs: { TEXT: TEXT }, outputs: { ids: ids, mask: mask } }
  - model: { name: states, inputs: { input_ids: ids, attention_mask: mask }, outputs: { token_embeddings: hidden } }
  - pool: { pooling: max, inputs: { states: hidden }, outputs: { embedding: embedding } }
"""


@pytest.fixture(scope="module")
def small_server(tmp_path_factory, program):
    """Runs a server over small graphs: of classes of texts, of classes of tokens, and of states of tokens."""
    folder = tmp_path_factory.mktemp("graphs")
    for kind in ("multi_label_classification", "single_label_classification"):
        write_classifier(folder, kind.split("_")[0], CLASSES, problem_type=kind)
    write_classifier(folder, "rank", [60.0])
    for name, prompts in (("plain", "{}"), ("prompted", '{"prompts": {"p": "passage: "}, "default_prompt_name": "p"}')):
        write_model(folder, name, token_classifier())
        (folder / name / "config.json").write_text('{"architectures": ["BertForTokenClassification"]}')
        (folder / name / "config_sentence_transformers.json").write_text(prompts)
        (folder / name / "model.yaml").write_text("text: {}\n")
    for name, vector in (("pooled", False), ("both", True), ("states", False)):
        write_model(folder, name, token_states(vector))
    (folder / "own").mkdir()
    (folder / "own" / "model.yaml").write_text(OWN_PIPELINE)
    for name in ("pooled", "both"):
        (folder / name / "model.yaml").write_text("text: { normalize: true }\n")
    for name in ("plain", "prompted", "pooled", "both", "own"):
        shutil.copy(fetch.minilm() / "tokenizer.json", folder / name)
    with serving(folder, program=program) as running:
        yield running


def test_vectors_of_all_tokens_as_text_embeddings_inference_gives_them(small_server, texts_server, tokenizer):
    server = small_server
    texts = ["a", "", *random_texts(80), "rates rose while trains left"]
    expected = [[[one, one + 1, 0] for one in tokenizer.encode(text).ids] for text in texts]
    for name in ("pooled", "both", "own"):
        status, found = post(server, "/embed_all", {"model": name, "inputs": texts})
        assert (status, found) == (200, expected), name
        assert post(server, "/embed_all", {"model": name, "inputs": texts[2]}) == (200, expected[2:3])
    counted = metric(server, "nv_inference_request_success", model="pooled")
    assert counted == len(texts) + 1, "one request for each text"
    cut = post(server, "/embed_all", {"model": "pooled", "inputs": "word " * 600, "truncate": False})
    assert cut[0] == 422 and "at most 512 tokens" in cut[1]["error"]

    status, refusal = post(texts_server, "/embed_all", {"model": "plain", "inputs": "a"})
    assert (status, refusal["error_type"]) == (422, "Validation")
    assert refusal["error"] == "the model 'plain' gives vectors of texts, and none of their tokens"
    status, refusal = post(server, "/embed_all", {"model": "states", "inputs": "a"})
    assert status == 422 and "does not take texts" in refusal["error"]
    assert post(server, "/embed_all", {"model": "nowhere", "inputs": "a"})[0] == 404
    assert metric(server, "paternoster_pending_bytes") == 0


def many_classes(weights):
    """Numbers of classes: the given ones, times the largest token of the text."""
    nodes = [
        node("Cast", ["input_ids"], ["numbers"], to=1),
        node("ReduceMax", ["numbers"], ["largest"], axes=[1], keepdims=1),
        node("Mul", ["largest", "weights"], ["logits"]),
    ]
    inputs = [port("input_ids", "INT64", ("batch", "tokens"))]
    outputs = [port("logits", "FP32", ("batch", len(weights)))]
    return model(nodes, inputs, outputs, [constant("weights", np.array([weights], np.float32))])


TWO_WORDS = {
    "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "b": 2}, "unk_token": "?"},
}  # fmt: skip


#: Weights of classes.
CLASSES = [1.2, 0.8, -2.0, 100.0, 60.0, 90.0]


def write_classifier(folder, name, weights, **config):
    made = write_model(folder, name, many_classes(weights))
    (made / "model.yaml").write_text("text: { task: classify }\n")
    (made / "config.json").write_text(json.dumps({"architectures": ["BertForSequenceClassification"], **config}))
    (made / "tokenizer.json").write_text(json.dumps(TWO_WORDS))


def test_an_answer_of_many_classes_is_reserved_as_it_is_written(start, tmp_path):
    write_classifier(tmp_path, "classes", np.linspace(0, 1, 20_000))
    server = start(tmp_path, "--max-pending-bytes=8388608")
    status, one = post(server, "/predict", {"inputs": "a"})
    assert status == 200 and len(one) == 20_000 and one[0]["label"] == "LABEL_19999"
    # Its numbers would fit: 800 kB.
    status, refusal = post(server, "/predict", {"inputs": [["a"]] * 10})
    assert (status, refusal["error_type"]) == (413, "Validation"), refusal
    # They would not, and the model does not run.
    ran = lambda: ask(server, "GET", "/v2/models/classes/stats")[1]["model_stats"][0]["inference_count"]  # noqa: E731
    before = ran()
    status, refusal = post(server, "/predict", {"inputs": [["a"]] * 100})
    assert (status, refusal["error_type"]) == (413, "Validation"), refusal
    assert ran() == before
    assert metric(server, "paternoster_pending_bytes") == 0


def test_classes_that_may_be_true_together_have_a_score_each(small_server):
    of = lambda name, **more: {one["label"]: one["score"] for one in post(small_server, "/predict", {"model": name, "inputs": "a", **more})[1]}  # noqa: E731
    multi = of("multi")
    for number, weight in enumerate(CLASSES):
        assert multi[f"LABEL_{number}"] == pytest.approx(1 / (1 + np.exp(-weight)), rel=1e-5)
    # Three of them are 1.0, and still in the order of the model's numbers.
    assert list(multi) == [f"LABEL_{number}" for number in (3, 5, 4, 0, 1, 2)]
    assert sum(of("single").values()) == pytest.approx(1, rel=1e-5)
    raw = of("multi", raw_scores=True)
    assert raw == of("single", raw_scores=True)
    assert raw["LABEL_2"] == pytest.approx(-2, rel=1e-5)


def test_documents_are_ranked_by_the_models_numbers(small_server):
    server, asked = small_server, {"model": "rank", "query": "?"}
    texts = ["a", "b", "a", "b"]
    status, ranked = post(server, "/rerank", {**asked, "texts": texts})
    assert status == 200 and [one["score"] for one in ranked] == [1.0] * 4
    assert [one["index"] for one in ranked] == [1, 3, 0, 2], "60 and 120 have the same score"
    status, ranked = post(server, "/v1/rerank", {**asked, "documents": texts, "top_n": 2})
    assert status == 200 and [one["index"] for one in ranked["results"]] == [1, 3]
    for body, reason in (
        ({"documents": texts, "top_n": "2"}, 'top_n: invalid type: string "2", expected a whole number, 0 or more'),
        ({"documents": ["a", None]}, "documents[1]: expected a string, or an object with a text"),
        ({"documents": "a"}, 'documents: invalid type: string "a", expected a list'),
    ):
        status, refusal = post(server, "/v1/rerank", {**asked, **body})
        assert status == 400 and refusal["message"].startswith(reason), refusal
    status, refusal = post(server, "/rerank", {**asked, "texts": ["a", "b", 3]})
    assert status == 422 and refusal["error"].startswith("texts[2]: invalid type: integer `3`, expected a string"), refusal


def test_an_answer_of_all_tokens_is_reserved_as_it_grows(start, tmp_path):
    write_model(tmp_path, "pooled", token_states())
    (tmp_path / "pooled" / "model.yaml").write_text("text: {}\n")
    shutil.copy(fetch.minilm() / "tokenizer.json", tmp_path / "pooled")
    server = start(tmp_path, "--max-pending-bytes=4194304")
    text = "word " * 500
    assert post(server, "/embed_all", {"inputs": text})[0] == 200
    status, refusal = post(server, "/embed_all", {"inputs": [text] * 140})
    assert (status, refusal["error_type"]) == (413, "Validation"), refusal
    assert metric(server, "paternoster_pending_bytes") == 0


def test_places_of_tokens_are_those_in_the_text_of_the_client(small_server, tokenizer):
    server = small_server
    status, refusal = post(server, "/predict", {"model": "plain", "inputs": "a"})
    assert status == 422 and "'logits' of each" in refusal["error"], "it classifies tokens"
    assert ask(server, "GET", "/info?model=plain")[1]["model_type"] == {"token_classifier": {}}
    text = "hello wörld"
    with triton.InferenceServerClient(server.grpc) as client:
        plain = client.infer("plain", [strings("TEXT", [text])])
        prompted = client.infer("prompted", [strings("TEXT", [text])])
    encoding = tokenizer.encode(text)
    assert plain.as_numpy("logits")[0, :, 0].tolist() == encoding.ids
    encoded = text.encode()
    cut = [encoded[start:end].decode() for start, end in plain.as_numpy("offsets")[0]]
    assert cut == ["", "hello", "wörld", ""]
    cut = [encoded[start:end].decode() for start, end in prompted.as_numpy("offsets")[0]]
    assert cut == ["", "", "", "hello", "wörld", ""], "the prompt is none of the client's"


def test_models_that_a_request_would_load_are_listed(start, small, tmp_path):
    shutil.copytree(small, tmp_path / "plain")
    write_model(tmp_path, "classifier", token_classifier())
    server = start(tmp_path, "--model-control-mode=on-demand")
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as client:
        for _ in range(2):
            assert [one.id for one in client.models.list()] == ["plain"], "the other takes tokens"
            assert client.models.retrieve("plain").id == "plain"
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("classifier")
            assert client.embeddings.create(model="plain", input="x").data


def test_the_only_text_model_is_found_before_it_is_loaded(start, small, tmp_path):
    shutil.copytree(small, tmp_path / "one" / "plain")
    server = start(tmp_path / "one", "--model-control-mode=on-demand")
    assert post(server, "/embed", {"inputs": "a"})[0] == 200
    for name in ("first", "second"):
        shutil.copytree(small, tmp_path / "two" / name)
    server = start(tmp_path / "two", "--model-control-mode=on-demand")
    status, refusal = post(server, "/embed", {"inputs": "a"})
    assert status == 422 and refusal["error"].endswith('expected "model": one of first, second'), refusal


def test_a_model_that_is_gone_is_no_overload(start, laid_out):
    server = start(laid_out, "--model-control-mode=explicit", "--load-model=sentences")
    assert post(server, "/embed", {"inputs": "a"})[0] == 200
    with triton.InferenceServerClient(server.grpc) as client:
        client.unload_model("minilm")
    status, refusal = post(server, "/embed", {"model": "sentences", "inputs": "a"})
    assert status == 424 and refusal["error_type"] == "Backend" and "minilm" in refusal["error"], refusal
    status, refusal = post(server, "/v1/embeddings", {"model": "sentences", "input": "a"})
    assert status == 503 and refusal["error"]["code"] is None, refusal


def test_which_end_is_cut_is_the_models_choice_and_others_are_refused(texts_server, tokenizer):
    server = texts_server
    long = " ".join(["cat"] * 40 + ["rates rose"])
    ids = tokenizer.encode(long).ids
    _, (by_text,) = post(server, "/embed", {"model": "left", "inputs": long, "truncation_direction": "Left"})
    # The tokenizer adds the first token and the last.
    _, (by_tokens,) = post(server, "/embed", {"model": "left", "inputs": [ids[0], *ids[-15:]]})
    np.testing.assert_allclose(by_text, by_tokens, rtol=0, atol=TOLERANCE)
    _, (of_all_tokens,) = post(server, "/embed", {"model": "left", "inputs": ids})
    _, (of_the_last,) = post(server, "/embed", {"model": "left", "inputs": ids[-16:]})
    assert of_all_tokens == of_the_last
    for name, own, other in (("plain", "right", "Left"), ("left", "left", "Right")):
        assert post(server, "/embed", {"model": name, "inputs": "a", "truncation_direction": own})[0] == 200
        status, told = post(server, "/embed", {"model": name, "inputs": "a", "truncation_direction": other})
        assert status == 422 and other in told["error"] and "text.truncate" in told["error"], told
    for wrong in ("up", {"Left": None}, ["Left"], 1):
        status, told = post(server, "/embed", {"model": "left", "inputs": "a", "truncation_direction": wrong})
        assert status == 422, told


def test_a_limit_of_tokens_below_the_models_is_refused(texts_server):
    asked = {"model": "reranker", "query": "a cat", "documents": ["a dog", "a kitten"]}
    assert post(texts_server, "/v2/rerank", {**asked, "max_tokens_per_doc": 4096})[0] == 200
    status, told = post(texts_server, "/v2/rerank", {**asked, "max_tokens_per_doc": 2})
    assert status == 400 and "max_tokens_per_doc" in told["message"], told


def test_what_a_route_builds_is_reserved_before(start, laid_out):
    server = start(laid_out, "--max-pending-bytes=100000000", "--model-control-mode=explicit", "--load-model=reranker")
    asked = {"query": "x" * 1_000_000, "documents": ["a"] * 2048}
    status, refusal = post(server, "/v1/rerank", asked)
    assert status == 413 and "max-pending-bytes" in refusal["message"], "two gigabytes"
    # Refused by its length, before any of it is sent.
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.putrequest("POST", "/embed")
    connection.putheader("Content-Length", str(65 << 20))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413 and "--http-max-input-size" in json.load(answer)["error"]
    connection.close()
    many = {"input": [7] * 2_000_000}
    for path, message in (("/v1/embeddings", lambda told: told["error"]["message"]), ("/embed", lambda told: told["error"])):
        status, refusal = post(server, path, {**many, "inputs": many["input"]})
        assert status == 413 and "max-pending-bytes" in message(refusal), refusal
    status, ranked = post(server, "/v1/rerank", {"query": "x", "documents": ["a", "b"]})
    assert status == 200 and len(ranked["results"]) == 2
    assert on_page(scrape(server), "paternoster_pending_bytes") == 0


def test_what_can_never_be_tokenized_is_refused_before_it_is_built(start, laid_out):
    server = start(laid_out, "--max-pending-bytes=400000000", "--model-control-mode=explicit", "--load-model=reranker")
    # The texts of its pairs fit into the share of a connection, and their tokens into nothing.
    asked = {"query": "x " * 500_000, "texts": ["a"] * 40}
    status, refusal = post(server, "/rerank", asked)
    assert (status, refusal["error_type"]) == (413, "Validation"), refusal
    assert "more are wanted" in refusal["error"] and "in pipeline" not in refusal["error"], "no step began"


def test_a_directory_that_cannot_be_followed_is_refused_with_the_file(start, small, tmp_path):
    for name, change_file, text in (
        ("no-tokenizer", "tokenizer.json", "{}"),
        ("dense", "modules.json", '[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]'),
        ("config", "config.json", "["),
    ):
        shutil.copytree(small, tmp_path / name)
        (tmp_path / name / change_file).write_text(text)
    for name, missing in (("no-program", "onnx/model.onnx"), ("vocabulary", "tokenizer.json")):
        shutil.copytree(small, tmp_path / name)
        (tmp_path / name / missing).unlink()
        (tmp_path / name / "model.yaml").write_text("max_batch_size: 4\n")
    shutil.copytree(small, tmp_path / "one-by-one")
    (tmp_path / "one-by-one" / "model.yaml").write_text("max_batch_size: 0\ntext: {}\n")
    server = start(tmp_path, until="settled")
    with triton.InferenceServerClient(server.grpc) as client:
        reasons = {entry.name: entry.reason for entry in client.get_model_repository_index().models}
    assert "tokenizer.json: not a tokenizer" in reasons["no-tokenizer"]
    assert "expected a program in 'onnx/model.onnx'" in reasons["no-program"]
    assert "expected 'tokenizer.json' as well" in reasons["vocabulary"]
    assert "max_batch_size" in reasons["one-by-one"] and "expected 1 or more" in reasons["one-by-one"]
    assert "modules.json: the module 'sentence_transformers.models.Dense'" in reasons["dense"]
    assert "config.json: " in reasons["config"]


def imported(program, source, repository, *more):
    """Runs `paternoster import`. Returns its exit status, and what it printed."""
    command = [program, "import", source, "--model-repository", repository, *more]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_an_imported_model_answers_as_its_directory_does(start, program, laid_out, tmp_path, texts_client):
    source = tmp_path / "downloaded" / "encoder"
    shutil.copytree(laid_out / "plain", source)
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "passage"}
    (source / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    status, printed = imported(program, source, tmp_path / "models")
    assert status == 0, printed
    target = tmp_path / "models" / "encoder"
    written = (target / "model.yaml").read_text()
    assert written in printed, "what is printed is what is written"
    assert "kind: embedding" in printed and "padded axes: tokens" in printed
    for line in ("task: embed", "output: sentence_embedding", "pooling: done", "max_tokens: 256", "truncate: right",
                 "normalize: true", "passage: 'passage: '", "default_prompt: passage", "max_batch_size: 32"):  # fmt: skip
        assert line in written, (line, written)
    assert {path.name for path in (target / "1").iterdir()} == {"model.onnx"}
    # The directory as it is, beside what was made of it.
    source.rename(tmp_path / "models" / "as-it-is")
    server = start(tmp_path / "models")
    texts = ODD + random_texts(4)
    with triton.InferenceServerClient(server.grpc) as client:
        answers = [client.infer(name, [strings("TEXT", texts)]) for name in ("encoder", "as-it-is")]
        query = [strings("TEXT", ["a cat"]), strings("PROMPT", ["query"])]
        queries = [client.infer(name, query).as_numpy("embedding") for name in ("encoder", "as-it-is")]
        configs = [client.get_model_config(name, as_json=True)["config"] for name in ("encoder", "as-it-is")]
    np.testing.assert_allclose(answers[0].as_numpy("embedding"), answers[1].as_numpy("embedding"), rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answers[0].as_numpy("tokens"), answers[1].as_numpy("tokens"))
    np.testing.assert_allclose(*queries, rtol=0, atol=TOLERANCE)
    assert configs[0]["input"] == configs[1]["input"] and configs[0]["output"] == configs[1]["output"]


def test_import_takes_the_weights_that_the_graph_names_and_the_labels(start, program, tmp_path):
    scores = [port("logits", "FP32", ("batch", "tokens", 2))]
    ids, mask = port("input_ids", "INT64", ("batch", "tokens")), port("attention_mask", "INT64", ("batch", "tokens"))
    nodes = [
        node("Add", ["input_ids", "attention_mask"], ["more"]),
        node("Unsqueeze", ["more", "last"], ["one"]),
        node("Cast", ["one"], ["real"], to=1),
        node("Mul", ["real", "factors"], ["logits"]),
    ]
    factors = external("factors", (2,), "weights/factors.bin")
    source = tmp_path / "tagger"
    (source / "onnx" / "weights").mkdir(parents=True)
    (source / "onnx" / "model.onnx").write_bytes(model(nodes, [ids, mask], scores, [constant("last", [2]), factors]))
    # A cache of downloads has links to files outside of the directory.
    (tmp_path / "blob").write_bytes(np.array([2, 3], "<f4").tobytes())
    (source / "onnx" / "weights" / "factors.bin").symlink_to(tmp_path / "blob")
    (source / "onnx" / "weights" / "other.bin").write_bytes(b"of another graph")
    shutil.copy(fetch.minilm() / "tokenizer.json", source)
    labels = {"0": "inside", "1": "outside"}
    (source / "config.json").write_text(json.dumps({"architectures": ["BertForTokenClassification"], "id2label": labels}))
    status, printed = imported(program, source, tmp_path / "models", "--name", "renamed")
    assert status == 0, printed
    assert "kind: classifier of tokens" in printed and "files of weights: weights/factors.bin" in printed
    target = tmp_path / "models" / "renamed"
    assert [path.name for path in (target / "1" / "weights").iterdir()] == ["factors.bin"]
    server = start(tmp_path / "models")
    with triton.InferenceServerClient(server.grpc) as client:
        logits = client.infer("renamed", [strings("TEXT", ["a cat"])]).as_numpy("logits")
    assert (logits[0, :, 1] / logits[0, :, 0]).tolist() == [1.5] * logits.shape[1]


def test_import_refuses_by_name_and_leaves_nothing(program, laid_out, small, tmp_path):
    def changed(name, change_file, text):
        folder = tmp_path / name
        shutil.copytree(small, folder)
        if text is None:
            (folder / change_file).unlink()
        else:
            (folder / change_file).write_text(text)
        return folder

    models = tmp_path / "models"
    (models / "taken").mkdir(parents=True)
    cases = [
        (tmp_path / "nowhere", "there is no directory"),
        (changed("no-graph", "onnx/model.onnx", None), "has no graph: expected 'onnx/model.onnx' or 'model.onnx'"),
        (changed("no-tokenizer", "tokenizer.json", None), "has no 'tokenizer.json'"),
        (changed("broken", "onnx/model.onnx", "no graph"), "onnx/model.onnx"),
        (changed("ready", "model.yaml", "text: {}\n"), "has 'model.yaml', so it is a model directory already"),
        (laid_out / "minilm", "so it is a model directory already"),
        (changed("taken", "notes.txt", ""), "models/taken' exists already"),
    ]
    other = changed("other", "config.json", '{"architectures": ["BertForMaskedLM"]}')
    ids, mask = port("input_ids", "INT64", ("batch", "tokens")), port("attention_mask", "INT64", ("batch", "tokens"))
    words = [node("Add", ["input_ids", "attention_mask"], ["more"]), node("Unsqueeze", ["more", "last"], ["one"]),
             node("Cast", ["one"], ["logits"], to=1)]  # fmt: skip
    graph = model(words, [ids, mask], [port("logits", "FP32", ("batch", "tokens", 1))], [constant("last", [2])])
    (other / "onnx" / "model.onnx").unlink()
    (other / "onnx" / "model.onnx").write_bytes(graph)
    cases.append((other, "the architecture 'BertForMaskedLM' in config.json is neither for vectors nor for classes"))
    for source, reason in cases:
        status, printed = imported(program, source, models)
        assert status == 1 and printed.startswith("error: ") and reason in printed, (source.name, printed)
        assert [path.name for path in models.iterdir()] == ["taken"], source.name
        assert list((models / "taken").iterdir()) == []
    status, printed = imported(program, small, models, "--name", "../outside")
    assert status == 1 and "cannot be the name of a model" in printed
