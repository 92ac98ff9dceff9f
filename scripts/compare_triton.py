"""Requests a second compared with a Triton server, or without one with batches of exact lengths: tables and the plot of
docs/benchmarks/triton.md.

    python scripts/compare_triton.py [--peer host:port] [--server host:port] [--only minilm,…] [--rounds 5] [--seconds 4]
    python scripts/compare_triton.py --write-peer DIR [--instances 1]

The second form writes the repository that the peer has to serve (`tritonserver --model-repository DIR`): the same
weights under the same names, with dynamic batching. Only requests of one length share a batch, since Triton does not
pad. Without `--peer`, Paternoster serves that repository instead, once with two instances and once with one, and the
output says so. The comparison is then one of how requests share batches, not of servers.

In alternating rounds with the same requests, the script also measures the models as they come, where texts of different
lengths may share a batch and the LSTM is one of cells; the peer's file of the LSTM without a configuration, of which
the server makes cells; the LSTM of cells whose inputs are multiplied ahead of its steps; and models with `policy: auto` and a profile of this machine. With `--server`, that server is measured in place
of these. During the measurement every answer of every server is compared with one server's answer to that request
alone. The bare loop has no server at all: it is the rate of a loop over the cheapest run of `paternoster profile`, in
one lane that has all threads, with at most as many rows as requests are in flight. Each round measures it just before
its servers, because a machine's speed changes from minute to minute, and once more just after them, while clients send
nine tenths as many requests a second to the model `identity` of a server on the same cores. This shows what clients and
front end take from the loop.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fetch
import tritonclient.grpc as triton
from cells_models import BATCH, hidden_size, lstm_graph, write_step
from comparing import (
    BARE,
    BESIDE,
    Case,
    bare_row,
    bench_round,
    called,
    machine_facts,
    ratios,
    show_servers,
    timing_arguments,
    write_table,
)
from plots import write_bars
from server import ROOT, Server, binary
from tritonclient.utils import InferenceServerException

CASES = {
    "identity": Case("identity", None, (1, 8, 64)),
    "lstm, closed-22": Case("lstm", "closed-22", (1, 8, 32)),
    "minilm, glue-short": Case("minilm", "glue-short", (1, 8, 32)),
    "minilm, glue-pair": Case("minilm", "glue-pair", (1, 8, 32)),
}
QUICK_IN_FLIGHT = (1, 4)
QUICK_SAMPLES = 8
#: Models that are served differently with a profile.
PROFILED = ("minilm",)
#: Seconds of a profile that a server uses, and of one that is measured in each round.
PROFILE_S, BARE_S = 30, 6
AUTO = "batching: { policy: auto }\n"
#: Models that are also measured without a server, and the model whose runs are measured for each.
BARE_MODELS = {"lstm": "step", "minilm": "minilm"}
#: Requests a second that clients send beside the bare loop, as a share of what the loop alone would answer.
CLIENTS_SHARE = 0.9
AS_IT_COMES, AS_EXPORTED, WITH_A_PROFILE, AHEAD = "as it comes", "as exported", "with a profile", "inputs ahead"
#: Servers that stand in for the peer, and the instances of each model: batches in flight at once. The first has as many
#: as the server has lanes, and is the faster one.
STAND_INS = {"exact lengths": 2, "exact lengths, one instance": 1}
#: The peer's configuration of each model: its largest batch and its tensors.
PEER_MODELS = {
    "identity": (
        64,
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 } '
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }',
    ),
    "lstm": (
        BATCH,
        'input { name: "tokens" data_type: TYPE_INT64 dims: -1 } '
        'output { name: "hidden" data_type: TYPE_FP32 dims: HIDDEN }',
    ),
    "minilm": (
        32,
        'input [ { name: "input_ids" data_type: TYPE_INT64 dims: -1 }, '
        '{ name: "attention_mask" data_type: TYPE_INT64 dims: -1 } ]\n'
        'output { name: "sentence_embedding" data_type: TYPE_FP32 dims: 384 }',
    ),
}
TABLE = ROOT / "benches" / "tables" / "exact-lengths.csv"
PLOT = ROOT / "docs" / "benchmarks" / "exact-lengths.svg"


def write_models(program, folder, quick):
    """Writes the models as they come; the quick LSTM is a quarter as wide."""
    called(program, "models", "--out", folder, "--only", "identity,minilm", "--minilm", fetch.minilm())
    called(program, "models", "--out", folder, "--only", "lstm", *(["--quarter"] if quick else []))


def write_ahead(program, folder, quick):
    """Writes the LSTM whose inputs are multiplied ahead of its steps, under the name of the other."""
    called(program, "models", "--out", folder, "--only", "lstm-projected", *(["--quarter"] if quick else []))
    (folder / "lstm-projected").rename(folder / "lstm")


def write_exported(models, folder):
    """Writes the LSTM as one graph without a configuration, from which the server makes cells."""
    (folder / "lstm" / "1").mkdir(parents=True)
    (folder / "lstm" / "1" / "model.onnx").write_bytes(lstm_graph(models / "lstm", padded=False))


def write_peer(models, folder, instances):
    """Writes the peer's repository, from the models as they come."""
    hidden = hidden_size(models / "lstm")
    for name, (rows, tensors) in PEER_MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        is_lstm = name == "lstm"
        graph = lstm_graph(models / name, padded=False) if is_lstm else (models / name / "1" / "model.onnx").read_bytes()
        (folder / name / "1" / "model.onnx").write_bytes(graph)
        config = f'backend: "onnxruntime"\nmax_batch_size: {rows}\n{tensors.replace("HIDDEN", str(hidden))}\n'
        config += f"dynamic_batching {{ }}\ninstance_group {{ count: {instances} kind: KIND_CPU }}\n"
        (folder / name / "config.pbtxt").write_text(config)


