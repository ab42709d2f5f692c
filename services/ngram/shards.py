"""Token shards: documents of token ids in files.

- `.npz` with `tokens` uint16 or uint32 [T] and `offsets` int64 [documents + 1];
- `.jsonl` with a list of ids, or an object with such a list under `ids`, on each line;
- anything else: whitespace-separated ids, one document a line.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dartspec.services.common.errors import InvalidArgument, NotFound

# Tokens handed over at a time from text shards.
BATCH_TOKENS = 1 << 20
MAX_ID = 2**32 - 1

Documents = tuple[NDArray[Any], NDArray[np.int64]]
"""tokens uint16 or uint32 [T] and offsets int64 [documents + 1]."""


def read_shard(path: Path) -> Iterator[Documents]:
    """The documents of one shard in batches. Raises NotFound, or InvalidArgument naming the file and line."""
    if not path.is_file():
        raise NotFound(f"shard {path} does not exist or is not a file", field="shards")
    if path.suffix == ".npz":
        yield _read_npz(path)
        return
    parse = _parse_json if path.suffix == ".jsonl" else _parse_words
    batch: list[list[int]] = []
    held = 0
    with path.open(encoding="utf-8", errors="strict") as lines:
        for number, line in enumerate(_decoded(lines, path), start=1):
            if line.strip():
                batch.append(_checked(parse(line, path, number), path, number))
                held += len(batch[-1])
            if held >= BATCH_TOKENS:
                yield _pack(batch)
                batch, held = [], 0
    if batch:
        yield _pack(batch)


def _decoded(lines: Iterator[str], path: Path) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            "shards", f"{path} is not text: {error}; expected .npz, .jsonl or lines of ids"
        ) from error


def _read_npz(path: Path) -> Documents:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            tokens, offsets = arrays["tokens"], arrays["offsets"]
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise InvalidArgument("shards", f"{path} does not hold arrays `tokens` and `offsets`: {error}") from error
    if tokens.dtype not in (np.uint16, np.uint32) or tokens.ndim != 1:
        message = f"`tokens` of {path} must be uint16 or uint32 [T], got {tokens.dtype} {list(tokens.shape)}"
        raise InvalidArgument("shards", message)
    if offsets.dtype != np.int64 or offsets.ndim != 1:
        message = f"`offsets` of {path} must be int64 [documents + 1], got {offsets.dtype} {list(offsets.shape)}"
        raise InvalidArgument("shards", message)
    return tokens, offsets


def _parse_json(line: str, path: Path, number: int) -> Any:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument("shards", f"{path}:{number} is not JSON: {error}") from error
    return value.get("ids") if isinstance(value, dict) else value


def _parse_words(line: str, path: Path, number: int) -> Any:
    try:
        return [int(word) for word in line.split()]
    except ValueError as error:
        raise InvalidArgument("shards", f"{path}:{number} does not hold token ids: {error}") from error


def _checked(ids: Any, path: Path, number: int) -> list[int]:
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise InvalidArgument("shards", f"{path}:{number} must hold a list of token ids, alone or under `ids`")
    if ids and not 0 <= min(ids) <= max(ids) <= MAX_ID:
        raise InvalidArgument("shards", f"{path}:{number} holds ids from {min(ids)} to {max(ids)}; they start at 0")
    return ids


def _pack(documents: list[list[int]]) -> Documents:
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(document) for document in documents], out=offsets[1:])
    return np.fromiter((token for document in documents for token in document), np.uint32, int(offsets[-1])), offsets
