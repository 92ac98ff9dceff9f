"""Models that are loaded and unloaded by request: index, load, unload, overrides; many models at once."""

import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ROW, eventually, refused, rows, tensor
from onnx_bytes import identity, scale
from repository_on_disk import config, write_model
from server import ServerFailed

PORTS = {"INPUT0": ("FP32", [16])}


def index(client):
    return {model.name: (model.version, model.state, model.reason) for model in client.get_model_repository_index().models}


def factor(client, model, version=""):
    """Returns the factor with which a scale model multiplies."""
    return client.infer(model, [tensor("INPUT0", np.ones((1, 16), np.float32))], model_version=version).as_numpy("OUTPUT0")[0, 0]


def test_a_model_is_loaded_used_and_unloaded(explicit):
    _, repository, client = explicit
    write_model(repository, "plain", identity(), config("plain", PORTS))
    assert index(client) == {"plain": ("", "", "")}
    assert client.is_server_ready() and not client.is_model_ready("plain")
    with refused("NOT_FOUND", "plain"):
        client.infer("plain", [tensor("INPUT0", [ROW])])

    client.load_model("plain")
    assert index(client) == {"plain": ("1", "READY", "")}
    np.testing.assert_array_equal(client.infer("plain", [tensor("INPUT0", rows(8))]).as_numpy("OUTPUT0"), rows(8))

    client.unload_model("plain")
    eventually("an unloaded model", lambda: index(client) == {"plain": ("1", "UNAVAILABLE", "unloaded")})
    with refused("NOT_FOUND", "plain", "no available versions"):
        client.infer("plain", [tensor("INPUT0", [ROW])])


def test_loading_again_takes_what_lies_in_the_directory_now(explicit):
    _, repository, client = explicit
    write_model(repository, "times", scale(2), config("times", PORTS))
    client.load_model("times")
    assert factor(client, "times") == 2
    write_model(repository, "times", scale(3), version=2)
    client.load_model("times")
    assert factor(client, "times") == 3
    assert list(client.get_model_metadata("times").versions) == ["2"]


def test_a_version_that_is_gone_is_not_at_ready_state(explicit):
    _, repository, client = explicit
    write_model(repository, "times", scale(2), config("times", PORTS))
    client.load_model("times")
    os.rename(repository / "times" / "1", repository / "times" / "2")
    client.load_model("times")
    eventually("an index without it", lambda: index(client) == {"times": ("2", "READY", "")})
    with refused("UNAVAILABLE", "Request for unknown model: 'times' version 1 is not at ready state"):
        factor(client, "times", "1")
    with refused("NOT_FOUND", "'times' version 9 is not found"):
        factor(client, "times", "9")
    assert not client.is_model_ready("times", "1")


def test_version_policies_choose_what_is_served(explicit):
    _, repository, client = explicit
    for version in (1, 2, 3):
        write_model(repository, "times", scale(version * 10), version=version)
    for policy, versions in (
        ("{ all { } }", {1, 2, 3}),
        ("{ latest { num_versions: 2 } }", {2, 3}),
        ("{ specific { versions: [ 1 ] } }", {1}),
    ):
        (repository / "times" / "config.pbtxt").write_text(config("times", PORTS, extra=f"version_policy: {policy}"))
        client.load_model("times")
        assert set(map(int, client.get_model_metadata("times").versions)) == versions
        assert {version: factor(client, "times", str(version)) for version in versions} == {
            version: version * 10 for version in versions
        }
        assert factor(client, "times") == max(versions) * 10


def test_a_config_override_holds_until_an_unload(explicit):
    _, repository, client = explicit
    write_model(repository, "plain", identity(), config("plain", PORTS))
    client.load_model("plain", config=json.dumps({"backend": "onnxruntime", "max_batch_size": 2}))
    assert client.get_model_config("plain").config.max_batch_size == 2
    with refused("INVALID_ARGUMENT", "<= 2", "plain"):
        client.infer("plain", [tensor("INPUT0", rows(3))])
    client.load_model("plain")
    assert client.get_model_config("plain").config.max_batch_size == 2, "a reload keeps it"
    client.unload_model("plain")
    client.load_model("plain")
    client.infer("plain", [tensor("INPUT0", rows(8))])


def test_file_overrides_make_a_model_out_of_nothing(explicit):
    _, repository, client = explicit
    settings = json.dumps({"backend": "onnxruntime", "max_batch_size": 4})
    client.load_model("sent", config=settings, files={"file:1/model.onnx": scale(7)})
    assert factor(client, "sent") == 7
    assert not (repository / "sent").exists()


