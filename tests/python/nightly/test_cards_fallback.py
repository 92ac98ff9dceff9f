"""Models with an operator that has no plan for cards: whole, in stages and of cells. The card is played by the stand-in
for CUDA's libraries. Either the library lacks ONNX Runtime's CUDA provider, or part of it, and the model is refused or
runs on the CPU; or a stand-in for the provider (crates/testing/fake_provider) records which programs it compiles and runs."""

import os
import shutil
import subprocess

import fetch
import numpy as np
import onnx_bytes as onnx
import pytest
import tritonclient.grpc as triton
from clients import tensor
from conftest import Server, example, fetched

WIDTH = 8
ROW = ("batch", WIDTH)
MISSING = "operators without a plan: Softplus (the node of '"
REFUSED = "ONNX Runtime's CUDA provider cannot be used: "
ABSENT = "has no CUDA execution provider"
PART = "libonnxruntime_providers_cuda.so"
UNLOADABLE = "libcudart.so.13: cannot open shared object file"
BY_PROVIDER = "the model runs on ONNX Runtime's CUDA provider"
ON_CARDS = "instance: { devices: [cuda] }\n"


def layers(*operators, row=ROW):
    """Returns a graph of one operator after another, x → h0 → … → y."""
    names = ["x", *(f"h{number}" for number in range(len(operators) - 1)), "y"]
    nodes = [onnx.node(operator, [before], [after]) for operator, before, after in zip(operators, names, names[1:])]
    return onnx.model(nodes, [onnx.port("x", "FP32", row)], [onnx.port("y", "FP32", row)])


def step(operator="Softplus"):
    """Returns a cell: h_next is the operator of y + h."""
    nodes = [onnx.node("Add", ["y", "h"], ["sum"]), onnx.node(operator, ["sum"], ["h_next"])]
    return onnx.model(nodes, [onnx.port("y", "FP32", ROW), onnx.port("h", "FP32", ROW)], [onnx.port("h_next", "FP32", ROW)])


def of_stages(*operators, row=ROW):
    return {"model.onnx": layers(*operators, row=row)}, "max_batch_size: 4\nstages: [h0]\n"


CELLS = """\
inputs: [{ name: rows, dtype: FP32, dims: [-1, 8] }]
outputs: [{ name: last, dtype: FP32, dims: [8] }]
max_batch_size: 1
cells: { project: { program: project.onnx }, step: { program: step.onnx } }
unfold:
  - stage: { cell: project, over: rows, as: x }
  - chain: { cell: step, over: project.y, as: y, carry: { h: h_next }, emit: { last: last(h_next) } }
"""

SEQUENCES = """\
inputs: [{ name: rows, dtype: FP32, dims: [-1, 8] }]
outputs: [{ name: last, dtype: FP32, dims: [8] }]
max_batch_size: 1
cells: { step: { program: step.onnx } }
unfold:
  - chain: { cell: step, over: rows, as: y, keep: { h: h_next }, emit: { last: last(h_next) } }
sequence_batching: { max_candidate_sequences: 4, max_sequence_idle_us: 600000000 }
"""


def of_cells(operator):
    return {"project.onnx": layers(operator), "step.onnx": step()}, CELLS


WHOLE = {"model.onnx": layers("Softplus")}, "max_batch_size: 4\n"


def write(folder, name, model, more=""):
    files, config = model
    version = folder / name / "1"
    version.mkdir(parents=True)
    for file, content in files.items():
        (version / file).write_bytes(content)
    (version.parent / "model.yaml").write_text(config + more)


def softplus(x):
    return np.log1p(np.exp(x))


