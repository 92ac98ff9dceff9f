"""Writes the image for CPUs as an archive that container runtimes load, without a container builder.

    .cache/tests/bin/python scripts/image_archive.py [--wheel FILE] [--program ARCHITECTURE=FILE]... [--out FILE]

The archive is a tar of OCI's image layout, with an index of one image for each architecture, and has Docker's older
index too, `manifest.json`. image_tree.py assembles each image: this machine's from the wheel's program, others from
those that are given; both from the wheel's licences and bill of materials, and the pinned library. An image has two
layers, Debian and what the Dockerfile adds, with the time of the last commit. The same programs, wheel, commit and
Debian packages give the same bytes; Debian is kept in .cache. Needs root. For another machine's image it installs QEMU.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import bill
import dockerfile
import fetch
import package_checks
import packages
from contained import ARCHITECTURES, PATH, interpreted
from fetch import ROOT, run, say
from image_tree import COMPILED, DOCKER, Build, compiled, entries, inside, packed, scratch_folder, status_of

MACHINES = {architecture: machine for machine, architecture in ARCHITECTURES.items()}
#: Starts of the names of labels and annotations, and of media types.
NAMES, TYPES = "org.opencontainers.image", "application/vnd.oci.image"


class Layout:
    """OCI's image layout, whose blobs are files of a folder until it is written."""

    def __init__(self, folder):
        self.folder = folder

    def move(self, file, kind, **more):
        """Moves a file into the layout; returns its descriptor."""
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        shutil.move(file, self.folder / digest)
        return {"mediaType": f"{TYPES}.{kind}", "digest": f"sha256:{digest}", "size": len(content), **more}

    def add(self, content, kind, **more):
        """Adds a document; returns its descriptor."""
        file = self.folder / "new"
        file.write_bytes(encoded(content))
        return self.move(file, kind, **more)

    def add_image(self, config, layers):
        """Adds an image of layers, given as their origin, the file and the digest of its tar; returns its descriptor
        and its entry in Docker's index."""
        rootfs = {"type": "layers", "diff_ids": [f"sha256:{digest}" for *_, digest in layers]}
        history = [{"created": config["created"], "created_by": origin} for origin, *_ in layers]
        config = self.add({**config, "rootfs": rootfs, "history": history}, "config.v1+json")
        layers = [self.move(file, "layer.v1.tar+gzip") for _, file, _ in layers]
        manifest = {**document("manifest.v1+json"), "config": config, "layers": layers}
        docker = {"Config": member(config), "Layers": [member(layer) for layer in layers]}
        return self.add(manifest, "manifest.v1+json"), docker

    def write(self, target, name, images, time):
        """Writes the archive of images by architecture, as `add_image` returns them. In Docker's index, which has no
        architectures, the first has the name, and those of others end with their architecture."""
        manifests = [
            {**image, "platform": {"os": "linux", "architecture": architecture}}
            for architecture, (image, _) in images.items()
        ]
        # The names that `docker save` gives.
        names = {"io.containerd.image.name": f"docker.io/library/{name}", f"{NAMES}.ref.name": name.split(":")[1]}
        index = self.add({**document("index.v1+json"), "manifests": manifests}, "index.v1+json", annotations=names)
        tags = [name, *(f"{name}-{architecture}" for architecture in list(images)[1:])]
        documents = {
            "oci-layout": {"imageLayoutVersion": "1.0.0"},
            "index.json": {**document("index.v1+json"), "manifests": [index]},
            "manifest.json": [{**entry, "RepoTags": [tag]} for tag, (_, entry) in zip(tags, images.values())],
        }
        contents = {path: encoded(content) for path, content in documents.items()}
        contents |= {f"blobs/sha256/{file.name}": file.read_bytes() for file in sorted(self.folder.iterdir())}
        with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as archive:
            for path, content in contents.items():
                head = tarfile.TarInfo(path)
                head.size, head.mtime = len(content), time
                archive.addfile(head, io.BytesIO(content))


def document(kind):
    return {"schemaVersion": 2, "mediaType": f"{TYPES}.{kind}"}


def encoded(content):
    return json.dumps(content, sort_keys=True).encode()


def member(descriptor):
    """Returns the path of a blob in the archive."""
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def from_wheel(wheel, end, target):
    """Takes the file with this end of its path out of the wheel; returns it."""
    with zipfile.ZipFile(wheel) as archive:
        return fetch.take(archive, fetch.one_member(archive, "paternoster-", end), target)


