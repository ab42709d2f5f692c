"""Several sources in one stream: nothing lost, order kept, errors last, everything closed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator

import pytest

from dartspec.gateway.http.merge import merged


class Sources:
    """Generators of numbers that pause now and then and remember that they were closed."""

    def __init__(self, lengths: list[int], *, fails: int | None = None) -> None:
        self.closed: set[int] = set()
        self.given = [0] * len(lengths)
        self.all = [self._source(index, length, index == fails) for index, length in enumerate(lengths)]

    async def _source(self, index: int, length: int, fails: bool) -> AsyncGenerator[int, None]:
        rng = random.Random(index)
        try:
            for item in range(length):
                for _ in range(rng.randrange(3)):
                    await asyncio.sleep(0)
                self.given[index] += 1
                yield item
            if fails:
                raise ValueError(f"source {index}")
        finally:
            self.closed.add(index)


@pytest.mark.parametrize("lengths", [[7], [0, 0], [5, 1, 9], [1] * 8, [0, 30, 3]])
async def test_every_item_of_every_source_in_its_order(lengths: list[int]) -> None:
    sources = Sources(lengths)
    got = [item async for item in merged(sources.all)]
    for index, length in enumerate(lengths):
        assert [item for source, item in got if source == index] == list(range(length))
    assert len(got) == sum(lengths)
    assert sources.closed == set(range(len(lengths)))


@pytest.mark.parametrize("lengths", [[4], [4, 1000, 1000]])
async def test_an_error_comes_after_the_items_before_it(lengths: list[int]) -> None:
    sources = Sources(lengths, fails=0)
    got = []

    async def read() -> None:
        async for item in merged(sources.all):
            got.append(item)

    with pytest.raises(ValueError, match="source 0"):
        await read()
    assert [item for source, item in got if source == 0] == [0, 1, 2, 3]
    assert sources.closed == set(range(len(lengths)))


async def test_closing_closes_all_and_nobody_runs_far_ahead() -> None:
    sources = Sources([1000] * 5)
    stream = merged(sources.all)
    for _ in range(20):
        await anext(stream)
    for _ in range(200):
        await asyncio.sleep(0)
    assert sum(sources.given) <= 20 + 1 + 5  # one in the queue, one in the hand of each
    await stream.aclose()
    assert sources.closed == set(range(5))
