"""What clients of Triton see of ensembles: shapes, labels, parameters of responses, traces, messages."""

import json
import queue
import urllib.request

import ensembles
import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from clients import document, eventually, refused, rows, scrape, tensor
from conftest import serving
from ensembles import Ensemble, step
from repository_on_disk import config, write_model

ROW = ("FP32", [16])


def one_step(name, model, batch=8, kind="FP32[16]"):
    """An ensemble of one step, whose input and output are of one kind."""
    steps = [step(model, "INPUT0=IN", "OUTPUT0=OUT")]
    return ensembles.ensemble_text(name, Ensemble("", batch, f"IN {kind}", "", f"OUT {kind}", steps))


def http_tensor(name, values):
    one = triton_http.InferInput(name, list(values.shape), "FP32")
    one.set_data_from_numpy(values)
    return one


def test_shapes_with_and_without_a_batch_agree_in_a_row_as_in_triton(start, tmp_path):
    """L0_infer: ensembles without a batch over models that have one, and the reverse."""
    any_row = ("FP32", [-1])
    for name, factor, batch in (("double", 2, 1024), ("triple", 3, 0)):
        dims = ("batch", "width") if batch else ("width",)
        graph = ensembles.onnx_bytes.model(
            [ensembles.node("Mul", ["INPUT0", "factor"], ["OUTPUT0"])],
            [ensembles.port("INPUT0", "FP32", dims)],
            [ensembles.port("OUTPUT0", "FP32", dims)],
            [ensembles.constant("factor", np.float32(factor))],
        )
        write_model(tmp_path, name, graph, config(name, {"INPUT0": any_row}, max_batch_size=batch))
    steps = [step("double", "INPUT0=IN", "OUTPUT0=twice"), step("triple", "INPUT0=twice", "OUTPUT0=OUT")]
    for batch in (0, 8):
        both = Ensemble("", batch, "IN FP32[16]", "", "OUT FP32[16]", steps)
        ensembles.write_text(tmp_path, f"both_{batch}", ensembles.ensemble_text(f"both_{batch}", both))
        for model in ("double", "triple"):
            ensembles.write_text(tmp_path, f"{model}_{batch}", one_step(f"{model}_{batch}", model, batch))
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client, triton_http.InferenceServerClient(server.http) as over_http:
        for name, factor in (("double", 2), ("triple", 3), ("both", 6)):
            for batch in (0, 8):
                values = rows(1) if batch else rows(1)[0]
                answers = [
                    client.infer(f"{name}_{batch}", [tensor("IN", values)]).as_numpy("OUT"),
                    over_http.infer(f"{name}_{batch}", [http_tensor("IN", values)]).as_numpy("OUT"),
                ]
                for answer in answers:
                    assert answer.shape == values.shape, (name, batch)
                    np.testing.assert_array_equal(answer, values * factor)
        np.testing.assert_array_equal(client.infer("double_8", [tensor("IN", rows(3))]).as_numpy("OUT"), rows(3) * 2)
        with refused("INVALID_ARGUMENT", "in ensemble 'triple_8', step 0 (model 'triple')", "[2,16]"):
            client.infer("triple_8", [tensor("IN", rows(2))])


def test_inputs_and_outputs_of_ensembles_are_reshaped(start, tmp_path):
    """L0_infer_reshape, with and without a batch, one in another."""
    for batch in (0, 8):
        dims = ("batch", 3, 2, 2) if batch else (3, 2, 2)
        graph = ensembles.onnx_bytes.identity("FP32", dims)
        write_model(tmp_path, f"step_{batch}", graph,
                    config(f"step_{batch}", {"INPUT0": ("FP32", [3, 2, 2])}, max_batch_size=batch))  # fmt: skip
        inner = one_step(f"inner_{batch}", f"step_{batch}", batch, "FP32[2,2,3]")
        inner = inner.replace('"IN"', '"INPUT0"').replace('"OUT"', '"OUTPUT0"')
        ensembles.write_text(tmp_path, f"inner_{batch}", ensembles.reshaped(inner, [2, 2, 3], [3, 2, 2]))
        outer = one_step(f"outer_{batch}", f"inner_{batch}", batch, "FP32[12]")
        ensembles.write_text(tmp_path, f"outer_{batch}", ensembles.reshaped(outer, [12], [2, 2, 3]))
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        for batch in (0, 8):
            for name, ports, dims in (("inner", ("INPUT0", "OUTPUT0"), (2, 2, 3)), ("outer", ("IN", "OUT"), (12,))):
                values = np.arange(24 if batch else 12, dtype=np.float32).reshape((2, *dims) if batch else dims)
                answer = client.infer(f"{name}_{batch}", [tensor(ports[0], values)]).as_numpy(ports[1])
                np.testing.assert_array_equal(answer, values)
        assert list(client.get_model_metadata("outer_8").inputs[0].shape) == [-1, 12]
        with refused("INVALID_ARGUMENT", "'INPUT0'", "[-1,2,2,3]", "[1,3,2,2]"):
            client.infer("inner_8", [tensor("INPUT0", np.zeros((1, 3, 2, 2), np.float32))])


