"""Whether splitting a batch between stages pays on a card (DVABatch section 7.2): reads what the timings of
`benches/cards --stages` wrote.

Before a stage, a batch of b rows is split if T_remain(b) ≥ threshold · Σ T_remain(part), where T_remain is the time of
this stage and all later ones. The ratio of the two sides without the threshold is computed here, for the parts with the
least sum. Parts have sizes that were measured, because a card runs a batch of any other size in the next larger of its
buckets, and none but the last is smaller than an eighth of the batch, as in the policy `diversity`. Times are those of
a stage's whole task, which gathers the rows of a batch and scatters them again.
"""

from collections import namedtuple

#: Default threshold of the policy `diversity`.
THRESHOLD = 0.99
#: Medians of fewer runs do not count, as in the findings of a profile.
RUNS_MIN = 5
#: No part but the last is smaller than this fraction of its batch.
PARTS_MAX = 8

#: The best split before a stage: the batch in rows, its parts in rows, and T_remain(batch) / Σ T_remain(part).
Split = namedtuple("Split", "rows parts ratio")


def title(times):
    """Returns the name of a network's times, with length and precision."""
    length = f", {times['length']} tokens" if times["length"] else ""
    return f"{times['network']}{length}, {times['precision']}"


def remaining_ns(stages, first):
    """Returns {rows: time} of the stages from `first` on, for the batches whose medians count."""
    sizes = [{point["rows"]: point for point in stage} for stage in stages[first:]]
    counted = [{rows for rows, point in stage.items() if point["runs"] >= RUNS_MIN} for stage in sizes]
    return {rows: sum(stage[rows]["median_ns"] for stage in sizes) for rows in sorted(set.intersection(*counted))}


def fastest_parts(times, rows):
    """Returns the least sum of times in at least two parts, and the parts; None if there are no such parts."""
    least = -(-rows // PARTS_MAX)
    best = {}
    for left in range(1, rows + 1):
        found = [(times[left], (left,))] if left in times and left < rows else []
        for first in times:
            if least <= first < left and left - first in best:
                rest_ns, rest = best[left - first]
                found.append((times[first] + rest_ns, (first, *rest)))
        if found:
            best[left] = min(found, key=lambda sum_and_parts: (sum_and_parts[0], len(sum_and_parts[1])))
    return best.get(rows)


def splits(stages):
    """Returns the best split before each stage but the first; None where no batch can be split."""
    found = []
    for first in range(1, len(stages)):
        times = remaining_ns(stages, first)
        candidates = []
        for rows, whole_ns in times.items():
            in_parts = fastest_parts(times, rows)
            if in_parts:
                candidates.append(Split(rows, in_parts[1], whole_ns / in_parts[0]))
        found.append(max(candidates, key=lambda split: split.ratio, default=None))
    return found


def verdict(found):
    """Returns what the best splits of a network mean, in words."""
    best = max((split for split in found if split), key=lambda split: split.ratio, default=None)
    if best is None:
        return f"no verdict: no batch and its parts were measured {RUNS_MIN} times"
    where = f"before stage {found.index(best) + 1}, {best.rows} rows as {' + '.join(map(str, best.parts))}"
    if best.ratio >= THRESHOLD:
        return f"splitting pays on this card: {best.ratio:.3f} {where}"
    return f"splitting does not pay on this card: the best ratio is {best.ratio:.3f} ({where}), below {THRESHOLD}"


def judged(staged):
    """Returns the splits and the verdict for all times of a file, as plain data by title."""
    result = {}
    for times in staged["times"]:
        found = splits(times["cut"]["stages"])
        before = {stage: split._asdict() for stage, split in enumerate(found, 1) if split}
        result[title(times)] = {"before_stage": before, "verdict": verdict(found)}
    return result


def moves(times):
    """Yields a table of what a stage's task takes beyond its program alone: the moves of rows around the program."""
    alone = [{point["rows"]: point["median_ns"] for point in stage} for stage in times["alone"]["stages"]]
    stages = times["cut"]["stages"]
    yield from ("", "Gathering and scattering rows, in µs and as a share of the task:", "")
    yield "| rows | " + " | ".join(f"stage {stage}" for stage in range(len(stages))) + " |"
    yield "|---" * (len(stages) + 1) + "|"
    for points in zip(*stages):
        rows = points[0]["rows"]
        if all(rows in stage for stage in alone):
            tasks = ((point["median_ns"], point["median_ns"] - stage[rows]) for point, stage in zip(points, alone))
            cells = [f"{more_ns / 1e3:.1f} ({100 * more_ns / task_ns:.1f} %)" for task_ns, more_ns in tasks]
            yield f"| {rows} | " + " | ".join(cells) + " |"


def tables(staged):
    """Yields the lines of the report on stages: times, best splits, and what was left out."""
    verdicts = judged(staged)
    for times in staged["times"]:
        name, stages = title(times), times["cut"]["stages"]
        yield from ("", f"### {name}", "")
        yield "| rows | " + " | ".join(f"stage {stage}: µs (p99)" for stage in range(len(stages))) + " | runs |"
        yield "|---" * (len(stages) + 2) + "|"
        for points in zip(*stages):
            cells = [f"{point['median_ns'] / 1e3:.1f} ({point['p99_ns'] / 1e3:.1f})" for point in points]
            yield f"| {points[0]['rows']} | " + " | ".join(cells) + f" | {min(point['runs'] for point in points)} |"
        yield from moves(times)
        scatter = times["cut"]["scatter"]
        if scatter:
            tenth = (len(scatter) - 1) // 10
            least, most = scatter[tenth] / 1e3, scatter[-1 - tenth] / 1e3
            yield from ("", f"Eight of ten runs took {least:.2f} to {most:.2f} times their median.")
        yield from ("", "| before stage | best ratio | batch | parts |", "|---|---|---|---|")
        for stage, split in verdicts[name]["before_stage"].items():
            yield f"| {stage} | {split['ratio']:.3f} | {split['rows']} | {' + '.join(map(str, split['parts']))} |"
        yield from ("", f"**{verdicts[name]['verdict']}**")
    if staged["skipped"]:
        yield from ("", "Left out:", "")
        for one in staged["skipped"]:
            yield f"- {title(one)}, from {one['rows']} rows: {one['reason']}"
