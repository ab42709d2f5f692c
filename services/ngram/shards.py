"""Token shards: documents of token ids in files.

- `.npz` with `tokens` uint16 or uint32 [T] and `offsets` int64 [documents + 1];
- `.jsonl` with a list of ids, or an object with such a list under `ids`, on each line; or a text of `dartspec draft
  generate`, of which the answer counts, `o`, since only that is the target's own;
- text: whitespace-separated ids, one document a line.

The last two may be packed with gzip.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.ngram.batch import BATCH_TOKENS, Batch, pack
from dartspec.services.ngram.inputs import Reading, Source
from dartspec.services.ngram.lines import numbered_lines
from dartspec.services.ngram.npz import read_npz

MAX_ID = 2**32 - 1


def read_shard(source: Source, reading: Reading, skip: int) -> Iterator[Batch]:
    """The documents of one shard after the first ``skip``. Raises InvalidArgument naming the file and line."""
    if source.kind == "ids-npz":
        yield from read_npz(source, reading, skip)
        return
    parse = _parse_json if source.kind == "ids-jsonl" else _parse_words
    yield from _read_lines(source, reading, skip, parse)


def _read_lines(
    source: Source, reading: Reading, skip: int, parse: Callable[[bytes, Path, int], Any]
) -> Iterator[Batch]:
    batch: list[list[int]] = []
    held = document = 0
    for number, line, done in numbered_lines(source.path):
        if not line.strip():
            continue
        if document >= skip and reading.takes(source.number, document):
            batch.append(checked_ids(parse(line, source.path, number), f"{source.path}:{number}"))
            held += len(batch[-1])
        document += 1
        if held >= BATCH_TOKENS:
            yield pack(batch, document, done)
            batch, held = [], 0
    yield pack(batch, document, source.bytes)


def _parse_json(line: bytes, path: Path, number: int) -> Any:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument("inputs", f"{path}:{number} is not JSON: {error}") from error
    return value.get("ids", value.get("o")) if isinstance(value, dict) else value


def _parse_words(line: bytes, path: Path, number: int) -> Any:
    try:
        return [int(word) for word in line.split()]
    except ValueError as error:
        message = f"{path}:{number} does not hold token ids: {error}; give the --tokenizer of text"
        raise InvalidArgument("inputs", message) from error


def checked_ids(ids: Any, where: str) -> list[int]:
    """A list of ids that fit 32 bits. Raises InvalidArgument naming the place."""
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise InvalidArgument("inputs", f"{where} must hold a list of token ids, alone or under `ids`")
    if ids and not 0 <= min(ids) <= max(ids) <= MAX_ID:
        raise InvalidArgument("inputs", f"{where} holds ids from {min(ids)} to {max(ids)}; they start at 0")
    return ids
