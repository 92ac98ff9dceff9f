"""Every policy on example models as they come, and under a latency objective: how many requests each keeps within four
times the time of a request alone.

    python scripts/compare_slack.py [--only minilm,…] [--rounds 3] [--seconds 2] [--quick]

For each model, one `paternoster bench` keeps 32 requests in flight, and another sends requests at shares of the peak:
without an objective at 0.6, with one at 0.6 and 0.9. Each alternates all policies. Commands are printed as they can be
typed. It takes about five minutes a model; `--quick` is one short round of each. The convolutional networks and BERT are
a quarter as wide as published.
"""

import argparse
import tempfile
from collections import namedtuple
from pathlib import Path

import fetch
from comparing import called, shown, titled
from server import binary

POLICIES = ("auto", "window", "adaptive", "lazy", "diversity", "deferred")
#: Those of models of cells, where `auto` is `cellular`.
OF_CELLS = ("auto", "lazy")

#: A measurement: the model, the workload of lengths where they vary, and the policies that it can have.
Case = namedtuple("Case", "model workload policies", defaults=[None, POLICIES])

CASES = {
    "minilm, glue-short": Case("minilm", "glue-short"),
    "minilm, glue-pair": Case("minilm", "glue-pair"),
    "bert-base, glue-short": Case("bert-base", "glue-short"),
    "resnet50": Case("resnet50"),
    "unet": Case("unet"),
    "lstm, wmt15": Case("lstm", "wmt15", OF_CELLS),
    "seq2seq, wmt15": Case("seq2seq", "wmt15", OF_CELLS),
}
QUARTER_WIDE = ("bert-base", "resnet50", "unet")
#: Shares of the peak without an objective, and with one.
LOADS, LOADS_WITH_OBJECTIVE = "0.6", "0.6,0.9"
IN_FLIGHT = 32
#: The objective, in times of a request alone.
TIMES_ALONE = 4


def comparisons(policies, objective_ms):
    """Returns policies and shares of the peak: every policy without an objective; then with it, and before them `auto`
    without."""
    with_objective = [f"policy: {policy}, latency_objective_ms: {objective_ms:.4g}" for policy in policies]
    return (policies, LOADS), (("auto", *with_objective), LOADS_WITH_OBJECTIVE)


def name_of(policy):
    """Returns the short name of a policy as `bench` reports it, and whether it has an objective."""
    return (policy.removeprefix("policy: ").partition(",")[0], "yes") if "," in policy else (policy, "no")


def measure(program, models, name, given):
    """Prints a row for each policy and load of one case."""
    case = CASES[name]
    common = ["--model-repository", models, "--model", case.model, "--json"]
    common += ["--workload", case.workload] if case.workload else []
    timing = ["--warm-up-seconds", given.warm_up, "--seconds", given.seconds, "--samples", given.samples]
    (alone,) = called(program, "bench", *common, *timing, "--policy", "auto", "--concurrency", 1)["loads"]
    objective_ms = TIMES_ALONE * alone["policies"][0]["total"]["mean_ms"]
    words = [*common, *timing, "--objective-ms", f"{objective_ms:.4g}", "--rounds", given.rounds]
    for policies, shares in comparisons(case.policies, objective_ms):
        named = [word for policy in policies for word in ("--policy", policy)]
        for load in (["--concurrency", IN_FLIGHT], ["--load", shares, "--follow-peak"]):
            for one in called(program, "bench", *words, *named, *load)["loads"]:
                for measured in one["policies"]:
                    total = measured["total"]
                    # A round may be so short that nothing is answered in it.
                    share = total["goodput_per_s"] / (total["requests_per_s"] or 1)
                    times = [f"{total[f'{figure}_ms']:.3g}" for figure in ("mean", "p50", "p99")]
                    rate = f"{total['requests_per_s']:.4g}"
                    shown(name, one["load"], *name_of(measured["policy"]), rate, *times, f"{share:.1%}", f"{objective_ms:.3g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", metavar="MODEL,…", help="only these models")
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
        only = given.only.split(",") if given.only else {case.model for case in CASES.values()}
        for model in sorted(only):
            width = ["--quarter"] if model in QUARTER_WIDE else []
            called(given.binary, "models", "--out", models, "--only", model, "--minilm", fetch.minilm(), *width)
        titled("model", "load", "policy", "objective", "requests/s", "mean ms", "p50", "p99", "within", "objective ms")
        for name in (name for name, case in CASES.items() if case.model in only):
            measure(given.binary, models, name, given)


if __name__ == "__main__":
    main()
