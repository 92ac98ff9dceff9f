"""The image as an archive: its bytes repeat, its blobs have their digests, its configuration is the Dockerfile's, and a
server answers from what umoci unpacks, which is a program of others. The wheel that it is made from stands in for that
of `make packages`, with the tested program."""

import gzip
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import bill
import contained
import dockerfile
import fetch
import image_archive
import image_tree
import pytest
from conftest import ROOT, fetched
from image_archive import NAMES, TYPES

DOCKERFILE = image_tree.DOCKER / "Dockerfile"
FINAL = dockerfile.stages(DOCKERFILE.read_text())[-1]
SOURCE = "https://sources.invalid/paternoster"
VERSION = dockerfile.labels(FINAL)[f"{NAMES}.version"]


@pytest.fixture(scope="module")
def wheel(program, tmp_path_factory):
    file = tmp_path_factory.mktemp("wheel") / f"paternoster-{VERSION}-py3-none-any.whl"
    stripped = file.with_name("paternoster")
    strip = fetched(lambda: fetch.debian_program("strip", "binutils"))
    subprocess.run([strip, "-o", stripped, program], check=True, timeout=60)
    top = {"bom-ref": "paternoster", "name": "paternoster"}
    made = {"metadata": {"component": top}, "components": [], "dependencies": [{"ref": "paternoster"}]}
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(stripped, f"paternoster-{VERSION}.data/scripts/paternoster")
        archive.writestr(f"paternoster-{VERSION}.dist-info/licenses/LICENSE-THIRD-PARTY.txt", "licences")
        archive.writestr(f"paternoster-{VERSION}.dist-info/sboms/{bill.NAME}", json.dumps(made))
    return file


def run(script, *arguments):
    command = [sys.executable, ROOT / "scripts" / script, *arguments]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)


