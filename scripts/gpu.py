"""The tests and benchmarks of CUDA cards, on a card. Started by `make gpu-test` on a machine with a card and Rust, by
`make gpu-kit` on one with neither a card nor its libraries.

    python3 scripts/gpu.py test     builds the programs, runs them, and writes logs and a report
    python3 scripts/gpu.py kit FILE writes one executable file that has the programs, for other machines
    FILE run [--out DIR]            runs them there

The kit runs on machines with only a driver, CUDA's libraries and Python: it generates its models itself. It is a zip
archive of Python (`zipapp`), with the programs inside. Tests that need the stand-in (injected errors, counted calls)
print a note and are skipped. With `--quick`, networks are small and runs are short, to check that everything works.
"""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipapp
from pathlib import Path

import fetch
import gpu_plan
from gpu_programs import KERNELS, PYTORCH, RUNTIME, SERVER, TIMES
from server import ROOT

#: A cargo profile of release code with its checks, which takes less time to compile. Timings are those of releases.
PROFILE = "kit"
ARCHIVE = "programs.tar.xz"
#: The cards whose kernels are compiled with the kit: H100 and H200.
CAPABILITY, ARCHITECTURE = "9.0", "sm_90"
#: Maximum size of a kit, so that it can be copied to remote machines.
BYTES_MAX = 60 << 20
#: Scripts that a kit has.
SCRIPTS = (
    "gpu.py", "gpu_load.py", "gpu_plan.py", "gpu_programs.py", "gpu_report.py", "gpu_sanitizer.py", "gpu_splits.py",
    "gpu_suites.py", "gpu_tables.py", "gpu_versions.py", "fetch.py", "pins.py", "server.py",
)  # fmt: skip


def built():
    """Builds the programs; returns them by name."""
    command = ["cargo", "test", "--no-run", "--profile", PROFILE, "--message-format", "json"]
    for suite in gpu_plan.SUITES:
        command += ["--test", suite]
    times = ["cargo", "build", "--release", "--message-format", "json", "--bin", SERVER, "--bench", "cards"]
    programs = {}
    for names, command in (({suite: suite for suite in gpu_plan.SUITES}, command), ({SERVER: SERVER, "cards": TIMES}, times)):
        text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        made = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        programs |= {
            names[one["target"]["name"]]: Path(one["executable"])
            for one in made
            if one.get("executable") and one["target"]["name"] in names
        }
    return {**programs, RUNTIME: fetch.PIECES["runtime"](), PYTORCH: ROOT / "scripts" / PYTORCH}


def kernels(planner, folder):
    """Compiles the kernels of the example networks, so that a card with the same version of NVRTC compiles none of them;
    returns their folder."""
    # The kit has no use for it.
    import cubins  # noqa: PLC0415

    try:
        if not cubins.compiled([planner], folder, [CAPABILITY]):
            sys.exit("kernels of the example networks were refused")
    except fetch.Unavailable as reason:
        print(f"the kit has no compiled kernels: {reason}")
    return folder / ARCHITECTURE


def kit(file):
    if file.is_dir():
        sys.exit(f"{file} is a directory, expected the file to write")
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        content = Path(folder) / "content"
        content.mkdir()
        programs = built()
        ahead = kernels(programs["planner"], Path(folder) / KERNELS)
        # The programs share most of their code, so they compress well together.
        with tarfile.open(content / ARCHIVE, "w:xz", preset=6) as archive:
            for name, program in sorted(programs.items()):
                lean = Path(folder) / name
                shutil.copy2(program, lean)
                if name != PYTORCH:
                    subprocess.run(["strip", "--strip-debug", lean], check=True)
                archive.add(lean, name)
            if ahead.is_dir():
                archive.add(ahead, KERNELS)
        for script in SCRIPTS:
            shutil.copy2(ROOT / "scripts" / script, content)
        (content / "__main__.py").write_text("import sys\n\nimport gpu\n\nsys.exit(gpu.main())\n")
        zipapp.create_archive(content, file, interpreter="/usr/bin/env python3")
    size = file.stat().st_size
    if size > BYTES_MAX:
        sys.exit(f"{file} has {size / 2**20:.0f} MiB, expected at most {BYTES_MAX >> 20}")
    print(f"{file}: {size / 2**20:.0f} MiB; run it on a machine with a card by: ./{file.name} run")


def unpacked(into):
    """Unpacks the programs of the kit that this script is in; returns them by name."""
    try:
        # Not by `Path`, which turns ./kit/gpu.py into kit/gpu.py: the loader of ./kit has no such file.
        programs = __loader__.get_data(os.path.join(os.path.dirname(__file__), ARCHIVE))
    except OSError:
        sys.exit("this is no kit: `gpu.py kit FILE` writes one, and `gpu.py test` builds and runs the programs here")
    with tarfile.open(fileobj=io.BytesIO(programs)) as archive:
        archive.extractall(into, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return {file.name: file for file in into.iterdir()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", choices=("test", "kit", "run"))
    parser.add_argument("file", nargs="?", type=Path, help="the kit to write")
    parser.add_argument("--first", action="store_true", help="whether it is right: tests and a few times")
    parser.add_argument("--second", action="store_true", help="how fast it is: networks, loads and stages")
    parser.add_argument("--out", type=Path, help="directory of the report")
    parser.add_argument("--archive", type=Path, help="file of the report with all logs; by default beside the directory")
    parser.add_argument("--seconds", type=int, help="time limit of a call, if not its own")
    parser.add_argument("--quick", action="store_true", help="small networks and short runs")
    given = parser.parse_args()
    if (given.action == "kit") != (given.file is not None):
        parser.error("kit takes the file to write; test and run take no file")
    if given.action == "kit":
        kit(given.file)
        return 0
    names = [name for name in gpu_plan.CALLS if getattr(given, name)] or list(gpu_plan.CALLS)
    with tempfile.TemporaryDirectory() as folder:
        programs = built() if given.action == "test" else unpacked(Path(folder))
        default = ROOT / ".cache" / "gpu-test" if given.action == "test" else Path("gpu-report")
        passed = True
        for name in names:
            # The programs run in other folders.
            out = (given.out or default).resolve() / name
            archive = given.archive or out.with_name(f"{name}.tar.gz")
            passed &= gpu_plan.call(name, programs, out, archive.resolve(), given.quick, given.seconds)
        return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
