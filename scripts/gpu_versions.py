"""Versions and paths of the driver and of CUDA's libraries, as their own functions tell them. Each library is asked in a
process of its own, so that one that cannot be loaded stops nothing."""

import json
import subprocess
import sys
from pathlib import Path

DRIVER = "driver"
#: Versions of the toolkit that the server uses, the preferred one first.
MAJORS = (13, 12)
#: For each library the start of its file's name, the numbers that may follow, and a Python expression of its version,
#: given the library as `it`.
LIBRARIES = {
    DRIVER: ("libcuda.so.", (1,), "word(it.cuDriverGetVersion)"),
    "NVRTC": ("libnvrtc.so.", MAJORS, "pair(it.nvrtcVersion)"),
    "cuBLASLt": ("libcublasLt.so.", MAJORS, "plain(it.cublasLtGetVersion)"),
    "cuDNN": ("libcudnn.so.", (9,), "plain(it.cudnnGetVersion)"),
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
def opened(files):
    for file in files[:-1]:
        try:
            return ctypes.CDLL(file)
        except OSError:
            pass
    return ctypes.CDLL(files[-1])
it = opened(sys.argv[2:])
version = eval(sys.argv[1])
start = "/" + sys.argv[2].rsplit("/", 1)[-1].split(".so")[0] + ".so"
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


def asked(name, majors):
    """Starts to ask a library; of those of a toolkit, the first of these versions that can be loaded."""
    start, numbers, version = LIBRARIES[name]
    files = [path_of(f"{start}{number}") for number in (majors if numbers == MAJORS else numbers)]
    return subprocess.Popen(
        [sys.executable, "-c", ASKING, version, *files], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(process):
    try:
        output, error = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"missing": f"it did not answer within {SECONDS} s"}
    lines = error.strip().splitlines()
    return json.loads(output) if process.returncode == 0 else {"missing": lines[-1] if lines else "no answer"}


def found():
    """Returns {library: {version, path}}, or why a library cannot be asked."""
    driver = answer(asked(DRIVER, MAJORS))
    # As the server does: no toolkit that is newer than the driver.
    latest = (driver.get("version") or 1000 * MAJORS[0]) // 1000
    majors = [major for major in MAJORS if major <= latest] or MAJORS
    others = {name: asked(name, majors) for name in LIBRARIES if name != DRIVER}
    return {DRIVER: driver, **{name: answer(process) for name, process in others.items()}}
