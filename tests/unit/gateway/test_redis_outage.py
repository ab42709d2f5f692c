"""A Redis that is away, silent, empty or full of rubbish changes nothing for requests, and the fleet comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import click
import pytest

from dartspec.gateway.config import Settings
from dartspec.gateway.registry import Registry, ServiceKind
from dartspec.services.common.config import redis_url, validate
from dartspec.v1 import gateway_pb2
from tests.fakes import FakeVerifier, plain_answer, serving
from tests.unit.gateway.conftest import Stack, StackMaker, until
from tests.unit.gateway.redis_process import redis_process

BEAT = 0.2
PROMPT = [1, 2, 3]


def record(address: str) -> gateway_pb2.ServiceRecord:
    return gateway_pb2.ServiceRecord(kind=gateway_pb2.SERVICE_KIND_VERIFIER, address=address, node="n1")


async def registry_state(stack: Stack, wanted: int) -> None:
    """Wait until the gateway says so."""
    async with asyncio.timeout(20):
        while (await stack.admin.GetStatus(gateway_pb2.GetStatusRequest())).registry_state != wanted:
            await asyncio.sleep(0.02)


async def test_an_outage_and_an_empty_restart_under_load(stack: StackMaker) -> None:
    with redis_process() as redis:
        from dartspec.services.common.redis_records import announce_to_redis

        await redis.start()
        verifiers = [FakeVerifier(), FakeVerifier()]
        async with (
            serving(verifiers[0]) as first,
            serving(verifiers[1]) as second,
            stack(registry=redis.url) as s,
        ):
            announcing = [
                asyncio.create_task(announce_to_redis(redis.url, lambda a=a: record(a), BEAT))  # type: ignore[misc]
                for a in (first, second)
            ]
            await until(lambda: all(verifier.streams == 1 for verifier in verifiers))
            status = await s.admin.GetStatus(gateway_pb2.GetStatusRequest())
            assert (status.ready_replicas, status.registry_state) == (2, gateway_pb2.REGISTRY_STATE_CONNECTED)
            running, answers = True, 0

            async def ask() -> None:
                nonlocal answers
                while running:
                    reply = await s.generate(sampling={"max_tokens": 8})
                    assert reply.ids == plain_answer(verifiers[0].target, PROMPT, 8)
                    answers += 1

            asking = [asyncio.create_task(ask()) for _ in range(3)]
            redis.stop()
            await registry_state(s, gateway_pb2.REGISTRY_STATE_OUT)
            so_far = answers
            await asyncio.sleep(3.5)  # longer than records live: three beats of at least a second
            assert answers > so_far
            assert len(s.gateway.fleet.addresses) == 2
            await redis.start()
            await registry_state(s, gateway_pb2.REGISTRY_STATE_CONNECTED)
            running = False
            await asyncio.gather(*asking)
            # Redis, which came back empty, has both again, and so has a gateway that starts now.
            async with stack(registry=redis.url):
                await until(lambda: all(verifier.streams == 2 for verifier in verifiers))
            for task in announcing:
                task.cancel()
            await asyncio.gather(*announcing, return_exceptions=True)
            assert [verifier.streams for verifier in verifiers] == [2, 2]  # one for each gateway, none was lost


async def test_a_gateway_starts_and_answers_without_its_redis(stack: StackMaker) -> None:
    pytest.importorskip("redis", reason="the package redis is not installed (the redis extra)")
    verifier = FakeVerifier()
    async with stack([verifier], registry="redis://127.0.0.1:1") as s:
        await s.generate()
        status = await s.admin.GetStatus(gateway_pb2.GetStatusRequest())
        assert status.registry_state == gateway_pb2.REGISTRY_STATE_OUT


async def test_a_redis_that_hangs_holds_up_nothing(stack: StackMaker) -> None:
    with redis_process() as redis:
        await redis.start()
        os.kill(redis.pid, signal.SIGSTOP)
        verifier = FakeVerifier()
        async with stack([verifier], registry=redis.url) as s:
            for _ in range(5):
                await s.generate()
            os.kill(redis.pid, signal.SIGCONT)
            await registry_state(s, gateway_pb2.REGISTRY_STATE_CONNECTED)


async def test_rubbish_in_redis_hides_nobody() -> None:
    with redis_process() as process:
        import redis.asyncio

        from dartspec.gateway.registry_feed import RegistryFeed
        from dartspec.services.common.redis_records import INDEX, PREFIX, RedisRecords

        await process.start()
        records = RedisRecords(process.url)
        good = record("v:1")
        good.beat, good.next_within_ms = 1, 200
        await records.write(good, 60)
        client = redis.asyncio.Redis.from_url(process.url)
        await client.sadd(INDEX, "1:gone", b"\xff\xfe", "1:bad")
        await client.set(PREFIX + "1:bad", b"\xff" * 50)
        registry = Registry((), interval=1.0, clock=time.monotonic)
        feed = asyncio.create_task(RegistryFeed(process.url, registry, lambda: None, 0.05).run())
        await until(lambda: len(registry.records(ServiceKind.VERIFIER)) == 1)
        # Names without a record are tidied away; a record that stays but is not renewed expires.
        async with asyncio.timeout(20):
            while await client.scard(INDEX) != 2:
                await asyncio.sleep(0.01)
        await until(lambda: not registry.records(ServiceKind.VERIFIER))
        assert await client.exists(PREFIX + "1:v:1")
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)
        await client.aclose()
        await records.close()


async def test_reading_ends_wherever_it_is_cancelled() -> None:
    with redis_process() as process:
        from dartspec.gateway.registry_feed import RegistryFeed

        await process.start()
        for steps in range(120):  # of the event loop: through connecting and several readings
            registry = Registry((), interval=1.0, clock=time.monotonic)
            feed = asyncio.create_task(RegistryFeed(process.url, registry, lambda: None, 0.0).run())
            for _ in range(steps):
                await asyncio.sleep(0)
            feed.cancel()
            done, _ = await asyncio.wait({feed}, timeout=5)
            assert done, f"goes on after a cancellation at step {steps}"


@pytest.mark.parametrize("url", ["localhost:6379", "http://host:1", "redis://", "unix:path"])
def test_a_wrong_url_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(click.BadParameter) as error:
        validate(Settings(registry=url))
    assert error.value.param_hint == "'--registry'"


def test_a_missing_package_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "dartspec[redis]" in str(redis_url("redis://host:6379/0"))
    assert redis_url("") is None
