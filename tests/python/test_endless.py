"""Models that do not end by themselves: they affect only their own clients."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import tritonclient.grpc as triton
from clients import ROW, eventually, metric, refused, tensor

#: Two models, each with a loop that never ends.
ENDLESS = ("runaway", "endless")
#: Time limit of waits: more than anything here needs, and less than any limit on a task's time.
GENEROUS_S = 300


@pytest.fixture
def serve(start, made_models):
    """Starts a server of two lanes with the endless models and a healthy one; (server, client)."""
    clients = []

    def serve_with(*flags, limit_ms=None):
        folder = made_models("tests", "--only", "runaway,identity")
        if limit_ms is not None:
            config = folder / "runaway" / "config.pbtxt"
            limit = f'parameters {{ key: "batching.task_time_limit_ms" value {{ string_value: "{limit_ms}" }} }}\n'
            config.write_text(config.read_text() + limit)
        shutil.copytree(folder / "runaway", folder / "endless")
        server = start(folder, "--cpu-lanes=2", *flags)
        clients.append(triton.InferenceServerClient(server.grpc))
        return server, clients[-1]

    yield serve_with
    for client in clients:
        client.close()


def ask(server, model, **options):
    with triton.InferenceServerClient(server.grpc) as client:
        return client.infer(model, [tensor("INPUT0", [ROW])], **options)


def ask_endless(server, code, *facts, **options):
    """Sends requests to both endless models at the same time, which must fail."""

    def refuse(model):
        with refused(code, *facts):
            ask(server, model, **options)

    with ThreadPoolExecutor(len(ENDLESS)) as at_once:
        list(at_once.map(refuse, ENDLESS))


def failures(server, reason):
    return sum(metric(server, "nv_inference_request_failure", model=model, reason=reason) for model in ENDLESS)


def test_endless_runs_end_with_their_clients_deadlines(serve):
    server, client = serve("--task-time-limit-secs=0")
    for turn in range(1, 3):
        # Long enough for the requests to begin on a busy machine.
        ask_endless(server, "DEADLINE_EXCEEDED", client_timeout=5)
        # Both lanes are free again, although no limit on a task's time would free them.
        client.infer("identity", [tensor("INPUT0", [ROW])], client_timeout=GENEROUS_S)
        eventually("counted expiries", lambda: failures(server, "CANCELED") == 2 * turn)
    assert failures(server, "BACKEND") == 0
    eventually("runs that have ended", lambda: metric(server, "paternoster_tasks_running") == 0)
    assert metric(server, "paternoster_tasks_unwanted_total") == 4
    assert metric(server, "paternoster_lanes_stuck") == metric(server, "paternoster_lanes_replaced_total") == 0
    assert client.is_server_ready()


def test_endless_runs_end_when_their_clients_disconnect(serve):
    server, client = serve("--task-time-limit-secs=0")
    leaving = [triton.InferenceServerClient(server.grpc) for _ in ENDLESS]
    for model, one in zip(ENDLESS, leaving):
        one.async_infer(model, [tensor("INPUT0", [ROW])], lambda result, error: None)
    eventually("two running tasks", lambda: metric(server, "paternoster_tasks_running") == 2)
    for one in leaving:
        one.close()
    client.infer("identity", [tensor("INPUT0", [ROW])], client_timeout=GENEROUS_S)
    eventually("runs that have ended", lambda: metric(server, "paternoster_tasks_running") == 0)
    assert failures(server, "CANCELED") == 2


@pytest.mark.parametrize("flags, limit_ms", [(["--task-time-limit-secs=1"], None), ([], 1000)], ids=["flag", "model"])
def test_an_endless_run_fails_when_its_time_is_over(serve, flags, limit_ms):
    server, client = serve(*flags, limit_ms=limit_ms)
    ask_endless(server, "INTERNAL", "has not ended within 1s", client_timeout=GENEROUS_S)
    client.infer("identity", [tensor("INPUT0", [ROW])], client_timeout=GENEROUS_S)
    eventually("a server that is ready again", client.is_server_ready)
    assert metric(server, "paternoster_tasks_overdue_total") == failures(server, "BACKEND") == 2
