"""Networks under each policy, on a live server under an open Poisson load: every answer is right, and the policy's
effect occurs. Only counts are asserted, never times."""

import json
from collections import Counter

import fetch
import numpy as np
import open_load
import pytest
from clients import metric, on_page, scrape
from open_load import OUTPUTS, WHOLE, Served

#: Allowed difference, as a fraction of the largest element of all answers.
TOLERANCE = 1e-4
SAMPLES = 12
#: The load, as a fraction of the measured peak.
LOAD = 0.8

MODELS = {
    "minilm": Served("minilm", open_load.POLICIES["minilm-paper"]),
    # The paper's predictor pushes wherever the slack allows it, so the effect does not depend on this machine's times.
    "resnet50": Served("resnet50", open_load.POLICIES["resnet50-equation-2"]),
    "vgg19": Served("vgg19", open_load.POLICIES["vgg19"]),
    "unet": Served("unet", open_load.POLICIES["unet-latencies"]),
}
#: Models that share the device; one should get three times as much of it.
WEIGHTS = {"heavy": 3, "light": 1}
SHARING = {
    "heavy": Served("minilm", f"stages: 2\nbatching: {{ policy: diversity, weight: {WEIGHTS['heavy']} }}"),
    # Small batches, because shares are only as fine as tasks are short; and small messages, so that all requests are
    # there long before they run, on a busy machine too.
    "light": Served("minilm", f"stages: 2\nbatching: {{ policy: adaptive, weight: {WEIGHTS['light']} }}", 2),
}
WAITING, ANSWERED = "nv_inference_pending_request_count", "nv_inference_request_success"
#: The number of requests of each that are sent at once.
SHARED = {"heavy": 2400, "light": 800}
REQUESTS = {"minilm": 200, "resnet50": 150, "vgg19": 100, "unet": 40}


@pytest.fixture(scope="module")
def networks(program, tmp_path_factory):
    return open_load.write_networks(program, tmp_path_factory.mktemp("networks"), fetch.minilm())


@pytest.fixture(scope="module")
def samples():
    """Returns a dozen requests for each network."""
    made = {}

    def of(network):
        return made.setdefault(network, open_load.samples(network, SAMPLES, seed=len(network)))

    return of


@pytest.fixture
def serve(start, networks, tmp_path):
    """Returns a function that starts a server with these models, and with each network also whole and under
    `serial`."""

    def serve_models(models, *flags):
        alone = {f"{served.network}-whole": Served(served.network, WHOLE) for served in models.values()}
        repository = open_load.write_repository(tmp_path / "repository", networks, {**models, **alone})
        return start(repository, *flags)

    return serve_models


def right_answers(server, network, requests):
    """Returns the whole network's answers, one request at a time, and the allowed difference from them."""
    expected = open_load.answers_alone(server.grpc, f"{network}-whole", network, requests)
    allowed = TOLERANCE * max(np.abs(one).max() for one in expected)
    apart = min(np.abs(one - other).max() for at, one in enumerate(expected) for other in expected[:at])
    assert apart > 100 * allowed, "a swapped answer would not be seen"
    return expected, allowed


def assert_all_right(answered, network, expected, allowed):
    assert [str(one.error) for one in answered if one.error] == []
    for one in answered:
        found = one.answer.as_numpy(OUTPUTS[network])
        np.testing.assert_allclose(found, expected[one.choice], rtol=0, atol=allowed)


