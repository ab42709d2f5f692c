"""What every choice needs to know of a row of logits, as compiled code for `look_loop.py`: two passes over it."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import njit

from dartspec.services.verifier.loops import exp, widened
from dartspec.services.verifier.row_vectors import PART, largest_of_part, weight_of_part

# Numbers of a row's summary, float64: first largest, its logit, the largest of the others, ln of the sum of exp.
BEST, LARGEST, RUNNER_UP, NORMALIZER, FIELDS = 0, 1, 2, 3, 4

_NOTHING = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0), np.float32(1)


@njit(error_model="numpy")
def maxima_of(row, maxima):
    """The largest logit of each part, to ``maxima``; NaN for one that has a NaN."""
    whole = len(row) // PART
    for part in range(whole):
        maxima[part] = largest_of_part(row, part * PART)
    if whole < len(maxima):
        largest = _NOTHING
        for token in range(whole * PART, len(row)):
            value = widened(row[token])
            if value > largest or value != value:
                largest = value
            if value != value:
                break
        maxima[whole] = largest


@njit(error_model="numpy")
def weight_of(row, largest, factor):
    """Sum of exp((logit - largest) * factor), float32."""
    whole, total = len(row) // PART * PART, _ZERO
    for begin in range(0, whole, PART):
        total += weight_of_part(row, begin, largest, factor)
    for token in range(whole, len(row)):
        total += exp((widened(row[token]) - largest) * factor)
    return total


@njit(error_model="numpy")
def best_of(row, maxima):
    """The first token with the largest logit, that, and the largest of the others."""
    first, second = 0, _NOTHING
    for part in range(1, len(maxima)):
        if maxima[part] > maxima[first]:
            first, second = part, maxima[first]
        else:
            second = max(second, maxima[part])
    begin, largest = first * PART, maxima[first]
    best = begin
    while widened(row[best]) != largest:
        best += 1
    for token in range(begin, min(begin + PART, len(row))):
        if token != best:
            second = max(second, widened(row[token]))
    return best, largest, second


@njit(error_model="numpy")
def summary(row, maxima, out):
    """Of a row with a NaN, that is the largest logit.

    maxima: float32, room for a number of every part of the row; out [FIELDS].
    """
    maxima_of(row, maxima)
    out[BEST], out[LARGEST], out[RUNNER_UP], out[NORMALIZER] = 0, _NOTHING, _NOTHING, _NOTHING
    if np.isnan(maxima).any():
        out[LARGEST] = np.nan
    elif maxima.max() > _NOTHING:
        best, largest, second = best_of(row, maxima)
        out[BEST], out[LARGEST], out[RUNNER_UP] = best, largest, second
        out[NORMALIZER] = np.log(np.float64(weight_of(row, largest, _ONE))) + largest
