"""The images: their Dockerfile passes its linter and refers to existing files, and its parts work here as in a
container."""

import hashlib
import json
import os
import re
import subprocess

import bill
import dockerfile
import fetch
import pins
import pytest
import yaml
from conftest import ROOT, fetched
from manifests import CHART, DEPLOY, container, only, render
from server import free_ports

DOCKER = DEPLOY / "docker"
DOCKERFILE = DOCKER / "Dockerfile"
HEALTHCHECK = DOCKER / "healthcheck"


@pytest.fixture(scope="module")
def instructions():
    return list(dockerfile.instructions(DOCKERFILE.read_text()))


@pytest.fixture(scope="module")
def hadolint():
    return fetched(fetch.hadolint)


def lint(hadolint, path):
    return subprocess.run([hadolint, "--no-color", path], capture_output=True, text=True, timeout=60)


def test_the_linter_has_nothing_to_say(hadolint):
    done = lint(hadolint, DOCKERFILE)
    assert done.returncode == 0 and done.stdout == "", done.stdout + done.stderr


def test_the_linter_finds_faults(hadolint, tmp_path):
    worse = tmp_path / "Dockerfile"
    worse.write_text(DOCKERFILE.read_text().replace("debian:12.11-slim", "debian") + "RUM true\n")
    assert lint(hadolint, worse).returncode != 0
    worse.write_text("FROM debian\n")
    assert "DL3006" in lint(hadolint, worse).stdout


