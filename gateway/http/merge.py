"""Several answers at once, in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """(index of the source, item) as they come; a source waits while nobody takes its item.

    The first error ends it. Closing this closes all sources at once, wherever they are.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as items:
            async for item in items:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T]] = asyncio.Queue(1)

    async def pump(index: int, source: AsyncGenerator[T, None]) -> None:
        async with aclosing(source) as items:
            async for item in items:
                await queue.put((index, item))

    tasks = [asyncio.create_task(pump(index, source)) for index, source in enumerate(sources)]
    ending = asyncio.create_task(_all_or_error(tasks))
    try:
        while True:
            taking = asyncio.create_task(queue.get())
            try:
                await asyncio.wait((taking, ending), return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    ending.result()
                    return
                yield taking.result()
            finally:
                taking.cancel()
    finally:
        ending.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.wait([*tasks, ending])


async def _all_or_error(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)
