"""Ensembles with the structures that people configure for Triton: served as they are, or refused by name."""

import queue

import ensembles
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ask_all, tensor
from conftest import serving
from ensembles import Ensemble, kinds, step
from public_ensembles import ENSEMBLES
from repository_on_disk import config, write_model

#: Requests at a time, so that requests of different rows share batches.
REQUESTS = 6


def tensors(ensemble, arrays):
    datatypes = kinds(ensemble.inputs)
    return [tensor(name, values, datatypes[name].datatype) for name, values in arrays.items()]


def assert_same(result, expected):
    for name, values in expected.items():
        np.testing.assert_array_equal(result.as_numpy(name), values, err_msg=name)


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    repository = tmp_path_factory.mktemp("ensembles")
    for name, ensemble in ENSEMBLES.items():
        ensembles.write(repository, name, ensemble)
    with serving(repository, program=program) as running:
        yield running


@pytest.mark.parametrize("name", [name for name, ensemble in ENSEMBLES.items() if not ensemble.sequences])
def test_an_ensemble_answers_as_its_steps(server, name):
    ensemble, rng = ENSEMBLES[name], np.random.default_rng(3)
    most = min(ensemble.batch or 1, 3)
    given = [ensembles.request(ensemble, rng, rows=int(rng.integers(1, most + 1))) for _ in range(REQUESTS)]
    answers, _ = ask_all(server, name, [tensors(ensemble, arrays) for arrays in given])
    for number, (result, error) in answers.items():
        assert error is None, error and error.message()
        assert_same(result, ensembles.run(ensemble, given[number]))


@pytest.mark.parametrize("name", [name for name, ensemble in ENSEMBLES.items() if "?" in ensemble.inputs])
def test_inputs_that_are_left_out_are_left_out_of_the_steps(server, name):
    ensemble, rng = ENSEMBLES[name], np.random.default_rng(5)
    optional = [port for port, kind in kinds(ensemble.inputs).items() if kind.optional]
    choices = [optional[:1], optional[1:], optional]
    given = [
        ensembles.request(ensemble, rng, without=without)
        for without in choices
        if len(without) < len(kinds(ensemble.inputs))
    ]
    answers, _ = ask_all(server, name, [tensors(ensemble, arrays) for arrays in given])
    for number, (result, error) in answers.items():
        assert error is None, error and error.message()
        assert_same(result, ensembles.run(ensemble, given[number]))


def test_each_sequence_has_its_state_in_every_step(server):
    (name,) = [name for name, ensemble in ENSEMBLES.items() if ensemble.sequences]
    ensemble, rng = ENSEMBLES[name], np.random.default_rng(7)
    states = {1: {}, 2: {}}
    with triton.InferenceServerClient(server.grpc) as client:
        for number in range(4):
            for sequence, state in states.items():
                arrays = ensembles.request(ensemble, rng, rows=1)
                flags = {"sequence_start": number == 0, "sequence_end": number == 3}
                result = client.infer(name, tensors(ensemble, arrays), sequence_id=sequence, **flags)
                assert_same(result, ensembles.run(ensemble, arrays, state))


REPEATED = "IN INT32[-1] DELAY UINT32[-1] WAIT UINT32[1]"
#: Ensembles of triton-inference-server/server over a decoupled model, one of them in another.
DECOUPLED = {
    "simple_repeat": ([step("repeat_int32", "IN DELAY WAIT", "OUT")], "", lambda value: value),
    "sequence_repeat": (
        [
            step("repeat_int32", "IN DELAY WAIT", "OUT=repeat_out"),
            step("identity_int32", "INPUT0=repeat_out", "OUTPUT0=OUT"),
        ],
        "repeat_out INT32[1]",
        lambda value: value + 1,
    ),
    "nested_repeat": (
        [
            step("sequence_repeat", "IN DELAY WAIT", "OUT=repeat_out"),
            step("identity_int32", "INPUT0=repeat_out", "OUTPUT0=OUT"),
        ],
        "repeat_out INT32[1]",
        lambda value: value + 2,
    ),
    "fan_repeat": (
        [
            step("repeat_int32", "IN DELAY WAIT", "OUT=repeat_out"),
            step("identity_int32", "INPUT0=repeat_out", "OUTPUT0=identity_out"),
            step("sum_int32", "INPUT__0=repeat_out INPUT__1=identity_out", "OUTPUT__1=OUT"),
        ],
        "repeat_out INT32[1] identity_out INT32[1]",
        lambda value: 2 * value + 1,
    ),
}


def add_graph(left, right, output):
    dims = ("one",)
    made = [ensembles.node("Add", [left, right or "one"], [output])]
    one = (
        ensembles.onnx_bytes.number(2, 6)
        + ensembles.onnx_bytes.text(8, "one")
        + ensembles.onnx_bytes.text(9, b"\x01\0\0\0")
    )
    inputs = [ensembles.port(name, "INT32", dims) for name in (left, right) if name]
    return ensembles.onnx_bytes.model(made, inputs, [ensembles.port(output, "INT32", dims)], [] if right else [one])


