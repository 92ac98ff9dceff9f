"""Fuzzes everything that parses input from outside. Started by `make fuzz`.

    python3 scripts/fuzz.py [target …] [--seconds 60 | --runs 50000] [--jobs 2] [--max-len 4096]
    python3 scripts/fuzz.py --replay target file

The targets in tests/fuzz are built once, instrumented for libFuzzer (stable Rust suffices). Each runs for the given
time over the seeds in tests/corpus and the findings of earlier runs, which are kept, minimised, in the target
directory. With a number of runs, it starts from the seeds alone and chooses inputs by a fixed seed, so that the result
hardly depends on the machine. On a finding the script ends with status 1, and prints the input's path and the command
that replays it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fetch
from server import ROOT, target_directory

CRATE = ROOT / "tests" / "fuzz"
SEEDS = ROOT / "tests" / "corpus"
#: cargo-fuzz's compiler flags, without a sanitizer: coverage counters, and the operands of comparisons.
COVERAGE = ["-Cpasses=sancov-module"] + [
    f"-Cllvm-args=-sanitizer-coverage-{option}"
    for option in ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")
]
#: Memory limit of a target, and time limit of one input.
MEMORY_MB, INPUT_S = 1024, 10
#: Files whose words are added to those of the seeds, by target.
VOCABULARY = {"pbtxt": "proto/model_config.proto", "json": "proto/model_config.proto", "yaml": "docs/model-configuration.md"}
WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_.-]{2,30}")
#: Limits the time that the fuzzer spends on trying words.
MOST_WORDS = 1000
#: libFuzzer's file name prefixes of inputs on which it stopped.
FINDING = ("crash-", "timeout-", "oom-", "leak-")

#: The result of one target: its findings' paths, and libFuzzer's last figures by name.
Outcome = namedtuple("Outcome", "target status findings figures log")


def all_targets():
    return sorted(path.stem for path in (CRATE / "fuzz_targets").glob("*.rs"))


def build(out):
    """Builds all targets; returns the folder of their programs."""
    version = subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout
    host = re.search(r"^host: (.*)$", version, re.MULTILINE).group(1)
    # With an explicit target, build scripts and macros are built without the flags: they are not linked with libFuzzer.
    command = ["cargo", "build", "--release", "--manifest-path", CRATE / "Cargo.toml", "--target", host]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(out), "RUSTFLAGS": " ".join(COVERAGE)}
    subprocess.run([str(part) for part in command], cwd=ROOT, env=environment, check=True)
    return out / host / "release"


def dictionary(target, path):
    """Writes the dictionary of a target's words, in libFuzzer's format."""
    sources = [*sorted((SEEDS / target).iterdir())]
    if target in VOCABULARY:
        sources.append(ROOT / VOCABULARY[target])
    words = sorted({word for source in sources for word in WORD.findall(source.read_bytes())})
    path.write_text("".join(f'"{word.decode()}"\n' for word in words[:MOST_WORDS]))


class Run:
    """One target's folders and limits."""

    def __init__(self, target, program, out, given):
        self.target, self.given = target, given
        self.corpus, self.findings = out / ("runs" if given.runs else "corpus") / target, out / "findings" / target
        self.dictionary, self.log = out / f"{target}.dict", out / f"{target}.log"
        self.program = program
        self.until = [f"-runs={given.runs}", "-seed=1"] if given.runs else [f"-max_total_time={given.seconds}"]
        self.limits = [f"-max_len={given.max_len}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={INPUT_S}"]

    def command(self, *arguments):
        return [str(part) for part in (self.program, *self.limits, *arguments)]

    def start(self, command, seconds):
        """Runs a command with its output in the log; returns its status. Files that bodies leave in the temporary
        folder are removed."""
        with tempfile.TemporaryDirectory() as scratch, open(self.log, "ab") as log:
            environment = {**os.environ, "TMPDIR": scratch, "RUST_BACKTRACE": "1"}
            # The fuzzer ends by itself; a timeout is a fault of its own.
            done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=seconds + 300)
        return done.returncode

    def fuzz(self):
        if self.given.runs:
            shutil.rmtree(self.corpus, ignore_errors=True)
        self.corpus.mkdir(parents=True, exist_ok=True)
        self.findings.mkdir(parents=True, exist_ok=True)
        known = set(self.findings.iterdir())
        self.log.unlink(missing_ok=True)
        dictionary(self.target, self.dictionary)
        status = self.start(
            self.command(
                *self.until, f"-artifact_prefix={self.findings}/", f"-dict={self.dictionary}", "-print_final_stats=1",
                self.corpus, SEEDS / self.target,
            ),
            self.given.seconds,
        )  # fmt: skip
        log = self.log.read_text(errors="replace")
        if status == 0 and not self.given.runs:
            self.keep_small()
        new = [path for path in sorted(set(self.findings.iterdir()) - known) if path.name.startswith(FINDING)]
        figures = dict(re.findall(r"^stat::(\w+): +(\d+)$", log, re.MULTILINE))
        covered = re.findall(r"\bcov: (\d+)", log)
        return Outcome(self.target, status, new, {**figures, "covered": covered[-1] if covered else "0"}, log)

    def keep_small(self):
        """Keeps only inputs of the corpus that cover something that neither the seeds nor a smaller input cover."""
        with tempfile.TemporaryDirectory(dir=self.corpus.parent) as scratch:
            small = Path(scratch) / "small"
            small.mkdir()
            merge = self.command("-merge=1", small, SEEDS / self.target, self.corpus)
            if self.start(merge, self.given.seconds) != 0:
                return
            seeds = {path.read_bytes() for path in (SEEDS / self.target).iterdir()}
            for path in small.iterdir():
                if path.read_bytes() in seeds:
                    path.unlink()
            shutil.rmtree(self.corpus)
            small.rename(self.corpus)


