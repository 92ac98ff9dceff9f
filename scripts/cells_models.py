"""Models for comparisons with cells: the same weights as one graph, the LSTM's bare step, and translation with other
maximum batches."""

import sys

import numpy as np
from comparing import called
from server import ROOT

sys.path.insert(0, str(ROOT / "tests" / "python"))
import cells_reference  # noqa: E402
import onnx_bytes as onnx  # noqa: E402

#: Largest batch of the whole graphs.
BATCH = 64
#: Leaves of the trees that one graph is written for.
LEAVES = 16

PADDED_YAML = f"""max_batch_size: {BATCH}
inputs: [{{ name: tokens, dtype: INT64, dims: [-1], pad: {{ axis: length, value: 0 }} }}]
outputs: [{{ name: hidden, dtype: FP32, dims: [HIDDEN] }}]
batching: {{ policy: window }}
"""
STEP_YAML = f"""max_batch_size: {BATCH}
inputs:
  - {{ name: x, dtype: INT64, dims: [] }}
  - {{ name: h, dtype: FP32, dims: [HIDDEN] }}
  - {{ name: c, dtype: FP32, dims: [HIDDEN] }}
outputs: [{{ name: h_next, dtype: FP32, dims: [HIDDEN] }}, {{ name: c_next, dtype: FP32, dims: [HIDDEN] }}]
"""
TREE_YAML = f"""max_batch_size: {BATCH}
inputs: [{{ name: tokens, dtype: INT64, dims: [-1] }}, {{ name: children, dtype: INT32, dims: [-1, 2] }}]
outputs: [{{ name: root, dtype: FP32, dims: [HIDDEN] }}]
batching: {{ policy: window }}
"""
TRANSLATION_YAML = f"""max_batch_size: {BATCH}
inputs: [{{ name: source, dtype: INT64, dims: [-1], pad: {{ axis: length, value: 0 }} }}]
outputs: [{{ name: words, dtype: INT64, dims: [] }}, {{ name: sum, dtype: INT64, dims: [] }}]
batching: {{ policy: window }}
"""


def lengths(tokens):
    """Returns nodes that count each row's tokens above 0, as INT32."""
    return [
        onnx.node("Greater", [tokens, "zero"], ["is_word"]),
        onnx.node("Cast", ["is_word"], ["words_of"], to=onnx.ELEMENT["INT32"]),
        onnx.node("ReduceSum", ["words_of", "second"], ["lengths"], keepdims=0),
    ], [onnx.constant("zero", np.int64(0)), onnx.constant("second", np.array([1]))]


def lstm(weights, tokens, last, lengths=""):
    """Returns nodes that run ONNX's own operator over [batch, length] tokens, with each row's lengths if these are
    named, and return h, c or both."""
    hidden = weights["lstm.bias"].size // 4
    # The cell has the gates i, f, g, o side by side; the operator has i, o, f, c stacked.
    order = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in (0, 3, 1, 2)])
    gates = weights["lstm.weight"][:, order].T
    bias = np.concatenate([weights["lstm.bias"][order], np.zeros(4 * hidden, np.float32)])
    left = [f"{name}_of_all" for name in last]
    nodes = [
        onnx.node("Gather", ["embedding", tokens], ["embedded"]),
        onnx.node("Transpose", ["embedded"], ["by_step"], perm=[1, 0, 2]),
        onnx.node("LSTM", ["by_step", "W", "R", "B", lengths], ["", *left], hidden_size=hidden),
        *(onnx.node("Squeeze", [all_layers, "first"], [name]) for all_layers, name in zip(left, last)),
    ]
    constants = [
        onnx.constant("embedding", weights["embedding.weight"]),
        onnx.constant("W", gates[np.newaxis, :, :hidden]),
        onnx.constant("R", gates[np.newaxis, :, hidden:]),
        onnx.constant("B", bias[np.newaxis]),
        onnx.constant("first", np.array([0])),
    ]
    return nodes, constants


