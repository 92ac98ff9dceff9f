"""The check of the papers' figures: what is kept is what the simulator draws, and a changed cell is found."""

import csv
import shutil
import subprocess
import sys

import figure_pages  # noqa: F401, writes the tables of the pages
import figure_tables
import pytest
from conftest import ROOT
from figure_check import CHECKED, narrowed
from figure_runs import RUNS
from headlines.table import HEADLINES, PAPERS

#: A figure of which the check draws little.
FIGURE = "batchmaker-13"


@pytest.fixture
def tables(tmp_path):
    """A copy of the kept tables."""
    return shutil.copytree(ROOT / "benches" / "tables", tmp_path / "tables", ignore=shutil.ignore_patterns("h200"))


def checked(program, tables):
    command = [sys.executable, ROOT / "scripts" / "figures.py", "--check", "--only", FIGURE]
    command += ["--binary", program, "--tables", tables]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    return ran.returncode, ran.stdout


def changed(path, column, value):
    """Changes a cell of the first row that the check draws again; returns what it was, and its line."""
    ((run, part),) = [(run, part) for (figure, run), part in CHECKED.items() if figure == FIGURE]
    with path.open() as file:
        rows = list(csv.DictReader(file))
    drawn = (run, part.policies[0], str(part.only["rate"]))
    place = [(row["run"], row["policy"], row["rate"]) for row in rows].index(drawn)
    found, rows[place][column] = rows[place][column], value
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return found, place + 2


def test_a_changed_cell_fails_the_check_with_its_place(program, tables):
    code, output = checked(program, tables)
    assert code == 0, output
    path = tables / f"{FIGURE}.csv"
    found, line = changed(path, "p50_ms", "1.5")
    code, output = checked(program, tables)
    (fault,) = [text for text in output.splitlines() if str(path) in text]
    assert code == 1
    assert fault.startswith(f"{path}:{line}: row '") and fault.endswith(
        f"column 'p50_ms': expected 1.5, found {found}"
    ), fault


def test_a_row_that_is_not_kept_fails_the_check(program, tables):
    path = tables / f"{FIGURE}.csv"
    changed(path, "policy", "another")
    code, output = checked(program, tables)
    assert code == 1 and f"{path}: row '" in output and "expected no such row" in output, output


def test_pages_have_the_kept_figures_and_a_changed_cell_is_found(tmp_path):
    pages = shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.svg", "*.png"))
    assert list(figure_tables.stale(pages)) == []
    page = pages / "benchmarks" / "adaptive.md"
    lines = page.read_text().splitlines()
    number = next(number for number, line in enumerate(lines) if line.startswith("| ad hoc |"))
    expected, lines[number] = lines[number], lines[number].replace("| ", "| 9", 1)
    page.write_text("\n".join(lines) + "\n")
    assert list(figure_tables.stale(pages)) == [f"{page}:{number + 1}: expected {expected}, found {lines[number]}"]


def test_the_check_draws_a_part_of_the_figures_of_each_paper():
    papers = {figure.split("-")[0] for figure, _ in RUNS}
    assert {figure.split("-")[0] for figure, _ in CHECKED} == papers and len(papers) == 4
    for run, part in CHECKED.items():
        words = narrowed(RUNS[run], part).arguments
        values = dict(zip(words[::2], words[1::2]))
        assert words.count("--policy") == len(part.policies), run
        assert all(values[f"--{name}"] == str(value) for name, value in part.only.items()), run


def test_each_headline_has_a_command_that_draws_its_figure():
    drawn = [headline for headline in HEADLINES if headline.command.startswith("make figures ")]
    for headline in drawn:
        names = headline.command.removeprefix("make figures ONLY=").split(",")
        assert set(names) <= {figure for figure, _ in RUNS}, headline
    assert [headline.command for headline in HEADLINES if headline not in drawn] == ["", "cargo bench --bench stages"]
    assert {headline.paper for headline in HEADLINES} == set(PAPERS)
