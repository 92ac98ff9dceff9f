"""Checks prose: lines of at most 120 columns, words that the project does not use (scripts/words.txt), spelling, and
links. Part of `make lint`.

    python3 scripts/check_text.py [FOLDER]

Each fault is printed as file:line with what was expected; the exit code is 1 if there is any. If the spelling checker
is not available, the check says so; with CI set in the environment, that is a failure.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from fetch import ROOT, Unavailable, say
from package_tools import typos

WIDTH = 120
#: Patterns of comments, by file suffix. Pages are prose too.
COMMENTS = {".rs": r"//[/!]?(?: |$)", ".cu": r"//(?: |$)", ".h": r"//(?: |$)", ".py": r"#:?(?: |$)"}
#: Folders of recorded or generated files.
NOT_PROSE = ("tests/corpus/", "tests/data/", "crates/batching/proptest-regressions/", "crates/wire/proptest-regressions/", "proto/", "crates/onnx/proto/")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
ANCHOR = re.compile(r'<a id="([^"]+)">')
LONE_LINK = re.compile(r"(?:[-*] )?" + LINK.pattern)
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$")
FENCE = re.compile(r"^ *(?:```|~~~)")


def tracked(folder):
    """Returns the files that git tracks, or would track if all were added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout.decode()
    files = (folder / name for name in sorted(set(listed.split("\0"))) if name and not name.startswith(NOT_PROSE))
    return [file for file in files if file.is_file()]


def prose(file):
    """Yields the lines of a file that are prose, with their numbers: comments, or a page's text without its code."""
    if file.suffix != ".md" and file.suffix not in COMMENTS:
        return
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    if file.suffix == ".md":
        is_code = False
        for number, line in lines:
            if FENCE.match(line):
                is_code = not is_code
            elif not is_code:
                yield number, line
    else:
        comment = re.compile(r"\s*" + COMMENTS[file.suffix])
        yield from ((number, line) for number, line in lines if comment.match(line))


def is_unbreakable(line):
    """Returns whether a line cannot be wrapped: rows of tables, pictures, lone links and addresses, code."""
    text = line.lstrip("/!#: ")
    is_code = line.startswith("    ") and line.lstrip()[:2] not in ("- ", "* ", "//", "# ")
    return text.startswith(("|", "![", "http")) or LONE_LINK.fullmatch(text) is not None or is_code


def check_lines(files, _):
    for file in files:
        for number, line in prose(file):
            if len(line) > WIDTH and not is_unbreakable(line):
                yield f"{file}:{number}: {len(line)} columns, expected at most {WIDTH}"


def unused_words(folder):
    """Returns pairs of a pattern and what to write instead."""
    lines = (folder / "scripts" / "words.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return [(re.compile(rf"\b{re.escape(word.strip())}\b", re.IGNORECASE), better.strip()) for word, better in pairs]


def check_words(files, folder):
    words = unused_words(folder)
    for file in files:
        for number, line in prose(file):
            for word, better in words:
                if found := word.search(line):
                    yield f"{file}:{number}: '{found[0]}', expected {better}"


def anchors(page):
    """Returns the anchors of a page's headings, as GitHub and mdBook generate them, and those that the page sets
    itself."""
    seen = {}
    for _, line in prose(page):
        yield from ANCHOR.findall(line)
        if heading := HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            count = seen[anchor] = seen.get(anchor, -1) + 1
            yield f"{anchor}-{count}" if count else anchor


def check_links(files, folder):
    for page in (file for file in files if file.suffix == ".md"):
        for number, line in prose(page):
            for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                linked = (page.parent / name).resolve() if name else page.resolve()
                if not linked.exists() or folder.resolve() not in linked.parents:
                    yield f"{page}:{number}: '{target}' leads nowhere"
                elif anchor and linked.suffix == ".md" and anchor not in anchors(linked):
                    yield f"{page}:{number}: '{target}' names no heading of {linked.name}"


def check_summary(_, folder):
    """Checks that the book has every page of docs."""
    docs = folder / "docs"
    summary = docs / "SUMMARY.md"
    listed = {(docs / target).resolve() for target in LINK.findall(summary.read_text(encoding="utf-8"))}
    pages = {page.resolve() for page in docs.rglob("*.md")} - {summary.resolve()}
    for page in sorted(pages - listed):
        yield f"{summary}: does not list {page.relative_to(docs.resolve())}"


def check_spelling(_, folder):
    done = subprocess.run([typos(), "--format", "brief", folder], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    yield from done.stdout.splitlines()
    if done.returncode not in (0, 2):
        yield f"typos ended with {done.returncode}"


CHECKS = (check_lines, check_words, check_links, check_summary)


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(os.path.relpath(ROOT))
    files = tracked(folder)
    faults = [fault for check in CHECKS for fault in check(files, folder)]
    try:
        faults += check_spelling(files, folder)
    except Unavailable as reason:
        say(f"without typos: {reason}")
        faults += ["typos could not be had, and CI asks for it"] if os.environ.get("CI") else []
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
