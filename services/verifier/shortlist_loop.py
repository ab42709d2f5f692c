"""Of a row of logits the tokens that may be chosen, few more, as compiled code for `look_loop.py`."""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from dartspec.services.verifier.draw_kernel import FAR, MARGIN_LIMIT, survivors, words_of
from dartspec.services.verifier.loops import FAST, exp, larger, lowest_bit, widened
from dartspec.services.verifier.noise import MAX_GUMBEL, bits_above
from dartspec.services.verifier.row_vectors import LANES, reaching

# Numbers of a row, float64: its argmax and that logit (found anew where logits were edited); the temperature; top-k, 0
# for none; top-p, 1 for none; ln of min-p, minus infinity for none; and the sum of all weights
# exp((logit - largest) / temperature), which is found where top-p alone asks for it.
BEST, LARGEST, TEMPERATURE, TOP_K, TOP_P, LOG_MIN_P, TOTAL, FIELDS = 0, 1, 2, 3, 4, 5, 6, 7

# The k-th best of the best of so many groups of tokens is a level that k tokens reach, and seldom many more.
_COLUMNS = 1024
# Steps in which such a level is looked for.
_STEPS = 16
# Distances below the largest at which the weights above are summed up. Sums of float32 are off by a few parts in a
# million; tokens that seem to be enough shall be enough.
_DISTANCES = (-3.0, -5.0, -7.0, -10.0, -14.0)
_NEAR, _NEXT, _THIRD, _FOURTH, _LAST = (np.float32(distance) for distance in _DISTANCES)
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
def top(row):
    """A token with the largest logit, and that."""
    largest = _NOTHING
    for token in range(len(row)):
        largest = larger(row[token], largest)
    best = 0
    while row[best] != largest:
        best += 1
    return best, largest


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


@njit(error_model="numpy", fastmath=FAST)
def _sums(row, largest, factor):
    """Of the weights exp((logit - largest) * factor), all and those no farther below than each distance."""
    total, near, second, third, fourth, last = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
    for token in range(len(row)):
        distance = (widened(row[token]) - largest) * factor
        weight = exp(distance)
        total += weight
        near += weight if distance >= _NEAR else _ZERO
        second += weight if distance >= _NEXT else _ZERO
        third += weight if distance >= _THIRD else _ZERO
        fourth += weight if distance >= _FOURTH else _ZERO
        last += weight if distance >= _LAST else _ZERO
    return total, (near, second, third, fourth, last)


@njit(error_model="numpy")
def _nucleus(row, fields):
    """A logit that all tokens of the nucleus reach; minus infinity when that may be all there are."""
    largest, temperature = fields[LARGEST], fields[TEMPERATURE]
    total, sums = _sums(row, np.float32(largest), np.float32(1.0 / temperature))
    fields[TOTAL] = total
    for number in range(len(sums)):
        if sums[number] >= fields[TOP_P] * total * _SURELY:
            return _lowered(largest + _DISTANCES[number] * temperature)
    return _NOTHING


@njit(error_model="numpy")
def _collect(row, level, ids):
    """Tokens that reach the level, rising; their number. More than ``ids`` has room for: there are too many."""
    vocab, room, found = len(row), len(ids), 0
    for begin in range(0, vocab, LANES):
        hits = 0
        if begin + LANES <= vocab:
            hits = reaching(row, begin, level)
        else:
            for lane in range(vocab - begin):
                if widened(row[begin + lane]) >= level:
                    hits |= 1 << lane
        while hits:
            if found == room:
                return room + 1
            ids[found] = begin + lowest_bit(hits)
            hits &= hits - 1
            found += 1
    return found


@njit(error_model="numpy")
def shortlist(row, fields, keys, ids, bits):
    """Tokens that may be chosen, rising, and their noise bits; their number, or more than there is room for.

    fields [FIELDS]; keys: position and both halves of the seed, uint64 [3].
    """
    largest, temperature = fields[LARGEST], fields[TEMPERATURE]
    if not largest > -np.inf:
        return 0
    if fields[TOP_K] == 0 and fields[TOP_P] == 1 and fields[LOG_MIN_P] == -np.inf:
        best = np.int64(fields[BEST])
        word = _words(np.uint64(best >> 2), keys[0], keys[1], keys[2])[best & 3]
        reach = largest / temperature - np.log(-np.log((np.float64(word) + 0.5) / 4294967296.0)) - MARGIN_LIMIT
        floor, near = _lowered((reach - MAX_GUMBEL) * temperature), _lowered((reach - FAR) * temperature)
        return _search(row, floor, near, _LUCKY, keys[0], keys[1], keys[2], ids, bits)
    if fields[TOP_K] > 0:
        level = _lowered(_kth(row, np.int64(fields[TOP_K]), np.float32(largest)))
    elif fields[TOP_P] < 1:
        level = _nucleus(row, fields)
    else:
        level = _lowered(largest + fields[LOG_MIN_P] * temperature)
    found = _collect(row, level, ids)
    for place in range(min(found, len(ids))):
        token = ids[place]
        bits[place] = _words(np.uint64(token >> 2), keys[0], keys[1], keys[2])[token & 3]
    return found