def complete(scratch, machine, program, wheel):
    """Writes what those stages of the Dockerfile leave that compile or download; returns their roots by name."""
    roots = {name: scratch / name for name in (COMPILED, "licenses", "onnxruntime")}
    compiled(roots[COMPILED], program)
    licenses = inside(roots["licenses"], "/out/usr/share/doc/paternoster/THIRD-PARTY.txt")
    from_wheel(wheel, "/licenses/LICENSE-THIRD-PARTY.txt", licenses)
    library = fetch.runtime(machine=None if machine == platform.machine() else machine)
    libraries = inside(roots["onnxruntime"], "/out/usr/local/lib")
    doc = inside(roots["onnxruntime"], "/out/usr/share/doc")
    for folder in (libraries, doc / "onnxruntime", doc / "paternoster"):
        folder.mkdir(parents=True)
    run(["install", "-m", "644", library.resolve(), libraries])
    (libraries / library.name).symlink_to(library.resolve().name)
    run(["install", "-m", "644", *(library.parent / text for text in fetch.RUNTIME_NOTICES), doc / "onnxruntime"])
    (doc / "paternoster" / bill.NAME).write_text(packages.bill_of_materials(wheel, machine))
    return roots


def packed_layers(build, scratch, time):
    """Packs the image; returns the origin of each layer, its file and the digest of its tar."""
    root, base = build.root(None), scratch / "base"
    build.debian(build.lineage(None)[0], base)
    debian = f"Debian {(base / 'etc/debian_version').read_text().strip()}"
    below, above = entries(base), entries(root)
    if removed := below.keys() - above.keys():
        raise package_checks.Wrong(f"the Dockerfile removes {sorted(removed)} of its base image")
    changed = [name for name, entry in above.items() if below.get(name) != entry]
    file, added = scratch / "debian.tar.gz", scratch / "added.tar.gz"
    return [(debian, file, packed(base, below, file, time)), ("Dockerfile", added, packed(root, changed, added, time))]


def image(layout, final, architecture, program, wheel, labels, time):
    """Assembles and adds the image of one program; returns what `add_image` does."""
    machine = MACHINES[architecture]
    say(f"image for {architecture}")
    with interpreted(machine), scratch_folder() as scratch:
        build = Build(scratch, machine, complete(scratch / "complete", machine, program, wheel), VARIANT="cpu")
        config = dockerfile.image_config(final)
        config["Env"].insert(0, f"PATH={PATH}")
        config["Labels"].update(labels)
        created = datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        head = {"created": created, "os": "linux", "architecture": architecture, "config": config}
        return layout.add_image(head, packed_layers(build, scratch, time))


def commit_time():
    """Returns the time of the last commit, in seconds since 1970."""
    return int(run(["git", "-C", ROOT, "log", "-1", "--format=%ct"]))


def write(target, wheel, programs, source):
    """Writes the archive of the images of these programs, by architecture."""
    time = commit_time()
    revision = run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]).strip()
    labels = {f"{NAMES}.revision": revision}
    if source:
        labels[f"{NAMES}.source"] = source
    *_, final = dockerfile.stages((DOCKER / "Dockerfile").read_text(), VARIANT="cpu")
    title, version = (dockerfile.labels(final)[f"{NAMES}.{name}"] for name in ("title", "version"))
    target = target or ROOT / "target" / "image" / f"{title}-{version}.oci.tar"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        wheel = wheel or packages.built("*.whl")
        own = from_wheel(wheel, "/scripts/paternoster", Path(folder, "paternoster"))
        programs = {ARCHITECTURES[platform.machine()]: own, **programs}
        layout = Layout(Path(folder, "blobs"))
        layout.folder.mkdir()
        images = {one: image(layout, final, one, programs[one], wheel, labels, time) for one in programs}
        written = Path(folder, target.name)
        layout.write(written, f"{title}:{version}", images, time)
        written.replace(target)
    say(f"{target}  {target.stat().st_size / 1e6:.1f} MB")


def architecture_and_file(text):
    architecture, _, file = text.partition("=")
    if architecture not in MACHINES or not Path(file).is_file():
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(MACHINES)}, '=' and a file, got '{text}'")
    return architecture, Path(file).absolute()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="by default that of make packages")
    parser.add_argument(
        "--program", type=architecture_and_file, action="append", default=[], dest="programs",
        metavar="ARCHITECTURE=FILE",
        help="amd64 or arm64, and a program for it; for this machine in place of the wheel's",
    )  # fmt: skip
    parser.add_argument("--source", metavar="URL", help="where the sources are, for the image's label")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default in target/image")
    given = parser.parse_args()
    # The server's user must be able to read the image.
    os.umask(0o022)
    return status_of(lambda: write(given.out, given.wheel, dict(given.programs), given.source))


if __name__ == "__main__":
    sys.exit(main())
