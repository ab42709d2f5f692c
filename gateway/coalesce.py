"""Chunks that wait for each other when the gateway is busy, so that a client gets a few large ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from dartspec.gateway.ahead import Ahead
from dartspec.gateway.types import Chunk, Finish

SHORTEST_HOLD = 0.005  # below this a timer costs more than it saves


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Chunks that follow each other as one."""
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(
        first_index=chunks[0].first_index,
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        logprobs=tuple(value for chunk in chunks for value in chunk.logprobs),
        text="".join(chunk.text for chunk in chunks),
        margins=tuple(value for chunk in chunks for value in chunk.margins),
        top_logprobs=tuple(entries for chunk in chunks for entries in chunk.top_logprobs),
    )


async def coalesced(
    source: Ahead[Chunk | Finish], hold: Callable[[], float], settled: Callable[[], Awaitable[None]]
) -> AsyncGenerator[Chunk | Finish, None]:
    """The messages of ``source``, each once `settled`. While ``hold()`` is above zero, chunks that wait leave as one.

    Each then leaves so many seconds after the one before it, so that more can join it; the first leaves at once.
    """
    loop = asyncio.get_running_loop()
    left_at = float("-inf")
    async with aclosing(source.items()) as items:
        async for item in items:
            await settled()
            seconds = hold()
            if isinstance(item, Finish) or seconds < SHORTEST_HOLD:
                yield item
                left_at = loop.time()
                continue
            wait = left_at + seconds - loop.time()
            if wait > SHORTEST_HOLD:
                await source.until_full(wait)
            chunks = [item]
            while isinstance(source.waiting(), Chunk):
                chunk = source.take()
                assert isinstance(chunk, Chunk)
                chunks.append(chunk)
            yield joined(chunks)
            left_at = loop.time()
