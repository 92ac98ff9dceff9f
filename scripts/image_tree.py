"""Assembles the contents of the image for CPUs, by the Dockerfile's own instructions but without a container builder,
and runs the server in it as a container would.

    .cache/tests/bin/python scripts/image_tree.py [--keep FILE.tar.gz]

Each stage runs in its own root. If a stage begins with a builder's image (rust, python), this machine takes its place,
provided that it has the same Debian and the same version of the program. The final stage begins with Debian itself.
Needs root.
"""

import argparse
import contextlib
import gzip
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import bill
import dockerfile
import package_checks
import pins
from contained import PATH, Contained, debian, enter_mount_namespace
from fetch import CACHE, ROOT, Unavailable, build_for, run, say
from server import target_directory

DOCKER = ROOT / "deploy" / "docker"
#: Names of Debian's versions.
SUITES = {"12": "bookworm", "13": "trixie"}
IMAGE = re.compile(r"(?:.*/)?(?P<name>[\w-]+):(?P<version>[\d.]+)(?P<rest>.*)")
#: Commands that print the version of the program that a builder's image is named after.
TELLS_VERSION = {"rust": ["rustc", "--version"], "python": ["python", "--version"]}
#: The stage that compiles the program, and where it leaves it.
COMPILED, BINARY = "build", "/out/usr/local/bin/paternoster"
#: The exit status on machines that cannot run this.
LEFT_OUT = 77


def stand_in(image):
    """Compares this machine with the builder's image that it replaces: its Debian, and the program's version."""
    tag = IMAGE.fullmatch(image)
    if tag is None or tag["name"] not in TELLS_VERSION:
        raise Unavailable(f"this machine cannot stand in for {image}")
    here = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    suite = here.get("VERSION_CODENAME", "unknown")
    if not tag["rest"].endswith(suite):
        raise Unavailable(f"this machine is {suite} and cannot stand in for {image}")
    command = TELLS_VERSION[tag["name"]]
    if shutil.which(command[0]) is None:
        raise Unavailable(f"there is no {command[0]} to stand in for {image}")
    said = run(command)
    version = re.search(r"\d+\.\d+", said).group()
    if not tag["version"].startswith(f"{version}."):
        raise Unavailable(f"{said.strip()} cannot stand in for {image}")


