"""Makes everything that a release has, in target/release-VERSION: the wheel, the Debian package and its files as a tar
archive for other distributions, the image, the Helm chart, the bill of materials, and SHA256SUMS of them all.

    .cache/tests/bin/python scripts/release.py VERSION [--packages FOLDER] [options of image_archive.py]

The version must be that of the crates, the image and the chart. Started by `make release`. Needs root, as
image_archive.py does.
"""

import argparse
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import dockerfile
import fetch
import packages
from contained import ARCHITECTURES
from fetch import ROOT, Unavailable, run, say
from image_archive import NAMES, commit_time
from image_tree import DOCKER, entries, packed

CHART = ROOT / "deploy" / "helm" / "paternoster"


def versions():
    """Returns the version that each part of a release has."""
    *_, final = dockerfile.stages((DOCKER / "Dockerfile").read_text())
    workspace = (ROOT / "Cargo.toml").read_text().split("[workspace.package]")[1]
    chart = dict(re.findall(r'^(\w+): "?([^"\n]+)', (CHART / "Chart.yaml").read_text(), re.MULTILINE))
    return {
        "Cargo.toml": re.search(r'^version = "(.+)"', workspace, re.MULTILINE)[1],
        "the image": dockerfile.labels(final)[f"{NAMES}.version"],
        "the chart": chart["version"],
        "the chart's appVersion": chart["appVersion"],
    }


def script(name, *arguments):
    if subprocess.run([sys.executable, ROOT / "scripts" / name, *arguments]).returncode != 0:
        raise Unavailable(f"{name} failed")


def files_of(package, target):
    """Packs the files of the Debian package, of which the program finds its library wherever they are."""
    with tempfile.TemporaryDirectory() as scratch:
        run(["dpkg", "-x", package, Path(scratch, "package")])
        folder = Path(scratch, "archive", target.name.removesuffix(".tar.gz"))
        folder.parent.mkdir()
        Path(scratch, "package", "usr").rename(folder)
        packed(folder.parent, entries(folder.parent), target, commit_time())


def make(out, version, built, options):
    wheel = packages.built(f"paternoster-{version}-*.whl", built)
    package = packages.built(f"paternoster_{version}-*.deb", built)
    for file in (wheel, package):
        shutil.copy(file, out)
    files_of(package, out / f"paternoster-{version}-linux-{ARCHITECTURES[platform.machine()]}.tar.gz")
    script("image_archive.py", "--wheel", wheel, "--out", out / f"paternoster-{version}.oci.tar", *options)
    run([fetch.helm(), "package", CHART, "--destination", out])
    (out / f"paternoster-{version}.cyclonedx.json").write_text(packages.bill_of_materials(wheel))
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(sums))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("version")
    parser.add_argument("--packages", type=Path, metavar="FOLDER", help="has the packages; by default they are built")
    given, options = parser.parse_known_args()
    try:
        if wrong := {name: found for name, found in versions().items() if found != given.version}:
            raise Unavailable(", ".join(f"{name} has version {found}" for name, found in wrong.items()))
        if not given.packages:
            script("packages.py")
        out = ROOT / "target" / f"release-{given.version}"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        make(out, given.version, given.packages or packages.PACKAGES, options)
    except Unavailable as reason:
        say(f"cannot make release {given.version}: {reason}")
        return 1
    for file in sorted(out.iterdir()):
        say(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
