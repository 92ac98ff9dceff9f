"""CUDA's libraries as the server finds them on a machine: their versions in the log, drivers that are too old, two
toolkits on one machine, and libraries that lack a function. Small libraries of C stand before the stand-in where it is
to say something else."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import tensor
from conftest import ROOT, Server
from test_cards_stages import NET, TOLERANCE, WIDTH, convolution, model_of

SOURCES = ROOT / "crates" / "device" / "src" / "cuda"
#: What libraries of CUDA 12.4 say of themselves.
VERSIONS = {
    "libnvrtc.so.12": "int nvrtcVersion(int* major, int* minor) { *major = 12; *minor = 4; return 0; }",
    "libcublasLt.so.12": "unsigned long cublasLtGetVersion() { return 120405; }",
    "libcudnn.so.9": "unsigned long cudnnGetVersion() { return 91000; } unsigned long cudnnGetCudartVersion() { return 12040; }",
}
#: The same of CUDA 13.2.
LATER = {
    "libnvrtc.so.13": "int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 2; return 0; }",
    "libcublasLt.so.13": "unsigned long cublasLtGetVersion() { return 130203; }",
    "libcudnn.so.9": "unsigned long cudnnGetVersion() { return 91901; }",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Returns a repository of a model with products and one with convolutions, which ask for a card."""
    folder = model_of(convolution()[0], tmp_path_factory.mktemp("models"))
    (folder / "net" / "1").mkdir(parents=True)
    (folder / "net" / "1" / "model.onnx").write_bytes(NET.graph())
    (folder / "net" / "model.yaml").write_text("max_batch_size: 4\ninstance: { devices: [cuda] }\n")
    return folder


