"""Licences and sources of the crates that the program is made of, against deploy/licenses/deny.toml. A part of `make
lint`. Where cargo-deny cannot be had, that is said; with CI set in the environment it is a failure.
"""

import os
import subprocess
import sys

from fetch import ROOT, Unavailable, say
from package_tools import cargo_deny

#: Not the advisories: their database is in no package registry.
CHECKS = ("licenses", "bans", "sources")


def main():
    try:
        program = cargo_deny()
    except Unavailable as reason:
        say(f"without cargo-deny: {reason}")
        return 1 if os.environ.get("CI") else 0
    config = ROOT / "deploy" / "licenses" / "deny.toml"
    return subprocess.run([program, "--config", config, "check", *CHECKS], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
