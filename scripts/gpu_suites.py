"""The test suites on a card: each test in its own process, several side by side, because a card's error outlives the
test that caused it within its process."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

from gpu_programs import end_of, ran

#: Time limit of a test in seconds, and tests side by side at most.
SECONDS = 25
WORKERS_MAX = 8
#: What a test prints that needs the stand-in.
LEFT_OUT = "skipped: "
#: A line of the list of tests.
TEST = re.compile(r"^(\S+): test$", re.MULTILINE)
PASSED, FAILED, LATE, SKIPPED, NOT_RUN = "passed", "failed", "did not end", "skipped", "not run"


def listed(program, environment, log, clock):
    """Returns the names of a suite's tests but long runs; None if it cannot list them."""
    all_names, long_runs = (
        ran([program, "--list", "--format", "terse", *words], environment, log, clock) for words in ((), ("--ignored",))
    )
    if all_names.status != 0:
        return None
    left_out = set(TEST.findall(long_runs.text))
    return [name for name in TEST.findall(all_names.text) if name not in left_out]


def outcome(ended):
    if ended.status is None:
        return LATE
    if ended.status == 0 and "1 passed" in ended.text:
        return SKIPPED if LEFT_OUT in ended.text else PASSED
    return FAILED


def one(program, name, environment, folder, clock, wrapper=()):
    """Runs a test; returns what came of it."""
    if clock.left() <= 0:
        return {"outcome": NOT_RUN, "seconds": 0}
    command = [*wrapper, program, "--exact", name, "--nocapture", "--test-threads=1"]
    ended = ran(command, environment, folder / f"{name.replace('::', '.')}.log", clock.part(SECONDS))
    found = {"outcome": outcome(ended), "seconds": round(ended.seconds, 2)}
    if found["outcome"] == LATE and ended.seconds < SECONDS:
        # Not the test was late, but all of them.
        return found | {"outcome": NOT_RUN}
    if found["outcome"] in (FAILED, LATE):
        found |= {"status": ended.status, "said": end_of(ended.text)}
    deviations = [float(number) for number in re.findall(r"\bdeviation ([0-9.e+-]+) ", ended.text)]
    return found | ({"deviation": max(deviations)} if deviations else {})


def run(programs, suites, environment, folder, clock, is_chosen=lambda name: True):
    """Runs the tests of suites side by side; returns {suite: {test: what came of it}}."""
    results, waiting = {}, []
    with ThreadPoolExecutor(min(WORKERS_MAX, os.cpu_count() or 1)) as workers:
        for suite in suites:
            place = folder / suite
            place.mkdir(parents=True, exist_ok=True)
            names = listed(programs[suite], environment, place / "tests.log", clock)
            if names is None:
                said = end_of((place / "tests.log").read_text(errors="replace"))
                results[suite] = {"--list": {"outcome": FAILED, "status": 1, "seconds": 0, "said": said}}
                continue
            results[suite] = {}
            for name in filter(is_chosen, names):
                waiting.append(
                    (suite, name, workers.submit(one, programs[suite], name, environment, place, clock))
                )
        for suite, name, found in waiting:
            results[suite][name] = found.result()
    return results


def failed(results):
    """Returns the tests that did not pass, as pairs of suite and name."""
    return [
        (suite, name)
        for suite, tests in results.items()
        if isinstance(tests, dict)
        for name, found in tests.items()
        if found["outcome"] in (FAILED, LATE)
    ]


def closing(tests):
    """Returns how many tests of a suite came to what, in words."""
    counts = {}
    for found in tests.values():
        counts[found["outcome"]] = counts.get(found["outcome"], 0) + 1
    return ", ".join(f"{counts[what]} {what}" for what in (PASSED, FAILED, LATE, SKIPPED, NOT_RUN) if what in counts)
