"""Several answers at once, in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """(index of the source, item) as they come; a source waits while nobody takes its item.

    The first error ends it, after the items that came before. Closing this closes all sources at once, wherever they
    are.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as items:
            async for item in items:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | _End] = asyncio.Queue(1)

    async def pump(index: int, source: AsyncGenerator[T, None]) -> None:
        async with aclosing(source) as items:
            async for item in items:
                await queue.put((index, item))

    tasks = [asyncio.create_task(pump(index, source)) for index, source in enumerate(sources)]

    async def end() -> None:
        error: Exception | None = None
        try:
            await asyncio.gather(*tasks)
        except Exception as first:
            error = first
        await queue.put(_End(error))

    ending = asyncio.create_task(end())
    try:
        while True:
            got = await queue.get()
            if isinstance(got, _End):
                if got.error is not None:
                    raise got.error
                return
            yield got
    finally:
        for task in (ending, *tasks):
            task.cancel()
        await asyncio.wait((ending, *tasks))


class _End:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
