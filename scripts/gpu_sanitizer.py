"""A subset of the suites under NVIDIA's compute-sanitizer, which finds accesses outside of a card's allocations."""

import os
import shutil
from pathlib import Path

from gpu_programs import ran

#: Tests of the suite `cards`, by parts of their names: cells with state, stages whose rows move, and attention.
#: Each kernel of theirs runs many times slower than without the tool.
SUITE = "cards"
TESTS = (
    "running::requests_of_every_form_are_answered",
    "running::an_index_beyond_its_table",
    "stages::rows_are_answered_with_what_their_stages_make",
    "attending::requests_attend_to_their_own_tokens",
)
#: Time limit, and the exit status if there is an error of memory.
SECONDS = 60
FOUND = 99


def tool():
    """Returns where the tool is: in the path, or in CUDA's own folder; None if it is nowhere."""
    toolkits = [place for place in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if place]
    places = [os.environ.get("PATH", os.defpath), *(str(Path(place) / "bin") for place in toolkits)]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def sanitized(programs, environment, out, until):
    """Runs the subset; returns its exit status and what the tool found, or why it was skipped."""
    found = tool()
    if found is None:
        return {"skipped": "compute-sanitizer is neither in the path nor in CUDA_HOME or /usr/local/cuda"}
    command = [found, "--tool", "memcheck", "--error-exitcode", FOUND, programs[SUITE], *TESTS, "--test-threads=1"]
    status, text = ran(command, environment, out / "sanitizer.log", SECONDS, until)
    summary = [line for line in text.splitlines() if "ERROR SUMMARY" in line or line.startswith("test result:")]
    # The status is None if the time was over, which is no success.
    return {"status": status, "found" if status == 0 else "said": "; ".join(summary) or text[-300:]}