def under_load(server, model, requests):
    """Sends an open load to one model, and checks every answer."""
    expected, allowed = right_answers(server, model, requests)
    count = REQUESTS[model]
    rate = LOAD * open_load.peak(server.grpc, model, requests, count // 3)
    (answered,) = open_load.run(server.grpc, [open_load.poisson(model, requests, rate, count, seed=7)])
    assert len(answered) == count
    assert_all_right(answered, model, expected, allowed)


def happened(server, model, what):
    return metric(server, f"paternoster_batch_{what}_total", model=model)


def assert_every_stage_ran_every_row(server, model, stages):
    """Checks that each stage ran as many rows as requests were sent: those of the peak and those of the load."""
    asked = metric(server, "nv_inference_request_success", model=model)
    for stage in range(stages):
        assert metric(server, "paternoster_stage_tasks_total", model=model, stage=stage) > 0
        assert metric(server, "paternoster_stage_rows_total", model=model, stage=stage) == asked


def kinds(recorded):
    """Returns how often each event of batches is on a timeline, by the names of its spans."""
    spans = [event["name"] for event in recorded["traceEvents"] if event["ph"] == "X"]
    return Counter(what for name in spans for what in ("stretch", "merge", "split") if what in name.split())


def test_minilm_is_stretched_and_merged_under_diversity(serve, samples, tmp_path):
    recording = tmp_path / "timeline.json"
    # Another model was used just before; for it the tasks of this one would be cut.
    server = serve({"minilm": MODELS["minilm"]}, "--timeline-file", recording, "--last-lane-limit-ms=0")
    under_load(server, "minilm", samples("minilm"))
    assert_every_stage_ran_every_row(server, "minilm", stages=3)
    assert happened(server, "minilm", "stretches") > 0
    assert happened(server, "minilm", "merges") > 0
    assert happened(server, "minilm", "splits") == 0

    status, body = server.get("/v2/timeline")
    assert status == 200
    seen = kinds(json.loads(body))
    assert seen["stretch"] > 0 and seen["merge"] > 0 and seen["split"] == 0


def test_resnet_is_pushed_and_merged_under_lazy(serve, samples):
    server = serve({"resnet50": MODELS["resnet50"]})
    under_load(server, "resnet50", samples("resnet50"))
    assert_every_stage_ran_every_row(server, "resnet50", stages=4)
    assert happened(server, "resnet50", "stretches") > 0
    assert happened(server, "resnet50", "merges") > 0


def test_vgg_is_served_in_batches_under_adaptive(serve, samples):
    server = serve({"vgg19": MODELS["vgg19"]})
    under_load(server, "vgg19", samples("vgg19"))
    asked = metric(server, "nv_inference_request_success", model="vgg19")
    assert metric(server, "nv_inference_exec_count", model="vgg19") < asked
    assert happened(server, "vgg19", "slack_misses") == 0


def test_unet_is_split_under_diversity(serve, samples):
    server = serve({"unet": MODELS["unet"]})
    under_load(server, "unet", samples("unet"))
    assert_every_stage_ran_every_row(server, "unet", stages=3)
    assert happened(server, "unet", "splits") > 0
    rest = metric(server, "paternoster_stage_tasks_total", model="unet", stage=2)
    assert rest > metric(server, "paternoster_stage_tasks_total", model="unet", stage=0)


def test_two_models_share_the_device_by_their_weights(serve, samples):
    """One lane, with requests of both waiting for it: each gets its share of the lane's time, so neither starves."""
    server = serve(SHARING, "--cpu-lanes", "1")
    right, streams, pages = {}, [], []
    for name, served in SHARING.items():
        requests = samples(served.network)
        right[name] = right_answers(server, served.network, requests)
        streams.append(open_load.at_once(name, requests, SHARED[name], seed=11))
    answers = open_load.run(server.grpc, streams, watch=lambda: pages.append(scrape(server)))
    for stream, answered in zip(streams, answers):
        assert_all_right(answered, SHARING[stream.model].network, *right[stream.model])

    had, tasks = Counter(), Counter()
    for page, later in zip(pages, pages[1:]):
        # More requests of both waited at its start than were answered in it: on a busy machine they arrive one by one,
        # and a queue that was empty in between has no share.
        if all(on_page(page, WAITING, model=name) > added(page, later, ANSWERED, name) for name in SHARING):
            for name in SHARING:
                had[name] += added(page, later, "paternoster_stage_run_seconds_total", name)
                tasks[name] += added(page, later, "paternoster_stage_tasks_total", name)
    assert min(tasks.values()) >= 10, f"both waited together for too short a time: {tasks}"
    wanted = WEIGHTS["heavy"] / WEIGHTS["light"]
    assert wanted / 1.5 < had["heavy"] / had["light"] < wanted * 1.5, (had, tasks)


def added(page, later, name, model):
    return on_page(later, name, model=model) - on_page(page, name, model=model)