def test_decoupled_steps_stream_through_ensembles_and_ensembles_in_them(start, tmp_path):
    one, many = ("INT32", [-1]), {"IN": ("INT32", [-1]), "DELAY": ("UINT32", [-1]), "WAIT": ("UINT32", [1])}
    repeat = config(
        "repeat_int32",
        many,
        {"OUT": ("INT32", [1]), "IDX": ("UINT32", [1])},
        0,
        "model_transaction_policy { decoupled: true }",
    )
    (tmp_path / "repeat_int32" / "1").mkdir(parents=True)
    (tmp_path / "repeat_int32" / "config.pbtxt").write_text(repeat.replace("onnxruntime", "repeat"))
    write_model(tmp_path, "identity_int32", add_graph("INPUT0", None, "OUTPUT0"),
                config("identity_int32", {"INPUT0": one}, {"OUTPUT0": one}, 0))  # fmt: skip
    write_model(tmp_path, "sum_int32", add_graph("INPUT__0", "INPUT__1", "OUTPUT__1"),
                config("sum_int32", {"INPUT__0": one, "INPUT__1": one}, {"OUTPUT__1": one}, 0))  # fmt: skip
    for name, (steps, between, _) in DECOUPLED.items():
        ensemble = Ensemble("triton-inference-server/server", 0, REPEATED, between, "OUT INT32[1]", steps)
        ensembles.write_text(tmp_path, name, ensembles.ensemble_text(name, ensemble))
    server, responses = start(tmp_path), queue.Queue()
    given = [tensor("IN", np.array([4, 2, 9], np.int32)), tensor("DELAY", np.array([1, 2, 3], np.uint32)),
             tensor("WAIT", np.array([5], np.uint32))]  # fmt: skip
    with triton.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: responses.put((result, error)))
        for name, (_, _, expected) in DECOUPLED.items():
            assert client.get_model_config(name).config.model_transaction_policy.decoupled
            client.async_stream_infer(name, given, enable_empty_final_response=True)
            found = []
            while True:
                result, error = responses.get(timeout=120)
                assert error is None, error and error.message()
                if result.get_response().outputs:
                    found.append(result.as_numpy("OUT").tolist())
                if result.get_response().parameters["triton_final_response"].bool_param:
                    break
            assert found == [[expected(value)] for value in (4, 2, 9)], name
        client.stop_stream()


def reasons_of(server):
    with triton.InferenceServerClient(server.grpc) as client:
        index = client.get_model_repository_index().models
    return {entry.name: entry.reason for entry in index if entry.state == "UNAVAILABLE"}


def test_models_that_are_not_onnx_are_refused_with_what_to_do_instead(start, tmp_path):
    foreign = {name: ensemble for name, ensemble in ENSEMBLES.items() if ensemble.foreign}
    for name, ensemble in foreign.items():
        ensembles.write(tmp_path, name, ensemble, ensemble.foreign)
    reasons = reasons_of(start(tmp_path, until="settled"))
    for name, ensemble in foreign.items():
        for model, backend in ensemble.foreign.items():
            reason = reasons[f"{name}_{model}"]
            assert f"'{backend}' is not supported" in reason
            assert "docs/pipelines.md" in reason if backend == "python" else "ONNX" in reason, reason
        at_fault = [
            all(
                fact in reasons[name]
                for fact in (f"step {number}:", f"'{name}_{model}'", f"'{ensemble.foreign[model]}' is not")
            )
            for number, (model, *_) in enumerate(ensemble.steps)
            if model in ensemble.foreign
        ]
        assert at_fault.count(True) == 1, f"not the step, its model and backend: {reasons[name]!r}"


FAN_IN = ENSEMBLES["fan_in"]
#: What public configurations have wrong: the change to a right one, and facts of the refusal.
WRONG = {
    "misspelt_datatype": ("TYPE_FP32", "TYPE_UITN8", ["TYPE_UITN8", "TYPE_UINT8"]),
    "plural_fields": ("input [", "inputs [", ["inputs", "input"]),
    "empty_fields": ("max_batch_size:8 #", "max_batch_size: #", ["expected a key before '['"]),
    "other_name": ('name: "other_name"', 'name: "ensamble"', ["'other_name'", "'ensamble'"]),
    "undeclared_input": ('value: "ENS_INPUT1"', 'value: "input_text"', ["'input_text'", "step 1"]),
    "no_maps": ('input_map { key: "INPUT0" value: "ENS_INPUT0" }', "", ["input_map", "step[0]"]),
    "two_in_a_map": (
        'input_map { key: "INPUT0" value: "PASSED0" } input_map { key: "INPUT1" value: "PASSED1" }',
        'input_map { key: "INPUT0" value: "PASSED0" key: "INPUT1" value: "PASSED1" }',
        ["'key' is already set"],
    ),
}  # fmt: skip


def test_mistakes_of_public_configurations_are_refused_by_name(start, tmp_path):
    ensembles.write(tmp_path, "fan_in", FAN_IN)
    for name, (right, wrong, _) in WRONG.items():
        text = ensembles.ensemble_text(name, FAN_IN, "fan_in_")
        assert right in text, name
        ensembles.write_text(tmp_path, name, text.replace(right, wrong, 1))
    reasons = reasons_of(start(tmp_path, until="settled"))
    assert "fan_in" not in reasons
    for name, (_, _, facts) in WRONG.items():
        for fact in facts:
            assert fact in reasons[name], f"{name}: {fact!r} is not in {reasons[name]!r}"
