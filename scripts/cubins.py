"""Compiles the kernels of example networks with NVRTC, for cards that need not be there, and reads what each needs."""

import os
import struct
import subprocess
from collections import namedtuple

import fetch

#: The test of the suite `planner` that compiles.
TEST = "kernels::of_every_network"
#: A kernel's registers for a thread, and the bytes that a thread keeps in memory for lack of registers or for arrays.
Needs = namedtuple("Needs", "registers frame_bytes")
#: A binary in the server's folder begins with its length.
LENGTH_BYTES = 8
#: Attributes in a binary's section .nv.info; each has a symbol and a number.
INFO, REGISTERS, FRAME_BYTES = ".nv.info", 0x2F, 0x11
#: The format of attributes whose head has the length of the value that follows. All others have the value in the head.
SIZED = 4


def compiled(planner, folder, capabilities):
    """Compiles the kernels of all example networks by a test of the suite that the command `planner` starts; returns
    whether none was refused. `folder` gets one folder for each compute capability, as the server keeps kernels."""
    library = str(fetch.nvrtc())
    paths = [library, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {
        **os.environ, "LD_LIBRARY_PATH": ":".join(paths), "KERNELS_FOLDER": str(folder),
        "KERNELS_CAPABILITIES": ",".join(capabilities),
    }  # fmt: skip
    command = [*planner, "--exact", TEST, "--ignored", "--nocapture", "--test-threads=1"]
    return subprocess.run([str(part) for part in command], cwd=fetch.ROOT, env=environment, check=False).returncode == 0


def sections(binary):
    """Yields the sections of a binary in the format ELF: names, contents and the numbers of their symbols."""
    (start,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names = struct.unpack_from("<HHH", binary, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", binary, start + index * size) for index in range(count)]
    texts = heads[names][4]
    for name, _, _, _, offset, length, _, info, _, _ in heads:
        begin = texts + name
        yield binary[begin : binary.index(b"\0", begin)].decode(), binary[offset : offset + length], info & 0xFFFFFF


def needs(binary):
    """Returns what each kernel of a binary needs, by name."""
    kernels, found = {}, {REGISTERS: {}, FRAME_BYTES: {}}
    for name, content, symbol in sections(binary):
        if name.startswith(".text."):
            kernels[symbol] = name.removeprefix(".text.")
        at = 0
        while name == INFO and at < len(content):
            form, attribute, length = struct.unpack_from("<BBH", content, at)
            if form == SIZED and attribute in found:
                symbol, number = struct.unpack_from("<II", content, at + 4)
                found[attribute][symbol] = number
            at += 4 + (length if form == SIZED else 0)
    return {
        name: Needs(found[REGISTERS][symbol], found[FRAME_BYTES].get(symbol, 0))
        for symbol, name in kernels.items()
        if symbol in found[REGISTERS]
    }


def kept(folder):
    """Yields the binaries in a folder, as the server keeps them: files and contents."""
    for file in sorted(folder.glob("*.cubin")):
        yield file, file.read_bytes()[LENGTH_BYTES:]