def parameters_of(result):
    return {name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in result.get_response().parameters.items()}  # fmt: skip


def test_responses_of_ensembles_name_the_sequence(start, tmp_path):
    """L0_simple_ensemble; a response of a model has no such parameters."""
    write_model(tmp_path, "double", ensembles.onnx_bytes.scale(2), config("double", {"INPUT0": ROW}))
    ensembles.write_text(tmp_path, "ensemble", one_step("ensemble", "double"))
    server, responses = start(tmp_path), queue.Queue()
    given = [tensor("IN", rows(1))]
    cases = [
        ({}, 0, False, False),
        ({"sequence_id": 7, "sequence_start": True}, 7, True, False),
        ({"sequence_id": 7}, 7, False, False),
        ({"sequence_id": "seven", "sequence_end": True}, "seven", False, True),
    ]
    with triton.InferenceServerClient(server.grpc) as client, triton_http.InferenceServerClient(server.http) as over_http:
        client.start_stream(lambda result, error: responses.put((result, error)))
        for asked, sequence, starts, ends in cases:
            expected = {"sequence_id": sequence, "sequence_start": starts, "sequence_end": ends}
            assert parameters_of(client.infer("ensemble", given, **asked)) == expected
            client.async_stream_infer("ensemble", given, **asked)
            result, error = responses.get(timeout=60)
            assert error is None, error and error.message()
            assert parameters_of(result) == {**expected, "triton_final_response": True}
            answer = over_http.infer("ensemble", [http_tensor("IN", rows(1))], **asked).get_response()
            assert answer["parameters"] == expected
        client.stop_stream()
        assert parameters_of(client.infer("double", [tensor("INPUT0", rows(1))])) == {}
    request = urllib.request.Request(f"http://{server.http}/v2/models/ensemble/generate",
                                     json.dumps({"IN": [1.0] * 16}).encode())  # fmt: skip
    with urllib.request.urlopen(request) as answer:
        expected = {"model_name": "ensemble", "model_version": "1", "OUT": [2.0] * 16}
        assert json.load(answer) == {**expected, "sequence_id": 0, "sequence_start": False, "sequence_end": False}


def test_an_ensembles_steps_have_traces_that_name_its_own(program, tmp_path):
    """L0_cmdline_trace: one ensemble in another."""
    repository, file = tmp_path / "models", tmp_path / "trace.json"
    write_model(repository, "double", ensembles.onnx_bytes.scale(2), config("double", {"INPUT0": ROW}))
    chain = [step("double", "INPUT0=IN", "OUTPUT0=twice"), step("double", "INPUT0=twice", "OUTPUT0=OUT")]
    inner = ensembles.ensemble_text("inner", Ensemble("", 8, "IN FP32[16]", "", "OUT FP32[16]", chain))
    ensembles.write_text(repository, "inner", inner)
    nested = [step("inner", "IN", "OUT=quadrupled"), step("double", "INPUT0=quadrupled", "OUTPUT0=OUT")]
    outer = ensembles.ensemble_text("outer", Ensemble("", 8, "IN FP32[16]", "", "OUT FP32[16]", nested))
    ensembles.write_text(repository, "outer", outer)
    flag = f"--trace-config=level=TIMESTAMPS,rate=1,file={file},mode=triton"
    with serving(repository, flag, program=program) as server, triton.InferenceServerClient(server.grpc) as client:
        client.infer("outer", [tensor("IN", rows(1))], request_id="one")
        eventually("the trace is in the file", lambda: document(file))
        page = scrape(server)
        assert "paternoster_traces_total 1" in page and "paternoster_traces_dropped_total 0" in page
    objects = json.loads(file.read_text())
    named = [one for one in objects if "model_name" in one]
    assert {one["model_version"] for one in named} == {1} and {one["request_id"] for one in named} == {"one"}
    parents = {one["id"]: (one["model_name"], one.get("parent_id")) for one in named}
    assert parents == {1: ("outer", None), 2: ("inner", 1), 3: ("double", 2), 4: ("double", 2), 5: ("double", 1)}
    stamps = {id: {one["timestamps"][0]["name"]: one["timestamps"][0]["ns"] for one in objects
                   if one["id"] == id and "timestamps" in one} for id in parents}  # fmt: skip
    for id, (model, parent) in parents.items():
        assert ("COMPUTE_START" in stamps[id]) == (model == "double"), model
        assert ("GRPC_SEND_END" in stamps[id]) == (parent is None), model
        ordered = ["REQUEST_START", "QUEUE_START", *(["COMPUTE_START", "COMPUTE_END"] if model == "double" else []),
                   "REQUEST_END"]  # fmt: skip
        times = [stamps[id][name] for name in ordered]
        assert times == sorted(times), (model, stamps[id])
        if parent:
            assert stamps[parent]["REQUEST_START"] <= stamps[id]["REQUEST_START"]
            assert stamps[id]["COMPUTE_END" if model == "double" else "QUEUE_START"] <= stamps[parent]["REQUEST_END"]


