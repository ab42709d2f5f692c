"""JSON Lines files, plain or .gz, with errors that say where."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from dartspec.services.common.errors import InvalidArgument, NotFound

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz")


def open_text(path: Path) -> IO[str]:
    """The file for reading as UTF-8, unpacked if its name ends in .gz."""
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def json_lines(flag: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, object) of every line that is not blank; ``flag`` names the option in errors.

    Raises NotFound for a file that cannot be read, InvalidArgument for a line that is not a JSON object.
    """
    try:
        with open_text(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}, line {number}", _object(flag, f"{path}, line {number}", line)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise NotFound(f"{flag} {path}: cannot be read: {error}") from error


def files_of(flag: str, paths: Iterable[Path], suffixes: tuple[str, ...] = JSONL_SUFFIXES) -> list[Path]:
    """The files themselves, and of each directory those inside with one of the suffixes, by name.

    Raises NotFound for what does not exist, InvalidArgument for a directory without such a file.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.name.endswith(suffixes))
            if not inside:
                raise InvalidArgument(flag, f"{path} holds no file that ends in {' or '.join(suffixes)}")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise NotFound(f"{flag} {path}: does not exist")
    return found


def _object(flag: str, where: str, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(flag, f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidArgument(flag, f"{where}: not a JSON object but {type(value).__name__}")
    return value
