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
import hashlib
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
#: The stage that compiles the program.
COMPILED = "build"
#: What a container's runtime provides, and layers therefore do not have.
OF_RUNTIMES = ("dev/", "proc/", "run/", "sys/", "tmp/", "etc/hostname", "etc/hosts", "etc/resolv.conf")
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

    It is for this machine. For another `machine`, programs of Debian for that machine must be able to run here.
    `roots` are stages that are already complete, by name.
    """

    def __init__(self, scratch, machine=None, roots=None, **arguments):
        self.scratch = scratch
        self.machine = machine or platform.machine()
        self.roots = dict(roots or {})
        self.stages = dockerfile.stages((DOCKER / "Dockerfile").read_text(), **arguments)
        self.by_name = {stage.name: stage for stage in self.stages if stage.name}
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
                self.debian(image, folder)
            else:
                stand_in(image)
                self.overlay(folder)
            for one in stages:
                self.carry_out(one, folder)
        return self.roots[stage]

    def debian(self, image, folder):
        """Unpacks the Debian that a base image is named after."""
        debian(SUITES[IMAGE.fullmatch(image)["version"].split(".")[0]], folder, self.machine)

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


def compiled(folder, program):
    """Writes the root of the stage that compiles the program, with this one; returns it."""
    target = inside(folder, "/out/usr/local/bin/paternoster")
    target.parent.mkdir(parents=True)
    shutil.copyfile(program, target)
    target.chmod(0o755)
    return folder


def container(config, root, models, log, **variables):
    """Returns the server of an image with this configuration, run as `docker run --read-only` would with the folders
    that docs/deploy.md names, and with these variables."""
    mounts = {"/tmp": "tmpfs", "/var/cache/paternoster": "tmpfs", "/models": models}
    variables = {**dict(one.split("=", 1) for one in config["Env"]), **variables}
    return Contained(root, config["User"], config["Entrypoint"] + config["Cmd"], variables, mounts, log)


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
    """Checks the bill of materials and serves models in the image; raises if anything is wrong. `program` writes the
    models, by default the image's."""
    check_bill(root, build.machine)
    program = program or inside(root, "/usr/local/bin/paternoster")
    check_serving(dockerfile.image_config(build.stages[-1]), root, scratch, program, **variables)


def check_serving(config, root, scratch, program, **variables):
    """Serves models in the root of an image with this configuration; raises if anything is wrong."""
    models = package_checks.identity(program, scratch / "models")
    with container(config, root, models, scratch / "server.log", **variables) as server:
        package_checks.infer(server)
        package_checks.is_confined(server, "10001")
        host, port = server.http.split(":")
        for path, expected in (("/v2/health/ready", 0), ("/v2/nothing", 1)):
            status, said = server.inside("healthcheck", host, port, path)
            if status != expected:
                raise package_checks.Wrong(f"healthcheck {path} ended with {status}, expected {expected}: {said}")


def entries(root):
    """Returns what layers have of a root: a description of each file and folder by name, to compare roots."""
    found = {}
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in folders + files):
            name, status, content = str(path.relative_to(root)), path.lstat(), None
            if name.startswith(OF_RUNTIMES):
                continue
            if path.is_symlink():
                content = os.readlink(path)
            elif path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = (status.st_mode, status.st_uid, status.st_gid, content)
    return found


def packed(root, names, target, time=0):
    """Packs these files of a root as a layer: a gzipped tar, all of it at this time, in seconds since 1970. Returns the
    SHA-256 of the tar. The same files give the same bytes."""
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile() as listed:
        listed.write(b"".join(os.fsencode(name) + b"\0" for name in sorted(names)))
        listed.flush()
        tar = [
            "tar", "--format=gnu", "--numeric-owner", f"--mtime=@{time}", "-C", root, "--no-recursion", "--null",
            "--create", "--files-from", listed.name,
        ]  # fmt: skip
        # In gzip's header, there is neither a name nor a time.
        with open(target, "wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as sink:
            with subprocess.Popen(tar, stdout=subprocess.PIPE) as packing:
                while block := packing.stdout.read(1 << 20):
                    digest.update(block)
                    sink.write(block)
    if packing.returncode != 0:
        raise package_checks.Wrong(f"tar ended with {packing.returncode}")
    return digest.hexdigest()


def described(build, root, target):
    """Packs the root of the final stage into a file; returns a line about it."""
    packed(root, entries(root), target)
    size = target.stat().st_size
    unpacked = int(run(["du", "-sx", "--block-size=1", root]).split()[0])
    image, _ = build.lineage(None)
    version = inside(root, "/etc/debian_version").read_text().strip()
    return f"image: {size / 1e6:.1f} MB packed, {unpacked / 1e6:.0f} MB unpacked, on Debian {version} ({image})"


def status_of(work):
    """Runs the work of a script that builds images; returns the exit status."""
    try:
        enter_mount_namespace()
        work()
    except Unavailable as reason:
        say(f"without the image: {reason}")
        return LEFT_OUT
    except package_checks.Wrong as seen:
        say(f"the image is wrong: {seen}")
        return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keep", type=Path, metavar="FILE.tar.gz", help="write the packed root to this file")
    keep = parser.parse_args().keep

    def work():
        with scratch_folder() as scratch:
            build = Build(scratch, VARIANT="cpu")
            root = build.root(None)
            line = described(build, root, scratch / "image.tar.gz")
            check(build, root, scratch)
            say(line)
            if keep:
                shutil.copy(scratch / "image.tar.gz", keep)

    return status_of(work)


if __name__ == "__main__":
    sys.exit(main())
