"""What servers keep across restarts (`--cache-directory`): which models opened in a process of their own, and that a
directory which cannot be used costs nothing but time."""

import os
import subprocess

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ROW, metric, scrape, tensor
from onnx_bytes import external, model, node, port, scale, scale_by
from repository_on_disk import write_model

MODELS, WIDTH = 6, 1 << 15
ALL = "--isolate-model-load=all"
IGNORED, UNWRITABLE = "an entry of the cache directory is ignored", "the cache directory cannot be written"


def name(number):
    return f"scale{number:02}"


@pytest.fixture
def models(tmp_path):
    """Models of one file, and one whose weights are in another file, which is large enough to stay there."""
    folder = tmp_path / "models"
    for number in range(MODELS):
        write_model(folder, name(number), scale(number + 1))
    apart = write_model(folder, "apart", scale_by(external("factor", [WIDTH], "weights"), WIDTH))
    (apart / "1" / "weights").write_bytes(np.full(WIDTH, 50, np.float32).tobytes())
    return folder


def found(server):
    """Returns how often a program was found and how often not."""
    return tuple(metric(server, f"paternoster_start_cache_{what}_total") for what in ("hits", "misses"))


def answers(server):
    """Returns the index and what each model answers."""
    with triton.InferenceServerClient(server.grpc) as client:
        index = {model.name: (model.version, model.state) for model in client.get_model_repository_index().models}
        row = [tensor("INPUT0", ROW.reshape(1, 16))]
        scaled = [client.infer(name(number), row).as_numpy("OUTPUT0").tolist() for number in range(MODELS)]
        ones = [tensor("INPUT0", np.ones((1, WIDTH), np.float32))]
        scaled.append(client.infer("apart", ones).as_numpy("OUTPUT0").tolist())
    return index, scaled


def expected(apart=50):
    return [*((ROW.reshape(1, 16) * (number + 1)).tolist() for number in range(MODELS)), [[float(apart)] * WIDTH]]


def lines(server, text):
    return [line for line in server.log.read_text().splitlines() if text in line]


def entries(cache):
    return sorted((cache / "start-cache").glob("*.entry"))


def test_models_that_opened_in_a_process_of_their_own_are_not_tried_again(start, models, tmp_path):
    flags = (f"--cache-directory={tmp_path / 'cache'}", ALL, "--memory-budget-bytes=1000000000")

    def measured(server):
        names = [*map(name, range(MODELS)), "apart"]
        return [metric(server, "paternoster_model_memory_measured_bytes", model=model) for model in names]

    cold = start(models, *flags)
    # A model with other files may have other weights at each start.
    assert found(cold) == (0, MODELS + 1)
    first, bytes_of = answers(cold), measured(cold)
    assert first[1] == expected() and cold.stop() == 0
    warm = start(models, *flags)
    assert found(warm) == (MODELS, 1)
    assert answers(warm) == first and measured(warm)[:-1] == bytes_of[:-1]
    assert not lines(cold, IGNORED) + lines(cold, UNWRITABLE) + lines(warm, IGNORED) and warm.stop() == 0
    # Other limits, within which they may not open.
    limited = start(models, *flags, "--isolate-model-load-timeout-secs=59")
    assert found(limited) == (0, MODELS + 1)


def test_a_changed_model_is_tried_again(start, models, tmp_path):
    flags = f"--cache-directory={tmp_path / 'cache'}", ALL
    assert start(models, *flags).stop() == 0
    changed = models / name(0) / "1" / "model.onnx"
    before = changed.stat()
    changed.write_bytes(scale(99))
    assert changed.stat().st_size == before.st_size
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    (models / "apart" / "1" / "weights").write_bytes(np.full(WIDTH, 51, np.float32).tobytes())
    server = start(models, *flags)
    assert found(server) == (MODELS - 1, 2)
    assert answers(server)[1] == [(ROW.reshape(1, 16) * 99).tolist(), *expected(apart=51)[1:]]


