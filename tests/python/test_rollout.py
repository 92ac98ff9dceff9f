"""A rollout under load: the server that the chart starts is replaced by a new one as Kubernetes does it, and no request
fails."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import eventually, rows, tensor
from manifests import CHART, container, render
from server import HOST

CLIENTS = 8
#: Arguments that the container gets from the chart, and a test from its own server.
OF_THE_CONTAINER = ("--model-repository", "--grpc-port", "--http-port", "--metrics-port", "--profile-directory")
#: Seconds of drain delay. The old server's end must be noticed within them, which takes milliseconds.
DRAIN_DELAY_S = 10


class Service:
    """A Kubernetes service: connections are forwarded to the current endpoint, and stay with it."""

    def __init__(self):
        self.endpoint = None
        self.connections = 0
        self.address = None
        self.loop = asyncio.new_event_loop()

    async def accept(self, reader, writer):
        host, port = self.endpoint.split(":")
        self.connections += 1
        try:
            onward = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(self.pump(reader, onward[1]), self.pump(onward[0], writer))

    @staticmethod
    async def pump(reader, writer):
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    @contextmanager
    def serving(self, endpoint):
        self.endpoint = endpoint
        server = self.loop.run_until_complete(asyncio.start_server(self.accept, HOST, 0))
        self.address = "{}:{}".format(*server.sockets[0].getsockname())
        thread = threading.Thread(target=self.loop.run_forever)
        thread.start()
        try:
            yield self
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            thread.join()
            server.close()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()


class Load:
    """Clients that send requests one after the other. Half keep their connection, half open a new one for each
    request."""

    def __init__(self, address):
        self.address = address
        self.over = threading.Event()
        self.answered = [0] * CLIENTS
        self.failures = []

    def ask(self, number, client):
        sent = rows(1 + number % 4, start=self.answered[number] % 1000)
        answer = client.infer("identity", [tensor("INPUT0", sent)]).as_numpy("OUTPUT0")
        np.testing.assert_array_equal(answer, sent)
        self.answered[number] += 1

    def keep_asking(self, number):
        keeps = number % 2 == 0
        client = triton.InferenceServerClient(self.address)
        try:
            while not self.over.is_set():
                try:
                    self.ask(number, client)
                except Exception as failure:
                    self.failures.append(failure)
                    return
                if not keeps:
                    client.close()
                    # gRPC shares a connection between all channels with the same address and options, so the options
                    # must differ.
                    options = [("grpc.use_local_subchannel_pool", 1), ("paternoster.nth", self.answered[number])]
                    client = triton.InferenceServerClient(self.address, channel_args=options)
        finally:
            client.close()

    def progress(self):
        """Waits until each client has received an answer to a request that it sent after this call."""
        enough = [count + 2 for count in self.answered]
        eventually(
            "an answer to each client",
            lambda: self.failures or all(count >= least for count, least in zip(self.answered, enough)),
        )
        assert self.failures == []


@pytest.fixture
def chart_flags(helm):
    """Returns the arguments of the chart's container, except its addresses and its repository."""
    settings = [f"server.drainDelaySecs={DRAIN_DELAY_S}"]
    command, *flags = container(render(helm, CHART / "ci" / "pvc-values.yaml", settings=settings))["args"]
    assert command == "serve" and f"--drain-delay-secs={DRAIN_DELAY_S}" in flags
    return [flag for flag in flags if flag.split("=")[0] not in OF_THE_CONTAINER]


def test_no_request_fails_while_the_server_is_replaced(start, made_models, chart_flags):
    repository = made_models("tests", "--only", "identity")
    old = start(repository, *chart_flags)
    with Service().serving(old.grpc) as service, ThreadPoolExecutor(CLIENTS) as pool:
        load = Load(service.address)
        asking = [pool.submit(load.keep_asking, number) for number in range(CLIENTS)]
        try:
            load.progress()
            # No pod may be missing at any time (maxUnavailable: 0), so the new one is ready first.
            new = start(repository, *chart_flags, "--drain-delay-secs=0")
            old.process.terminate()
            # The old server reports that it wants no more traffic, and keeps serving until that has been noticed.
            eventually("readiness is off", lambda: old.get("/v2/health/ready")[0] == 400)
            assert old.get("/v2/health/live")[0] == 200
            before = service.connections
            load.progress()
            assert service.connections > before, "new connections still reach the old server"
            assert new.get("/v2/health/ready")[0] == 200
            service.endpoint = new.grpc
            # Kept connections receive GOAWAY, and reconnect to the new server.
            assert old.process.wait(timeout=120) == 0, old.log_tail()
            load.progress()
        finally:
            load.over.set()
        for one in asking:
            one.result(timeout=120)
    assert load.failures == []
