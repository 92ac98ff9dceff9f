"""Installs the packages in .cache/packages into empty places and serves from there: the wheel into an empty virtual
environment, the Debian package into a minimal Debian, and the image's tree. Ends with a summary of what ran, what did
not, and why. Started by `make package-test`.

    .cache/tests/bin/python scripts/package_test.py [--only wheel|deb|image]
"""

import argparse
import configparser
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import fetch
import package_checks
from contained import Contained, debian, enter_mount_namespace
from fetch import ROOT, Unavailable, run, say
from image_tree import LEFT_OUT, inside
from package_checks import Wrong
from packages import built
from server import Server

#: The wheel's dependencies from the registry, by hash.
NEEDS = ROOT / "tests" / "wheel-requirements.txt"
#: A user id of those that systemd assigns to services without a user.
DYNAMIC_USER = "61184:61184"


class Installed(Server):
    """A server that must find everything by itself: it is given no path, and of the environment only its home."""

    def __init__(self, repository, home, **options):
        super().__init__(repository, **options)
        self.home = home

    def command(self):
        clean = ["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", f"HOME={self.home}"]
        return [*clean, self.program, "serve", "--model-repository", self.repository, *self.where()]


def wheel(scratch):
    package = built("*.whl")
    if sys.version_info < (3, 11):
        raise Unavailable("onnxruntime's newest pinned wheel needs Python 3.11 or newer")
    needed, environment = scratch / "wheels", scratch / "venv"
    # Downloaded by hash, then installed without a registry, so that pip has only the dependencies that the wheel
    # declares.
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "download", "--require-hashes", "--only-binary=:all:", "--no-deps", "-r", NEEDS, "--dest", needed])
    run([sys.executable, "-m", "venv", environment])
    pip[0] = environment / "bin" / "python"
    run([*pip, "install", "--no-index", "--find-links", needed, package])
    run([*pip, "check"])
    program = environment / "bin" / "paternoster"
    models = package_checks.identity(program, scratch / "models")
    home = scratch / "home"
    home.mkdir()
    with Installed(models, home, program=program, log=scratch / "wheel.log") as server:
        package_checks.infer(server)
        loaded = {line.split()[-1] for line in Path(f"/proc/{server.pid}/maps").read_text().splitlines()}
        if not any(one.startswith(f"{environment}/lib/") and "libonnxruntime.so" in one for one in loaded):
            raise Wrong("the library of the environment's onnxruntime is not the one that is loaded")
    # ONNX Runtime stores a device identifier there if its telemetry is not disabled.
    if left := [str(one.relative_to(home)) for one in home.rglob("*") if "onnxruntime" in str(one)]:
        raise Wrong(f"ONNX Runtime has written {left} into the user's home")
    run([*pip, "uninstall", "--yes", "paternoster"])
    if program.exists():
        raise Wrong(f"{program} still exists after the wheel was uninstalled")
    return f"{package.name}, {megabytes(package)}"


def deb(scratch):
    # main has started the script again in such a namespace, if possible; otherwise this raises the reason.
    enter_mount_namespace()
    package = built("*.deb")
    lint(package)
    root = scratch / "debian"
    debian("bookworm", root)
    before = files(root)
    install(root, package)
    conffiles = run(["chroot", root, "dpkg-query", "--show", "--showformat=${Conffiles}", "paternoster"])
    if "/etc/default/paternoster" not in conffiles:
        raise Wrong(f"the package's configuration files are {conffiles!r}, expected /etc/default/paternoster")
    keeps_settings(root, package)
    words, variables = service(root)
    models = package_checks.identity(inside(root, "/usr/bin/paternoster"), scratch / "models")
    mounts = {"/tmp": "tmpfs", "/var/cache/paternoster": "tmpfs", "/var/lib/paternoster/models": models}
    # systemd would create the cache folder.
    inside(root, "/var/cache/paternoster").mkdir()
    with Contained(root, DYNAMIC_USER, words, variables, mounts, scratch / "deb.log") as server:
        package_checks.infer(server)
        package_checks.is_confined(server, DYNAMIC_USER.split(":")[0])
    inside(root, "/var/cache/paternoster").rmdir()
    run(["chroot", root, "dpkg", "--purge", "paternoster"])
    left = files(root) - before
    if left:
        raise Wrong(f"purging the package leaves {sorted(left)}")
    return f"{package.name}, {megabytes(package)}"


