"""Pipelines: Triton's ensembles, and `pipeline` of model.yaml, as clients see them."""

import json
import queue

import numpy as np
import tritonclient.grpc as triton
from clients import change, eventually, expires, on_page, refused, rows, scrape, statistics, tensor
from conftest import serving
from onnx_bytes import model, node, port, scale
from repository_on_disk import config, write_model

ROWS16 = ("FP32", [16])


def add(width=16):
    """OUTPUT0 = LEFT + RIGHT, FP32 [batch, width]."""
    dims = ("batch", width)
    return model(
        [node("Add", ["LEFT", "RIGHT"], ["OUTPUT0"])],
        [port("LEFT", "FP32", dims), port("RIGHT", "FP32", dims)],
        [port("OUTPUT0", "FP32", dims)],
    )


def mean_of_row(width=16):
    """MEAN = the mean of each row, FP32 [batch, 1]."""
    return model(
        [node("ReduceMean", ["INPUT0"], ["MEAN"], axes=[1])],
        [port("INPUT0", "FP32", ("batch", width))],
        [port("MEAN", "FP32", ("batch", 1))],
    )


def step(model_name, inputs, outputs, version=-1):
    """A step of ensemble_scheduling; the maps are from names in the model to names in the ensemble."""
    maps = [
        f'{kind} {{ key: "{key}" value: "{value}" }}'
        for kind, names in (("input_map", inputs), ("output_map", outputs))
        for key, value in names.items()
    ]
    return f'step {{ model_name: "{model_name}" model_version: {version} {" ".join(maps)} }}'


def ensemble(name, inputs, outputs, steps, max_batch_size=8):
    text = config(name, inputs, outputs, max_batch_size)
    return text.replace('backend: "onnxruntime"', 'platform: "ensemble"') + f"ensemble_scheduling {{ {' '.join(steps)} }}\n"


def write_ensemble(repository, name, text):
    """As Triton wants it, with an empty version directory."""
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(text)


DOUBLE = step("double", {"INPUT0": "IN"}, {"OUTPUT0": "twice"})
TRIPLE = step("triple", {"INPUT0": "IN"}, {"OUTPUT0": "thrice"})
SUM = step("add", {"LEFT": "twice", "RIGHT": "thrice"}, {"OUTPUT0": "OUT"})


def models(repository, batch=8):
    write_model(repository, "double", scale(2), config("double", {"INPUT0": ROWS16}, max_batch_size=batch))
    write_model(repository, "triple", scale(3), config("triple", {"INPUT0": ROWS16}, max_batch_size=batch))
    both = {"LEFT": ROWS16, "RIGHT": ROWS16}
    write_model(repository, "add", add(), config("add", both, {"OUTPUT0": ROWS16}, max_batch_size=batch))


def diamond(repository, name="diamond", **more):
    steps = [SUM, TRIPLE, DOUBLE]
    write_ensemble(repository, name, ensemble(name, {"IN": ROWS16}, {"OUT": ROWS16}, steps, **more))


def infer(client, name, values, **more):
    return client.infer(name, [tensor("IN", values)], **more).as_numpy("OUT")


def test_an_ensemble_of_triton_answers_and_counts_as_in_triton(start, tmp_path):
    models(tmp_path)
    diamond(tmp_path)
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        before = {name: statistics(client, name) for name in ("diamond", "double", "add")}
        np.testing.assert_array_equal(infer(client, "diamond", rows(3)), rows(3) * 5)
        after = {name: change(before[name], statistics(client, name)) for name in before}
        for name, counts in after.items():
            assert (counts["inference"], counts["execution"], counts["success"]) == (3, 1, 1), name
        parts = sum(after["diamond"][f"{part}_ns"] for part in ("queue", "compute_input", "compute_infer", "compute_output"))
        assert 0 < parts <= after["diamond"]["success_ns"]

        shown = client.get_model_config("diamond").config
        assert (shown.platform, shown.backend, len(shown.ensemble_scheduling.step)) == ("ensemble", "", 3)
        metadata = client.get_model_metadata("diamond")
        assert (metadata.platform, list(metadata.inputs[0].shape)) == ("ensemble", [-1, 16])
        states = {entry.name: entry.state for entry in client.get_model_repository_index().models}
        assert set(states.values()) == {"READY"} and "diamond" in states
        with refused("INVALID_ARGUMENT", "IN", "diamond"):
            infer(client, "diamond", np.zeros((1, 3), np.float32))


def test_a_batch_larger_than_a_models_is_split_and_joined(start, tmp_path):
    models(tmp_path, batch=4)
    diamond(tmp_path, max_batch_size=64)
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        np.testing.assert_array_equal(infer(client, "diamond", rows(30)), rows(30) * 5)


