"""Builds the wheel and the image for AArch64 and serves from them under user-mode emulation.

    .cache/tests/bin/python scripts/aarch64.py [--only wheel|image]

Started by `make aarch64` on x86-64 Debian. Adds Rust's target with rustup and, as root, installs a cross compiler and
QEMU. The binary is compiled as for the demonstration, without optimisation: the check is whether it runs.

From the wheel, with ONNX Runtime 1.19, clients ask for an identity over both protocols, for recurrent cells, whose
answers are compared with a reference in NumPy, and for vectors of texts, compared with those of the same model on this
machine. The image is assembled by image_tree.py, with the wheel's binary in place of one compiled in it, and is checked
as that of this machine is. Servers listen on loopback and end with the script.
"""

import argparse
import json
import os
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

import fetch
import image_tree
import package_checks
import package_tools
import packages
from contained import EMULATOR, enter_mount_namespace, interpreted
from fetch import CACHE, ROOT, Unavailable, run, say
from server import Server, binary

sys.path.insert(0, str(ROOT / "tests" / "python"))

import cells_reference  # noqa: E402
import numpy as np  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
from clients import tensor  # noqa: E402

TARGET = "aarch64-unknown-linux-gnu"
MACHINE = "aarch64"
#: Programs and the Debian packages that have them. The compiler brings the C library and that of C++.
PROGRAMS = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", EMULATOR: "qemu-user-static"}
#: A processor of today's clouds: what newer ones have, QEMU emulates in part.
PROCESSOR = "neoverse-n1"
#: Where Debian's cross packages have the libraries of AArch64.
LIBRARIES = Path("/usr/aarch64-linux-gnu")
OUT = CACHE / "packages-aarch64"
TEXTS = ["A cat sits on the mat.", "Shares rose for the third day in a row.", ""]


def toolchain():
    """Installs what the build and the emulation need, where it is missing and that is possible."""
    if os.uname().machine != "x86_64":
        raise Unavailable(f"it emulates AArch64 on x86-64, this is {os.uname().machine}")
    for program, package in PROGRAMS.items():
        fetch.debian_program(program, package)
    run(["rustup", "target", "add", TARGET])


def wheel():
    """Builds the wheel; returns the folder with its binary."""
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.whl"):
        old.unlink()
    compiler = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER"
    environment = {**os.environ, compiler: "aarch64-linux-gnu-gcc"}
    say("wheel for AArch64 (cargo build, minutes)")
    command = [package_tools.maturin(), "build", "--profile", "dev", "--target", TARGET, "--out", OUT]
    run(command, cwd=packages.staged(), env=environment)
    (built,) = OUT.glob("*.whl")
    say(f"{built.relative_to(ROOT)}  {built.stat().st_size / 1e6:.1f} MB")
    folder = OUT / "bin"
    with zipfile.ZipFile(built) as archive:
        member = fetch.one_member(archive, "paternoster-", "/scripts/paternoster")
        fetch.take(archive, member, folder / "paternoster").chmod(0o755)
    return folder


class Emulated(Server):
    """A server for AArch64."""

    def command(self):
        return ["/usr/bin/env", *emulation(), *super().command()]


def emulation():
    return [f"QEMU_LD_PREFIX={LIBRARIES}", f"QEMU_CPU={PROCESSOR}", EMULATOR]


def answered_cells(server, repository):
    reference, rng = cells_reference.load(repository / "lstm"), np.random.default_rng(1)
    with triton.InferenceServerClient(server.grpc) as client:
        for _ in range(5):
            request = reference.request(rng)
            inputs = [tensor(name, array[np.newaxis]) for name, array in request.items()]
            answer = client.infer("lstm", inputs)
            for name, expected in reference.answer(request).items():
                found = answer.as_numpy(name)[0]
                if not np.allclose(found, expected, atol=1e-4):
                    raise package_checks.Wrong(f"lstm answered {name} {found}, expected {expected}")


def vectors(server):
    body = json.dumps({"model": "sentences", "input": TEXTS}).encode()
    request = urllib.request.Request(f"http://{server.http}/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return np.array([item["embedding"] for item in json.load(answer)["data"]])


def check(program, scratch):
    """Serves on both machines, and compares."""
    here, models = Path(os.environ.get("PATERNOSTER") or binary()), scratch / "models"
    if not here.exists():
        raise Unavailable(f"there is no {here}: run 'make build'")
    for choice in (("--only", "identity,lstm", "--quarter"), ("--only", "sentences,minilm", "--minilm", fetch.minilm())):
        run([here, "models", "--out", models, *choice])
    told = run(["/usr/bin/env", *emulation(), program, "--version"])
    # Newer ones read the caches of the processor from /sys, which QEMU leaves as this machine's, and end there.
    library = fetch.oldest_runtime(machine=MACHINE)
    with Emulated(models, program=program, library=library, log=OUT / "server.log") as server:
        package_checks.infer(server)
        answered_cells(server, models)
        found = vectors(server)
    with Server(models, program=here) as server:
        expected = vectors(server)
    deviation = np.abs(found - expected).max()
    if deviation > 1e-4:
        raise package_checks.Wrong(f"vectors differ by {deviation:.1e}, expected at most 1e-4")
    return f"{told.splitlines()[0]} on AArch64: identity, cells and texts answered; vectors differ by {deviation:.1e} at most"


def image(program):
    """Assembles the image with this program, and serves from it."""
    if not program.exists():
        raise Unavailable(f"there is no {program.relative_to(ROOT)}: run without --only, or with --only wheel")
    with interpreted(MACHINE), image_tree.scratch_folder() as scratch:
        roots = {image_tree.COMPILED: image_tree.compiled(scratch / "program", program)}
        build = image_tree.Build(scratch, MACHINE, roots, VARIANT="cpu")
        root = build.root(None)
        line = image_tree.described(build, root, scratch / "image.tar.gz")
        image_tree.check(build, root, scratch, os.environ.get("PATERNOSTER") or binary(), QEMU_CPU=PROCESSOR)
        return line


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=["wheel", "image"], help="the image is made of the binary that is there")
    only = parser.parse_args().only
    try:
        enter_mount_namespace()
        toolchain()
        program = OUT / "bin" / "paternoster"
        if only != "image":
            program = wheel() / "paternoster"
            with tempfile.TemporaryDirectory() as scratch:
                say(check(program, Path(scratch)))
        if only != "wheel":
            say(image(program))
    except (Unavailable, package_checks.Wrong) as reason:
        say(f"AArch64: {reason}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
