"""Requests that are divided among versions of a model, and answers that are compared between them, in a real server."""

import json
import urllib.request
from collections import Counter

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as over_http
from clients import ROW, eventually, on_page, scrape, tensor
from onnx_bytes import scale
from repository_on_disk import write_model, write_pipeline

ROWS = ROW.reshape(1, 16)
RESULTS = ("equal", "different", "failed", "skipped")


def write_versions(folder, factors, rollout, name="scale"):
    """Writes a model whose versions multiply by these factors."""
    for version, factor in enumerate(factors, start=1):
        write_model(folder, name, scale(factor), version=version)
    (folder / name / "model.yaml").write_text(f"version_policy: all\nrollout: {rollout}\n")
    return folder


def factor_of(answer):
    return round(float(answer.as_numpy("OUTPUT0")[0, 1] / ROWS[0, 1]))


def shadowed(server, model, version):
    page = scrape(server)
    name = "paternoster_shadow_requests_total"
    return {result: on_page(page, name, model=model, version=str(version), result=result) for result in RESULTS}


def successes(server, model, version):
    return on_page(scrape(server), "nv_inference_request_success", model=model, version=str(version))


def test_shares_by_version_show_in_metrics(start, tmp_path):
    server = start(write_versions(tmp_path, [1, 2], "{ traffic: { 1: 70, 2: 30 } }"))
    with triton.InferenceServerClient(server.grpc) as client:
        answers = Counter(factor_of(client.infer("scale", [tensor("INPUT0", ROWS)])) for _ in range(600))
        assert answers[1] + answers[2] == 600 and 110 < answers[2] < 250, answers
        assert factor_of(client.infer("scale", [tensor("INPUT0", ROWS)], model_version="2")) == 2
    assert successes(server, "scale", 1) == answers[1]
    assert successes(server, "scale", 2) == answers[2] + 1


def test_a_header_keeps_each_client_at_one_version_over_all_interfaces(start, tmp_path):
    server = start(write_versions(tmp_path, [1, 2], "{ traffic: { 1: 50, 2: 50 }, header: x-user }"))
    inputs = [tensor("INPUT0", ROWS)]
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": ROWS.reshape(-1).tolist()}]}

    def by_json(user):
        url = f"http://{server.http}/v2/models/scale/infer"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"x-user": user})
        with urllib.request.urlopen(request) as answer:
            return round(json.load(answer)["outputs"][0]["data"][1] / float(ROWS[0, 1]))

    def by_stream(client, user):
        answers = []
        client.start_stream(lambda result, error: answers.append(error or factor_of(result)), headers={"x-user": user})
        client.async_stream_infer("scale", inputs)
        client.stop_stream()
        return answers[0]

    seen = set()
    with triton.InferenceServerClient(server.grpc) as grpc, over_http.InferenceServerClient(server.http) as http:
        for number in range(24):
            user = f"user {number}"
            headers = {"x-user": user}
            binary = over_http.InferInput("INPUT0", [1, 16], "FP32")
            binary.set_data_from_numpy(ROWS)
            versions = {
                factor_of(grpc.infer("scale", inputs, headers=headers)),
                factor_of(http.infer("scale", [binary], headers=headers)),
                by_stream(grpc, user),
                by_json(user),
            }
            assert len(versions) == 1, f"{user}: {versions}"
            seen |= versions
    assert seen == {1, 2}


@pytest.mark.parametrize("factors, expected", [([1, 1.00001, 3], "equal"), ([1, 2, 3], "different")])
def test_a_shadow_answers_for_comparison_alone(start, tmp_path, factors, expected):
    server = start(write_versions(tmp_path, factors, "{ traffic: { 1: 1 }, shadow: 2 }"))
    with triton.InferenceServerClient(server.grpc) as client:
        for _ in range(20):
            assert factor_of(client.infer("scale", [tensor("INPUT0", ROWS)])) == 1
        eventually("all answers are compared", lambda: sum(shadowed(server, "scale", 2).values()) == 20)
        assert shadowed(server, "scale", 2) == {result: 20 * (result == expected) for result in RESULTS}
        assert successes(server, "scale", 2) == 20, "the metrics of the version count them too"
        assert factor_of(client.infer("scale", [tensor("INPUT0", ROWS)], model_version="2")) == round(factors[1])
        assert factor_of(client.infer("scale", [tensor("INPUT0", ROWS)], model_version="3")) == 3
        eventually("a named version is compared too", lambda: sum(shadowed(server, "scale", 2).values()) >= 21)
    compared = {result: 20 * (result == expected) + (result == "different") for result in RESULTS}
    assert shadowed(server, "scale", 2) == compared, "its own answers are not compared with themselves"


def test_large_answers_are_compared_too(start, tmp_path):
    width = 100_000
    for version, factor in ((1, 2), (2, 2), (3, 5)):
        write_model(tmp_path, "wide", scale(factor, width), version=version)
    (tmp_path / "wide" / "model.yaml").write_text("version_policy: all\nrollout: { traffic: { 1: 1 }, shadow: 2 }\n")
    server = start(tmp_path)
    wide = np.arange(width, dtype=np.float32).reshape(1, width)
    with triton.InferenceServerClient(server.grpc) as client:
        for version, result in (("", "equal"), ("3", "different")):
            client.infer("wide", [tensor("INPUT0", wide)], model_version=version)
            eventually("it is compared", lambda: shadowed(server, "wide", 2)[result] == 1)


def test_shadows_that_cannot_take_the_requests_are_refused(start, tmp_path):
    write_model(tmp_path, "scale", scale(1))
    write_model(tmp_path, "scale", scale(1, width=8), version=2)
    (tmp_path / "scale" / "model.yaml").write_text("version_policy: all\nrollout: { shadow: 2 }\n")
    server = start(tmp_path, "--exit-on-error=false", until="settled")
    with triton.InferenceServerClient(server.grpc) as client:
        reasons = [model.reason for model in client.get_model_repository_index().models]
    assert any("expected the inputs of version 1 ('INPUT0': FP32 [16])" in reason for reason in reasons), reasons


def test_steps_of_pipelines_run_the_largest_share(start, tmp_path):
    write_versions(tmp_path, [1, 2, 3], "{ traffic: { 1: 10, 2: 85, 3: 5 } }")
    ports = {"INPUT0": ("FP32", [16])}, {"OUTPUT0": ("FP32", [16])}
    step = "model: { name: scale, inputs: { INPUT0: INPUT0 }, outputs: { OUTPUT0: OUTPUT0 } }"
    write_pipeline(tmp_path, "chain", *ports, [step])
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        assert {factor_of(client.infer("chain", [tensor("INPUT0", ROWS)])) for _ in range(40)} == {2}
