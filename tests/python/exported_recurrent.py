"""Graphs of recurrent models as exporters write them: what stands around the layers, by exporter.

PyTorch slices the initial states of all layers from one tensor of zeros and joins directions by a Transpose and a
Reshape; Keras's converter does so with other axes, or takes the last states; tf2onnx gives the length of each row and
splits the directions. Cells that are no operator of ONNX are the bodies of a Scan.
"""

import copy
import itertools

import numpy as np
import onnx_bytes
from onnx_bytes import constant, node, port

FEATURES, HIDDEN, CLASSES, TOKENS = 3, 4, 5, 11
#: Gates of a layer.
GATES = {"LSTM": 4, "GRU": 3}


class Export:
    """A graph in the making. Methods add nodes and return the name of the result."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants, self.count = [], [], itertools.count(1)

    def named(self, kind):
        return f"{kind}{next(self.count)}"

    def const(self, values):
        name = self.named("const")
        self.constants.append(constant(name, np.asarray(values)))
        return name

    def weight(self, *shape):
        return self.const((self.rng.standard_normal(shape) / 2).astype(np.float32))

    def add(self, operator, *inputs, outputs=1, **attributes):
        names = [self.named(operator) for _ in range(outputs)]
        self.nodes.append(node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def turned(self, value, *perm):
        return self.add("Transpose", value, perm=list(perm))

    def size(self, value, axis):
        """The size of an axis, as one element."""
        size = self.add("Gather", self.add("Shape", value), self.const(axis), axis=0)
        return self.add("Unsqueeze", size, self.const([0]))

    def layer(self, operator, steps, width, both=False, lengths="", states=()):
        """Adds a layer over [time, batch, width]; returns Y and the last hidden state."""
        count, gates = 1 + both, GATES[operator]
        weights = [self.weight(count, gates * HIDDEN, size) for size in (width, HIDDEN)]
        more = {"linear_before_reset": 1} if operator == "GRU" else {}
        return self.add(
            operator, steps, *weights, self.weight(count, 2 * gates * HIDDEN), lengths, *states,
            outputs=len(states or " ") + 1, hidden_size=HIDDEN, direction="bidirectional" if both else "forward", **more,
        )[:2]  # fmt: skip

    def zeros(self, rows_of, *dims):
        """A first state: zeros, as many rows as the graph's input has."""
        shape = self.add("Concat", self.size(rows_of, 0), self.const(list(dims)), axis=0)
        return self.add("ConstantOfShape", shape)

    def scan(self, step, states, scanned, **attributes):
        """Adds a Scan. `step` gets its body, the states and the entries of a step; it returns the next states and the
        outputs of the step. Returns the last states and all outputs."""
        body = copy.copy(self)
        body.nodes = []
        given = [self.named("given") for _ in (*states, *scanned)]
        after, outputs = step(body, given[: len(states)], given[len(states) :])
        results = [body.add("Identity", value) for value in (*after, *outputs)]
        ports = ([port(name, "FP32", None) for name in names] for names in (given, results))
        return self.add("Scan", *states, *scanned, outputs=len(results), num_scan_inputs=len(scanned),
                        body=onnx_bytes.graph(body.nodes, *ports), **attributes)  # fmt: skip

    def head(self, value, width):
        product = self.add("MatMul", value, self.weight(width, CLASSES))
        return self.add("Add", product, self.weight(CLASSES))

    def model(self, result, dims, inputs=(("x", "FP32", ("batch", "time", FEATURES)),)):
        self.nodes.append(node("Identity", [result], ["y"]))
        ports = [port(*one) for one in inputs], [port("y", "FP32", dims)]
        return onnx_bytes.model(self.nodes, *ports, self.constants)


EVERY = ("batch", "time", CLASSES)
LAST = ("batch", CLASSES)


def torch_stack(operator, both, last, by_expand=False):
    """Two layers with `batch_first`: of every step, or of the last hidden state of the last layer."""
    of, directions = Export(1), 1 + both
    steps = of.turned("x", 1, 0, 2)
    shape = of.add("Concat", of.const([2 * directions]), of.size(steps, 1), of.const([HIDDEN]), axis=0)
    zeros = of.add("Expand", of.const(0.0), shape) if by_expand else of.add("ConstantOfShape", shape)
    width, last_states = FEATURES, []
    for layer in range(2):
        begin, end = layer * directions, (layer + 1) * directions
        part = of.add("Slice", zeros, of.const([begin]), of.const([end]), of.const([0]))
        states = [part] * (2 if operator == "LSTM" else 1)
        y, h = of.layer(operator, steps, width, both, states=states)
        last_states.append(h)
        if both:
            steps = of.add("Reshape", of.turned(y, 0, 2, 1, 3), of.const([0, 0, -1]))
        else:
            steps = of.add("Squeeze", y, of.const([1]))
        width = directions * HIDDEN
    if last:
        every = of.add("Concat", *last_states, axis=0)
        return of.model(of.head(of.add("Gather", every, of.const(-1), axis=0), HIDDEN), LAST)
    return of.model(of.head(of.turned(steps, 1, 0, 2), width), EVERY)


