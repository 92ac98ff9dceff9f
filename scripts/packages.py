"""Builds the packages for this machine's architecture: a wheel and a Debian package from one release build, each with
the licences of its contents and a bill of materials.

    python3 scripts/packages.py [--only wheel]

They are in .cache/packages. The Debian package's other files are in the folders doc, man and completions there, where
its list of files in Cargo.toml looks for them.
"""

import argparse
import email.utils
import gzip
import os
import shutil
import sys
import zipfile

import bill
import fetch
import package_tools
import pins
from fetch import CACHE, ROOT, Unavailable, run, say
from server import binary

#: The cargo profile of what is installed.
PROFILE = "dist"
PACKAGES = CACHE / "packages"
DOC = PACKAGES / "doc"
MAN = PACKAGES / "man"
COMPLETIONS = PACKAGES / "completions"
#: At the same depth as deploy/python, because pyproject.toml refers to Cargo.toml by a relative path.
STAGE = CACHE / "wheel"
LICENSES = ROOT / "deploy" / "licenses"
#: The file name that each shell expects.
SHELLS = {"bash": "paternoster", "zsh": "_paternoster", "fish": "paternoster.fish"}
#: Same as in Cargo.toml.
MAINTAINER = "Paternoster developers <paternoster@packages.invalid>"
SUMMARIES = {
    "paternoster": "inference server for ONNX models, compatible with Triton",
    "paternoster-serve": "serve the models of a repository over gRPC and HTTP",
}


def third_party():
    """Writes the licences of the program's crates; returns the file."""
    target = DOC / "THIRD-PARTY.txt"
    target.parent.mkdir(parents=True, exist_ok=True)
    run([
        package_tools.cargo_about(), "generate", "--locked", "--fail", "--config", LICENSES / "about.toml",
        "--manifest-path", ROOT / "Cargo.toml", "--output-file", target, LICENSES / "third-party.hbs",
    ])  # fmt: skip
    return target


def staged():
    """Writes what a wheel is built from, with the licences in it; returns the folder."""
    shutil.rmtree(STAGE, ignore_errors=True)
    STAGE.mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "python" / "pyproject.toml", STAGE)
    # Names that maturin recognises as licences.
    shutil.copy(ROOT / "LICENSE", STAGE)
    shutil.copy(third_party(), STAGE / "LICENSE-THIRD-PARTY.txt")
    return STAGE


def wheel():
    """Builds the wheel; returns its path."""
    for old in PACKAGES.glob("*.whl"):
        old.unlink()
    say(f"wheel (cargo build --profile {PROFILE}, minutes where it was not built before)")
    run([package_tools.maturin(), "build", "--profile", PROFILE, "--out", PACKAGES], cwd=staged())
    return built("*.whl")


def built(pattern, folder=PACKAGES):
    """Returns the only package of this pattern."""
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise Unavailable(f"expected one {pattern} in {folder}, got {len(found)}: run 'make packages'")
    return found[0]


def bill_of_materials(built_wheel, machine=None):
    """Returns the bill of materials of a package for a machine with ONNX Runtime's library: the wheel's own bill, with
    the library added."""
    with zipfile.ZipFile(built_wheel) as archive:
        text = archive.read(fetch.one_member(archive, "paternoster-", f"/sboms/{bill.NAME}")).decode()
    _, digest = fetch.build_for(pins.ONNXRUNTIME, machine)
    return bill.with_library(text, pins.ONNXRUNTIME.version, digest)


def man_pages():
    """Writes manual pages from the program's own help."""
    help2man = fetch.debian_program("help2man", "help2man")
    program = binary(PROFILE)
    MAN.mkdir(parents=True, exist_ok=True)
    for page, summary in SUMMARIES.items():
        command = " ".join([str(program), *page.split("-")[1:]])
        text = run(
            [help2man, "--no-info", "--section=1", f"--version-string={version()}", f"--name={summary}", command],
            env={**os.environ, "COLUMNS": "80", "LC_ALL": "C.UTF-8"},
        )
        # Manual pages are found by a single word.
        text = text.replace(f".SH NAME\n{page.replace('-', ' ')} ", f".SH NAME\n{page} ")
        (MAN / f"{page}.1.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def completions():
    """Writes the completions for shells."""
    COMPLETIONS.mkdir(parents=True, exist_ok=True)
    for shell, name in SHELLS.items():
        (COMPLETIONS / name).write_text(run([binary(PROFILE), "completions", shell]))


def version():
    return run([binary(PROFILE), "--version"]).split()[1]


def changelog():
    """Writes the single entry that Debian's tools require, for this version."""
    date = email.utils.formatdate((ROOT / "Cargo.lock").stat().st_mtime)
    head = f"paternoster ({version()}-1) unstable; urgency=medium"
    (PACKAGES / "changelog").write_text(f"{head}\n\n  * Version {version()}.\n\n -- {MAINTAINER}  {date}\n")


def deb():
    """Builds the Debian package from the wheel's binary; returns its path."""
    built_wheel = wheel()
    library = fetch.runtime()
    (DOC / bill.NAME).write_text(bill_of_materials(built_wheel))
    for text in fetch.RUNTIME_NOTICES:
        target = DOC / "onnxruntime" / text
        target.parent.mkdir(exist_ok=True)
        shutil.copy(library.parent / text, target)
    man_pages()
    completions()
    changelog()
    for old in PACKAGES.glob("*.deb"):
        old.unlink()
    # dpkg-shlibdeps derives the package's dependencies from the libraries that the binary is linked with.
    fetch.debian_program("dpkg-shlibdeps", "dpkg-dev")
    say("Debian package")
    run([package_tools.cargo_deb(), "deb", "--profile", PROFILE, "--no-build", "--no-strip", "--locked", "--output", PACKAGES], cwd=ROOT)
    return built("*.deb")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=["wheel"], help="build only the wheel")
    only = parser.parse_args().only
    PACKAGES.mkdir(parents=True, exist_ok=True)
    try:
        wheel() if only == "wheel" else deb()
    except Unavailable as reason:
        say(f"cannot make the packages: {reason}")
        return 1
    for package in sorted([*PACKAGES.glob("*.whl"), *PACKAGES.glob("*.deb")]):
        say(f"{package.relative_to(ROOT)}  {package.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
