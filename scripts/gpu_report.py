"""The report of a card for people: what `report.json` has, as Markdown."""

import json

import gpu_splits
import gpu_suites
from gpu_load import TRACED


def lines(report):
    """Yields the lines of the report, of the parts that there are."""
    yield from ("# Report of a CUDA card", "")
    yield ", ".join(f"{name}: {value}" for name, value in report.get("card", {}).items())
    if "versions" in report:
        yield from ("", "## Libraries", "")
        yield from (f"- {name}: {library(found)}" for name, found in report["versions"].items())
    if "kernels" in report:
        found = report["kernels"]
        yield f"- programs of kernels: {found['found']} compiled before this call, {found['compiled']} by it"
    for part, title in SUITES:
        if part in report:
            yield from ("", f"## {title}", "")
            yield from suites(report[part])
    if "times" in report:
        yield from ("", "## The card's own speeds", "")
        yield from ceilings(report["times"])
        yield from ("", "## Networks, µs", "")
        yield from steps(report["times"])
    if "pytorch" in report:
        yield from ("", "## PyTorch's graphs of the same networks, µs", "")
        yield from pytorch(report["pytorch"], report.get("times", {}).get("steps", []))
    if "served" in report:
        yield from ("", "## A server and its clients over gRPC", "")
        # The clients know nothing of the card.
        yield from loads({"lstm": report["served"]}, has_energy=False)
    if "under load" in report:
        models = report["under load"]
        yield from ("", "## Under load", "")
        yield from failure(models)
        yield from loads({model: figures for model, figures in models.items() if is_load(model, figures)})
        if TRACED in models:
            yield from ("", "## One trace, several policies", "")
            yield "The requests of trace.csv at shares of the peak of the first policy, in the same order for all."
            yield ""
            yield from loads({TRACED: models[TRACED]})
    if "stages" in report:
        yield from ("", "## Networks in stages", "")
        yield "The ratio T_remain(b) / Σ T_remain(part) says whether splitting a batch before a stage pays: docs/gpu.md."
        yield from failure(report["stages"])
        if "times" in report["stages"]:
            yield from gpu_splits.tables(report["stages"])
    if isinstance(report.get("tables"), list):
        yield from ("", "## Tables for the simulator", "")
        yield from (f"- tables/{name}" for name in report["tables"])


#: Parts that are tests.
SUITES = (("device", "Tests of the device"), ("suites", "Tests of plans and of the pool"), ("sanitizer", "Reruns"))


def is_load(model, figures):
    return model != TRACED and isinstance(figures, dict)


def library(found):
    return found["missing"] if "missing" in found else f"{found['version']}, {found['path']}"


def suites(part):
    """Yields what came of tests, those that failed with the end of what they said."""
    yield from failure(part)
    if "tool" in part:
        yield "Under compute-sanitizer." if part["tool"] else "compute-sanitizer was not found: without it."
        part = {"reruns": part["tests"]}
    for suite, tests in part.items():
        if not isinstance(tests, dict):
            continue
        yield f"- {suite}: {gpu_suites.closing(tests)}"
        deviation = max((found.get("deviation", 0) for found in tests.values()), default=0)
        if deviation:
            yield f"  - largest deviation from the CPU, of the largest number of a row: {deviation:.1e}"
        for name, found in tests.items():
            if "said" in found:
                yield f"  - {name} {found['outcome']} after {found['seconds']} s (exit status {found['status']}):"
                yield from ("", *(f"        {line}" for line in found["said"].splitlines()), "")


def one_line(text):
    return " ".join(text.split())


def failure(part):
    """Yields why a part failed, if it did."""
    if "said" in part:
        yield from ("", f"Failed (exit status {part['status']}): {one_line(part['said'])}")


def is_failed(part):
    """Returns whether a part, or something in it, failed."""
    if not isinstance(part, dict):
        return False
    return part.get("status", 0) != 0 or part.get("outcome") in FAILURES or any(map(is_failed, part.values()))


FAILURES = (gpu_suites.FAILED, gpu_suites.LATE)


