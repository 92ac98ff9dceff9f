"""The test suite: cargo test, the CUDA kernels with their compiler, and real clients against the built server; then a
summary of what ran, what did not, and why. Started by `make test`.

    python3 scripts/test.py [--nightly] [--only rust,kernels,python,…] [-- arguments for pytest]

With --nightly (`make nightly`), what takes long runs as well: the long runs of cargo test, the kernels of all example
networks, the server without tools, the kit for cards, networks under each policy, lengths on cards, grpcurl, the page
in a browser, the measuring scripts, a part of the papers' figures, ONNX's own tests, and the fuzzers.

With CI set in the environment nothing may be left out: a piece that cannot be fetched is then a failure.
"""

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import fetch
from server import ROOT, binary

#: The result of one layer: its name, whether it passed, the runner's own count, and lines about what it left out.
Outcome = namedtuple("Outcome", "layer passed count left_out")

CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;")
PYTEST_RESULT = re.compile(r"^=+ (.*\b(?:passed|failed|error|skipped|no tests ran)\b.*) =+$")
PYTEST_SKIP = re.compile(r"^SKIPPED \[\d+\] [^ ]+: (.*)$")
#: Tests that run at once: more than cores, because many wait for servers, clients, devices or the clock.
AT_ONCE = min(2 * len(os.sched_getaffinity(0)), 4)
#: What tests by night alone need.
PIECES_OF_NIGHTLY = {"chromium", "grpcurl", "umoci"}
#: Inputs that each fuzzer tries.
FUZZED = 20_000
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Kept(threading.local):
    """The output of layers that run beside another, whose output is on the terminal; None: this thread's is there."""

    lines = None


KEPT = Kept()


def say(line):
    """Writes a line to the terminal, or keeps it until the other layer has ended."""
    if KEPT.lines is None:
        print(line, flush=True)
    else:
        KEPT.lines.append(line)


