"""Triton's rate limiter on the real server: models that share a resource never run at once, and others are not held
up. What ran when is read from the timeline, so that no test depends on times."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import tritonclient.grpc as triton
from clients import eventually, metric, on_page, refused, rows, scrape, tensor
from conftest import serving
from onnx_bytes import identity
from repository_on_disk import config, write_model

#: The number of requests that each model gets at once; each takes a second or more.
EACH = 1
ROW = {"INPUT0": ("FP32", [16])}
#: A run of the slow model takes seconds, and beside other work minutes.
PATIENT = "--task-time-limit-secs=1200"


def limited(count=1, name="unit", is_global=True, priority=1):
    """Returns an instance group that needs units of one resource."""
    resource = f'{{ name: "{name}" global: {str(is_global).lower()} count: {count} }}'
    return f"instance_group [ {{ count: 2 rate_limiter {{ resources [ {resource} ] priority: {priority} }} }} ]"


#: The rounds of the slow model's loop, and those that are enough here, as 64-bit numbers in its file.
ROUNDS, FEWER = (150).to_bytes(8, "little"), (40).to_bytes(8, "little")

#: The same in model.yaml.
YAML = """max_batch_size: 1
instance:
  count: 2
  rate_limiter: { resources: [{ name: unit, global: true, count: 1 }], priority: 1 }
batching: { policy: serial }
"""


@pytest.fixture(scope="module")
def repository(made_models, tmp_path_factory):
    """Two slow models that share a unit of a resource, one in each form of the configuration."""
    slow = (made_models("tests", "--only", "slow") / "slow" / "1" / "model.onnx").read_bytes()
    assert slow.count(ROUNDS) == 1
    folder = tmp_path_factory.mktemp("limited")
    for name in ("red", "blue"):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.onnx").write_bytes(slow.replace(ROUNDS, FEWER))
    (folder / "red" / "config.pbtxt").write_text(config("red", ROW, max_batch_size=1, extra=limited()))
    (folder / "blue" / "model.yaml").write_text(YAML)
    return folder


def ask_both(server):
    def one(model):
        with triton.InferenceServerClient(server.grpc) as client:
            client.infer(model, [tensor("INPUT0", rows(1))])

    with ThreadPoolExecutor(2 * EACH) as threads:
        list(threads.map(one, ["red", "blue"] * EACH))


def tasks_of(server):
    """Returns the start and the end of each task on a lane, in nanoseconds, in the order of their starts, with the
    model."""
    status, body = server.get("/v2/timeline")
    assert status == 200
    events = json.loads(body)["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    models, times = {}, {}
    for event in events:
        if event["ph"] != "X" or "task" not in event.get("args", {}):
            continue
        task, process = event["args"]["task"], processes[event["pid"]]
        if " · version " in process:
            models[task] = process.split(" · version ")[0]
        else:
            times[task] = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
    assert models.keys() == times.keys() and len(times) == 2 * EACH, (models, times)
    return sorted((*times[task], models[task]) for task in times)


def overlap(tasks):
    return [(one, other) for one, other in zip(tasks, tasks[1:]) if other[0] < one[1]]


def test_models_that_share_a_unit_never_run_at_once(program, repository, tmp_path):
    flags = ["--rate-limit=execution_count", PATIENT, "--cpu-lanes=2", "--cpu-shards=2"]
    with serving(repository, *flags, "--timeline-file", tmp_path / "timeline.json", program=program) as server:
        ask_both(server)
        tasks = tasks_of(server)
        assert overlap(tasks) == []
        assert {model for *_, model in tasks} == {"red", "blue"}
        page = scrape(server)
        where = {"name": "unit", "device": "global"}
        assert on_page(page, "paternoster_rate_limit_resource", **where) == 1
        assert on_page(page, "paternoster_rate_limit_resource_in_use", **where) == 0
        assert on_page(page, "paternoster_rate_limit_wait_seconds_total", **where) > 0


def test_without_the_mode_resources_have_no_effect_which_the_log_says_once(program, repository, tmp_path):
    flags = ["--rate-limit=off", "--rate-limit-resource=unit:0", PATIENT, "--cpu-lanes=2"]
    with serving(repository, *flags, "--timeline-file", tmp_path / "timeline.json", program=program) as server:
        ask_both(server)
        assert overlap(tasks_of(server)), "with two lanes, the first tasks of both run at once"
        assert "paternoster_rate_limit" not in scrape(server)
        log = server.log.read_text()
        assert log.count("rate_limiter has no effect") == 1
        assert log.count("--rate-limit-resource=unit:0") == log.count("--rate-limit is off") == 1


def test_a_model_that_needs_more_than_there_is_does_not_load(start, tmp_path):
    write_model(tmp_path, "large", identity(), config("large", ROW, extra=limited(count=4, name="R1", is_global=False)))
    write_model(tmp_path, "small", identity(), config("small", ROW, extra=limited(count=2, name="R1", is_global=False)))
    write_model(tmp_path, "other", identity(), config("other", ROW, extra=limited(count=1, name="R1")))
    flags = ["--rate-limit=execution_count", "--rate-limit-resource=R1:3:0", "--model-control-mode=explicit"]
    server = start(tmp_path, *flags, "--rate-limit-resource=R1:2:7")
    assert server.log.read_text().count("there is no such device") == 1
    with triton.InferenceServerClient(server.grpc) as client:
        with pytest.raises(triton.InferenceServerException) as failed:
            client.load_model("large")
        message = "resource 'R1' is limited to 3 on device cpu (--rate-limit-resource), but a batch needs 4"
        assert message in failed.value.message()
        client.load_model("small")
        client.infer("small", [tensor("INPUT0", rows(1))])
        with pytest.raises(triton.InferenceServerException) as failed:
            client.load_model("other")
        assert "resource 'R1' is global here and per device in model 'small'; expected" in failed.value.message()
        assert metric(server, "paternoster_rate_limit_resource", name="R1", device="cpu") == 3
        shown = json.loads(server.get("/v2/overview")[1])["resources"]
        assert shown == [{"name": "R1", "device": "cpu", "used": 0, "limit": 3}]
        # A configuration that comes with the request counts as one of the directory.
        resources = [{"name": "R1", "count": 5}]
        given = {"max_batch_size": 8, "instance_group": [{"rate_limiter": {"resources": resources, "priority": 2}}]}
        with pytest.raises(triton.InferenceServerException) as failed:
            client.load_model("small", config=json.dumps({"name": "small", "backend": "onnxruntime", **given}))
        assert "but a batch needs 5" in failed.value.message()
        resources[0] |= {"count": 1, "global": True}
        with pytest.raises(triton.InferenceServerException) as failed:
            client.load_model("small", config=json.dumps({"name": "small", "backend": "onnxruntime", **given}))
        message = "is global here and per device in the loaded version of this model"
        assert message in failed.value.message() and "unload it first" in failed.value.message()
        del resources[0]["global"]
        client.unload_model("small")
        eventually("the resource left with its model", lambda: "paternoster_rate_limit_resource{" not in scrape(server))
        client.load_model("other")
        with refused("INVALID_ARGUMENT", "names 'R1' twice"):
            given["instance_group"][0]["rate_limiter"]["resources"] *= 2
            client.load_model("small", config=json.dumps({"name": "small", "backend": "onnxruntime", **given}))
