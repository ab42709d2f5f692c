"""Text out of archives."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest

from bench.corpus_text import documents, html_text, wanted

PROSE = "A line that is long enough to be kept. " * 10


def test_a_page_loses_its_markup_and_keeps_its_words() -> None:
    page = "<html><head><title>x</title></head><body><h1>One &amp; two</h1><p>a &lt; b</p><script>no()</script></body>"
    assert html_text(page) == "One & two\n\na < b"


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("a.py", 1000, True),
        ("usr/share/doc/a.html.gz", 1000, True),
        ("usr/share/man/man1/ls.1.gz", 1000, True),
        ("a.png", 1000, False),
        ("a.py", 10, False),
        ("a.py", 50_000_000, False),
    ],
)
def test_only_text_of_a_sensible_size_is_wanted(name: str, size: int, expected: bool) -> None:
    assert wanted(name, size) is expected


def test_a_folder_and_a_wheel_give_the_same_documents(tmp_path: Path) -> None:
    folder, wheel = tmp_path / "folder", tmp_path / "some.whl"
    folder.mkdir()
    (folder / "a.txt").write_text(PROSE)
    (folder / "b.txt.gz").write_bytes(gzip.compress((PROSE + "Other. ").encode() * 20, mtime=0))
    (folder / "c.bin").write_text(PROSE)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("a.txt", "b.txt.gz", "c.bin"):
            archive.write(folder / name, name)
    found = list(documents(folder, 1_000_000))
    assert found[0] == PROSE
    assert found == list(documents(wheel, 1_000_000))


def test_a_source_ends_when_it_has_given_enough(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(PROSE + name)
    assert list(documents(tmp_path, len(PROSE) + 2)) == [PROSE + "a", PROSE + "b"]
