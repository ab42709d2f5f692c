"""Answers that are open when the gateway is stopped, or when their connection is too old, come to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from dartspec.gateway.config import Settings
from dartspec.gateway.serve import running
from dartspec.services.common.channel import open_channel
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc
from tests.fakes import FakeVerifier, serving
from tests.unit.gateway.conftest import collect


@asynccontextmanager
async def open_answer(**settings: Any) -> AsyncIterator[tuple[AsyncExitStack, Any]]:
    """What stops the gateway when it is closed, and a call in the middle of its answer."""
    verifier = FakeVerifier()
    verifier.step_seconds = 0.02
    async with serving(verifier) as address, AsyncExitStack() as gateway:
        options = Settings(listen=("127.0.0.1:0",), verifier=(address,), queue_seconds=0.0, **settings)
        served = await gateway.enter_async_context(running(options))
        async with open_channel(served.addresses[0]) as channel:
            request = gateway_pb2.GenerateRequest(
                token_ids=gateway_pb2.TokenIds(ids=[1, 2, 3]),
                sampling=common_pb2.Sampling(temperature=0.0, max_tokens=60),
                seed=0,
                mode=gateway_pb2.MODE_PLAIN,
            )
            call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request)
            yield gateway, call


async def started(call: Any) -> list[Any]:
    return [await call.read(), await call.read()]


class Rest:
    """What was read of a call, and then the call."""

    def __init__(self, read: list[Any], call: Any) -> None:
        self._read, self._call = read, call

    async def read(self) -> Any:
        return self._read.pop(0) if self._read else await self._call.read()


async def test_open_answers_end():
    async with open_answer(drain_seconds=60.0) as (gateway, call):
        read = await started(call)
        stopping = asyncio.create_task(gateway.aclose())
        reply = await collect(Rest(read, call))
        assert len(reply.ids) == 60
        await stopping


async def test_what_is_left_is_given_up():
    async with open_answer(drain_seconds=0.0) as (gateway, call):
        await started(call)
        await gateway.aclose()
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(call)


async def test_an_answer_outlives_its_connection():
    async with open_answer(connection_age_seconds=0.2) as (gateway, call):
        reply = await collect(call)
        assert len(reply.ids) == 60
        await gateway.aclose()
