"""The packages, as far as can be checked without building them: their metadata, the service, the lists of licences.
`make package-test` installs them."""

import re
import shlex
import subprocess

import fetch
import package_tools
import pins
import pytest
from conftest import ROOT, fetched
from manifests import DEPLOY

DEBIAN = DEPLOY / "debian"
LICENSES = DEPLOY / "licenses"


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """Returns the metadata that the wheel will have."""
    maturin = fetched(package_tools.maturin)
    folder = tmp_path_factory.mktemp("metadata")
    command = [maturin, "pep517", "write-dist-info", "--metadata-directory", folder]
    done = subprocess.run(command, cwd=DEPLOY / "python", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("paternoster-*.dist-info/METADATA")
    return file.read_text()


def test_the_wheel_has_the_crates_version_and_asks_for_a_runtime_that_the_server_takes(metadata):
    (version,) = re.findall(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert f"\nVersion: {version}\n" in metadata
    (oldest,) = re.findall(r"^Requires-Dist: onnxruntime>=1\.(\d+),<2$", metadata, re.MULTILINE)
    assert pins.ONNXRUNTIME_OLDEST.version == f"1.{oldest}.0", "the oldest that pip may choose is tested"
    (interface,) = re.findall(r'"api-(\d+)"', (ROOT / "Cargo.toml").read_text())
    assert int(oldest) >= int(interface), "the server refuses a library without the interface that it asks for"


@pytest.fixture
def unit(tmp_path):
    """Returns the service, with a program that exists on machines that have not installed it."""
    text = (DEBIAN / "service").read_text()
    assert "ExecStart=/usr/bin/paternoster serve " in text
    file = tmp_path / "paternoster.service"
    file.write_text(text.replace("/usr/bin/paternoster", "/bin/true").replace("Documentation=man:", "#"))
    return file


def analyze(*arguments):
    program = fetched(lambda: fetch.debian_program("systemd-analyze", "systemd"))
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_systemd_understands_every_line_of_the_service(unit):
    assert analyze("verify", unit) == (0, "")
    unit.write_text(unit.read_text() + "[Service]\nProtectSistem=strict\n")
    _, said = analyze("verify", unit)
    assert "ProtectSistem" in said


def test_the_service_is_exposed_to_little(unit):
    """systemd's own score, from 0 to 10: 1.6 here, 9.6 without any of the settings."""
    confined, said = analyze("security", "--offline=true", "--threshold=20", unit)
    assert confined == 0, said
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert analyze("security", "--offline=true", "--threshold=20", unit)[0] != 0


def test_the_service_waits_as_long_as_the_server_may_take_to_end(program):
    help_of_serve = subprocess.run([program, "serve", "--help"], capture_output=True, text=True, timeout=60).stdout
    defaults = re.findall(r"--(?:exit-timeout|drain-delay)-secs <SECONDS>.*?\[default: (\d+)\]", help_of_serve, re.DOTALL)
    assert len(defaults) == 2
    (waits,) = re.findall(r"^TimeoutStopSec=(\d+)$", (DEBIAN / "service").read_text(), re.MULTILINE)
    # 1 s for the last scrape and 5 s for running programs.
    assert int(waits) >= sum(map(int, defaults)) + 6


def test_the_server_takes_the_arguments_that_are_installed(program):
    (given,) = [line for line in (DEBIAN / "default").read_text().splitlines() if not line.startswith("#")]
    arguments = shlex.split(given)[0].removeprefix("PATERNOSTER_ARGS=").split()
    done = subprocess.run([program, "serve", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "cannot read the model repository /var/lib/paternoster/models" in done.stderr


def test_what_is_accepted_in_packages_is_what_is_allowed_in_the_source():
    def listed(name, key):
        (licences,) = re.findall(rf"^{key} = \[\n(.*?)^\]", (LICENSES / name).read_text(), re.MULTILINE | re.DOTALL)
        return re.findall(r'"([^"]+)"', licences)

    allowed = listed("deny.toml", "allow")
    assert allowed == listed("about.toml", "accepted") and "Apache-2.0" in allowed
