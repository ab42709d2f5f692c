"""Services that announce themselves are used; what goes away, drains or is wrong disturbs nobody."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dartspec.services.common.channel import error_from_rpc
from dartspec.services.common.errors import ResourceExhausted, Unavailable
from dartspec.v1 import gateway_pb2
from tests.fakes import FakeVerifier, plain_answer, serving
from tests.unit.gateway.conftest import StackMaker, until


def announcement(address: str, **fields: object) -> gateway_pb2.AnnounceRequest:
    record = gateway_pb2.ServiceRecord(kind=gateway_pb2.SERVICE_KIND_VERIFIER, address=address, **fields)  # type: ignore[arg-type]
    return gateway_pb2.AnnounceRequest(record=record)


async def test_an_announced_verifier_is_used_and_forgotten(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    async with serving(verifier) as address, stack(heartbeat_seconds=0.2) as s:
        answer = await s.registry.Announce(announcement(address))
        assert answer.next_within_ms == 200
        await until(lambda: verifier.streams == 1)
        await asyncio.sleep(0)
        reply = await s.generate(sampling={"max_tokens": 5})
        assert reply.ids == plain_answer(verifier.target, [1, 2, 3], 5)
        await until(lambda: s.gateway.fleet.addresses == [])  # not renewed: it expires
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await s.generate()
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_draining_verifier_finishes_what_it_has(stack: StackMaker) -> None:
    draining, other = FakeVerifier(), FakeVerifier()
    draining.step_seconds = 0.01
    async with serving(draining) as address, serving(other) as other_address, stack([address]) as s:
        call = asyncio.create_task(s.generate(sampling={"max_tokens": 60}))
        await until(lambda: draining.events > 2)
        await s.registry.Announce(announcement(address, draining=True))
        await s.registry.Announce(announcement(other_address))
        await until(lambda: other.streams == 1)
        for _ in range(4):
            await s.generate()
        assert len(other.opens) == 4
        assert (await call).ids == plain_answer(draining.target, [1, 2, 3], 60)
        assert len(draining.opens) == 1


@pytest.mark.parametrize("said", [True, False])
async def test_a_verifier_that_says_itself_that_it_drains_gets_nothing_new(stack: StackMaker, said: bool) -> None:
    """said: the gateway has heard of it; if not, it learns from the refusal."""
    draining, other = FakeVerifier(), FakeVerifier()
    draining.step_seconds = 0.01
    other.reject = ResourceExhausted("full")
    async with stack([draining, other]) as s:
        call = asyncio.create_task(s.generate(sampling={"max_tokens": 60}))
        await until(lambda: draining.events > 2)
        draining.draining = said
        draining.reject = Unavailable("draining", retry_after_ms=500)
        other.reject = None
        events, opens = draining.events, len(other.opens)
        await until(lambda: draining.events > events + 2)
        for _ in range(6):
            await s.generate()
        assert len(other.opens) == opens + 6
        assert len(draining.opens) == 1 or not said
        assert (await call).ids == plain_answer(draining.target, [1, 2, 3], 60)
        # Nobody is left, and the client is told so.
        other.reject = draining.reject
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await s.generate()
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_an_address_where_nobody_is_kills_nothing(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    async with stack([verifier]) as s:
        for address in ("127.0.0.1:1", "unix:/nowhere", "not an address", "a" * 5000):
            await s.registry.Announce(announcement(address))
        for _ in range(5):
            await s.generate()
    assert len(verifier.opens) == 5


async def test_bad_announcements_name_their_field(stack: StackMaker) -> None:
    async with stack() as s:
        for field, request in (
            ("record.kind", gateway_pb2.AnnounceRequest()),
            ("record.address", announcement("")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await s.registry.Announce(request)
            error = error_from_rpc(failure.value, "gateway")
            assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)


async def test_a_verifier_of_another_protocol_is_not_used(stack: StackMaker) -> None:
    future, alive = FakeVerifier(), FakeVerifier()
    future.hello.protocol = 2
    async with stack([future, alive]) as s:
        for _ in range(5):
            await s.generate()
        alive.reject = ResourceExhausted("full")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await s.generate()
        assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert future.opens == []


async def test_a_tokenizer_that_is_not_the_announced_one_is_refused(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.hello.tokenizer_fingerprint = "another"
    async with stack([verifier]) as s:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await s.generate()
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
