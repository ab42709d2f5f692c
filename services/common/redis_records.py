"""Service records in Redis: written by services at every heartbeat, read by gateways. Nothing else imports redis.

A record is one key that expires by itself, and its name is a member of one set, so that listing costs what the fleet
is large and not what else the Redis holds. Every heartbeat writes both, so a Redis that lost everything fills again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from dartspec.services.common.errors import Unavailable
from dartspec.v1 import gateway_pb2

T = TypeVar("T")

log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
MISSED_BEATS = 3
LONGEST_PAUSE_SECONDS = 2.0
CALL_SECONDS = 1.0
# One hash tag, so that both live on one node of a cluster.
INDEX = "{dartspec}:v1:services"
PREFIX = "{dartspec}:v1:service:"


class RedisRecords:
    """Calls take at most CALL_SECONDS. They raise Unavailable, whatever went wrong."""

    def __init__(self, url: str) -> None:
        import redis.asyncio  # an extra
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError

        self._errors = (RedisError, OSError, TimeoutError)
        # A try each: whoever calls comes again, and knows better when. No `socket_timeout`: the client puts it around
        # every send with `asyncio.wait_for`, which in Python 3.11 can swallow a cancellation; `_in_time` bounds calls.
        self._client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
            url,
            socket_connect_timeout=CALL_SECONDS,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
        )

    async def write(self, record: gateway_pb2.ServiceRecord, seconds: float) -> None:
        """Keep a record for so long."""
        await self._in_time(self._write(f"{record.kind}:{record.address}", record.SerializeToString(), seconds))

    async def read(self, most: int) -> list[bytes]:
        """The records that there are, serialized, at most so many. Names whose record has expired are removed."""
        return await self._in_time(self._read(most))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _write(self, name: str, value: bytes, seconds: float) -> None:
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.set(PREFIX + name, value, px=int(1e3 * seconds))
            pipe.sadd(INDEX, name)
            await pipe.execute()

    async def _read(self, most: int) -> list[bytes]:
        names: list[bytes] = await self._client.execute_command("SRANDMEMBER", INDEX, most)
        if not names:
            return []
        keys = [PREFIX.encode() + name for name in names]
        values: list[bytes | None] = await self._client.execute_command("MGET", *keys)
        gone = [name for name, value in zip(names, values, strict=True) if value is None]
        if gone:
            await self._client.execute_command("SREM", INDEX, *gone)
        return [value for value in values if value is not None]

    async def _in_time(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await call
        except self._errors as error:
            raise Unavailable(str(error) or type(error).__name__) from error


@asynccontextmanager
async def redis_records(url: str) -> AsyncIterator[RedisRecords]:
    """Records at a URL, closed in the end."""
    records = RedisRecords(url)
    try:
        yield records
    finally:
        await records.close()


class Outage:
    """Logs the begin and the end of an outage, and says how long to wait before the next try."""

    def __init__(self, url: str, longest: float) -> None:
        parts = urlsplit(url)  # without user and password
        self._name = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
        self._longest = longest
        self._failures = 0

    @property
    def lasts(self) -> bool:
        """The last call failed."""
        return self._failures > 0

    def failed(self, error: Unavailable) -> float:
        """Returns the pause in seconds."""
        if not self._failures:
            log.warning("registry %s does not answer: %s", self._name, error.message)
        self._failures += 1
        return min(0.1 * 2.0 ** min(self._failures, 10), self._longest)

    def succeeded(self) -> None:
        """A call was answered."""
        if self._failures:
            log.info("registry %s is back", self._name)
        self._failures = 0


async def announce_to_redis(
    url: str, record: Callable[[], gateway_pb2.ServiceRecord], beat_seconds: float = BEAT_SECONDS
) -> None:
    """Write ``record()`` at every beat until cancelled; an outage is waited for."""
    beat = 0
    outage = Outage(url, min(beat_seconds, LONGEST_PAUSE_SECONDS))
    async with redis_records(url) as records:
        while True:
            beat += 1
            message = record()
            message.beat = beat
            message.next_within_ms = int(1e3 * beat_seconds)
            try:
                await records.write(message, MISSED_BEATS * beat_seconds)
                outage.succeeded()
                pause = beat_seconds / 2  # as with gateways: one lost beat is not missed
            except Unavailable as error:
                pause = outage.failed(error)
            await asyncio.sleep(pause)
