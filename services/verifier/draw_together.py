"""The draws of many rows at once: compiled code finds the winner of each (`draw_loop.py`), numpy its margin.

What comes of a row depends on it alone, to the last bit, and not on the others: so a session's first draw of a pass may
be made here along with those of other sessions, and its later ones, down its tree, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from dartspec.services.common.types import Sampling
from dartspec.services.verifier import noise
from dartspec.services.verifier.edits import Edits
from dartspec.services.verifier.optional_loop import loop_or_none
from dartspec.services.verifier.rows import Row

# Tokens of a short list at most.
_ROOM = 4096
# A row's operations a token: most of them noise.
_OPERATIONS = 64
# Below, differences of logits divided by it leave float32's range.
_COLD = 1e-3
# From here on what is left out is so little that all digits of the sum of weights count.
_NEARLY_ALL = 0.999

_WORD = 0xFFFFFFFF

Drawn = tuple[int, float]


class Toss(NamedTuple):
    """What a draw depends on besides the row of logits. The temperature is not 0."""

    sampling: Sampling
    position: int
    seed: int
    edits: Edits


def draw_of_rows(rows: Sequence[Row], tosses: Sequence[Toss]) -> list[Drawn | None]:
    """Token and margin, as `sampling.choose_with_margin` says, of rows of the same vocabulary.

    None for those that must be drawn from in another way. That is all of them where nothing is compiled; and those with
    a NaN or no logit above minus infinity, with very many tokens that may be chosen, with parameters that ask for
    more digits than float32 has, or where some numbers are too close to be compared without numpy.
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
    found = _raced(loop, [rows[number] for number in usable], [tosses[number] for number in usable])
    for number, each in zip(usable, found, strict=True):
        drawn[number] = each
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
        from dartspec.services.verifier.draw_loop import draw_loop

        return draw_loop(torch.bfloat16 if short else torch.float32)

    return loop_or_none(make, "rows are drawn from one by one,")


def _raced(loop: Any, rows: Sequence[Row], tosses: Sequence[Toss]) -> list[Drawn | None]:
    """Draws from rows that compiled code takes; None where it could not decide."""
    count, vocab = len(rows), len(rows[0].stored)
    own = [
        (row.address, toss.edits.address, toss.edits.edited, toss.position & _WORD, toss.seed & _WORD, toss.seed >> 32)
        for row, toss in zip(rows, tosses, strict=True)
    ]
    fields = [_fields(row, toss.sampling, vocab) for row, toss in zip(rows, tosses, strict=True)]
    arrays = np.array(own), np.array(fields), np.empty((count, 5))
    loop(count, _OPERATIONS * count * vocab, vocab, min(_ROOM, vocab), *(array.ctypes.data for array in arrays))
    out = arrays[2]
    totals = out[:, 1:3] + noise.gumbel_of_bits(out[:, 3:].astype(np.uint64))
    margins = totals[:, 0] - totals[:, 1]
    tokens = zip(out[:, 0].tolist(), margins.tolist(), strict=True)
    return [(int(token), margin) if token >= 0 else None for token, margin in tokens]


def _fields(row: Row, sampling: Sampling, vocab: int) -> tuple[float, ...]:
    """The numbers of a row, see `shortlist_loop.py`."""
    top_k = sampling.top_k if sampling.top_k < vocab else 0
    log_min_p = float(np.log(sampling.min_p)) if sampling.min_p else -np.inf
    return (row.summary.best, row.summary.largest, sampling.temperature, top_k, sampling.top_p, log_min_p, 0.0)
