"""What the kit for CUDA cards makes of measured times: verdicts on splitting, tables for the simulator, and the report.
And the trace that it plays."""

import json
import os
import shutil
import subprocess
import sys

import cubins
import gpu
import gpu_load
import gpu_plan
import gpu_report
import gpu_splits
import gpu_tables
import pytest
from server import ROOT

ROWS = (1, 2, 4, 8, 16, 32, 64)


def points(took_us, length=0, runs=50):
    """Returns the points of a stage that takes `took_us(rows)`."""
    took = {rows: int(took_us(rows) * 1000) for rows in ROWS}
    return [
        {"rows": rows, "length": length, "median_ns": ns, "p99_ns": ns + 100, "runs": runs} for rows, ns in took.items()
    ]


def without_moves(stage):
    """Returns the points of a stage's program alone, if moving rows takes 14 µs."""
    return [{**point, "median_ns": point["median_ns"] - 14_000} for point in stage]


def staged(*stages, length=0, network="net", skipped=()):
    cut = {"at": [], "stages": list(stages), "scatter": [950, 1000, 1200]}
    # The largest batch was not measured without its moves.
    alone = {**cut, "stages": [without_moves(stage[:-1]) for stage in stages]}
    times = [{"network": network, "precision": "ieee", "length": length, "cut": cut, "alone": alone}]
    return {"card": "a card", "times": times, "skipped": list(skipped)}


def gains(rows):
    return 100 + rows


def constant_per_row(rows):
    return 100 * rows


def worse_together(rows):
    return 10 * rows + rows**2


def test_a_decoder_that_gains_nothing_from_batches_is_worth_splitting():
    measured = staged(points(gains), points(constant_per_row))
    (best,) = gpu_splits.splits(measured["times"][0]["cut"]["stages"])
    assert best.ratio == pytest.approx(1.0)
    assert gpu_splits.judged(measured)["net, ieee"]["verdict"].startswith(
        "splitting pays on this card: 1.000 before stage 1, "
    )


def test_a_network_that_gains_everywhere_is_not():
    measured = staged(points(gains), points(gains))
    (best,) = gpu_splits.splits(measured["times"][0]["cut"]["stages"])
    # The larger the batch, the less its fixed time counts: 164 µs whole, 264 µs in halves.
    assert (best.rows, best.parts) == (64, (32, 32))
    assert best.ratio == pytest.approx(164 / 264)
    verdict = gpu_splits.judged(measured)["net, ieee"]["verdict"]
    assert (
        verdict
        == "splitting does not pay on this card: the best ratio is 0.621 (before stage 1, 64 rows as 32 + 32), below 0.99"
    )


def test_the_best_parts_are_no_smaller_than_an_eighth():
    times = gpu_splits.remaining_ns([points(gains), points(worse_together)], 1)
    took_ns, parts = gpu_splits.fastest_parts(times, 64)
    assert parts == (8,) * 8
    assert took_ns == 8 * worse_together(8) * 1000


def test_the_rest_of_a_batch_is_all_later_stages():
    stages = [points(gains), points(gains), points(constant_per_row)]
    assert gpu_splits.remaining_ns(stages, 1)[8] == 108_000 + 800_000
    assert gpu_splits.remaining_ns(stages, 2)[8] == 800_000


def test_medians_of_few_runs_do_not_count():
    measured = staged(points(gains), points(constant_per_row, runs=4))
    assert gpu_splits.judged(measured)["net, ieee"]["verdict"] == "no verdict: no batch and its parts were measured 5 times"


def test_the_report_has_times_splits_and_what_was_left_out():
    skipped = {"network": "net", "precision": "fp16", "length": 32, "rows": 16, "reason": "out of memory"}
    text = "\n".join(gpu_splits.tables(staged(points(gains), points(gains), length=16, skipped=[skipped])))
    assert "### net, 16 tokens, ieee" in text
    assert "| 64 | 164.0 (164.1) | 164.0 (164.1) | 50 |" in text
    assert "| 1 | 0.621 | 64 | 32 + 32 |" in text
    assert "| rows | stage 0 | stage 1 |" in text
    assert "| 4 | 14.0 (13.5 %) | 14.0 (13.5 %) |" in text
    assert "| 64 | 14.0" not in text
    assert "- net, 32 tokens, fp16, from 16 rows: out of memory" in text


