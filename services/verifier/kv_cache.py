"""Keys and values of the open sessions and of kept prefixes, in regions of memory that slots of any capacity share.

Invariant between passes: positions 0 .. length-1 of a session's slot hold its committed and processed tokens
x[0..length-1] in order, and no pass reads a position at or after ``length`` that it did not write itself.

A region is cut into units of `SLOT_BLOCK` positions. A slot takes as many neighbouring units as its capacity needs, at
a multiple of it; units that no slot needs may hold kept prefixes, which give way to slots. So memory is never stuck in
slots of a size that nobody wants, and with a limit all of it lies in one region, which is never exceeded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dartspec.services.draft.config import HeadConfig
from dartspec.services.verifier.features import DraftRows
from dartspec.services.verifier.lazy_memory import zeros

# Key ranges are padded to a multiple of this, see `attention.py`; capacities are too, so that a pad never overruns.
SLOT_BLOCK = 512
# Neighbouring slots that one attention call may cover; more would compute too much for slots between them.
SLAB_SLOTS = 16
# A region's positions without a limit. On processors memory is only taken when it is written.
REGION_POSITIONS = 64 * SLOT_BLOCK
# In `Region.used`: a slot has the unit. Larger numbers say when the kept prefixes in it were last used; 0: it is free.
SLOT = -1


def rounded_capacity(positions: int) -> int:
    """``positions`` rounded up to a power of two of blocks."""
    blocks = max(-(-positions // SLOT_BLOCK), 1)
    return SLOT_BLOCK << (blocks - 1).bit_length()


class Slab:
    """Neighbouring slots of one capacity: a view [layers, 2, slots, kv_heads, capacity, head_dim] of a region.

    Index 0 of the second axis is keys. No dataclass: what sends a plan to a device goes through those.
    """

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data


class Region:
    """Memory [layers, 2, kv_heads, positions, head_dim], what the draft head keeps of it, and who uses each unit."""

    def __init__(self, shape: tuple[int, int, int], positions: int, like: torch.Tensor) -> None:
        layers, kv_heads, head_dim = shape
        # Zeros: a masked position has weight 0, and 0 times a stray NaN would still be NaN.
        self.data = zeros((layers, 2, kv_heads, positions, head_dim), like.dtype, like.device)
        self.used: NDArray[np.int64] = np.zeros(positions // SLOT_BLOCK, dtype=np.int64)
        self.kept: weakref.WeakValueDictionary[int, KeptUnit] = weakref.WeakValueDictionary()
        self.draft: DraftRows | None = None
        self._slabs: dict[tuple[int, int], Slab] = {}

    @property
    def positions(self) -> int:
        """Positions in all."""
        return int(self.data.shape[3])

    def slab(self, capacity: int, start: int) -> Slab:
        """The neighbourhood of the slot at ``start``; the same object for all slots in it."""
        span = SLAB_SLOTS * capacity
        first = start // span * span
        found = self._slabs.get((capacity, first))
        if found is None:
            slots = min(self.positions - first, span) // capacity
            part = self.data[:, :, :, first : first + slots * capacity]
            found = Slab(part.unflatten(3, (slots, capacity)).transpose(2, 3))
            self._slabs[capacity, first] = found
        return found

    def draft_rows(self, config: HeadConfig, head_dtype: torch.dtype) -> DraftRows:
        """What the draft head keeps of the region's positions; there from the first call on."""
        if self.draft is None:
            self.draft = DraftRows(config, self.positions, SLOT_BLOCK, head_dtype, like=self.data)
        return self.draft

    def copy_from(self, other: Region, start: int, to: int, count: int, drafts: bool) -> None:
        """Rows ``start`` .. of another region, or of this one, to rows ``to`` .., whole prefix blocks."""
        self.data[:, :, :, to : to + count] = other.data[:, :, :, start : start + count]
        if drafts:
            assert other.draft is not None
            if self.draft is None:
                self.draft = other.draft.of_size(self.positions)
            self.draft.copy_from(other.draft, start, to, count)