X = np.linspace(-3, 3, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def ask_rows(client, name, expected):
    same(client.infer(name, [tensor("x", X)]).as_numpy("y"), expected)


def ask_cells(client, name, first):
    """Sends a request of two steps; `first` is what the first cell makes of its rows."""
    h = np.zeros(WIDTH)
    for row in first:
        h = softplus(row + h)
    same(client.infer(name, [tensor("rows", X[None])]).as_numpy("last"), h[None])


def reasons_of(server):
    with triton.InferenceServerClient(server.grpc) as client:
        return {model.name: model.reason for model in client.get_model_repository_index().models}


@pytest.fixture(scope="module")
def provider(stand_in, tmp_path_factory):
    """Returns a function that makes a library with the provider, with or without its CUDA part: (library, environment of
    its server)."""
    built = example("libfake_provider.so")

    def make(has_part=True, **more):
        folder = tmp_path_factory.mktemp("provider")
        library = shutil.copy(built, folder / "libonnxruntime.so")
        if has_part:
            (folder / PART).touch()
        own = {"FAKE_PROVIDER_RUNTIME": str(Server(".").library), "FAKE_PROVIDER_LOG": str(folder / "log")}
        return library, {**stand_in, **own, **more}

    return make


#: Libraries that cannot run the models, with the reasons that they give.
LIBRARIES = {"without the provider": ABSENT, "without its CUDA part": f"has no {PART}", "unloadable": UNLOADABLE}


@pytest.fixture(scope="module", params=LIBRARIES)
def refusing(request, program, stand_in, provider, tmp_path_factory):
    """Returns a server whose library cannot run the models, and the library's reason."""
    library, environment = {
        "without the provider": lambda: (None, stand_in),
        "without its CUDA part": lambda: provider(has_part=False),
        "unloadable": lambda: provider(FAKE_PROVIDER_REFUSES=UNLOADABLE),
    }[request.param]()
    folder = tmp_path_factory.mktemp("fallback")
    models = {"whole": WHOLE, "stages": of_stages("Softplus", "Softplus"), "cells": of_cells("Softplus")}
    for name, model in models.items():
        write(folder, f"{name}-asks", model, ON_CARDS)
        write(folder, f"{name}-leaves-it-open", model)
    flags = ("--device=cuda", "--strict-readiness=false")
    with Server(folder, *flags, program=program, library=library, environment=environment) as running:
        yield running, LIBRARIES[request.param]


PROGRAMS = {
    "whole": [MISSING + "y')"],
    "stages": ["stage 0: " + MISSING + "h0')", "stage 1: " + MISSING + "y')"],
    "cells": ["cell 'project': " + MISSING + "y')", "cell 'step': " + MISSING + "h_next')"],
}


@pytest.mark.parametrize("form", PROGRAMS)
def test_a_model_that_asks_for_a_card_is_refused_with_all_its_operators_and_the_library_s_reason(refusing, form):
    server, library = refusing
    reason = reasons_of(server)[f"{form}-asks"]
    for fact in (*PROGRAMS[form], REFUSED, library):
        assert fact in reason, reason
    if library == UNLOADABLE:
        first = {"whole": "", "stages": "stage 0: ", "cells": "cell 'project': "}[form]
        assert REFUSED + first + "onnx" in reason, "the program that the provider refuses is named"


@pytest.mark.parametrize("form", PROGRAMS)
def test_a_model_that_leaves_it_open_runs_on_the_cpu_and_the_log_has_both_reasons(refusing, form):
    server, library = refusing
    name = f"{form}-leaves-it-open"
    with triton.InferenceServerClient(server.grpc) as client:
        if form == "cells":
            ask_cells(client, name, softplus(X))
        else:
            ask_rows(client, name, softplus(X) if form == "whole" else softplus(softplus(X)))
    on_cpu = [line for line in server.log.read_text().splitlines() if "the model runs on the CPU" in line]
    (line,) = [line for line in on_cpu if name in line]
    for fact in (*PROGRAMS[form], REFUSED, library):
        assert fact in line, line


def test_a_built_in_model_has_no_graph_that_a_card_could_run(start, provider, made_models, tmp_path):
    made = made_models("tests", "--only", "repeat") / "repeat"
    for name, kind in (("asks", "KIND_GPU"), ("leaves-it-open", "KIND_AUTO")):
        shutil.copytree(made, tmp_path / name)
        config = (tmp_path / name / "config.pbtxt").read_text()
        assert "KIND_CPU" in config
        (tmp_path / name / "config.pbtxt").write_text(config.replace("KIND_CPU", kind))
    library, environment = provider()
    flags = ("--device=cuda", "--strict-readiness=false")
    server = start(tmp_path, *flags, library=library, environment=environment, until="settled")
    reason = reasons_of(server)["asks"]
    expected = "the backend 'repeat' has no graph: it has no plan for cards, and ONNX Runtime's CUDA provider cannot run it"
    assert reason.endswith(f"{expected}; expected KIND_CPU or KIND_AUTO"), reason
    (line,) = [line for line in server.log.read_text().splitlines() if "the model runs on the CPU" in line]
    assert expected in line and "leaves-it-open" in line, line


class Recorded:
    """What the provider's stand-in has recorded: sessions with their settings, and runs of each since the last look."""

    def __init__(self, environment):
        self.path = environment["FAKE_PROVIDER_LOG"]
        self.seen = 0

    def look(self):
        with open(self.path) as log:
            lines = [line.split() for line in log]
        sessions = [dict(setting.split("=") for setting in line[2:]) for line in lines if line[0] == "session"]
        runs = {line[1] for line in lines[self.seen :] if line[0] == "run"}
        self.seen = len(lines)
        return sessions, runs


def on_provider(start, provider, folder, model, more="", flags=(), because=MISSING, **environment):
    """Serves a model by the provider's stand-in: (server, what is recorded)."""
    write(folder, "model", model, more)
    library, environment = provider(**environment)
    server = start(folder, "--device=cuda", *flags, library=library, environment=environment)
    assert len([line for line in server.log.read_text().splitlines() if BY_PROVIDER in line and because in line]) == 1
    return server, Recorded(environment)


@pytest.mark.parametrize("more", [ON_CARDS, ""], ids=["asks", "leaves it open"])
def test_all_stages_run_by_the_provider_if_one_of_them_has_no_plan(start, provider, tmp_path, more):
    server, recorded = on_provider(start, provider, tmp_path, of_stages("Relu", "Softplus"), more)
    sessions, _ = recorded.look()
    assert len(sessions) == 2, sessions
    with triton.InferenceServerClient(server.grpc) as client:
        ask_rows(client, "model", softplus(np.maximum(X, 0)))
    assert recorded.look() == (sessions, {"0", "1"}), "both stages ran by it"


@pytest.mark.parametrize("more", [ON_CARDS, ""], ids=["asks", "leaves it open"])
def test_all_cells_run_by_the_provider_if_one_of_them_has_no_plan(start, provider, tmp_path, more):
    server, recorded = on_provider(start, provider, tmp_path, of_cells("Relu"), more)
    sessions, tried = recorded.look()
    assert len(sessions) == 2 and tried == {"0", "1"}, "the example request of the load runs by it"
    with triton.InferenceServerClient(server.grpc) as client:
        ask_cells(client, "model", np.maximum(X, 0))
    assert recorded.look() == (sessions, {"0", "1"}), "both cells ran by it"


def test_stages_whose_rows_have_no_fixed_size_run_by_the_provider(start, provider, tmp_path):
    model = of_stages("Relu", "Neg", row=("batch", "width"))
    server, recorded = on_provider(start, provider, tmp_path, model, ON_CARDS, because="stage 0: ")
    recorded.look()
    with triton.InferenceServerClient(server.grpc) as client:
        for width in (3, WIDTH):
            found = client.infer("model", [tensor("x", X[:, :width])]).as_numpy("y")
            same(found, -np.maximum(X[:, :width], 0))
    assert recorded.look()[1] == {"0", "1"}


def test_a_model_whose_programs_all_have_plans_does_not_use_the_provider(start, provider, tmp_path):
    write(tmp_path, "stages", of_stages("Relu", "Neg"), ON_CARDS)
    write(tmp_path, "cells", ({"project.onnx": layers("Relu"), "step.onnx": step("Neg")}, CELLS), ON_CARDS)
    library, environment = provider()
    server = start(tmp_path, "--device=cuda", library=library, environment=environment)
    with triton.InferenceServerClient(server.grpc) as client:
        ask_rows(client, "stages", -np.maximum(X, 0))
        first, second = np.maximum(X, 0)
        found = client.infer("cells", [tensor("rows", X[None])]).as_numpy("last")
        same(found, -(second - first)[None])
    assert not os.path.exists(environment["FAKE_PROVIDER_LOG"]), "no session has the provider"


def test_sequences_keep_their_state_on_the_host_between_runs_of_the_provider(start, provider, tmp_path):
    server, recorded = on_provider(start, provider, tmp_path, ({"step.onnx": step()}, SEQUENCES), ON_CARDS)
    recorded.look()
    h = np.zeros(WIDTH)
    with triton.InferenceServerClient(server.grpc) as client:
        for part in range(3):
            rows = X + np.float32(part)
            more = {"sequence_id": 7, "sequence_start": part == 0, "sequence_end": part == 2}
            found = client.infer("model", [tensor("rows", rows[None])], **more).as_numpy("last")
            for row in rows:
                h = softplus(row + h)
            same(found, h[None])
    assert recorded.look()[1] == {"0"}


@pytest.mark.parametrize("precision, tf32", [("fp32", "0"), ("tf32", "1"), ("bf16", "0"), ("fp16", "0")])
def test_all_programs_have_the_model_s_card_and_precision(start, provider, tmp_path, precision, tf32):
    more = f"instance: {{ devices: ['cuda:1'], precision: {precision} }}\n"
    two = {"FAKE_CUDA_DEVICES": "2"}
    _, recorded = on_provider(start, provider, tmp_path, of_stages("Relu", "Softplus"), more, **two)
    sessions, _ = recorded.look()
    assert [(own["device_id"], own["use_tf32"]) for own in sessions] == [("1", tf32)] * 2


@pytest.mark.parametrize("bound, limit", [("0", None), ("300000000", "300000000")])
def test_sessions_have_the_bound_of_the_card_s_memory(start, provider, tmp_path, bound, limit):
    flags = (f"--cuda-memory-bytes={bound}",)
    _, recorded = on_provider(start, provider, tmp_path, of_stages("Relu", "Softplus"), ON_CARDS, flags=flags)
    sessions, _ = recorded.look()
    assert [own.get("gpu_mem_limit") for own in sessions] == [limit] * 2


def test_a_cell_s_engine_is_that_of_the_cpu_alone(start, provider, tmp_path):
    files, config = of_cells("Relu")
    by_openvino = config.replace("step.onnx }", "step.onnx, engine: openvino }")
    flags = ("--openvino-library", fetched(fetch.openvino))
    server, recorded = on_provider(start, provider, tmp_path, (files, by_openvino), ON_CARDS, flags=flags)
    recorded.look()
    with triton.InferenceServerClient(server.grpc) as client:
        ask_cells(client, "model", np.maximum(X, 0))
    assert recorded.look()[1] == {"0", "1"}, "both cells ran by the provider"


def inspected(program, path, *flags, **environment):
    command = [str(part) for part in (program, "inspect", path, *flags)]
    environment = {**os.environ, **environment}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return ended.stdout.splitlines()[-2:]


def test_inspect_says_what_the_fallback_is(program, provider, tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(layers("Softplus"))
    library, environment = provider()
    by_provider = "on a card, all programs of the model run by ONNX Runtime's CUDA provider"
    missing, fallback = inspected(program, model)
    assert missing.startswith(MISSING)
    assert fallback == f"{by_provider}, if --onnxruntime-library has that; else they run on the CPU"
    missing, fallback = inspected(program, model, "--onnxruntime-library", environment["FAKE_PROVIDER_RUNTIME"])
    assert missing.startswith(MISSING)
    assert fallback.startswith("the model runs on the CPU: " + REFUSED) and fallback.endswith(ABSENT)
    _, fallback = inspected(program, model, "--onnxruntime-library", library, **environment)
    assert fallback == by_provider
    library, environment = provider(has_part=False)
    _, fallback = inspected(program, model, "--onnxruntime-library", library, **environment)
    assert fallback.startswith("the model runs on the CPU: " + REFUSED) and fallback.endswith(f"has no {PART}")
