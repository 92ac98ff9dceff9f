"""Versions and paths of the driver and of CUDA's libraries, as their own functions tell them. Each library is asked in a
process of its own, so that one that cannot be loaded stops nothing."""

import json
import subprocess
import sys
from pathlib import Path

#: For each library its file, and a Python expression of its version, given the library as `it`.
LIBRARIES = {
    "driver": ("libcuda.so.1", "word(it.cuDriverGetVersion)"),
    "NVRTC": ("libnvrtc.so.13", "pair(it.nvrtcVersion)"),
    "cuBLASLt": ("libcublasLt.so.13", "plain(it.cublasLtGetVersion)"),
    "cuDNN": ("libcudnn.so.9", "plain(it.cudnnGetVersion)"),
}
ASKING = """
import ctypes, json, sys
def word(call):
    found = ctypes.c_int()
    return found.value if call(ctypes.byref(found)) == 0 else None
def pair(call):
    found = ctypes.c_int(), ctypes.c_int()
    return None if call(ctypes.byref(found[0]), ctypes.byref(found[1])) else f"{found[0].value}.{found[1].value}"
def plain(call):
    call.restype = ctypes.c_size_t
    return call()
it = ctypes.CDLL(sys.argv[1])
version = eval(sys.argv[2])
start = "/" + sys.argv[1].rsplit("/", 1)[-1].split(".so")[0] + ".so"
path = next((line.split()[-1] for line in open("/proc/self/maps") if start in line), None)
print(json.dumps({"version": version, "path": path}))
"""
SECONDS = 10


def folders():
    """Returns the folders of CUDA's libraries in the wheels of this Python."""
    places = [Path(place) / "nvidia" for place in sys.path if (Path(place) / "nvidia").is_dir()]
    return [str(folder) for place in places for folder in sorted(place.glob("*/lib"))]


def path_of(file):
    """Returns a library's path in the wheels, or its name for the loader to find."""
    return next((str(Path(folder) / file) for folder in folders() if (Path(folder) / file).is_file()), file)


def found():
    """Returns {library: {version, path}}, or why a library cannot be asked."""
    asked = {
        name: subprocess.Popen(
            [sys.executable, "-c", ASKING, path_of(file), version],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name, (file, version) in LIBRARIES.items()
    }  # fmt: skip
    told = {}
    for name, process in asked.items():
        try:
            output, error = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            told[name] = {"missing": f"it did not answer within {SECONDS} s"}
            continue
        lines = error.strip().splitlines()
        told[name] = json.loads(output) if process.returncode == 0 else {"missing": lines[-1] if lines else "no answer"}
    return told