class KVCache:
    """One session's slot. It is given back by ``release``, at the latest when nobody holds the cache any more."""

    def __init__(self, pool: KVPool, region: Region, start: int, capacity: int) -> None:
        self.region = region
        self.start = start  # the slot's first position in the region
        self.capacity = capacity  # positions that fit
        self.slab = region.slab(capacity, start)
        self.slot = start // capacity % SLAB_SLOTS
        self.length = 0
        self.release = weakref.finalize(self, pool.take_back, region, start, capacity)

    @property
    def data(self) -> torch.Tensor:
        """The slot: [layers, 2, kv_heads, capacity, head_dim]."""
        return self.region.data[:, :, :, self.start : self.start + self.capacity]

    def commit(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last pass, in this order (rising), behind the committed ones; forget the others."""
        commit([(self, rows)])


def commit(kept: Iterable[tuple[KVCache, Sequence[int]]]) -> None:
    """Keep rows of the last pass in each cache, rising, behind the committed ones; forget the others.

    All that has to move moves with one read and one write a region.
    """
    moves: dict[int, tuple[Region, list[int], list[int]]] = {}
    for cache, rows in kept:
        first, count = cache.start + cache.length, len(rows)
        if count and rows[-1] >= count:
            _, sources, targets = moves.setdefault(id(cache.region), (cache.region, [], []))
            moved = [(first + row, first + place) for place, row in enumerate(rows) if row != place]
            sources += [source for source, _ in moved]
            targets += [target for _, target in moved]
        cache.length += count
    for region, sources, targets in moves.values():
        both = torch.tensor([sources, targets], device=region.data.device)
        region.data.index_copy_(3, both[1], region.data.index_select(3, both[0]))


class KeptUnit:
    """A unit that holds kept prefixes. ``evict`` is called when a slot needs its place; it must release the unit."""

    def __init__(self, pool: KVPool, region: Region, unit: int, evict: Callable[[KeptUnit], None]) -> None:
        self.region = region
        self.start = unit * SLOT_BLOCK
        self.evict = evict
        self._unit = unit
        self.touch(pool.tick())
        region.kept[unit] = self
        self.release = weakref.finalize(self, _free_unit, region, unit)

    def touch(self, time: int) -> None:
        """It was used at that tick."""
        self.region.used[self._unit] = time

    @property
    def used(self) -> int:
        """Tick of its last use."""
        return int(self.region.used[self._unit])


def _free_unit(region: Region, unit: int) -> None:
    region.used[unit] = 0
    region.kept.pop(unit, None)


class KVPool:
    """All regions. Without ``limit`` there are as many as it takes; with it one, of so many positions."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, like: torch.Tensor) -> None:
        self._shape = (layers, kv_heads, head_dim)
        self._like = like  # its type and device are the regions'
        self.limit: int | None = None
        self.regions: list[Region] = []
        self.taken = 0  # slots that sessions hold
        self._ticks = 0

    def tick(self) -> int:
        """A time that is later than all before, for what is used least recently."""
        self._ticks += 1
        return self._ticks

    def room(self, capacity: int) -> tuple[Region, int] | None:
        """Where a slot can lie, region and first unit: a free place, else one in new memory, else that whose kept
        prefixes were used least recently. None: open sessions are in the way everywhere."""
        best: tuple[int, Region, int] | None = None
        units = capacity // SLOT_BLOCK
        for region in self.regions:
            places = region.used[: len(region.used) // units * units].reshape(-1, units)
            open_to_us = (places != SLOT).all(1)
            if not open_to_us.any():
                continue
            latest = np.where(open_to_us, places.max(1), np.iinfo(np.int64).max)
            place = int(latest.argmin())  # the lowest one, so that slots lie close together
            if best is None or latest[place] < best[0]:
                best = int(latest[place]), region, place * units
        if best is not None and not best[0]:
            return best[1], best[2]
        if (grown := self._new_region(capacity)) is not None:
            return grown, 0
        return None if best is None else (best[1], best[2])

    def _new_region(self, capacity: int) -> Region | None:
        if self.limit is None:
            positions = max(REGION_POSITIONS, capacity)
        elif self.regions or self.limit < capacity:
            return None
        else:
            positions = self.limit // SLOT_BLOCK * SLOT_BLOCK
        self.regions.append(Region(self._shape, positions, self._like))
        return self.regions[-1]

    def new_cache(self, positions: int) -> KVCache:
        """An empty cache for at least so many positions. Raises MemoryError when `room` finds no place."""
        capacity = rounded_capacity(positions)
        room = self.room(capacity)
        if room is None:
            raise MemoryError(f"no place for {capacity} positions next to the open sessions")
        region, first = room
        units = range(first, first + capacity // SLOT_BLOCK)
        for kept in [region.kept[unit] for unit in units if unit in region.kept]:
            kept.evict(kept)
        region.used[units.start : units.stop] = SLOT
        self.taken += 1
        return KVCache(self, region, first * SLOT_BLOCK, capacity)

    def new_unit(self, evict: Callable[[KeptUnit], None]) -> KeptUnit | None:
        """A free unit for kept prefixes, far from the slots. None: there is none; memory is not taken for it anew."""
        for region in reversed(self.regions):
            free = np.flatnonzero(region.used == 0)
            if len(free):
                return KeptUnit(self, region, int(free[-1]), evict)
        return None

    def take_back(self, region: Region, start: int, capacity: int) -> None:
        """A slot is free again."""
        first = start // SLOT_BLOCK
        region.used[first : first + capacity // SLOT_BLOCK] = 0
        self.taken -= 1