def report(outcome):
    """Prints the result of one target; returns whether it passed."""
    figures = outcome.figures
    count = lambda name: int(figures.get(name, 0))  # noqa: E731
    state = "ok" if outcome.status == 0 else "FOUND"
    print(
        f"  {outcome.target:<14} {state:<6} {count('number_of_executed_units'):>10} runs {count('average_exec_per_sec'):>7} /s"
        f" {count('covered'):>6} edges {count('new_units_added'):>5} new inputs {count('peak_rss_mb'):>5} MB",
        flush=True,
    )
    if outcome.status == 0:
        return True
    tail = [line for line in outcome.log.splitlines() if "panicked at" in line or line.startswith(("SUMMARY", "ERROR", "=="))]
    for line in tail or outcome.log.splitlines()[-20:]:
        print(f"    {line}")
    for path in outcome.findings:
        print(f"    input: {path}")
        print(f"    replay: python3 scripts/fuzz.py --replay {outcome.target} {path}")
        print(f"    once it is fixed, keep it: cp {path} tests/corpus/{outcome.target}/")
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("targets", nargs="*", metavar="target", help=f"one of {', '.join(all_targets())}; all by default")
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("--runs", type=int, help="in place of the time: inputs for each target, chosen by a fixed seed")
    parser.add_argument("--jobs", type=int, default=2, help="targets that run concurrently")
    parser.add_argument("--max-len", type=int, default=4096, help="longest input, in bytes")
    parser.add_argument("--replay", nargs=2, metavar=("target", "file"), help="run one input and show what happens")
    given = parser.parse_args()

    targets = [given.replay[0]] if given.replay else given.targets or all_targets()
    unknown = set(targets) - set(all_targets())
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    try:
        # libFuzzer is compiled from C++.
        fetch.cpp()
    except fetch.Unavailable as reason:
        print(f"cannot fuzz: {reason}")
        return 1
    out = target_directory() / "fuzz"
    programs = build(out)
    runs = [Run(target, programs / target, out, given) for target in targets]
    if given.replay:
        return subprocess.run(runs[0].command(given.replay[1]), check=False).returncode
    each = f"{given.runs} runs" if given.runs else f"{given.seconds} s"
    print(f"\n{len(runs)} targets, {each} each, {given.jobs} at a time, inputs of up to {given.max_len} bytes", flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        passed = [report(outcome) for outcome in pool.map(Run.fuzz, runs)]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
