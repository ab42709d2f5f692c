"""What one pass reads besides weights and caches, at addresses that stay: one block of numbers, sent in one copy.

A row of padding belongs to no session: it is stored nowhere, nothing attends to it, and what it computes is not read.
Slots are named by their distance in memory, so sessions may lie in any slab, and slabs may come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dartspec.services.verifier.attention import Segment
from dartspec.services.verifier.kv_cache import KVCache

# Rows of a segment at most: a row's view of the others is so many words of bits.
WORDS = 4
LONGEST = 64 * WORDS
# Distances in memory are in this unit, so that whoever reads knows that they are aligned.
UNIT_BYTES = 16

# Of a row: slot, layer stride, capacity, where its key and value go (-1: nowhere), length of the prefix.
ROW_FIELDS = 5
# Of an item: first row in the pass, rows, slot, layer stride, capacity, length of the prefix, first row in the segment.
ITEM_FIELDS = 7


@dataclass(frozen=True, order=True)
class Shape:
    """Size of a pass. items: pieces of segments that attention works on; tile: rows of a piece at most."""

    rows: int
    items: int
    tile: int


def items_needed(segments: Sequence[Segment], tile: int) -> int:
    """Pieces of at most ``tile`` rows."""
    return sum(-(-segment.rows // tile) for segment in segments)


class Inputs:
    """The block of numbers of one shape on a device, and its parts, int64 all: tokens [rows], positions [rows],
    rows [rows, ROW_FIELDS], visible [rows, WORDS], items [items, ITEM_FIELDS]."""

    def __init__(self, shape: Shape, like: torch.Tensor) -> None:
        self.shape = shape
        # Distances are from here; of the caches' type, so that a kernel can go from it to a slot.
        self.anchor = torch.zeros(UNIT_BYTES, dtype=like.dtype, device=like.device)
        rows, items = shape.rows, shape.items
        self._sizes = [rows, rows, rows * ROW_FIELDS, rows * WORDS, items * ITEM_FIELDS]
        self._block = torch.zeros(sum(self._sizes), dtype=torch.int64, device=like.device)
        self.tokens, self.positions, table, visible, items_table = self._block.split(self._sizes)
        self.rows = table.view(rows, ROW_FIELDS)
        self.visible = visible.view(rows, WORDS)
        self.items = items_table.view(items, ITEM_FIELDS)
        self.clear()

    def clear(self) -> None:
        """No segment: all rows are padding."""
        self.fill(())

    def fill(self, segments: Sequence[Segment]) -> None:
        """Send a pass's segments, which must fit the shape."""
        pinned = self._block.device.type == "cuda"
        host = torch.zeros(len(self._block), dtype=torch.int64, pin_memory=pinned)
        tokens, positions, table, visible, items = np.split(host.numpy(), np.cumsum(self._sizes)[:-1])
        table, visible = table.reshape(-1, ROW_FIELDS), visible.reshape(-1, WORDS)
        table[:, 3] = -1
        pieces: list[tuple[int, ...]] = []
        start = 0
        for segment in segments:
            cache, rows = segment.cache, segment.rows
            place = self._place(cache)
            part = slice(start, start + rows)
            tokens[part] = segment.token_ids
            positions[part] = segment.depth
            positions[part] += cache.length
            table[part, :3] = place
            table[part, 3] = np.arange(cache.length, cache.length + rows)
            table[part, 4] = cache.length
            visible[part] = visible_words(segment.visible)
            for offset in range(0, rows, self.shape.tile):
                count = min(self.shape.tile, rows - offset)
                pieces.append((start + offset, count, *place, cache.length, offset))
            start += rows
        if pieces:
            items[: len(pieces) * ITEM_FIELDS] = np.array(pieces).ravel()
        # Pinned memory is not given out again before the copy from it is done.
        self._block.copy_(host, non_blocking=pinned)

    def _place(self, cache: KVCache) -> tuple[int, int, int]:
        """Distance of a slot's first key from the anchor, layer stride over head_dim, capacity."""
        data = cache.slab.data  # [layers, 2, slots, kv_heads, capacity, head_dim]
        address = data.data_ptr() + cache.slot * data.stride(2) * data.element_size()
        return (address - self.anchor.data_ptr()) // UNIT_BYTES, data.stride(0) // data.shape[5], data.shape[4]


def visible_words(visible: NDArray[np.bool_]) -> NDArray[np.int64]:
    """bool [rows, rows] -> int64 [rows, WORDS]: bit j of a row says that it sees row j."""
    rows = len(visible)
    packed = np.zeros((rows, LONGEST // 8), dtype=np.uint8)
    bits = np.packbits(visible, axis=1, bitorder="little")
    packed[:, : bits.shape[1]] = bits
    return packed.view("<i8")
