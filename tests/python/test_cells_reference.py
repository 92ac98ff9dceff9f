"""The NumPy reference for the models made of cells: it reads files correctly, computes what the papers describe, and
the models distinguish what the server must not mix up."""

import math

import cells_reference as reference
import numpy as np
import onnx_bytes
import pytest

SOURCES = [np.random.default_rng(seed).integers(3, 2000, 1 + 7 * seed % 29) for seed in range(24)]
DECODERS = {"seq2seq": SOURCES, "gnmt": SOURCES, "transformer": SOURCES}
DECODERS["las"] = [np.random.default_rng(seed).standard_normal((5 + seed, 40)).astype(np.float32) for seed in range(24)]


@pytest.fixture(scope="module")
def models(made_models):
    return made_models("examples", "--quarter", "--only", ",".join(reference.MODELS))


@pytest.fixture(scope="module")
def decoded(models):
    return {name: [reference.MODELS[name].compute(models / name, given) for given in inputs] for name, inputs in DECODERS.items()}


def test_weights_are_read_from_a_file_as_they_stand_in_it(tmp_path):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    ports = [onnx_bytes.port(name, "FP32", ("batch", 3)) for name in ("x", "y")]
    nodes = [onnx_bytes.node("MatMul", ["x", "scope/weight"], ["y"])]
    file = tmp_path / "1" / "cell.onnx"
    file.parent.mkdir()
    file.write_bytes(onnx_bytes.model(nodes, ports[:1], ports[1:], [onnx_bytes.constant("scope/weight", values)]))
    assert list(reference.read_weights(str(file))) == ["scope/weight"]
    found = reference.Cell(tmp_path, "cell").within("scope")["weight"]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, values)


class Given(dict):
    """A cell with these weights."""

    dense = reference.Cell.dense


def test_a_step_of_an_lstm_is_that_of_the_textbook():
    # Each of i, f, g, o depends on the input, on the state, or on the bias alone.
    weights = Given({"lstm.weight": np.array([[1.0, 0, 2, 0], [0, 3, 0, 0]]), "lstm.bias": np.array([0, 0, 0, -1.0])})
    h, c = reference.lstm_step(weights, "lstm", np.array([0.5]), np.array([0.25]), np.array([2.0]))
    kept = 2 / (1 + math.exp(-0.75))
    added = math.tanh(1) / (1 + math.exp(-0.5))
    assert c == pytest.approx([kept + added])
    assert h == pytest.approx([math.tanh(kept + added) / (1 + math.e)])


def test_a_step_of_a_gru_is_that_of_the_textbook():
    weights = Given({
        "gru.gates.weight": np.array([[1.0, -1], [0, 0]]),
        "gru.gates.bias": np.zeros(2),
        "gru.candidate.weight": np.array([[1.0], [4.0]]),
        "gru.candidate.bias": np.array([0.5]),
    })  # fmt: skip
    first, second = reference.gru_states(weights, np.array([[2.0], [-3.0]]))[:, 0]
    reset, update = (1 / (1 + math.exp(-sign * 2)) for sign in (1, -1))
    assert first == pytest.approx((1 - update) * math.tanh(2.5))
    reset, update = (1 / (1 + math.exp(sign * 3)) for sign in (1, -1))
    assert second == pytest.approx((1 - update) * math.tanh(-2.5 + 4 * reset * first) + update * first)


def test_a_loop_ends_with_the_end_token_or_at_its_bound():
    scores = {reference.START: [0, 0, 0, 5.0], 3: [4, 0, 3.0, 0], 0: [0, 0, 1.0, 0]}
    found = reference.decode(9, lambda token: np.array(scores[token]))
    assert (found.tokens.tolist(), found.lead) == ([3, 0, reference.END], 1)
    assert reference.decode(2, lambda token: np.array(scores[token])).tokens.tolist() == [3, 0]


def test_states_are_far_from_their_ends_and_differ(models):
    states = np.array([reference.lstm(models / "lstm", tokens) for tokens in SOURCES])
    assert np.abs(states).max() < 0.99 and 0.1 < states.std() < 0.6
    for one, other in zip(SOURCES, states):
        if len(one) > 1:
            assert np.abs(reference.lstm(models / "lstm", one[::-1]) - other).max() > 0.1, "the order counts"


