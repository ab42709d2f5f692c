"""Records from Redis into the gateway's own registry, in the background: no request ever waits for Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from google.protobuf.message import DecodeError

from dartspec.gateway.convert import record_from_proto
from dartspec.gateway.registry import MAX_RECORDS, Record, Registry, ServiceKind
from dartspec.services.common.errors import DartspecError, Unavailable
from dartspec.services.common.redis_records import LONGEST_PAUSE_SECONDS, Outage, RedisRecords, redis_records
from dartspec.v1 import gateway_pb2

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
LONGEST_BEAT_SECONDS = 60.0  # whatever a record says


class RegistryFeed:
    """Renews a record for each new beat that it finds, so records expire by this gateway's clock alone.

    While Redis does not answer nobody can renew, so what is known is kept; when it comes back empty, services have as
    long as always to come back too. ``changed`` is called after new beats.
    """

    def __init__(
        self, url: str, registry: Registry, changed: Callable[[], None], poll_seconds: float = POLL_SECONDS
    ) -> None:
        self._url = url
        self._poll_seconds = poll_seconds
        self._registry = registry
        self._changed = changed
        self._beats: dict[tuple[ServiceKind, str], tuple[int, Record, float]] = {}
        self._outage = Outage(url, LONGEST_PAUSE_SECONDS)
        self._read = False
        self._complained = False

    @property
    def connected(self) -> bool:
        """The last reading succeeded."""
        return self._read and not self._outage.lasts

    async def run(self) -> None:
        """Read until cancelled."""
        async with redis_records(self._url) as records:
            while True:
                try:
                    pause = await self._turn(records)
                except Exception:  # a fault of ours must not end the reading for good
                    log.exception("reading the registry")
                    pause = self._poll_seconds
                await asyncio.sleep(pause)

    async def _turn(self, records: RedisRecords) -> float:
        try:
            values = await records.read(MAX_RECORDS)
        except Unavailable as error:
            self._keep_all()
            return self._outage.failed(error)
        self._outage.succeeded()
        self._read = True
        for value in values:
            self._take(value)
        self._forget()
        return self._poll_seconds

    def _take(self, value: bytes) -> None:
        """One record. Whatever is wrong with it concerns no other."""
        try:
            message = gateway_pb2.ServiceRecord.FromString(value)
            record = record_from_proto(message)
            key = (record.kind, record.address)
            if key in self._beats and self._beats[key][0] == message.beat:
                return
            interval = min(max(message.next_within_ms / 1e3, self._poll_seconds), LONGEST_BEAT_SECONDS)
            self._registry.announce(record, interval)
        except (DecodeError, DartspecError) as error:
            if not self._complained:
                log.warning("the registry holds a record that is left out: %s", error)
            self._complained = True
            return
        self._beats[key] = (message.beat, record, interval)
        self._changed()

    def _keep_all(self) -> None:
        for _, record, interval in self._beats.values():
            self._registry.announce(record, interval)

    def _forget(self) -> None:
        """What has expired is not kept in the next outage."""
        alive = {(kind, record.address) for kind in ServiceKind for record in self._registry.records(kind)}
        self._beats = {key: beat for key, beat in self._beats.items() if key in alive}
