"""What the kit for CUDA cards makes of measured times: verdicts on splitting, and tables for the simulator."""

import json
import subprocess

import gpu_splits
import gpu_tables
import pytest

ROWS = (1, 2, 4, 8, 16, 32, 64)


def points(took_us, length=0, runs=50):
    """Returns the points of a stage that takes `took_us(rows)`."""
    took = {rows: int(took_us(rows) * 1000) for rows in ROWS}
    return [
        {"rows": rows, "length": length, "median_ns": ns, "p99_ns": ns + 100, "runs": runs} for rows, ns in took.items()
    ]


def staged(*stages, length=0, network="net", skipped=()):
    cut = {"at": [], "stages": list(stages), "scatter": [950, 1000, 1200]}
    times = [{"network": network, "precision": "ieee", "length": length, "cut": cut}]
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
    assert gpu_splits.judged(measured)["net, ieee"]["verdict"].startswith("splitting pays on this card: 1.000 before stage 1, ")


def test_a_network_that_gains_everywhere_is_not():
    measured = staged(points(gains), points(gains))
    (best,) = gpu_splits.splits(measured["times"][0]["cut"]["stages"])
    # The larger the batch, the less its fixed time counts: 164 µs whole, 264 µs in halves.
    assert (best.rows, best.parts) == (64, (32, 32))
    assert best.ratio == pytest.approx(164 / 264)
    verdict = gpu_splits.judged(measured)["net, ieee"]["verdict"]
    assert verdict == "splitting does not pay on this card: the best ratio is 0.621 (before stage 1, 64 rows as 32 + 32), below 0.99"


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
    assert "- net, 32 tokens, fp16, from 16 rows: out of memory" in text


def simulate(program, table, model, *words):
    command = [program, "simulate", "--table", table, "--model", model, "--requests", 2000, "--seeds", 1, "--json", *words]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_stages_of_several_lengths_are_simulated_from_one_file(program, tmp_path):
    measured = staged(points(gains, 16), points(gains, 16), length=16, network="texts")
    # The longer requests were measured with few rows only.
    longer = [points(lambda rows: 4 * gains(rows), 64)[:3]] * 2
    measured["times"] += staged(*longer, length=64, network="texts")["times"]
    assert gpu_tables.write(tmp_path, "a card", measured, []) == ["texts.json"]
    table = json.loads((tmp_path / "texts.json").read_text())
    assert table["models"][0]["scatter"] == [0.95, 1.0, 1.2]
    words = ["--workload", "glue-short", "--load", "0.6", "--policy", "diversity: { operator: true }", "--policy", "window"]
    diversity, window = simulate(program, tmp_path / "texts.json", "texts-ieee", *words)["runs"]
    assert diversity["completed"] == window["completed"] > 0
    assert diversity["splits"] > 0 == window["splits"]


def test_cells_are_simulated(program, tmp_path):
    steps = [
        {"network": network, "precision": "fp16", "rows": rows, "microseconds": gains(rows)}
        for network in ("seq2seq, encoder step", "seq2seq, decoder step", "tree-lstm, leaf", "resnet50")
        for rows in ROWS
    ]
    # The TreeLSTM lacks one of its cells.
    assert gpu_tables.write(tmp_path, "a card", {"times": []}, steps) == ["seq2seq.json"]
    found = simulate(program, tmp_path / "seq2seq.json", "seq2seq-fp16", "--policy", "cellular", "--load", "0.5")
    assert found["table"] == "a card"
    assert found["runs"][0]["completed"] > 0
    # Steps of different requests share tasks.
    assert found["runs"][0]["tasks"] < found["runs"][0]["rows"]
