"""Replays what was recorded from Triton 2.51, case by case: status codes must be the same, answers must have the same
content, and rejections must contain the same facts. Exceptions are listed in protocol_differences.py and checked as
strictly.

Cases with a recorded request are sent unchanged. The others are scripted below. Where the measurement waited for some
time, the script waits for the intended state.
"""

import queue
import re
from collections import Counter

import pytest
import tritonclient.grpc as triton
from clients import ROW, change, eventually, expires, metric, pending, raw_channel, rows, statistics, tensor
from conftest import NOTES
from protocol_differences import ABSENT_MODELS, CONTENT, MESSAGE, STATUS
from protocol_replay import (
    Answer,
    asked,
    call,
    cases,
    differences,
    index_digest,
    infer_digest,
    missing_facts,
    prefix,
    replay,
    same_content,
)
from tritonclient.utils import InferenceServerException

CASES = cases()
HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def health_check(channel, service):
    """Sends a Check with a hand-written request: field 1 is the service's name."""
    request = b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
    return asked(lambda: channel.unary_unary(f"{HEALTH}/Check")(request, timeout=120).hex())


@pytest.fixture(scope="module")
def repository(made_models):
    return made_models("replay")


@pytest.fixture(scope="module")
def tally():
    """Counts how the cases compare, and reports it at the end of the run."""
    counts = Counter()
    yield counts
    lines = [f"{counts[kind]:4} {kind}" for kind in ("same", "listed differences", "different")]
    NOTES.append(("protocol cases", lines))


@pytest.fixture(scope="module")
def measured(program, repository):
    """Starts a server in mode none with the models of the measurement, one of which is broken: (server, channel,
    client)."""
    from server import Server

    running = Server(repository, program=program)
    running.start(until="settled")
    try:
        with raw_channel(running) as channel, triton.InferenceServerClient(running.grpc) as client:
            yield running, channel, client
    finally:
        assert running.stop() == 0, running.log_tail()
        running.log.unlink()


# Scripted cases of the server in mode none ---------------------------------------------------------------------------


def watch(channel):
    def first():
        watching = channel.unary_stream(f"{HEALTH}/Watch")(b"", timeout=120)
        try:
            return next(watching).hex()
        finally:
            watching.cancel()

    return asked(first)


def reflect(channel):
    """Requests the list of services: field 7, empty."""

    def services():
        answers = channel.stream_stream(REFLECTION)(iter([b"\x3a\x00"]), timeout=120)
        return b"inference.GRPCInferenceService" in next(answers)

    return asked(services)


def metric_families(server):
    status, page = server.get("/metrics", port="metrics")
    families = sorted(f"{name} {kind}" for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page.decode(), re.MULTILINE))
    return Answer(status, content=[family for family in families if family.startswith("nv_")])


def counted_requests(client):
    before = statistics(client, "identity_onnx")
    for size in (1, 1, 1, 4):
        client.infer("identity_onnx", [tensor("INPUT0", rows(size))])
    with pytest.raises(InferenceServerException):
        client.infer("identity_onnx", [tensor("INPUT0", ROW[None, :8])])
    added = change(before, statistics(client, "identity_onnx"))
    names = {"inference": "inference_count", "execution": "execution_count"}
    counts = {names.get(key, key): added[key] for key in ("cache_hit", "compute_infer", "execution", "fail", "inference")}
    counts.update({key: added[key] for key in ("queue", "success")})
    return Answer("OK", content={**counts, "batch_stats": {str(size): count for size, count in added["batches"].items()}})


def expired_request(client):
    before = statistics(client, "slow_onnx")

    def added():
        return change(before, statistics(client, "slow_onnx"))

    expires(client, "slow_onnx", [tensor("INPUT0", [ROW])], lambda: added()["success"] + added()["fail"])
    return Answer("OK", content={"fail_delta": added()["fail"], "success_delta": added()["success"]})


