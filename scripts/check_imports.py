"""Finds cycles of imports among the files of a folder of src, or of a crate, except between a module and its own parts.

    python scripts/check_imports.py executor crates/batching

Each cycle is printed with the imports that form it; the exit code is 1 if there is any.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USE = re.compile(r"^(?:pub(?:\([^)]*\))? )?use\s+((?:super|self|crate)\b[^;]*);", re.MULTILINE)
INLINE_TESTS = "#[cfg(test)]\nmod tests {"


def module_of(file, source):
    """Returns the module path of a file, as a tuple of names."""
    parts = file.relative_to(source).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib") else parts


def leaves(tree, prefix=()):
    """Returns the paths of a use tree."""
    head, brace, rest = tree.partition("{")
    names = [name for name in re.sub(r"\s+as\s+\w+|\s", "", head).split("::") if name]
    if not brace:
        yield prefix + tuple(names)
        return
    depth, item = 0, ""
    for letter in rest[: rest.rindex("}")]:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            yield from leaves(item, prefix + tuple(names))
            item = ""
        else:
            item += letter
    if item.strip():
        yield from leaves(item, prefix + tuple(names))


def absolute(path, module):
    """Resolves a path in a module, without its first word."""
    if path[0] == "crate":
        return path[1:]
    if path[0] == "self":
        return module + path[1:]
    ups = next((at for at, name in enumerate(path) if name != "super"), len(path))
    return module[: len(module) - ups] + path[ups:]


def imports(folder):
    """Returns which files of a folder of src, or of a crate, import which others."""
    crate, folder = (ROOT / folder, "") if folder.startswith("crates/") else (ROOT, folder)
    source = crate / "src"
    files = [file for file in (source / folder).rglob("*.rs") if "tests" not in file.with_suffix("").parts]
    modules = {module_of(file, source): file for file in files}
    graph = defaultdict(set)
    for module, file in modules.items():
        text = file.read_text(encoding="utf-8").split(INLINE_TESTS)[0]
        for use in USE.findall(text):
            for leaf in leaves(use):
                target = absolute(leaf, module)
                while target and target not in modules:
                    target = target[:-1]
                related = target == module[: len(target)] or module == target[: len(module)]
                if target and not related:
                    graph[module].add(target)
    return graph


def reachable(graph, start):
    """Returns the modules that a module imports, directly or indirectly."""
    found, open_ends = set(), [start]
    while open_ends:
        for target in graph[open_ends.pop()] - found:
            found.add(target)
            open_ends.append(target)
    return found


def main(folders):
    """Prints the cycles; returns how many imports are part of one."""
    count = 0
    for folder in folders:
        graph = imports(folder)
        for module in sorted(graph):
            for target in sorted(graph[module]):
                if module in reachable(graph, target):
                    print(f"{'/'.join(module)} imports {'/'.join(target)}, which imports it in turn")
                    count += 1
    return count


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
