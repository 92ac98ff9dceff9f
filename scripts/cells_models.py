"""Models for comparisons with cells: the example LSTM as one graph, its bare step, and translation with other batches."""

import sys

import numpy as np
from compare_policies import called
from server import ROOT

sys.path.insert(0, str(ROOT / "tests" / "python"))
import cells_reference  # noqa: E402
import onnx_bytes as onnx  # noqa: E402

#: Largest batch of the whole graph.
BATCH = 64

PADDED_YAML = f"""max_batch_size: {BATCH}
inputs: [{{ name: tokens, dtype: INT64, dims: [-1], pad: {{ axis: length, value: 0 }} }}]
outputs: [{{ name: hidden, dtype: FP32, dims: [1024] }}]
batching: {{ policy: window }}
"""
STEP_YAML = f"""max_batch_size: {BATCH}
inputs:
  - {{ name: x, dtype: INT64, dims: [] }}
  - {{ name: h, dtype: FP32, dims: [1024] }}
  - {{ name: c, dtype: FP32, dims: [1024] }}
outputs: [{{ name: h_next, dtype: FP32, dims: [1024] }}, {{ name: c_next, dtype: FP32, dims: [1024] }}]
"""


def whole_graph(step):
    """The LSTM over [batch, length] tokens as ONNX's own operator, told each row's length: that of its tokens above 0."""
    weights = cells_reference.read_weights(str(step))
    hidden = weights["lstm.bias"].size // 4
    # The cell has the gates i, f, g, o side by side, the operator i, o, f, c above one another.
    order = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in (0, 3, 1, 2)])
    gates = weights["lstm.weight"][:, order].T
    bias = np.concatenate([weights["lstm.bias"][order], np.zeros(4 * hidden, np.float32)])
    nodes = [
        onnx.node("Gather", ["embedding", "tokens"], ["embedded"]),
        onnx.node("Transpose", ["embedded"], ["by_step"], perm=[1, 0, 2]),
        onnx.node("Greater", ["tokens", "none"], ["is_word"]),
        onnx.node("Cast", ["is_word"], ["words"], to=onnx.ELEMENT["INT32"]),
        onnx.node("ReduceSum", ["words", "second"], ["lengths"], keepdims=0),
        onnx.node("LSTM", ["by_step", "W", "R", "B", "lengths"], ["", "last"], hidden_size=hidden),
        onnx.node("Squeeze", ["last", "first"], ["hidden"]),
    ]
    constants = [
        onnx.constant("embedding", weights["embedding.weight"]),
        onnx.constant("W", gates[np.newaxis, :, :hidden]),
        onnx.constant("R", gates[np.newaxis, :, hidden:]),
        onnx.constant("B", bias[np.newaxis]),
        onnx.constant("none", np.int64(0)),
        onnx.constant("first", np.array([0])),
        onnx.constant("second", np.array([1])),
    ]
    inputs = [onnx.port("tokens", "INT64", ("batch", "length"))]
    return onnx.model(nodes, inputs, [onnx.port("hidden", "FP32", ("batch", hidden))], constants)


def write_models(program, folder):
    """Cells; the LSTM as one graph; its bare step as a model; and translation, a quarter as wide, with other batches."""
    called(program, "models", "--out", folder, "--only", "lstm,lstm-projected,tree-lstm")
    step = folder / "lstm" / "1" / "step.onnx"
    for name, yaml, graph in (("lstm-padded", PADDED_YAML, whole_graph(step)), ("step", STEP_YAML, step.read_bytes())):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "model.yaml").write_text(yaml)
        (folder / name / "1" / "model.onnx").write_bytes(graph)
    called(program, "models", "--out", folder, "--only", "seq2seq", "--quarter")
    text = (folder / "seq2seq" / "model.yaml").read_text()
    (folder / "seq2seq-256").mkdir()
    (folder / "seq2seq-256" / "model.yaml").write_text(text.replace(", 256, 512]", ", 256]"))
    (folder / "seq2seq-256" / "1").symlink_to(folder / "seq2seq" / "1")
