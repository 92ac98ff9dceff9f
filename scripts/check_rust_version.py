"""Checks that Cargo.toml's rust-version is the newest that any crate in the lock file requires, and that no image
builds with an older Rust. Part of `make lint`.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"


def number(version):
    """Returns a version as numbers: "1.95" and "1.95.0" are equal."""
    parts = [int(part) for part in version.split(".")]
    return tuple(parts + [0] * (3 - len(parts)))


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    packages = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    (own,) = {package["rust_version"] for package in packages if package["source"] is None}
    asked = [package for package in packages if package["source"] and package["rust_version"]]
    newest = max(asked, key=lambda package: number(package["rust_version"]))
    faults = []
    if number(own) != number(newest["rust_version"]):
        name, version = newest["name"], newest["rust_version"]
        faults.append(f"Cargo.toml: rust-version is {own}, expected {version}, as {name} {newest['version']} asks for")
    (image,) = re.findall(r"^ARG RUST_IMAGE=rust:([\d.]+)-", DOCKERFILE.read_text(), re.MULTILINE)
    if number(image) < number(own):
        faults.append(f"{DOCKERFILE.relative_to(ROOT)}: Rust {image} is older than Cargo.toml's rust-version, {own}")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