@pytest.mark.parametrize("path", ["file:../1/model.onnx", "file:1/../../model.onnx", "file:/etc/model.onnx"])
def test_file_overrides_cannot_leave_the_model(explicit, path):
    _, _, client = explicit
    with refused("INVALID_ARGUMENT"):
        client.load_model("sent", config=json.dumps({"backend": "onnxruntime"}), files={path: scale(1)})


@pytest.mark.parametrize("name", ["../outside", "a/b", "/etc", ".."])
def test_names_cannot_leave_the_repository(explicit, name):
    _, repository, client = explicit
    write_model(repository.parent, "outside", identity(), config("outside", PORTS))
    with pytest.raises(triton.InferenceServerException):
        client.load_model(name)
    assert not client.is_model_ready(name)


def test_files_need_a_config(explicit):
    _, _, client = explicit
    with refused("INTERNAL", "failed to load 'sent', failed to poll from model repository", "'config'"):
        client.load_model("sent", files={"file:1/model.onnx": scale(1)})


def test_a_model_that_cannot_be_loaded_says_why(explicit):
    _, repository, client = explicit
    write_model(repository, "garbage", b"garbage", config("garbage", PORTS))
    with refused("INVALID_ARGUMENT", "garbage"):
        client.load_model("garbage")
    version, state, reason = index(client)["garbage"]
    assert (version, state) == ("1", "UNAVAILABLE") and reason
    with refused("NOT_FOUND", "garbage"):
        client.infer("garbage", [tensor("INPUT0", [ROW])])


def test_a_config_error_names_key_and_line(explicit):
    _, repository, client = explicit
    write_model(repository, "typo", identity(), 'backend: "onnxruntime"\nmax_batch_syze: 8\n')
    with pytest.raises(triton.InferenceServerException) as caught:
        client.load_model("typo")
    assert "max_batch_syze" in caught.value.message() and "2" in caught.value.message()


def test_a_failed_reload_leaves_the_old_version_at_work(explicit):
    _, repository, client = explicit
    write_model(repository, "times", scale(2), config("times", PORTS))
    client.load_model("times")
    write_model(repository, "times", b"garbage")
    with refused("INVALID_ARGUMENT"):
        client.load_model("times")
    assert factor(client, "times") == 2


def test_loading_what_does_not_exist_is_an_internal_error_and_unloading_it_is_none(explicit):
    _, _, client = explicit
    with refused("INTERNAL", "nobody"):
        client.load_model("nobody")
    client.unload_model("nobody")
    client.unload_model("nobody", unload_dependents=True)


def test_a_model_without_config_is_completed_from_its_graph(explicit):
    _, repository, client = explicit
    write_model(repository, "bare", identity())
    client.load_model("bare")
    completed = client.get_model_config("bare").config
    assert (completed.max_batch_size, completed.backend, completed.platform) == (4, "onnxruntime", "onnxruntime_onnx")
    assert [(one.name, list(one.dims)) for one in completed.input] == [("INPUT0", [16])]
    assert completed.HasField("dynamic_batching")


# Many models ---------------------------------------------------------------------------------------------------------


def test_one_corrupt_model_of_thirty_does_not_disturb_the_rest(start, tmp_path):
    for number in range(30):
        write_model(tmp_path, f"model{number:02}", b"garbage" if number == 17 else scale(number), config(f"model{number:02}", PORTS))
    server = start(tmp_path, "--model-load-thread-count=8", until="settled")
    with triton.InferenceServerClient(server.grpc) as client:
        states = index(client)
        assert len(states) == 30
        version, state, reason = states.pop("model17")
        assert (version, state) == ("1", "UNAVAILABLE") and reason
        assert set(states.values()) == {("1", "READY", "")}
        assert not client.is_server_ready() and client.is_server_live()
        assert server.get("/v2/health/ready")[0] == 400
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda name: factor(client, name), sorted(states)))
        assert found == [number for number in range(30) if number != 17]


def test_readiness_can_leave_failed_models_aside(start, tmp_path):
    write_model(tmp_path, "good", identity(), config("good", PORTS))
    write_model(tmp_path, "bad", b"garbage", config("bad", PORTS))
    server = start(tmp_path, "--strict-readiness=false")
    with triton.InferenceServerClient(server.grpc) as client:
        assert client.is_server_ready() and client.is_model_ready("good") and not client.is_model_ready("bad")


