"""Checks of every package: that its server answers, and that it is confined."""

import subprocess

import numpy as np
import tritonclient.grpc
import tritonclient.http


class Wrong(Exception):
    """A package is wrong; the message says what was found and what was expected."""


def identity(program, folder):
    """Writes a repository with one model, which returns its input."""
    command = [program, "models", "--out", folder, "--only", "identity"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


def infer(server):
    """Runs one inference over each protocol, from outside."""
    given = np.arange(32, dtype=np.float32).reshape(2, 16)
    for triton, address in ((tritonclient.grpc, server.grpc), (tritonclient.http, server.http)):
        with triton.InferenceServerClient(address) as client:
            rows = triton.InferInput("INPUT0", [2, 16], "FP32")
            rows.set_data_from_numpy(given)
            answer = client.infer("identity", [rows]).as_numpy("OUTPUT0")
        if not np.array_equal(answer, given):
            raise Wrong(f"{triton.__name__}: identity answered {answer}, expected {given}")


def is_confined(server, user):
    """Checks that a contained server runs as the given user, has no capabilities, and can write only to its own
    folders."""
    status = dict(line.split(":", 1) for line in server.inside("cat", "/proc/1/status")[1].splitlines())
    seen = {name: status[name].split()[0] for name in ("Uid", "CapEff", "NoNewPrivs")}
    expected = {"Uid": user, "CapEff": "0" * 16, "NoNewPrivs": "1"}
    if seen != expected:
        raise Wrong(f"the server's process has {seen}, expected {expected}")
    for folder in ("/", "/usr/bin", "/etc", "/var"):
        done, said = server.inside("sh", "-c", f"touch {folder}/probe")
        if done == 0 or "Read-only file system" not in said:
            raise Wrong(f"touch {folder}/probe ended with {done} ({said.strip()}), expected a read-only file system")
    done, said = server.inside("sh", "-c", "touch /tmp/probe && rm /tmp/probe")
    if done != 0:
        raise Wrong(f"the server cannot write to /tmp: {said}")
