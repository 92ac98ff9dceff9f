"""What the server cannot serve, with clear errors: files that are no models, graphs whose outputs are no tensors,
outputs of any size."""

import numpy as np
import tritonclient.grpc as triton
from clients import refused, tensor
from onnx_bytes import ELEMENT, constant, identity, model, node, number, port, text
from repository_on_disk import config, write_model

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 90387606\n"


def maps(name):
    """Returns a port that is a sequence of maps from INT64 to FP32."""
    value = text(1, number(1, ELEMENT["FP32"]))
    of_maps = text(5, number(1, ELEMENT["INT64"]) + text(2, value))
    return text(1, name) + text(2, text(4, text(1, of_maps)))


def shapeless(name):
    """Returns an FP32 port without a shape."""
    return text(1, name) + text(2, text(1, number(1, ELEMENT["FP32"])))


def zipmapped():
    """Returns a classifier as converters of scikit-learn models write it."""
    nodes = [
        node("Identity", ["scores"], ["probabilities"]),
        node("ZipMap", ["probabilities"], ["output_probability"], classlabels_int64s=[0, 1])
        + text(7, "ai.onnx.ml"),
    ]
    return model(nodes, [port("scores", "FP32", ("n", 2))], [maps("output_probability")])


def total():
    """y = the sum of x, a scalar whose shape the graph does not declare."""
    return model([node("ReduceSum", ["x"], ["y"], keepdims=0)], [port("x", "FP32", (3,))], [shapeless("y")])


def test_what_cannot_be_served_says_what_was_found_and_what_to_do(start, tmp_path):
    write_model(tmp_path, "pointer", POINTER)
    write_model(tmp_path, "classifier", zipmapped())
    write_model(tmp_path, "total", total(), config("total", {"x": ("FP32", [3])}, {"y": ("FP32", [2])}, max_batch_size=0))
    write_model(tmp_path, "hub", identity(), version="onnx")
    server = start(tmp_path, "--model-control-mode=explicit")
    expected = {
        "pointer": ("pointer/1/model.onnx' is not an ONNX model", "pointer of Git LFS", "run 'git lfs pull'"),
        "classifier": ("'output_probability' as a sequence of maps, expected a tensor", "zipmap=False"),
        "total": ("output[0].dims: the graph has the shape [] for 'y', but the configuration [2]",),
        "hub": ("no version directory", "found 'onnx/model.onnx', expected '1/model.onnx': make the directory '1'"),
    }
    with triton.InferenceServerClient(server.grpc) as client:
        for name, facts in expected.items():
            with refused("INVALID_ARGUMENT", *facts):
                client.load_model(name)


def test_outputs_as_large_as_a_file_says_are_refused_and_the_server_goes_on(start, tmp_path):
    """Each output is declared larger than any memory; one graph makes as many numbers as a request asks for."""
    for name, length in (("large", 10**11), ("huge", 2**50)):
        graph = model([node("Identity", ["x"], ["y"])], [port("x", "FP32", ("batch", "n"))], [port("y", "FP32", ("batch", "n"))])
        write_model(tmp_path, name, graph, config(name, {"x": ("FP32", [-1])}, {"y": ("FP32", [length])}))
    nodes = [node("Squeeze", ["count"], ["most"]), node("Range", ["zero", "most", "one"], ["y"])]
    constants = [constant("zero", np.array(0)), constant("one", np.array(1))]
    graph = model(nodes, [port("count", "INT64", (1,))], [port("y", "INT64", ("n",))], constants)
    write_model(tmp_path, "numbers", graph)
    server = start(tmp_path, "--max-output-bytes=1000000", "--onnxruntime-memory-bytes=100000000")
    with triton.InferenceServerClient(server.grpc) as client:
        row = tensor("x", np.ones((1, 2), np.float32))
        for name, length in (("large", 10**11), ("huge", 2**50)):
            facts = (f"output 'y' of model '{name}' would take {4 * length} bytes for the shape [1, {length}]", "1000000 bytes")
            with refused("INTERNAL", *facts):
                client.infer(name, [row])

        def count(most):
            return client.infer("numbers", [tensor("count", [most])]).as_numpy("y")

        with refused("INTERNAL", "output 'y' of model 'numbers' takes 1600000 bytes for the shape [200000]"):
            count(200_000)
        with refused("INTERNAL", "Available memory of", "is smaller than requested bytes of"):
            count(2**40)
        np.testing.assert_array_equal(count(100_000), np.arange(100_000))