def scripted(name, server, channel, client):
    """Returns the answer to a case without a recorded request; None if the name is unknown."""
    scripts = {
        "health_v1.check_model": lambda: health_check(channel, "identity_onnx"),
        "health_v1.check_nope": lambda: health_check(channel, "nope"),
        "health_v1.watch": lambda: watch(channel),
        "reflection.v1alpha": lambda: reflect(channel),
        "unknown_method": lambda: asked(lambda: channel.unary_unary("/inference.GRPCInferenceService/Nope")(b"")),
        "unknown_service": lambda: asked(lambda: channel.unary_unary("/nope.Nope/Nope")(b"")),
        "metrics.families": lambda: metric_families(server),
        "repo.index_ready_True": lambda: asked(
            lambda: index_digest(call(channel, "RepositoryIndex", {"ready": True}), ABSENT_MODELS)
        ),
        "stats.delta_3xbatch1_1xbatch4_1xbadshape": lambda: counted_requests(client),
        "stats.after_client_deadline": lambda: expired_request(client),
    }
    return scripts[name]() if name in scripts else None


#: Attempts at the cases of a full queue before the machine is called too busy for them.
TRIES = 20


@pytest.fixture(scope="module")
def queued(measured):
    """The cases of a full queue: slow_q runs one request, two wait, and two more arrive.

    They are valid only while the first request runs, about a second. If a busy machine takes longer to send the others,
    they are sent again.
    """
    server, _, client = measured
    for _ in range(TRIES):
        answers = full_queue(server, client)
        if answers is not None:
            cases_of = {"running": "q0", "queued_ok": "q2", "queue_full_a": "q3", "queue_full_b": "q4"}
            return {f"queue.{case}": answers[name] for case, name in cases_of.items()}
    raise AssertionError(f"the first of five requests ended before the last was answered, {TRIES} times")


def full_queue(server, client):
    """Returns answers by request; None if the first ended too early for the queue to be full."""
    ended, order = queue.Queue(), []

    def ask(name):
        def told(result, error, name=name):
            if error is None:
                ended.put((name, Answer("OK", content={"id": result.get_response().id})))
            else:
                ended.put((name, Answer(error.status().split(".")[-1], error.message())))

        client.async_infer("slow_q", [tensor("INPUT0", [ROW])], told, request_id=name)

    def waiting(count):
        """Returns whether that many requests wait behind the running one. Also true if it has ended, so that they never
        will."""
        return pending(server, "slow_q") == count or not ended.empty()

    executed = on_lanes(server)
    ask("q0")
    eventually("a running request", lambda: on_lanes(server) > executed)
    ask("q1")
    eventually("one waiting request", lambda: waiting(1))
    ask("q2")
    eventually("a full queue", lambda: waiting(2))
    ask("q3")
    ask("q4")
    answers = {}
    for _ in range(5):
        name, answer = ended.get(timeout=120)
        order.append(name)
        answers[name] = answer
    return answers if order.index("q0") > max(order.index("q3"), order.index("q4")) else None


def on_lanes(server):
    """Returns the number of tasks that have been given to lanes."""
    return metric(server, "paternoster_tasks_total")


# Scripted cases of the server in explicit mode -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_request(program, repository):
    """Returns all cases of a second server in explicit mode, in the order of the measurement."""
    from server import Server

    with Server(repository, "--model-control-mode=explicit", program=program) as running:
        with raw_channel(running) as channel, triton.InferenceServerClient(running.grpc) as client:
            return explicit_script(running, channel, client)


def explicit_script(server, channel, client):
    answers = {}

    def send(*names):
        for name in names:
            answers[f"explicit.{name}"] = replay(channel, CASES[f"explicit.{name}"])

    def index(*only):
        def listed():
            found = index_digest(call(channel, "RepositoryIndex", {}), ABSENT_MODELS)
            return [one for one in found if not only or one[0] in only]

        return asked(listed)

    answers["explicit.index_initial"] = index()
    answers["explicit.health_v1_check_empty"] = health_check(channel, "")
    answers["explicit.health_v1_check_nope"] = health_check(channel, "nope")
    send("ready_nothing_loaded", "infer_not_loaded", "metadata_not_loaded", "unload_unknown", "unload_not_loaded")
    send("load_broken", "load_again", "load_again", "load_bad_config_param")
    send("load_config_override", "infer_batch3_after_override2", "load_slow")

    for _ in range(TRIES):
        during = unload_under_load(server, channel, client, lambda: index("slow_onnx"))
        if during is not None:
            break
        send("load_slow")
    assert during is not None, f"the requests ended before the unload was seen, {TRIES} times"
    answers.update(during)
    eventually("an unloaded model", lambda: index("slow_onnx").content[0][2] == "UNAVAILABLE")
    answers["explicit.index_after_unload"] = index("slow_onnx")
    send("infer_after_unload")
    return answers