def build(wheel, folder):
    """Returns an archive; raises the reason if this machine cannot build any."""
    archive = folder / "paternoster.oci.tar"
    done = run("image_archive.py", "--wheel", wheel, "--source", SOURCE, "--out", archive)
    if done.returncode == image_tree.LEFT_OUT:
        raise fetch.Unavailable(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    return archive


@pytest.fixture(scope="module")
def archive(wheel, tmp_path_factory):
    return fetched(lambda: build(wheel, tmp_path_factory.mktemp("archive")))


@pytest.fixture(scope="module")
def layout(archive, tmp_path_factory):
    folder = tmp_path_factory.mktemp("layout")
    with tarfile.open(archive) as opened:
        opened.extractall(folder)
    return folder


def blob(layout, descriptor):
    """Returns a blob after comparing it with its descriptor."""
    algorithm, digest = descriptor["digest"].split(":")
    content = (layout / "blobs" / algorithm / digest).read_bytes()
    assert (algorithm, digest, len(content)) == ("sha256", hashlib.sha256(content).hexdigest(), descriptor["size"])
    return content


def follow(layout, descriptor, kind):
    assert descriptor["mediaType"] == f"{TYPES}.{kind}"
    document = json.loads(blob(layout, descriptor))
    assert document.get("mediaType", descriptor["mediaType"]) == descriptor["mediaType"]
    return document


@pytest.fixture(scope="module")
def images(layout):
    """Returns the descriptors of the images in the layout's index."""
    (index,) = json.loads((layout / "index.json").read_text())["manifests"]
    return follow(layout, index, "index.v1+json")["manifests"]


@pytest.fixture(scope="module")
def manifest(layout, images):
    (image,) = images
    return follow(layout, image, "manifest.v1+json")


@pytest.fixture(scope="module")
def config(layout, manifest):
    return follow(layout, manifest["config"], "config.v1+json")


@pytest.fixture(scope="module")
def bundle(layout, tmp_path_factory):
    """Returns what umoci unpacks: a root, and a configuration for a runtime."""
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    command = [fetched(fetch.umoci), "unpack", "--image", f"{layout}:{VERSION}", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_same_inputs_give_the_same_bytes(archive, wheel, tmp_path):
    assert build(wheel, tmp_path).read_bytes() == archive.read_bytes()


def test_every_blob_has_its_digest_and_belongs_to_the_image(layout, images, manifest, config):
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    digests = []
    for layer in manifest["layers"]:
        assert layer["mediaType"] == f"{TYPES}.layer.v1.tar+gzip"
        digests.append("sha256:" + hashlib.sha256(gzip.decompress(blob(layout, layer))).hexdigest())
    assert config["rootfs"] == {"type": "layers", "diff_ids": digests}
    assert len(config["history"]) == len(digests) == 2
    (index,) = json.loads((layout / "index.json").read_text())["manifests"]
    known = {one["digest"] for one in (index, *images, manifest["config"], *manifest["layers"])}
    assert known == {f"sha256:{file.name}" for file in (layout / "blobs" / "sha256").iterdir()}


def test_dockers_older_index_names_the_same_image(layout, manifest):
    (entry,) = json.loads((layout / "manifest.json").read_text())
    assert entry == {
        "Config": image_archive.member(manifest["config"]),
        "Layers": [image_archive.member(layer) for layer in manifest["layers"]],
        "RepoTags": [f"paternoster:{VERSION}"],
    }


def test_the_configuration_is_the_dockerfiles(config):
    given = config["config"]
    assert given["Entrypoint"] == ["paternoster"] and given["Cmd"] == ["serve", "--model-repository=/models"]
    assert given["User"] == dockerfile.last(FINAL, "USER")
    assert list(given["ExposedPorts"]) == ["8000/tcp", "8001/tcp", "8002/tcp"]
    assert given["Env"][0].startswith("PATH=") and "ORT_DYLIB_PATH=/usr/local/lib/libonnxruntime.so" in given["Env"]
    health = given["Healthcheck"]
    assert health["Test"][:2] == ["CMD", "healthcheck"]
    assert (health["Interval"], health["Timeout"], health["StartPeriod"]) == (10 * 10**9, 5 * 10**9, 600 * 10**9)
    written = dict(re.findall(rf'({re.escape(NAMES)}\.\w+)="([^"]+)"', DOCKERFILE.read_text()))
    assert len(written) == 4
    source, revision = (f"{NAMES}.{name}" for name in ("source", "revision"))
    assert given["Labels"] == {**written, source: SOURCE, revision: given["Labels"][revision]}
    commit = fetch.run(["git", "-C", ROOT, "log", "-1", "--format=%H"]).strip()
    assert given["Labels"][revision].removesuffix("-dirty") == commit


def test_layers_have_one_time_and_nothing_of_the_machine(layout, manifest, config):
    names, times = set(), set()
    for layer in manifest["layers"]:
        with tarfile.open(layout / image_archive.member(layer)) as opened:
            for member in opened:
                names.add(member.name)
                times.add(member.mtime)
                assert not (member.uname or member.gname or member.isdev()), member.name
    (time,) = times
    assert image_archive.commit_time() == time
    assert "usr/local/bin/tritonserver" in names and "etc/passwd" in names
    assert not [name for name in names if name.startswith(image_tree.OF_RUNTIMES)]


def test_the_certificates_are_debians(bundle):
    """Those of the machine that builds are not trusted by the image."""
    trusted = (bundle / "rootfs/etc/ssl/certs/ca-certificates.crt").read_text()
    assert trusted.count("BEGIN CERTIFICATE") > 100
    for file in Path("/usr/local/share/ca-certificates").glob("*.crt"):
        assert file.read_text().strip() not in trusted, f"{file} is trusted"


def test_umoci_reads_the_configuration(bundle):
    process = json.loads((bundle / "config.json").read_text())["process"]
    assert process["args"] == ["paternoster", "serve", "--model-repository=/models"]
    assert (process["user"]["uid"], process["user"]["gid"]) == (10001, 10001)
    assert "XDG_CACHE_HOME=/var/cache" in process["env"]


def test_the_unpacked_program_runs(bundle, program):
    environment = {"PATH": contained.PATH, "ORT_DYLIB_PATH": "/usr/local/lib/libonnxruntime.so"}
    command = ["chroot", bundle / "rootfs", "paternoster", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    expected = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.splitlines()[0] == expected.stdout.splitlines()[0]
    assert "ONNX Runtime: 1." in done.stdout


def test_a_server_answers_from_what_is_unpacked(bundle, config, program, tmp_path):
    image_tree.check_serving(config["config"], bundle / "rootfs", tmp_path, program)


def test_an_index_has_the_images_of_all_architectures(tmp_path):
    layout = image_archive.Layout(tmp_path / "blobs")
    layout.folder.mkdir()
    images = {}
    for architecture in ("amd64", "arm64"):
        layer = tmp_path / "layer"
        layer.write_bytes(architecture.encode())
        head = {"created": "2026-01-01T00:00:00Z", "os": "linux", "architecture": architecture}
        images[architecture] = layout.add_image(head, [("Debian", layer, "0" * 64)])
    layout.write(tmp_path / "both.tar", "paternoster:0.1.0", images, 0)
    with tarfile.open(tmp_path / "both.tar") as opened:
        opened.extractall(tmp_path)
    (index,) = json.loads((tmp_path / "index.json").read_text())["manifests"]
    found = {}
    for image in follow(tmp_path, index, "index.v1+json")["manifests"]:
        manifest = follow(tmp_path, image, "manifest.v1+json")
        config = follow(tmp_path, manifest["config"], "config.v1+json")
        assert blob(tmp_path, manifest["layers"][0]).decode() == config["architecture"]
        found[config["architecture"]] = image["platform"]
    assert found == {one: {"os": "linux", "architecture": one} for one in ("amd64", "arm64")}
    docker = json.loads((tmp_path / "manifest.json").read_text())
    assert [entry["RepoTags"] for entry in docker] == [["paternoster:0.1.0"], ["paternoster:0.1.0-arm64"]]


def test_programs_of_other_architectures_are_refused(program):
    done = run("image_archive.py", "--program", f"riscv64={program}")
    assert done.returncode == 2 and "expected one of amd64, arm64" in done.stderr


def test_a_release_has_the_version_of_its_parts():
    done = run("release.py", "0.0.9")
    assert done.returncode == 1
    for part in ("Cargo.toml", "the image", "the chart", "the chart's appVersion"):
        assert f"{part} has version {VERSION}" in done.stdout
