"""The checks of prose find the faults that they are for, and nothing else."""

import subprocess

import check_text
import pytest

RIGHT = """# A page

[Here](#second-heading), [there](other.md#code-with-signs), [far](https://example.com/no-such-page), `[no](link.md)`.

```
[neither](is-this.md), anew
```

## Second `heading`
"""


@pytest.fixture
def folder(tmp_path):
    """Writes a repository with two pages of docs, both without faults."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "words.txt").write_text("# comment\nanew = again\n")
    (tmp_path / "docs" / "page.md").write_text(RIGHT)
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## Code: with [signs](page.md)!\n")
    (tmp_path / "docs" / "SUMMARY.md").write_text("[a](page.md)\n[b](other.md)\n")
    return tmp_path


def faults(folder):
    files = check_text.tracked(folder)
    return [fault.removeprefix(f"{folder}/") for check in check_text.CHECKS for fault in check(files, folder)]


def test_what_is_right_has_no_faults(folder):
    assert faults(folder) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[x](missing.md)", "docs/page.md:10: 'missing.md' leads nowhere"),
        ("[x](../../outside.md)", "docs/page.md:10: '../../outside.md' leads nowhere"),
        ("[x](#third)", "docs/page.md:10: '#third' names no heading of page.md"),
        ("![x](other.md#code)", "docs/page.md:10: 'other.md#code' names no heading of other.md"),
        ("It is made Anew.", "docs/page.md:10: 'Anew', expected again"),
        ("word " * 30, "docs/page.md:10: 150 columns, expected at most 120"),
    ],
)
def test_what_is_wrong_is_found_with_its_place(folder, line, fault):
    with (folder / "docs" / "page.md").open("a") as page:
        page.write(line + "\n")
    assert faults(folder) == [fault]


def test_a_second_heading_of_the_same_name_has_an_anchor_of_its_own(folder):
    with (folder / "docs" / "page.md").open("a") as page:
        page.write("## Second heading\n\n[x](#second-heading-1)\n")
    assert faults(folder) == []


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("a.rs", "/// It is made anew.", 1),
        ("a.rs", 'let anew = "anew";', 0),
        ("a.rs", "    // " + "word " * 30, 1),
        ("a.rs", "call(" + "argument, " * 20 + ")", 0),
        ("a.py", "#: anew", 1),
        ("a.py", "anew = 1", 0),
    ],
)
def test_of_sources_comments_are_read(folder, name, line, expected):
    (folder / name).write_text(line + "\n")
    assert len(faults(folder)) == expected


def test_an_anchor_that_a_page_sets_itself_is_one(folder):
    with (folder / "docs" / "page.md").open("a") as page:
        page.write('<a id="own"></a>Text, and [a link](#own).\n')
    assert faults(folder) == []


def test_a_page_that_the_book_does_not_have_is_named(folder):
    (folder / "docs" / "new.md").write_text("# New\n")
    assert faults(folder) == ["docs/SUMMARY.md: does not list new.md"]
