"""The sum of a row's weights at a temperature, as a compiled loop. A piece is a row."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import carray, njit

from dartspec.services.verifier.loops import FAST, SOURCES, Loop, exp, numbers, pointer, take

_ZERO = np.float32(0)


@njit(error_model="numpy", fastmath=FAST)
def _sum(row, largest, factor):
    total = _ZERO
    for token in range(len(row)):
        total += exp((row[token] - largest) * factor)
    return total


def weight_loop() -> Loop:
    """The loop for float32 rows: the sum of exp((score - largest) * factor).

    Its numbers are: size of the vocabulary; and addresses: of the rows, float32 [n, V]; of largest, factor and the sum,
    float32 [n, 3].
    """
    sources = SOURCES

    def weigh(block):
        vocab, rows_at, found_at = numbers(block, 3, sources)
        while True:
            piece = take(block)
            if piece < 0:
                return
            row = carray(pointer(rows_at + 4 * vocab * piece), vocab, np.float32)
            found = carray(pointer(found_at + 12 * piece), 3, np.float32)
            found[2] = _sum(row, found[0], found[1])

    return Loop(weigh)
