"""The draws of many rows at once: compiled code makes a short list for each (`shortlist_loop.py`), numpy does the rest.

What comes of a row depends on it alone, to the last bit, and not on the others: so a session's first draw of a pass may
be made here along with those of other sessions, and its later ones, down its tree, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dartspec.services.common.types import Sampling
from dartspec.services.verifier import noise
from dartspec.services.verifier.candidates import COLDEST
from dartspec.services.verifier.draw import LUCKY, key_words
from dartspec.services.verifier.edits import Edits
from dartspec.services.verifier.optional_loop import loop_or_none
from dartspec.services.verifier.rows import Row

# Tokens of a short list at most, and of one that is gone through together with others.
_ROOM, _NARROW = 4096, 512
# A row's operations a token: most of them noise.
_OPERATIONS = 64
# Below, differences of logits divided by it leave float32's range.
_COLD = 1e-3
# From here on what is left out is so little that all digits of the sum of weights count.
_NEARLY_ALL = 0.999

Drawn = tuple[int, float]


class Toss(NamedTuple):
    """What a draw depends on besides the row of logits. The temperature is not 0."""

    sampling: Sampling
    position: int
    seed: int
    edits: Edits


class _Lists(NamedTuple):
    """Short lists of n rows: [n, room] each, ids rising, of which the first ``counts`` [n] are there."""

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]
    bits: noise.UInt64
    counts: NDArray[np.int64]
    fields: NDArray[np.float64]


def draw_of_rows(rows: Sequence[Row], tosses: Sequence[Toss]) -> list[Drawn | None]:
    """Token and margin, as `sampling.choose_with_margin` says, of rows of the same vocabulary.

    None for those that must be drawn from in another way. That is all of them where nothing is compiled; and those with
    a NaN or no logit above minus infinity, with very many tokens that may be chosen, or with parameters that ask for
    more digits than float32 has.
    """
    drawn: list[Drawn | None] = [None] * len(rows)
    usable = [
        number
        for number, row in enumerate(rows)
        if -np.inf < row.summary.largest < np.inf and _within_float32(tosses[number].sampling)
    ]
    loop = _loop(rows[usable[0]].stored.dtype == np.uint16) if usable else None
    if loop is None:
        return drawn
    lists = _short_lists(loop, [rows[number] for number in usable], [tosses[number] for number in usable])
    narrow = np.flatnonzero((lists.counts > 0) & (lists.counts <= _NARROW))
    wide = np.flatnonzero((lists.counts > _NARROW) & (lists.counts <= lists.ids.shape[1]))
    for group in ([narrow] if len(narrow) else []) + [wide[i : i + 1] for i in range(len(wide))]:
        for place, found in zip(group.tolist(), _settled(lists, group), strict=True):
            drawn[usable[place]] = found
    return drawn


def warm_up() -> None:
    """Have the loops compiled, or read from where they are kept."""
    _loop(short=True)
    _loop(short=False)


def _within_float32(sampling: Sampling) -> bool:
    alone = sampling.top_p < 1.0 and not sampling.top_k
    return sampling.temperature > _COLD and not (alone and sampling.top_p >= _NEARLY_ALL)


@cache
def _loop(short: bool) -> Any:
    def make() -> Any:
        from dartspec.services.verifier.shortlist_loop import shortlist_loop

        return shortlist_loop(torch.bfloat16 if short else torch.float32)

    return loop_or_none(make, "rows are drawn from one by one,")


def _short_lists(loop: Any, rows: Sequence[Row], tosses: Sequence[Toss]) -> _Lists:
    count, vocab = len(rows), len(rows[0].stored)
    room = min(_ROOM, vocab)
    addresses = np.array([row.stored.ctypes.data for row in rows], np.int64)
    fields = np.array(
        [_fields(row, toss.sampling, vocab) for row, toss in zip(rows, tosses, strict=True)],
        np.float64,
    )
    keys = np.array([key_words(toss.position, toss.seed) for toss in tosses], np.uint64)
    edits = [toss.edits for toss in tosses]
    starts = np.cumsum([0, *(len(each.ids) for each in edits)])
    edited, values = np.concatenate([each.ids for each in edits]), np.concatenate([each.values for each in edits])
    lists = _Lists(
        np.empty((count, room), np.int64),
        np.empty((count, room), np.float64),
        np.empty((count, room), np.uint64),
        np.empty(count, np.int64),
        fields,
    )
    arrays = (addresses, fields, keys, starts, edited, values, *lists[:4])
    loop(count, _OPERATIONS * count * vocab, vocab, room, int(LUCKY), *(array.ctypes.data for array in arrays))
    return lists


def _fields(row: Row, sampling: Sampling, vocab: int) -> tuple[float, ...]:
    """The numbers of a row, see `shortlist_loop.py`."""
    top_k = sampling.top_k if sampling.top_k < vocab else 0
    temperature = max(sampling.temperature, COLDEST)
    return (row.summary.best, row.summary.largest, temperature, top_k, sampling.top_p, sampling.min_p, 0.0)


def _settled(lists: _Lists, group: NDArray[np.intp]) -> list[Drawn]:
    """Token and margin of some rows, by their short lists: filters, noise, argmax."""
    counts, fields = lists.counts[group], lists.fields[group]
    width = int(counts.max())
    ids, logits, bits = lists.ids[group, :width], lists.logits[group, :width], lists.bits[group, :width]
    if counts.min() < width:
        missing = np.arange(width) >= counts[:, None]
        logits[missing], bits[missing] = -np.inf, 0
    temperature, top_k, top_p, min_p, total = fields.T[2:, :, None]
    if top_k.any() or (top_p < 1).any():
        # By falling logit, of equals the smaller ids first.
        order = np.argsort(-logits, axis=1, kind="stable")
        rows, rank = np.arange(len(group))[:, None], np.arange(width)
        ids, logits, bits = ids[rows, order], logits[rows, order], bits[rows, order]
        logits[(top_k > 0) & (rank >= top_k)] = -np.inf
        sums = np.cumsum(np.exp((logits - logits[:, :1]) / temperature), axis=1)
        enough = top_p * np.where(top_k > 0, sums[:, -1:], total)
        # A token stays while those before it are not enough.
        logits[:, 1:][(top_p < 1) & (sums[:, :-1] >= enough)] = -np.inf
    scores = logits / temperature
    if min_p.any():
        level = scores.max(axis=1, keepdims=True) + np.log(np.where(min_p > 0, min_p, 1.0))
        scores[(min_p > 0) & (scores < level)] = -np.inf
    totals = scores + noise.gumbel_of_bits(bits)
    largest = totals.max(axis=1)
    # Of equals the smallest id.
    tokens = np.where(totals == largest[:, None], ids, np.iinfo(np.int64).max).min(axis=1)
    totals[ids == tokens[:, None]] = -np.inf
    return list(zip(tokens.tolist(), (largest - totals.max(axis=1)).tolist(), strict=True))