class Build:
    """A build of one target of the Dockerfile in a scratch folder, which must be a separate file system.

    It is for this machine. For another `machine`, `binary` is the program that the stage of that name would compile,
    and programs of Debian for that machine must be able to run here.
    """

    def __init__(self, scratch, machine=None, binary=None, **arguments):
        self.scratch = scratch
        self.machine = machine or platform.machine()
        self.binary = binary
        self.stages = dockerfile.stages((DOCKER / "Dockerfile").read_text(), **arguments)
        self.by_name = {stage.name: stage for stage in self.stages if stage.name}
        self.roots = {}
        self.context = scratch / "context"
        self.copy_context()

    def copy_context(self):
        """Copies the build context: the files that the ignore file does not exclude."""
        ignored, *kept = (DOCKER / "Dockerfile.dockerignore").read_text().split()
        if ignored != "*" or not all(one.startswith("!") for one in kept):
            raise package_checks.Wrong("Dockerfile.dockerignore: expected '*', then what is not ignored")
        for one in (Path(one[1:]) for one in kept):
            target = self.context / one
            target.parent.mkdir(parents=True, exist_ok=True)
            # File times are kept, because cargo compares them.
            run(["cp", "-a", ROOT / one, target])

    def root(self, stage):
        """Returns the root of a stage, after its instructions."""
        if stage not in self.roots:
            folder = self.scratch / f"stage-{len(self.roots)}"
            self.roots[stage] = folder
            image, stages = self.lineage(stage)
            if image.startswith("debian:"):
                debian(SUITES[IMAGE.fullmatch(image)["version"].split(".")[0]], folder, self.machine)
            else:
                stand_in(image)
                self.overlay(folder)
            if self.binary and stage == COMPILED:
                target = inside(folder, BINARY)
                target.parent.mkdir(parents=True)
                run(["cp", self.binary, target])
                stages = []
            for one in stages:
                self.carry_out(one, folder)
        return self.roots[stage]

    def lineage(self, name):
        """Returns the base image of a stage (None: the last one), and the stages from there to it."""
        stages = [self.by_name[name] if name else self.stages[-1]]
        while stages[0].base in self.by_name:
            stages.insert(0, self.by_name[stages[0].base])
        return stages[0].base, stages

    def overlay(self, folder):
        """Mounts this machine's root, with changes in a separate layer."""
        layers = {name: self.scratch / f"{folder.name}-{name}" for name in ("upper", "work")}
        for layer in [folder, *layers.values()]:
            layer.mkdir()
        run(["mount", "-t", "overlay", "-o", f"lowerdir=/,upperdir={layers['upper']},workdir={layers['work']}",
             "overlay", folder])  # fmt: skip
        for shared in ("dev", "proc"):
            run(["mount", "--rbind", f"/{shared}", folder / shared])

    def carry_out(self, stage, folder):
        work = "/"
        for name, flags, arguments in stage.instructions:
            flags_of = {flag: [value for one, value in flags if one == flag] for flag, _ in flags}
            if name == "WORKDIR":
                work = arguments
                inside(folder, work).mkdir(parents=True, exist_ok=True)
            elif name == "COPY":
                *sources, target = arguments.split()
                given = self.root(flags_of["from"][0]) if "from" in flags_of else self.context
                self.copy([inside(given, source) for source in sources], folder, work, target, flags_of.get("chmod"))
            elif name == "RUN":
                self.execute(folder, work, flags_of.get("mount", []), arguments)
            elif name not in ("ENV", "LABEL", "EXPOSE", "USER", "HEALTHCHECK", "ENTRYPOINT", "CMD"):
                raise package_checks.Wrong(f"Dockerfile: {name} is not known here")

    def copy(self, sources, folder, work, target, mode):
        into = inside(folder, os.path.join(work, target))
        for source in sources:
            if source.is_dir():
                into.mkdir(parents=True, exist_ok=True)
                run(["cp", "-a", f"{source}/.", into])
            else:
                place = into / source.name if target.endswith("/") else into
                place.parent.mkdir(parents=True, exist_ok=True)
                run(["cp", "-a", "--no-preserve=ownership", source, place])
                if mode:
                    place.chmod(int(mode[0], 8))

    def execute(self, folder, work, mounts, command):
        """Runs a command as RUN does. The cache of the program's target folder is that of this checkout, so that crates
        are not compiled twice; other caches are kept in .cache/image."""
        bound = []
        for mount in mounts:
            target = dict(part.split("=", 1) for part in mount.split(","))["target"]
            kept = CACHE / "image" / target.strip("/").replace("/", "-")
            cache = target_directory() if target == "/src/target" else kept
            cache.mkdir(parents=True, exist_ok=True)
            inside(folder, target).mkdir(parents=True, exist_ok=True)
            run(["mount", "--bind", cache, inside(folder, target)])
            bound.append(inside(folder, target))
        say(f"RUN {' '.join(command.split())[:100]}…")
        environment = {**os.environ, "PATH": f"{os.environ['PATH']}:{PATH}"}
        environment.pop("CARGO_TARGET_DIR", None)
        if self.machine != platform.machine():
            # pip downloads wheels for the machine on which it runs, unless it is told.
            environment["PIP_PLATFORM"] = build_for(pins.ONNXRUNTIME, self.machine)[0]
        run(["chroot", folder, "sh", "-ec", f"cd {shlex.quote(work)}; {command}"], env=environment)
        for one in bound:
            run(["umount", one])


@contextlib.contextmanager
def scratch_folder():
    """Yields a folder in memory, because an overlay's changes must lie outside of the root that it covers. At the end
    it is unmounted with everything mounted in it. No file in it is ever deleted one by one, because /dev may be mounted
    there."""
    folder = Path(tempfile.mkdtemp(prefix="image-"))
    run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", folder])
    try:
        yield folder
    finally:
        run(["umount", "--lazy", folder])
        folder.rmdir()


def inside(root, path):
    """Returns a path in a root."""
    return root / path.lstrip("/")


