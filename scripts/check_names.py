"""Checks that no name of a public type stands in two crates: a reader of an import knows which is meant. Started by
`make lint`.

    python3 scripts/check_names.py

Types within functions, tests and generated code do not count, nor those of one crate in several of its modules.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TYPE = re.compile(r"^(?: {4})*pub (?:unsafe )?(?:struct|enum|union|trait|type) (\w+)", re.MULTILINE)


def is_test(file):
    return "tests" in file.parts or file.stem == "tests"


def main():
    found = defaultdict(dict)
    for crate in [ROOT, *(ROOT / "crates").iterdir()]:
        for file in sorted((crate / "src").rglob("*.rs")):
            if not is_test(file.relative_to(crate)):
                for name in TYPE.findall(file.read_text(encoding="utf-8")):
                    found[name].setdefault(crate, file)
    double = {name: files for name, files in found.items() if len(files) > 1}
    for name, files in sorted(double.items()):
        print(f"{name}: {', '.join(str(file.relative_to(ROOT)) for file in files.values())}")
    if double:
        print(f"{len(double)} names of public types stand in several crates, expected none")
    return 1 if double else 0


if __name__ == "__main__":
    sys.exit(main())
