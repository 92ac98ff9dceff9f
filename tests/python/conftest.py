"""Servers and clients for the tests. One server over the test repository runs for the whole session. Tests that need
other flags or models start their own, which takes a fraction of a second."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import fetch  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
from manifests import Schemas  # noqa: E402
from server import Server, binary, target_directory  # noqa: E402

#: Runs only if it is named explicitly: `make kube-test` builds an API server first, which takes minutes.
collect_ignore = ["test_api_server.py"]

#: Files that take longest, beginning with the longest. The tests of a file run in one process, so these begin first: no
#: process is left with one of them when all others are done.
LONG = ("nightly/test_cards_conformance.py", "nightly/test_gpu_kit.py", "test_sequences.py", "test_openapi.py")

#: (heading, lines) that tests add, printed at the end of the run.
NOTES = []

#: Names under which the stand-in for CUDA is found.
CUDA_LIBRARIES = (
    "libcuda.so", "libcuda.so.1", "libnvrtc.so", "libnvrtc.so.13", "libcublasLt.so", "libcublasLt.so.13", "libcudnn.so",
    "libcudnn.so.9", "libnvidia-ml.so.1",
)  # fmt: skip


def pytest_addoption(parser):
    parser.addoption("--full-range", action="store_true", help="perf_analyzer at every concurrency from 1 to 64")


def pytest_collection_modifyitems(items):
    order = [Path(__file__).parent / name for name in LONG]
    missing = [path.name for path in order if not path.exists()]
    assert not missing, f"LONG names files that are gone: {missing}"
    items.sort(key=lambda item: order.index(item.path) if item.path in order else len(order))


def pytest_sessionfinish(session):
    """Hands the notes of a process of pytest-xdist to the one that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["notes"] = NOTES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    # A process that crashed has none.
    NOTES.extend(getattr(node, "workeroutput", {}).get("notes", ()))


def pytest_terminal_summary(terminalreporter):
    for heading, lines in NOTES:
        terminalreporter.section(heading)
        for line in lines:
            terminalreporter.line(line)


def by_night():
    """Returns whether this is the nightly run, which has time for more cases."""
    return bool(os.environ.get("PATERNOSTER_NIGHTLY"))


def fetched(piece):
    """Fetches a piece. Outside CI the test is skipped without it."""
    try:
        return piece()
    except fetch.Unavailable as reason:
        if os.environ.get("CI"):
            pytest.fail(f"CI requires this: {reason}")
        pytest.skip(str(reason).splitlines()[0])


@pytest.fixture(scope="session")
def helm():
    """Returns the program that renders the chart."""
    return fetched(fetch.helm)


@pytest.fixture(scope="session")
def schemas():
    """Returns the schemas that manifests are checked against."""
    return Schemas(fetched(fetch.kubernetes_schemas), fetched(fetch.extension_clients))


def example(name):
    """Returns the path of an example that was built before: a program, or a library."""
    path = target_directory() / "debug" / "examples" / name
    assert path.exists(), f"build it first, with 'cargo build --examples': {path} is not there"
    return path


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    """Returns the environment of a server that finds the stand-in."""
    if shutil.which("c++") is None:
        assert not os.environ.get("CI"), "the stand-in for CUDA compiles kernels with c++, which is not installed"
        pytest.skip("the stand-in for CUDA compiles kernels with c++, which is not installed")
    library = example("libfake_cuda.so")
    folder = tmp_path_factory.mktemp("cuda")
    for name in CUDA_LIBRARIES:
        (folder / name).symlink_to(library)
    return {
        "LD_LIBRARY_PATH": str(folder),
        # Kernels that tests in Rust have compiled are not compiled again.
        "FAKE_CUDA_CACHE": str(library.parent / "fake_cuda_links" / "kernels"),
        "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=65536",
        "XDG_CACHE_HOME": str(folder),
    }


@pytest.fixture(scope="session")
def program():
    """Returns the built server: the one that PATERNOSTER names, or cargo's dev build."""
    built = Path(os.environ.get("PATERNOSTER") or binary("debug"))
    assert built.exists(), f"build the server first: {built} is not there"
    return built


@pytest.fixture(scope="session")
def made_models(program, tmp_path_factory):
    """Builds models with the server's own builder: returns a function from a set's name to its repository."""

    def make(which, *choice, folder=None):
        folder = folder or tmp_path_factory.mktemp("models") / which
        command = [program, "models", "--out", folder, "--set", which, *choice]
        made = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
        assert made.returncode == 0, made.stderr
        return folder

    return make


@pytest.fixture(scope="session")
def test_models(made_models):
    """Returns the repository of the models for tests and the sentence encoder."""
    folder = made_models("tests")
    made_models("examples", "--only", "minilm", "--minilm", fetch.minilm(), folder=folder)
    if "FAKE_CUDA_CACHE" in os.environ:
        # Trial runs of a load on a card are computed by the stand-in on the CPU.
        with (folder / "minilm" / "model.yaml").open("a") as config:
            config.write("instance: { lengths: { tokens: [16, 64] } }\n")
    return folder


@contextmanager
def serving(repository, *flags, program):
    """Runs a server, and checks at the end that its log has no errors."""
    with Server(repository, *flags, program=program) as running:
        yield running
        complaints = running.complaints()
    assert complaints == [], "the server's log has errors"


@pytest.fixture(scope="session")
def session_server(program, test_models):
    with serving(test_models, "--allow-client-shm=true", program=program) as running:
        yield running


@pytest.fixture
def server(session_server):
    """Returns the session's server, which must have survived every test."""
    yield session_server
    assert session_server.process.poll() is None, f"the server has ended\n{session_server.log_tail()}"


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc) as connected:
        yield connected


@pytest.fixture
def start(program):
    """Returns a function that starts a test's own servers; each must end with status 0 after the test."""
    running = []

    def start_one(repository, *flags, until="ready", **more):
        one = Server(repository, *flags, program=program, **more)
        running.append(one.start(until=until))
        return one

    yield start_one
    ended = [(one.stop(), one) for one in running]
    for status, one in ended:
        assert status == 0, f"the server ended with status {status}\n{one.log_tail()}"
        one.log.unlink()


@pytest.fixture
def explicit(start, tmp_path):
    """Starts a server in explicit mode over an empty repository of the test's own: (server, repository, client)."""
    repository = tmp_path / "repository"
    repository.mkdir()
    running = start(repository, "--model-control-mode=explicit")
    with triton.InferenceServerClient(running.grpc) as connected:
        yield running, repository, connected
