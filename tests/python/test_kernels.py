"""The checks of kernels that need NVRTC and no GPU, and what kits for cards say of CUDA's libraries."""

import os
import shutil
import sys
from pathlib import Path

import check_kernels
import cubins
import fetch
import gpu_versions
import pytest

#: A program that takes the place of the suite of tests that plans networks.
PLANNER = """
import os, pathlib, shutil, sys
assert sys.argv[1:5] == ["--exact", "kernels::of_every_network", "--ignored", "--nocapture"]
assert os.environ["KERNELS_CAPABILITIES"] == "9.0"
place = pathlib.Path(os.environ["KERNELS_FOLDER"]) / "sm_90"
shutil.copytree(pathlib.Path(__file__).parent / "binaries", place)
sys.exit(int(pathlib.Path(__file__).with_name("status").read_text()))
"""


@pytest.fixture(scope="module")
def compiler():
    try:
        return check_kernels.Compiler(fetch.nvrtc())
    except fetch.Unavailable as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    ("architecture", "file"), [("sm_80", "rows.cu"), ("sm_90", "attention.cu"), ("sm_100", "rows.cu")]
)
def test_a_binary_says_what_its_kernels_need(compiler, architecture, file):
    source = (check_kernels.KERNELS / file).read_text()
    told = compiler.compile(file, source, architecture, "f16")
    binary, _ = compiler.binary(file, source, architecture, "f16")
    needs = cubins.needs(binary)
    assert {name: need.registers for name, need in needs.items()} == {name: need.registers for name, need in told.items()}
    assert {need.frame_bytes for need in needs.values()} == {0}
    binary, log = compiler.binary("planted.cu", check_kernels.INDEXES, architecture, "f32")
    assert "32 bytes stack frame" in log
    assert cubins.needs(binary)["planted"].frame_bytes == 32


@pytest.mark.parametrize(("file", "source", "status", "said"), [
    ("signal.cu", None, "0", "sm_90: 1 programs, 1 kernels, up to"),
    ("signal.cu", None, "1", "sm_90: 1 programs"),
    ("planted.cu", check_kernels.INDEXES, "0", "planted of {file} keeps 32 bytes of each thread in memory"),
])  # fmt: skip
def test_a_refused_program_or_an_array_in_memory_fails_the_check_of_all(
    compiler, tmp_path, capsys, file, source, status, said
):
    planner = tmp_path / "planner.py"
    planner.write_text(PLANNER)
    (tmp_path / "status").write_text(status)
    (tmp_path / "binaries").mkdir()
    binary, _ = compiler.binary(file, source or (check_kernels.KERNELS / file).read_text(), "sm_90", "f32")
    (tmp_path / "binaries" / "key.cubin").write_bytes(len(binary).to_bytes(8, "little") + binary)
    folder = tmp_path / "kernels"
    (folder / "sm_75").mkdir(parents=True)
    outcome = check_kernels.all_networks([sys.executable, planner], folder, ["9.0"])
    assert outcome == (1 if source or status != "0" else 0)
    text = capsys.readouterr().out
    assert said.format(file=folder / "sm_90" / "key.cubin") in text
    assert "sm_75" not in text, "what was there before does not count"


def test_versions_of_cuda_12_are_found(stand_in, tmp_path, monkeypatch):
    library = next(Path(stand_in["LD_LIBRARY_PATH"]).glob("libcuda.so*")).resolve()
    for name in ("libcuda.so.1", "libnvrtc.so.12", "libcublasLt.so.12", "libcudnn.so.9"):
        shutil.copy2(library, tmp_path / name)
    monkeypatch.setattr(gpu_versions, "folders", lambda: [])
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = gpu_versions.found()
    paths = {name: Path(told["path"]).name for name, told in found.items()}
    assert paths == {
        "driver": "libcuda.so.1", "NVRTC": "libnvrtc.so.12", "cuBLASLt": "libcublasLt.so.12", "cuDNN": "libcudnn.so.9",
    }  # fmt: skip
    (tmp_path / "libnvrtc.so.12").unlink()
    assert "libnvrtc.so.12" in gpu_versions.found()["NVRTC"]["missing"]
