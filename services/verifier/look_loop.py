"""Looks at many rows of logits as a compiled loop: summaries, and draws up to the last digits of their noise.

A piece is a row.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
import torch
from numba import carray, njit

from dartspec.services.verifier import edits, summary_loop
from dartspec.services.verifier.loops import SOURCES, Loop, kind_of, numbers, pointer, take, widened
from dartspec.services.verifier.row_vectors import PART
from dartspec.services.verifier.shortlist_loop import (
    BEST,
    FIELDS,
    LARGEST,
    LOG_MIN_P,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    TOTAL,
    shortlist,
)
from dartspec.services.verifier.summary_loop import best_of, maxima_of, summary

# Logarithms and powers differ in their last digits from numpy's, which count. What is closer than that, relatively, is
# not decided here.
_CLOSE = 1e-10
# Numbers of a row of its own: address, that of its edits' table, how many those are, position, both halves of the seed.
_OWN = 6
# What is found: the numbers of `summary_loop.py`; the token and its logit; its score before the noise and the
# runner-up's, and the noise bits of both.
_DRAWN, _LOGIT, _SCORES, _BITS, _FOUND = summary_loop.FIELDS, 5, 6, 8, 10
_TOKEN, _ADDED, _FACTOR, _TAKEN, _EDIT_FIELDS = edits.TOKEN, edits.ADDED, edits.FACTOR, edits.TAKEN, edits.FIELDS


@njit(error_model="numpy")
def _edit(row, table, changed, values):
    """The row with its edits as float32, and the edited logits alone with all their digits."""
    for token in range(len(row)):
        changed[token] = widened(row[token])
    for number in range(len(table)):
        token = np.int64(table[number, _TOKEN])
        value = np.float64(widened(row[token])) + table[number, _ADDED]
        value = value / table[number, _FACTOR] if value > 0 else value * table[number, _FACTOR]
        values[number] = value - table[number, _TAKEN]
        changed[token] = np.float32(values[number])


@njit(error_model="numpy")
def _look_up(row, table, values, ids, logits):
    """Logits of some tokens, ids rising, edits included."""
    for place in range(len(ids)):
        logits[place] = widened(row[ids[place]])
    for number in range(len(table)):
        token = np.int64(table[number, _TOKEN])
        place = np.searchsorted(ids, token)
        if place < len(ids) and ids[place] == token:
            logits[place] = values[number]


@njit(error_model="numpy")
def _staying(logits, fields):
    """Places of those that top-k and top-p let stay; none when that is too close to tell."""
    temperature, top_p, count = fields[TEMPERATURE], fields[TOP_P], len(logits)
    if fields[TOP_K] == 0 and top_p == 1:
        return np.arange(count)
    # By falling logit, of equals the smaller ids first.
    order = np.argsort(-logits, kind="mergesort")
    if fields[TOP_K] > 0:
        count = min(count, np.int64(fields[TOP_K]))
    if top_p < 1:
        highest, total = logits[order[0]], fields[TOTAL]
        if fields[TOP_K] > 0:
            total = 0.0
            for rank in range(count):
                total += np.exp((logits[order[rank]] - highest) / temperature)
        enough, reached = top_p * total, 0.0
        for rank in range(count - 1):
            reached += np.exp((logits[order[rank]] - highest) / temperature)
            if abs(reached - enough) <= _CLOSE * enough:
                return order[:0]
            if reached >= enough:
                return order[: rank + 1]
    return order[:count]


@njit(error_model="numpy")
def _race(places, ids, logits, bits, fields, out):
    """The first and the second of the tokens at ``places``, noise included; nothing when that is too close to tell."""
    temperature = fields[TEMPERATURE]
    highest = -np.inf
    for place in places:
        highest = max(highest, logits[place] / temperature)
    least = highest + fields[LOG_MIN_P]
    first, second, third = -np.inf, -np.inf, -np.inf
    winner, runner_up = -1, -1
    for place in places:
        score = logits[place] / temperature
        if score >= least:
            total = score - np.log(-np.log((np.float64(bits[place]) + 0.5) / 4294967296.0))
            if total > first:
                first, second, third = total, first, second
                winner, runner_up = place, winner
            elif total > second:
                second, third = total, second
                runner_up = place
            else:
                third = max(third, total)
    if winner < 0 or first - second <= _CLOSE * (1 + abs(first)) or second - third <= _CLOSE * (1 + abs(second)):
        return
    out[_DRAWN], out[_SCORES], out[_BITS] = ids[winner], logits[winner] / temperature, bits[winner]
    if runner_up >= 0:
        out[_SCORES + 1], out[_BITS + 1] = logits[runner_up] / temperature, bits[runner_up]


def look_loop(dtype: torch.dtype) -> Loop:
    """The loop for rows of this type.

    Its numbers are: size of the vocabulary and tokens of the longest list that is looked at; and addresses: of int64
    [n, 6], a row's address, that of its edits' table, how many those are, position, and both halves of the seed; of the
    numbers of `shortlist_loop.py`, float64 [n, FIELDS], with temperature 0 where nothing shall be drawn; and of what is
    found, float64 [n, 10]: the summary, the token, its raw logit, its score before the noise and the runner-up's, and
    the noise bits of both. The token is -1 where none was drawn, or the row must be drawn from in another way; the
    second score is minus infinity without a runner-up.
    """
    kind, sources = kind_of(dtype), SOURCES

    def look(block):
        vocab, room, rows_at, fields_at, out_at = numbers(block, 5, sources)
        maxima = np.empty((vocab + PART - 1) // PART, np.float32)
        ids, logits, bits = np.empty(room, np.int64), np.empty(room, np.float64), np.empty(room, np.uint64)
        while True:
            piece = take(block)
            if piece < 0:
                return
            own = carray(pointer(rows_at + 8 * _OWN * piece), 3, np.int64)
            keys = carray(pointer(rows_at + 8 * (_OWN * piece + 3)), 3, np.uint64)
            fields = carray(pointer(fields_at + 8 * FIELDS * piece), FIELDS, np.float64)
            out = carray(pointer(out_at + 8 * _FOUND * piece), _FOUND, np.float64)
            row, edited = carray(pointer(own[0]), vocab, kind), own[2]
            summary(row, maxima, out)
            out[_DRAWN:] = 0.0
            out[_DRAWN], out[_SCORES + 1] = -1.0, -np.inf
            if fields[TEMPERATURE] == 0.0 or not -np.inf < out[summary_loop.LARGEST] < np.inf:
                continue
            table = carray(pointer(own[1]), (edited, _EDIT_FIELDS), np.float64)
            values = np.empty(edited, np.float64)
            if edited:
                changed = np.empty(vocab, np.float32)
                _edit(row, table, changed, values)
                maxima_of(changed, maxima)
                fields[BEST], fields[LARGEST], _ = best_of(changed, maxima)
                found = shortlist(changed, maxima, fields, keys, ids, bits)
            else:
                fields[BEST], fields[LARGEST] = out[summary_loop.BEST], out[summary_loop.LARGEST]
                found = shortlist(row, maxima, fields, keys, ids, bits)
            if not 0 < found <= room:
                continue
            _look_up(row, table, values, ids[:found], logits[:found])
            staying = _staying(logits[:found], fields)
            _race(staying, ids, logits, bits, fields, out)
            if out[_DRAWN] >= 0:
                out[_LOGIT] = widened(row[np.int64(out[_DRAWN])])

    return Loop(look)
