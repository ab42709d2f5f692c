"""Of many rows of scores the tokens that noise may lift to the top, as a compiled loop. A piece is a row."""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray, njit

from dartspec.services.verifier.draw_kernel import FAR, MARGIN_LIMIT, survivors, words_of
from dartspec.services.verifier.loops import SOURCES, Loop, kind_of, numbers, pointer, take, widened
from dartspec.services.verifier.noise import MAX_GUMBEL

# Numbers of a row, float64: its argmax, that logit, and the temperature; the latter not 0.
BEST, LARGEST, TEMPERATURE, FIELDS = 0, 1, 2, 3

_words: Any = words_of
_search: Any = survivors


@njit(error_model="numpy")
def _levels(fields, keys):
    """As `draw.levels`."""
    best, temperature = np.int64(fields[BEST]), fields[TEMPERATURE]
    word = _words(np.uint64(best >> 2), keys[0], keys[1], keys[2])[best & 3]
    gumbel = -np.log(-np.log((np.float64(word) + 0.5) / 4294967296.0))
    reach = fields[LARGEST] / temperature + gumbel - MARGIN_LIMIT
    return _lowered((reach - MAX_GUMBEL) * temperature), _lowered((reach - FAR) * temperature)


@njit(error_model="numpy")
def _lowered(level):
    """As `candidates.lowered`."""
    return np.float32(level - 1e-6 * abs(level) - 1e-6)


def draw_loop(dtype: torch.dtype) -> Loop:
    """The loop for rows of this type; what it does to each is `draw_kernel.survivors`.

    Its numbers are: size of the vocabulary, room, and the lucky bits; and addresses: of the rows' addresses, int64 [n];
    of their numbers, float64 [n, FIELDS]; of position and both halves of the seed, uint64 [n, 3]; of ids, int64
    [n, room]; of their logits, float32 [n, room]; of noise bits, uint64 [n, room]; of counts, int64 [n].
    """
    kind, sources = kind_of(dtype), SOURCES

    def draw(block):
        own = numbers(block, 10, sources)
        vocab, room, lucky, addresses_at, fields_at, keys_at, ids_at, logits_at, bits_at, counts_at = own
        while True:
            piece = take(block)
            if piece < 0:
                return
            address = carray(pointer(addresses_at + 8 * piece), 1, np.int64)[0]
            fields = carray(pointer(fields_at + 8 * FIELDS * piece), FIELDS, np.float64)
            keys = carray(pointer(keys_at + 24 * piece), 3, np.uint64)
            ids = carray(pointer(ids_at + 8 * room * piece), room, np.int64)
            logits = carray(pointer(logits_at + 4 * room * piece), room, np.float32)
            bits = carray(pointer(bits_at + 8 * room * piece), room, np.uint64)
            counts = carray(pointer(counts_at + 8 * piece), 1, np.int64)
            row = carray(pointer(address), vocab, kind)
            floor, near = _levels(fields, keys)
            found = _search(row, floor, near, np.uint32(lucky), keys[0], keys[1], keys[2], ids, bits)
            for place in range(min(found, room)):
                logits[place] = widened(row[ids[place]])
            counts[0] = found

    return Loop(draw)
