"""Chunks of a busy gateway: fewer, in order, whole; on one that keeps up, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

from dartspec.gateway.ahead import Ahead
from dartspec.gateway.coalesce import coalesced, joined
from dartspec.gateway.pace import LONGEST_HOLD, next_hold
from dartspec.gateway.types import Chunk, Finish

FINISH = cast(Finish, object.__new__(Finish))


def chunk(index: int, count: int = 1) -> Chunk:
    tokens = tuple(range(index, index + count))
    return Chunk(index, tokens, tuple(-float(t) for t in tokens), f"<{index}>", tuple(float(t) for t in tokens))


async def source(*items: Chunk | Finish) -> AsyncGenerator[Chunk | Finish, None]:
    for item in items:
        yield item


async def settled() -> None:
    """Nothing to wait for."""


async def run(hold: float, most: int, *items: Chunk | Finish) -> list[Chunk | Finish]:
    return [item async for item in coalesced(Ahead(source(*items), most), lambda: hold, settled)]


async def test_nothing_is_joined_while_the_gateway_keeps_up() -> None:
    items = [chunk(0), chunk(1, 3), chunk(4), FINISH]
    assert await run(0.0, 2, *items) == items


async def test_a_busy_gateway_joins_what_waits_and_loses_nothing() -> None:
    items = [chunk(0), chunk(1, 3), chunk(4), chunk(5, 2)]
    *chunks, finish = await run(0.05, 16, *items, FINISH)
    assert finish is FINISH
    assert len(chunks) < 4
    assert joined([one for one in chunks if isinstance(one, Chunk)]) == joined(items)
    assert joined(items) == Chunk(
        0,
        (0, 1, 2, 3, 4, 5, 6),
        (0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0),
        "<0><1><4><5>",
        (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    )


async def test_the_first_chunk_does_not_wait() -> None:
    gate = asyncio.Event()

    async def slow() -> AsyncGenerator[Chunk | Finish, None]:
        yield chunk(0)
        await gate.wait()
        yield FINISH

    reader = coalesced(Ahead(slow(), 16), lambda: 3600.0, settled)
    assert await anext(reader) == chunk(0)
    gate.set()
    assert await anext(reader) is FINISH


async def test_a_source_that_is_full_is_not_waited_for() -> None:
    items = [chunk(index) for index in range(9)]
    got = await run(3600.0, 4, *items)
    assert joined([one for one in got if isinstance(one, Chunk)]) == joined(items)


def test_chunks_are_held_only_while_the_loop_is_late_and_never_for_long() -> None:
    hold = 0.0
    for _ in range(100):
        hold = next_hold(hold, 0.01)
    assert hold == 0.0
    for _ in range(100):
        hold = next_hold(hold, 10.0)
    assert 0.99 * LONGEST_HOLD < hold <= LONGEST_HOLD
    for _ in range(100):
        hold = next_hold(hold, 0.0)
    assert hold < 1e-6
