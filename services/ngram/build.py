"""Building an index from token shards, or from the public implementation's file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ngram_index
from tqdm import tqdm

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.ngram.errors import index_errors
from dartspec.services.ngram.shards import read_shard

MADE_BY = f"dartspec-ngram-index {ngram_index.__version__}"


def build_index(
    shards: Sequence[Path], output: Path, *, order: int, vocab_size: int, fingerprint: str, quiet: bool = False
) -> list[int]:
    """Count the documents of all shards into ``output``; returns the distinct n-grams by length.

    Equal shards give equal files. Raises InvalidArgument or NotFound naming the shard, FailedPrecondition when the
    file cannot be written; nothing is left behind then.
    """
    if not shards:
        raise InvalidArgument("shards", "name at least one file of token ids")
    with index_errors():
        builder = ngram_index.Builder(order, vocab_size)
    described = []
    for path in tqdm(shards, desc="read", unit="file", disable=True if quiet else None):
        documents, tokens = builder.documents, builder.tokens
        for batch in read_shard(path):
            try:
                builder.add(*batch)
            except ngram_index.NgramError as error:
                raise InvalidArgument("shards", f"{path}: {error}") from error
        described.append(
            {
                "name": path.name,
                "sha256": _sha256(path),
                "documents": builder.documents - documents,
                "tokens": builder.tokens - tokens,
            }
        )
    manifest = _manifest(shards=described, documents=builder.documents, tokens=builder.tokens)
    with _progress(quiet) as progress, index_errors():
        return builder.finish(output, fingerprint, manifest, progress)


def import_index(source: Path, output: Path, *, vocab_size: int, fingerprint: str, quiet: bool = False) -> list[int]:
    """Import a `.trie` file of the public implementation; returns the distinct n-grams by length."""
    manifest = _manifest(imported=source.name)
    with _progress(quiet) as progress, index_errors():
        return ngram_index.import_trie(source, output, vocab_size, fingerprint, manifest, progress)


def _manifest(**what: Any) -> str:
    return json.dumps({"made_by": MADE_BY, **what}, sort_keys=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """One bar a stage, on a terminal."""
    bars: dict[str, tqdm[Any]] = {}

    def report(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            for bar in bars.values():
                bar.close()
            unit = "B" if stage == "write" else "windows"
            bars[stage] = tqdm(total=total, desc=stage, unit=unit, unit_scale=True, disable=True if quiet else None)
        bars[stage].update(done - bars[stage].n)

    try:
        yield report
    finally:
        for bar in bars.values():
            bar.close()
