"""The sentence encoder, compared with a NumPy computation from the same weights."""

from concurrent.futures import ThreadPoolExecutor

import fetch
import numpy as np
import pytest
from clients import tensor
from minilm_reference import embed
from tokenizers import Tokenizer

SENTENCES = [
    "The cat is sleeping on the warm windowsill.",
    "Rain.",
    "The central bank raised interest rates again, which nobody had expected after the figures of last month.",
    "When does the next train to the seaside depart?",
    "Bake the bread for forty minutes in a hot oven, then let it cool.",
    "",
]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def tokens():
    """Returns the sentences' token ids, unpadded."""
    tokenizer = Tokenizer.from_file(str(fetch.minilm() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [encoding.ids for encoding in tokenizer.encode_batch(SENTENCES)]


@pytest.fixture(scope="module")
def expected(tokens):
    return np.concatenate([embed(fetch.minilm(), [ids], [[1] * len(ids)]) for ids in tokens])


def padded(some):
    """Returns (input_ids, attention_mask) of sentences padded to the longest."""
    longest = max(map(len, some))
    ids = np.array([one + [0] * (longest - len(one)) for one in some], np.int64)
    mask = np.array([[1] * len(one) + [0] * (longest - len(one)) for one in some], np.int64)
    return ids, mask


def ask(client, some):
    ids, mask = padded(some)
    answer = client.infer("minilm", [tensor("input_ids", ids), tensor("attention_mask", mask)])
    return answer.as_numpy("sentence_embedding")


def assert_same(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_the_sentences_differ_by_far_more_than_the_tolerance(expected):
    distances = np.abs(expected[:, None] - expected[None]).max(axis=-1)
    np.fill_diagonal(distances, 1)
    assert distances.min() > 100 * TOLERANCE


def test_one_sentence_at_a_time(client, tokens, expected):
    for ids, row in zip(tokens, expected):
        assert_same(ask(client, [ids]), row[None])


def test_a_batch_of_different_lengths(client, tokens, expected):
    assert_same(ask(client, tokens), expected)


def test_padding_changes_nothing(client, tokens, expected):
    ids, mask = padded(tokens[:1])
    wide = [np.pad(part, ((0, 0), (0, 40))) for part in (ids, mask)]
    answer = client.infer("minilm", [tensor("input_ids", wide[0]), tensor("attention_mask", wide[1])])
    assert_same(answer.as_numpy("sentence_embedding"), expected[:1])


def test_concurrent_requests_of_different_lengths(client, tokens, expected):
    """Single sentences from 16 threads: the server batches and pads them itself."""
    order = [number % len(tokens) for number in range(96)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda number: ask(client, [tokens[number]])[0], order))
    assert_same(np.stack(found), expected[order])
