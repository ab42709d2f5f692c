"""Position-keyed Gumbel noise: the coin that plain decoding and trees toss alike (docs/exactness.md).

Philox4x32-10 as in Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11): key = seed, counter =
(token div 4, position, 0, 0), and token v takes lane v mod 4. The value at (seed, position, token) depends on nothing
else, so it can be computed for any subset of the vocabulary, in any order, on any machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10

# Of u = (r + 0.5) / 2^32: the largest value that the noise can take, at r = 2^32 - 1, is 22.873...
MAX_GUMBEL = float(-np.log(-np.log1p(-0.5 / 2.0**32)))


def philox(counters: NDArray[np.uint64], position: int, seed: int) -> NDArray[np.uint64]:
    """Philox4x32-10 of counters (c, position, 0, 0) under a 64-bit seed. uint64 [n] -> uint64 [n, 4], below 2^32."""
    return philox_rounds(counters.astype(np.uint64), np.uint64(position), np.uint64(seed))


def philox_rounds(
    counters: NDArray[np.uint64], positions: NDArray[np.uint64] | np.uint64, seeds: NDArray[np.uint64] | np.uint64
) -> NDArray[np.uint64]:
    """As `philox`, for arrays that broadcast together to a shape s. -> uint64 [*s, 4]."""
    keys: tuple[Any, Any] = (seeds & _LOW, seeds >> _32)
    k0, k1 = keys
    # The first operands are one number for many counters; broadcasting makes them grow only when they must.
    words: tuple[Any, Any, Any, Any] = (counters, positions & _LOW, np.uint64(0), np.uint64(0))
    c0, c1, c2, c3 = words
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c2 = (p1 >> _32) ^ c1 ^ k0, (p0 >> _32) ^ c3 ^ k1
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1)


def gumbel(tokens: NDArray[np.int64], position: int, seed: int) -> NDArray[np.float64]:
    """G(seed, position, v) = -ln(-ln u) for each token v in ``tokens``. int64 [n] -> float64 [n], always finite."""
    return gumbel_of_bits(noise_bits(tokens, position, seed))


def noise_bits(tokens: NDArray[np.int64], position: int, seed: int) -> NDArray[np.uint64]:
    """The 32 random bits r behind G(seed, position, v) for each token. int64 [n] -> uint64 [n], below 2^32."""
    if not len(tokens):
        return np.empty(0, np.uint64)
    first, last = int(tokens.min()) >> 2, int(tokens.max()) >> 2
    if len(tokens) > last - first:
        # Dense: one counter for every four ids of the range, each used nearly always.
        lanes = philox(np.arange(first, last + 1, dtype=np.uint64), position, seed)
        return lanes.reshape(-1)[tokens - 4 * first]
    lanes = philox((tokens >> 2).astype(np.uint64), position, seed)
    return lanes[np.arange(len(tokens)), tokens & 3]


def bits_above(level: float) -> int:
    """The smallest r whose noise can exceed ``level``; a little smaller, so that rounding never hides one."""
    return max(int(2.0**32 * float(np.exp(-np.exp(-level)))) - 2, 0)


def gumbel_of_bits(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """-ln(-ln u) with u = (bits + 0.5) / 2^32, which is never 0 or 1."""
    return -np.log(-np.log((bits + 0.5) / 2.0**32))