def test_a_projected_lstm_is_the_same_lstm(models):
    whole = reference.read_weights(str(models / "lstm/1/step.onnx"))
    halves = [reference.read_weights(str(models / "lstm-projected/1" / name)) for name in ("project.onnx", "step.onnx")]
    joined = np.concatenate([halves[0]["input.weight"], halves[1]["state.weight"]])
    np.testing.assert_array_equal(joined, whole["lstm.weight"])
    for tokens in SOURCES:
        one, other = (reference.MODELS[name].compute(models / name, tokens) for name in ("lstm", "lstm-projected"))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", DECODERS)
def test_most_sequences_end_by_themselves_and_differ(name, decoded):
    tokens = [one.tokens.tolist() for one in decoded[name]]
    ended = [one for one in tokens if one[-1] == reference.END]
    assert len(ended) > len(tokens) / 2
    assert all(reference.END not in one[:-1] for one in tokens)
    assert len({len(one) for one in tokens}) > len(tokens) / 4, "they end at different times"
    longer = [tuple(one) for one in tokens if len(one) > 2]
    assert len(longer) > len(tokens) / 2 and len(set(longer)) > 0.9 * len(longer)


@pytest.mark.parametrize("name", DECODERS)
def test_the_likeliest_token_leads_by_more_than_rounding(name, decoded):
    assert min(one.lead for one in decoded[name]) > 1e-5


def tree(shape):
    """Returns the children of a tree given as nested pairs, the root first."""
    children = []

    def add(node):
        number = len(children)
        children.append([-1, -1])
        if isinstance(node, tuple):
            children[number] = [add(child) for child in node]
        return number

    add(shape)
    return np.array(children, np.int32)


def test_a_tree_counts_by_its_shape_its_sides_and_its_leaves_alone(models):
    folder = models / "tree-lstm"
    balanced, leaning = tree(((0, 0), (0, 0))), tree((((0, 0), 0), 0))
    tokens = np.arange(10, 17)
    root = reference.tree_lstm(folder, tokens, balanced)
    assert np.abs(root - reference.tree_lstm(folder, tokens, leaning)).max() > 0.01
    assert np.abs(root - reference.tree_lstm(folder, tokens, balanced[:, ::-1])).max() > 0.01
    at_inner_nodes = np.where(balanced[:, 0] < 0, tokens, 0)
    np.testing.assert_array_equal(root, reference.tree_lstm(folder, at_inner_nodes, balanced))
    for leaf in np.flatnonzero(balanced[:, 0] < 0):
        changed = tokens.copy()
        changed[leaf] += 1
        assert np.abs(root - reference.tree_lstm(folder, changed, balanced)).max() > 0.01


@pytest.mark.parametrize("frames", [1, 2, 7, 40])
def test_speech_is_scored_at_every_other_frame_from_both_sides(frames, models):
    folder = models / "deepspeech2"
    given = np.random.default_rng(frames).standard_normal((frames, 80)).astype(np.float32)
    scores = reference.deepspeech2(folder, given)
    assert scores.shape == ((frames + 1) // 2, 29)
    if frames == 40:
        for changed in (0, -1):
            other = given.copy()
            other[changed] *= -1
            reached = np.abs(reference.deepspeech2(folder, other) - scores).max(axis=1)
            assert reached[len(scores) // 2] > 1e-4, "either end is heard in the middle"


@pytest.mark.parametrize("name", reference.MODELS)
def test_random_requests_of_a_model_differ_and_have_answers(name, models):
    model, rng = reference.load(models / name), np.random.default_rng(1)
    requests = [model.request(rng) for _ in range(8)]
    assert all(list(request) == model.kind.inputs for request in requests)
    assert len({len(request[model.kind.inputs[0]]) for request in requests}) > 3, "lengths differ"
    answers = [model.answer(request)[model.kind.output] for request in requests]
    assert all(answer.size > 0 and np.isfinite(answer).all() for answer in answers)
    assert len({answer.tobytes() for answer in answers}) == len(answers)