def lstm_graph(folder, padded):
    """Returns the LSTM over tokens as one graph. If `padded`, token 0 is padding; otherwise all rows of a batch have
    the same length, as exporters write it."""
    weights = cells_reference.read_weights(str(folder / "1" / "step.onnx"))
    counting, few = lengths("tokens") if padded else ([], [])
    running, own = lstm(weights, "tokens", ["hidden"], "lengths" if padded else "")
    inputs = [onnx.port("tokens", "INT64", ("batch", "length"))]
    outputs = [onnx.port("hidden", "FP32", ("batch", weights["lstm.bias"].size // 4))]
    return onnx.model(counting + running, inputs, outputs, few + own)


def gated(gates, names, tanhs):
    """Returns nodes that split sums into gates and apply an activation: `Tanh` to those named in `tanhs`, `Sigmoid` to
    the others."""
    split = onnx.node("Split", [gates, f"parts{len(names)}"], [f"{name}_sum" for name in names], axis=1)
    squash = (onnx.node("Tanh" if name in tanhs else "Sigmoid", [f"{name}_sum"], [name]) for name in names)
    return [split, *squash]


def whole_tree(folder):
    """Returns the tree LSTM over complete trees of LEAVES leaves, level by level, for a whole batch at once. It ignores
    `children`."""
    leaf, inner = (cells_reference.read_weights(str(folder / "1" / f"{name}.onnx")) for name in ("leaf", "node"))
    hidden = leaf["leaf.bias"].size // 3
    nodes = [
        onnx.node("Gather", ["tokens", "leaves"], ["of_leaves"], axis=1),
        onnx.node("Reshape", ["of_leaves", "flat"], ["words"]),
        onnx.node("Gather", ["embedding", "words"], ["embedded"]),
        onnx.node("Gemm", ["embedded", "leaf.weight", "leaf.bias"], ["leaf.sums"]),
        *gated("leaf.sums", ["leaf.i", "leaf.o", "leaf.u"], ["leaf.u"]),
        onnx.node("Mul", ["leaf.i", "leaf.u"], [f"c{LEAVES}"]),
        onnx.node("Tanh", [f"c{LEAVES}"], ["leaf.squashed"]),
        onnx.node("Mul", ["leaf.o", "leaf.squashed"], [f"h{LEAVES}"]),
    ]
    level = LEAVES
    while level > 1:
        below, level = level, level // 2
        at = f"{level}."
        names = [at + gate for gate in ("i", "left", "right", "o", "u")]
        nodes += [
            # The two children are side by side.
            onnx.node("Reshape", [f"h{below}", "pairs"], [at + "joined"]),
            onnx.node("Gemm", [at + "joined", "node.weight", "node.bias"], [at + "sums"]),
            *gated(at + "sums", names, [at + "u"]),
            onnx.node("Reshape", [f"c{below}", "pairs"], [at + "memories"]),
            onnx.node("Split", [at + "memories", "halves"], [at + "c_left", at + "c_right"], axis=1),
            onnx.node("Mul", [at + "left", at + "c_left"], [at + "kept_left"]),
            onnx.node("Mul", [at + "right", at + "c_right"], [at + "kept_right"]),
            onnx.node("Mul", [at + "i", at + "u"], [at + "own"]),
            onnx.node("Sum", [at + "own", at + "kept_left", at + "kept_right"], [f"c{level}"]),
            onnx.node("Tanh", [f"c{level}"], [at + "squashed"]),
            onnx.node("Mul", [at + "o", at + "squashed"], [f"h{level}"]),
        ]
    nodes.append(onnx.node("Identity", ["h1"], ["root"]))
    constants = [
        onnx.constant("embedding", leaf["embedding.weight"]),
        *(onnx.constant(name, leaf[name]) for name in ("leaf.weight", "leaf.bias")),
        *(onnx.constant(name, inner[name]) for name in ("node.weight", "node.bias")),
        onnx.constant("leaves", np.array(leaves_of_complete(LEAVES))),
        onnx.constant("flat", np.array([-1])),
        onnx.constant("pairs", np.array([-1, 2 * hidden])),
        onnx.constant("halves", np.full(2, hidden)),
        onnx.constant("parts3", np.full(3, hidden)),
        onnx.constant("parts5", np.full(5, hidden)),
    ]
    inputs = [onnx.port("tokens", "INT64", ("batch", "nodes")), onnx.port("children", "INT32", ("batch", "nodes", 2))]
    return onnx.model(nodes, inputs, [onnx.port("root", "FP32", ("batch", hidden))], constants)


def leaves_of_complete(leaves, first=0):
    """Returns the numbers of a complete tree's leaves from left to right. Nodes are numbered before their left subtree,
    and that before the right one."""
    if leaves == 1:
        return [first]
    half = leaves // 2
    return leaves_of_complete(half, first + 1) + leaves_of_complete(half, first + leaves)


def whole_translation(folder):
    """Returns a graph that reads a padded batch, then writes until its last row has ended: outputs how many words each
    row has written, and their sum."""
    encoder, decoder = (cells_reference.read_weights(str(folder / "1" / f"{name}.onnx")) for name in ("encoder", "decoder"))
    hidden = decoder["lstm.bias"].size // 4
    (counting, few), (reading, own) = lengths("source"), lstm(encoder, "source", ["h", "c"], "lengths")
    body = [
        onnx.node("Gather", ["decoder.embedding", "token_in"], ["x"]),
        onnx.node("Concat", ["x", "h_in"], ["joined"], axis=1),
        onnx.node("Gemm", ["joined", "decoder.weight", "decoder.bias"], ["sums"]),
        *gated("sums", ["i", "f", "g", "o"], ["g"]),
        onnx.node("Mul", ["f", "c_in"], ["kept"]),
        onnx.node("Mul", ["i", "g"], ["added"]),
        onnx.node("Add", ["kept", "added"], ["c_out"]),
        onnx.node("Tanh", ["c_out"], ["squashed"]),
        onnx.node("Mul", ["o", "squashed"], ["h_out"]),
        onnx.node("Gemm", ["h_out", "projection.weight", "projection.bias"], ["scores"]),
        onnx.node("ArgMax", ["scores"], ["token_out"], axis=1, keepdims=0),
        # A row that has ended writes no more words, but is computed until all rows have ended.
        onnx.node("Add", ["count_in", "writes_in"], ["count_out"]),
        onnx.node("Mul", ["token_out", "writes_in"], ["written"]),
        onnx.node("Add", ["sum_in", "written"], ["sum_out"]),
        onnx.node("Equal", ["token_out", "end"], ["says_end"]),
        onnx.node("GreaterOrEqual", ["count_out", "most"], ["has_most"]),
        onnx.node("Or", ["says_end", "has_most"], ["ends"]),
        onnx.node("Not", ["ends"], ["goes_on"]),
        onnx.node("Cast", ["goes_on"], ["goes_on_number"], to=onnx.ELEMENT["INT64"]),
        onnx.node("Mul", ["writes_in", "goes_on_number"], ["writes_out"]),
        onnx.node("ReduceMax", ["writes_out"], ["any_writes"], keepdims=0),
        onnx.node("Cast", ["any_writes"], ["again_out"], to=onnx.ELEMENT["BOOL"]),
    ]
    numbers = [("token", "INT64", ("batch",)), ("count", "INT64", ("batch",)), ("sum", "INT64", ("batch",))]
    state = [*numbers, ("writes", "INT64", ("batch",)), ("h", "FP32", ("batch", hidden)), ("c", "FP32", ("batch", hidden))]
    again = ("again", "BOOL", ())
    ports = [[onnx.port(f"{name}_{side}", kind, dims) for name, kind, dims in (again, *state)] for side in ("in", "out")]
    loop = onnx.graph(body, [onnx.port("turn", "INT64", ()), *ports[0]], ports[1])
    nodes = [
        *counting,
        *reading,
        onnx.node("Cast", ["lengths"], ["read"], to=onnx.ELEMENT["INT64"]),
        onnx.node("Add", ["read", "spare"], ["most"]),
        onnx.node("Mul", ["read", "zero"], ["none"]),
        onnx.node("Add", ["none", "start"], ["start_of_all"]),
        onnx.node("Cast", ["start"], ["yes"], to=onnx.ELEMENT["BOOL"]),
        onnx.node(
            "Loop",
            ["", "yes", "start_of_all", "none", "none", "start_of_all", "h", "c"],
            ["last", "words", "sum", "writing", "last_h", "last_c"],
            body=loop,
        ),
    ]
    constants = [
        *few,
        *own,
        onnx.constant("decoder.embedding", decoder["embedding.weight"]),
        onnx.constant("decoder.weight", decoder["lstm.weight"]),
        onnx.constant("decoder.bias", decoder["lstm.bias"]),
        *(onnx.constant(name, decoder[name]) for name in ("projection.weight", "projection.bias")),
        onnx.constant("parts4", np.full(4, hidden)),
        onnx.constant("spare", np.int64(cells_reference.SPARE_STEPS)),
        # Also the initial number of rows that write: all of them.
        onnx.constant("start", np.int64(cells_reference.START)),
        onnx.constant("end", np.int64(cells_reference.END)),
    ]
    outputs = [onnx.port(name, "INT64", ("batch",)) for name in ("words", "sum")]
    return onnx.model(nodes, [onnx.port("source", "INT64", ("batch", "length"))], outputs, constants)


def hidden_size(lstm):
    """Returns the hidden size of the LSTM in a model's folder."""
    return cells_reference.read_weights(str(lstm / "1" / "step.onnx"))["lstm.bias"].size // 4


def write_model(folder, name, yaml, graph, hidden):
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "model.yaml").write_text(yaml.replace("HIDDEN", str(hidden)))
    (folder / name / "1" / "model.onnx").write_bytes(graph)


def write_step(lstm, folder):
    """Writes the LSTM's bare step as a model of its own."""
    write_model(folder, "step", STEP_YAML, (lstm / "1" / "step.onnx").read_bytes(), hidden_size(lstm))


def write_whole(folder):
    """Adds to the models `lstm`, `tree-lstm` and `seq2seq` of a folder: each as one graph, and the LSTM's bare step as
    a model."""
    write_step(folder / "lstm", folder)
    made = (
        ("lstm-padded", PADDED_YAML, lstm_graph(folder / "lstm", padded=True)),
        (f"tree-{LEAVES}", TREE_YAML, whole_tree(folder / "tree-lstm")),
        ("seq2seq-padded", TRANSLATION_YAML, whole_translation(folder / "seq2seq")),
    )
    for name, yaml, graph in made:
        write_model(folder, name, yaml, graph, hidden_size(folder / "lstm"))


def write_models(program, folder):
    """Writes the models of cells, each also as one graph, the LSTM's bare step, and translation, a quarter as wide,
    with other maximum batches."""
    called(program, "models", "--out", folder, "--only", "lstm,lstm-projected,tree-lstm")
    called(program, "models", "--out", folder, "--only", "seq2seq", "--quarter")
    write_whole(folder)
    text = (folder / "seq2seq" / "model.yaml").read_text()
    (folder / "seq2seq-256").mkdir()
    (folder / "seq2seq-256" / "model.yaml").write_text(text.replace(", 256, 512]", ", 256]"))
    (folder / "seq2seq-256" / "1").symlink_to(folder / "seq2seq" / "1")