def link_profiled(models, folder):
    """Links the models that are served by their profiles into a folder."""
    for name in PROFILED:
        (folder / name).mkdir(parents=True)
        (folder / name / "1").symlink_to(models / name / "1")
        (folder / name / "model.yaml").write_text((models / name / "model.yaml").read_text() + AUTO)


class Comparison:
    """One run of the script. It writes everything into a scratch folder."""

    def __init__(self, given, scratch):
        self.given, self.scratch = given, scratch
        self.models = scratch / "models"
        #: {name: (address, its models)}. The others are compared with the first.
        self.servers = {}
        write_models(given.binary, self.models, given.quick)

    def start(self, stack):
        """Starts the servers that were not given as arguments."""
        given = self.given
        if given.peer:
            self.servers[peer_name(given.peer)] = (given.peer, set(PEER_MODELS))
        else:
            for name, instances in STAND_INS.items():
                write_peer(self.models, self.scratch / f"peer-{instances}", instances)
                self.serve(stack, name, f"peer-{instances}", set(PEER_MODELS))
        if given.server:
            self.servers[given.server] = (given.server, set(PEER_MODELS))
            return
        self.serve(stack, AS_IT_COMES, "models", set(PEER_MODELS))
        if any(case.model == "lstm" for case in self.cases().values()):
            write_exported(self.models, self.scratch / "exported")
            self.serve(stack, AS_EXPORTED, "exported", {"lstm"})
            write_ahead(given.binary, self.scratch / "ahead", given.quick)
            self.serve(stack, AHEAD, "ahead", {"lstm"})
        if any(case.model in PROFILED for case in self.cases().values()):
            link_profiled(self.models, self.scratch / "profiled")
            for name in PROFILED:
                self.profile(self.scratch / "profiled", name, "profiles", PROFILE_S)
            self.serve(stack, WITH_A_PROFILE, "profiled", set(PROFILED), "--profile-directory", self.scratch / "profiles")

    def serve(self, stack, name, folder, has, *flags):
        # A separate directory: profiles of earlier measurements must not change how models are served.
        flags = flags or ("--profile-directory", self.scratch / f"{folder}-profiles")
        server = stack.enter_context(Server(self.scratch / folder, *flags, program=self.given.binary))
        self.servers[name] = (server.grpc, has)

    def cases(self):
        """Returns the cases that were asked for and whose result means something."""
        asked = tuple(self.given.only.split(";"))
        chosen = {name: case for name, case in CASES.items() if name.startswith(asked)}
        if not self.given.peer and not self.given.server:
            # This model has nothing to pad, so both servers would do the same.
            chosen.pop("identity", None)
        if self.given.quick:
            return {name: case._replace(in_flight=QUICK_IN_FLIGHT) for name, case in chosen.items()}
        return chosen

    def profile(self, folder, model, profiles, budget, *flags):
        budget = 1 if self.given.quick else budget
        place = ["--model-repository", folder, "--model", model, "--profile-directory", self.scratch / profiles]
        return called(self.given.binary, "profile", *place, "--budget-s", budget, "--json", *flags)["profile"]

    def bare_token_ns(self, model):
        """Returns nanoseconds a token of the model's runs on all cores, by rows: for each number of rows that of its
        cheapest length."""
        if model not in BARE_MODELS:
            return {}
        folder, name = self.models, BARE_MODELS[model]
        if name not in PEER_MODELS:
            folder = self.scratch / "bare"
            if not folder.exists():
                write_step(self.models / "lstm", folder)
        whole = self.profile(folder, name, "bare-profiles", BARE_S, "--cpu-lanes", 1)["cuts"][0]["stages"][0]
        cheapest = {}
        for point in whole:
            ns = point["median_ns"] / point["rows"] / max(point["length"], 1)
            cheapest[point["rows"]] = min(ns, cheapest.get(point["rows"], ns))
        return cheapest

    @contextmanager
    def clients(self, rate):
        """Sends requests to the identity model of the server that is measured, as many a second on average, for the
        time of a block."""
        address, _ = self.servers[self.given.server or AS_IT_COMES]
        words = ["bench", "--url", address, "--model", "identity", "--rate", f"{rate:.0f}", "--rounds", "1", "--seconds", "600"]
        with subprocess.Popen([self.given.binary, *words], stdout=subprocess.DEVNULL) as clients:
            try:
                yield
                if clients.poll() is not None:
                    raise subprocess.CalledProcessError(clients.returncode, clients.args)
            finally:
                clients.terminate()

    def measure(self, name, case):
        """Returns the rows of one case: each server in each round, and the rates of a loop without a server, alone just
        before the servers of its round, and beside clients just after them."""
        given = self.given
        servers = {server: address for server, (address, has) in self.servers.items() if case.model in has}
        rows = []
        for number in range(1, given.rounds + 1):
            for in_flight in case.in_flight:
                bare = self.bare_token_ns(case.model)
                one = case._replace(in_flight=(in_flight,))
                measured, mean_length = bench_round(given.binary, servers, name, one, given, number)
                rows += measured
                if not bare:
                    continue
                rate = best_rate(bare, in_flight, mean_length)
                with self.clients(CLIENTS_SHARE * rate):
                    beside = best_rate(self.bare_token_ns(case.model), in_flight, mean_length)
                rows += [bare_row(measured[0], BARE, rate), bare_row(measured[0], BESIDE, beside)]
        return rows


