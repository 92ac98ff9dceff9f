"""The report of a card for people: what `report.json` has, as Markdown."""

import gpu_splits
from gpu_load import TRACED


def lines(report):
    """Yields the lines of the report."""
    yield from ("# Report of a CUDA card", "")
    yield ", ".join(f"{name}: {value}" for name, value in report["card"].items())
    if report["suites"]:
        yield from ("", "## Suites", "")
        for name, suite in report["suites"].items():
            yield f"- {name}: {one_line(suite['closing'])}"
            yield from (f"  - {test} failed" for test in suite["failed"])
    if "sanitizer" in report:
        yield from ("", "## compute-sanitizer", "")
        yield from sanitizer(report["sanitizer"])
    yield from ("", "## The card's own speeds", "")
    yield from ceilings(report["times"])
    yield from ("", "## Under load", "")
    yield from loads({model: figures for model, figures in report["under load"].items() if model != TRACED})
    if TRACED in report["under load"]:
        yield from ("", "## One trace, several policies", "")
        yield "The requests of trace.csv at shares of the peak of the first policy, in the same order for all policies."
        yield ""
        yield from loads({TRACED: report["under load"][TRACED]})
    yield from ("", "## Networks in stages", "")
    yield "The ratio T_remain(b) / Σ T_remain(part) says whether splitting a batch before a stage pays: docs/gpu.md."
    yield from failure(report["stages"])
    yield from gpu_splits.tables(report["stages"])
    yield from ("", "## Tables for the simulator", "")
    yield from (f"- tables/{name}" for name in report["tables"])


def one_line(text):
    return " ".join(text.split())


def failure(part):
    """Yields why a part failed, if it did."""
    if "said" in part:
        yield from ("", f"Failed (exit status {part['status']}): {one_line(part['said'])}")


def sanitizer(part):
    """Yields what the tool found, or why it was not run."""
    if "skipped" in part:
        yield f"Skipped: {part['skipped']}."
    elif "found" in part:
        yield f"Passed: {one_line(part['found'])}"
    else:
        yield f"Failed (exit status {part['status']}): {one_line(part['said'])}"


def ceilings(times):
    if "ceilings" not in times:
        yield from failure(times)
        return
    yield f"- copies: {times['ceilings']['bytes_per_second'] / 1e12:.2f} TB/s read and written"
    for precision, flops in times["ceilings"]["flops"]:
        yield f"- square matrices, {precision}: {flops / 1e12:.1f} TFLOP/s"
    yield "- steps of all networks: steps.json, times.log"


def energy(total):
    joules = total["joules_per_request"]
    return "not measured" if joules is None else f"{joules:.3g}"


def loads(measured):
    """Yields a table of all models, loads and policies."""
    yield "| model | load | policy | requests/s | mean ms | p99 ms | J/request |"
    yield "|---|---|---|---|---|---|---|"
    for model, figures in measured.items():
        for load in figures.get("loads", []):
            for policy in load["policies"]:
                total = policy["total"]
                cells = [model, load["load"], f"`{policy['policy']}`", f"{total['requests_per_s']:.1f}"]
                cells += [f"{total['mean_ms']:.3g}", f"{total['p99_ms']:.3g}", energy(total)]
                yield "| " + " | ".join(cells) + " |"
    reasons = {figures.get("energy_not_measured") for figures in measured.values()} - {None}
    yield from (line for reason in sorted(reasons) for line in ("", f"Energy was not measured: {reason}."))
    for model, figures in measured.items():
        if "said" in figures:
            yield from ("", f"{model} failed (exit status {figures['status']}): {one_line(figures['said'])}")