def simulate(program, table, model, *words):
    command = [program, "simulate", "--table", table, "--model", model, "--requests", 2000, "--seeds", 1, "--json", *words]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OPERATOR = "diversity: { operator: true, input: false, load: false }"


@pytest.mark.parametrize(("decoder", "pays"), [(constant_per_row, True), (gains, False)])
def test_the_policy_splits_in_simulation_where_the_verdict_says_so(program, tmp_path, decoder, pays):
    measured = staged(points(gains), points(decoder))
    assert gpu_splits.judged(measured)["net, ieee"]["verdict"].startswith("splitting pays") == pays
    gpu_tables.write(tmp_path, "a card", measured, [])
    # The load is high enough for batches of several rows.
    words = ["--policy", OPERATOR, "--policy", "window", "--load", "0.9"]
    diversity, window = simulate(program, tmp_path / "net.json", "net-ieee", *words)["runs"]
    assert diversity["completed"] == window["completed"] > 0
    assert (diversity["splits"] > 0, window["splits"] > 0) == (pays, False)


def test_stages_of_several_lengths_are_simulated_from_one_file(program, tmp_path):
    measured = staged(points(gains, 16), points(gains, 16), length=16, network="texts")
    # The longer requests were measured with few rows only.
    longer = [points(lambda rows: 4 * gains(rows), 64)[:3]] * 2
    measured["times"] += staged(*longer, length=64, network="texts")["times"]
    assert gpu_tables.write(tmp_path, "a card", measured, []) == ["texts.json"]
    (model,) = json.loads((tmp_path / "texts.json").read_text())["models"]
    assert (model["scatter"], model["max_batch_rows"]) == ([0.95, 1.0, 1.2], 4)
    words = ["--workload", "glue-short", "--load", "0.6", "--policy", "diversity", "--policy", "window"]
    runs = simulate(program, tmp_path / "texts.json", "texts-ieee", *words)["runs"]
    assert all(run["completed"] > 0 and run["batch"] <= 4 for run in runs)


def test_cells_are_simulated(program, tmp_path):
    steps = [
        {"network": network, "precision": "fp16", "rows": rows, "microseconds": gains(rows)}
        for network in ("seq2seq, encoder step", "seq2seq, decoder step", "tree-lstm, leaf", "resnet50")
        for rows in ROWS
    ]
    # The TreeLSTM lacks one of its cells.
    assert gpu_tables.write(tmp_path, "a card", {"times": []}, steps, watts=(70, 400)) == ["seq2seq.json"]
    found = simulate(program, tmp_path / "seq2seq.json", "seq2seq-fp16", "--policy", "cellular", "--load", "0.5")
    assert found["table"] == "a card"
    assert found["runs"][0]["completed"] > 0
    # Steps of different requests share tasks.
    assert found["runs"][0]["tasks"] < found["runs"][0]["rows"]
    assert found["runs"][0]["requests_per_joule"] > 0


def figures(joules):
    per_request = None if joules is None else joules / 100
    one = {"requests_per_s": 50.0, "mean_ms": 2.0, "p99_ms": 9.0, "seconds": 2.0, "joules": joules}
    return {**one, "joules_per_request": per_request}


def loaded(joules, reason=None):
    policy = {"policy": "diversity", "total": figures(joules), "rounds": [figures(joules)]}
    return {"energy_not_measured": reason, "loads": [{"load": "0.25 of peak", "policies": [policy]}]}


def test_the_report_has_joules_a_request_or_why_not():
    text = "\n".join(gpu_report.loads({"lstm": loaded(800.0)}))
    assert "| lstm | 0.25 of peak | `diversity` | 50.0 | 2 | 9 | 8 |" in text
    text = "\n".join(gpu_report.loads({"lstm": loaded(None, "NVML does not know the cards: no library")}))
    assert "| not measured |" in text
    assert "Energy was not measured: NVML does not know the cards: no library." in text


def test_the_power_of_a_busy_card_is_that_of_its_heaviest_load():
    report = {"card": {"idle power": "70.5 W"}, "under load": {"lstm": loaded(800.0), "bert-base": loaded(900.0)}}
    assert gpu_plan.watts(report) == (70.5, 450.0)
    assert gpu_plan.watts({**report, "card": {"unknown": "no nvidia-smi"}}) is None
    assert gpu_plan.watts({**report, "under load": {"lstm": loaded(None), "models": {"status": 3, "said": ""}}}) is None


