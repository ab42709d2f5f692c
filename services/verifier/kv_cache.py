"""Keys and values of the open sessions, in slabs of slots of equal capacity.

Invariant between passes: positions 0 .. length-1 of a session's slot hold its committed and processed tokens
x[0..length-1] in order, and no pass reads a position at or after ``length`` that it did not write itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

# Key ranges are padded to a multiple of this, see `attention.py`; capacities are too, so that a pad never overruns.
SLOT_BLOCK = 512
# Slots of one slab. On processors memory is only taken when it is written, so a slab costs what its sessions use.
SLAB_SLOTS = 16
# A slab of long sessions has fewer slots, on devices that take all of its memory at once.
SLAB_POSITIONS = 16 * SLOT_BLOCK


def rounded_capacity(positions: int) -> int:
    """``positions`` rounded up to a power of two of blocks."""
    blocks = max(-(-positions // SLOT_BLOCK), 1)
    return SLOT_BLOCK << (blocks - 1).bit_length()


class Slab:
    """Storage [layers, 2, slots, kv_heads, capacity, head_dim]; index 0 of the second axis is keys."""

    def __init__(self, shape: tuple[int, int, int], slots: int, capacity: int, like: torch.Tensor) -> None:
        layers, kv_heads, head_dim = shape
        # Zeros, not empty: a masked position has weight 0, and 0 times a stray NaN would still be NaN.
        self.data = torch.zeros(layers, 2, slots, kv_heads, capacity, head_dim, dtype=like.dtype, device=like.device)
        self.free = list(range(slots))

    @property
    def empty(self) -> bool:
        """No slot is taken."""
        return len(self.free) == self.data.shape[2]


class KVCache:
    """One session's slot. It is given back by ``release``, at the latest when nobody holds the cache any more."""

    def __init__(self, pool: KVPool, slab: Slab, slot: int) -> None:
        self.slab = slab
        self.slot = slot
        self.length = 0
        self.release = weakref.finalize(self, pool.take_back, slab, slot)

    @property
    def capacity(self) -> int:
        """Positions that fit."""
        return int(self.slab.data.shape[4])

    @property
    def data(self) -> torch.Tensor:
        """The slot: [layers, 2, kv_heads, capacity, head_dim]."""
        return self.slab.data[:, :, self.slot]

    def commit(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last pass, in this order (rising), behind the committed ones; forget the others."""
        count = len(rows)
        if list(rows) != list(range(count)):
            data = self.data
            index = torch.tensor(rows, device=data.device) + self.length
            data[:, :, :, self.length : self.length + count] = data.index_select(3, index)
        self.length += count


class KVPool:
    """All slabs, by capacity. Sessions of one capacity lie close together, so that one attention call covers them."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, like: torch.Tensor) -> None:
        self._shape = (layers, kv_heads, head_dim)
        self._like = like  # its type and device are the slabs'
        self.slabs: dict[int, list[Slab]] = {}

    def new_cache(self, positions: int) -> KVCache:
        """An empty cache for at least so many positions, in the first free slot."""
        capacity = rounded_capacity(positions)
        slabs = self.slabs.setdefault(capacity, [])
        slab = next((slab for slab in slabs if slab.free), None)
        if slab is None:
            lazy = self._like.device.type == "cpu"
            slots = SLAB_SLOTS if lazy else max(min(SLAB_SLOTS, SLAB_POSITIONS // capacity), 1)
            slab = Slab(self._shape, slots, capacity, self._like)
            slabs.append(slab)
        slot = min(slab.free)
        slab.free.remove(slot)
        return KVCache(self, slab, slot)

    @property
    def taken(self) -> int:
        """Slots that sessions hold."""
        return sum(slab.data.shape[2] - len(slab.free) for slabs in self.slabs.values() for slab in slabs)

    def take_back(self, slab: Slab, slot: int) -> None:
        """A slot is free again; a slab without sessions gives its memory back."""
        slab.free.append(slot)
        if slab.empty:
            self.slabs[int(slab.data.shape[4])].remove(slab)