def test_what_is_copied_is_there_and_not_ignored(instructions):
    """The build context has the files that the ignore file does not exclude, and all of them are copied."""
    ignored, *kept = (DOCKER / "Dockerfile.dockerignore").read_text().split()
    assert ignored == "*"
    kept = [one.removeprefix("!") for one in kept]
    copied = [
        source
        for name, flags, arguments in instructions
        if name == "COPY" and "from" not in dict(flags)
        for source in arguments.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(source == one or source.startswith(f"{one}/") for one in kept), f"{source} is not in the build context"
    for one in kept:
        assert (ROOT / one).exists(), one
        assert any(source == one or source.startswith(f"{one}/") for source in copied), f"{one} is sent and not used"


def test_the_library_is_the_one_of_the_tests():
    """The image installs its wheel by the hashes that are pinned for the tests."""
    text = (DOCKER / "onnxruntime.txt").read_text()
    assert f"onnxruntime=={pins.ONNXRUNTIME.version} " in text
    wanted = {digest for _, digest in pins.ONNXRUNTIME.platforms.values()}
    assert set(re.findall(r"sha256:([0-9a-f]{64})", text)) == wanted


def test_notices_and_bill_are_written_by_the_pinned_programs(instructions):
    commands = [one.arguments.split() for one in instructions if one.name == "RUN" and "cargo install" in one.arguments]
    expected = [(pin.name, f"={pin.version}", pin.features) for pin in (pins.CARGO_ABOUT, pins.CARGO_CYCLONEDX)]

    def after(words, flag):
        return words[words.index(flag) + 1] if flag in words else ""

    assert [(words[-1], after(words, "--version"), after(words, "--features")) for words in commands] == expected


def test_the_bill_names_the_library_beside_the_crates(tmp_path):
    program = {"bom-ref": "path+file:///src#paternoster@0.1.0", "name": "paternoster"}
    given = {
        "metadata": {"component": program},
        "components": [{"name": "tokio"}],
        "dependencies": [{"ref": program["bom-ref"], "dependsOn": ["tokio"]}, {"ref": "tokio"}],
    }
    version = pins.ONNXRUNTIME.version
    wheel, made = tmp_path / f"onnxruntime-{version}-cp311-none-any.whl", tmp_path / "doc" / "bill.json"
    wheel.write_bytes(b"wheel")
    (tmp_path / "given.json").write_text(json.dumps(given))
    bill.main(tmp_path / "given.json", wheel, made)
    found = json.loads(made.read_text())
    assert found["metadata"]["component"]["bom-ref"] == "paternoster@0.1.0", "no folder of the build"
    crate, library = found["components"]
    assert (crate["name"], library["name"], library["version"]) == ("tokio", "onnxruntime", version)
    assert library["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"wheel").hexdigest()}]
    assert {"ref": "paternoster@0.1.0", "dependsOn": ["tokio", library["purl"]]} in found["dependencies"]
    with pytest.raises(SystemExit, match="expected onnxruntime"):
        bill.main(tmp_path / "given.json", tmp_path / "torch-2.0-any.whl", made)


def test_base_images_have_exact_tags(instructions):
    images = [arguments.split("=", 1)[1] for name, _, arguments in instructions if name == "ARG" and "_IMAGE=" in arguments]
    assert len(images) == 4
    for image in images:
        assert re.fullmatch(r"[\w./-]+:[\w.-]*\d+\.\d+[\w.-]*", image), f"{image} may change"


def test_the_image_for_cards_has_the_libraries_that_the_server_loads(instructions):
    (tag,) = [one.arguments for one in instructions if one.name == "ARG" and one.arguments.startswith("CUDA_IMAGE=")]
    (preferred,) = re.findall(r"MAJORS: \[u32; 2\] = \[(\d+), \d+\]", (ROOT / "crates/device/src/cuda/libraries/mod.rs").read_text())
    version = ".".join(pins.NVRTC.version.split(".")[:2])
    assert version.startswith(f"{preferred}.")
    assert re.search(rf"nvidia/cuda:{re.escape(version)}\.\d+-cudnn-runtime-", tag), tag


def test_the_image_has_the_locale_that_operators_on_strings_ask_for():
    *_, final = built = dockerfile.stages(DOCKERFILE.read_text())
    (data,) = [stage for stage in built if stage.name == "data"]
    assert "localedef --no-archive -i en_US -f UTF-8 /out/usr/lib/locale/en_US.utf8" in dockerfile.last(data, "RUN")
    assert "/out /" in [one.arguments for one in final.instructions if ("from", "data") in one.flags]


def test_the_image_runs_as_the_user_of_the_chart(instructions):
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    (user,) = [arguments for name, _, arguments in instructions if name == "USER"]
    assert user == f"{values['podSecurityContext']['runAsUser']}:{values['podSecurityContext']['runAsGroup']}"


def check(*arguments):
    done = subprocess.run([HEALTHCHECK, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_the_health_check_tells_ready_from_not_ready(start, made_models, tmp_path):
    broken = tmp_path / "broken" / "1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"no model")
    server = start(tmp_path, until="settled")
    host, port = server.http.split(":")
    assert check(host, port, "/v2/health/live") == (0, "")
    assert check(host, port, "/v2/health/ready") == (
        1,
        f"healthcheck: GET http://{server.http}/v2/health/ready answered 400, expected 200\n",
    )


def test_the_health_check_fails_on_a_closed_port():
    (port,) = free_ports(1)
    status, said = check("127.0.0.1", port)
    assert status == 1 and f"cannot connect to 127.0.0.1:{port}" in said


def test_the_health_check_names_the_default_ports(helm, instructions):
    """The image, the chart's test and the server agree on the port and the path."""
    (command,) = [arguments for name, _, arguments in instructions if name == "HEALTHCHECK"]
    assert '"healthcheck", "127.0.0.1", "8000", "/v2/health/ready"' in command
    manifests = render(helm, CHART / "ci" / "pvc-values.yaml")
    (tester,) = only(manifests, "Pod")["spec"]["containers"]
    assert tester["command"] == ["healthcheck", "demo-paternoster", "8000", "/v2/health/ready"]
    assert tester["image"] == container(manifests)["image"]


def test_the_binary_takes_tritonservers_arguments_under_its_name(program, tmp_path):
    """The image has a link with tritonserver's name."""
    link = tmp_path / "tritonserver"
    link.symlink_to(program)
    nowhere = tmp_path / "nowhere"
    command = [link, f"--model-store={nowhere}", "--log-verbose=1"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 1 and f"cannot read the model repository {nowhere}" in done.stderr
