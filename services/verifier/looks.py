"""Many rows of logits looked at together by compiled code (`look_loop.py`): each is summed up and, where there is a
coin, drawn from; numpy makes the margins.

What comes of a row depends on it alone, to the last bit, and not on the others.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dartspec.services.common.types import Float32, Sampling
from dartspec.services.verifier import noise
from dartspec.services.verifier.edits import Edits
from dartspec.services.verifier.optional_loop import loop_or_none
from dartspec.services.verifier.rows import Drawn, Row, Stored, Summary, floats, summary_of

# Tokens of a short list at most.
_ROOM = 4096
# Operations a token: of a summary, and of a draw, where most of them make noise.
_SUMMARY_OPERATIONS, _DRAW_OPERATIONS = 32, 64
# Below, differences of logits divided by it leave float32's range.
_COLD = 1e-3
# From here on what is left out is so little that all digits of the sum of weights count.
_NEARLY_ALL = 0.999

_WORD = 0xFFFFFFFF
# Numbers of what is found in a row, of its parameters, and of its keys; see `look_loop.py`.
_FOUND = 10
_NO_DRAW = (0.0,) * 7
_NO_KEYS = (0,) * 5


class Toss(NamedTuple):
    """What a draw depends on besides the row of logits. The temperature is not 0."""

    sampling: Sampling
    position: int
    seed: int
    edits: Edits


def look(logits: Stored, chosen: Sequence[int], tosses: Sequence[Toss | None]) -> list[Row]:
    """At the chosen rows of logits [n, V], with a toss for each from which shall be drawn.

    Not drawn from are rows that must be in another way. That is all of them where nothing is compiled; and those with
    a NaN or no logit above minus infinity, with very many tokens that may be chosen, with parameters that ask for
    more digits than float32 has, or where some numbers are too close to be compared without numpy.
    """
    loop = _loop(logits.dtype == np.uint16) if chosen else None
    if loop is None:
        rows = (logits[number] for number in chosen)
        return [Row(row, summary_of(floats(row)), None) for row in rows]
    (stride, step), vocab, count = logits.strides, logits.shape[1], len(chosen)
    assert step == logits.itemsize
    first, coins = logits.ctypes.data, any(toss is not None for toss in tosses)
    keys, parameters = array("Q"), array("d")
    for number, toss in zip(chosen, tosses, strict=True):
        keys.append(first + stride * number)
        keys.extend(_NO_KEYS if toss is None else _keys(toss))
        parameters.extend(_NO_DRAW if toss is None else _parameters(toss.sampling, vocab))
    out = np.empty((count, _FOUND))
    operations = count * vocab * (_SUMMARY_OPERATIONS + _DRAW_OPERATIONS * coins)
    addresses = keys.buffer_info()[0], parameters.buffer_info()[0], out.ctypes.data
    loop(count, operations, vocab, min(_ROOM, vocab), *addresses)
    margins = _margins(out) if coins else repeat(0.0)
    return [
        Row(
            logits[number],
            Summary(int(best), *summary),
            None if token < 0 else Drawn(int(token), margin, logit),
        )
        for number, (best, *summary, token, logit, _, _, _, _), margin in zip(
            chosen, out.tolist(), margins, strict=False
        )
    ]


def _margins(found: NDArray[np.float64]) -> list[float]:
    """By how much the first token won against the second, where there is one; else a number without meaning."""
    totals = found[:, 6:8] + noise.gumbel_of_bits(found[:, 8:].astype(np.uint64))
    return (totals[:, 0] - totals[:, 1]).tolist()


def row_of(logits: Float32) -> Row:
    """From float32 [V]."""
    (row,) = look(logits[None], [0], [None])
    return row


def warm_up() -> None:
    """Have the loops compiled, or read from where they are kept."""
    _loop(short=True)
    _loop(short=False)


@cache
def _loop(short: bool) -> Any:
    def make() -> Any:
        from dartspec.services.verifier.look_loop import look_loop

        return look_loop(torch.bfloat16 if short else torch.float32)

    return loop_or_none(make, "rows of logits are summed up and drawn from")


def _keys(toss: Toss) -> tuple[int, ...]:
    edits = toss.edits
    return edits.address, edits.edited, toss.position & _WORD, toss.seed & _WORD, toss.seed >> 32


def _parameters(sampling: Sampling, vocab: int) -> tuple[float, ...]:
    return _numbers(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, vocab)


@lru_cache(maxsize=1024)
def _numbers(temperature: float, top_k: int, top_p: float, min_p: float, vocab: int) -> tuple[float, ...]:
    """See `shortlist_loop.py`."""
    if temperature <= _COLD or (top_p >= _NEARLY_ALL and top_p < 1.0 and not top_k):
        return _NO_DRAW
    log_min_p = float(np.log(min_p)) if min_p else -np.inf
    return 0.0, 0.0, temperature, top_k if top_k < vocab else 0, top_p, log_min_p, 0.0