def container(build, root, models, log, **variables):
    """Returns the server of an image, run as `docker run --read-only` would with the folders that docs/deploy.md
    names, and with these variables."""
    final = build.stages[-1]
    words = json.loads(dockerfile.last(final, "ENTRYPOINT")) + json.loads(dockerfile.last(final, "CMD"))
    mounts = {"/tmp": "tmpfs", "/var/cache/paternoster": "tmpfs", "/models": models}
    variables = {**dockerfile.environment(final), **variables}
    return Contained(root, dockerfile.last(final, "USER"), words, variables, mounts, log)


def check_bill(root, machine):
    """Compares the image's bill of materials with the locked crates and the pinned library."""
    made = json.loads((inside(root, "/usr/share/doc/paternoster") / bill.NAME).read_text())
    found = {(one["name"], one["version"]) for one in made["components"]}
    locked = set(re.findall(r'^name = "(.+)"\nversion = "(.+)"$', (ROOT / "Cargo.lock").read_text(), re.MULTILINE))
    others = sorted(found - locked)
    if others != [(bill.LIBRARY, pins.ONNXRUNTIME.version)] or len(found) < 100:
        seen = f"{len(found)} components, of which Cargo.lock does not have {others}"
        raise package_checks.Wrong(f"the bill has {seen}; expected those of Cargo.lock and the library")
    _, digest = build_for(pins.ONNXRUNTIME, machine)
    (library,) = [one for one in made["components"] if one["name"] == bill.LIBRARY]
    hashes = [one["content"] for one in library["hashes"]]
    if hashes != [digest]:
        raise package_checks.Wrong(f"the bill has {hashes} for the library's wheel, expected {digest}")


def check(build, root, scratch, program=None, **variables):
    """Serves models in the image; raises if anything is wrong. `program` writes the models, by default the image's."""
    check_bill(root, build.machine)
    program = program or inside(root, "/usr/local/bin/paternoster")
    models = package_checks.identity(program, scratch / "models")
    with container(build, root, models, scratch / "server.log", **variables) as server:
        package_checks.infer(server)
        package_checks.is_confined(server, "10001")
        host, port = server.http.split(":")
        for path, expected in (("/v2/health/ready", 0), ("/v2/nothing", 1)):
            status, said = server.inside("healthcheck", host, port, path)
            if status != expected:
                raise package_checks.Wrong(f"healthcheck {path} ended with {status}, expected {expected}: {said}")


def packed(root, target):
    """Packs a root like a layer, as a gzipped tar; returns its size."""
    tar = ["tar", "--one-file-system", "--sort=name", "--numeric-owner", "--mtime=@0", "-C", root, "-c", "."]
    with gzip.open(target, "wb", compresslevel=6) as sink, subprocess.Popen(tar, stdout=subprocess.PIPE) as packing:
        shutil.copyfileobj(packing.stdout, sink)
    if packing.returncode != 0:
        raise package_checks.Wrong(f"tar ended with {packing.returncode}")
    return target.stat().st_size


def described(build, root, target):
    """Packs the root of the final stage into a file; returns a line about it."""
    size = packed(root, target)
    unpacked = int(run(["du", "-sx", "--block-size=1", root]).split()[0])
    image, _ = build.lineage(None)
    version = inside(root, "/etc/debian_version").read_text().strip()
    return f"image: {size / 1e6:.1f} MB packed, {unpacked / 1e6:.0f} MB unpacked, on Debian {version} ({image})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keep", type=Path, metavar="FILE.tar.gz", help="write the packed root to this file")
    keep = parser.parse_args().keep
    try:
        enter_mount_namespace()
        with scratch_folder() as scratch:
            build = Build(scratch, VARIANT="cpu")
            root = build.root(None)
            line = described(build, root, scratch / "image.tar.gz")
            check(build, root, scratch)
            say(line)
            if keep:
                shutil.copy(scratch / "image.tar.gz", keep)
    except Unavailable as reason:
        say(f"without the image: {reason}")
        return LEFT_OUT
    except package_checks.Wrong as seen:
        say(f"the image is wrong: {seen}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