def test_a_model_that_does_not_open_is_tried_each_time(start, tmp_path):
    """A crash, a hang or a refusal is never kept."""
    ports = [port("INPUT0", "FP32", ("batch", 16))], [port("OUTPUT0", "FP32", ("batch", 16))]
    write_model(tmp_path / "models", "broken", model([node("NoSuchOperator", ["INPUT0"], ["OUTPUT0"])], *ports))
    flags = f"--cache-directory={tmp_path / 'cache'}", ALL, "--model-control-mode=explicit"
    for _ in range(2):
        server = start(tmp_path / "models", *flags)
        with triton.InferenceServerClient(server.grpc) as client, pytest.raises(triton.InferenceServerException):
            client.load_model("broken")
        assert found(server) == (0, 1) and server.stop() == 0
    assert entries(tmp_path / "cache") == []


def test_without_isolation_or_with_off_nothing_is_kept(start, models, tmp_path):
    off = start(models, "--cache-directory=off", ALL)
    assert "paternoster_start_cache" not in scrape(off) and answers(off)[1] == expected()
    plain = start(models, f"--cache-directory={tmp_path / 'cache'}")
    assert "paternoster_start_cache" not in scrape(plain) and entries(tmp_path / "cache") == []


def test_damaged_and_foreign_entries_are_ignored_with_one_line_and_replaced(start, models, tmp_path):
    cache = tmp_path / "cache"
    flags = f"--cache-directory={cache}", ALL
    assert start(models, *flags).stop() == 0
    kept = entries(cache)
    assert len(kept) == MODELS
    contents = [path.read_bytes() for path in kept]
    for number, path in enumerate(kept):
        path.write_bytes([b"", contents[number][:-3], contents[number - 1], b"\xff" * 100, b"{}\n"][number % 5])
    server = start(models, *flags)
    assert found(server) == (0, MODELS + 1) and len(lines(server, IGNORED)) == 1
    assert answers(server)[1] == expected() and server.stop() == 0
    again = start(models, *flags)
    assert found(again) == (MODELS, 1) and not lines(again, IGNORED)


def full_disk(folder):
    """A file system of one page, which is taken."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only a superuser may mount a file system")
    (folder / "taken").write_bytes(bytes(4096))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def read_only(folder):
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", str(folder)]
    if os.geteuid() == 0:
        # The superuser may write whatever the mode says.
        if subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("this superuser may not mount a file system")
        yield folder
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        return
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def not_a_directory(folder):
    folder.write_text("a file")
    yield folder


@pytest.mark.parametrize("unusable", [full_disk, read_only, not_a_directory])
def test_a_directory_that_cannot_be_written_costs_one_warning(start, models, tmp_path, unusable):
    made = unusable(tmp_path / "cache")
    cache = next(made)
    try:
        server = start(models, f"--cache-directory={cache}", ALL)
        assert answers(server)[1] == expected()
        assert found(server) == (0, MODELS + 1)
        assert len(lines(server, UNWRITABLE)) == 1
        assert server.stop() == 0
    finally:
        next(made, None)


def test_a_directory_that_vanishes_while_the_server_runs_is_made_again(start, models, tmp_path):
    cache = tmp_path / "cache"
    server = start(models, f"--cache-directory={cache}", ALL, "--model-control-mode=explicit", "--load-model=*")
    for path in entries(cache):
        path.unlink()
    (cache / "start-cache").rmdir()
    with triton.InferenceServerClient(server.grpc) as client:
        client.unload_model(name(0))
        client.load_model(name(0))
    assert answers(server)[1] == expected() and len(entries(cache)) == 1
    assert not lines(server, UNWRITABLE)


def test_two_servers_share_a_directory(start, models, tmp_path):
    flags = f"--cache-directory={tmp_path / 'cache'}", ALL
    # Both are live before they have loaded anything.
    servers = [start(models, *flags, until="live") for _ in range(2)]
    for server in servers:
        server.wait("ready", timeout_s=120)
    first, second = map(answers, servers)
    assert first == second and first[1] == expected()
    third = start(models, *flags)
    assert found(third) == (MODELS, 1)
    assert not any(lines(server, text) for server in (*servers, third) for text in (IGNORED, UNWRITABLE))
