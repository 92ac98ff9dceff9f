"""What clients and probes see while a server loads its models. One model has a configuration file that the server
cannot open before the test releases it."""

import fcntl
import json
import os
import signal

import pytest
import tritonclient.grpc as triton
from clients import ROW, eventually, raw_channel, refused, tensor
from onnx_bytes import identity
from repository_on_disk import config, write_model
from server import Server

PORTS = {"INPUT0": ("FP32", [16])}
#: fcntl's command that selects the signal for the holder of a lease; Python has no name for it.
F_SETSIG = 10


class HeldFile:
    """A file that other processes cannot open until it is released: a lease, which Linux breaks 45 s after a process
    begins to wait for it."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)
        # By default the holder gets a signal that would end it; this one is ignored.
        fcntl.fcntl(self.file, F_SETSIG, signal.SIGURG)
        fcntl.fcntl(self.file, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def release(self, text=""):
        os.write(self.file, text.encode())
        fcntl.fcntl(self.file, fcntl.F_SETLEASE, fcntl.F_UNLCK)


@pytest.fixture
def held(tmp_path):
    """Writes a repository of two models, one of which waits for its configuration: (repository, configuration)."""
    write_model(tmp_path, "early", identity(), config("early", PORTS))
    configuration = HeldFile(write_model(tmp_path, "late", identity()) / "config.pbtxt")
    yield tmp_path, configuration
    os.close(configuration.file)


def probes(server):
    return [server.get(path)[0] for path in ("/v2/health/live", "/v2/health/ready")]


def test_ports_are_open_and_the_server_is_live_before_its_models_are_loaded(start, held):
    repository, configuration = held
    server = start(repository, until="live")
    with triton.InferenceServerClient(server.grpc) as client:
        assert client.is_server_live() and not client.is_server_ready()
        assert probes(server) == [200, 400]
        eventually("the model that does not wait", lambda: client.is_model_ready("early"))
        assert client.infer("early", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0").tolist() == [ROW.tolist()]
        assert not client.is_server_ready() and probes(server) == [200, 400]

        assert not client.is_model_ready("late")
        for ask in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
            with refused("UNAVAILABLE", "Server not ready", "'late'"):
                ask("late")
        with refused("UNAVAILABLE", "Server not ready", "'late'"):
            client.infer("late", [tensor("INPUT0", [ROW])])
        with refused("NOT_FOUND", "'never' is not found"):
            client.infer("never", [tensor("INPUT0", [ROW])])
        status, answer = server.get("/v2/models/late")
        assert status == 503 and "Server not ready" in json.loads(answer)["error"]
        states = {model.name: model.state for model in client.get_model_repository_index().models}
        assert states == {"early": "READY", "late": "LOADING"}

        configuration.release(config("late", PORTS))
        eventually("a ready server", client.is_server_ready)
        assert probes(server) == [200, 200]
        assert client.infer("late", [tensor("INPUT0", [ROW])]).as_numpy("OUTPUT0").tolist() == [ROW.tolist()]


def test_who_watches_health_is_told_when_loading_ends(start, held):
    repository, configuration = held
    server = start(repository, until="live")
    with raw_channel(server) as channel:
        watching = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=120)
        assert next(watching) == b"\x08\x02", "NOT_SERVING"
        configuration.release(config("late", PORTS))
        assert next(watching) == b"\x08\x01", "SERVING"
        watching.cancel()


def test_clients_load_nothing_before_the_models_of_the_start_are_loaded(start, held):
    repository, configuration = held
    server = start(repository, "--model-control-mode=explicit", "--load-model=late", until="live")
    with triton.InferenceServerClient(server.grpc) as client:
        with refused("UNAVAILABLE", "Server not ready"):
            client.load_model("early")
        configuration.release(config("late", PORTS))
        eventually("a ready server", client.is_server_ready)
        client.load_model("early")
        assert client.is_model_ready("early")


def test_a_server_that_is_told_to_end_while_it_loads_ends_in_order(start, held):
    """The drain delay is skipped, since load balancers have never seen the server ready."""
    repository, _ = held
    server = start(repository, "--drain-delay-secs=3600", until="live")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(120) == 0, server.log_tail()
    assert "came while models were loading" in server.log.read_text()


def test_a_model_that_fails_ends_a_server_that_is_told_to_exit_on_error(program, held):
    repository, configuration = held
    server = Server(repository, "--exit-on-error", program=program).start(until="live")
    try:
        assert server.get("/v2/health/live")[0] == 200, "it serves while it loads"
        configuration.release("max_batch_size: [")
        assert server.process.wait(120) == 1, server.log_tail()
        log = server.log.read_text()
        assert "1 model failed to load and --exit-on-error is set" in log and "config.pbtxt" in log
    finally:
        server.stop()
        server.log.unlink()
