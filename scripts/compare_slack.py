"""Every policy under a latency objective, on MiniLM: how many requests each keeps within four times the time of a request
alone.

    python scripts/compare_slack.py [--rounds 3] [--seconds 2] [--quick]

For each workload, one `paternoster bench` keeps 32 requests in flight, and another sends requests at 0.6 and 0.9 of the
peak; both alternate all policies. Commands are printed as they can be typed. It takes about seven minutes; `--quick` is
one short round of each.
"""

import argparse
import tempfile
from pathlib import Path

import fetch
from comparing import called, shown, titled
from server import binary

POLICIES = ("auto", "window", "adaptive", "lazy", "diversity", "deferred")
WORKLOADS = ("glue-short", "glue-pair")
LOADS = "0.6,0.9"
IN_FLIGHT = 32
#: The objective, in times of a request alone.
TIMES_ALONE = 4


def policies(objective_ms):
    """Returns the arguments that name every policy with the objective, and before them `auto` without."""
    with_objective = [f"policy: {policy}, latency_objective_ms: {objective_ms:.4g}" for policy in POLICIES]
    return [word for policy in ("auto", *with_objective) for word in ("--policy", policy)]


def name_of(policy):
    """Returns the short name of a policy as `bench` reports it."""
    return policy.removeprefix("policy: ").partition(",")[0] if "," in policy else f"{policy}, no objective"


def measure(program, models, workload, given):
    """Prints a row for each policy and load of one workload."""
    common = ["--model-repository", models, "--model", "minilm", "--workload", workload, "--json"]
    timing = ["--warm-up-seconds", given.warm_up, "--seconds", given.seconds, "--samples", given.samples]
    (alone,) = called(program, "bench", *common, *timing, "--policy", "serial", "--concurrency", 1)["loads"]
    objective_ms = TIMES_ALONE * alone["policies"][0]["total"]["mean_ms"]
    words = [*common, *timing, "--objective-ms", f"{objective_ms:.4g}", "--rounds", given.rounds, *policies(objective_ms)]
    for load in (["--concurrency", IN_FLIGHT], ["--load", LOADS, "--follow-peak"]):
        for one in called(program, "bench", *words, *load)["loads"]:
            for measured in one["policies"]:
                total = measured["total"]
                share = total["goodput_per_s"] / total["requests_per_s"]
                times = [f"{total[f'{figure}_ms']:.3g}" for figure in ("mean", "p50", "p99")]
                rate = f"{total['requests_per_s']:.4g}"
                shown(workload, one["load"], name_of(measured["policy"]), rate, *times, f"{share:.1%}", f"{objective_ms:.3g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--warm-up", type=float, default=0.3, help="seconds before that, which are not counted")
    parser.add_argument("--quick", action="store_true", help="one round of a fifth of a second of each")
    parser.add_argument("--binary", default=binary(), help="the server's binary")
    given = parser.parse_args()
    given.samples = 256
    if given.quick:
        given.rounds, given.seconds, given.warm_up, given.samples = 1, 0.2, 0.05, 16
    with tempfile.TemporaryDirectory() as scratch:
        models = Path(scratch)
        called(given.binary, "models", "--out", models, "--only", "minilm", "--minilm", fetch.minilm())
        titled("workload", "load", "policy", "requests/s", "mean ms", "p50", "p99", "within", "objective ms")
        for workload in WORKLOADS:
            measure(given.binary, models, workload, given)


if __name__ == "__main__":
    main()
