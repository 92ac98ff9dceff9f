"""Each policy beside `window` with delay 0, under the same Poisson load in one run: docs/benchmarks/README.md.

    python scripts/compare_policies.py [--load 0.6] [--rounds 7] [--requests 120] [--only lazy-resnet50,…]

Rounds alternate between the two, with the same arrivals; the rate is a share of the measured peak of `window`. Of each
round the ratio is taken, and of the rounds the median: what else the machine does in a minute then counts for both. T(n)
is the time that ONNX Runtime takes for a batch of n, alone on the machine.
"""

import argparse
import tempfile
from collections import namedtuple
from pathlib import Path

import fetch
import numpy as np
import open_load
import tritonclient.grpc as triton
from open_load import POLICIES, WHOLE, WINDOW, Served
from server import Server

#: A policy to compare: how its model is served, and the words for it in the table.
Case = namedtuple("Case", "served words")

CASES = {
    "diversity-minilm": Case(Served("minilm", POLICIES["minilm"]), "`diversity`, 3 stages, stretched"),
    "diversity-lengths": Case(
        Served("minilm", POLICIES["minilm-by-length"]), "`diversity`, 3 stages, by length"
    ),
    "lazy-resnet50": Case(Served("resnet50", POLICIES["resnet50"]), "`lazy`, 4 stages"),
    "adaptive-vgg19": Case(Served("vgg19", POLICIES["vgg19"]), "`adaptive`"),
    "diversity-unet": Case(Served("unet", POLICIES["unet"]), "`diversity`, 3 stages, split"),
}
SAMPLES = 16
#: Requests of the slower networks, as a share of the others'.
SHARES = {"vgg19": 0.5, "unet": 0.25}
#: Batches of each size of which the median time is taken.
BATCHES = 9


def batch_ms(server, network, rows):
    """T(rows), from the server's own statistics."""
    (requests,) = open_load.samples(network, 1, seed=3, rows=rows, length=16)
    taken_ms = []
    with triton.InferenceServerClient(server.grpc) as client:

        def run_ns():
            (stats,) = client.get_inference_statistics("whole").model_stats
            return stats.inference_stats.compute_infer.ns

        for _ in range(BATCHES):
            before = run_ns()
            client.infer("whole", requests)
            taken_ms.append((run_ns() - before) / 1e6)
    return float(np.median(taken_ms))


def latencies_ms(server, model, requests, rate, count, seed):
    (answered,) = open_load.run(server.grpc, [open_load.poisson(model, requests, rate, count, seed)])
    errors = [one.error for one in answered if one.error]
    if errors:
        raise SystemExit(f"a request failed: {errors[0]}")
    return np.array([one.latency_s for one in answered]) * 1e3


def assert_same_answers(server, network, requests):
    """Both variants answer what the whole network answers."""
    right, *others = (
        open_load.answers_alone(server.grpc, model, network, requests) for model in ("whole", "window", "policy")
    )
    scale = max(np.abs(one).max() for one in right)
    for other in others:
        for one, same in zip(right, other):
            np.testing.assert_allclose(same, one, rtol=0, atol=1e-4 * scale)


def compare(case, given, networks, folder):
    network = case.served.network
    models = {"policy": case.served, "window": Served(network, WINDOW), "whole": Served(network, WHOLE)}
    count = max(20, round(given.requests * SHARES.get(network, 1)))
    with Server(open_load.write_repository(folder, networks, models)) as server:
        requests = open_load.samples(network, SAMPLES, seed=1)
        assert_same_answers(server, network, requests)
        single_ms, eighth_ms = batch_ms(server, network, 1), batch_ms(server, network, 8) / 8
        # The policies learn the times of their stages while the peaks are measured.
        open_load.peak(server.grpc, "policy", requests, count)
        rate = given.load * open_load.peak(server.grpc, "window", requests, count)
        rounds = []
        for number in range(given.rounds):
            order = ("window", "policy") if number % 2 else ("policy", "window")
            taken = {model: latencies_ms(server, model, requests, rate, count, seed=number) for model in order}
            rounds.append([(np.mean(taken[model]), np.percentile(taken[model], 99)) for model in ("window", "policy")])
    # By round, then window and policy, then mean and 99th percentile.
    rounds = np.array(rounds)
    means = np.median(rounds[:, 0], axis=0)
    ratios = np.median(rounds[:, 1] / rounds[:, 0], axis=0)
    spread = np.percentile(rounds[:, 1, 0] / rounds[:, 0, 0], [0, 100])
    print(
        f"| {network} | {case.words} | {single_ms:.1f} ms | {eighth_ms:.1f} ms | {rate:.0f}/s | {means[0]:.1f} ms | "
        f"{means[1]:.1f} ms | {ratios[0]:.2f} ({spread[0]:.2f}–{spread[1]:.2f}) | {ratios[1]:.2f} |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--load", type=float, default=0.6, help="share of the peak of window")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=120, help="of each variant in each round")
    parser.add_argument("--only", default=",".join(CASES), help="names of cases, with commas")
    given = parser.parse_args()

    print("| network | policy | T(1) | T(8)/8 | rate | window: mean | p99 | mean, policy / window | p99, policy / window |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        networks = open_load.write_networks(open_load.program(), Path(scratch) / "networks", fetch.minilm())
        for name in given.only.split(","):
            compare(CASES[name], given, networks, Path(scratch) / name)


if __name__ == "__main__":
    main()
