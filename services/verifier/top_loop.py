"""The likeliest tokens of rows of draft logits, as a compiled loop. A piece is a row."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
import torch
from numba import carray, njit

from dartspec.services.verifier.loops import FAST, SOURCES, Loop, exp, kind_of, larger, numbers, pointer, take, widened

# Tokens that are passed over together when none of them can be among the likeliest.
_PART = 64
_NOTHING, _ZERO = np.float32(-np.inf), np.float32(0)


@njit(error_model="numpy", fastmath=FAST)
def _total(row):
    """The largest logit, and ln of the sum of exp(logit - largest)."""
    largest, total = _NOTHING, _ZERO
    for token in range(len(row)):
        largest = larger(widened(row[token]), largest)
    for token in range(len(row)):
        total += exp(widened(row[token]) - largest)
    return largest, np.float32(np.log(np.float64(total)))


@njit(error_model="numpy", fastmath=FAST)
def _select(row, target_ids, largest, log_total, ids, logprobs):
    """The first by (-log-probability, id), in order, as many as there is room for."""
    room, found = len(ids), 0
    for begin in range(0, len(row), _PART):
        end = min(begin + _PART, len(row))
        best = _NOTHING
        for token in range(begin, end):
            best = larger(widened(row[token]), best)
        if found == room and (best - largest) - log_total < logprobs[room - 1]:
            continue
        for token in range(begin, end):
            logprob, target_id = (widened(row[token]) - largest) - log_total, target_ids[token]
            if found == room:
                last = logprobs[room - 1]
                if logprob < last or (logprob == last and target_id > ids[room - 1]):
                    continue
            place = min(found, room - 1)
            while place > 0 and (
                logprobs[place - 1] < logprob or (logprobs[place - 1] == logprob and ids[place - 1] > target_id)
            ):
                logprobs[place], ids[place] = logprobs[place - 1], ids[place - 1]
                place -= 1
            logprobs[place], ids[place] = logprob, target_id
            found = min(found + 1, room)


def top_loop(dtype: torch.dtype) -> Loop:
    """The loop for rows of this type.

    Its numbers are: draft vocabulary V, tokens wanted k; and addresses: logits [n, V], target ids int64 [V], ids int32
    [n, k], log-probabilities float32 [n, k].
    """
    kind, sources, size = kind_of(dtype), SOURCES, dtype.itemsize

    def top(block):
        vocab, wanted, logits_at, target_ids_at, ids_at, logprobs_at = numbers(block, 6, sources)
        target_ids = carray(pointer(target_ids_at), vocab, np.int64)
        while True:
            piece = take(block)
            if piece < 0:
                return
            row = carray(pointer(logits_at + piece * vocab * size), vocab, kind)
            ids = carray(pointer(ids_at + 4 * piece * wanted), wanted, np.int32)
            logprobs = carray(pointer(logprobs_at + 4 * piece * wanted), wanted, np.float32)
            largest, log_total = _total(row)
            _select(row, target_ids, largest, log_total, ids, logprobs)

    return Loop(top)
