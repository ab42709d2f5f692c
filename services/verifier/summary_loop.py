"""What every choice needs to know of a row of logits, as a compiled loop: two passes over the row. A piece is a row."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
import torch
from numba import carray, njit

from dartspec.services.verifier.loops import (
    FAST,
    SOURCES,
    Loop,
    below,
    exp,
    is_nan,
    kind_of,
    larger,
    numbers,
    pointer,
    same,
    take,
    widened,
)

# Numbers of a row's summary, float64: first largest, its logit, the largest of the others, ln of the sum of exp.
BEST, LARGEST, RUNNER_UP, NORMALIZER, FIELDS = 0, 1, 2, 3, 4

# Tokens that are looked at together for the first of the largest.
_PART = 512
_NOTHING = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0), np.float32(1)


@njit(error_model="numpy", fastmath=FAST)
def _largest(row):
    """The largest logit, and how many are NaN; with one of them the former means nothing."""
    largest, strange = _NOTHING, 0
    for token in range(len(row)):
        value = widened(row[token])
        largest = larger(value, largest)
        strange += is_nan(value)
    return largest, strange


@njit(error_model="numpy", fastmath=FAST)
def _others(row, largest):
    """Sum of exp(logit - largest), the largest logit below it, and how many are equal to it."""
    total, second, equal = _ZERO, _NOTHING, _ZERO
    for token in range(len(row)):
        total += exp(widened(row[token]) - largest)
    for token in range(len(row)):
        value = widened(row[token])
        second = larger(below(value, largest), second)
        equal += same(value, largest)
    return total, second, equal


@njit(error_model="numpy", fastmath=FAST)
def _first(row, wanted):
    """The first token of this logit; there is one."""
    for begin in range(0, len(row), _PART):
        end, here = min(begin + _PART, len(row)), _ZERO
        for token in range(begin, end):
            here += same(widened(row[token]), wanted)
        if here > _ZERO:
            for token in range(begin, end):
                if widened(row[token]) == wanted:
                    return token
    return 0


def summary_loop(dtype: torch.dtype) -> Loop:
    """The loop for rows of this type. A row with a NaN has NaN as its largest logit.

    Its numbers are: size of the vocabulary; and addresses: of the rows' addresses, int64 [n], and of summaries
    [n, FIELDS].
    """
    kind, sources = kind_of(dtype), SOURCES

    def summarise(block):
        vocab, addresses_at, out_at = numbers(block, 3, sources)
        while True:
            piece = take(block)
            if piece < 0:
                return
            address = carray(pointer(addresses_at + 8 * piece), 1, np.int64)[0]
            row = carray(pointer(address), vocab, kind)
            out = carray(pointer(out_at + piece * FIELDS * 8), FIELDS, np.float64)
            largest, strange = _largest(row)
            if strange:
                largest = np.float32(np.nan)
            out[BEST], out[LARGEST], out[RUNNER_UP], out[NORMALIZER] = 0, largest, _NOTHING, _NOTHING
            if largest > _NOTHING:
                total, second, equal = _others(row, largest)
                out[BEST], out[RUNNER_UP] = _first(row, largest), largest if equal > _ONE else second
                out[NORMALIZER] = np.log(np.float64(total)) + largest

    return Loop(summarise)
