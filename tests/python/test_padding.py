"""Padded models whose outputs have other lengths than their inputs: an answer does not depend on the requests that
share its batch."""

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ask_all, tensor
from onnx_bytes import constant, model, node, port
from repository_on_disk import config, write_model

LENGTHS = (100, 57, 33)
TOGETHER = """
dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 5000000 }
parameters { key: "pad.speech" value { string_value: "T=0" } }
parameters { key: "batching.bucket_width" value { string_value: "0" } }
"""
BOUNDS = [constant(name, [value]) for name, value in (("start", 0), ("end", 2**62), ("axis", 1), ("step", 2))]


def every_second(axis):
    """Returns a model of every second step of its input; `axis` is the output's name for its steps."""
    nodes = [node("Slice", ["speech", "start", "end", "axis", "step"], ["probs"])]
    speech = port("speech", "FP32", ("batch", "T", 2))
    return model(nodes, [speech], [port("probs", "FP32", ("batch", axis, 2))], BOUNDS)


def steps_that_are_not_zero(axis):
    """Returns a model whose output's length depends on what the input holds, which no inference knows."""
    nodes = [
        node("Squeeze", ["speech", "zero"], ["one"]),
        node("ReduceSum", ["one", "one_axis"], ["sums"], keepdims=0),
        node("NonZero", ["sums"], ["places"]),
        node("Unsqueeze", ["places", "zero"], ["probs"]),
    ]
    constants = [constant("zero", [0]), constant("one_axis", [1])]
    speech = port("speech", "FP32", ("batch", "T", 2))
    return model(nodes, [speech], [port("probs", "INT64", ("batch", 1, axis))], constants)


def written(folder, name, graph, output=("FP32", [-1, 2]), more=""):
    text = config(name, {"speech": ("FP32", [-1, 2])}, {"probs": output}, extra=TOGETHER + more)
    write_model(folder, name, graph, text)


@pytest.mark.parametrize("axis", ["(T + 1)//2", "frames"])
def test_an_answer_is_cut_back_to_the_length_that_follows_from_its_own(start, tmp_path, axis):
    written(tmp_path, "m", every_second(axis))
    server = start(tmp_path)
    speech = [np.random.default_rng(length).random((1, length, 2), np.float32) for length in LENGTHS]
    answers, statistics = ask_all(server, "m", [[tensor("speech", one)] for one in speech])
    for number, one in enumerate(speech):
        result, error = answers[number]
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("probs"), one[:, ::2])
    assert statistics.execution_count == 1, "they shared a batch"


def test_an_output_of_unknown_length_is_refused_unless_the_configuration_names_it(start, tmp_path):
    shape = ("INT64", [1, -1])
    written(tmp_path, "open", steps_that_are_not_zero("places"), shape)
    own = 'parameters { key: "axes.probs" value { string_value: "-,own" } }'
    written(tmp_path, "named", steps_that_are_not_zero("places"), shape, own)
    server = start(tmp_path, until="settled")
    with triton.InferenceServerClient(server.grpc) as client:
        states = {entry.name: (entry.state, entry.reason) for entry in client.get_model_repository_index().models}
    assert states["named"][0] == "READY"
    state, reason = states["open"]
    assert state == "UNAVAILABLE"
    assert "dimension 1 of 'probs' varies and does not follow from the inputs" in reason
