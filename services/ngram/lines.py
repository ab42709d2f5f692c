"""The bytes of a file and its lines, packed with gzip or not."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from dartspec.services.common.errors import InvalidArgument

PACKED = ".gz"


def ending(path: Path) -> str:
    """The ending of the name, without that of gzip: ``.jsonl`` of ``a.jsonl.gz``."""
    return Path(path.stem).suffix if path.suffix == PACKED else path.suffix


def read_start(path: Path, count: int) -> bytes:
    """The first ``count`` bytes of what the file holds. Raises InvalidArgument if it cannot be unpacked."""
    with path.open("rb") as file:
        try:
            return _unpacked(path, file).read(count)
        except (EOFError, OSError, zlib.error) as error:
            raise _damaged(path, error) from error


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Lines with their numbers from 1 and the bytes of the file that were read by then. Raises as `read_start`."""
    with path.open("rb") as file:
        packed = path.suffix == PACKED
        done = 0
        try:
            for number, line in enumerate(_unpacked(path, file), start=1):
                done = file.tell() if packed else done + len(line)
                yield number, line, done
        except (EOFError, OSError, zlib.error) as error:
            raise _damaged(path, error) from error


def _unpacked(path: Path, file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if path.suffix == PACKED else file


def _damaged(path: Path, error: Exception) -> InvalidArgument:
    return InvalidArgument("inputs", f"{path} cannot be read to its end: {error}")