def test_a_trace_has_busy_and_calm_periods_and_is_always_the_same(tmp_path):
    files = [tmp_path / "one.csv", tmp_path / "two.csv"]
    for file in files:
        gpu_load.write_trace(file, gpu_load.REQUESTS)
    assert files[0].read_text() == files[1].read_text()
    rows = [line.split(",") for line in files[0].read_text().splitlines()[1:]]
    times, lengths = [float(row[0]) for row in rows], [int(row[1]) for row in rows]
    assert times == sorted(times)
    least, greatest = gpu_load.LENGTHS
    assert least == min(lengths) < max(lengths) <= greatest
    assert times[-1] / len(times) == pytest.approx(1, rel=0.1)
    # In a busy period a hundred requests take a quarter of the time that they take in a calm one.
    hundreds = [times[at + 100] - times[at] for at in range(0, len(times) - 100, 100)]
    assert max(hundreds) > 3 * min(hundreds)


def test_outside_a_kit_there_is_nothing_to_run(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "gpu.py", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "this is no kit" in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []
    # Before minutes of building.
    done = subprocess.run([*command[:2], "kit", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "is a directory" in done.stderr, done.stderr


def test_a_kit_has_all_scripts_that_it_needs(tmp_path):
    for script in gpu.SCRIPTS:
        shutil.copy2(ROOT / "scripts" / script, tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "gpu.py", "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


#: A program that writes the arguments that it was called with where `--json` says.
PROGRAM = """
#include <stdio.h>
#include <string.h>
int main(int count, char **arguments) {
    for (int at = 1; at + 1 < count; at++) {
        if (strcmp(arguments[at], "--json") == 0) {
            FILE *file = fopen(arguments[at + 1], "w");
            if (!file) return 2;
            fputs("{\\"card\\": \\"a card\\", \\"steps\\": [], \\"times\\": [], \\"skipped\\": []}", file);
            fclose(file);
        }
    }
    puts("test result: ok.");
    return 0;
}
"""


def test_a_kit_runs_where_it_is_alone(tmp_path, monkeypatch):
    # One small program takes the place of all that cargo builds, which other tests run.
    program = tmp_path / "program"
    subprocess.run(["c++", "-x", "c", "-o", program, "-"], input=PROGRAM, text=True, check=True, timeout=60)
    names = [*gpu_plan.SUITES, gpu.SERVER, gpu.TIMES, gpu.RUNTIME, gpu.PYTORCH]
    monkeypatch.setattr(gpu, "built", lambda: dict.fromkeys(names, program))

    def compiled(planner, folder, capabilities):
        assert planner == [program] and capabilities == ["9.0"]
        (folder / "sm_90").mkdir(parents=True)
        (folder / "sm_90" / "key.cubin").write_bytes(b"a binary")
        return True

    monkeypatch.setattr(cubins, "compiled", compiled)
    elsewhere = tmp_path / "elsewhere"
    gpu.kit(elsewhere / "gpu-kit")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = ["./gpu-kit", "run", "--out", "out"]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=60)
    # The program measures nothing.
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    reports = {
        name: json.loads((elsewhere / "out" / name / "report.json").read_text()) for name in ("first", "second")
    }
    assert reports["first"]["device"] == {"device": {}} and reports["first"]["suites"] == {"cards": {}, "planner": {}}
    assert reports["first"]["times"]["card"] == reports["second"]["stages"]["card"] == "a card"
    assert sorted(entry.name for entry in elsewhere.iterdir()) == ["gpu-kit", "out"]
    # The programs read and keep kernels there.
    assert (elsewhere / "out" / "gpu-kernels" / "key.cubin").read_bytes() == b"a binary"
    for report in reports.values():
        assert report["kernels"] == {"found": 1, "compiled": 0}
    assert {"first.tar.gz", "second.tar.gz"} < {entry.name for entry in (elsewhere / "out").iterdir()}
    for name in reports:
        assert (elsewhere / "out" / name / "report.md").read_text().startswith("# Report of a CUDA card")
