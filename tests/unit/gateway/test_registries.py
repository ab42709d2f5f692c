"""Both ways to a gateway's registry, by announcements and through Redis: the same tests for both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from dartspec.gateway.grpc_front import RegistryServicer
from dartspec.gateway.registry import Record, Registry, ServiceKind
from dartspec.services.common.announce import announce_forever
from dartspec.services.common.server import Server
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc
from tests.unit.gateway.conftest import until
from tests.unit.gateway.redis_process import redis_process

BEAT = 0.1

RecordMaker = Callable[[], gateway_pb2.ServiceRecord]


@dataclass
class Way:
    """registries: of two gateways. announce: a coroutine that announces for ever."""

    registries: list[Registry]
    announce: Callable[[RecordMaker], asyncio.Task[None]]

    def seen(self, kind: ServiceKind = ServiceKind.VERIFIER) -> list[list[Record]]:
        return [registry.records(kind) for registry in self.registries]


@asynccontextmanager
async def by_announcement() -> AsyncIterator[Way]:
    async with AsyncExitStack() as exits:
        registries, addresses = [], []
        for _ in range(2):
            registry = Registry((), interval=BEAT, clock=time.monotonic)
            server = Server([])
            servicer = RegistryServicer(registry, lambda: None)
            gateway_pb2_grpc.add_RegistryServiceServicer_to_server(servicer, server.grpc_server)
            addresses += await server.start(["127.0.0.1:0"])
            exits.push_async_callback(server.stop, 0)
            registries.append(registry)
        yield Way(registries, lambda record: asyncio.create_task(announce_forever(addresses, record)))


@asynccontextmanager
async def through_redis() -> AsyncIterator[Way]:
    with redis_process() as redis:
        from dartspec.gateway.registry_feed import RegistryFeed
        from dartspec.services.common.redis_records import announce_to_redis

        await redis.start()
        registries = [Registry((), interval=BEAT, clock=time.monotonic) for _ in range(2)]
        feeds = [
            asyncio.create_task(RegistryFeed(redis.url, registry, lambda: None, BEAT / 2).run())
            for registry in registries
        ]
        try:
            yield Way(registries, lambda record: asyncio.create_task(announce_to_redis(redis.url, record, BEAT)))
        finally:
            for feed in feeds:
                feed.cancel()
            await asyncio.gather(*feeds, return_exceptions=True)


WAYS = {"announcement": by_announcement, "redis": through_redis}


@pytest.fixture(params=list(WAYS))
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    async with WAYS[request.param]() as made:
        yield made


def verifier(address: str = "v:1", **fields: object) -> gateway_pb2.ServiceRecord:
    complete = {
        "kind": gateway_pb2.SERVICE_KIND_VERIFIER,
        "node": "n1",
        "model": "toy",
        "model_fingerprint": "weights",
        "tokenizer_fingerprints": ["tokens"],
        "load": common_pb2.LoadReport(sessions=3, committed_tokens_per_second=50.0, accepted_per_round=1.5),
        **fields,
    }
    return gateway_pb2.ServiceRecord(address=address, **complete)  # type: ignore[arg-type]


async def stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_every_gateway_sees_the_whole_record(way: Way) -> None:
    announcing = way.announce(verifier)
    await until(lambda: all(way.seen()))
    for (record,) in way.seen():
        assert record == Record(ServiceKind.VERIFIER, "v:1", "n1", "toy", "weights", ("tokens",))
        assert record.load is not None
        assert record.load.committed_tokens_per_second == 50.0
        assert record.load.accepted_per_round == 1.5
    assert way.seen(ServiceKind.NGRAM) == [[], []]
    await stop(announcing)


async def test_a_service_that_goes_on_stays_and_one_that_stops_is_forgotten(way: Way) -> None:
    lasting, ending = way.announce(lambda: verifier("lasting:1")), way.announce(lambda: verifier("ending:1"))
    await until(lambda: all(len(records) == 2 for records in way.seen()))
    await stop(ending)
    await until(lambda: [[r.address for r in records] for records in way.seen()] == [["lasting:1"]] * 2)
    await asyncio.sleep(4 * BEAT)
    assert [[r.address for r in records] for records in way.seen()] == [["lasting:1"]] * 2
    await stop(lasting)
    await until(lambda: not any(way.seen()))


async def test_what_changes_is_seen(way: Way) -> None:
    now: dict[str, object] = {"draining": False}
    announcing = way.announce(lambda: verifier(**now))
    await until(lambda: all(way.seen()))
    now["draining"] = True
    await until(lambda: all(record.draining for (record,) in way.seen()))
    await stop(announcing)


async def test_kinds_are_apart(way: Way) -> None:
    tasks = [
        way.announce(verifier),
        way.announce(
            lambda: gateway_pb2.ServiceRecord(
                kind=gateway_pb2.SERVICE_KIND_NGRAM, address="v:1", tokenizer_fingerprints=["a", "b"]
            )
        ),
    ]
    await until(lambda: all(way.seen()) and all(way.seen(ServiceKind.NGRAM)))
    for (record,) in way.seen(ServiceKind.NGRAM):
        assert record.tokenizer_fingerprints == ("a", "b")
    await stop(*tasks)


async def test_a_record_that_is_wrong_concerns_no_other(way: Way) -> None:
    tasks = [way.announce(lambda: verifier("")), way.announce(lambda: gateway_pb2.ServiceRecord(address="x:1"))]
    await asyncio.sleep(2 * BEAT)
    tasks.append(way.announce(verifier))
    await until(lambda: all(way.seen()))
    assert [[r.address for r in records] for records in way.seen()] == [["v:1"]] * 2
    await stop(*tasks)
