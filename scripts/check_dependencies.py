"""Finds dependencies that no source of a crate names, as cargo-machete does, without compiling it.

    python scripts/check_dependencies.py

Each is printed with its Cargo.toml; the exit code is 1 if there is any. What only generated code or features need is
listed in the crate's `package.metadata.cargo-machete`, which cargo-machete reads as well.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Names in the source, where they are not those of the packages.
NAMES = {"rustls-webpki": "webpki"}


def unused(manifest):
    """Yields the dependencies of a crate that it does not name."""
    crate, tables = manifest.parent, tomllib.loads(manifest.read_text(encoding="utf-8"))
    kept = tables.get("package", {}).get("metadata", {}).get("cargo-machete", {}).get("ignored", [])
    folders = ("src", "tests", "benches", "clients") + tuple(
        path.name for path in crate.iterdir() if path.name.startswith("fake_")
    )
    texts = {
        "dependencies": lambda crate: (crate / "src").rglob("*.rs"),
        "dev-dependencies": lambda crate: (file for name in folders for file in (crate / name).rglob("*.rs")),
        "build-dependencies": lambda crate: crate.glob("build.rs"),
    }
    for section, own in texts.items():
        text = "\n".join(file.read_text(encoding="utf-8") for file in own(crate))
        for package in tables.get(section, {}):
            name = NAMES.get(package, package.replace("-", "_"))
            if package not in kept and not re.search(rf"\b{name}\b", text):
                yield package


def main():
    """Prints unused dependencies; returns how many there are."""
    count = 0
    for manifest in [ROOT / "Cargo.toml", *sorted(ROOT.glob("crates/*/Cargo.toml"))]:
        for package in unused(manifest):
            print(f"{manifest.relative_to(ROOT)}: nothing uses {package}")
            count += 1
    return count


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
