"""Tables of pages with simulated figures, filled from benches/tables by `figures.py`. A table is between
`<!-- table NAME -->` and `<!-- end -->`; the text around it is written by hand. `figure_pages.py` and `headlines` write
them.
"""

import csv
import re

from server import ROOT

TABLES = ROOT / "benches" / "tables"
#: The functions that return tables, by name: lists of lines, each a list of cells.
WRITERS = {}
BETWEEN = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def path(figure):
    return TABLES / f"{figure}.csv"


def fill(folder):
    """Writes the tables of all pages in a folder."""
    for page, text, filled in pages(folder):
        if filled != text:
            page.write_text(filled)


def stale(folder):
    """Yields each line of the pages' tables that is not as `fill` would write it."""
    for page, text, filled in pages(folder):
        is_there, expected = text.splitlines(), filled.splitlines()
        for number, (found, line) in enumerate(zip(is_there, expected), 1):
            if found != line:
                yield f"{page}:{number}: expected {line}, found {found}"
                # If rows are missing, all later lines differ.
                if len(is_there) != len(expected):
                    break


def pages(folder):
    """Yields each page, its text, and its text with tables from the kept figures."""
    for page in sorted(folder.rglob("*.md")):
        text = page.read_text()
        written = lambda found: "\n".join([found[1].rstrip(), *lines(WRITERS[found[2]]()), found[3]])
        yield page, text, BETWEEN.sub(written, text)


def lines(rows):
    head, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *rest]


def table(name):
    def keep(writer):
        WRITERS[name] = writer
        return writer

    return keep


def rows_of(figure):
    with path(figure).open() as file:
        return list(csv.DictReader(file))


def one(rows, column, **where):
    """Returns a figure of the only row with these values of columns, which are compared as numbers where possible; None
    if there is no such row."""
    for row in rows:
        if all(same(row[key], value) for key, value in where.items()):
            return float(row[column]) if row[column] else None
    return None


def same(cell, value):
    return cell == value if isinstance(value, str) else cell != "" and abs(float(cell) - value) < 1e-3


def of(value, digits=3):
    """Formats a number with `digits` significant digits, but never fewer than its integer part has."""
    if value is None:
        return "–"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    text = f"{value:.{max(digits - whole, 0)}f}" if whole else f"{value:.{digits - 1}f}"
    return f"{int(text):,}" if whole > 3 else text


def percent(value):
    """Formats a fraction in per cent, with one decimal below ten."""
    if value is None:
        return "–"
    return f"{100 * value:.1f}".removesuffix(".0") if value < 0.0995 else f"{100 * value:.0f}"


def times(value, base):
    return f"{value / base:.2f} ×" if value and base else "–"


def change(value, base):
    return f"{100 * (value / base - 1):+.1f}".replace("-", "−") + " %"


def spread(ratios):
    return f"{average(ratios):.2f} × ({max(ratios):.2f} to {min(ratios):.2f})"


def average(values):
    values = list(values)
    return sum(values) / len(values)


def peak(rows, **where):
    """Returns the most that was completed a second at any rate."""
    return max(float(row["throughput"]) for row in rows if all(same(row[key], value) for key, value in where.items()))


def lower_means(rows, run, windows, rates):
    """Returns for each rate how many times as long the mean of the best window is as that of LazyB."""
    mean = lambda policy, rate: one(rows, "mean_ms", run=run, policy=policy, rate=rate)
    return [min(mean(window, rate) for window in windows) / mean("LazyB", rate) for rate in rates]