def install(root, package):
    """Installs a package. No service manager runs there, so its scripts must work without."""
    shutil.copy(package, root / "package.deb")
    said = run(["chroot", root, "dpkg", "--install", "/package.deb"])
    (root / "package.deb").unlink()
    if "warning" in said.lower():
        raise Wrong(f"dpkg warns: {said}")


def lint(package):
    """Checks a package against Debian's policy."""
    lintian = fetch.debian_program("lintian", "lintian")
    done = subprocess.run([lintian, "--allow-root", package], capture_output=True, text=True)
    if done.stdout:
        raise Wrong(f"lintian says: {done.stdout.strip()}")
    if done.returncode != 0:
        raise Wrong(f"lintian ended with {done.returncode}: {done.stderr.strip()}")


def keeps_settings(root, package):
    """Checks that installing the package again keeps an operator's changes."""
    settings = inside(root, "/etc/default/paternoster")
    as_installed = settings.read_text()
    settings.write_text(as_installed + "# changed\n")
    install(root, package)
    if settings.read_text() != as_installed + "# changed\n":
        raise Wrong(f"installing the package again leaves {settings.read_text()!r}, expected what was changed")
    settings.write_text(as_installed)


def service(root):
    """Returns the command and the environment with which the installed unit starts the server."""
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    unit.optionxform = str
    installed = run(["chroot", root, "dpkg-query", "--listfiles", "paternoster"]).split()
    (file,) = [one for one in installed if one.endswith("/systemd/system/paternoster.service")]
    unit.read(inside(root, file))
    settings = unit["Service"]
    lines = inside(root, settings["EnvironmentFile"].removeprefix("-")).read_text().splitlines()
    given = dict(shlex.split(line)[0].split("=", 1) for line in lines if line and not line.startswith("#"))
    words = []
    for word in shlex.split(settings["ExecStart"]):
        words += given[word[1:]].split() if word.startswith("$") else [word]
    return words, dict([settings["Environment"].split("=", 1)])


def files(root):
    """Returns the files of a root, except dpkg's own."""
    there = run(["find", root, "-xdev", "-not", "-type", "d", "-printf", "%P\n"]).splitlines()
    folders = run(["find", root, "-xdev", "-type", "d", "-printf", "%P\n"]).splitlines()
    return {one for one in [*there, *folders] if not one.startswith(("var/lib/dpkg", "var/log", "var/cache/ldconfig"))}


def image(scratch):
    done = subprocess.run([sys.executable, ROOT / "scripts" / "image_tree.py"], stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    *_, line = done.stdout.splitlines() or ["no result line"]
    line = line.removeprefix("[fetch] ")
    if done.returncode == LEFT_OUT:
        raise Unavailable(line)
    if done.returncode != 0:
        raise Wrong(line)
    return line


def megabytes(file):
    return f"{file.stat().st_size / 1e6:.1f} MB"


TESTS = {"wheel": wheel, "deb": deb, "image": image}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=[*TESTS])
    only = parser.parse_args().only
    with contextlib.suppress(Unavailable):
        enter_mount_namespace()
    outcomes = []
    for name in [only] if only else TESTS:
        say(f"{name}: into an empty place")
        try:
            with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
                outcomes.append((name, "ok", TESTS[name](Path(folder))))
        except Unavailable as reason:
            outcomes.append((name, "left out", str(reason)))
        except Exception as failure:
            outcomes.append((name, "FAILED", f"{type(failure).__name__}: {failure}"))
    print("\nsummary")
    for name, outcome, line in outcomes:
        print(f"  {name:<6} {outcome:<9} {line}")
    failed = [name for name, outcome, _ in outcomes if outcome == "FAILED"]
    return 1 if failed or (os.environ.get("CI") and any(outcome != "ok" for _, outcome, _ in outcomes)) else 0


if __name__ == "__main__":
    sys.exit(main())