def best_rate(token_ns, in_flight, mean_length):
    """Returns requests a second of the cheapest run that has at most as many rows as requests are in flight."""
    return 1e9 / min(ns for rows, ns in token_ns.items() if rows <= in_flight) / mean_length


def peer_name(address):
    """Returns the name and version that a peer reports."""
    try:
        with triton.InferenceServerClient(address) as client:
            told = client.get_server_metadata()
    except InferenceServerException as refusal:
        sys.exit(f"no server answers at '{address}', expected one that speaks KServe v2 over gRPC: {refusal.message()}")
    return f"{told.name} {told.version}"


def draw(path, rows, names):
    """Draws the requests a second of each server relative to the first's."""
    groups, beside = list(dict.fromkeys((row["case"], row["in_flight"]) for row in rows)), ratios(rows, names[0])
    series = {names[0]: [1.0] * len(groups)}
    for name in names[1:]:
        found = (beside.get((*group, name)) for group in groups)
        series[name] = [statistics.median(values) if values else None for values in found]
    labels = ["\n".join([*case.split(", "), f"{in_flight} in flight"]) for case, in_flight in groups]
    machine = rows[0]["machine"]
    write_bars(path, f"requests/s beside {names[0]}, on {machine}", "", f"requests/s, {names[0]} = 1", labels, series)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="HOST:PORT", help="gRPC address of a server that has the models of --write-peer")
    parser.add_argument("--server", metavar="HOST:PORT", help="a running Paternoster, measured in place of started ones")
    parser.add_argument("--write-peer", metavar="DIR", type=Path, help="write the peer's repository, and measure nothing")
    parser.add_argument("--instances", type=int, default=1, help="instances of each model in that repository")
    parser.add_argument("--only", default="", help="names of cases, or their beginnings, separated by semicolons")
    timing_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="small models and few requests, for tests")
    parser.add_argument("--csv", type=Path, default=TABLE)
    parser.add_argument("--svg", type=Path, default=PLOT)
    parser.add_argument("--binary", default=binary(), help="the server's binary")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds, given.warm_up, given.samples = 2, 0.2, 0, QUICK_SAMPLES
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        try:
            compare(given, Path(scratch), stack)
        except subprocess.CalledProcessError as failed:
            sys.exit(f"'paternoster {failed.cmd[1]}' ended with status {failed.returncode}; its error is above")


def compare(given, scratch, stack):
    if given.write_peer:
        there = [name for name in PEER_MODELS if (given.write_peer / name).exists()]
        if there:
            sys.exit(f"'{given.write_peer}' has a model '{there[0]}' already, expected a new or an empty folder")
        write_models(given.binary, scratch / "models", given.quick)
        write_peer(scratch / "models", given.write_peer, given.instances)
        return
    comparison = Comparison(given, scratch)
    cases = comparison.cases()
    if not cases:
        sys.exit(f"there is nothing to compare for '{given.only}'; the cases are: {'; '.join(CASES)}")
    comparison.start(stack)
    facts = machine_facts(given.binary)
    facts += [f"'{name}' at {address}, with {', '.join(sorted(has))}" for name, (address, has) in comparison.servers.items()]
    if not given.peer:
        facts += [
            f"no peer: '{next(iter(STAND_INS))}' is a Paternoster that serves the peer's repository as Triton does, "
            "without padding;",
            "identity is left out where both servers would do the same",
        ]
    print("\n".join(facts), flush=True)
    rows = []
    for name, case in cases.items():
        rows += comparison.measure(name, case)
        write_table(given.csv, rows)
    names = list(comparison.servers)
    show_servers(rows, names)
    draw(given.svg, rows, names)


if __name__ == "__main__":
    main()