def test_what_does_not_fit_is_refused_with_its_step(start, tmp_path):
    models(tmp_path)
    one = {"IN": ROWS16}, {"OUT": ROWS16}
    refusals = {
        "missing": ([step("nowhere", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"})], "step 0", "'nowhere'"),
        "port": ([step("double", {"INPUT9": "IN"}, {"OUTPUT0": "OUT"})], "step 0", "no input 'INPUT9'", "'INPUT0'"),
        "unmapped": ([step("add", {"LEFT": "IN"}, {"OUTPUT0": "OUT"})], "step 0", "'RIGHT' is required"),
        "unknown": ([step("double", {"INPUT0": "INN"}, {"OUTPUT0": "OUT"})], "reads the tensor 'INN'"),
        "output": ([step("double", {"INPUT0": "IN"}, {"OUTPUT0": "other"})], "no step gives the output 'OUT'"),
        "itself": ([step("itself", {"IN": "IN"}, {"OUT": "OUT"})], "itself -> itself"),
        "cycle": (
            [
                step("add", {"LEFT": "IN", "RIGHT": "b"}, {"OUTPUT0": "a"}),
                step("double", {"INPUT0": "a"}, {"OUTPUT0": "b"}),
                step("double", {"INPUT0": "b"}, {"OUTPUT0": "OUT"}),
            ],
            "steps 0, 1 wait for each other",
        ),
    }
    for name, (steps, *_) in refusals.items():
        write_ensemble(tmp_path, name, ensemble(name, *one, steps))
    wide = {"IN": ("FP32", [17])}, {"OUT": ROWS16}
    write_ensemble(tmp_path, "shape", ensemble("shape", *wide, [step("double", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"})]))
    refusals["shape"] = (None, "step 0", "[-1,16]", "[-1,17]")
    integers = {"IN": ROWS16}, {"OUT": ("INT32", [16])}
    write_ensemble(tmp_path, "type", ensemble("type", *integers, [step("double", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"})]))
    refusals["type"] = (None, "output 'OUT'", "INT32", "FP32")
    (tmp_path / "there" / "1").mkdir(parents=True)
    server = start(tmp_path, until="settled")
    with triton.InferenceServerClient(server.grpc) as client:
        index = {entry.name: (entry.state, entry.reason) for entry in client.get_model_repository_index().models}
    for name, (_, *facts) in refusals.items():
        state, reason = index[name]
        assert state == "UNAVAILABLE", name
        for fact in facts:
            assert fact in reason, f"{name}: {fact!r} is not in {reason!r}"


def test_an_ensemble_brings_its_models_and_takes_them_away(explicit):
    server, repository, client = explicit
    models(repository)
    diamond(repository)
    write_ensemble(
        repository, "outer", ensemble("outer", {"IN": ROWS16}, {"OUT": ROWS16}, [step("diamond", {"IN": "IN"}, {"OUT": "OUT"})])
    )
    client.load_model("outer")
    np.testing.assert_array_equal(infer(client, "outer", rows(2)), rows(2) * 5)

    client.unload_model("add")
    eventually("the outer ensemble is not ready", lambda: not client.is_model_ready("outer"))
    with refused("UNAVAILABLE", "'add'"):
        infer(client, "outer", rows(1))
    client.load_model("add")
    assert client.is_model_ready("outer")
    np.testing.assert_array_equal(infer(client, "outer", rows(1)), rows(1) * 5)

    client.unload_model("outer", unload_dependents=True)
    for name in ("outer", "diamond", "double", "triple", "add"):
        assert not client.is_model_ready(name), name


ONE = {"IN": ROWS16}, {"OUT": ROWS16}


def through(repository, name, inner):
    """Writes a pipeline of one step."""
    ports = ({"IN": "IN"}, {"OUT": "OUT"}) if inner.startswith("p") else ({"INPUT0": "IN"}, {"OUTPUT0": "OUT"})
    write_ensemble(repository, name, ensemble(name, *ONE, [step(inner, *ports)]))


def test_no_order_of_reloads_makes_a_cycle(explicit):
    server, repository, client = explicit
    write_model(repository, "x", scale(2), config("x", {"INPUT0": ROWS16}))
    through(repository, "p0", "x")
    through(repository, "p1", "p0")
    client.load_model("p1")
    write_ensemble(repository, "p1", ensemble("p1", {"IN": ("FP32", [15])}, ONE[1], [step("x", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"})]))
    with refused("INVALID_ARGUMENT", "[-1,16]"):
        client.load_model("p1")
    through(repository, "p0", "p1")
    with refused("INVALID_ARGUMENT", "p0 -> p1 -> p0"):
        client.load_model("p0")
    np.testing.assert_array_equal(infer(client, "p1", rows(1)), rows(1) * 2)
    through(repository, "p1", "x")
    client.load_model("p1")
    client.load_model("p0")
    np.testing.assert_array_equal(infer(client, "p0", rows(1)), rows(1) * 2)


def test_pipelines_are_nested_to_a_limit(explicit):
    server, repository, client = explicit
    write_model(repository, "x", scale(2), config("x", {"INPUT0": ROWS16}))
    through(repository, "p0", "x")
    for depth in range(1, 40):
        through(repository, f"p{depth}", f"p{depth - 1}")
    with refused("INVALID_ARGUMENT", "p38"):
        client.load_model("p39")
    np.testing.assert_array_equal(infer(client, "p7", rows(1)), rows(1) * 2)
    reasons = {entry.name: entry.reason for entry in client.get_model_repository_index().models}
    assert "nested more than 8 deep" in reasons["p8"]


def test_a_model_that_is_reloaded_with_another_signature_is_refused_until_it_fits(explicit):
    server, repository, client = explicit
    models(repository)
    diamond(repository)
    client.load_model("diamond")
    write_model(repository, "double", scale(2, 17), config("double", {"INPUT0": ("FP32", [17])}))
    client.load_model("double")
    with refused("UNAVAILABLE", "does not fit", "[-1,17]"):
        infer(client, "diamond", rows(1))
    write_model(repository, "double", scale(4), config("double", {"INPUT0": ROWS16}))
    client.load_model("double")
    np.testing.assert_array_equal(infer(client, "diamond", rows(1)), rows(1) * 7)


def test_each_step_of_a_request_has_its_trace(program, tmp_path):
    repository, file = tmp_path / "repository", tmp_path / "trace.json"
    repository.mkdir()
    models(repository)
    diamond(repository)
    with serving(repository, f"--trace-config=level=TIMESTAMPS,rate=1,file={file},mode=triton", program=program) as server:
        with triton.InferenceServerClient(server.grpc) as client:
            infer(client, "diamond", rows(1))
    objects = json.loads(file.read_text())
    traces = {entry["model_name"]: entry for entry in objects if "model_name" in entry}
    parents = {name: entry.get("parent_id") for name, entry in traces.items()}
    assert parents == {"diamond": None, "double": 1, "triple": 1, "add": 1}
    times = {
        name: {one["timestamps"][0]["name"]: one["timestamps"][0]["ns"] for one in objects
               if one["id"] == entry["id"] and "timestamps" in one}
        for name, entry in traces.items()
    }  # fmt: skip
    for first in ("double", "triple"):
        assert times[first]["COMPUTE_START"] < times[first]["COMPUTE_END"] <= times["add"]["COMPUTE_START"]
    assert times["add"]["COMPUTE_END"] <= times["diamond"]["REQUEST_END"]


CONDITIONS = """
max_batch_size: 8
inputs:
- { name: IN, dtype: FP32, dims: [16] }
outputs:
- { name: OUT, dtype: FP32, dims: [16] }
- { name: MEAN, dtype: FP32, dims: [1] }
pipeline:
- model: { name: mean, inputs: { INPUT0: IN }, outputs: { MEAN: MEAN } }
- model: { name: double, inputs: { INPUT0: IN }, outputs: { OUTPUT0: OUT }, when: { tensor: MEAN, at_least: 100 } }
"""


def test_rows_skip_a_step_whose_condition_does_not_hold(start, tmp_path):
    models(tmp_path)
    write_model(tmp_path, "mean", mean_of_row(), config("mean", {"INPUT0": ROWS16}, {"MEAN": ("FP32", [1])}))
    (tmp_path / "guarded").mkdir()
    (tmp_path / "guarded" / "model.yaml").write_text(CONDITIONS)
    either = CONDITIONS + (
        "- model: { name: triple, inputs: { INPUT0: IN }, outputs: { OUTPUT0: OUT }, when: { tensor: MEAN, equals: 7.5 } }\n"
    )
    (tmp_path / "either").mkdir()
    (tmp_path / "either" / "model.yaml").write_text(either)
    server = start(tmp_path)
    given = rows(20)[[0, 19, 1, 15]]
    with triton.InferenceServerClient(server.grpc) as client:
        before = statistics(client, "double")
        answer = client.infer("guarded", [tensor("IN", given)])
        np.testing.assert_array_equal(answer.as_numpy("OUT"), given * np.array([[0], [2], [0], [2]]))
        np.testing.assert_allclose(answer.as_numpy("MEAN"), given.mean(axis=1, keepdims=True))
        assert change(before, statistics(client, "double"))["inference"] == 2, "two rows ran it"

        answer = client.infer("either", [tensor("IN", given)])
        np.testing.assert_array_equal(answer.as_numpy("OUT"), given * np.array([[3], [2], [0], [2]]))
        none = client.infer("guarded", [tensor("IN", given[:1])])
        np.testing.assert_array_equal(none.as_numpy("OUT"), np.zeros((1, 16)))


STREAMING = """
max_batch_size: 8
inputs: [{ name: IN, dtype: FP32, dims: [16] }]
outputs: [{ name: OUT, dtype: FP32, dims: [16] }]
pipeline:
- model: { name: double, inputs: { INPUT0: IN }, outputs: { OUTPUT0: twice } }
- model: { name: repeat, inputs: { INPUT0: twice }, outputs: { OUTPUT0: each } }
- model: { name: triple, inputs: { INPUT0: each }, outputs: { OUTPUT0: OUT } }
"""


def test_the_responses_of_a_decoupled_step_stream_through_those_behind_it(start, tmp_path, made_models):
    made_models("tests", "--only", "repeat", folder=tmp_path)
    models(tmp_path)
    (tmp_path / "stream").mkdir()
    (tmp_path / "stream" / "model.yaml").write_text(STREAMING)
    server = start(tmp_path)
    responses = queue.Queue()

    def responses_of(name, tensor_name, output, values):
        client.async_stream_infer(name, [tensor(tensor_name, values)], enable_empty_final_response=True)
        found = []
        while True:
            result, error = responses.get(timeout=120)
            assert error is None, error
            message = result.get_response()
            if message.outputs:
                found.append(result.as_numpy(output))
            if message.parameters["triton_final_response"].bool_param:
                return found

    given = np.full((1, 16), 2, np.float32)
    with triton.InferenceServerClient(server.grpc) as client:
        assert client.get_model_config("stream").config.model_transaction_policy.decoupled
        client.start_stream(lambda result, error: responses.put((result, error)))
        alone = responses_of("repeat", "INPUT0", "OUTPUT0", given * 2)
        through = responses_of("stream", "IN", "OUT", given)
        assert len(alone) > 1
        np.testing.assert_array_equal(through, np.stack(alone) * 3)
        # The model has ended before the step behind it has, so the last response is known to be the last one.
        client.async_stream_infer("stream", [tensor("IN", given)])
        answers = [responses.get(timeout=60) for _ in through]
        finals = [answer.get_response().parameters["triton_final_response"].bool_param for answer, _ in answers]
        assert finals == [False] * (len(through) - 1) + [True]
        client.stop_stream()
        assert statistics(client, "stream")["success"] == 2
        with refused("UNIMPLEMENTED", "decoupled"):
            infer(client, "stream", given)


def test_a_deadline_or_a_client_that_leaves_ends_all_steps(start, tmp_path, made_models):
    made_models("tests", "--only", "slow", folder=tmp_path)
    models(tmp_path)
    steps = [
        step("double", {"INPUT0": "IN"}, {"OUTPUT0": "a"}),
        step("slow", {"INPUT0": "a"}, {"OUTPUT0": "b"}),
        step("triple", {"INPUT0": "b"}, {"OUTPUT0": "OUT"}),
    ]
    write_ensemble(tmp_path, "chain", ensemble("chain", {"IN": ROWS16}, {"OUT": ROWS16}, steps))
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        failed = {name: lambda name=name: statistics(client, name)["fail"] for name in ("chain", "slow", "triple")}
        before = failed["slow"]()
        expires(client, "chain", [tensor("IN", rows(1))], failed["chain"])
        eventually("the step that ran failed", lambda: failed["slow"]() > before)
        assert failed["triple"]() == 0, "it never started"

        counted = failed["chain"]()
        calls = [client.async_infer("chain", [tensor("IN", rows(1))], lambda result, error: None) for _ in range(100)]
        eventually("requests wait", lambda: on_page(scrape(server), "nv_inference_pending_request_count", model="slow") > 0)
        for call in calls:
            call.cancel()
        eventually("all have ended", lambda: failed["chain"]() >= counted + 1)
        eventually("none waits", lambda: on_page(scrape(server), "nv_inference_pending_request_count", model="slow") == 0)
        eventually(
            "no memory is held", lambda: on_page(scrape(server), "paternoster_pending_bytes") == 0
        )
