"""The example models made of cells, computed with NumPy alone from the weights in their files.

An independent second opinion on what `paternoster models` writes: another language, double precision, and one request at a time from
its first token to its last, with plain loops and recursion. There are no tasks, no batches, no padding and no masks here, and no graph
is followed: of the files only the weights are read, by their names.

Every model is a function of its directory and the request's inputs. Decoders give `Decoded`: the tokens, and by how much the likeliest
token led at the closest step; an engine that rounds otherwise may choose another token where that is next to nothing.

    python cells_reference.py model_repository/seq2seq 17 4 230
"""

import copy
import functools
import math
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np

START = 1
END = 2
#: Steps that a decoder may take beyond the length of what it decodes.
SPARE_STEPS = 20
#: TensorProto.DataType -> the type of its elements.
ELEMENTS = {1: "<f4", 6: "<i4", 7: "<i8", 9: "?"}
HEAD = 64
LAYERS = 2
WINDOW = 32
EPSILON = 1e-5

Decoded = namedtuple("Decoded", "tokens lead")


# Weights -------------------------------------------------------------------------------------------------------------


def fields(message):
    """(field number, value) of a protobuf message: numbers as they are, texts and messages as views of their bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
        else:
            size, at = _varint(message, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = message[at : at + size], at + size
        yield key >> 3, value


def _varint(message, at):
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


@functools.lru_cache(maxsize=16)
def read_weights(path):
    """The initializers of an ONNX file: {name: array in the file's own precision}."""
    tensors = {}
    graphs = [value for number, value in fields(memoryview(Path(path).read_bytes())) if number == 7]
    for initializer in (value for graph in graphs for number, value in fields(graph) if number == 5):
        dims, name, element, data = [], None, None, b""
        for number, value in fields(initializer):
            if number == 1:
                dims.append(value)
            elif number == 2:
                element = ELEMENTS[value]
            elif number == 8:
                name = bytes(value).decode()
            elif number == 9:
                data = value
        tensors[name] = np.frombuffer(data, element).reshape(dims)
    return tensors


class Cell:
    """The weights of one cell, in double precision; names begin with the scope."""

    def __init__(self, folder, name):
        self.tensors = read_weights(str(Path(folder) / "1" / f"{name}.onnx"))
        self.scope, self.converted = "", {}

    def within(self, scope):
        inner = copy.copy(self)
        inner.scope = f"{self.scope}{scope}/"
        return inner

    def __getitem__(self, name):
        name = self.scope + name
        if name not in self.converted:
            self.converted[name] = self.tensors[name].astype(np.float64)
        return self.converted[name]

    def embed(self, tokens):
        """Vectors of tokens; the table is not converted as a whole."""
        return self.tensors["embedding.weight"][tokens].astype(np.float64)

    def dense(self, name, x):
        return x @ self[f"{name}.weight"] + self[f"{name}.bias"]


# Layers --------------------------------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    shares = np.exp(x - x.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def lstm_step(cell, name, x, h, c):
    """(h, c) after one step."""
    i, f, g, o = np.split(cell.dense(name, np.concatenate([x, h])), 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def lstm_states(cell, xs):
    """h after each step, and the last c."""
    hidden = len(cell["lstm.bias"]) // 4
    h = c = np.zeros(hidden)
    states = []
    for x in xs:
        h, c = lstm_step(cell, "lstm", x, h, c)
        states.append(h)
    return np.stack(states), c


def gru_states(cell, xs):
    h = np.zeros(len(cell["gru.candidate.bias"]))
    states = []
    for x in xs:
        reset, update = np.split(sigmoid(cell.dense("gru.gates", np.concatenate([x, h]))), 2)
        offered = np.tanh(cell.dense("gru.candidate", np.concatenate([x, reset * h])))
        h = (1 - update) * offered + update * h
        states.append(h)
    return np.stack(states)


def backwards(states, cell, xs):
    """What `states` gives of xs read from the last to the first, in the order of xs."""
    return states(cell, xs[::-1])[::-1]


def attend(cell, h, memory):
    return softmax(memory @ cell.dense("attention", h)) @ memory


def decode(most, step):
    """Feeds `step`, which gives the scores that follow a token, with its own tokens from the start token to the end token."""
    tokens, lead, token = [], math.inf, START
    while len(tokens) < most and token != END:
        scores = step(token)
        token = int(scores.argmax())
        second, first = np.partition(scores, -2)[-2:]
        lead = min(lead, float(first - second))
        tokens.append(token)
    return Decoded(np.array(tokens, np.int64), lead)


# Models --------------------------------------------------------------------------------------------------------------


def lstm(folder, tokens):
    """INT64 [n] -> the last state, float64 [hidden]."""
    cell = Cell(folder, "step")
    states, _ = lstm_states(cell, cell.embed(tokens))
    return states[-1]


def seq2seq(folder, source):
    """INT64 [n] -> Decoded; `seq2seq-stream` gives the same tokens one by one."""
    encoder, decoder = Cell(folder, "encoder"), Cell(folder, "decoder")
    states, c = lstm_states(encoder, encoder.embed(source))
    state = states[-1], c

    def step(token):
        nonlocal state
        state = lstm_step(decoder, "lstm", decoder.embed(token), *state)
        return decoder.dense("projection", state[0])

    return decode(len(source) + SPARE_STEPS, step)


def tree_lstm(folder, tokens, children):
    """INT64 [n] and INT32 [n, 2] with -1 for no child -> h of the last node that is nobody's child, float64 [hidden]."""
    leaf, node = Cell(folder, "leaf"), Cell(folder, "node")

    @functools.lru_cache(maxsize=None)
    def state(number):
        own = [int(child) for child in children[number] if child >= 0]
        if not own:
            i, o, u = np.split(leaf.dense("leaf", leaf.embed(tokens[number])), 3)
            c = sigmoid(i) * np.tanh(u)
            return sigmoid(o) * np.tanh(c), c
        # A node with a single child has zeros for the other.
        states = [state(child) for child in own]
        states += [(np.zeros_like(states[0][0]),) * 2] * (2 - len(states))
        (h_left, c_left), (h_right, c_right) = states
        i, f_left, f_right, o, u = np.split(node.dense("node", np.concatenate([h_left, h_right])), 5)
        c = sigmoid(i) * np.tanh(u) + sigmoid(f_left) * c_left + sigmoid(f_right) * c_right
        return sigmoid(o) * np.tanh(c), c

    somebodys = {int(child) for row in children for child in row}
    return state(max(number for number in range(len(children)) if number not in somebodys))[0]


def gnmt(folder, source):
    """INT64 [n] -> Decoded."""
    forward, backward, upper, decoder = (Cell(folder, name) for name in ("forward", "backward", "upper", "decoder"))
    ahead = lstm_states(forward, forward.embed(source))[0]
    back = backwards(lambda cell, xs: lstm_states(cell, xs)[0], backward, backward.embed(source))
    memory, c = lstm_states(upper, np.concatenate([ahead, back], axis=1))
    lower_state, upper_state = (memory[-1], c), (np.zeros_like(c), np.zeros_like(c))

    def step(token):
        nonlocal lower_state, upper_state
        context = attend(decoder, lower_state[0], memory)
        lower_state = lstm_step(decoder, "lower", np.concatenate([decoder.embed(token), context]), *lower_state)
        upper_state = lstm_step(decoder, "upper", np.concatenate([lower_state[0], context]), *upper_state)
        return decoder.dense("projection", lower_state[0] + upper_state[0])

    return decode(len(source) + SPARE_STEPS, step)


def deepspeech2(folder, frames):
    """FP32 [n, 80] -> scores of the characters, float64 [(n + 1) / 2, 29]."""
    conv, dense = Cell(folder, "conv"), Cell(folder, "dense")
    x = _convolve(conv, "conv1", frames[None].astype(np.float64), 2)
    x = _convolve(conv, "conv2", x, 1)
    features = x.transpose(1, 0, 2).reshape(x.shape[1], -1)
    ahead = gru_states(Cell(folder, "forward"), features)
    back = backwards(gru_states, Cell(folder, "backward"), features)
    return dense.dense("dense", np.concatenate([ahead, back], axis=1))


def _convolve(cell, name, x, stride):
    """[channels, frames, bands] -> [output channels, about frames / stride, bands / 2], rectified and clipped."""
    weight, bias = cell[f"{name}.weight"], cell[f"{name}.bias"]
    height, width = weight.shape[2:]
    padded = np.pad(x, ((0, 0), (height // 2,) * 2, (width // 2,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))[:, ::stride, ::2]
    summed = np.tensordot(weight, windows, axes=([1, 2, 3], [0, 3, 4]))
    return np.clip(summed + bias[:, None, None], 0, 20)


def las(folder, frames):
    """FP32 [n, 40] -> Decoded."""
    speller = Cell(folder, "speller")
    heard, _ = lstm_states(Cell(folder, "listener"), frames.astype(np.float64))
    memory, c = lstm_states(Cell(folder, "upper"), heard)
    state, context = (np.zeros_like(c), np.zeros_like(c)), np.zeros_like(c)

    def step(token):
        nonlocal state, context
        state = lstm_step(speller, "lstm", np.concatenate([speller.embed(token), context]), *state)
        context = attend(speller, state[0], memory)
        return speller.dense("projection", np.concatenate([state[0], context]))

    return decode(len(frames) + SPARE_STEPS, step)


def transformer(folder, source):
    """INT64 [n] -> Decoded."""
    encoder, decoder = Cell(folder, "encoder"), Cell(folder, "decoder")
    x = encoder.embed(source) + encoder["positions.weight"][: len(source)]
    for layer in (encoder.within(f"layer{number}") for number in range(LAYERS)):
        attended = _attend_by_heads(*(layer.dense(name, x) for name in ("query", "key", "value")))
        x = _normalise(layer, "attended", x + layer.dense("attention", attended))
        x = _feed_forward(layer, x)
    memory = [[encoder.dense(f"memory_{part}_{layer}", x) for part in ("keys", "values")] for layer in range(LAYERS)]
    # By layer: the keys and values of every token so far.
    past = [([], []) for _ in range(LAYERS)]
    places = decoder["positions.weight"]

    def step(token):
        place = min(len(past[0][0]), len(places) - 1)
        x = decoder.embed(token) + places[place]
        for number in range(LAYERS):
            layer = decoder.within(f"layer{number}")
            for kept, name in zip(past[number], ("keys", "values")):
                kept.append(layer.dense(name, x))
            keys, values = (np.stack(kept[-WINDOW:]) for kept in past[number])
            attended = _attend_by_heads(layer.dense("query", x)[None], keys, values)[0]
            x = _normalise(layer, "attended", x + layer.dense("attention", attended))
            attended = _attend_by_heads(layer.dense("memory_query", x)[None], *memory[number])[0]
            x = _normalise(layer, "memory_attended", x + layer.dense("memory_attention", attended))
            x = _feed_forward(layer, x)
        return decoder.dense("projection", x)

    return decode(len(source) + SPARE_STEPS, step)


def _attend_by_heads(query, keys, values):
    """[n, hidden], [entries, hidden] twice -> [n, hidden]."""
    mixed = []
    for head in range(0, query.shape[1], HEAD):
        part = slice(head, head + HEAD)
        shares = softmax(query[:, part] @ keys[:, part].T / math.sqrt(HEAD))
        mixed.append(shares @ values[:, part])
    return np.concatenate(mixed, axis=1)


def _normalise(layer, name, x):
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    return centred / deviation * layer[f"{name}.scale"] + layer[f"{name}.shift"]


def _feed_forward(layer, x):
    narrow = layer.dense("narrow", np.maximum(layer.dense("wide", x), 0))
    return _normalise(layer, "fed_forward", x + narrow)


#: By the model's name; all but `tree-lstm` take one input.
MODELS = {
    "lstm": lstm,
    "seq2seq": seq2seq,
    "seq2seq-stream": seq2seq,
    "tree-lstm": tree_lstm,
    "gnmt": gnmt,
    "deepspeech2": deepspeech2,
    "las": las,
    "transformer": transformer,
}


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    print(MODELS[directory.name](directory, np.array([int(token) for token in sys.argv[2:]])))
