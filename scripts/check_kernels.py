"""Compiles every CUDA kernel (kernels/*.cu) with NVRTC, for each architecture and element type, and examples of the
kernels that plans generate (tests/data/plans/*.cu, fp32). Prints each kernel's registers for a thread and shared memory
for a block. A kernel that does not compile, spills registers, or keeps a thread's array in memory fails the check.
Needs no GPU.

    python3 scripts/check_kernels.py
    python3 scripts/check_kernels.py --all

With --all, the kernels that plans of all example networks generate instead: at full width, in each precision, and at
all lengths that cards are prepared for. Takes minutes, and needs Rust.
"""

import argparse
import ctypes
import os
import re
import shutil
import sys
import time
from collections import defaultdict, namedtuple
from concurrent.futures import ThreadPoolExecutor

import cubins
import fetch

KERNELS = fetch.ROOT / "kernels"
PLANS = fetch.ROOT / "tests" / "data" / "plans"
ARCHITECTURES = ("sm_75", "sm_80", "sm_90")
#: Compute capabilities of --all: those of A100, H100 and B200.
CAPABILITIES = ("8.0", "9.0", "10.0")
#: The suite of tests that plans the networks.
PLANNER = ("cargo", "test", "--test", "planner", "--")
ELEMENTS = ("f32", "f16", "bf16")
#: In-memory headers. The first is included before each program.
HEADERS = ("device.cuh", "portable.h")
OPTIONS = (
    "--std=c++17",
    # Lambdas then need no annotation.
    "--device-as-default-execution-space",
    f"--pre-include={HEADERS[0]}",
    "--ptxas-options=-v",
    "--ptxas-options=--warn-on-spills",
    "--ptxas-options=-Werror",
)

#: Programs that must be refused, since a check that cannot fail proves nothing.
INDEXES = """
KERNEL(planted, 32, float* x, int last) {
    float values[8];
    for (int i = 0; i < last; ++i) values[i] = x[i * 32 + TID];
    for (int i = 0; i < last; ++i) x[i * 32 + TID] = values[last - i];
}
"""
SPILLS = """
KERNEL(planted, 1024, float* x) {
    float values[200];
#pragma unroll
    for (int i = 0; i < 200; ++i) values[i] = x[i * 1024 + TID];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 200; ++i) x[i * 1024 + TID] = values[i] * values[199 - i];
}
"""
PLANTED = {
    "spills registers": SPILLS,
    "keeps an array in memory": INDEXES,
    "is no C++": "KERNEL(planted, 32, float* x) { x[0] = nothing; }",
}

#: The resources of one kernel.
Needs = namedtuple("Needs", "registers shared_bytes")
ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame.*?"
    r"Used (?P<registers>\d+) registers(?:[^\n]*?(?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)


class Refused(Exception):
    """A program did not compile; the message is the compiler's log."""


