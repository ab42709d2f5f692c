"""The files of a corpus: which there are, what is in them, and which documents a job takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dartspec.services.common.errors import InvalidArgument, NotFound
from dartspec.services.ngram.lines import ending, numbered_lines, read_start

FORMATS = ("auto", "ids", "text", "jsonl", "parquet")
# Files of a folder that are taken without being named, unless --format says what they are.
_KNOWN = (".npz", ".jsonl", ".jsonl.gz", ".parquet", ".txt", ".txt.gz")
_PEEK_BYTES = 1 << 16


@dataclass(frozen=True)
class Reading:
    """How to read a corpus.

    format: one of FORMATS. tokenizer: a tokenizer.json for text, "" when there are only ids. field: where JSON lines
    and Parquet files hold the text. lines: whether each line of a plain text file is a document. part and parts: this
    job takes every ``parts``-th document, starting with number ``part`` from 0.
    """

    format: str = "auto"
    tokenizer: str = ""
    field: str = "text"
    lines: bool = False
    part: int = 0
    parts: int = 1

    def takes(self, source: int, document: int) -> bool:
        """Whether this job takes a document of a file, both numbered from 0."""
        return (source + document) % self.parts == self.part


@dataclass(frozen=True)
class Source:
    """One file. ``number`` counts the files, ``name`` is that below the folder that was given."""

    number: int
    path: Path
    name: str
    kind: str
    bytes: int
    mtime_ns: int

    def unchanged(self) -> bool:
        """Whether the file is still the one that was found."""
        now = self.path.stat()
        return (now.st_size, now.st_mtime_ns) == (self.bytes, self.mtime_ns)


def find_sources(paths: Sequence[Path], reading: Reading) -> list[Source]:
    """The files that paths name, folders walked in the order of names.

    Raises NotFound for a missing path, InvalidArgument for an empty folder and for text without a tokenizer.
    """
    if not paths:
        raise InvalidArgument("inputs", "name at least one file or folder")
    found: list[tuple[Path, str]] = []
    for path in paths:
        if path.is_dir():
            found += _walk(path, every=reading.format != "auto")
        elif path.is_file():
            found.append((path, path.name))
        else:
            raise NotFound(f"input {path} does not exist or is not a file", field="inputs")
    sources = []
    for number, (path, name) in enumerate(found):
        kind = _kind(path, reading)
        if kind.startswith("text") and not reading.tokenizer:
            raise InvalidArgument("--tokenizer", f"must be given to read the text in {path}")
        status = path.stat()
        sources.append(Source(number, path, name, kind, status.st_size, status.st_mtime_ns))
    return sources


def _walk(folder: Path, *, every: bool) -> list[tuple[Path, str]]:
    files = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in name.parts):
            continue
        if every or path.name.endswith(_KNOWN):
            files.append((path, name.as_posix()))
    if not files:
        wanted = "any file" if every else f"a {', '.join(_KNOWN)} file; name other files, or their --format"
        raise InvalidArgument("inputs", f"folder {folder} does not hold {wanted}")
    return files


def _kind(path: Path, reading: Reading) -> str:
    """ids-npz, ids-jsonl, ids-text, text-jsonl, text-lines, text or parquet."""
    if reading.format == "parquet" or (reading.format == "auto" and path.suffix == ".parquet"):
        return "parquet"
    if path.suffix == ".npz" and reading.format in ("auto", "ids"):
        return "ids-npz"
    if ending(path) == ".jsonl" and reading.format in ("auto", "ids"):
        return "ids-jsonl" if reading.format == "ids" or _holds_ids(path, reading) else "text-jsonl"
    if reading.format == "jsonl":
        return "text-jsonl"
    if reading.format == "ids" or (reading.format == "auto" and _is_numbers(path, reading)):
        return "ids-text"
    return "text-lines" if reading.lines else "text"


def _holds_ids(path: Path, reading: Reading) -> bool:
    """Whether the first line of JSON is a list of ids, alone or under ``ids``, or a text to train a head on."""
    line = next((line for _, line, _ in numbered_lines(path) if line.strip()), b"")
    try:
        value: Any = json.loads(line)
    except ValueError:
        return not reading.tokenizer
    if isinstance(value, dict):
        if "ids" in value or {"p", "o"} <= value.keys():
            return True
        return not reading.tokenizer and reading.field not in value and "messages" not in value
    return not isinstance(value, str)


def _is_numbers(path: Path, reading: Reading) -> bool:
    """Whether a text holds nothing but numbers; without a tokenizer it must."""
    if not reading.tokenizer:
        return True
    start = read_start(path, _PEEK_BYTES)
    return bool(start.strip()) and not start.strip(b"0123456789 \t\r\n")