class Machine:
    """A folder in the loader's path."""

    def __init__(self, program, stand_in, folder):
        self.program, self.folder = program, folder
        self.fake = (Path(stand_in["LD_LIBRARY_PATH"]) / "libcuda.so").resolve()
        self.environment = {**os.environ, **stand_in, "LD_LIBRARY_PATH": str(folder), "XDG_CACHE_HOME": str(folder)}
        for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            self.environment.pop(variable, None)
        folder.mkdir()

    def link(self, *names):
        """Links the stand-in under these names. It is one file, which the loader names by its first one."""
        for name in names:
            (self.folder / name).symlink_to(self.fake)

    def shim(self, name, source, *, behind=True, folder=None):
        """Compiles a library of these functions. All others are the stand-in's, if it is `behind` the library."""
        path = (folder or self.folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        command = ["c++", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", path, "-x", "c", "-", "-x", "none"]
        command += ["-Wl,--no-as-needed", self.fake] if behind else []
        subprocess.run([str(part) for part in command], input=source, text=True, check=True, capture_output=True)
        return path

    def refusal(self, models):
        """Runs a server that must end without its cards; returns the one line that says why."""
        command = [str(part) for part in (self.program, "serve", "--model-repository", models, "--device=cuda")]
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1 and "panicked" not in ended.stderr + ended.stdout, ended
        [line] = [line for line in (ended.stdout + ended.stderr).splitlines() if "cannot start the devices" in line]
        return line


@pytest.fixture
def machine(program, stand_in, tmp_path):
    made = Machine(program, stand_in, tmp_path / "path")
    made.link("libcuda.so", "libnvidia-ml.so.1")
    return made


def loaded(log):
    """Returns the version and the path of each library that the log names."""
    found = re.findall(r'CUDA library is loaded library="?([\w ]+?)"? version="?(.+?)"? path="?(.+?)"?$', log, re.MULTILINE)
    return {library: (version, path) for library, version, path in found}


def asks(running):
    """Sends a request to the model with products."""
    rows = np.random.default_rng(5).normal(size=(2, WIDTH)).astype(np.float32)
    with triton.InferenceServerClient(running.grpc) as client:
        found = client.infer("net", [tensor("x", rows)]).as_numpy("y")
    np.testing.assert_allclose(found, NET.answer(rows, leaves=False), rtol=TOLERANCE, atol=TOLERANCE)


def listed():
    """Returns the functions that the server looks up."""
    return set(re.findall(r'"(\w+)"', (SOURCES / "libraries" / "symbols.rs").read_text()))


def test_every_function_that_is_called_is_looked_up_before(program, models, stand_in, tmp_path):
    trace = tmp_path / "trace"
    environment = {**stand_in, "FAKE_CUDA_TRACE": str(trace)}
    with Server(models, "--device=cuda", program=program, environment=environment) as running:
        asks(running)
    called = {line.split()[1] for line in trace.read_text().splitlines()}
    written = re.findall(r"sys::((?:cu|nvrtc)\w+)\(", "".join(file.read_text() for file in SOURCES.rglob("*.rs")))
    of_the_libraries = {name for name in {*called, *written} if re.match(r"cu[A-Z]|nvrtc|cublasLt|cudnn", name)}
    assert {"cuGraphLaunch", "nvrtcGetCUBIN", "cublasLtMatmul", "cuIpcOpenMemHandle_v2"} < of_the_libraries
    assert of_the_libraries - listed() == set()


def test_versions_and_paths_of_the_libraries_are_in_the_log(machine, models):
    nvrtc, product, convolution = (machine.shim(name, source) for name, source in LATER.items())
    with Server(models, "--device=cuda", program=machine.program, environment=machine.environment) as running:
        asks(running)
        found = loaded(running.log.read_text())
    expected = {
        "CUDA driver": ("13.0", str(machine.folder / "libcuda.so")),
        "NVRTC": ("13.2", str(nvrtc)),
        "cuBLASLt": ("13.2.3", str(product)),
        "cuDNN": ("9.19.1", str(convolution)),
    }
    assert found == expected
    said = subprocess.run([machine.program, "--version"], env=machine.environment, capture_output=True, text=True, check=True)
    lines = [f"{library}: {version}, {path}" for library, (version, path) in expected.items()]
    assert said.stdout.splitlines()[-4:] == lines


def test_a_driver_that_is_too_old_is_refused_in_one_line_and_opens_nothing(machine, models, tmp_path):
    machine.link("libnvrtc.so.13", "libcublasLt.so.13")
    trace = tmp_path / "trace"
    machine.environment |= {"FAKE_CUDA_DRIVER": "12020", "FAKE_CUDA_TRACE": str(trace)}
    said = (
        f"the CUDA driver is too old: it supports CUDA 12.2 ({machine.folder / 'libcuda.so'}), "
        "expected CUDA 12.4 or later, as of driver 550"
    )
    assert said in machine.refusal(models)
    assert {line.split()[1] for line in trace.read_text().splitlines()} == {"cuDriverGetVersion"}
    # Without the flag the server runs on the CPU, and says so in one line.
    with Server(
        models, "--strict-readiness=false", program=machine.program, environment=machine.environment
    ) as running:
        with triton.InferenceServerClient(running.grpc) as client:
            reasons = [model.reason for model in client.get_model_repository_index().models]
        [line] = [line for line in running.log.read_text().splitlines() if "cards cannot be used" in line]
    assert said in line and all(said in reason for reason in reasons), reasons


def test_a_driver_of_cuda_12_runs_with_libraries_of_cuda_12(machine, models):
    for name, source in VERSIONS.items():
        machine.shim(name, source)
    machine.environment |= {"FAKE_CUDA_DRIVER": "12040"}
    with Server(models, "--device=cuda", program=machine.program, environment=machine.environment) as running:
        asks(running)
        found = {library: version for library, (version, _) in loaded(running.log.read_text()).items()}
    assert found == {"CUDA driver": "12.4", "NVRTC": "12.4", "cuBLASLt": "12.4.5", "cuDNN": "9.10.0"}


def test_of_the_wheels_those_that_the_driver_supports_are_loaded(machine, models, tmp_path):
    wheels = tmp_path / "venv/lib/python3.12/site-packages/nvidia"
    for name in ("libnvrtc.so.13", "libcublasLt.so.13"):
        machine.shim(name, LATER[name], folder=wheels / "cu13/lib")
    machine.shim("libnvrtc.so.12", VERSIONS["libnvrtc.so.12"], folder=wheels / "cuda_nvrtc/lib")
    machine.shim("libcublasLt.so.12", VERSIONS["libcublasLt.so.12"], folder=wheels / "cublas/lib")
    machine.shim("libcudnn.so.9", VERSIONS["libcudnn.so.9"], folder=wheels / "cudnn/lib")
    machine.environment |= {"FAKE_CUDA_DRIVER": "12080", "VIRTUAL_ENV": str(tmp_path / "venv")}
    with Server(models, "--device=cuda", program=machine.program, environment=machine.environment) as running:
        asks(running)
        found = loaded(running.log.read_text())
    assert found["NVRTC"] == ("12.4", str(wheels / "cuda_nvrtc/lib/libnvrtc.so.12"))
    assert found["cuBLASLt"] == ("12.4.5", str(wheels / "cublas/lib/libcublasLt.so.12"))


def test_a_toolkit_in_the_path_does_not_replace_that_of_the_wheels_silently(machine, models, tmp_path):
    wheel = tmp_path / "venv/lib/python3.12/site-packages/nvidia/cu13/lib"
    for name in ("libnvrtc.so.13", "libcublasLt.so.13"):
        machine.shim(name, LATER[name], folder=wheel)
    other = machine.shim("libcublasLt.so", VERSIONS["libcublasLt.so.12"])
    machine.environment |= {"VIRTUAL_ENV": str(tmp_path / "venv")}
    said = (
        f"the loader finds cuBLASLt 12.4.5 ({other}) instead of that of CUDA 13 ({wheel / 'libcublasLt.so.13'}), "
        "expected one toolkit"
    )
    assert said in machine.refusal(models)
    # Of the same major version it is used, and named.
    other.unlink()
    machine.shim("libcublasLt.so", LATER["libcublasLt.so.13"])
    with Server(
        models, "--device=cuda", "--strict-readiness=false", program=machine.program, environment=machine.environment
    ) as running:
        asks(running)
        [line] = [line for line in running.log.read_text().splitlines() if "CUDA library is not the chosen one" in line]
    assert f"the loader finds cuBLASLt 13.2.3 ({other}) instead of {wheel / 'libcublasLt.so.13'}" in line


def test_libraries_later_than_the_driver_are_refused(machine, models):
    machine.link("libnvrtc.so.13", "libcublasLt.so.13")
    machine.environment |= {"FAKE_CUDA_DRIVER": "12080"}
    said = f"NVRTC 13.0 ({machine.folder / 'libcuda.so'}) needs a driver of CUDA 13, but that of this machine supports CUDA 12.8"
    assert said in machine.refusal(models)


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("libcuda.so", "int cuInit(unsigned flags) { return 0; }", "CUDA driver has no function cuCtxSetCurrent ({})"),
        ("libnvrtc.so.13", VERSIONS["libnvrtc.so.12"], "NVRTC has no function nvrtcCompileProgram ({}): kernels cannot be compiled"),
    ],
)
def test_a_library_that_lacks_a_function_is_refused_by_name(machine, models, name, source, said):
    machine.link("libnvrtc.so.13", "libcublasLt.so.13", "libcudnn.so.9")
    (machine.folder / name).unlink()
    path = machine.shim(name, source, behind=False)
    assert said.format(path) in machine.refusal(models)


@pytest.mark.parametrize(
    ("name", "source", "model", "said"),
    [
        ("libcublasLt.so.13", "unsigned long cublasLtGetVersion() { return 130000; }", "net", "cuBLASLt has no function cublasLtCreate ({})"),
        ("libcudnn.so.9", "unsigned long cudnnGetVersion() { return 91900; }", "images", "cuDNN has no function cudnnConvolutionBackwardData ({})"),
    ],
)  # fmt: skip
def test_a_model_that_needs_a_missing_function_is_refused_alone(machine, models, name, source, model, said):
    machine.link(*{"libnvrtc.so.13", "libcublasLt.so.13", "libcudnn.so.9"} - {name})
    path = machine.shim(name, source, behind=False)
    with Server(
        models, "--device=cuda", "--strict-readiness=false", program=machine.program, environment=machine.environment
    ) as running:
        with triton.InferenceServerClient(running.grpc) as client:
            reasons = {model.name: model.reason for model in client.get_model_repository_index().models}
    assert said.format(path) in reasons.pop(model)
    assert [*reasons.values()] == [""]
