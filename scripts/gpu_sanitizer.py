"""Tests under NVIDIA's compute-sanitizer, which finds accesses outside of a card's allocations, with the logs of CUDA's
libraries."""

import os
import shutil
from pathlib import Path

import gpu_suites

#: What runs under the tool when nothing has failed: cells with state, stages whose rows move, and attention. Each
#: kernel of theirs runs many times slower than without the tool.
SUITE = "cards"
TESTS = (
    "running::requests_of_every_form_are_answered_with_what_their_nodes_make",
    "running::an_index_beyond_its_table_fails_its_request_alone",
    "stages::rows_are_answered_with_what_their_stages_make_under_every_policy",
    "attending::requests_attend_to_their_own_tokens_in_batches_of_unlike_lengths",
)
#: Tests that run again at most, and the exit status if there is an error of memory.
RERUNS_MAX = 8
FOUND = 99
#: Environment of reruns: what the libraries were asked for is in the test's log.
LOGS = {
    "CUBLASLT_LOG_LEVEL": "5",
    "CUDNN_LOGLEVEL_DBG": "2",
    "CUDNN_LOGDEST_DBG": "stderr",
}  # fmt: skip


def tool():
    """Returns where the tool is: in the path, or in CUDA's own folder; None if it is nowhere."""
    toolkits = [place for place in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if place]
    places = [os.environ.get("PATH", os.defpath), *(str(Path(place) / "bin") for place in toolkits)]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def wrapper():
    """Returns the words before a program's that run it under the tool; None where there is no tool."""
    found = tool()
    return found and (found, "--tool", "memcheck", "--error-exitcode", str(FOUND))


def again(programs, tests, environment, folder, clock):
    """Runs tests, pairs of suite and name, under the tool, or without it where there is none. Returns what came of
    them."""
    words = wrapper() or ()
    folder.mkdir(parents=True, exist_ok=True)
    results = {}
    for suite, name in tests[:RERUNS_MAX]:
        found = gpu_suites.one(programs[suite], name, environment | LOGS, folder, clock, words)
        results[f"{suite} {name}"] = found
    return {"tool": words[0] if words else None, "tests": results}
