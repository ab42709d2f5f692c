"""Of many rows of scores the tokens that noise may lift to the top, as a compiled loop. A piece is a row."""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray

from dartspec.services.verifier.draw_kernel import survivors
from dartspec.services.verifier.loops import SOURCES, Loop, kind_of, numbers, pointer, take


def draw_loop(dtype: torch.dtype) -> Loop:
    """The loop for rows of this type; what it does to each is `draw_kernel.survivors`.

    Its numbers are: size of the vocabulary, room, and the lucky bits; and addresses: of the rows' addresses, int64 [n];
    of what they reach, float32 [n, 2]; of position and both halves of the seed, uint64 [n, 3]; of ids, int64 [n, room];
    of noise bits, uint64 [n, room]; of counts, int64 [n].
    """
    kind, sources = kind_of(dtype), SOURCES
    search: Any = survivors

    def draw(block):
        own = numbers(block, 9, sources)
        vocab, room, lucky, addresses_at, levels_at, words_at, ids_at, bits_at, counts_at = own
        while True:
            piece = take(block)
            if piece < 0:
                return
            address = carray(pointer(addresses_at + 8 * piece), 1, np.int64)[0]
            levels = carray(pointer(levels_at + 8 * piece), 2, np.float32)
            words = carray(pointer(words_at + 24 * piece), 3, np.uint64)
            ids = carray(pointer(ids_at + 8 * room * piece), room, np.int64)
            bits = carray(pointer(bits_at + 8 * room * piece), room, np.uint64)
            counts = carray(pointer(counts_at + 8 * piece), 1, np.int64)
            row = carray(pointer(address), vocab, kind)
            counts[0] = search(row, levels[0], levels[1], np.uint32(lucky), words[0], words[1], words[2], ids, bits)

    return Loop(draw)