def test_messages_about_ensembles_call_them_so(start, tmp_path):
    write_model(tmp_path, "double", ensembles.onnx_bytes.scale(2), config("double", {"INPUT0": ROW}))
    ensembles.write_text(tmp_path, "ensemble", one_step("ensemble", "double"))
    group = one_step("grouped", "double") + "instance_group [ { count: 2 } ]\n"
    ensembles.write_text(tmp_path, "grouped", group)
    server = start(tmp_path, "--model-control-mode=explicit", "--load-model=ensemble")
    with triton.InferenceServerClient(server.grpc) as client:
        with refused("INVALID_ARGUMENT", "instance_group: an ensemble has none"):
            client.load_model("grouped")
        client.unload_model("double")
        unserved = ("in ensemble 'ensemble', step 0 (model 'double')", "has no available versions")
        with refused("UNAVAILABLE", *unserved):
            client.infer("ensemble", [tensor("IN", rows(1))])


def best_label(client, model, output="OUT", port="IN"):
    asked = [triton.InferRequestedOutput(output, class_count=1)]
    (best,) = client.infer(model, [tensor(port, rows(1))], outputs=asked).as_numpy(output).ravel()
    return best.decode().split(":")[1:]


def labelled(text, file="labels.txt"):
    """Gives the first output of a config.pbtxt a file of labels."""
    head, output = text.split("output [")
    return head + "output [" + output.replace("dims: [16]", f'dims: [16] label_filename: "{file}"', 1)


def write_labels(repository, name, word):
    (repository / name / "labels.txt").write_text("\n".join(f"{word} {number}" for number in range(16)))


def test_labels_of_an_ensembles_output_are_those_of_the_step_that_gives_it(start, tmp_path):
    """L0_infer: also through ensembles in ensembles, and once the step's model is another."""
    write_model(tmp_path, "labelled", ensembles.onnx_bytes.scale(1), labelled(config("labelled", {"INPUT0": ROW})))
    write_labels(tmp_path, "labelled", "first")
    write_model(tmp_path, "plain", ensembles.onnx_bytes.scale(1), config("plain", {"INPUT0": ROW}))
    inner = one_step("inner", "labelled").replace('"IN"', '"INPUT0"').replace('"OUT"', '"OUTPUT0"')
    ensembles.write_text(tmp_path, "inner", inner)
    ensembles.write_text(tmp_path, "outer", one_step("outer", "inner"))
    behind = [step("labelled", "INPUT0=IN", "OUTPUT0=between"), step("plain", "INPUT0=between", "OUTPUT0=OUT")]
    behind = ensembles.ensemble_text("behind", Ensemble("", 8, "IN FP32[16]", "", "OUT FP32[16]", behind))
    ensembles.write_text(tmp_path, "behind", behind)
    server = start(tmp_path, "--model-control-mode=explicit", "--load-model=*")
    with triton.InferenceServerClient(server.grpc) as client, triton_http.InferenceServerClient(server.http) as over_http:
        assert best_label(client, "inner", "OUTPUT0", "INPUT0") == ["15", "first 15"]
        assert best_label(client, "outer") == ["15", "first 15"]
        assert best_label(client, "behind") == ["15"], "another model gives it"
        asked = [triton_http.InferRequestedOutput("OUT", class_count=1)]
        answer = over_http.infer("outer", [http_tensor("IN", rows(1))], outputs=asked).as_numpy("OUT")
        assert answer.ravel()[0].decode().endswith(":15:first 15")
        write_labels(tmp_path, "labelled", "second")
        client.load_model("labelled")
        assert best_label(client, "outer") == ["15", "second 15"]


def test_an_ensembles_labels_take_precedence_over_its_models(start, tmp_path):
    """As in label_override_int32_float32_float32 of triton-inference-server/server."""
    write_model(tmp_path, "labelled", ensembles.onnx_bytes.scale(1), labelled(config("labelled", {"INPUT0": ROW})))
    ensembles.write_text(tmp_path, "override", labelled(one_step("override", "labelled")))
    for name in ("labelled", "override"):
        write_labels(tmp_path, name, name)
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        assert best_label(client, "override") == ["15", "override 15"]
