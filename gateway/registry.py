"""Which services there are: static addresses, and records that services announce and renew.

In memory, which is all that the rest of the gateway ever asks. `registry_feed` renews records in it from Redis.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dartspec.services.common.errors import InvalidArgument, ResourceExhausted
from dartspec.v1 import common_pb2

MAX_RECORDS = 1024
MISSED_BEATS = 3


class ServiceKind(enum.IntEnum):
    """Numbered as in gateway.proto."""

    VERIFIER = 1
    NGRAM = 2


@dataclass(frozen=True)
class Record:
    """A service that can be used.

    model, model_fingerprint: verifiers only, as announced. load: of a verifier that announces itself, when the record
    was made. expires: a reading of the registry's clock; None is never.
    """

    kind: ServiceKind
    address: str
    node: str = ""
    model: str = ""
    model_fingerprint: str = ""
    tokenizer_fingerprints: tuple[str, ...] = ()
    draining: bool = False
    load: common_pb2.LoadReport | None = field(default=None, compare=False)
    expires: float | None = field(default=None, compare=False)


class Registry:
    """In memory. ``clock`` gives seconds; ``interval`` is the pace of heartbeats in seconds."""

    def __init__(self, static: tuple[Record, ...], *, interval: float, clock: Callable[[], float]) -> None:
        self._static = {(record.kind, record.address): record for record in static}
        self._announced: dict[tuple[ServiceKind, str], Record] = {}
        self._interval = interval
        self._clock = clock

    def announce(self, record: Record, interval: float | None = None) -> int:
        """Take a heartbeat. Returns within how many milliseconds the next one is expected.

        ``interval``: seconds to the next one, where the service has a pace of its own.
        """
        interval = interval or self._interval
        if not record.address:
            raise InvalidArgument("record.address", "must not be empty")
        key = (record.kind, record.address)
        self._expire()
        if key not in self._announced and len(self._announced) >= MAX_RECORDS:
            raise ResourceExhausted(f"{MAX_RECORDS} services are announced already", retry_after_ms=int(1e3 * interval))
        self._announced[key] = replace(record, expires=self._clock() + MISSED_BEATS * interval)
        return int(1e3 * interval)

    def records(self, kind: ServiceKind) -> list[Record]:
        """Those that are alive, static ones first. What a static service announces about itself counts."""
        self._expire()
        merged = self._static | self._announced
        return [record for (record_kind, _), record in merged.items() if record_kind == kind]

    def _expire(self) -> None:
        now = self._clock()
        self._announced = {
            key: record for key, record in self._announced.items() if record.expires is None or record.expires > now
        }
