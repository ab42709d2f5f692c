"""Slots of mixed sizes in one region, what gives way to them, and the rows that stay after a pass."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from dartspec.services.verifier import kv_cache
from dartspec.services.verifier.kv_cache import SLAB_SLOTS, SLOT_BLOCK, KeptUnit, KVCache, KVPool, rounded_capacity

LAYERS, HEADS, SIZE = 2, 3, 4


def new_pool(limit: int | None = None) -> KVPool:
    pool = KVPool(LAYERS, HEADS, SIZE, like=torch.zeros(0))
    pool.limit = limit
    return pool


def ranges(caches: list[KVCache]) -> list[tuple[int, int, int]]:
    return sorted((id(cache.region), cache.start, cache.start + cache.capacity) for cache in caches)


def test_slots_of_any_size_share_memory_and_never_overlap() -> None:
    rng = random.Random(1)
    pool = new_pool(limit=20 * SLOT_BLOCK)
    held: list[KVCache] = []
    refused = 0
    for number in range(600):
        if held and rng.random() < 0.5:
            held.pop(rng.randrange(len(held))).release()
        capacity = SLOT_BLOCK << rng.choice((0, 0, 0, 1, 1, 2, 3))
        taken = sum(cache.capacity for cache in held)
        if (room := pool.room(capacity)) is None:
            refused += 1
            # Only when no aligned place is free: a naive search over all of them.
            for first in range(0, 20 * SLOT_BLOCK - capacity + 1, capacity):
                assert any(start < first + capacity and end > first for _, start, end in ranges(held))
            with pytest.raises(MemoryError, match=f"{capacity} positions"):
                pool.new_cache(capacity)
            continue
        cache = pool.new_cache(capacity)
        assert (cache.region, cache.start) == (room[0], room[1] * SLOT_BLOCK)
        assert cache.start % capacity == 0
        held.append(cache)
        assert taken + capacity <= 20 * SLOT_BLOCK
        cache.data.fill_(float(number + 1))
        spans = ranges(held)
        assert all(first[2] <= second[1] for first, second in itertools.pairwise(spans))
        # The slot as attention sees it is the slot.
        assert cache.slab.data[:, :, cache.slot].data_ptr() == cache.data.data_ptr()
        assert torch.equal(cache.slab.data[:, :, cache.slot], cache.data)
        assert cache.slab.data.shape[2] <= SLAB_SLOTS
    assert refused > 10
    assert len(pool.regions) == 1
    assert pool.taken == len(held)
    del cache
    held.clear()
    gc.collect()
    assert pool.taken == 0
    assert not pool.regions[0].used.any()


def test_neighbours_share_a_slab() -> None:
    pool = new_pool()
    caches = [pool.new_cache(1) for _ in range(SLAB_SLOTS + 1)]
    assert [cache.slot for cache in caches] == [*range(SLAB_SLOTS), 0]
    assert len({id(cache.slab) for cache in caches[:SLAB_SLOTS]}) == 1
    assert caches[-1].slab is not caches[0].slab


def test_without_a_limit_there_is_always_room() -> None:
    pool = new_pool()
    caches = [pool.new_cache(kv_cache.REGION_POSITIONS // 2) for _ in range(3)]
    long = pool.new_cache(4 * kv_cache.REGION_POSITIONS)
    assert long.capacity == 4 * kv_cache.REGION_POSITIONS
    assert len(ranges([*caches, long])) == 4
    assert len(pool.regions) == 3


def test_kept_units_give_way_the_least_recently_used_first() -> None:
    pool = new_pool(limit=8 * SLOT_BLOCK)
    evicted: list[KeptUnit] = []

    def evict(unit: KeptUnit) -> None:
        evicted.append(unit)
        unit.release()

    assert pool.new_unit(evict) is None  # memory is for slots; kept units only use what is there
    pool.new_cache(1).release()
    units = [pool.new_unit(evict) for _ in range(8)]
    kept = [unit for unit in units if unit is not None]
    assert [unit.start // SLOT_BLOCK for unit in kept] == [7, 6, 5, 4, 3, 2, 1, 0]  # far from the slots
    assert pool.new_unit(evict) is None
    for unit in kept[4:]:  # units 3 .. 0 are used again
        unit.touch(pool.tick())
    first = pool.new_cache(SLOT_BLOCK)
    assert evicted == [kept[0]]
    kept[3].touch(pool.tick())  # unit 4, so 4 .. 5 and 6 .. 7 are not: of the pairs 2 .. 3 is the oldest
    second = pool.new_cache(2 * SLOT_BLOCK)
    assert (first.start // SLOT_BLOCK, second.start // SLOT_BLOCK) == (7, 2)
    assert sorted(unit.start // SLOT_BLOCK for unit in evicted[1:]) == [2, 3]
    # A slot that is given back is free at once and goes before anything that is kept.
    second.release()
    assert pool.new_cache(1).start // SLOT_BLOCK == 2
    assert len(evicted) == 3


def test_a_unit_that_nobody_holds_any_more_is_free() -> None:
    pool = new_pool(limit=4 * SLOT_BLOCK)
    pool.new_cache(1).release()
    unit = pool.new_unit(lambda unit: unit.release())
    assert unit is not None
    assert pool.regions[0].used.any()
    del unit
    gc.collect()
    assert not pool.regions[0].used.any()
    assert not pool.regions[0].kept


def test_rows_that_stay_equal_a_copy_row_by_row() -> None:
    rng = random.Random(2)
    pool = new_pool()
    caches = [pool.new_cache(rng.choice((1, 600, 1500))) for _ in range(9)] + [pool.new_cache(1 << 16)]
    expected: list[list[torch.Tensor]] = [[] for _ in caches]  # rows that should be there
    assert len({id(cache.region) for cache in caches}) == 2
    for _ in range(12):
        kept = []
        for number, cache in enumerate(caches):
            width = rng.randint(1, 30)
            written = torch.randn(LAYERS, 2, HEADS, width, SIZE)
            cache.data[:, :, :, cache.length : cache.length + width] = written
            rows: Sequence[int] = sorted(rng.sample(range(width), rng.randint(0, width)))
            if rng.random() < 0.3:
                rows = range(len(rows))
            kept.append((cache, rows))
            expected[number] += [written[:, :, :, row] for row in rows]
        kv_cache.commit(kept)
    for cache, rows in zip(caches, expected, strict=True):
        assert cache.length == len(rows)
        assert torch.equal(cache.data[:, :, :, : cache.length], torch.stack(rows, 3))


def test_one_read_and_one_write_whatever_the_sessions() -> None:
    pool = new_pool()
    caches = [pool.new_cache(1) for _ in range(16)]
    calls: list[str] = []

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    with Counting():
        kv_cache.commit([(cache, [0, 2, 5]) for cache in caches])
    assert calls.count("index_select") == calls.count("index_copy_") == 1
    assert all(cache.length == 3 for cache in caches)


@pytest.mark.parametrize(("positions", "capacity"), [(0, 512), (1, 512), (512, 512), (513, 1024), (1025, 2048)])
def test_capacities_are_powers_of_two_of_blocks(positions: int, capacity: int) -> None:
    assert rounded_capacity(positions) == capacity
