"""What one pass reads besides weights and caches, at addresses that stay: one block of numbers, sent in one copy.

A row of padding belongs to no session: it is stored nowhere, nothing attends to it, and what it computes is not read.
Slots are named by their distance in memory, so sessions may lie in any slab, and slabs may come and go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.kv_cache import KVCache

# A row's view of the others is so many words of bits. A longer segment must be a chunk of a prompt: its later rows see
# all earlier ones, so it is as good as several segments, each behind a longer prefix.
WORDS = 4
LONGEST = 64 * WORDS
# Distances in memory are in this unit, so that whoever reads knows that they are aligned.
UNIT_BYTES = 16

# Of a row: slot, strides of layers and heads, where its key and value go (-1: nowhere), length of the prefix.
ROW_FIELDS = 5
# Of an item: first row in the pass, rows, slot, strides of layers and heads, prefix, first row in the segment.
ITEM_FIELDS = 7


@dataclass(frozen=True, order=True)
class Shape:
    """Size of a pass. items: pieces of segments that attention works on; tile: rows of a piece at most."""

    rows: int
    items: int
    tile: int


def representable(segment: Segment) -> bool:
    """Whether static inputs can say what the segment's rows see."""
    return segment.rows <= LONGEST or bool((segment.visible == causal_rows(segment.rows)).all())


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
        self._shapes = [(rows,), (rows,), (rows, ROW_FIELDS), (rows, WORDS), (items, ITEM_FIELDS)]
        # Every part begins at a multiple of 16 bytes.
        self._starts = np.cumsum([0, *((math.prod(each) + 1) // 2 * 2 for each in self._shapes)]).tolist()
        self._block = torch.zeros(self._starts[-1], dtype=torch.int64, device=like.device)
        self.pairs = 0  # of a row and a key that it may attend to, in all
        self.tokens, self.positions, self.rows, self.visible, self.items = self._split(self._block)
        self.fill(())

    def _split(self, block: torch.Tensor) -> list[torch.Tensor]:
        starts = zip(self._starts, self._shapes, strict=False)
        return [block[start : start + math.prod(shape)].view(shape) for start, shape in starts]

    def fill(self, segments: Sequence[Segment]) -> None:
        """Send a pass's segments, which must fit the shape."""
        pinned = self._block.device.type == "cuda"
        host = torch.zeros(len(self._block), dtype=torch.int64, pin_memory=pinned)
        tokens, positions, table, visible, items = (part.numpy() for part in self._split(host))
        table[:, 3] = -1
        # Single tokens are the common case, so numpy is called once a pass and not once a session.
        parts: list[tuple[int, ...]] = []  # slot, strides of layers and heads, place of its first row, prefix
        counts: list[int] = []
        pieces: list[tuple[int, ...]] = []
        start = 0
        for segment in segments:
            slot = self._slot(segment.cache)
            for begin in range(0, segment.rows, LONGEST):
                prefix, count = segment.cache.length + begin, min(segment.rows - begin, LONGEST)
                parts.append((*slot, prefix, prefix))
                counts.append(count)
                if count == 1:
                    visible[start, 0] = 1
                else:
                    seen = segment.visible[begin : begin + count, begin : begin + count]
                    visible[start : start + count] = visible_words(seen)
                for offset in range(0, count, self.shape.tile):
                    pieces.append((start + offset, min(self.shape.tile, count - offset), *slot, prefix, offset))
                start += count
        self.pairs = sum(segment.rows * (segment.cache.length + segment.rows) for segment in segments)
        if segments:
            tokens[:start] = [token for segment in segments for token in segment.token_ids]
            lengths = [segment.cache.length for segment in segments]
            positions[:start] = np.repeat(lengths, [segment.rows for segment in segments])
            positions[:start] += np.concatenate([segment.depth for segment in segments])
            table[:start] = np.repeat(np.array(parts), counts, axis=0)
            table[:start, 3] += np.arange(start) - np.repeat(np.cumsum(counts) - counts, counts)
            items[: len(pieces)] = pieces
        # Pinned memory is not given out again before the copy from it is done.
        self._block.copy_(host, non_blocking=pinned)

    def _slot(self, cache: KVCache) -> tuple[int, int, int]:
        """Distance of a slot's first key from the anchor, strides of layers and of heads over head_dim."""
        data = cache.slab.data  # [layers, 2, slots, kv_heads, capacity, head_dim]
        address = data.data_ptr() + cache.slot * data.stride(2) * data.element_size()
        return (
            (address - self.anchor.data_ptr()) // UNIT_BYTES,
            data.stride(0) // data.shape[5],
            data.stride(3) // data.shape[5],
        )


def visible_words(visible: NDArray[np.bool_]) -> NDArray[np.int64]:
    """bool [rows, rows] -> int64 [rows, WORDS]: bit j of a row says that it sees row j."""
    rows = len(visible)
    packed = np.zeros((rows, LONGEST // 8), dtype=np.uint8)
    bits = np.packbits(visible, axis=1, bitorder="little")
    packed[:, : bits.shape[1]] = bits
    return packed.view("<i8")
