"""The draw's passes over a row of scores, or over a few tokens of it, as compiled loops (numba), for numpy's tokens.

The first does what `draw.draw_of_row` does before its logarithms: noise bits for every token that can still win, and of
those the few that need a closer look. Integers and comparisons only, so machines with and without it agree to the last
bit. Without numba there is no kernel, and numpy does the work. Tokens go through in blocks, so that loops become vector
instructions. (49,152 scores of which nearly all can win, on an avx512_bf16 processor: 0.03 ms, two thirds of it Philox;
with comparisons that numba turned into vectors itself it was 0.12.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

LANES: Any
PART: Any
lowest_bit: Any
reaching: Any
widened: Any
try:
    from dartspec.services.verifier.loops import lowest_bit, widened
    from dartspec.services.verifier.row_vectors import LANES, PART, reaching
except ImportError:  # without numba nothing is compiled
    LANES = PART = lowest_bit = reaching = widened = None

Kernel = Callable[..., Any]

# A margin below this is exact: tokens that come this close to the winner are never left out of the comparison.
MARGIN_LIMIT = 0.01
# Noise beyond is rare: of a token that needs more the bits are looked at first.
FAR = 6.0

_U32, _M0, _M1 = np.uint64(0xFFFFFFFF), np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_SHIFT = np.uint64(32)


def _compiled(function: Kernel, inline: Literal["never", "always"] = "never") -> Kernel | None:
    try:
        import numba
    except ImportError:
        return None
    try:
        return numba.njit(nogil=True, cache=True, inline=inline)(function)
    except RuntimeError:  # nowhere to keep compiled code
        return numba.njit(nogil=True, inline=inline)(function)


def _philox(counter: Any, position: Any, key0: Any, key1: Any) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10, see noise.py. All are uint64 below 2^32, and so are the words."""
    w0, w1, w2, w3 = counter, position, np.uint64(0), np.uint64(0)
    for _ in range(10):
        p0, p1 = (w0 & _U32) * _M0, (w2 & _U32) * _M1
        w0, w1, w2, w3 = (p1 >> _SHIFT) ^ w1 ^ key0, p1 & _U32, (p0 >> _SHIFT) ^ w3 ^ key1, p0 & _U32
        key0, key1 = (key0 + _W0) & _U32, (key1 + _W1) & _U32
    return w0, w1, w2, w3


# As a call it would keep the loop around it from becoming vectors.
words_of: Any = _compiled(_philox, inline="always")


def _survivors(
    scores: Any,
    maxima: Any,
    floor: Any,
    near: Any,
    lucky: Any,
    position: Any,
    key0: Any,
    key1: Any,
    ids: Any,
    bits: Any,
) -> int:
    """Tokens whose score reaches ``near``, or ``floor`` with noise bits of at least ``lucky``, rising; their number.

    More than ``ids`` has room for: there are too many to be found.

    scores: [V], floats or bits of bfloat16; maxima: float32, at least the largest score of each part; floor, near: of
    the scores' type, or float32 for bits. lucky: uint32. position, key0, key1: uint64 below 2^32. Ids, int64, and noise
    bits, uint64, are written to the start of ``ids`` and ``bits`` [room].
    """
    vocab, room, found = len(scores), len(ids), 0
    words = np.empty(PART, np.uint32)
    for begin in range(0, vocab, PART):
        most, size = maxima[begin // PART], min(PART, vocab - begin)
        if most < floor:
            continue
        first = np.uint64(begin >> 2)
        for group in range(PART >> 2):  # a counter for four tokens
            w0, w1, w2, w3 = words_of(first + np.uint64(group), position, key0, key1)
            words[4 * group], words[4 * group + 1], words[4 * group + 2], words[4 * group + 3] = w0, w1, w2, w3
        for part in range(0, size, LANES):
            hits = 0
            if part + LANES <= size:
                hits = reaching(words, part, lucky)
                if hits:
                    hits &= reaching(scores, begin + part, floor)
                if most >= near:
                    hits |= reaching(scores, begin + part, near)
            else:
                for lane in range(size - part):
                    score = widened(scores[begin + part + lane])
                    if score >= near or (words[part + lane] >= lucky and score >= floor):
                        hits |= 1 << lane
            while hits:
                place = part + lowest_bit(hits)
                hits &= hits - 1
                if found == room:
                    return room + 1
                ids[found], bits[found] = begin + place, words[place]
                found += 1
    return found


def _bits(tokens: Any, position: Any, key0: Any, key1: Any, bits: Any) -> None:
    """Noise bits of each of ``tokens``, int64, into ``bits``, uint64. position, key0, key1: as above."""
    for place in range(len(tokens)):
        w0, w1, w2, w3 = words_of(np.uint64(tokens[place] >> 2), position, key0, key1)
        lane = tokens[place] & 3
        bits[place] = w0 if lane == 0 else w1 if lane == 1 else w2 if lane == 2 else w3


survivors: Kernel | None = _compiled(_survivors)
noise_bits: Kernel | None = _compiled(_bits)