def keras_tagger():
    """An embedding, a bidirectional layer of every step, and a softmax."""
    of = Export(2)
    embedded = of.add("Gather", of.weight(TOKENS, FEATURES), "x", axis=0)
    y, _ = of.layer("LSTM", of.turned(embedded, 1, 0, 2), FEATURES, both=True)
    joined = of.add("Reshape", of.turned(y, 2, 0, 1, 3), of.const([0, 0, 2 * HIDDEN]))
    result = of.add("Softmax", of.head(joined, 2 * HIDDEN), axis=-1)
    return of.model(result, EVERY, [("x", "INT64", ("batch", "time"))])


def keras_dense():
    """A product with each step, as tf2onnx writes it: over all steps of all rows, with shapes of 32 bits."""
    of = Export(14)
    y, _ = of.layer("LSTM", of.turned("x", 1, 0, 2), FEATURES)
    every = of.turned(of.add("Squeeze", y, of.const([1])), 1, 0, 2)
    shape = of.add("Cast", of.add("Shape", every), to=onnx_bytes.ELEMENT["INT32"])
    sizes = [of.add("Slice", shape, of.const([at]), of.const([at + 1]), of.const([0])) for at in range(2)]
    classes = of.add("Cast", of.const([CLASSES]), to=onnx_bytes.ELEMENT["INT32"])
    shape = of.add("Cast", of.add("Concat", *sizes, classes, axis=0), to=onnx_bytes.ELEMENT["INT64"])
    flat = of.head(of.add("Reshape", every, of.const([-1, HIDDEN])), HIDDEN)
    return of.model(of.add("Reshape", flat, shape), EVERY)


def torch_regressor():
    """One number for each row, without an axis for it."""
    of = Export(15)
    _, h = of.layer("GRU", of.turned("x", 1, 0, 2), FEATURES)
    head = of.head(of.add("Squeeze", h, of.const([0])), HIDDEN)
    return of.model(of.add("ReduceMean", head, axes=[1], keepdims=0), ("batch",))


def time_first():
    """Steps where others have the batch: requests cannot be joined along that axis."""
    of = Export(16)
    y, _ = of.layer("GRU", "x", FEATURES)
    every = of.head(of.add("Squeeze", y, of.const([1])), HIDDEN)
    return of.model(every, ("time", "batch", CLASSES), [("x", "FP32", ("time", "batch", FEATURES))])


def keras_classifier():
    """The last states of both directions."""
    of = Export(3)
    _, h = of.layer("GRU", of.turned("x", 1, 0, 2), FEATURES, both=True)
    return of.model(of.head(of.add("Reshape", of.turned(h, 1, 0, 2), of.const([0, 2 * HIDDEN])), 2 * HIDDEN), LAST)


def tf2onnx_gru():
    """Rows whose lengths are given, as that of the whole axis."""
    of = Export(4)
    steps = of.turned("x", 1, 0, 2)
    lengths = of.add("Cast", of.add("Tile", of.size(steps, 0), of.size(steps, 1)), to=onnx_bytes.ELEMENT["INT32"])
    shape = of.add("Concat", of.const([1]), of.size(steps, 1), of.const([HIDDEN]), axis=0)
    y, _ = of.layer("GRU", steps, FEATURES, lengths=lengths, states=[of.add("Expand", of.const(0.0), shape)])
    return of.model(of.head(of.turned(of.add("Squeeze", y, of.const([1])), 1, 0, 2), HIDDEN), EVERY)


def tf2onnx_bidirectional():
    """Directions that are split and joined again."""
    of = Export(5)
    y, _ = of.layer("LSTM", of.turned("x", 1, 0, 2), FEATURES, both=True)
    parts = of.add("Split", y, of.const([1, 1]), outputs=2, axis=1)
    joined = of.add("Concat", *(of.add("Squeeze", part, of.const([1])) for part in parts), axis=2)
    return of.model(of.head(of.turned(joined, 1, 0, 2), 2 * HIDDEN), EVERY)


def repeating_seq2seq(steps=5):
    """The last state of an encoder, repeated as the input of each of a decoder's steps."""
    of = Export(6)
    _, h = of.layer("GRU", of.turned("x", 1, 0, 2), FEATURES)
    y, _ = of.layer("GRU", of.add("Tile", h, of.const([steps, 1, 1])), HIDDEN)
    return of.model(of.head(of.turned(of.add("Squeeze", y, of.const([1])), 1, 0, 2), HIDDEN), ("batch", steps, CLASSES))


def forced_seq2seq():
    """A decoder over a second input that begins with the last state of an encoder."""
    of = Export(7)
    _, h = of.layer("GRU", of.turned("x", 1, 0, 2), FEATURES)
    y, _ = of.layer("GRU", of.turned("given", 1, 0, 2), FEATURES, states=[h])
    inputs = [("x", "FP32", ("batch", "time", FEATURES)), ("given", "FP32", ("batch", "given_time", FEATURES))]
    every = of.turned(of.add("Squeeze", y, of.const([1])), 1, 0, 2)
    return of.model(of.head(every, HIDDEN), ("batch", "given_time", CLASSES), inputs)


