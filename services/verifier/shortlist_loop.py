"""Of a row of logits the tokens that may be chosen, few more, as compiled code for `look_loop.py`."""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dartspec.services.verifier.draw_kernel import FAR, MARGIN_LIMIT, survivors, words_of
from dartspec.services.verifier.loops import FAST, exp, larger, lowest_bit, widened
from dartspec.services.verifier.noise import MAX_GUMBEL, bits_above
from dartspec.services.verifier.row_vectors import LANES, PART, reaching
from dartspec.services.verifier.summary_loop import weight_of

# Numbers of a row, float64: its argmax and that logit (found anew where logits were edited); the temperature; top-k, 0
# for none; top-p, 1 for none; ln of min-p, minus infinity for none; and the sum of all weights
# exp((logit - largest) / temperature), which is found where top-p alone asks for it.
BEST, LARGEST, TEMPERATURE, TOP_K, TOP_P, LOG_MIN_P, TOTAL, FIELDS = 0, 1, 2, 3, 4, 5, 6, 7

# The k-th best of the best of so many groups of tokens is a level that k tokens reach, and seldom many more.
_COLUMNS = 1024
# Steps in which such a level is looked for.
_STEPS = 16
# Distances below the largest, in temperatures, down to which tokens are tried for the nucleus. Sums of float32 are off
# by a few parts in a million; tokens that seem to be enough shall be enough.
_DISTANCES = (-4.0, -7.0, -10.0, -14.0)
_SURELY = 1.0 + 1e-5
_NOTHING, _ZERO, _HALF, _ONE = (np.float32(number) for number in (-np.inf, 0.0, 0.5, 1.0))

_LUCKY = np.uint32(bits_above(FAR))

_words: Any = words_of
_search: Any = survivors


@njit(error_model="numpy")
def _lowered(level):
    """As `candidates.lowered`."""
    return np.float32(level - 1e-6 * abs(level) - 1e-6)


@njit(error_model="numpy", fastmath=FAST)
def _kth(row, count, largest):
    """A logit that ``count`` tokens reach and few others."""
    whole = len(row) - len(row) % _COLUMNS
    if whole == 0 or count > _COLUMNS:
        return _NOTHING
    best = np.full(_COLUMNS, _NOTHING, np.float32)
    for begin in range(0, whole, _COLUMNS):
        for column in range(_COLUMNS):
            best[column] = larger(widened(row[begin + column]), best[column])
    # Between the last level that enough reach and the first that too few do.
    low, high = _NOTHING, largest
    level = largest - _ONE
    for _ in range(_STEPS):
        reach = 0
        for column in range(_COLUMNS):
            reach += best[column] >= level
        if reach >= count:
            low = level
            level = (level + high) * _HALF
        else:
            high = level
            level = level - (largest - level) if low == _NOTHING else (low + level) * _HALF
    return low


@njit(error_model="numpy")
def _collect(row, maxima, level, ids):
    """Tokens that reach the level, rising; their number. More than ``ids`` has room for: there are too many."""
    vocab, room, found = len(row), len(ids), 0
    for begin in range(0, vocab, PART):
        if maxima[begin // PART] < level:
            continue
        end = min(begin + PART, vocab)
        for place in range(begin, end, LANES):
            hits = 0
            if place + LANES <= end:
                hits = reaching(row, place, level)
            else:
                for lane in range(end - place):
                    if widened(row[place + lane]) >= level:
                        hits |= 1 << lane
            while hits:
                if found == room:
                    return room + 1
                ids[found] = place + lowest_bit(hits)
                hits &= hits - 1
                found += 1
    return found


@njit(error_model="numpy")
def _nucleus(row, maxima, fields, ids):
    """Tokens of the nucleus and a few more, as `_collect` gives them."""
    largest, temperature = np.float32(fields[LARGEST]), fields[TEMPERATURE]
    factor = np.float32(1.0 / temperature)
    total = weight_of(row, largest, factor)
    fields[TOTAL] = total
    for distance in _DISTANCES:
        found = _collect(row, maxima, _lowered(largest + distance * temperature), ids)
        if found > len(ids):
            return found
        reached = _ZERO
        for place in range(found):
            reached += exp((widened(row[ids[place]]) - largest) * factor)
        if reached >= fields[TOP_P] * total * _SURELY:
            return found
    return _collect(row, maxima, _NOTHING, ids)


@njit(error_model="numpy")
def shortlist(row, maxima, fields, keys, ids, bits):
    """Tokens that may be chosen, rising, and their noise bits; their number, or more than there is room for.

    maxima: as `summary_loop.maxima_of`; fields [FIELDS]; keys: position and both halves of the seed, uint64 [3].
    """
    largest, temperature = fields[LARGEST], fields[TEMPERATURE]
    if not largest > -np.inf:
        return 0
    if fields[TOP_K] == 0 and fields[TOP_P] == 1 and fields[LOG_MIN_P] == -np.inf:
        best = np.int64(fields[BEST])
        word = _words(np.uint64(best >> 2), keys[0], keys[1], keys[2])[best & 3]
        reach = largest / temperature - np.log(-np.log((np.float64(word) + 0.5) / 4294967296.0)) - MARGIN_LIMIT
        floor, near = _lowered((reach - MAX_GUMBEL) * temperature), _lowered((reach - FAR) * temperature)
        return _search(row, maxima, floor, near, _LUCKY, keys[0], keys[1], keys[2], ids, bits)
    if fields[TOP_K] > 0:
        found = _collect(row, maxima, _lowered(_kth(row, np.int64(fields[TOP_K]), np.float32(largest))), ids)
    elif fields[TOP_P] < 1:
        found = _nucleus(row, maxima, fields, ids)
    else:
        found = _collect(row, maxima, _lowered(largest + fields[LOG_MIN_P] * temperature), ids)
    for place in range(min(found, len(ids))):
        token = ids[place]
        bits[place] = _words(np.uint64(token >> 2), keys[0], keys[1], keys[2])[token & 3]
    return found
