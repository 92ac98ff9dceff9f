"""Checks the licences and sources of the program's crates against deploy/licenses/deny.toml. Part of `make lint`. If
cargo-deny is not available, the check says so; with CI set in the environment, that is a failure.
"""

import os
import subprocess
import sys

from fetch import ROOT, Unavailable, say
from package_tools import cargo_deny

#: Advisories are left out, because no package registry has their database.
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
