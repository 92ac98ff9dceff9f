"""The pages of docs as a book, in target/book. Links that lead out of docs are replaced by their text, since the book
has only the pages of docs. Started by `make book`; the first time, cargo compiles mdbook for it.
"""

import re
import shutil
import sys

import package_tools
from check_text import LINK
from fetch import CACHE, ROOT, Unavailable, run, say

DOCS = ROOT / "docs"
STAGE = CACHE / "book"
OUT = ROOT / "target" / "book"


def within(page):
    """Returns the text of a page, without links that lead out of docs."""

    def kept(link):
        target = link[1].partition("#")[0]
        if not target or re.match(r"[a-z]+:", target) or DOCS in (page.parent / target).resolve().parents:
            return link[0]
        words = link[0][1 : -len(link[1]) - 3]
        return f"{words} (`{(page.parent / target).resolve().relative_to(ROOT)}`)"

    return LINK.sub(kept, page.read_text(encoding="utf-8"))


def main():
    try:
        mdbook = package_tools.mdbook()
    except Unavailable as reason:
        say(f"cannot make the book: {reason}")
        return 1
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(DOCS, STAGE / "docs")
    shutil.copy(ROOT / "book.toml", STAGE)
    for page in DOCS.rglob("*.md"):
        (STAGE / "docs" / page.relative_to(DOCS)).write_text(within(page), encoding="utf-8")
    run([mdbook, "build", "--dest-dir", OUT, STAGE])
    say(f"{OUT.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
