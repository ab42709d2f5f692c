"""`.npz` shards, read piece by piece: an archive of any size takes the memory of one batch and of its offsets."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.ngram.batch import BATCH_TOKENS, Batch
from dartspec.services.ngram.inputs import Reading, Source

_BROKEN = (KeyError, ValueError, OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def read_npz(source: Source, reading: Reading, skip: int) -> Iterator[Batch]:
    """The documents after the first ``skip``. Raises InvalidArgument naming the file and what is wrong with it."""
    try:
        archive = zipfile.ZipFile(source.path)
    except _BROKEN as error:
        raise _bad(source.path, error) from error
    with archive:
        try:
            offsets = _offsets(archive, source.path)
            tokens = archive.open("tokens.npy")
            dtype, count = _header(tokens)
        except _BROKEN as error:
            raise _bad(source.path, error) from error
        with tokens:
            _check(source.path, dtype, count, offsets)
            yield from _batches(source, reading, skip, (tokens, dtype), offsets)


def _batches(
    source: Source, reading: Reading, skip: int, tokens: tuple[IO[bytes], np.dtype[Any]], offsets: NDArray[np.int64]
) -> Iterator[Batch]:
    stream, dtype = tokens
    total, documents = int(offsets[-1]), len(offsets) - 1
    document, at = skip, int(offsets[min(skip, documents)])
    try:
        stream.seek(at * dtype.itemsize, 1)
    except _BROKEN as error:
        raise _bad(source.path, error) from error
    while document < documents:
        # Up to the last document that ends within a batch, or a piece of one that is longer.
        end = int(np.searchsorted(offsets, at + BATCH_TOKENS, side="right")) - 1
        unfinished = end <= document
        stop = at + BATCH_TOKENS if unfinished else int(offsets[end])
        try:
            data = stream.read((stop - at) * dtype.itemsize)
            piece = np.frombuffer(data, dtype, stop - at)
        except _BROKEN as error:
            raise _bad(source.path, error) from error
        starts = np.array([0, stop - at]) if unfinished else np.maximum(offsets[document : end + 1] - at, 0)
        keep = (np.arange(document, document + len(starts) - 1) + source.number) % reading.parts == reading.part
        if not keep.all():
            lengths = np.diff(starts)
            piece = piece[np.repeat(keep, lengths)]
            starts = np.concatenate([[0], np.cumsum(lengths[keep])])
        document, at = (document if unfinished else end), stop
        done = source.bytes * at // max(total, 1)
        yield Batch(piece, starts, document, done, unfinished and bool(keep.all()))


def _header(file: IO[bytes]) -> tuple[np.dtype[Any], int]:
    """Type and length of an array whose data come next. Raises ValueError unless it has one dimension."""
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    if len(shape) != 1 or dtype.hasobject:
        raise ValueError(f"expected numbers in one dimension, got {dtype} {list(shape)}")
    return dtype, shape[0]


def _offsets(archive: zipfile.ZipFile, path: Path) -> NDArray[np.int64]:
    with archive.open("offsets.npy") as file:
        dtype, count = _header(file)
        if dtype != np.int64:
            message = f"`offsets` of {path} must be int64 [documents + 1], got {dtype} [{count}]"
            raise InvalidArgument("inputs", message)
        return np.frombuffer(file.read(count * dtype.itemsize), dtype, count)


def _check(path: Path, dtype: np.dtype[Any], count: int, offsets: NDArray[np.int64]) -> None:
    problem = ""
    if dtype not in (np.uint16, np.uint32):
        problem = f"`tokens` must be uint16 or uint32 [T], got {dtype} [{count}]"
    elif not len(offsets):
        problem = "`offsets` must hold one more entry than documents, got none"
    elif (offsets[0], offsets[-1]) != (0, count):
        problem = f"`offsets` must go from 0 to the number of tokens {count}, got {offsets[0]} to {offsets[-1]}"
    elif (steps := np.diff(offsets)).size and steps.min() < 0:
        at = int(steps.argmin())
        problem = f"`offsets` must not decrease, got {offsets[at + 1]} after {offsets[at]}"
    if problem:
        raise InvalidArgument("inputs", f"{path}: {problem}")


def _bad(path: Path, error: Exception) -> InvalidArgument:
    return InvalidArgument("inputs", f"{path} does not hold arrays `tokens` and `offsets`: {error}")