def shown(command, environment):
    """Runs a command and shows its output; returns (exit status, lines of the output)."""
    say(f"\n$ {' '.join(map(str, command))}")
    lines = []
    with subprocess.Popen(
        [str(part) for part in command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        for line in running.stdout:
            say(line.rstrip("\n"))
            lines.append(COLOUR.sub("", line.rstrip()))
    return running.returncode, lines


@functools.cache
def piece(name):
    """Fetches one piece; returns its path, or None, and why it could not be had."""
    try:
        return fetch.PIECES[name](), None
    except fetch.Unavailable as reason:
        return None, reason


def fetched(name, left_out):
    """Fetches one piece; returns its path, or None with the reason added to `left_out`."""
    path, reason = piece(name)
    if reason:
        left_out.append(f"{name}: {reason}")
    return path


def fetch_all(nightly):
    """Fetches what tests need. Those that need what could not be had say so."""
    optional = fetch.OPTIONAL if nightly else fetch.OPTIONAL - PIECES_OF_NIGHTLY
    for name in ("runtime", "openvino", "minilm", "cpp", "nvrtc", "tests", *sorted(optional)):
        piece(name)


def rust(environment, given):
    left_out = []
    library = fetched("runtime", left_out)
    if library:
        environment = {**environment, "ORT_DYLIB_PATH": str(library)}
    openvino = fetched("openvino", left_out)
    if openvino:
        environment = {**environment, "OPENVINO_DYLIB_PATH": str(openvino)}
    # Tests find it at its place; its path is not needed here.
    fetched("minilm", left_out)
    # Tests of CUDA kernels compile them for the host.
    if not fetched("cpp", left_out):
        return Outcome("cargo test", False, "did not run", left_out)
    environment = {**environment, "RUST_TEST_THREADS": str(AT_ONCE)}
    status, lines = shown(["cargo", "test", "--no-fail-fast"], environment)
    if given.nightly:
        long_status, long_lines = shown(["cargo", "test", "--no-fail-fast", "--release", "--", "--ignored"], environment)
        status, lines = status or long_status, lines + long_lines
    results = [tuple(map(int, match.groups())) for match in map(CARGO_RESULT.match, lines) if match]
    passed, failed, ignored = (sum(column) for column in zip(*results)) if results else (0, 0, 0)
    if ignored and not given.nightly:
        left_out.append(f"{ignored} long runs (make nightly)")
    count = f"{passed} passed, {failed} failed, {ignored} ignored in {len(results)} binaries"
    return Outcome("cargo test", status == 0 and passed > 0, count, left_out)


def kernels(environment, given):
    left_out = []
    if not fetched("nvrtc", left_out):
        return Outcome("cuda kernels", True, "did not run", left_out)
    every = ["--all"] if given.nightly else []
    return script("cuda kernels", [sys.executable, "scripts/check_kernels.py", *every], environment, left_out)


def script(layer, command, environment, left_out=()):
    """Runs a command whose last line is its result."""
    status, lines = shown(command, environment)
    return Outcome(layer, status == 0, lines[-1] if lines else "no result line", list(left_out))


def built(environment, *choice):
    """Builds the server and the examples; returns whether they were built. Examples have the dependencies of tests, so
    that what `cargo test` has compiled is used."""
    status, _ = shown(["cargo", "build", "--bin", "paternoster", "--examples", *choice], environment)
    return status == 0


def executable(environment, *choice):
    """Builds one program; returns its path."""
    command = ["cargo", "build", *choice, "--message-format", "json"]
    made = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE).stdout
    reports = (json.loads(line) for line in made.splitlines() if line.startswith(b"{"))
    return [report["executable"] for report in reports if report.get("executable")][-1]


def python(environment, given):
    left_out = []
    pieces = {name: fetched(name, left_out) for name in ("tests", "runtime", "minilm")}
    if not all(pieces.values()):
        return Outcome("python clients", True, "did not run", left_out)
    environment = dict(environment)
    folders = ["tests/python"]
    if given.nightly:
        environment["PATERNOSTER_CARDS_BENCH"] = executable(environment, "--bench", "cards")
        # The server without tools is copied under another name, because cargo gives both the same.
        lean = binary("debug").with_name("paternoster-lean")
        shutil.copy2(executable(environment, "--bin", "paternoster", "--no-default-features"), lean)
        environment["PATERNOSTER_LEAN"] = str(lean)
        environment["PATERNOSTER_NIGHTLY"] = "1"
    else:
        folders.append("--ignore=tests/python/nightly")
        left_out.append("tests/python/nightly (make nightly)")
    if not built(environment):
        return Outcome("python clients", False, "the server did not build", left_out)
    # Fetched here to show its progress.
    fetch_all(given.nightly)
    openvino = fetched("openvino", left_out)
    if openvino:
        environment["OPENVINO_DYLIB_PATH"] = str(openvino)
    environment |= {
        "PATERNOSTER": str(binary("debug")),
        "ORT_DYLIB_PATH": str(pieces["runtime"]),
        "PYTHONPYCACHEPREFIX": str(fetch.CACHE / "bytecode"),
        # The threads of NumPy's products would spin on the cores of the servers that are tested.
        "OPENBLAS_NUM_THREADS": "1",
    }
    # A file's tests stay in one process, because they may share a server. The longest files begin first, as
    # conftest.py orders them; pytest-xdist would begin with those of most tests.
    beside = ["-n", str(AT_ONCE), "--dist", "loadfile", "--no-loadscope-reorder"]
    command = [pieces["tests"], "-m", "pytest", "-c", "tests/python/pytest.ini", "-rs", "--durations=20", *beside]
    status, lines = shown([*command, *(given.pytest or folders)], environment)
    counts = [match.group(1) for match in map(PYTEST_RESULT.match, lines) if match]
    left_out += [match.group(1) for match in map(PYTEST_SKIP.match, lines) if match]
    return Outcome("python clients", status == 0, counts[-1] if counts else "no result line", left_out)


def figures(environment, given):
    if not built(environment):
        return Outcome("papers' figures", False, "the simulator did not build", [])
    command = [sys.executable, "scripts/figures.py", "--check", "--binary", binary("debug")]
    return script("papers' figures", command, environment)


def conformance(environment, given):
    left_out = []
    own = fetched("conformance", left_out)
    if not own or not built(environment):
        return Outcome("conformance", bool(left_out), "did not run", left_out)
    return script("conformance", [own, "scripts/conformance.py", "--binary", binary("debug")], environment)


def fuzz(environment, given):
    left_out = []
    if not fetched("cpp", left_out):
        return Outcome("fuzzing", True, "did not run", left_out)
    return script("fuzzing", [sys.executable, "scripts/fuzz.py", "--runs", str(FUZZED)], environment)


#: The layers by name, and those that run by night alone.
LAYERS = {layer.__name__: layer for layer in (rust, kernels, python, figures, conformance, fuzz)}
NIGHTLY = {"figures", "conformance", "fuzz"}


def beside(layers, given):
    """Runs the first of the layers, and beside it the others one after another, because tests often wait. Returns their
    results. The output of the others comes at the end."""

    def others():
        KEPT.lines = []
        return [LAYERS[name](dict(os.environ), given) for name in layers[1:]], KEPT.lines

    with ThreadPoolExecutor(max_workers=1) as executor:
        running = executor.submit(others)
        first = LAYERS[layers[0]](dict(os.environ), given)
        outcomes, lines = running.result()
    print("\n".join(lines), flush=True)
    return [first, *outcomes]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--nightly", action="store_true", help="run what takes long as well")
    parser.add_argument("--only", metavar="LAYER,…", help=f"of {', '.join(LAYERS)}")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    given = parser.parse_args()
    chosen = given.only.split(",") if given.only else [name for name in LAYERS if given.nightly or name not in NIGHTLY]
    unknown = [name for name in chosen if name not in LAYERS]
    if unknown:
        parser.error(f"there is no layer {unknown[0]!r}; there are {', '.join(LAYERS)}")

    if not given.only:
        # Cargo compiles while the rest is fetched.
        with subprocess.Popen(["cargo", "test", "--no-run"], cwd=ROOT) as compiling:
            fetch_all(given.nightly)
        if compiling.returncode:
            return compiling.returncode
    # By night, layers measure.
    if given.nightly:
        outcomes = [LAYERS[name](dict(os.environ), given) for name in chosen]
    else:
        outcomes = beside(chosen, given)

    in_ci = bool(os.environ.get("CI"))
    unfetched = [line for outcome in outcomes for line in outcome.left_out if line.split(":")[0] in fetch.PIECES]
    print("\nsummary")
    for outcome in outcomes:
        print(f"  {outcome.layer:<15} {'ok' if outcome.passed else 'FAILED':<7} {outcome.count}")
        for line in outcome.left_out:
            print(f"    left out: {line}")
    if in_ci and unfetched:
        print("  FAILED: in CI nothing that can be fetched may be left out")
        return 1
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