class Compiler:
    """NVRTC, loaded from a folder."""

    def __init__(self, folder):
        # NVRTC finds its builtins only if they are loaded already.
        (builtins,) = folder.glob("libnvrtc-builtins.so.*")
        (library,) = folder.glob("libnvrtc.so.*")
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._nvrtc = ctypes.CDLL(str(library))
        self._nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._headers = [(KERNELS / "prelude" / name).read_bytes() for name in HEADERS]

    def _check(self, status):
        if status != 0:
            raise Refused(self._nvrtc.nvrtcGetErrorString(status).decode())

    def binary(self, name, source, architecture, element):
        """Compiles a program; returns its machine code, and the compiler's log."""
        program = ctypes.c_void_p()
        self._check(
            self._nvrtc.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), name.encode(), len(HEADERS), strings(self._headers),
                strings([header.encode() for header in HEADERS]),
            )
        )  # fmt: skip
        try:
            options = [*OPTIONS, f"--gpu-architecture={architecture}", f"-DELEMENT={element}"]
            options = [option.encode() for option in options]
            status = self._nvrtc.nvrtcCompileProgram(program, len(options), strings(options))
            log = self._log(program)
            if status != 0:
                raise Refused(log)
            size = ctypes.c_size_t()
            self._check(self._nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
            if size.value == 0:
                raise Refused("there is no machine code")
            binary = ctypes.create_string_buffer(size.value)
            self._check(self._nvrtc.nvrtcGetCUBIN(program, binary))
        finally:
            self._nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        return binary.raw, log

    def compile(self, name, source, architecture, element):
        """Compiles a program to machine code; returns the resources of each of its kernels, by name."""
        _, log = self.binary(name, source, architecture, element)
        entries = list(ENTRY.finditer(log))
        if any(int(entry["stack"]) > 0 for entry in entries):
            raise Refused(log)
        return {entry["name"]: Needs(int(entry["registers"]), int(entry["shared"] or 0)) for entry in entries}

    def _log(self, program):
        size = ctypes.c_size_t()
        self._check(self._nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        self._check(self._nvrtc.nvrtcGetProgramLog(program, log))
        return log.value.decode()


def strings(items):
    return (ctypes.c_char_p * len(items))(*items)


def refuses_what_is_planted(compiler):
    for fault, source in PLANTED.items():
        try:
            compiler.compile("planted.cu", source, ARCHITECTURES[0], ELEMENTS[0])
        except Refused:
            continue
        print(f"the check does not work: a program that {fault} was accepted")
        return False
    return True


def print_table(needs):
    """Prints a line for each kernel: registers for each element type, and bytes of shared memory where it has some."""
    title = f"registers ({'/'.join(ELEMENTS)})"
    widest = max(map(len, [title, *needs]))
    print(f"{title:<{widest}}  {'  '.join(f'{name:<22}' for name in ARCHITECTURES)}".rstrip())
    for name, found in sorted(needs.items()):
        cells = []
        for architecture in ARCHITECTURES:
            of_types = [found[architecture, element] for element in ELEMENTS]
            shared = max(need.shared_bytes for need in of_types)
            registers = "/".join(str(need.registers) for need in of_types)
            cells.append(f"{registers} {f'{shared} B' if shared else ''}")
        print(f"{name:<{widest}}  {'  '.join(f'{cell:<22}' for cell in cells)}".rstrip())


def all_networks(planner=PLANNER, folder=fetch.CACHE / "kernels", capabilities=CAPABILITIES):
    """Compiles the kernels of all example networks; returns the exit status."""
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        passed = cubins.compiled(planner, folder, capabilities)
    except fetch.Unavailable as reason:
        print(f"cannot check the kernels: {reason}")
        return 1
    programs = 0
    for place in sorted(folder.glob("sm_*")):
        found = [(file, cubins.needs(binary)) for file, binary in cubins.kept(place)]
        for file, needs in found:
            for name, need in needs.items():
                if need.frame_bytes:
                    passed = False
                    print(f"{name} of {file} keeps {need.frame_bytes} bytes of each thread in memory")
        registers = [need.registers for _, needs in found for need in needs.values()]
        print(f"{place.name}: {len(found)} programs, {len(registers)} kernels, up to {max(registers, default=0)} registers")
        programs += len(found)
    print(f"{programs} programs compiled, {time.monotonic() - began:.0f} s")
    return 0 if passed and programs else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--all", action="store_true", help="the kernels of all example networks")
    return all_networks() if parser.parse_args().all else samples()


def samples():
    """Compiles all files of kernels/ and the examples of generated kernels; returns the exit status."""
    began = time.monotonic()
    try:
        compiler = Compiler(fetch.nvrtc())
    except fetch.Unavailable as reason:
        print(f"cannot check the kernels: {reason}")
        return 1
    if not refuses_what_is_planted(compiler):
        return 1

    programs = [
        (file, architecture, element)
        for file in sorted(KERNELS.glob("*.cu"))
        for architecture in ARCHITECTURES
        for element in ELEMENTS
    ]
    programs += [(file, architecture, "f32") for file in sorted(PLANS.glob("*.cu")) for architecture in ARCHITECTURES]
    needs, failed = defaultdict(dict), 0

    def compiled(program):
        file, architecture, element = program
        try:
            return compiler.compile(file.name, file.read_text(), architecture, element)
        except Refused as log:
            return log

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        for (file, architecture, element), found in zip(programs, workers.map(compiled, programs)):
            if isinstance(found, Refused):
                failed += 1
                print(f"{file.name} for {architecture}, {element}: refused\n{found}")
                continue
            # Generated kernels are numbered, and not listed one by one.
            for name, need in found.items() if file.parent == KERNELS else ():
                needs[name][architecture, element] = need
    if not failed:
        print_table(needs)
    seconds = time.monotonic() - began
    print(f"{len(programs) - failed} programs compiled, {failed} refused, {len(needs)} kernels, {seconds:.0f} s")
    return 1 if failed or not needs else 0


if __name__ == "__main__":
    sys.exit(main())
