"""Work that runs ahead of its reader, by a bounded distance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def ahead(source: AsyncGenerator[T, None], most: int) -> AsyncGenerator[T, None]:
    """The items of ``source``, which runs in a task of its own and at most ``most`` items ahead.

    Its error comes after its items. Closing this closes it at once, wherever it is.
    """
    queue: asyncio.Queue[T | _End] = asyncio.Queue(most)

    async def pump() -> None:
        end = _End(None)
        try:
            async with aclosing(source):
                async for item in source:
                    await queue.put(item)
        except Exception as error:
            end = _End(error)
        await queue.put(end)

    task = asyncio.create_task(pump())
    try:
        while True:
            item = await queue.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        task.cancel()
        await asyncio.wait([task])


class _End:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
