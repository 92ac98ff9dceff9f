"""The models and requests of scripts/attacks.py, each built from bytes: what a hostile client or a careless owner may
send."""

import numpy as np
import tritonclient.grpc as triton
from onnx_bytes import ELEMENT, constant, graph, model, node, number, port, scale, text
from repository_on_disk import config, write_model
from tritonclient.grpc import service_pb2

#: The value of a model's own external weights, and that of other files with the same name.
OWN, DECOY = 3.0, 5.0
#: Depth of nested conditions that blocks a loader.
NESTED = 26
ROW = ("batch", 16)
#: Batching with batches as large as the attack's clients can fill.
BATCHES = "dynamic_batching { preferred_batch_size: [64] max_queue_delay_microseconds: 100000 }"
PORTS = [port("INPUT0", "FP32", ROW)], [port("OUTPUT0", "FP32", ROW)]


def given(name, values, datatype):
    one = triton.InferInput(name, list(values.shape), datatype)
    one.set_data_from_numpy(values)
    return one


def cell_inputs(name, rng, token=None):
    """Returns a request for one of the example models of cells. A given `token` replaces its second token."""
    length = int(rng.integers(4, 12))
    tokens = rng.integers(3, 200, (1, length))
    if token is not None:
        tokens[0, 1] = token
    if name != "tree-lstm":
        return [given("source" if name == "seq2seq" else "tokens", tokens, "INT64")]
    # A chain: node i has the previous node and a leaf as children.
    leaves = np.full((length, 2), -1, np.int32)
    joins = np.array([[length + i - 1 if i else 0, i + 1] for i in range(length - 1)], np.int32)
    children = np.concatenate([leaves, joins])[np.newaxis]
    words = np.concatenate([tokens, np.zeros((1, length - 1), np.int64)], axis=1)
    return [given("tokens", words, "INT64"), given("children", children, "INT32")]


def repeat_request(count):
    """Returns the bytes of a request for that many responses."""
    row = service_pb2.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1, 16])
    raw = np.full(16, count, "<f4").tobytes()
    return service_pb2.ModelInferRequest(model_name="repeat", inputs=[row], raw_input_contents=[raw]).SerializeToString()


def lookup(folder):
    """Writes a model that looks up the sum of two inputs in a table, which nothing can check before the graph has
    run."""
    graph = model(
        [node("Add", ["INPUT0", "INPUT1"], ["index"]), node("Gather", ["table", "index"], ["OUTPUT0"])],
        [port("INPUT0", "INT64", ("batch", 1)), port("INPUT1", "INT64", ("batch", 1))],
        [port("OUTPUT0", "FP32", ("batch", 1))],
        [constant("table", np.arange(16, dtype=np.float32))],
    )
    inputs = {name: ("INT64", [1]) for name in ("INPUT0", "INPUT1")}
    described = config("lookup", inputs, {"OUTPUT0": ("FP32", [1])}, 64, BATCHES)
    write_model(folder, "lookup", graph, described)
    return folder


def lookup_inputs(bad):
    return [given(name, np.full((1, 1), 10**6 if bad else 3), "INT64") for name in ("INPUT0", "INPUT1")]


# External weights ----------------------------------------------------------------------------------------------------


def outside(name, location):
    """Returns an FP32 initializer of 16 elements whose bytes are in a file."""
    entries = [text(13, text(1, "location") + text(2, location)), text(13, text(1, "length") + text(2, "64"))]
    return number(1, 16) + number(2, ELEMENT["FP32"]) + text(8, name) + b"".join(entries) + number(14, 1)


def scaled_by_file(location):
    return model([node("Mul", ["INPUT0", "factor"], ["OUTPUT0"])], *PORTS, [outside("factor", location)])


def sixteen(value):
    return np.full(16, value, "<f4").tobytes()


def decoy(folder):
    """Creates a working directory with weights under the name that models use."""
    elsewhere = folder / "working-directory"
    elsewhere.mkdir()
    (elsewhere / "weights.bin").write_bytes(sixteen(DECOY))
    (folder / "secret.bin").write_bytes(sixteen(DECOY))
    return elsewhere


