"""A server in its own root file system, as in a container: not root, no privileges to gain, a read-only root, a process
namespace, and only the given folders from outside. It uses this machine's network, so that clients can reach it.

Needs root, and a mount namespace that belongs to the caller alone (`enter_mount_namespace`), so that mounts end with
it.
"""

import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fetch
from fetch import CACHE, Unavailable, made_from, replacing, run
from server import Server

#: Maximum lifetime of a server whose parent process was killed, in seconds.
MOST_SECONDS = 600
#: The PATH of containers.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IN_NAMESPACE = "PATERNOSTER_MOUNT_NAMESPACE"

#: $1 is the root, $2 user:group, then pairs of a source and a target up to "--", then the command to run. The source
#: "tmpfs" is an empty writable folder; any other is mounted read-only.
ENTER = """set -eu
root=$1 user=$2
shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
while [ "$1" != -- ]; do
    if [ "$1" = tmpfs ]; then
        mount -t tmpfs -o "mode=0700,uid=${user%:*},gid=${user#*:}" tmpfs "$root$2"
    else
        mount --bind "$1" "$root$2"
        mount -o remount,bind,ro "$root$2"
    fi
    shift 2
done
shift
exec setpriv --no-new-privs chroot --userspec="$user" "$root" /usr/bin/env -i "$@"
"""

#: Folders that Debian's slim images leave out of each package.
SLIM = ["doc/*", "man/*", "locale/*", "info/*", "groff/*", "lintian/*"]


def enter_mount_namespace():
    """Moves the script into a new mount namespace, by starting it again there."""
    if os.environ.get(IN_NAMESPACE):
        return
    if not fetch.is_root():
        raise Unavailable("a root file system is entered by root only")
    unshare = shutil.which("unshare")
    words = [unshare, "--mount", "--propagation", "private", sys.executable, *sys.argv]
    if subprocess.run([*words[:4], "true"], stderr=subprocess.DEVNULL).returncode != 0:
        raise Unavailable("this machine allows no mount namespaces")
    os.environ[IN_NAMESPACE] = "1"
    os.execv(unshare, words)


#: The date in files such as /etc/shadow, which therefore do not depend on the day: 1 January 2000.
DEBIAN_DATE = "946684800"
#: How Debian names machines.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: The emulator of AArch64. The kernel is told in INTERPRETERS which interpreter runs a program, by the start of those
#: of AArch64: a header of ELF, 64 bits, little-endian, of a program or a library for machine 183.
EMULATOR = "qemu-aarch64-static"
INTERPRETERS = Path("/proc/sys/fs/binfmt_misc")
HEADER, MASK = "7f454c460201010000000000000000000200b700", "ffffffffffffff00fffffffffffffffffeffffff"


def debian(suite, target, machine=None):
    """Unpacks a minimal Debian for a machine, by default this one, into a folder, without what slim images leave out.
    Debian's mirrors have only the newest packages of a suite, so this is no exact version; apt checks their
    signatures."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise Unavailable(f"expected a machine of {', '.join(ARCHITECTURES)}, this is {machine}")
    folder = CACHE / (f"debian-{suite}" if machine == platform.machine() else f"debian-{suite}-{machine}")
    note = f"minbase {suite} {machine} without {' '.join(SLIM)}\n"
    if not made_from(folder, note):
        mmdebstrap = fetch.debian_program("mmdebstrap", "mmdebstrap")
        fetch.say(f"Debian {suite} (mmdebstrap, about 1 min)")
        excluded = [f"--dpkgopt=path-exclude=/usr/share/{pattern}" for pattern in SLIM]
        included = "--dpkgopt=path-include=/usr/share/doc/*/copyright"
        with replacing(folder, note) as fresh:
            kind = ["--mode=root", "--variant=minbase", f"--architectures={ARCHITECTURES[machine]}"]
            environment = {**os.environ, "SOURCE_DATE_EPOCH": DEBIAN_DATE}
            run([mmdebstrap, *kind, *excluded, included, suite, fresh / "root.tar"], env=environment)
    target.mkdir(parents=True)
    run(["tar", "--numeric-owner", "-xpf", folder / "root.tar", "-C", target])


@contextlib.contextmanager
def interpreted(machine):
    """Lets the kernel run programs for AArch64 through QEMU, also in other roots, if that is the machine, and unless
    it does so already."""
    if machine == platform.machine():
        yield
        return
    if machine != "aarch64":
        raise Unavailable(f"programs for {machine} do not run on {platform.machine()}")
    program = fetch.debian_program(EMULATOR, "qemu-user-static")
    if not (INTERPRETERS / "register").exists():
        run(["mount", "-t", "binfmt_misc", "binfmt_misc", INTERPRETERS])
    if (INTERPRETERS / "qemu-aarch64").exists():
        yield
        return
    header, mask = (re.sub("..", r"\\x\g<0>", text) for text in (HEADER, MASK))
    interpreter = INTERPRETERS / f"paternoster-{machine}"
    if interpreter.exists():
        # Of a run that was killed.
        interpreter.write_text("-1")
    # F: the file is opened now, so that it need not exist in the other root.
    (INTERPRETERS / "register").write_text(f":{interpreter.name}:M::{header}:{mask}:{program}:F")
    try:
        yield
    finally:
        interpreter.write_text("-1")


class Contained(Server):
    """A server in a root file system. `command` are its arguments, `variables` its environment. `mounts` maps folders
    in the root to what is mounted there: a folder outside, or "tmpfs"."""

    def __init__(self, root, user, command, variables, mounts, log):
        super().__init__(root, program=shutil.which("timeout"), log=log)
        self.root = root
        self.user = user
        self.words = [str(word) for word in command]
        self.variables = {"PATH": PATH, **variables}
        self.mounts = mounts

    def command(self):
        mounts = [str(part) for target, source in self.mounts.items() for part in (source, target)]
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        return [
            self.program, "--kill-after=10", MOST_SECONDS, "unshare", "--mount", "--pid", "--fork",
            "sh", "-c", ENTER, "sh", self.root, self.user, *mounts, "--", *variables, *self.words, *self.where(),
        ]  # fmt: skip

    @property
    def pid(self):
        """Returns the id of the server's own process: the last of the chain that `command` starts."""
        pid = self.process.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            (pid,) = map(int, children)
        return pid

    def inside(self, *command, timeout_s=30):
        """Runs a command in the server's root and as its user; returns (status, output)."""
        user, group = self.user.split(":")
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--root", "--wd=/"]
        enter += [f"--setuid={user}", f"--setgid={group}", "env", "-i", f"PATH={PATH}"]
        done = subprocess.run(
            [*enter, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s
        )
        return done.returncode, done.stdout

    def stop(self, timeout_s=45):
        """Sends SIGTERM to the server, which is the first process of its namespace, and returns its exit status."""
        if self.process.poll() is None:
            try:
                os.kill(self.pid, signal.SIGTERM)
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.kill(self.pid, signal.SIGKILL)
        return self.process.wait()
