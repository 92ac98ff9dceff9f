"""The server matches its OpenAPI description: schemathesis draws requests from the description that the server serves,
valid and invalid ones, and checks every response against it.

It checks that each status is documented for its operation, with the response's content type and schema; that a request
is rejected if and only if it does not fit; and that undocumented methods return 405. The schema of an error has a
reason that is not empty. schemathesis.toml lists what is left out, with the reasons.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tritonclient.grpc as triton
from clients import statistics
from conftest import by_night

HERE = Path(__file__).resolve().parent
#: Requests drawn for each operation, beside those at its boundaries.
EXAMPLES = 8 if by_night() else 4
#: The models that openapi_hooks.py uses.
ASKED = ("addsub", "identity", "repeat", "strings")

if sys.version_info < (3, 11):
    pytest.skip("there is no schemathesis for this version of Python", allow_module_level=True)


@pytest.fixture
def described(start, test_models, tmp_path):
    """Starts a server with every feature in the description; also returns the number of operations."""
    running = start(
        test_models, "--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true",
        f"--trace-file={tmp_path / 'traces.json'}", f"--timeline-file={tmp_path / 'timeline.json'}",
    )  # fmt: skip
    status, page = running.get("/v2/openapi.json")
    assert status == 200
    paths = json.loads(page)["paths"]
    # The path of the description itself has just been requested; schemathesis leaves it out.
    paths.pop("/v2/openapi.json")
    operations = [method for path in paths.values() for method in path if method != "parameters"]
    yield running, len(operations)
    assert running.process.poll() is None, f"the server has ended\n{running.log_tail()}"
    assert running.complaints() == []


def hold_against_description(server, operations, folder, *flags, models_are_there):
    """Runs schemathesis, which must call every operation and find nothing; returns how many requests it sent."""
    command = [
        Path(sys.executable).parent / "schemathesis", "--config-file", HERE / "schemathesis.toml",
        "run", f"http://{server.http}/v2/openapi.json", "--phases=coverage,fuzzing", "--no-color", *flags,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OPENAPI_MODELS_ARE_THERE": "1" if models_are_there else ""}
    # Its state is in the test's folder, so that no run depends on another.
    run = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"Tested: {operations}\n" in run.stdout, run.stdout
    (sent,) = re.findall(r"Test cases:\s+(\d+) generated", run.stdout)
    return int(sent)


def test_models_that_are_there(described, tmp_path):
    server, operations = described
    sent = hold_against_description(server, operations, tmp_path, f"--max-examples={EXAMPLES}", models_are_there=True)
    assert sent > EXAMPLES * operations
    with triton.InferenceServerClient(server.grpc) as client:
        for model in ASKED:
            assert statistics(client, model)["success"] > 0, f"'{model}' was never run"
