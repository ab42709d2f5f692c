"""What a nucleus (top-p) needs to know of a row of scores, as a compiled loop: two passes over it. A piece is a row."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import carray, njit

from dartspec.services.verifier.loops import FAST, SOURCES, Loop, exp, numbers, pointer, take

# Numbers of a row, float32: given are its largest score, 1 / temperature and top-p; found is the sum of all weights.
LARGEST, FACTOR, TOP_P, TOTAL, FIELDS = 0, 1, 2, 3, 4

# Distances below the largest at which the weights above are summed up. Sums of float32 are off by a few parts in a
# million; tokens that seem to be enough shall be enough.
_NEAR, _NEXT, _THIRD, _FOURTH, _FAR = (np.float32(-x) for x in (3.0, 5.0, 7.0, 10.0, 14.0))
_SURELY = np.float32(1.0 + 1e-5)
_ALL = np.float32(np.finfo(np.float32).min)
_PART = 64
_ZERO, _ONE = np.float32(0), np.float32(1)


@njit(error_model="numpy", fastmath=FAST)
def _sums(row, largest, factor):
    """Of the weights exp((score - largest) * factor), all and those no farther below than each distance."""
    total, near, second, third, fourth, far = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
    for token in range(len(row)):
        distance = (row[token] - largest) * factor
        weight = exp(distance)
        total += weight
        near += weight if distance >= _NEAR else _ZERO
        second += weight if distance >= _NEXT else _ZERO
        third += weight if distance >= _THIRD else _ZERO
        fourth += weight if distance >= _FOURTH else _ZERO
        far += weight if distance >= _FAR else _ZERO
    return total, near, second, third, fourth, far


@njit(error_model="numpy", fastmath=FAST)
def _collect(row, level, ids):
    """Tokens whose score reaches the level, rising; their number."""
    found = 0
    for begin in range(0, len(row), _PART):
        end, here = min(begin + _PART, len(row)), _ZERO
        for token in range(begin, end):
            here += _ONE if row[token] >= level else _ZERO
        if here > _ZERO:
            for token in range(begin, end):
                if row[token] >= level:
                    ids[found] = token
                    found += 1
    return found


def nucleus_loop() -> Loop:
    """The loop for float32 rows: the sum of their weights, and the tokens that surely hold the nucleus, few more.

    Its numbers are: size of the vocabulary; and addresses: of the rows' addresses, int64 [n]; of their numbers, float32
    [n, FIELDS]; of ids, int64 [n, V]; of how many there are, int64 [n].
    """
    sources = SOURCES

    def weigh(block):
        vocab, addresses_at, fields_at, ids_at, counts_at = numbers(block, 5, sources)
        while True:
            piece = take(block)
            if piece < 0:
                return
            address = carray(pointer(addresses_at + 8 * piece), 1, np.int64)[0]
            row = carray(pointer(address), vocab, np.float32)
            fields = carray(pointer(fields_at + 4 * FIELDS * piece), FIELDS, np.float32)
            ids = carray(pointer(ids_at + 8 * vocab * piece), vocab, np.int64)
            counts = carray(pointer(counts_at + 8 * piece), 1, np.int64)
            largest, factor = fields[LARGEST], fields[FACTOR]
            total, near, second, third, fourth, far = _sums(row, largest, factor)
            wanted = fields[TOP_P] * total * _SURELY
            level = _ALL
            if near >= wanted:
                level = largest + _NEAR / factor
            elif second >= wanted:
                level = largest + _NEXT / factor
            elif third >= wanted:
                level = largest + _THIRD / factor
            elif fourth >= wanted:
                level = largest + _FOURTH / factor
            elif far >= wanted:
                level = largest + _FAR / factor
            fields[TOTAL], counts[0] = total, _collect(row, level, ids)

    return Loop(weigh)
