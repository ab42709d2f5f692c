"""The documents of a file as batches of ids, whatever kind of file it is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.ngram.batch import BATCH_TOKENS, Batch, pack
from dartspec.services.ngram.inputs import Reading, Source
from dartspec.services.ngram.parquet import read_column
from dartspec.services.ngram.shards import checked_ids, read_shard
from dartspec.services.ngram.text import Document, field_texts, read_text
from dartspec.services.ngram.tokenise import Tokeniser


class Corpus:
    """Reads files. The tokenizer is loaded when the first text comes."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._tokeniser: Tokeniser | None = None

    def batches(self, source: Source, skip: int) -> Iterator[Batch]:
        """The documents that this job takes, after the first ``skip``. Raises InvalidArgument naming the place."""
        if source.kind.startswith("ids"):
            return read_shard(source, self._reading, skip)
        if source.kind == "parquet":
            return self._parquet(source, skip)
        return self._texts().batches(read_text(source, self._reading, skip))

    def _texts(self) -> Tokeniser:
        if self._tokeniser is None:
            self._tokeniser = Tokeniser(Path(self._reading.tokenizer))
        return self._tokeniser

    def _parquet(self, source: Source, skip: int) -> Iterator[Batch]:
        rows = read_column(source, self._reading, skip)
        first = next(rows, None)
        if first is None:
            return
        rows = chain([first], rows)
        value = first[1]
        if isinstance(value, list) and all(isinstance(token, int) for token in value):
            yield from _id_batches(source, rows)
            return
        if not self._reading.tokenizer:
            raise InvalidArgument("--tokenizer", f"must be given to read the text in {source.path}")
        texts = (Document(row, field_texts(value, f"row {row} of {source.path}"), done) for row, value, done in rows)
        yield from self._texts().batches(texts)


def _id_batches(source: Source, rows: Iterator[tuple[int, Any, int]]) -> Iterator[Batch]:
    held: list[list[int]] = []
    tokens = 0
    for row, value, done in rows:
        held.append(checked_ids(value, f"row {row} of {source.path}"))
        tokens += len(held[-1])
        if tokens >= BATCH_TOKENS:
            yield pack(held, row + 1, done)
            held, tokens = [], 0
    if held:
        yield pack(held, row + 1, done)