def unload_under_load(server, channel, client, index):
    """Unloads slow_onnx during two requests to it, about a second each. Returns the answers of other requests
    meanwhile; None if both ended before all of these had been sent."""
    answers, ended, executed = {}, queue.Queue(), on_lanes(server)

    def ask(name):
        def told(result, error):
            ended.put((result, error))

        client.async_infer("slow_onnx", [tensor("INPUT0", [ROW])], told, request_id=name)

    ask("inflight")
    eventually("a running request", lambda: on_lanes(server) > executed)
    ask("behind")
    eventually("one that waits or none that runs", lambda: pending(server, "slow_onnx") == 1 or not ended.empty())
    client.unload_model("slow_onnx")
    unload_came_first = ended.empty()
    answers["explicit.index_during_unload"] = index()
    for name in ("infer_during_unload", "ready_during_unload"):
        answers[f"explicit.{name}"] = replay(channel, CASES[f"explicit.{name}"])
    in_time = unload_came_first and ended.qsize() < 2
    results = {}
    for _ in range(2):
        result, error = ended.get(timeout=120)
        assert error is None, error
        digest = infer_digest(result.get_response())
        results[digest["id"]] = digest
    answers["explicit.inflight_result"] = Answer(
        "OK",
        content={
            "id": "inflight",
            "raw": results["inflight"]["raw"],
            "unload_rpc_returned_before_inflight_done": unload_came_first,
        },
    )
    return answers if in_time else None


# The comparison ------------------------------------------------------------------------------------------------------


def answer_to(name, request):
    """Returns the answer to a case, from the server that the case is about."""
    if name.startswith("explicit."):
        return request.getfixturevalue("by_request")[name]
    if name.startswith("queue."):
        return request.getfixturevalue("queued")[name]
    server, channel, client = request.getfixturevalue("measured")
    if "request" in CASES[name]:
        return replay(channel, CASES[name], compressed=name == "infer.ok_gzip_request")
    return scripted(name, server, channel, client)


def content_differences(name, case, answer):
    if "request" in case:
        return same_content(case, answer.content)
    recorded = case.get("resp")
    if recorded is None:
        return ""
    if name == "metrics.families":
        return differences([], sorted(set(recorded) - set(answer.content)))
    if name.endswith(("index_initial", "index_ready_True")):
        recorded = [one for one in recorded if one[0] not in ABSENT_MODELS]
    return differences(recorded, answer.content)


@pytest.mark.parametrize("name", CASES)
def test_case(name, request, tally):
    case = CASES[name]
    tally["different"] += 1
    answer = answer_to(name, request)
    assert answer is not None, "the case is neither recorded with its request nor scripted"

    expected, _ = STATUS.get(name, (case["code"], ""))
    assert answer.code == expected, f"{answer.code} '{answer.message}', recorded {case['code']} '{case['message']}'"
    if name in STATUS:
        assert answer.code != case["code"], "listed as different, but it is the same"
    elif answer.code in ("OK", 200):
        told = content_differences(name, case, answer)
        assert bool(told) == (name in CONTENT), told or "listed as different, but it is the same"
    else:
        missing = missing_facts(case["message"], answer.message)
        told = f"the message lacks {missing}: '{answer.message}', recorded '{case['message']}'"
        assert bool(missing) == (name in MESSAGE), told
        assert prefix(answer.message) == prefix(case["message"]), f"'{answer.message}', recorded '{case['message']}'"
    tally["different"] -= 1
    tally["listed differences" if name in {**STATUS, **CONTENT, **MESSAGE} else "same"] += 1


def test_the_lists_name_recorded_cases_only():
    assert {*STATUS, *CONTENT, *MESSAGE} <= set(CASES)
