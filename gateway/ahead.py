"""Work that runs ahead of its reader, by a bounded distance."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Runs ``source`` in a task of its own and at most ``most`` items ahead of whoever reads `items`."""

    def __init__(self, source: AsyncGenerator[T, None], most: int) -> None:
        self._source = source
        self._most = most
        self._items: deque[T | _End] = deque()
        self._came = asyncio.Event()
        self._room = asyncio.Event()
        self._filled = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether the source waits for its reader, or has ended."""
        return len(self._items) >= self._most or (bool(self._items) and isinstance(self._items[-1], _End))

    async def until_full(self, seconds: float) -> None:
        """Wait until it is `full`, at most so long."""
        if self.full:
            return
        self._filled.clear()
        timer = asyncio.get_running_loop().call_later(seconds, self._filled.set)
        try:
            await self._filled.wait()
        finally:
            timer.cancel()

    def waiting(self) -> T | None:
        """The next item, if it has come; it stays."""
        item = self._items[0] if self._items else None
        return None if isinstance(item, _End) else item

    def take(self) -> T:
        """The item that is `waiting`."""
        item = self._items.popleft()
        assert not isinstance(item, _End), "take() without an item that waits"
        self._room.set()
        return item

    async def items(self) -> AsyncGenerator[T, None]:
        """All items. An error comes after its items. Closing this closes the source at once, wherever it is."""
        task = asyncio.create_task(self._pump())
        try:
            while True:
                while not self._items:
                    self._came.clear()
                    await self._came.wait()
                end = self._items[0]
                if isinstance(end, _End):
                    if end.error is not None:
                        raise end.error
                    return
                yield self.take()
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _pump(self) -> None:
        end = _End(None)
        try:
            async with aclosing(self._source):
                async for item in self._source:
                    while len(self._items) >= self._most:
                        self._room.clear()
                        await self._room.wait()
                    self._put(item)
        except Exception as error:
            end = _End(error)
        self._put(end)

    def _put(self, item: T | _End) -> None:
        self._items.append(item)
        self._came.set()
        if self.full:
            self._filled.set()


class _End:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