def test_poll_mode_follows_the_directory(start, tmp_path):
    write_model(tmp_path, "times", scale(2), config("times", PORTS))
    server = start(tmp_path, "--model-control-mode=poll", "--repository-poll-secs=1")
    with triton.InferenceServerClient(server.grpc) as client:
        assert factor(client, "times") == 2
        # Moved into place, as deployments do, so that the server never sees a half-written file.
        fresh = write_model(tmp_path / ".next", "times", scale(5), version=2) / "2"
        os.rename(fresh, tmp_path / "times" / "2")
        eventually("the new version", lambda: factor(client, "times") == 5)
        with refused("UNAVAILABLE"):
            client.load_model("times")


# A disk that fails ---------------------------------------------------------------------------------------------------


def failed_scans(server):
    status, text = server.get("/metrics", port="metrics")
    (line,) = [line for line in text.decode().splitlines() if line.startswith("paternoster_repository_failed_scans_total ")]
    return status == 200 and float(line.split()[1])


def warnings_of(server):
    return [line for line in server.log.read_text().splitlines() if "its models stay as they are" in line]


@pytest.fixture
def polled(start, tmp_path):
    """Starts a server in poll mode that serves version 1 of a model: (server, repository, client)."""
    repository = tmp_path / "repository"
    write_model(repository, "times", scale(2), config("times", PORTS))
    running = start(repository, "--model-control-mode=poll", "--repository-poll-secs=1")
    with triton.InferenceServerClient(running.grpc) as connected:
        assert factor(connected, "times") == 2
        yield running, repository, connected


def test_a_repository_that_is_gone_for_a_while_unloads_nothing(polled):
    server, repository, client = polled
    aside = repository.with_name("aside")
    os.rename(repository, aside)
    eventually("three failed looks", lambda: failed_scans(server) >= 3)
    assert factor(client, "times") == 2 and client.is_server_ready()
    assert len(warnings_of(server)) == 1, "one warning for one cause"
    os.rename(aside, repository)
    fresh = write_model(repository / ".next", "times", scale(5), version=2) / "2"
    os.rename(fresh, repository / "times" / "2")
    eventually("the new version", lambda: factor(client, "times") == 5)


def test_a_server_out_of_file_descriptors_unloads_nothing(polled):
    server, repository, client = polled
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        eventually("a failed look", lambda: warnings_of(server))
        assert factor(client, "times") == 2 and client.is_server_ready()
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
    fresh = write_model(repository / ".next", "times", scale(5), version=2) / "2"
    os.rename(fresh, repository / "times" / "2")
    eventually("the new version", lambda: factor(client, "times") == 5)


def test_a_directory_without_a_model_leaves_the_server_ready(polled):
    server, repository, client = polled
    (repository / "notes").mkdir()
    _, state, reason = eventually("a look at it", lambda: index(client)["notes"][1:] != ("", "") and index(client)["notes"])
    assert state == "UNAVAILABLE" and "no version directory" in reason
    assert server.get("/v2/health/ready")[0] == 200 and client.is_server_ready()


def test_without_a_repository_a_server_told_to_go_on_is_not_live(start, tmp_path):
    repository = tmp_path / "later"
    with pytest.raises(ServerFailed, match="cannot read the model repository"):
        start(repository)
    flags = ["--exit-on-error=false", "--strict-readiness=false", "--model-control-mode=poll", "--repository-poll-secs=1"]
    server = start(repository, *flags, until="started")
    with triton.InferenceServerClient(server.grpc) as client:
        assert not client.is_server_live() and not client.is_server_ready()
        assert [server.get(f"/v2/health/{probe}")[0] for probe in ("live", "ready")] == [400, 400]
        assert client.get_server_metadata().name
        made = tmp_path / "made"
        write_model(made, "times", scale(2), config("times", PORTS))
        os.rename(made, repository)
        eventually("a live server", client.is_server_live)
        eventually("its model", lambda: client.is_model_ready("times"))
        assert client.is_server_ready() and factor(client, "times") == 2


def test_a_configuration_is_chosen_by_name_where_a_model_has_it(start, tmp_path):
    write_model(tmp_path, "named", identity(), config("named", PORTS))
    write_model(tmp_path, "plain", identity(), config("plain", PORTS))
    (tmp_path / "named" / "configs").mkdir()
    (tmp_path / "named" / "configs" / "large.pbtxt").write_text(config("named", PORTS, max_batch_size=32))
    server = start(tmp_path, "--model-config-name=large")
    with triton.InferenceServerClient(server.grpc) as client:
        sizes = {name: client.get_model_config(name).config.max_batch_size for name in ("named", "plain")}
    assert sizes == {"named": 32, "plain": 8}