def lstm_step(recurrent):
    """The body of an LSTM whose inputs are multiplied with the weights before it."""

    def step(of, states, entries):
        hidden, cell = states
        gates = of.add("Add", entries[0], of.add("MatMul", hidden, recurrent))
        i, o, f, c = of.add("Split", gates, of.const([HIDDEN] * 4), outputs=4, axis=1)
        i, o, f = (of.add("Sigmoid", gate) for gate in (i, o, f))
        cell = of.add("Add", of.add("Mul", f, cell), of.add("Mul", i, of.add("Tanh", c)))
        hidden = of.add("Mul", o, of.add("Tanh", cell))
        return (hidden, cell), (hidden,)

    return step


def scan_lstm():
    """An LSTM of both directions, written as two Scans."""
    of = Export(8)
    steps, every = of.turned("x", 1, 0, 2), []
    for direction in (0, 1):
        gates = of.add("Add", of.add("MatMul", steps, of.weight(FEATURES, 4 * HIDDEN)), of.weight(4 * HIDDEN))
        states = [of.zeros("x", HIDDEN), of.zeros("x", HIDDEN)]
        step = lstm_step(of.weight(HIDDEN, 4 * HIDDEN))
        turned = {"scan_input_directions": [direction], "scan_output_directions": [direction]}
        every.append(of.scan(step, states, [gates], **turned)[2])
    joined = of.add("Concat", *every, axis=2)
    return of.model(of.head(of.turned(joined, 1, 0, 2), 2 * HIDDEN), EVERY)


def scan_cell(mixing=False):
    """A classifier of the last state of a cell. One that mixes takes the mean of the batch from its state."""
    of = Export(9)
    weight, recurrent = of.weight(FEATURES, HIDDEN), of.weight(HIDDEN, HIDDEN)

    def step(of, states, entries):
        total = of.add("Add", of.add("MatMul", entries[0], weight), of.add("MatMul", states[0], recurrent))
        if mixing:
            total = of.add("Sub", total, of.add("ReduceMean", states[0], axes=[0]))
        hidden = of.add("Softsign", total)
        return (hidden,), (hidden,)

    last, _ = of.scan(step, [of.zeros("x", HIDDEN)], [of.turned("x", 1, 0, 2)])
    return of.model(of.head(last, HIDDEN), LAST)


def scan_batch_first():
    """A Scan with the batch first, two scanned tensors, and a second state with an axis more, before a GRU."""
    of = Export(10)
    weight, learned = of.weight(FEATURES, HIDDEN), of.weight(1, 2, HIDDEN)

    def step(of, states, entries):
        mean, moments = states
        value = of.add("MatMul", of.add("Mul", *entries), weight)
        mean = of.add("Add", of.add("Mul", mean, of.const(0.75)), value)
        moments = of.add("Tanh", of.add("Add", moments, of.add("Unsqueeze", mean, of.const([1]))))
        return (mean, moments), (of.add("ReduceMax", moments, axes=[1], keepdims=0),)

    first = of.add("Expand", learned, of.add("Concat", of.size("x", 0), of.const([2, HIDDEN]), axis=0))
    both = ["x", of.add("Sigmoid", "x")]
    _, _, every = of.scan(
        step, [of.zeros("x", HIDDEN), first], both, scan_input_axes=[1, 1], scan_output_axes=[1]
    )  # fmt: skip
    y, _ = of.layer("GRU", of.turned(every, 1, 0, 2), HIDDEN)
    return of.model(of.head(of.turned(of.add("Squeeze", y, of.const([1])), 1, 0, 2), HIDDEN), EVERY)


#: By name: the graph, and the segments that the log names.
MODELS = {
    "torch_gru_stack": (torch_stack("GRU", False, False), "chain1"),
    "torch_gru_stack_last": (torch_stack("GRU", False, True), "chain1"),
    "torch_lstm_stack_expanded": (torch_stack("LSTM", False, False, by_expand=True), "chain1"),
    "torch_bidirectional_stack": (torch_stack("LSTM", True, False), "chain1, chain2, chain3"),
    "torch_bidirectional_last": (torch_stack("GRU", True, True), "chain1, chain2, chain3"),
    "keras_tagger": (keras_tagger(), "chain1, chain2"),
    "keras_dense": (keras_dense(), "chain1, stage2"),
    "torch_regressor": (torch_regressor(), "chain1"),
    "keras_classifier": (keras_classifier(), "chain1, chain2"),
    "tf2onnx_gru": (tf2onnx_gru(), "chain1"),
    "tf2onnx_bidirectional": (tf2onnx_bidirectional(), "chain1, chain2"),
    "scan_lstm": (scan_lstm(), "chain1, chain2"),
    "scan_cell": (scan_cell(), "chain1"),
    "scan_batch_first": (scan_batch_first(), "chain1"),
    # What an encoder leaves is the input, or the first state, of a decoder that runs as a whole.
    "repeating_seq2seq": (repeating_seq2seq(), "chain1, stage2"),
    "forced_seq2seq": (forced_seq2seq(), "chain1, stage2"),
}
