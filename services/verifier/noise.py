"""Position-keyed Gumbel noise: the coin that plain decoding and trees toss alike (docs/exactness.md).

Philox4x32-10 as in Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11): key = seed, counter =
(token div 4, position, 0, 0), and token v takes lane v mod 4. The value at (seed, position, token) depends on nothing
else, so it can be computed for any subset of the vocabulary, in any order, on any machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]
# The four words that Philox makes of each counter.
Words = tuple[UInt64, UInt64, UInt64, UInt64]

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF
_ROUNDS = 10

# Of u = (r + 0.5) / 2^32: the largest value that the noise can take, at r = 2^32 - 1, is 22.873...
MAX_GUMBEL = float(-np.log(-np.log1p(-0.5 / 2.0**32)))


def philox(counters: NDArray[np.integer], position: int, seed: int) -> Words:
    """Philox4x32-10 of counters (c, position, 0, 0), c below 2^32, under a 64-bit seed. [n] -> 4 x [n], below 2^32.

    Every operation runs over all counters, and their number is what sampling costs, so none is made in vain: the first
    rounds leave out the words that all counters share, and a key is joined to both halves of a product at once.
    """
    key0 = [((seed & _LOW) + r * _W0) & _LOW for r in range(_ROUNDS)]
    key1 = [((seed >> 32) + r * _W1) & _LOW for r in range(_ROUNDS)]
    m0, m1, half, low = (np.array(value, np.uint64) for value in (_M0, _M1, 32, _LOW))
    # Round 0: words 1 to 3 of the counter are the same for all, and so is the new word 0; shared is its product.
    shared = ((position & _LOW) ^ key0[0]) * _M0
    p0 = counters.astype(np.uint64)
    p0 *= m0
    p1 = p0 >> half
    p1 ^= np.uint64(key1[0])
    # Round 1.
    p1 *= m1
    p0 &= low
    p0 ^= np.uint64((shared >> 32) ^ key1[1])
    w0, w2 = p1 >> half, p0
    w0 ^= np.uint64(key0[1])
    p1 &= low
    w1 = p1
    # Round 2: word 3 is still shared.
    p0, p1 = w0 * m0, w2 * m1
    np.right_shift(p1, half, w0)
    w0 ^= w1
    w0 ^= np.uint64(key0[2])
    np.right_shift(p0, half, w2)
    w2 ^= np.uint64((shared & _LOW) ^ key1[2])
    p0 &= low
    p1 &= low
    w1, w3, p1, p0 = p1, p0, w1, np.empty_like(w1)
    for r in range(3, _ROUNDS):
        np.multiply(w0, m0, p0)
        np.multiply(w2, m1, p1)
        if r % 2:
            # The high halves get this round's key; the low ones the next round's, in which no key is joined.
            p1 ^= np.uint64(key0[r] << 32 | (key0[r + 1] if r + 1 < _ROUNDS else 0))
            p0 ^= np.uint64(key1[r] << 32 | (key1[r + 1] if r + 1 < _ROUNDS else 0))
        np.right_shift(p1, half, w0)
        w0 ^= w1
        np.right_shift(p0, half, w2)
        w2 ^= w3
        p1 &= low
        p0 &= low
        w1, w3, p1, p0 = p1, p0, w1, w3
    return w0, w1, w2, w3


def philox_once(counter: int, position: int, seed: int) -> tuple[int, int, int, int]:
    """As `philox` for one counter, which plain integers do sooner."""
    k0, k1 = seed & _LOW, seed >> 32
    w0, w1, w2, w3 = counter, position & _LOW, 0, 0
    for _ in range(_ROUNDS):
        p0, p1 = w0 * _M0, w2 * _M1
        w0, w1, w2, w3 = (p1 >> 32) ^ w1 ^ k0, p1 & _LOW, (p0 >> 32) ^ w3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return w0, w1, w2, w3


def gumbel(tokens: NDArray[np.int64], position: int, seed: int) -> NDArray[np.float64]:
    """G(seed, position, v) = -ln(-ln u) for each token v in ``tokens``. int64 [n] -> float64 [n], always finite."""
    return gumbel_of_bits(noise_bits(tokens, position, seed))


def gumbel_once(token: int, position: int, seed: int) -> float:
    """As `gumbel` for one token; may differ from it in the last bit."""
    return -math.log(-math.log((philox_once(token >> 2, position, seed)[token & 3] + 0.5) / 2.0**32))


def noise_bits(tokens: NDArray[np.int64], position: int, seed: int) -> UInt64:
    """The 32 random bits r behind G(seed, position, v) for each token. int64 [n] -> uint64 [n], below 2^32."""
    if not len(tokens):
        return np.empty(0, np.uint64)
    first, last = int(tokens.min()) >> 2, int(tokens.max()) >> 2
    if len(tokens) > last - first:
        # Dense: one counter for every four ids of the range, each used nearly always.
        return pick(philox(np.arange(first, last + 1), position, seed), tokens - 4 * first)
    words = philox(tokens >> 2, position, seed)
    return pick(words, 4 * np.arange(len(tokens)) + (tokens & 3))


def pick(words: Words, places: NDArray[np.int64]) -> UInt64:
    """Word ``place mod 4`` of counter ``place div 4`` for each place. int64 [n] -> uint64 [n]."""
    counters, lanes = places >> 2, places & 3
    return np.choose(lanes, [word[counters] for word in words])


def bits_above(level: float) -> int:
    """The smallest r whose noise can exceed ``level``; a little smaller, so that rounding never hides one."""
    return max(int(2.0**32 * float(np.exp(-np.exp(-level)))) - 2, 0)


def gumbel_of_bits(bits: UInt64) -> NDArray[np.float64]:
    """-ln(-ln u) with u = (bits + 0.5) / 2^32, which is never 0 or 1."""
    return -np.log(-np.log((bits + 0.5) / 2.0**32))