def failures(report):
    """Returns the parts of a report that failed."""
    return [part for part, found in report.items() if is_failed(found)]


def summary(part, found):
    """Returns a part in a few words, for the terminal."""
    if isinstance(found, dict) and "said" in found:
        return f"failed: {one_line(found['said'])[-300:]}"
    if part in ("card", "versions", "kernels"):
        return json.dumps(found)
    tests = found.get("tests") if isinstance(found, dict) and "tool" in found else None
    if tests is not None:
        return gpu_suites.closing(tests)
    if part in dict(SUITES):
        return "; ".join(f"{suite}: {gpu_suites.closing(tests)}" for suite, tests in found.items() if tests is not True)
    return "failed" if is_failed(found) else "done"


def steps(times):
    """Yields a table of networks: for each precision the time, and how many times the floor that is."""
    precisions = list(dict.fromkeys(step["precision"] for step in times.get("steps", [])))
    yield "| network | rows | " + " | ".join(precisions) + " |"
    yield "|---" * (len(precisions) + 2) + "|"
    cells = {(step["network"], step["rows"], step["precision"]): step for step in times.get("steps", [])}
    for network, rows in dict.fromkeys((network, rows) for network, rows, _ in cells):
        found = [cells.get((network, rows, precision)) for precision in precisions]
        texts = (f"{one['microseconds']:.1f} ({one['microseconds'] / one['floor_microseconds']:.1f}×)" if one else "" for one in found)
        yield f"| {network} | {rows} | " + " | ".join(texts) + " |"
    yield from ("", *(f"- {name} is left out: {one_line(reason)}" for name, reason in times.get("skipped", [])))
    yield from failure(times)


def pytorch(times, ours):
    """Yields a table of what PyTorch takes for the same networks, and how many times that of the plans is."""
    own = {(step["network"], step["precision"], step["rows"]): step["microseconds"] for step in ours}
    yield "| network | precision | rows | PyTorch | plan / PyTorch |"
    yield "|---|---|---|---|---|"
    for step in times.get("steps", []):
        key = (step["network"], step["precision"], step["rows"])
        ratio = f"{own[key] / step['microseconds']:.2f}" if key in own else ""
        yield "| " + " | ".join(map(str, key)) + f" | {step['microseconds']:.1f} | {ratio} |"
    yield from ("", *(f"- {name} is left out: {reason}" for name, reason in times.get("skipped", [])))
    yield from failure(times)


def ceilings(times):
    if "ceilings" not in times:
        yield from failure(times)
        return
    yield f"- copies: {times['ceilings']['bytes_per_second'] / 1e12:.2f} TB/s read and written"
    for precision, flops in times["ceilings"]["flops"]:
        yield f"- square matrices, {precision}: {flops / 1e12:.1f} TFLOP/s"


def energy(total):
    joules = total["joules_per_request"]
    return "not measured" if joules is None else f"{joules:.3g}"


def loads(measured, has_energy=True):
    """Yields a table of all models, loads and policies."""
    names = ["model", "load", "policy", "requests/s", "mean ms", "p99 ms"] + ["J/request"] * has_energy
    yield "| " + " | ".join(names) + " |"
    yield "|---" * len(names) + "|"
    for model, figures in measured.items():
        for load in figures.get("loads", []):
            for policy in load["policies"]:
                total = policy["total"]
                cells = [model, load["load"], f"`{policy['policy']}`", f"{total['requests_per_s']:.1f}"]
                cells += [f"{total['mean_ms']:.3g}", f"{total['p99_ms']:.3g}"] + [energy(total)] * has_energy
                yield "| " + " | ".join(cells) + " |"
    reasons = {figures.get("energy_not_measured") for figures in measured.values() if has_energy} - {None}
    yield from (line for reason in sorted(reasons) for line in ("", f"Energy was not measured: {reason}."))
    for model, figures in measured.items():
        if "said" in figures:
            yield from ("", f"{model} failed (exit status {figures['status']}): {one_line(figures['said'])}")
