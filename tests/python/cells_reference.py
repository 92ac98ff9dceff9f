"""The example models made of cells, computed with NumPy alone from the weights in their files.

An independent second implementation of the models that `paternoster models` writes: in another language, in double
precision, one request at a time from its first token to its last, with plain loops and recursion. It has no tasks, no
batches, no padding and no masks, and follows no graph: only the weights are read from the files, by name.

Every model is a function of its directory and the request's inputs; `load` gives all of them a common interface, with
random requests. Decoders return `Decoded`: the tokens, and the likeliest token's lead at the closest step. An engine
that rounds differently may choose another token where the lead is next to nothing.

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
#: Steps that a decoder may take beyond the length of its source.
SPARE_STEPS = 20
#: TensorProto.DataType -> NumPy's type of its elements.
ELEMENTS = {1: "<f4", 6: "<i4", 7: "<i8", 9: "?"}
HEAD = 64
LAYERS = 2
EPSILON = 1e-5

Decoded = namedtuple("Decoded", "tokens lead")


# Weights -------------------------------------------------------------------------------------------------------------


def fields(message):
    """Yields (field number, value) of a protobuf message: numbers as they are, texts and messages as views of their
    bytes."""
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
    """Returns the initializers of an ONNX file: {name: array in the file's own precision}."""
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
    """The weights of one cell, in double precision. Their names begin with the scope."""

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
        """Returns the vectors of tokens, without converting the whole table."""
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
    """Returns (h, c) after one step."""
    i, f, g, o = np.split(cell.dense(name, np.concatenate([x, h])), 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def lstm_states(cell, xs):
    """Returns h after each step, and the last c."""
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
    """Returns `states` of xs read from the last to the first, in the order of xs."""
    return states(cell, xs[::-1])[::-1]


def attend(cell, h, memory):
    return softmax(memory @ cell.dense("attention", h)) @ memory


def decode(most, step):
    """Feeds `step`, which returns the scores that follow a token, with its own tokens, from the start token to the end
    token."""
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


def lstm_projected(folder, tokens):
    """Same as `lstm`, from the model's two cells, joined to one again."""
    project, step = Cell(folder, "project"), Cell(folder, "step")
    weight = np.concatenate([project["input.weight"], step["state.weight"]])
    project.converted |= {"lstm.weight": weight, "lstm.bias": project["input.bias"]}
    states, _ = lstm_states(project, project.embed(tokens))
    return states[-1]


def seq2seq(folder, source):
    """INT64 [n] -> Decoded; `seq2seq-stream` returns the same tokens one by one."""
    encoder, decoder = Cell(folder, "encoder"), Cell(folder, "decoder")
    states, c = lstm_states(encoder, encoder.embed(source))
    state = states[-1], c

    def step(token):
        nonlocal state
        state = lstm_step(decoder, "lstm", decoder.embed(token), *state)
        return decoder.dense("projection", state[0])

    return decode(len(source) + SPARE_STEPS, step)


def tree_lstm(folder, tokens, children):
    """INT64 [n] and INT32 [n, 2] with -1 for no child -> h of the last node that has no parent, float64 [hidden]."""
    leaf, node = Cell(folder, "leaf"), Cell(folder, "node")

    @functools.lru_cache(maxsize=None)
    def state(number):
        own = [int(child) for child in children[number] if child >= 0]
        if not own:
            i, o, u = np.split(leaf.dense("leaf", leaf.embed(tokens[number])), 3)
            c = sigmoid(i) * np.tanh(u)
            return sigmoid(o) * np.tanh(c), c
        # A missing second child counts as zeros.
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
    # For each layer, the keys and values of every token so far.
    past = [([], []) for _ in range(LAYERS)]
    places = decoder["positions.weight"]

    def step(token):
        place = min(len(past[0][0]), len(places) - 1)
        x = decoder.embed(token) + places[place]
        for number in range(LAYERS):
            layer = decoder.within(f"layer{number}")
            for kept, name in zip(past[number], ("keys", "values")):
                kept.append(layer.dense(name, x))
            keys, values = (np.stack(kept) for kept in past[number])
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


# Requests ------------------------------------------------------------------------------------------------------------

#: Tokens in every model's vocabulary, at any width; lower ones mark start and end.
TOKENS = range(3, 2000)
#: Maximum length of a random request's input, and maximum leaves of a random tree.
LONGEST = 32
#: Minimum lead of random requests: scores of other engines differ by a hundredth of this.
LEAST_LEAD = 1e-4


def random_tokens(rng):
    return rng.integers(TOKENS.start, TOKENS.stop, rng.integers(1, LONGEST + 1))


def random_frames(width):
    return lambda rng: rng.standard_normal((rng.integers(1, LONGEST + 1), width)).astype(np.float32)


def random_children(rng, leaves):
    """INT32 [2 · leaves - 1, 2]: a binary tree that is split at random; the root comes first."""
    children = []

    def add(leaves):
        number = len(children)
        children.append([-1, -1])
        if leaves > 1:
            left = int(rng.integers(1, leaves))
            children[number] = [add(left), add(leaves - left)]
        return number

    add(leaves)
    return np.array(children, np.int32)


def random_tree(rng):
    children = random_children(rng, int(rng.integers(1, LONGEST + 1)))
    return rng.integers(TOKENS.start, TOKENS.stop, len(children)), children


#: A model: the function that computes it, its inputs and its output by name, and the function that draws its input.
Kind = namedtuple("Kind", "compute inputs output draw")
MODELS = {
    "lstm": Kind(lstm, ["tokens"], "hidden", random_tokens),
    "lstm-projected": Kind(lstm_projected, ["tokens"], "hidden", random_tokens),
    "lstm-sequence": Kind(lstm, ["tokens"], "hidden", random_tokens),
    "seq2seq": Kind(seq2seq, ["source"], "tokens", random_tokens),
    "seq2seq-stream": Kind(seq2seq, ["source"], "tokens", random_tokens),
    "tree-lstm": Kind(tree_lstm, ["tokens", "children"], "root", random_tree),
    "gnmt": Kind(gnmt, ["source"], "tokens", random_tokens),
    "deepspeech2": Kind(deepspeech2, ["frames"], "logits", random_frames(80)),
    "las": Kind(las, ["frames"], "tokens", random_frames(40)),
    "transformer": Kind(transformer, ["source"], "tokens", random_tokens),
}


class Model:
    """A model directory of this name. Requests and answers are arrays by name, without the batch axis."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.kind = MODELS[self.folder.name]

    def compute(self, request):
        return self.kind.compute(self.folder, *(request[name] for name in self.kind.inputs))

    def request(self, rng):
        """Returns a random request whose answer does not depend on how an engine rounds."""
        while True:
            drawn = self.kind.draw(rng)
            request = dict(zip(self.kind.inputs, drawn if isinstance(drawn, tuple) else (drawn,)))
            answer = self.compute(request)
            if not isinstance(answer, Decoded) or answer.lead > LEAST_LEAD:
                return request

    def answer(self, request):
        answer = self.compute(request)
        return {self.kind.output: answer.tokens if isinstance(answer, Decoded) else answer}


def load(folder):
    """Returns the model of a directory that `paternoster models` has written."""
    return Model(folder)


if __name__ == "__main__":
    model = load(sys.argv[1])
    print(model.answer({model.kind.inputs[0]: np.array(sys.argv[2:], np.int64)}))
