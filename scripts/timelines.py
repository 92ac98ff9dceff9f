"""The timelines in docs/policies.md: serves a network under each policy, sends an open Poisson load, fetches the
recording, and draws the part that best shows what the policy is for. Started by `make timelines`.

    python scripts/timelines.py [--only lazy-resnet50,…] [--out docs/timelines]

The times in the drawings are those of the machine that ran the script; the effects that they show are the same
everywhere.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections import namedtuple
from pathlib import Path

import fetch
import open_load
from open_load import POLICIES, WHOLE, WINDOW, Served
from server import ROOT, Server

#: One drawing: its models, the load as a fraction of the peak, the number of requests of each model, the number of
#: requests to draw, what should happen to the drawn batch, and the server's flags.
Scenario = namedtuple("Scenario", "models load requests drawn shows flags", defaults=[()])
#: One request: its begin and end in ms after the first event, the process of its model, and the names of its spans.
Journey = namedtuple("Journey", "begin_ms end_ms process names")

SCENARIOS = {
    "serial-minilm": Scenario({"minilm": Served("minilm", WHOLE)}, 0.8, 60, 8, ()),
    "window-minilm": Scenario({"minilm": Served("minilm", WINDOW)}, 0.8, 60, 12, ()),
    "adaptive-vgg19": Scenario({"vgg19": Served("vgg19", POLICIES["vgg19"])}, 0.8, 40, 12, ()),
    # With equation 2 as the predictor, newcomers are pushed wherever the slack allows it, whether or not it helps.
    "lazy-resnet50": Scenario(
        {"resnet50": Served("resnet50", POLICIES["resnet50-equation-2"])}, 0.7, 120, 5, ("stretch", "merge")
    ),
    "diversity-minilm": Scenario({"minilm": Served("minilm", POLICIES["minilm"])}, 0.9, 150, 5, ("stretch", "merge")),
    "diversity-lengths": Scenario({"minilm": Served("minilm", POLICIES["minilm-by-length"])}, 0.9, 100, 12, ()),
    "diversity-unet": Scenario({"unet": Served("unet", POLICIES["unet-latencies"])}, 1.5, 30, 4, ("split",)),
    "two-models": Scenario(
        {
            "minilm": Served("minilm", "stages: 2\nbatching: { policy: diversity, weight: 3 }"),
            "resnet50": Served("resnet50", "stages: 2\nbatching: { policy: adaptive, weight: 1 }"),
        },
        0.8,
        60,
        14,
        (),
        ("--cpu-lanes", "1"),
    ),
}
SAMPLES = 16
MOST_BYTES = 100_000
#: The number of the batch in a span's name.
BATCH = re.compile(r"· batch (\d+)")
SHARED = re.compile(r" ([2-9]|\d{2,}) rows")


def record(scenario, networks, folder):
    """Serves the scenario once; returns its recording, and the time in it, in ms, at which the load began."""
    repository = open_load.write_repository(folder / "repository", networks, scenario.models)
    recording = folder / "trace.json"
    with Server(repository, "--timeline-file", recording, *scenario.flags) as server:
        streams = []
        for seed, (name, served) in enumerate(scenario.models.items()):
            requests = open_load.samples(served.network, SAMPLES, seed)
            rate = scenario.load * open_load.peak(server.grpc, name, requests, scenario.requests)
            streams.append(open_load.poisson(name, requests, rate, scenario.requests, seed))
        measured = journeys(json.loads(server.get("/v2/timeline")[1]))
        for answered in open_load.run(server.grpc, streams):
            for one in answered:
                if one.error:
                    raise SystemExit(f"a request failed: {one.error}")
    return recording, max(journey.end_ms for journey in measured)


def journeys(recorded):
    """Returns the journey of each request, in the order of their first spans."""
    lanes = {
        event["pid"]
        for event in recorded["traceEvents"]
        if event["name"] == "process_name" and event["args"]["name"] == "lanes"
    }
    spans = [event for event in recorded["traceEvents"] if event["ph"] == "X" and event["pid"] not in lanes]
    first = min(event["ts"] for event in spans)
    of_request = {}
    for event in spans:
        of_request.setdefault((event["pid"], event["args"].get("request")), []).append(event)
    found = []
    for (process, number), own in of_request.items():
        if number is not None:
            begin = min(event["ts"] for event in own) - first
            end = max(event["ts"] + event["dur"] for event in own) - first
            found.append(Journey(begin / 1e3, end / 1e3, process, [event["name"] for event in own]))
    return sorted(found)


def batches(some):
    """Returns the requests of each batch."""
    aboard = {}
    for journey in some:
        for number in {match[1] for match in map(BATCH.search, journey.names) if match}:
            aboard.setdefault((journey.process, int(number)), []).append(journey)
    return aboard


def best_part(recorded, scenario, begun_ms):
    """Returns the part, in ms, that best shows the scenario: the life of one batch to which all of it happened, or as
    many requests as should be drawn."""
    under_load = [journey for journey in journeys(recorded) if journey.begin_ms >= begun_ms]
    if scenario.shows:
        lives = [aboard for aboard in batches(under_load).values() if happened(aboard, scenario.shows)]
        if not lives:
            raise SystemExit(f"no batch had all of {', '.join(scenario.shows)}; run it again")
        aboard = min(lives, key=lambda aboard: abs(len(aboard) - scenario.drawn))
        return min(one.begin_ms for one in aboard), max(one.end_ms for one in aboard)
    groups = [under_load[at : at + scenario.drawn] for at in range(len(under_load) - scenario.drawn + 1)]
    group = max(groups, key=lambda some: (len({one.process for one in some}), min(shared(some), scenario.drawn)))
    return group[0].begin_ms, max(one.end_ms for one in group)


def happened(aboard, shows):
    names = [set(name.split()) for journey in aboard for name in journey.names]
    return all(any(what in name for name in names) for what in shows)


def shared(some):
    """Returns how many of these requests shared a task."""
    return sum(any(SHARED.search(name) for name in journey.names) for journey in some)


def draw(recording, part, target):
    margin = 0.04 * (part[1] - part[0])
    begin, end = max(0.0, part[0] - margin), part[1] + margin
    command = [open_load.program(), "timeline", recording, "--svg", target, "--from", f"{begin:.2f}", "--to", f"{end:.2f}"]
    subprocess.run([str(one) for one in command], check=True)
    size = target.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{target} has {size} bytes, more than {MOST_BYTES}: draw fewer requests")
    return size


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default=",".join(SCENARIOS), help="names of drawings, separated by commas")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "timelines")
    given = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        networks = open_load.write_networks(open_load.program(), Path(scratch) / "networks", fetch.minilm())
        for name in given.only.split(","):
            folder = Path(scratch) / name
            folder.mkdir()
            recording, begun_ms = record(SCENARIOS[name], networks, folder)
            part = best_part(json.loads(recording.read_text()), SCENARIOS[name], begun_ms)
            size = draw(recording, part, given.out / f"{name}.svg")
            print(f"{name}: {part[1] - part[0]:.0f} ms drawn, {size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