def external(folder):
    """Returns (repository, model, the only right answer) by what is tried."""
    cases = {}
    for what, location, own in (
        ("weights beside the model", "weights.bin", True),
        ("weights that are missing", "weights.bin", False),
        ("a file above the directory", "../secret.bin", False),
        ("a file by its absolute path", str(folder / "secret.bin"), False),
    ):
        repository = folder / what.replace(" ", "-")
        described = config("scaled", {"INPUT0": ("FP32", [16])})
        version = write_model(repository, "scaled", scaled_by_file(location), described) / "1"
        if own:
            (version / "weights.bin").write_bytes(sixteen(OWN))
        # Above the version's directory, and above the working directory.
        (version.parent / "secret.bin").write_bytes(sixteen(DECOY))
        cases[what] = repository, "scaled", OWN
    return cases


# Hostile models ------------------------------------------------------------------------------------------------------


def calls_itself():
    """Returns a function whose only node is a call of itself."""
    own = node("f", ["x"], ["y"]) + text(7, "own")
    function = text(1, "f") + text(4, "x") + text(5, "y") + text(7, own) + text(9, text(1, "own") + number(2, 1))
    function += text(10, "own")
    caller = model([node("f", ["INPUT0"], ["OUTPUT0"]) + text(7, "own")], *PORTS)
    return caller + text(8, text(1, "own") + number(2, 1)) + text(25, function)


def nested_conditions():
    """Returns nested conditions on a flag that depends on the input. The engine's work doubles with each level."""
    inner = leaf(NESTED)
    for depth in reversed(range(NESTED)):
        inner = body(node("If", ["flag"], [f"r{depth}"], then_branch=inner, else_branch=leaf(depth)), f"r{depth}")
    nodes = [
        node("ReduceSum", ["INPUT0"], ["sum"], keepdims=0),
        node("Cast", ["sum"], ["flag"], to=ELEMENT["BOOL"]),
        node("If", ["flag"], ["OUTPUT0"], then_branch=inner, else_branch=leaf(NESTED + 1)),
    ]
    return model(nodes, *PORTS)


def body(only, result):
    return graph([only], [], [port(result, "FP32", ROW)])


def leaf(depth):
    return body(node("Identity", ["INPUT0"], [f"e{depth}"]), f"e{depth}")


def hostile():
    """Returns graphs by what is wrong with them."""
    return {"a function that calls itself": calls_itself(), f"{NESTED} nested conditions": nested_conditions()}


def honest():
    return scale(2)


def endless():
    """Returns a loop that never ends."""
    step = graph(
        [node("Identity", ["go"], ["again"]), node("Identity", ["row"], ["same"])],
        [port("at", "INT64", ()), port("go", "BOOL", ()), port("row", "FP32", ROW)],
        [port("again", "BOOL", ()), port("same", "FP32", ROW)],
    )
    yes = number(2, ELEMENT["BOOL"]) + text(8, "yes") + text(9, b"\x01")
    return model([node("Loop", ["", "yes", "INPUT0"], ["OUTPUT0"], body=step)], *PORTS, [yes])


def folded(elements):
    """Returns a model of about 230 bytes with a constant of that many elements, which is folded when it is opened."""
    nodes = [node("Expand", ["one", "size"], ["big"]), node("ReduceMax", ["big"], ["top"], keepdims=0)]
    nodes.append(node("Add", ["INPUT0", "top"], ["OUTPUT0"]))
    return model(nodes, *PORTS, [constant("one", [1.0]), constant("size", [elements])])


def weighty(megabytes, factor):
    """Returns a model whose file has a weight of that many megabytes, which its runs need."""
    weight = constant("weight", np.full((16, int(megabytes * 250_000 / 16)), factor, np.float32))
    nodes = [
        node("MatMul", ["INPUT0", "weight"], ["product"]),
        node("ReduceMax", ["product"], ["top"], axes=[1]),
        node("Add", ["INPUT0", "top"], ["OUTPUT0"]),
    ]
    return model(nodes, *PORTS, [weight])


#: A configuration whose model runs once before it is ready.
WARMED = {
    "backend": "onnxruntime",
    "max_batch_size": 4,
    "model_warmup": [
        {
            "name": "first",
            "batch_size": 1,
            "inputs": {"INPUT0": {"data_type": "TYPE_FP32", "dims": [16], "zero_data": True}},
        }
    ],
}


def load_request(name, graph, described='{"backend": "onnxruntime"}'):
    """Returns the bytes of a RepositoryModelLoad with the model's file and its configuration."""
    parameters = {"config": text(3, described), "file:1/model.onnx": text(4, graph)}
    entries = b"".join(text(3, text(1, key) + text(2, value)) for key, value in parameters.items())
    return text(2, name) + entries
