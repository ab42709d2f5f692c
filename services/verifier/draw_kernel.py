"""The draw's pass over a row of scores as one compiled loop (numba), for the same tokens as numpy's.

It does what `draw.draw_of_row` does before its logarithms: noise bits for every token that can still win, and of those
the few that need a closer look. Integers and comparisons only, so machines with and without it agree to the last bit.
Without numba there is no kernel, and numpy does the work. (49,152 nearly flat scores at T = 0.8, argmax included, on
an AVX2 processor: 0.37 ms compiled, 0.52 ms by numpy.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Kernel = Callable[..., int]

_U32, _M0, _M1 = np.uint64(0xFFFFFFFF), np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_SHIFT = np.uint64(32)


def _survivors(
    scores: Any, floor: float, near: float, lucky: Any, position: Any, key0: Any, key1: Any, ids: Any, bits: Any
) -> int:
    """Tokens whose score reaches ``near``, or ``floor`` with noise bits of at least ``lucky``, rising; their number.

    scores: float [V]. lucky, position, key0, key1: uint64, the last three below 2^32. Ids, int64, and noise bits,
    uint64, are written to the start of ``ids`` and ``bits`` [V].
    """
    vocab, found = len(scores), 0
    for first in range(0, vocab, 4):
        last = min(first + 4, vocab)
        best = scores[first]
        for token in range(first + 1, last):
            best = max(best, scores[token])
        if best < floor:
            continue
        # Philox4x32-10, see noise.py. Every word stays below 2^32.
        w0, w1, w2, w3 = np.uint64(first >> 2), position, np.uint64(0), np.uint64(0)
        k0, k1 = key0, key1
        for _ in range(10):
            p0, p1 = w0 * _M0, w2 * _M1
            w0, w1, w2, w3 = (p1 >> _SHIFT) ^ w1 ^ k0, p1 & _U32, (p0 >> _SHIFT) ^ w3 ^ k1, p0 & _U32
            k0, k1 = (k0 + _W0) & _U32, (k1 + _W1) & _U32
        for token in range(first, last):
            lane = token & 3
            word = w0 if lane == 0 else w1 if lane == 1 else w2 if lane == 2 else w3
            if scores[token] >= near or (word >= lucky and scores[token] >= floor):
                ids[found], bits[found] = token, word
                found += 1
    return found


def _compiled() -> Kernel | None:
    try:
        import numba
    except ImportError:
        return None
    try:
        return numba.njit(nogil=True, cache=True)(_survivors)
    except RuntimeError:  # nowhere to keep compiled code
        return numba.njit(nogil=True)(_survivors)


survivors: Kernel | None = _compiled()
