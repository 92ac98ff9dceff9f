"""What `figures.py --check` draws again, and its comparison with the kept tables."""

import csv
from collections import namedtuple

import figure_tables

#: The part of a run that is drawn again: names of policies, and the only values of options that have several.
Part = namedtuple("Part", "policies only")

#: Rows of all four papers that together take half a minute without optimisation. None depends on which of several types
#: of cells runs next, a choice that is refined more often than the rest.
CHECKED = {
    ("lazybatching-12", "resnet"): Part(("GraphB(5)", "LazyB"), {"rate": 1000}),
    ("lazybatching-15", "transformer"): Part(("LazyB",), {"objective-ms": 20}),
    ("lazybatching-16", "bert-base"): Part(("LazyB",), {"rate": 16, "objective-ms": 100}),
    ("lazybatching-cells", "transformer"): Part(("GraphB(5)",), {"rate": 1000}),
    ("dvabatch-14", "bert-base"): Part(("ZeroBatch", "grouped", "DVABatch, 290 us"), {"load": 0.25}),
    ("dvabatch-18", "unet"): Part(("split",), {"load": 0.9}),
    ("adaptive-2", "bert-base"): Part(("max batch", "adaptive"), {}),
    ("batchmaker-9", "5000/s"): Part(("BatchMaker", "Padding(10)"), {}),
    ("batchmaker-13", "2 devices"): Part(("Padding(10)",), {"rate": 2000}),
}

#: The columns that name a row. A rate names it only where no load does: then it is a figure, the share of a peak.
KEYS = ("run", "policy", "objective_ms", "load", "rate", "model")


def narrowed(of_run, part):
    """Returns a run with a part of its policies and values."""
    words = iter(of_run.arguments)
    kept = []
    for option, value in zip(words, words):
        name = option.removeprefix("--")
        if name == "policy" and value.split("=")[0] not in part.policies:
            continue
        kept += [option, str(part.only.get(name, value))]
    return of_run._replace(arguments=kept, plots={})


def key(row):
    names = [name for name in KEYS if row.get(name)]
    return {name: row[name] for name in names if name != "rate" or "load" not in names}


def differences(figure, found):
    """Yields each cell of the rows that is not as in the kept table, with its file, line, row and column."""
    path = figure_tables.path(figure)
    with path.open() as file:
        kept = {tuple(key(row).items()): (line, row) for line, row in enumerate(csv.DictReader(file), 2)}
    for row in found:
        named = key(row)
        title = ", ".join(named.values())
        line, expected = kept.get(tuple(named.items()), (0, {}))
        if not expected:
            yield f"{path}: row '{title}': expected no such row, found {row}"
        for column in dict.fromkeys([*expected, *row]) if expected else ():
            is_there, value = expected.get(column, "no such column"), row.get(column, "no such column")
            if is_there != value:
                yield f"{path}:{line}: row '{title}', column '{column}': expected {is_there}, found {value}"
