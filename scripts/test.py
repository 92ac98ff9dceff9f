"""The whole test suite: cargo test, the CUDA kernels with their compiler, real clients against the built server, and a
part of the papers' figures, drawn again; then a summary of what ran, what did not, and why. Started by `make test`.

    python3 scripts/test.py [--only rust|kernels|python|figures] [-- arguments for pytest]

With CI set in the environment nothing may be left out: a piece that cannot be fetched is then a failure.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple

import fetch
from server import ROOT, binary

#: The result of one layer: its name, whether it passed, the runner's own count, and lines about what it left out.
Outcome = namedtuple("Outcome", "layer passed count left_out")

CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;")
PYTEST_RESULT = re.compile(r"^=+ (.*\b(?:passed|failed|error|skipped|no tests ran)\b.*) =+$")
PYTEST_SKIP = re.compile(r"^SKIPPED \[\d+\] [^ ]+: (.*)$")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def shown(command, environment):
    """Runs a command with its output on the terminal; returns (exit status, lines of the output)."""
    print(f"\n$ {' '.join(map(str, command))}", flush=True)
    lines = []
    with subprocess.Popen(
        [str(part) for part in command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        for line in running.stdout:
            print(line, end="", flush=True)
            lines.append(COLOUR.sub("", line.rstrip()))
    return running.returncode, lines


def fetched(name, left_out):
    """Fetches one piece; returns its path, or None with the reason added to `left_out`."""
    try:
        return fetch.PIECES[name]()
    except fetch.Unavailable as reason:
        left_out.append(f"{name}: {reason}")
        return None


def rust(environment):
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
    status, lines = shown(["cargo", "test", "--no-fail-fast"], environment)
    results = [tuple(map(int, match.groups())) for match in map(CARGO_RESULT.match, lines) if match]
    passed, failed, ignored = (sum(column) for column in zip(*results)) if results else (0, 0, 0)
    if ignored:
        left_out.append(f"{ignored} ignored in the source (long runs: cargo test -- --ignored)")
    count = f"{passed} passed, {failed} failed, {ignored} ignored in {len(results)} binaries"
    return Outcome("cargo test", status == 0 and passed > 0, count, left_out)


def kernels(environment):
    left_out = []
    if not fetched("nvrtc", left_out):
        return Outcome("cuda kernels", True, "did not run", left_out)
    status, lines = shown([sys.executable, "scripts/check_kernels.py"], environment)
    return Outcome("cuda kernels", status == 0, lines[-1] if lines else "no result line", left_out)


def built(environment, *choice):
    """Builds the server; returns whether it did."""
    # An example has the dependencies of tests, so that they are used as `cargo test` compiled them.
    status, _ = shown(["cargo", "build", "--bin", "paternoster", "--example", "client", *choice], environment)
    return status == 0


def figures(environment):
    if not built(environment):
        return Outcome("papers' figures", False, "the simulator did not build", [])
    command = [sys.executable, "scripts/figures.py", "--check", "--binary", binary("debug")]
    status, lines = shown(command, environment)
    return Outcome("papers' figures", status == 0, lines[-1] if lines else "no result line", [])


def python(environment, arguments):
    left_out = []
    pieces = {name: fetched(name, left_out) for name in ("tests", "runtime", "minilm")}
    if not all(pieces.values()):
        return Outcome("python clients", True, "did not run", left_out)
    # The server without the feature `tools` is copied under another name, because cargo gives both the same.
    lean = binary("debug").with_name("paternoster-lean")
    for choice in (["--no-default-features"], []):
        if not built(environment, *choice):
            return Outcome("python clients", False, "the server did not build", left_out)
        if choice:
            shutil.copy2(binary("debug"), lean)
    for name in sorted(fetch.OPTIONAL):
        # Fetched here to show its progress; tests that need it report if it is not available.
        fetched(name, [])
    openvino = fetched("openvino", left_out)
    if openvino:
        environment = {**environment, "OPENVINO_DYLIB_PATH": str(openvino)}
    environment = {
        **environment,
        "PATERNOSTER": str(binary("debug")),
        "PATERNOSTER_LEAN": str(lean),
        "ORT_DYLIB_PATH": str(pieces["runtime"]),
        "PYTHONDONTWRITEBYTECODE": "1",
        # The threads of NumPy's products would spin on the cores of the servers that are tested.
        "OPENBLAS_NUM_THREADS": "1",
    }
    # A file's tests stay in one process, because they may share a server. More processes than cores, because tests wait
    # for servers and clients. The longest files begin first, as conftest.py orders them; pytest-xdist would begin
    # with those of most tests.
    processes = min(2 * len(os.sched_getaffinity(0)), 4)
    beside = ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"]
    command = [pieces["tests"], "-m", "pytest", "-c", "tests/python/pytest.ini", "-rs", "--durations=20", *beside]
    command += arguments or ["tests/python"]
    status, lines = shown(command, environment)
    counts = [match.group(1) for match in map(PYTEST_RESULT.match, lines) if match]
    left_out += [match.group(1) for match in map(PYTEST_SKIP.match, lines) if match]
    return Outcome("python clients", status == 0, counts[-1] if counts else "no result line", left_out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=["rust", "kernels", "python", "figures"])
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    given = parser.parse_args()

    environment = dict(os.environ)
    outcomes = []
    if given.only in (None, "rust"):
        outcomes.append(rust(environment))
    if given.only in (None, "kernels"):
        outcomes.append(kernels(environment))
    if given.only in (None, "python"):
        outcomes.append(python(environment, given.pytest))
    if given.only in (None, "figures"):
        outcomes.append(figures(environment))

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
